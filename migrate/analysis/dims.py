"""Dimensions of host tensors as symbols: products of atoms, compared by structure."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Dim:
    """`factor * atom * atom ...`, e.g. 2 * nchunks * headdim. An atom is a symbol or an opaque expression.

    Two dimensions are equal only where the file proves it, so "different" means "not known to be equal".
    """

    factor: int = 1
    atoms: tuple[str, ...] = ()

    @staticmethod
    def number(value: int) -> Dim:
        return Dim(value)

    @staticmethod
    def symbol(name: str) -> Dim:
        return Dim(1, (name,))

    def __mul__(self, other: Dim) -> Dim:
        return Dim(self.factor * other.factor, tuple(sorted(self.atoms + other.atoms)))

    def __str__(self) -> str:
        parts = [*([str(self.factor)] if self.factor != 1 or not self.atoms else []), *self.atoms]
        return " * ".join(parts)

    @property
    def is_one(self) -> bool:
        return self.factor == 1 and not self.atoms

    def without(self, other: Dim) -> Dim | None:
        """self / other, where other divides self symbol by symbol."""
        left = Counter(self.atoms)
        left.subtract(other.atoms)
        if other.factor == 0 or self.factor % other.factor or min(left.values(), default=0) < 0:
            return None
        return Dim(self.factor // other.factor, tuple(sorted(left.elements())))


def product(dims: Iterable[Dim]) -> Dim:
    out = Dim()
    for dim in dims:
        out = out * dim
    return out
