"""Matrices in fractals: into L1, products, and out of L0C."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import BITS, C_TYPES, EPS, Space, call, draw, exact

from migrate.vnpu.library import Effect, SetFlag, WaitFlag, find
from migrate.vnpu.memory import Array, Fault, View, rounded

ND2NZ = [(f"nd2nz_{C_TYPES[dtype]}", dtype.removeprefix("u"))
         for dtype in ("f32", "f16", "bf16", "i8", "i16", "i32", "ui8", "ui16", "ui32")]
FOR_BIAS = [(f"nd2nz_forbias_{C_TYPES[dtype]}", dtype.removeprefix("u"))
            for dtype in ("f32", "f16", "bf16", "i8", "i16", "i32", "ui8", "ui16", "ui32")]
SET_L1 = [(f"set_l1_2d_{C_TYPES[dtype]}", dtype) for dtype in ("f32", "f16", "bf16", "i8")]
OUT_OF = {"f32": "f32", "f16": "f32", "bf16": "f32", "i8": "i32"}
PRODUCT = [(f"mma_tile_{C_TYPES[dtype]}_to_{C_TYPES[out]}{ta}{tb}{hf32}", dtype, out, bool(ta), bool(tb), bool(hf32))
           for dtype, out in OUT_OF.items() for ta in ("", "_ta") for tb in ("", "_tb")
           for hf32 in (("", "_hf32") if dtype == "f32" else ("",))]
BIASED = [(f"mma_tile_with_{C_TYPES[bias]}_bias_{C_TYPES[dtype]}_to_{C_TYPES[OUT_OF[dtype]]}", bias, dtype)
          for dtype in ("f32", "f16", "bf16") for bias in ("f32", "f16")] + [
    ("mma_tile_with_int32_t_bias_int8_t_to_int32_t", "i32", "i8")]
FIXPIPE = [(f"fixpipe_nz2nd_{C_TYPES[source]}_to_{C_TYPES[target]}_4d_to_2d", source, target, pre_quant)
           for source, target, pre_quant in (("f32", "f32", 0), ("f32", "f16", 1), ("f32", "bf16", 16),
                                             ("i32", "i32", 0))]
COVERED = [case[0] for cases in (ND2NZ, FOR_BIAS, SET_L1, PRODUCT, BIASED, FIXPIPE) for case in cases]

NO_FLAGS = (-1, -1, -1, -1, -1, -1, -1, 0)


def fractals(space: Space, rows: int, columns: int, dtype: str, width: int = 0) -> View:
    """Room for a matrix in fractals, its sizes rounded up."""
    width = width or 256 // BITS[dtype]
    return space.room((-(-columns // width), -(-rows // 16), 16, width), dtype)


def fill(view: View, matrix: Array) -> View:
    """Put a matrix into fractals one element after the other, as the layout is described."""
    for r, c in np.ndindex(matrix.shape):
        width = view.sizes[3]
        view.raw()[c // width, r // 16, r % 16, c % width] = matrix[r, c]
    rows, columns = matrix.shape
    blocks = -(-columns // view.sizes[3])
    view.reshaped(view.offset, (blocks, rows, view.sizes[3]), (view.strides[0], view.sizes[3], 1)).mark_written()
    return view


def unfold(view: View, rows: int, columns: int) -> Array:
    values, width = view.get(), view.sizes[3]
    return np.array([[values[c // width, r // 16, r % 16, c % width] for c in range(columns)] for r in range(rows)])


@pytest.mark.parametrize("name, dtype", ND2NZ)
@pytest.mark.parametrize("rows, columns", [(16, 32), (33, 40), (5, 7), (1, 1)])
def test_nd2nz(name: str, dtype: str, rows: int, columns: int) -> None:
    tensor, l1 = Space("x", shared=True), Space("L1", 1 << 17)
    x = tensor.hold(draw(1, (rows, columns), dtype), dtype, (columns + 3, 1))
    out = fractals(l1, rows + 16, columns, dtype)       # one fractal more than needed
    call(name, x, out)
    np.testing.assert_array_equal(unfold(out, rows, columns), x.get())
    width = out.sizes[3]
    full = -(-columns // width) * width
    assert (unfold(out, rows, full)[:, columns:] == 0).all()           # columns are filled up with zeros
    below = out.reshaped(out.offset + rows * width, (1, width), (width, 1))
    assert below.unwritten() == 32                                     # rows are not


@pytest.mark.parametrize("name, dtype", FOR_BIAS)
def test_a_row_for_the_bias(name: str, dtype: str) -> None:
    tensor, l1 = Space("x", shared=True), Space("L1")
    x = tensor.hold(draw(1, (1, 41), dtype), dtype)
    width = 256 // BITS[dtype]
    out = l1.room((-(-41 // width), 1, 16, width), dtype)
    call(name, x, out)
    row = out.reshaped(out.offset, (-(-41 // width) * width,), (1,)).get()
    np.testing.assert_array_equal(row[:41], x.get()[0])
    assert (row[41:] == 0).all()


@pytest.mark.parametrize("name, dtype", SET_L1)
def test_set_l1(name: str, dtype: str) -> None:
    out = Space("L1").room((512,), dtype)
    call(name, 1.5 if dtype != "i8" else 3, out)
    assert (out.get() == (1.5 if dtype != "i8" else 3)).all()


def operands(dtype: str, m: int, k: int, n: int) -> tuple[Array, Array]:
    if dtype == "i8":
        return draw(1, (m, k), "i8"), draw(2, (k, n), "i8")
    return tuple(rounded(np.random.default_rng(s).standard_normal(sizes), dtype)    # type: ignore[return-value]
                 for s, sizes in ((1, (m, k)), (2, (k, n))))


def eleven_bits(values: Array) -> Array:
    """To the nearest with 11 bits after the point."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissa, 12)), exponent - 12)


