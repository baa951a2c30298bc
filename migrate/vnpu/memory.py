"""Memories of the virtual NPU, and views of them.

A `Memory` is one address space of one core (Unified Buffer, L1, L0C) or one tensor in global memory: bytes, and beside
them a shadow that says which bytes were ever written. A `View` is what HIVM calls a memref: a base address, an offset,
sizes and strides, and an element type by its MLIR name. Library functions read and write views; the core asks views
for the bytes they cover, to find races, overlaps and reads of what nobody wrote.

bfloat16 has no numpy type: its views hold uint16 and give float32, which has all its values. i1 is packed, eight
elements a byte, lowest bit first; that rows begin at multiples of 256 bits is said by the strides.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from migrate.errors import MigrateError

Array = NDArray[Any]

# how an element lies in memory; i1 is apart
STORAGE: dict[str, type[np.generic]] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "index": np.int64,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32, "ui64": np.uint64}
BITS = {name: 8 * np.dtype(kind).itemsize for name, kind in STORAGE.items()} | {"i1": 1}
FLOATS = frozenset({"f64", "f32", "f16", "bf16"})

POISON = 0xFF   # as bytes of a float: NaN, in all four widths; as an index: -1


class Fault(MigrateError):
    """The program did what no program may do. `kind` is one of a few names, for counting: "out of bounds", "dtype",
    "shape", ..."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def bfloat16_to_float32(bits: Array) -> Array:
    """The values of bfloat16 bit patterns (uint16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: Any) -> Array:
    """The nearest bfloat16 of each value, as bit patterns; ties go to the even one; NaN stays NaN."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32) if values.ndim else np.array(values, np.float32).view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(values)
    return np.where(nan, np.uint16(0x7FC0), nearest) if nan.any() else nearest


def rounded(values: Any, dtype: str) -> Array:
    """`values` as a view of `dtype` would give them back: floats to the nearest, integers modulo their width."""
    if dtype == "i1":
        return np.asarray(values) != 0
    if dtype == "bf16":
        return bfloat16_to_float32(float32_to_bfloat16(values))
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(STORAGE[dtype])


class Memory:
    """An address space. `data`, where given, is the storage itself, and counts as written. `shared`: global memory,
    which several programs see."""

    __slots__ = ("data", "name", "shared", "size", "written")

    def __init__(self, name: str, size: int, poison: bool = True, data: Array | None = None,
                 shared: bool = False) -> None:
        self.name, self.size, self.shared = name, size, shared
        if data is not None and (data.dtype != np.uint8 or data.shape != (size,)):
            raise ValueError(f"{name}: expected {size} bytes as uint8, got {data.dtype} of shape {data.shape}")
        self.data: Array = np.full(size, POISON if poison else 0, np.uint8) if data is None else data
        # one cell a byte; None: everything was written, and nothing needs to be looked up
        self.written: Array | None = None if data is not None else np.zeros(size, bool)

    def __repr__(self) -> str:
        return f"Memory({self.name}, {self.size} bytes)"

    def forget(self, poison: bool = True) -> None:
        """As before anything was written: for the next program, or for a tensor that came from `torch.empty`."""
        if poison:
            self.data.fill(POISON)
        if self.written is None:
            self.written = np.zeros(self.size, bool)
        else:
            self.written.fill(False)


