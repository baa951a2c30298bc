"""Arithmetic and bitwise functions against float64, or integers without bounds."""
from __future__ import annotations

import numpy as np
import pytest
from calling import C_TYPES, Space, call, draw, exact, layouts, near

from migrate.vnpu.library.elementwise import bits
from migrate.vnpu.memory import FLOATS, Fault, rounded

SIZES = {1: (37,), 2: (5, 11), 3: (3, 4, 5)}
FLOAT, NUMBER, SHIFT = ("f32", "f16"), ("f32", "f16", "i32", "i16"), ("i32", "i16", "ui32", "ui16")
ANY = (*NUMBER, "bf16", "i64", "i8", "ui8", "ui16", "ui32", "ui64", "i1")


def names(pattern: str, ops: tuple[str, ...], dtypes: tuple[str, ...], ranks=(1, 2, 3)) -> list[tuple[str, ...]]:
    return [(pattern.format(op=op, rank=rank, type=C_TYPES[dtype]), op, rank, dtype)
            for op in ops for rank in ranks for dtype in dtypes]


UNARY = names("v{op}_{rank}d_{type}", ("exp", "ln", "sqrt", "rsqrt", "rec", "abs", "relu"), FLOAT) + names(
    "v{op}_{rank}d_{type}", ("relu",), ("i32",))
BINARY = names("v{op}_{rank}d_{type}", ("add", "sub", "mul", "max", "min"), NUMBER) + names(
    "v{op}_{rank}d_{type}", ("div",), FLOAT)
SCALAR = names("v{op}s_vs_{rank}d_{type}", ("add", "mul", "max", "min"), NUMBER) + names(
    "v{op}_vs_{rank}d_{type}", ("sub",), NUMBER) + names("v{op}_vs_{rank}d_{type}", ("div",), FLOAT)
SCALAR_FIRST = names("v{op}_sv_{rank}d_{type}", ("sub",), NUMBER) + names("v{op}_sv_{rank}d_{type}", ("div",), FLOAT)
SHIFTS = names("v{op}s_vs_{rank}d_{type}", ("shl", "shr"), SHIFT)
BITWISE = names("v{op}_{rank}d_{type}", ("and", "or", "xor"), ANY)
NOT = names("v{op}_{rank}d_{type}", ("not",), ANY)
COVERED = [case[0] for case in UNARY + BINARY + SCALAR + SCALAR_FIRST + SHIFTS + BITWISE + NOT] + [
    "vpow_1d_int32_t", "mul_extended_1d_int16_t"]

MEANING = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
           "min": np.minimum, "exp": np.exp, "ln": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
           "rec": lambda x: 1 / x, "abs": np.abs, "relu": lambda x: np.maximum(x, 0), "shl": np.left_shift,
           "shr": np.right_shift, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def signless(dtype: str) -> str:
    """The element type of the memref: integers of HIVM have no sign."""
    return dtype.removeprefix("u")


def check(actual, expected, dtype: str, roundings: int = 1) -> None:
    """+ - * / and the square root are rounded once, which rounding the float64 result does, too."""
    if roundings > 1:
        near(actual, expected, dtype, roundings)
    else:
        np.testing.assert_array_equal(actual, rounded(expected, dtype))


@pytest.mark.parametrize("name, op, rank, dtype", UNARY)
def test_of_one(name: str, op: str, rank: int, dtype: str) -> None:
    for strides in layouts(SIZES[rank], dtype):
        space = Space()
        x = space.hold(draw(1, SIZES[rank], dtype, positive=op in ("ln", "sqrt", "rsqrt")), dtype, strides)
        expected = MEANING[op](exact(x.get()))
        out = space.room(SIZES[rank], dtype, strides)
        call(name, x, out, space.none(dtype))
        if op == "ln":   # near 1 the logarithm is near 0
            np.testing.assert_allclose(exact(out.get()), expected, rtol=4e-7 if dtype == "f32" else 2e-3, atol=1e-7)
        else:
            check(out.get(), expected, dtype, {"exp": 4, "rsqrt": 3}.get(op, 1))


@pytest.mark.parametrize("name, op, rank, dtype", BINARY)
def test_of_two(name: str, op: str, rank: int, dtype: str) -> None:
    for strides in layouts(SIZES[rank], dtype):
        space = Space()
        x, y = (space.hold(draw(seed, SIZES[rank], dtype, op == "div"), dtype, strides) for seed in (1, 2))
        out = space.room(SIZES[rank], dtype, strides)
        call(name, x, y, out, space.none(dtype))
        check(out.get(), MEANING[op](exact(x.get()), exact(y.get())), dtype)


