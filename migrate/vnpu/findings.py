"""What the checks of the virtual NPU found, as data."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ERROR, NOTE = "error", "note"


@dataclass
class Finding:
    """`kind` is one of a few names: "race", "never written", "out of bounds", "overlap", "hang", "flag", "unplanned",
    "same bytes", ... An `error` is something that no correct program does; a `note` is worth knowing and harmless by
    itself. `count` is how often it was seen in the launch; `program` and the message are those of the first time."""

    kind: str
    severity: str
    kernel: str
    program: int
    core: str                # "AIC", "AIV0", "AIV1"
    call: str                # the library function or operation
    place: str               # FILE:LINE of the kernel, "" where the compiler kept none
    message: str
    count: int = 1

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        more = f" ({self.count} times)" if self.count > 1 else ""
        return (f"{self.kind}: {self.message}; {self.call}{where}, kernel {self.kernel}, program {self.program}, "
                f"core {self.core}{more}")


class Findings:
    """The findings of one launch: what is found again at the same place is counted."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self._found: dict[tuple[Any, ...], Finding] = {}

    def add(self, kind: str, severity: str, program: int, core: str, call: str, place: str, message: str) -> None:
        key = (kind, severity, core, call, place)
        if key in self._found:
            self._found[key].count += 1
        else:
            self._found[key] = Finding(kind, severity, self.kernel, program, core, call, place, message)

    def take(self) -> list[Finding]:
        """All of them, errors first."""
        return sorted(self._found.values(), key=lambda finding: finding.severity != ERROR)