def stored(values: Array, dtype: str) -> Array:
    """Bit patterns for bf16, as storage holds them."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else values


def load(l1: Space, values: Array, dtype: str, transposed: bool) -> View:
    matrix = stored(values.T if transposed else values, dtype)
    return fill(fractals(l1, *matrix.shape, dtype), matrix)


def below(out: View, m: int) -> list[View]:
    """The rows of a tile of L0C beyond m: products of whatever L1 holds there."""
    blocks, fractals_, height, width = out.sizes
    return [out.reshaped(out.offset + m * width, (blocks, fractals_ * height - m, width), (out.strides[0], width, 1))]


def close(actual: Array, a: Array, b: Array, before: Any = 0) -> None:
    """Sums of products in float32, in any order."""
    a, b = exact(a), exact(b)
    if a.dtype.kind == "i":
        np.testing.assert_array_equal(actual, a @ b + before)
        return
    bound = (a.shape[1] + 2) * EPS["f32"] * (np.abs(a) @ np.abs(b) + np.abs(before))
    assert (np.abs(exact(actual) - (a @ b + before)) <= bound).all()


@pytest.mark.parametrize("name, dtype, out_dtype, ta, tb, hf32", PRODUCT)
@pytest.mark.parametrize("m, k, n", [(16, 16, 16), (37, 50, 21), (3, 5, 7)])
def test_product(name: str, dtype: str, out_dtype: str, ta: bool, tb: bool, hf32: bool, m: int, k: int, n: int) -> None:
    l1, l0c = Space("L1", 1 << 17), Space("L0C")
    a, b = operands(dtype, m, k, n)
    exact_a, exact_b = (eleven_bits(a), eleven_bits(b)) if hf32 else (a, b)
    left, right, out = load(l1, a, dtype, ta), load(l1, b, dtype, tb), fractals(l0c, m, n, out_dtype, 16)
    call(name, left, right, True, m, k, n, out, *NO_FLAGS, undefined=below(out, m))
    close(unfold(out, m, n), exact_a, exact_b)
    before = exact(unfold(out, m, n))
    call(name, left, right, False, m, k, n, out, *NO_FLAGS, undefined=below(out, m))
    close(unfold(out, m, n), exact_a, exact_b, before)


@pytest.mark.parametrize("name, bias_dtype, dtype", BIASED)
def test_product_with_bias(name: str, bias_dtype: str, dtype: str) -> None:
    m, k, n = 20, 33, 24
    l1, l0c = Space("L1"), Space("L0C")
    a, b = operands(dtype, m, k, n)
    left, right = load(l1, a, dtype, False), load(l1, b, dtype, False)
    bias, out = l1.hold(draw(3, (1, 2, 1, 16), bias_dtype), bias_dtype), fractals(l0c, m, n, OUT_OF[dtype], 16)
    row = exact(bias.get()).reshape(-1)[:n]
    if dtype == "i8":
        row = row % 1000
        bias.put(np.pad(row, (0, 8)).reshape(1, 2, 1, 16))
    call(name, left, right, True, m, k, n, bias, out, *NO_FLAGS, undefined=below(out, m))
    close(unfold(out, m, n), a, b, row)
    before = exact(unfold(out, m, n))
    call(name, left, right, False, m, k, n, bias, out, *NO_FLAGS, undefined=below(out, m))
    close(unfold(out, m, n), a, b, before)


@pytest.mark.parametrize("ta", [False, True])
def test_a_product_computes_all_rows_of_its_tile(ta: bool) -> None:
    """Three rows are asked for; L1 holds twenty, of which the last are zero, and the tile has room for 32."""
    l1, l0c = Space("L1"), Space("L0C")
    a, b = operands("f32", 20, 16, 16)
    a[18:] = 0
    left, right = load(l1, a, "f32", ta), load(l1, b, "f32", False)
    out = fractals(l0c, 64, 16, "f32", 16)
    call(f"mma_tile_float_to_float{'_ta' if ta else ''}", left, right, True, 3, 16, 16, out, *NO_FLAGS,
         undefined=below(out, 3))
    close(unfold(out, 20, 16), a, b)
    assert (unfold(out, 20, 16)[18:] == 0).all()
    held = 24 if ta else 32        # as many rows as L1 holds, in whole fractals
    assert np.isnan(unfold(out, held, 16)[20:]).all()
    assert below(out, held)[0].unwritten() == below(out, held)[0].nbytes
    with pytest.raises(Fault, match=f"mma_tile of 65 rows from .*, which have room for {held}"):
        find("mma_tile_float_to_float_ta" if ta else "mma_tile_float_to_float")(
            left, right, True, 65, 16, 16, out, *NO_FLAGS)


def test_fractals_beyond_the_last_column_are_not_touched() -> None:
    l1, l0c = Space("L1"), Space("L0C")
    a, b = operands("f32", 16, 16, 21)
    out = fractals(l0c, 16, 48, "f32", 16)
    call("mma_tile_float_to_float", load(l1, a, "f32", False), load(l1, b, "f32", False), True, 16, 16, 21, out,
         *NO_FLAGS)
    assert (unfold(out, 16, 32)[:, 21:] == 0).all() and np.isnan(unfold(out, 16, 48)[:, 32:]).all()


def test_the_flags_of_a_product() -> None:
    """It waits for its operands itself, and says when L1 may be overwritten."""
    l1, l0c = Space("L1"), Space("L0C")
    a, b = operands("f32", 16, 16, 16)
    left, right, out = load(l1, a, "f32", False), load(l1, b, "f32", False), fractals(l0c, 16, 16, "f32", 16)
    product = find("mma_tile_float_to_float")

    def flags(*given: int) -> list[Any]:
        return [step if not isinstance(step, Effect) else step.pipe
                for step in product(left, right, True, 16, 16, 16, out, *given)]
    inner = [SetFlag("MTE1", "M", "mma_tile"), WaitFlag("MTE1", "M", "mma_tile"), "M"]
    assert flags(*NO_FLAGS) == ["MTE1", *inner]
    assert flags(0, 1, 2, 3, 5, -1, -1, 0) == [
        WaitFlag("MTE2", "MTE1", 0), WaitFlag("MTE2", "MTE1", 1), "MTE1", SetFlag("MTE1", "MTE2", 2),
        SetFlag("MTE1", "MTE2", 3), *inner]
    for wrong in ((-1, -1, -1, -1, -1, 4, -1, 0), (-1, -1, -1, -1, -1, -1, -1, 3)):
        with pytest.raises(Fault, match="not modelled"):
            flags(*wrong)
    with pytest.raises(Fault, match="k = 0 stops the core"):
        product(left, right, True, 16, 0, 16, out, *NO_FLAGS)


def test_accumulators_are_read_only_where_they_are_added_to() -> None:
    l1, l0c = Space("L1"), Space("L0C")
    a, b = operands("f32", 16, 16, 16)
    left, right, out = load(l1, a, "f32", False), load(l1, b, "f32", False), fractals(l0c, 16, 16, "f32", 16)
    for init in (True, False):
        product = [step for step in find("mma_tile_float_to_float")(left, right, init, 16, 16, 16, out, *NO_FLAGS)
                   if isinstance(step, Effect)][-1]
        assert [view.unwritten() for view in product.reads] == ([] if init else [1024])


@pytest.mark.parametrize("name, source, target, pre_quant", FIXPIPE)
@pytest.mark.parametrize("relu", [0, 1])
def test_fixpipe(name: str, source: str, target: str, pre_quant: int, relu: int) -> None:
    l0c, tensor = Space("L0C"), Space("x", shared=True)
    matrix = draw(1, (21, 37), source)
    x, out = fill(fractals(l0c, 21, 37, source, 16), matrix), tensor.room((21, 37), target, (40, 1))
    call(name, x, out, pre_quant, relu, False, 0)
    np.testing.assert_array_equal(out.get(), rounded(np.maximum(matrix, 0) if relu else matrix, target))


def test_fixpipe_as_it_is_not_understood() -> None:
    l0c, tensor = Space("L0C"), Space("x", shared=True)
    x, out = fractals(l0c, 16, 16, "f32", 16), tensor.room((16, 16), "f32")
    for args in ((1, 0, False, 0), (0, 2, False, 0), (0, 0, True, 0), (0, 0, False, 3)):
        with pytest.raises(Fault, match="not modelled: fixpipe from f32 to f32"):
            find("fixpipe_nz2nd_float_to_float_4d_to_2d")(x, out, *args)


def test_layouts_that_the_engines_do_not_know() -> None:
    l1, tensor = Space("L1", 1 << 17), Space("x", shared=True)
    x = tensor.hold(np.zeros((32, 16)), "f32")
    out = l1.room((2, 2, 16, 8), "f32")
    with pytest.raises(Fault, match="nd2nz writes fractals of 16 x 8"):
        find("nd2nz_float")(x, out.reshaped(0, (2, 2, 16, 8), (256, 512, 8, 1)))
    with pytest.raises(Fault, match="nd2nz writes fractals of 16 x 8"):
        find("nd2nz_float")(x, out.reshaped(0, (1, 2, 16, 16), (512, 256, 16, 1)))
    with pytest.raises(Fault, match="whose elements lie side by side"):
        find("nd2nz_float")(x.reshaped(0, (16, 16), (1, 16)), out)
    with pytest.raises(Fault, match="reads one row"):
        find("nd2nz_forbias_float")(x, out)
