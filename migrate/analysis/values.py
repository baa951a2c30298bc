"""Values of host names as the shape analysis knows them: sizes, tensors, tuples, and choices between them."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from migrate.analysis.dims import Dim


@dataclass(frozen=True)
class Unknown:
    """A value of which only the name is known; `label` is unique in the function."""

    label: str
    external: bool = False      # came in from the caller, or may be a view of what did
    optional: bool = False      # may be None


@dataclass(frozen=True)
class Tensor:
    """A tensor. `shape` is None where the rank or a dimension is unknown; `axes` then has the known ones."""

    shape: tuple[Dim, ...] | None = None
    axes: tuple[tuple[int, Dim], ...] = ()
    rank: int | None = None
    contiguous: bool = False    # proven; False means not known
    external: bool = True
    optional: bool = False
    layout: str = ""            # "transposed" or "expanded": a view whose strides mean something

    def dim(self, axis: int) -> Dim | None:
        if self.shape is not None:
            return self.shape[axis] if -len(self.shape) <= axis < len(self.shape) else None
        return dict(self.axes).get(axis)


@dataclass(frozen=True)
class Several:
    """A tuple or list of values: a shape, or several results."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Choice:
    """One of two values, and the test that decides. `label` names it where it is used as a number."""

    test: str
    then: Value
    orelse: Value
    label: str


class Nothing:
    def __repr__(self) -> str:
        return "NONE"


NONE = Nothing()                                # Python's None
Value = Dim | Unknown | Tensor | Several | Choice | Nothing
Env = dict[str, Value]


def resolve(value: Value | None, assume: Mapping[str, bool]) -> Value | None:
    """The value under assumptions about tests (`HostShapes.test_key`)."""
    while isinstance(value, Choice):
        if value.test in assume:
            value = value.then if assume[value.test] else value.orelse
            continue
        then, orelse = resolve(value.then, assume), resolve(value.orelse, assume)
        if isinstance(orelse, Nothing) and isinstance(then, Tensor):
            return replace(then, optional=True)
        if isinstance(then, Nothing) and isinstance(orelse, Tensor):
            return replace(orelse, optional=True)
        if isinstance(then, Tensor) and isinstance(orelse, (Tensor, Unknown)):
            return _common(then, as_tensor(orelse))
        if isinstance(then, Unknown) and isinstance(orelse, Tensor):
            return _common(as_tensor(then), orelse)
        return value
    return value


def assume_test(env: Env, key: str, holds: bool) -> None:
    for name, value in env.items():
        if isinstance(value, Choice):
            env[name] = _under(value, key, holds)


def _under(value: Value, key: str, holds: bool) -> Value:
    if not isinstance(value, Choice):
        return value
    if value.test == key:
        return _under(value.then if holds else value.orelse, key, holds)
    return replace(value, then=_under(value.then, key, holds), orelse=_under(value.orelse, key, holds))


def without_none(value: Value) -> Value:
    if isinstance(value, Choice):
        if isinstance(value.then, Nothing):
            return without_none(value.orelse)
        if isinstance(value.orelse, Nothing):
            return without_none(value.then)
    return replace(value, optional=False) if isinstance(value, (Tensor, Unknown)) else value


def _common(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(shape=a.shape if a.shape == b.shape else None, axes=tuple(x for x in a.axes if x in b.axes),
                  rank=a.rank if a.rank == b.rank else None, contiguous=a.contiguous and b.contiguous,
                  external=a.external or b.external, optional=a.optional or b.optional,
                  layout=a.layout or b.layout)


def as_tensor(value: Value | None, assume: Mapping[str, bool] | None = None) -> Tensor:
    """The value read as a tensor: what is not known of it is unknown in the result."""
    value = resolve(value, assume or {})
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Choice):
        return Tensor(optional=True, external=may_alias_caller(value))
    if isinstance(value, Unknown):
        return Tensor(external=value.external, optional=value.optional)
    return Tensor()


def as_dim(value: Value | None, assume: Mapping[str, bool] | None = None) -> Dim | None:
    """The value read as a number; None where it may be anything else."""
    if assume:
        value = resolve(value, assume)
    if isinstance(value, Dim):
        return value
    if isinstance(value, Choice):
        both = as_dim(value.then) is not None and as_dim(value.orelse) is not None
        return Dim.symbol(value.label) if both else None
    return Dim.symbol(value.label) if isinstance(value, Unknown) else None


def may_alias_caller(value: Value) -> bool:
    if isinstance(value, Choice):
        return may_alias_caller(value.then) or may_alias_caller(value.orelse)
    return value.external if isinstance(value, (Tensor, Unknown)) else False


def depth(value: Value) -> int:
    return 1 + max(depth(value.then), depth(value.orelse)) if isinstance(value, Choice) else 0


def spell(value: Value) -> str:
    dim = as_dim(value)
    return str(dim) if dim is not None else repr(value)
