"""What a launch did, in the order in which it was issued: the record behind traces and second opinions.

Times are cycles of the cost model and begin at 0 with each program.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from migrate.vnpu.core import Instruction
    from migrate.vnpu.program import Site


class Issued(NamedTuple):
    """One instruction on its pipe."""

    program: int
    core: str                   # "AIC", "AIV0", "AIV1"
    pipe: str
    start: float
    end: float
    site: Site
    instruction: Instruction

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def place(self) -> str:
        """FILE:LINE, "" where it is not known."""
        return self.site.place


class FlagSet(NamedTuple):
    program: int
    core: str
    source: str                 # pipes
    sink: str
    event: Any
    site: Site


class FlagTaken(NamedTuple):
    """`sink` was free at `start` and went on at `end`; the flag is the oldest of its name that was set."""

    program: int
    core: str
    source: str
    sink: str
    event: Any
    start: float
    end: float
    site: Site


class Barrier(NamedTuple):
    program: int
    core: str
    pipe: str                   # or "ALL"


class Signalled(NamedTuple):
    """A handshake towards the cores of the other kind: from the cube core to both vector cores, or back."""

    program: int
    core: str
    pipe: str
    flag: int
    site: Site


class SignalTaken(NamedTuple):
    """A pipe went on at `end`, when every core of the other kind had signalled."""

    program: int
    core: str
    pipe: str
    flag: int
    start: float
    end: float
    site: Site


Event = Issued | FlagSet | FlagTaken | Barrier | Signalled | SignalTaken