def test_operands_of_one_element_are_broadcast() -> None:
    space = Space()
    column, row = space.hold(draw(1, (7, 1), "f32"), "f32"), space.hold(draw(2, (1, 9), "f32"), "f32")
    out, spare = space.room((7, 9), "f32"), space.hold(np.zeros(64), "f32")
    call("vsub_2d_float", column, row, out, spare)
    check(out.get(), exact(column.get()) - exact(row.get()), "f32")
    assert spare.unwritten() == 256   # scratch is garbage afterwards


def test_the_result_may_take_an_operand_s_place() -> None:
    space = Space()
    x, y = space.hold(draw(1, (40,), "f32"), "f32"), space.hold(draw(2, (40,), "f32"), "f32")
    expected = exact(x.get()) * exact(y.get())
    call("vmul_1d_float", x, y, x, space.none("f32"))
    check(x.get(), expected, "f32")


@pytest.mark.parametrize("name, op, rank, dtype", SCALAR)
def test_with_a_scalar(name: str, op: str, rank: int, dtype: str) -> None:
    for strides in layouts(SIZES[rank], dtype):
        space = Space()
        x, out = space.hold(draw(1, SIZES[rank], dtype), dtype, strides), space.room(SIZES[rank], dtype, strides)
        value = 0.3 if dtype in FLOATS else 12_345
        call(name, x, value, out, space.none(dtype))
        check(out.get(), MEANING[op](exact(x.get()), exact(rounded(value, dtype))), dtype)


@pytest.mark.parametrize("name, op, rank, dtype", SCALAR_FIRST)
def test_with_a_scalar_before(name: str, op: str, rank: int, dtype: str) -> None:
    space = Space()
    x, out = space.hold(draw(1, SIZES[rank], dtype, op == "div"), dtype), space.room(SIZES[rank], dtype)
    value = -1.7 if dtype in FLOATS else -77
    call(name, value, x, out, space.none(dtype))
    check(out.get(), MEANING[op](exact(rounded(value, dtype)), exact(x.get())), dtype)


@pytest.mark.parametrize("name, op, rank, dtype", SHIFTS)
def test_shifts(name: str, op: str, rank: int, dtype: str) -> None:
    """Right shifts bring in the sign, or zeros where the name is of an unsigned type."""
    for strides in layouts(SIZES[rank], dtype):
        space = Space()
        x = space.hold(draw(1, SIZES[rank], signless(dtype)), signless(dtype), strides)
        out = space.room(SIZES[rank], signless(dtype), strides)
        call(name, x, 3, out)
        check(out.typed(dtype).get(), MEANING[op](exact(x.typed(dtype).get()), 3), dtype)


@pytest.mark.parametrize("name, op, rank, dtype", BITWISE)
def test_bitwise(name: str, op: str, rank: int, dtype: str) -> None:
    for strides in layouts(SIZES[rank], signless(dtype)):
        space = Space()
        x, y = (space.hold(draw(seed, SIZES[rank], signless(dtype)), signless(dtype), strides) for seed in (1, 2))
        out = space.room(SIZES[rank], signless(dtype), strides)
        call(name, x, y, out, space.none(signless(dtype)))
        np.testing.assert_array_equal(bits(out), MEANING[op](bits(x), bits(y)))


@pytest.mark.parametrize("name, op, rank, dtype", NOT)
def test_not(name: str, op: str, rank: int, dtype: str) -> None:
    for strides in layouts(SIZES[rank], signless(dtype)):
        space = Space()
        x = space.hold(draw(1, SIZES[rank], signless(dtype)), signless(dtype), strides)
        out = space.room(SIZES[rank], signless(dtype), strides)
        call(name, x, out, space.none(signless(dtype)))
        ones = True if dtype == "i1" else (1 << out.bits) - 1
        np.testing.assert_array_equal(bits(out).astype(object) ^ bits(x).astype(object), ones)


def test_power() -> None:
    space = Space()
    x, y = space.hold([3, -2, 7, 0, 10], "i32"), space.hold([4, 5, 0, 3, 11], "i32")
    out = space.room((5,), "i32")
    call("vpow_1d_int32_t", x, y, out, space.none("i32"))
    assert out.get().tolist() == [81, -32, 1, 0, 10**11 % 2**32]   # the last one wraps, its upper bit is not set
    with pytest.raises(Fault, match="exponent -1"):
        call("vpow_1d_int32_t", x, space.hold([1, 1, -1, 1, 1], "i32"), out, space.none("i32"))


def test_products_of_twice_the_width() -> None:
    space = Space()
    x, y = space.hold(draw(1, (50,), "i16"), "i16"), space.hold(draw(2, (50,), "i16"), "i16")
    high, low, spare = space.room((50,), "i16"), space.room((50,), "i16"), space.hold(np.zeros(192), "i32")
    call("mul_extended_1d_int16_t", x, y, high, low, spare)
    product = exact(x.get()) * exact(y.get())
    np.testing.assert_array_equal(exact(high.get()) * 65536 + low.typed("ui16").get(), product)
