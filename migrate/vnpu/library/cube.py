"""The cube core: matrices into L1 in fractals, products of them into L0C, and out again.

A fractal is 16 rows of 32 bytes. A matrix of n rows and d columns lies in L1 as (d1, n1, 16, d0): d0 columns are 32
bytes, and the fractals of one such column follow each other, so that row r of column block c is at c * stride0 + r *
d0. In L0C, d0 is 16. `nd2nz` fills the last column block with zeros, but no rows.

A product computes all rows of the tile of L0C that it is given, whatever m is: those beyond m are products of whatever
lies in L1 there. Columns it computes up to n, and the last fractal's others are zero; further fractals are not touched.

Of L0A and L0B the sizes are not modelled: a product reads L1 on pipe MTE1, and writes L0C on pipe M. Products of
bfloat16, float16 and float32 are added in float32, in an order that is not the device's (AscendNPU-IR, lib/Template:
nd2nz, mma_tile, fixpipe).
"""
from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.table import DTYPES, Effect, SetFlag, Step, WaitFlag, handles
from migrate.vnpu.memory import BITS, STORAGE, Array, Fault, View

FRACTAL = 16              # rows
BLOCK = 32                # bytes of a row of a fractal
NO_FLAG = -1

# fixpipe's `pre_quant`: what it does besides moving, by the types
CONVERSION = {("f32", "f32"): 0, ("i32", "i32"): 0, ("f32", "f16"): 1, ("f32", "bf16"): 16}


@handles(r"set_l1_2d_<T>")
def set_l1(value: Any, out: View) -> Effect:
    return Effect("MTE2", (), (out,), cost_model.fill_l1(out), lambda: out.put(value))


