"""What a library call does, as data, and the table from names to handlers."""
from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from migrate.errors import MigrateError
from migrate.vnpu.memory import View

# how the names of library functions spell element types
DTYPES = {"float": "f32", "half": "f16", "bfloat16_t": "bf16", "bool": "i1", "int8_t": "i8", "int16_t": "i16",
          "int32_t": "i32", "int64_t": "i64", "uint8_t": "ui8", "uint16_t": "ui16", "uint32_t": "ui32",
          "uint64_t": "ui64"}
_DTYPE = "(?:" + "|".join(DTYPES) + ")"


class Unknown(MigrateError):
    """A library function that nobody has described yet."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no handler for the library function {name!r}")
        self.name = name


@dataclass(slots=True)
class Effect:
    """One instruction stream on one pipe, or what counts as one.

    `pipe`: "MTE2" (global memory in), "MTE1" (L1 to L0), "MTE3" (out to global memory), "V", "M", "FIX" (L0C out) or
    "S". `reads` and `writes` are the views that `run()` reads and writes; `scratch`, those it leaves with undefined
    content. `cycles` are of the cost model. `atomic` is the operation, where it updates global memory atomically:
    such updates of several programs are no race.
    """

    pipe: str
    reads: Sequence[View]
    writes: Sequence[View]
    cycles: float
    run: Callable[[], None]
    scratch: Sequence[View] = ()
    atomic: str = ""


class SetFlag(NamedTuple):
    """Pipe `source` tells pipe `sink` that it came this far."""

    source: str
    sink: str
    flag: Any


class WaitFlag(NamedTuple):
    """Pipe `sink` waits for pipe `source`."""

    source: str
    sink: str
    flag: Any


Step = Effect | SetFlag | WaitFlag
Handler = Callable[..., Effect | list[Step]]

_TABLE: list[tuple[re.Pattern[str], Callable[..., Effect | list[Step]]]] = []


def handles(pattern: str) -> Callable[[Handler], Handler]:
    """Register a handler for the functions whose whole name matches `pattern`, in which `T` between angle brackets
    stands for an element type. Named groups are given to the handler as keywords, in front of the call's own
    arguments."""
    compiled = re.compile(re.sub(r"<T(\w*)>", lambda m: f"(?P<{m[1]}>{_DTYPE})" if m[1] else _DTYPE, pattern))

    def register(handler: Handler) -> Handler:
        _TABLE.append((compiled, handler))
        return handler
    return register


def scratch(*buffers: View) -> list[View]:
    """The buffers whose content a function leaves undefined; one of no elements stands for "none needed"."""
    return [buffer for buffer in buffers if 0 not in buffer.sizes]


@cache
def _load() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"migrate.vnpu.library.{module.name}")


@cache
def find(name: str) -> Callable[..., Effect | list[Step]]:
    """The handler of a library function, ready to be called with its arguments."""
    _load()
    for pattern, handler in _TABLE:
        if found := pattern.fullmatch(name):
            return partial(handler, **found.groupdict())
    raise Unknown(name)
