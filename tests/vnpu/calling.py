"""Calling a library function as the core would, and holding it to what it says it reads and writes."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from migrate.vnpu.library import Effect, find
from migrate.vnpu.library.table import DTYPES
from migrate.vnpu.memory import BITS, FLOATS, STORAGE, Array, Memory, View, rounded

C_TYPES = {ours: theirs for theirs, ours in DTYPES.items()}   # f32 -> float, as names of functions spell it
SMALLEST = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}
EPS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}     # largest relative error of one rounding


class Space:
    """A memory in which views are laid one after another, each at a block of 32 bytes."""

    def __init__(self, name: str = "UB", size: int = 1 << 16, shared: bool = False) -> None:
        self.memory = Memory(name, size, shared=shared)
        self.free = 64   # what comes before the first view must not be touched either

    def room(self, sizes: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> View:
        """A view of memory that nobody wrote. Strides are row-major unless given."""
        strides = row_major(sizes) if strides is None else strides
        view = View(self.memory, self.free, 0, sizes, strides, dtype)
        last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
        self.free += -(-last * BITS[dtype] // 256) * 32 + 32
        assert self.free < self.memory.size, "the space is too small for this test"
        return view

    def hold(self, values: Any, dtype: str, strides: Sequence[int] | None = None) -> View:
        """A view that holds `values`, rounded to the type."""
        values = np.asarray(values)
        view = self.room(values.shape, dtype, strides)
        view.put(values)
        view.mark_written()
        return view

    def none(self, dtype: str) -> View:
        """What calls pass for scratch that they do not need: no elements, at address 0."""
        return View(self.memory, 0, 0, (0,), (1,), dtype)


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(sizes[axis + 1:]) for axis in range(len(sizes)))


def layouts(sizes: Sequence[int], dtype: str) -> Iterator[tuple[int, ...]]:
    """Strides to try for a view: dense; rows that begin at blocks; every second element, where elements have bytes."""
    yield row_major(sizes)
    block = 256 // BITS[dtype]
    padded = -(-sizes[-1] // block) * block + block
    yield (*(prod(sizes[axis + 1:-1]) * padded for axis in range(len(sizes) - 1)), 1)
    if dtype != "i1":
        yield tuple(2 * s for s in row_major(sizes))


def call(name: str, *args: Any, undefined: Sequence[View] = ()) -> list[Any]:
    """Call a function twice more with other garbage everywhere it says it does not read: what it writes must be the
    same, but for what is `undefined`, and nothing else may change. Then call it on the memories as they are. Gives
    back the steps."""
    made = find(name)(*args)
    steps = made if isinstance(made, list) else [made]
    effects = [step for step in steps if isinstance(step, Effect)]
    memories = {id(view.memory): view.memory for e in effects for view in (*e.reads, *e.writes, *e.scratch)}
    kept = {key: memory.data.copy() for key, memory in memories.items()}
    results = []
    for seed in (1, 2):
        noise = np.random.default_rng(seed)
        before = {}
        for key, memory in memories.items():
            read = _cells(memory, [v for e in effects for v in e.reads])
            memory.data[:] = np.where(read, kept[key], noise.integers(0, 256, memory.size, np.uint8))
            before[key] = memory.data.copy()
        run(effects)
        for key, memory in memories.items():
            may = _cells(memory, [v for e in effects for v in (*e.writes, *e.scratch)])
            changed = memory.data != before[key]
            assert not (changed & ~may).any(), f"{name} changed {np.flatnonzero(changed & ~may)[:4]} of {memory.name}"
        results.append({key: memory.data[_cells(memory, [v for e in effects for v in e.writes if v.dtype != "i1"])
                                         & ~_cells(memory, undefined)] for key, memory in memories.items()})
    for key in memories:
        np.testing.assert_array_equal(results[0][key], results[1][key], f"{name} depends on what it says not to read")
    for key, memory in memories.items():
        memory.data[:] = kept[key]
    run(effects)
    return steps


def run(effects: Sequence[Effect]) -> None:
    for effect in effects:
        assert effect.cycles > 0
        with np.errstate(all="ignore"):
            effect.run()
        for view in effect.writes:
            view.mark_written()
        for view in effect.scratch:
            view.clobber()


def _cells(memory: Memory, views: Sequence[View]) -> Array:
    cells = np.zeros(memory.size, bool)
    for view in views:
        if view.memory is memory:
            view.region().over(cells)[...] = True
    return cells


def draw(seed: int, sizes: Sequence[int], dtype: str, positive: bool = False) -> Array:
    """Values of a type, as the type holds them: floats of several sizes, integers of the whole range."""
    noise = np.random.default_rng(seed)
    if dtype == "i1":
        return noise.random(sizes) < 0.5
    if dtype in FLOATS:
        values = noise.standard_normal(sizes) * 2.0 ** noise.integers(-3, 4, sizes)
        return rounded(np.abs(values) + 0.05 if positive else values, dtype)
    limits = np.iinfo(STORAGE[dtype])
    low, high = (1, 100) if positive else (limits.min, limits.max)
    return noise.integers(low, high, sizes, STORAGE[dtype], endpoint=True)


def exact(values: Any) -> Array:
    """As float64, or as integers of 64 bits, for a reference."""
    values = np.asarray(values)
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def near(actual: Array, expected: Any, dtype: str, roundings: float = 1) -> None:
    """Equal up to so many roundings of the type, or two of its smallest steps."""
    np.testing.assert_allclose(exact(actual), exact(rounded(expected, dtype)), rtol=2 * roundings * EPS[dtype],
                               atol=2 * SMALLEST[dtype])
