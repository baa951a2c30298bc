"""The memref operations of HIVM, on views: what each makes of sizes, strides and offsets.

Views of a core's own memories are made once and kept, so that equal views are one object: what is known about a view
(its shadow cells, the library calls it took part in) can then be looked up by the view itself. What an operation made
of a view is kept as well: loops over the rows of a tile are frequent.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

from migrate.vnpu.memory import Fault, Memory, View

Ints = tuple[int, ...]
MOST = 100_000      # views and results that a memory keeps


class LocalMemory(Memory):
    """A memory of one core. Its views are few, as addresses are planned, and kept."""

    __slots__ = ("made", "views")

    def __init__(self, name: str, size: int, poison: bool = True) -> None:
        super().__init__(name, size, poison)
        self.views: dict[tuple[Any, ...], View] = {}
        self.made: dict[tuple[Any, ...], View] = {}      # by the operation and what it was given


def _kept(operation: Callable[..., View]) -> Callable[..., View]:
    @wraps(operation)
    def look_up(source: View, *given: Any) -> View:
        memory = source.memory
        if not isinstance(memory, LocalMemory):
            return operation(source, *given)
        key = (operation, source, given)
        found = memory.made.get(key)
        if found is None:
            if len(memory.made) > MOST:
                memory.made.clear()
            found = memory.made[key] = operation(source, *given)
        return found
    return look_up


def view(memory: Memory, base: int, offset: int, sizes: Ints, strides: Ints, dtype: str, buffer: int = 0) -> View:
    if not isinstance(memory, LocalMemory):
        return View(memory, base, offset, sizes, strides, dtype, buffer)
    key = (base, offset, sizes, strides, dtype, buffer)
    found = memory.views.get(key)
    if found is None:
        if len(memory.views) > MOST:
            memory.views.clear()
        found = memory.views[key] = View(memory, base, offset, sizes, strides, dtype, buffer)
    return found


def row_major(sizes: Sequence[int]) -> Ints:
    strides, step = [], 1
    for n in reversed(sizes):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def at_address(memory: Memory, address: int, sizes: Ints, dtype: str, buffer: int = 0) -> View:
    """`hivm.hir.pointer_cast`: a buffer at its planned address, in bytes, with a number of its own."""
    return view(memory, address, 0, sizes, row_major(sizes), dtype, buffer)


@_kept
def reinterpret(source: View, offset: int, sizes: Ints, strides: Ints) -> View:
    """`memref.reinterpret_cast`: the offset counts from the buffer's base, not from that of the source."""
    return view(source.memory, source.base, offset, sizes, strides, source.dtype, source.buffer)


@_kept
def subview(source: View, offsets: Ints, sizes: Ints, steps: Ints, kept: Ints) -> View:
    """`memref.subview`; `kept` are the axes that the result keeps."""
    offset = source.offset
    for at, stride in zip(offsets, source.strides, strict=True):
        offset += at * stride
    for n in sizes:
        if n < 0:
            raise Fault("negative size", f"subview of sizes {sizes} of {source}")
    return view(source.memory, source.base, offset, tuple(sizes[k] for k in kept),
                tuple(steps[k] * source.strides[k] for k in kept), source.dtype, source.buffer)


@_kept
def subview_dropping(source: View, offsets: Ints, sizes: Ints, steps: Ints, choices: tuple[Ints, ...],
                     wanted: tuple[int | None, ...]) -> View:
    """A rank-reducing `memref.subview` that could drop one unit axis or another: the strides of the result's type
    (None where they are only known at run time) say which."""
    for kept in choices:
        strides = [steps[k] * source.strides[k] for k in kept]
        if all(want is None or want == have for want, have in zip(wanted, strides, strict=True)):
            return subview(source, offsets, sizes, steps, kept)
    raise Fault("shape", f"no axes of {source} give the strides {list(wanted)}")


@_kept
def collapse(source: View, groups: Sequence[Sequence[int]]) -> View:
    """`memref.collapse_shape`."""
    sizes, strides = [], []
    for group in groups:
        sizes.append(prod(source.sizes[k] for k in group))
        long = [k for k in group if source.sizes[k] != 1]
        for outer, inner in itertools.pairwise(long):
            if source.strides[outer] != source.strides[inner] * source.sizes[inner] and 0 not in source.sizes:
                raise Fault("shape", f"axes {list(group)} of {source} are not one run, and cannot become one axis")
        strides.append(source.strides[long[-1] if long else group[-1]])
    return view(source.memory, source.base, source.offset, tuple(sizes), tuple(strides), source.dtype, source.buffer)


@_kept
def expand(source: View, groups: Sequence[Sequence[int]], sizes: Ints) -> View:
    """`memref.expand_shape`."""
    strides = [0] * len(sizes)
    for stride, group in zip(source.strides, groups, strict=True):
        for k in reversed(group):
            strides[k] = stride
            stride *= sizes[k]
    return view(source.memory, source.base, source.offset, sizes, tuple(strides), source.dtype, source.buffer)


@_kept
def bytes_as(source: View, shift: int, sizes: Ints, dtype: str) -> View:
    """`memref.view`: elements of `dtype`, from `shift` bytes into a buffer of bytes."""
    return view(source.memory, source.base + source.offset + shift, 0, sizes, row_major(sizes), dtype, source.buffer)


def metadata(source: View) -> tuple[Any, ...]:
    """`memref.extract_strided_metadata`: (buffer, offset, sizes..., strides...)."""
    base = view(source.memory, source.base, 0, (), (), source.dtype, source.buffer)
    return (base, source.offset, *source.sizes, *source.strides)


def element(source: View, index: Ints) -> View:
    """One element, of no axes. Not kept: a loop may go over all of them."""
    offset = source.offset
    for at, n, stride in zip(index, source.sizes, source.strides, strict=True):
        if not 0 <= at < n:
            raise Fault("out of bounds", f"index {list(index)} of {source}")
        offset += at * stride
    return View(source.memory, source.base, offset, (), (), source.dtype, source.buffer)