@handles(r"nd2nz_<T>")
def nd2nz(x: View, out: View) -> Effect:
    """A matrix of global memory into fractals in L1."""
    rows, columns = x.sizes
    if 0 in x.sizes:
        return Effect("MTE2", (), (), 1, lambda: None)
    if columns > 1 and x.strides[1] != 1:
        raise Fault("layout", f"nd2nz reads rows whose elements lie side by side, not {x}")
    _check_fractals("nd2nz writes", out, BLOCK * 8 // x.bits)
    target = _rows(out, rows, columns)
    blocks, _, width = target.sizes

    def run() -> None:
        padded = np.zeros((rows, blocks * width), x.raw().dtype)
        padded[:, :columns] = x.raw()
        target.raw()[...] = padded.reshape(rows, blocks, width).swapaxes(0, 1)
    return Effect("MTE2", (x,), (target,), cost_model.move(x), run)


@handles(r"nd2nz_forbias_<T>")
def nd2nz_bias(x: View, out: View) -> Effect:
    """One row of global memory into L1, the elements side by side; zeros up to the end of the last block."""
    rows, columns = x.sizes
    if rows != 1 or (columns > 1 and x.strides[1] != 1):
        raise Fault("layout", f"nd2nz_forbias reads one row whose elements lie side by side, not {x}")
    width = BLOCK * 8 // x.bits
    target = out.reshaped(out.offset, (-(-columns // width) * width,), (1,))

    def run() -> None:
        target.raw()[...] = 0
        target.raw()[:columns] = x.raw()[0]
    return Effect("MTE2", (x,), (target,), cost_model.move(x), run)


@handles(r"mma_tile_<Tkind>_to_(?:float|int32_t)(?P<ta>_ta|)(?P<tb>_tb|)(?P<hf32>_hf32|)")
def product(a: View, b: View, init: bool, m: int, k: int, n: int, out: View, *flags: int, kind: str, ta: str, tb: str,
            hf32: str) -> list[Step]:
    """out += a b, or out = a b where `init`: m x k times k x n. `a` is in fractals of itself or, with `ta`, of its
    transpose, and so is `b`. With hf32, float32 operands keep 11 bits after the point."""
    return _product(a, b, init, m, k, n, None, out, flags, DTYPES[kind], bool(ta), bool(tb), bool(hf32))


@handles(r"mma_tile_with_<T>_bias_<Tkind>_to_(?:float|int32_t)")
def product_with_bias(a: View, b: View, init: bool, m: int, k: int, n: int, bias: View, out: View, *flags: int,
                      kind: str) -> list[Step]:
    """out = a b + bias, a row of n elements, where `init`; else out += a b, and the bias is not used."""
    return _product(a, b, init, m, k, n, bias, out, flags, DTYPES[kind], False, False, False)


def _product(a: View, b: View, init: bool, m: int, k: int, n: int, bias: View | None, out: View,
             flags: tuple[int, ...], dtype: str, ta: bool, tb: bool, hf32: bool) -> list[Step]:
    wait_a, wait_b, free_a, free_b, _half_of_l0, *back, unit_flag = flags
    if unit_flag or back != [NO_FLAG, NO_FLAG]:
        raise Fault("not modelled", f"mma_tile with unit flag {unit_flag}, events {back} between products")
    if k <= 0:
        raise Fault("value", f"mma_tile with k = {k} stops the core")
    width = BLOCK * 8 // BITS[dtype]
    for view in (a, b):
        _check_fractals("mma_tile reads", view, width)
    _check_fractals("mma_tile writes", out, FRACTAL)
    left = _rows(a, k, m) if ta else _rows(a, m, k)
    right = _rows(b, n, k) if tb else _rows(b, k, n)
    rows = min(out.sizes[1] * FRACTAL, a.sizes[0] * width if ta else a.sizes[1] * FRACTAL)
    if m > rows:
        raise Fault("shape", f"mma_tile of {m} rows from {a} to {out}, which have room for {rows}")
    whole = _rows(a, k, rows) if ta else _rows(a, rows, k)
    target = _rows(out, rows, n)
    addend = bias.reshaped(bias.offset, (n,), (1,)) if bias is not None and init else None
    kind = STORAGE[out.dtype]

    l0: deque[tuple[Array, Array]] = deque()    # what M has yet to multiply; L1 may be written again meanwhile

    def load() -> None:
        if not n:
            return
        x, y = _matrix(whole).astype(kind), _matrix(right).astype(kind)
        if hf32:
            x, y = _to_hf32(x), _to_hf32(y)
        l0.append((x.T[:rows, :k] if ta else x[:rows, :k], y.T[:k, :n] if tb else y[:k, :n]))

    def run() -> None:
        if not n:
            return
        x, y = l0.popleft()
        result = np.zeros((rows, target.sizes[0] * FRACTAL), kind)
        with np.errstate(all="ignore"):
            np.matmul(x, y, out=result[:, :n])
            if addend is not None:
                result[:, :n] += addend.get().astype(kind)
            spread = result.reshape(rows, -1, FRACTAL).swapaxes(0, 1)
            target.put(spread if init else target.get() + spread)

    reads = [*([] if init else [target]), *([addend] if addend else [])]
    return [*(WaitFlag("MTE2", "MTE1", flag) for flag in (wait_a, wait_b) if flag != NO_FLAG),
            Effect("MTE1", (left, right), (), cost_model.load_l0(left, right), load),
            *(SetFlag("MTE1", "MTE2", flag) for flag in (free_a, free_b) if flag != NO_FLAG),
            SetFlag("MTE1", "M", "mma_tile"), WaitFlag("MTE1", "M", "mma_tile"),
            Effect("M", reads, (target,), cost_model.product(m, k, n, BITS[dtype]), run)]


@handles(r"fixpipe_nz2nd_<Tsource>_to_<Ttarget>_4d_to_2d")
def fixpipe(x: View, out: View, pre_quant: int, pre_relu: int, channel_split: bool, unit_flag: int, *, source: str,
            target: str) -> Effect:
    """Accumulators to a matrix of global memory, rounded to its type."""
    types = DTYPES[source], DTYPES[target]
    if CONVERSION.get(types) != pre_quant or pre_relu not in (0, 1) or channel_split or unit_flag:
        raise Fault("not modelled", f"fixpipe from {types[0]} to {types[1]} with pre_quant {pre_quant}, pre_relu "
                                    f"{pre_relu}, channel_split {channel_split}, unit_flag {unit_flag}")
    if 0 in out.sizes:
        return Effect("FIX", (), (), 1, lambda: None)
    _check_fractals("fixpipe reads", x, FRACTAL)
    rows, columns = out.sizes
    read = _rows(x, rows, columns)

    def run() -> None:
        values = _matrix(read)[:, :columns]
        out.put(np.maximum(values, 0) if pre_relu else values)
    return Effect("FIX", (read,), (out,), cost_model.fixpipe(out), run)


def _check_fractals(what: str, view: View, width: int) -> None:
    """The engines know one layout; sizes and strides must say the same."""
    if len(view.sizes) != 4 or view.sizes[2:] != (FRACTAL, width) or view.strides[2:] != (width, 1) or (
            view.sizes[1] > 1 and view.strides[1] != FRACTAL * width):
        raise Fault("layout", f"{what} fractals of {FRACTAL} x {width} one below the other, not {view}")


def _rows(view: View, rows: int, columns: int) -> View:
    """Of a matrix in fractals, its first rows and all column blocks that hold its first columns: (blocks, rows, width
    of a block)."""
    width = view.sizes[3]
    return view.reshaped(view.offset, (-(-columns // width), rows, width), (view.strides[0], width, 1))


def _matrix(view: View) -> Array:
    """What `_rows` describes, as a matrix; its last columns may be padding."""
    values = view.get()
    return values.swapaxes(0, 1).reshape(view.sizes[1], -1)


def _to_hf32(values: Array) -> Array:
    """float32 with 11 bits after the point, to the nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest = (bits + 0x7FF + (bits >> 12 & 1)) & np.uint32(0xFFFFF000)
    return np.where(np.isfinite(values), nearest.view(np.float32), values)
