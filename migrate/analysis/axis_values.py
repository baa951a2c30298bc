"""The terms in which migrate.analysis.axes speaks of a kernel: axes, lengths, values and how they are made."""
from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from migrate.asked import Literal

TILE = "tile"           # a tile, a pointer, a block pointer or a scalar
NUMBER = "number"       # known when the kernel is compiled
OTHER = "other"         # a dtype, a text, a tuple
NONE = "none"
UNKNOWN = "unknown"
MIXED = "mixed"         # of another shape on another path: nobody may read it

ARANGE, HELPER, WHOLE = "arange", "helper", "whole"


@dataclass(frozen=True)
class Number:
    """A number of the compilation: the names that it goes by, the parameters it depends on, its value if known."""

    names: frozenset[str] = frozenset()
    params: frozenset[str] = frozenset()
    value: Literal = None


@dataclass(frozen=True, eq=False)
class Length:
    """A place that says how long an axis is."""

    number: Number
    node: cst.CSTNode


class Axis:
    """An axis of one value; `root` stands for all the axes that are the same one."""

    def __init__(self, length: Length | None = None, *, one: bool = False) -> None:
        self._up: Axis | None = None
        self.lengths = [length] if length else []
        self.one = one                  # a length of 1 that is written as such: it broadcasts

    @property
    def root(self) -> Axis:
        axis = self
        while axis._up is not None:
            axis = axis._up
        return axis

    def unite(self, other: Axis) -> None:
        a, b = self.root, other.root
        if a is not b:
            b._up = a
            a.lengths += b.lengths

    def like(self, other: Axis) -> bool:
        """Whether the two may be one axis, by what is known of their lengths."""
        a, b = self.root, other.root
        if a is b or self.one or other.one:
            return self.one == other.one
        return any(x.number.names & y.number.names or (x.number.value is not None and x.number.value == y.number.value)
                   for x in a.lengths for y in b.lengths)


@dataclass(frozen=True, eq=False)
class Value:
    """What an expression gives. `axes` is None where the shape is not known; a scalar has none."""

    axes: tuple[Axis, ...] | None = ()
    kind: str = TILE
    number: Number = Number()
    items: tuple[Value, ...] | None = None
    why: str = ""                       # the shape is not known


def unknown(why: str = "whose shape is not known") -> Value:
    """A value that nothing with an axis to cut may meet."""
    return Value(None, UNKNOWN, why=why)


@dataclass(eq=False)
class Spread:
    """How an expression is made of its operands.

    `axes` are those of the result, followed by those that it sums over (`join` says how: "+", "maximum" ...). Each
    operand comes with the place in `axes` of each of its own axes; None instead of places for an operand of which
    only the type is read. `lengths` and `starts` are the places that say how long an axis is and where it begins;
    `once` is what enters a sum only once. `kind` is for what is not made part by part: WHOLE for operands none of
    which can be in parts.
    """

    axes: tuple[Axis, ...]
    operands: list[tuple[cst.BaseExpression, tuple[int, ...] | None]]
    join: str = ""
    lengths: dict[cst.BaseExpression, int] = field(default_factory=dict)
    starts: dict[cst.BaseExpression, int] = field(default_factory=dict)
    once: cst.BaseExpression | None = None
    kind: str = ""


@dataclass(frozen=True, eq=False)
class Block:
    """What keeps an axis in one piece, and where."""

    axis: Axis
    why: str
    node: cst.CSTNode
