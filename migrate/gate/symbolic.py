"""Integer expressions over kernel arguments: just enough to say how often a loop runs."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    # C's division, as arith.divsi; loops count upwards from zero, where it is Python's
    "/": lambda a, b: int(a / b) if b else 0,
    "%": lambda a, b: a - b * int(a / b) if b else 0,
    "ceil": lambda a, b: -(-a // b) if b else 0,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Expr:
    """A constant (`value`), a name, or an operator with two operands."""

    op: str = ""
    args: tuple[Expr, ...] = ()
    name: str = ""
    value: int | None = None

    def evaluate(self, known: Mapping[str, int]) -> int | None:
        """The value when every name in it is known, else None."""
        if self.value is not None:
            return self.value
        if self.name:
            return known.get(self.name)
        left, right = (arg.evaluate(known) for arg in self.args)
        return None if left is None or right is None else _FOLD[self.op](left, right)

    def __str__(self) -> str:
        if self.value is not None:
            return str(self.value)
        if self.name:
            return self.name
        left, right = map(str, self.args)
        if self.op == "ceil":
            return f"ceil({left} / {right})"
        return f"{self.op}({left}, {right})" if self.op in ("min", "max") else f"({left} {self.op} {right})"


def const(value: int) -> Expr:
    return Expr(value=value)


def symbol(name: str) -> Expr:
    return Expr(name=name)


def make(op: str, a: Expr, b: Expr) -> Expr:
    """`a op b`, folded where that is free."""
    if a.value is not None and b.value is not None:
        return const(_FOLD[op](a.value, b.value))
    zero, one = const(0), const(1)
    if op == "+" and zero in (a, b):
        return b if a == zero else a
    if op == "-" and b == zero:
        return a
    if op == "-" and a == b:
        return zero
    if op == "*" and one in (a, b):
        return b if a == one else a
    if op == "*" and zero in (a, b):
        return zero
    if op in ("/", "ceil") and b == one:
        return a
    if op in ("min", "max") and a == b:
        return a
    return Expr(op, (a, b))