class Region(NamedTuple):
    """Bytes of one memory: runs of `run` bytes, the first at `start`, the others `strides` bytes apart."""

    memory: Memory
    start: int
    run: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One past the last byte."""
        last = sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        return self.start + last + self.run

    def over(self, shadow: Array, cell: int = 1) -> Array:
        """The cells of `shadow` that lie beside these bytes, as a view to read or assign. `shadow` has one cell for
        every `cell` bytes of the memory; a cell that is touched in part counts. Where runs do not begin at cells,
        everything from the first to the last is given."""
        first = self.start // cell
        if not self.run:
            return shadow[:0]
        if not self.sizes:
            return shadow[first:-(-(self.start + self.run) // cell)]
        if cell > 1 and any(s % cell for s in self.strides):
            return shadow[first:-(-self.stop // cell)]
        cells = -(-(self.start % cell + self.run) // cell)
        item = shadow.itemsize
        return np.ndarray((*self.sizes, cells), shadow.dtype, shadow, first * item,
                          (*[s // cell * item for s in self.strides], item))

    def intervals(self) -> list[tuple[int, int]]:
        """(begin, end) of each run, in ascending order, those that touch joined."""
        if not self.run:
            return []
        starts = np.array([self.start])
        for n, s in zip(self.sizes, self.strides, strict=True):
            starts = (starts[:, None] + np.arange(n) * s).ravel()
        joined: list[tuple[int, int]] = []
        for start in np.sort(starts).tolist():
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], start + self.run))
            else:
                joined.append((start, start + self.run))
        return joined

    def overlaps(self, other: Region) -> bool:
        """Whether a byte is in both."""
        if self.memory is not other.memory or self.start >= other.stop or other.start >= self.stop:
            return False
        if not self.sizes and not other.sizes:
            return bool(self.run and other.run)
        mine, theirs = self.intervals(), other.intervals()
        i = k = 0
        while i < len(mine) and k < len(theirs):
            if mine[i][0] < theirs[k][1] and theirs[k][0] < mine[i][1]:
                return True
            i, k = (i + 1, k) if mine[i][1] <= theirs[k][1] else (i, k + 1)
        return False


class View:
    """Elements of a memory. `base` in bytes, `offset` and `strides` in elements, `dtype` by its MLIR name. `buffer` is
    the number of the planned buffer that this is a part of, 0 where that is not known. A view is never changed; what
    it works out is kept."""

    __slots__ = ("_raw", "_region", "base", "buffer", "dtype", "memory", "offset", "sizes", "strides")

    def __init__(self, memory: Memory, base: int, offset: int, sizes: Sequence[int], strides: Sequence[int],
                 dtype: str, buffer: int = 0) -> None:
        if dtype not in BITS:
            raise Fault("dtype", f"{memory.name}: no elements of type {dtype!r} are known")
        self.memory, self.base, self.offset, self.dtype, self.buffer = memory, base, offset, dtype, buffer
        self.sizes, self.strides = tuple(sizes), tuple(strides)
        self._raw: Array | None = None
        self._region: Region | None = None

    def __repr__(self) -> str:
        shape = "x".join(map(str, (*self.sizes, self.dtype)))
        return f"{self.memory.name}[{self.base}+{self.offset}] {shape} strides {list(self.strides)}"

    @property
    def bits(self) -> int:
        """Width of an element."""
        return BITS[self.dtype]

    @property
    def count(self) -> int:
        """Elements."""
        count = 1
        for n in self.sizes:
            count *= n
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, gaps between them not counted."""
        return -(-self.count * self.bits // 8)

    def reshaped(self, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> View:
        """Other elements of the same memory, from the same base."""
        return View(self.memory, self.base, offset, sizes, strides, self.dtype, self.buffer)

    def typed(self, dtype: str) -> View:
        """The same bits as elements of another type of the same width."""
        if dtype == self.dtype:
            return self
        if BITS.get(dtype) != self.bits:
            raise Fault("dtype", f"{self} cannot be read as {dtype}")
        return View(self.memory, self.base, self.offset, self.sizes, self.strides, dtype, self.buffer)

    # -- values ----------------------------------------------------------------------------------------------

    def raw(self) -> Array:
        """The storage itself, nothing copied: bit patterns for bf16. Not for i1."""
        if self._raw is None:
            self._raw = self._storage()
        return self._raw

    def _storage(self) -> Array:
        kind = STORAGE.get(self.dtype)
        if kind is None:
            raise Fault("dtype", f"{self} has no elements that lie in whole bytes")
        if 0 in self.sizes:
            return np.empty(self.sizes, kind)
        item = self.bits // 8
        try:   # numpy checks the bounds of what it is asked for
            return np.ndarray(self.sizes, kind, self.memory.data, self.base + self.offset * item,
                              [s * item for s in self.strides])
        except (ValueError, TypeError):
            raise self._outside() from None

    def _outside(self) -> Fault:
        low = high = self.base * 8 + self.offset * self.bits
        for n, s in zip(self.sizes, self.strides, strict=True):
            low, high = low + min(0, (n - 1) * s * self.bits), high + max(0, (n - 1) * s * self.bits)
        return Fault("out of bounds", f"{self} covers bytes {low // 8} to {-(-(high + self.bits) // 8)} of "
                                      f"{self.memory.size}")

    def get(self) -> Array:
        """The values: the storage itself, nothing copied, but for bf16 (as float32) and i1 (as bool)."""
        if self.dtype == "bf16":
            return bfloat16_to_float32(self.raw())
        return self._unpack() if self.dtype == "i1" else self.raw()

    def put(self, values: Any) -> None:
        """Store values, broadcast to the sizes: floats to the nearest, ties to even; integers modulo their width.
        Whether a float may go into integers, and how, is the caller's to say."""
        if self.dtype == "i1":
            self._pack(np.broadcast_to(np.asarray(values) != 0, self.sizes))
        elif self.dtype == "bf16":
            self.raw()[...] = float32_to_bfloat16(values)
        else:
            into = self.raw()
            if not isinstance(values, np.ndarray):
                values = rounded(values, self.dtype)
            if values.dtype == into.dtype:
                into[...] = values
            else:
                with np.errstate(all="ignore"):
                    into[...] = values.astype(into.dtype)

    # -- i1 --------------------------------------------------------------------------------------------------

    def _packed_rows(self) -> Array | None:
        """The bytes that hold the rows (outer sizes x bytes of a row), where rows are dense and begin at bytes."""
        *outer, inner = self.sizes or (1,)
        *steps, step = self.strides or (1,)
        first = self.base * 8 + self.offset
        if (inner > 1 and step != 1) or first % 8 or any(s % 8 for n, s in zip(outer, steps, strict=True) if n > 1):
            return None
        try:
            return np.ndarray((*outer, -(-inner // 8)), np.uint8, self.memory.data, first // 8,
                              [*[s // 8 for s in steps], 1])
        except (ValueError, TypeError):
            raise self._outside() from None

    def _positions(self) -> Array:
        """Which bit of the memory each element is."""
        at = np.array(self.base * 8 + self.offset)
        for axis, (n, s) in enumerate(zip(self.sizes, self.strides, strict=True)):
            at = at + (np.arange(n) * s).reshape(-1, *[1] * (len(self.sizes) - 1 - axis))
        if at.min() < 0 or at.max() >= 8 * self.memory.size:
            raise self._outside()
        return at

    def _unpack(self) -> Array:
        if 0 in self.sizes:
            return np.zeros(self.sizes, bool)
        rows = self._packed_rows()
        if rows is None:
            at = self._positions()
            return (self.memory.data[at >> 3] >> (at & 7) & 1).astype(bool)
        inner = self.sizes[-1] if self.sizes else 1
        return np.unpackbits(rows, axis=-1, count=inner, bitorder="little").view(bool).reshape(self.sizes)

    def _pack(self, values: Array) -> None:
        if 0 in self.sizes:
            return
        rows = self._packed_rows()
        if rows is None:
            at, data = self._positions(), self.memory.data
            mask = (1 << (at & 7)).astype(np.uint8)
            np.bitwise_and.at(data, at >> 3, ~mask)
            np.bitwise_or.at(data, at >> 3, np.where(values, mask, 0).astype(np.uint8))
            return
        packed = np.packbits(values.reshape(*rows.shape[:-1], -1), axis=-1, bitorder="little")
        if rest := (self.sizes[-1] if self.sizes else 1) % 8:   # the byte's other bits belong to somebody else
            packed[..., -1] |= rows[..., -1] & np.uint8(0xFF << rest & 0xFF)
        rows[...] = packed

    # -- which bytes, and were they written ------------------------------------------------------------------

    def region(self) -> Region:
        """The bytes under this view. A byte that an i1 view touches in part counts whole."""
        if self._region is None:
            self._region = self._runs()
        return self._region

    def _runs(self) -> Region:
        if 0 in self.sizes:
            return Region(self.memory, self.base, 0, (), ())
        unit = self.bits        # everything in bits first, for i1
        start, run = self.base * 8 + self.offset * unit, unit
        axes: list[tuple[int, int]] = []       # innermost first
        for n, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            step = stride * unit
            if n == 1 or step == 0:
                continue
            if not axes and step == run:
                run *= n
            elif axes and axes[-1][0] * axes[-1][1] == step:
                axes[-1] = (axes[-1][0] * n, axes[-1][1])
            else:
                axes.append((n, step))
        if any(step % 8 for _, step in axes):   # i1 whose rows do not begin at bytes: from the first to the last
            run += sum((n - 1) * step for n, step in axes)
            axes = []
        first = start // 8
        return Region(self.memory, first, -(-(start + run) // 8) - first, tuple(n for n, _ in reversed(axes)),
                      tuple(step // 8 for _, step in reversed(axes)))

    def unwritten(self) -> int:
        """How many of the bytes under this view were never written."""
        if self.memory.written is None:
            return 0
        cells = self._shadow(self.memory.written)
        return 0 if cells.all() else cells.size - int(np.count_nonzero(cells))

    def mark_written(self) -> None:
        if self.memory.written is not None:
            self._shadow(self.memory.written)[...] = True

    def missing(self) -> Array:
        """Which elements have a byte that was never written. A bit has what its byte has."""
        if self.memory.written is None:
            return np.zeros(self.sizes, bool)
        if self.dtype == "i1":
            return np.asarray(~self.memory.written[self._positions() >> 3])
        return np.asarray(~self._elements(self.memory.written).all(-1))

    def clobber(self, where: Array | None = None) -> None:
        """The content is undefined from now on: poison, and as if never written. For buffers that a library function
        uses as scratch; `where`: these elements only. Of bits, those whose byte has no others in this view."""
        if where is not None:
            self._clobber_elements(where)
            return
        self._shadow(self.memory.data)[...] = POISON
        if self.memory.written is not None:
            self._shadow(self.memory.written)[...] = False

    def _clobber_elements(self, where: Array) -> None:
        written = self.memory.written
        if self.dtype != "i1":
            self._elements(self.memory.data)[where] = POISON
            if written is not None:
                self._elements(written)[where] = False
            return
        at = self._positions() >> 3
        whole = where & ~np.isin(at, at[~where])
        self._pack(self._unpack() | whole)
        if written is not None:
            written[at[whole]] = False

    def _elements(self, shadow: Array) -> Array:
        """The cells of a shadow of one cell a byte: the last axis are the bytes of an element. Not for i1."""
        size = self.bits // 8
        return np.ndarray((*self.sizes, size), shadow.dtype, shadow, self.base + self.offset * size,
                          [*(s * size for s in self.strides), 1])

    def _shadow(self, shadow: Array) -> Array:
        try:
            cells = self.region().over(shadow)
        except (ValueError, TypeError):
            raise self._outside() from None
        region = self.region()
        if region.run and (region.start < 0 or (not region.sizes and region.start + region.run > self.memory.size)):
            raise self._outside()
        return cells
