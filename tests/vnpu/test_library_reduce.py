"""Reductions and running sums."""
from __future__ import annotations

import numpy as np
import pytest
from calling import C_TYPES, EPS, Space, call, draw, exact, layouts

from migrate.vnpu.memory import FLOATS, rounded

SIZES = {"r": (45,), "ar": (6, 19), "ra": (19, 6), "ra0a1": (7, 3, 10), "ara": (3, 7, 10)}
AXIS = {"r": 0, "ar": 1, "ra": 0, "ra0a1": 0, "ara": 1}
BITS = ("i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64")
REDUCE = [(f"reduce_{op}_{axes}_{C_TYPES[dtype]}", op, axes, dtype) for axes in AXIS for op, dtypes in (
    [(op, ("f32", "f16", "i16", "i32")) for op in ("sum", "max", "min", "prod")]
    + [(op, BITS) for op in ("xori", "ori", "andi")]) for dtype in dtypes]
REDUCE += [(f"enablevc_reduce_{op}_{axes}_{C_TYPES[dtype]}", op, axes, dtype)
           for axes in ("r", "ar") for op in ("sum", "max", "min") for dtype in ("f32", "f16")]
ARG = [(f"reduce_{op}_with_index_{side}{axes}_{C_TYPES[dtype]}", op, side, axes, dtype)
       for op in ("max", "min") for side in ("", "left_", "right_") for axes in ("r", "ar", "ra")
       for dtype in ("f32", "f16")]
SCAN = [(f"cum{op}_ra{way}_{C_TYPES[dtype]}", op, way, dtype) for op in ("sum", "prod") for way in ("", "_reverse")
        for dtype in ("f32", "f16", "i16", "i32")]
COVERED = [case[0] for case in REDUCE + ARG + SCAN]

MEANING = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "xori": np.bitwise_xor.reduce,
           "ori": np.bitwise_or.reduce, "andi": np.bitwise_and.reduce}


def gentle(seed: int, sizes, dtype: str) -> np.ndarray:
    """Values whose products stay in range."""
    values = draw(seed, sizes, dtype)
    return rounded(0.7 + 0.2 * np.tanh(exact(values)), dtype) if dtype in FLOATS else values


@pytest.mark.parametrize("name, op, axes, dtype", REDUCE)
def test_reduce(name: str, op: str, axes: str, dtype: str) -> None:
    sizes, axis = SIZES[axes], AXIS[axes]
    plain = dtype.removeprefix("u")
    for strides in layouts(sizes, plain):
        space = Space()
        x = space.hold(gentle(1, sizes, plain) if op == "prod" else draw(1, sizes, plain), plain, strides)
        kept = tuple(1 if k == axis else n for k, n in enumerate(sizes))
        out, spare = space.room(kept, plain), space.hold(np.zeros(8), plain)
        call(name, x, out, spare, {"prod": 1, "andi": -1}.get(op, 0))
        values = exact(x.get())
        expected = MEANING[op](values, axis=axis, keepdims=True)
        if dtype in FLOATS and op in ("sum", "prod"):   # as many roundings as there are terms, of the largest sum
            bound = np.sum(np.abs(values), axis=axis, keepdims=True) if op == "sum" else np.abs(expected)
            assert (np.abs(exact(out.get()) - expected) <= sizes[axis] * EPS[dtype] * bound + 2.0**-24).all()
        else:
            np.testing.assert_array_equal(out.get(), rounded(expected, plain))
        assert spare.unwritten() == spare.nbytes


@pytest.mark.parametrize("name, op, side, axes, dtype", ARG)
def test_where_the_extreme_is(name: str, op: str, side: str, axes: str, dtype: str) -> None:
    """Of equal ones the first, or with `right` the last."""
    sizes, axis = SIZES[axes], AXIS[axes]
    space = Space()
    values = np.clip(np.round(draw(1, sizes, dtype)), -2, 2)     # many are equal
    x = space.hold(values, dtype)
    kept = tuple(1 if k == axis else n for k, n in enumerate(sizes))
    value, index = space.room(kept, dtype), space.room(kept, "i32")
    spare = space.hold(np.zeros(8), "i32")
    call(name, x, value, index, spare, *([] if axes == "ra" else [-np.inf if op == "max" else np.inf]))
    extreme = values.max(axis, keepdims=True) if op == "max" else values.min(axis, keepdims=True)
    np.testing.assert_array_equal(value.get(), extreme)
    places = np.moveaxis(values == extreme, axis, -1)
    expected = [np.flatnonzero(row)[-1 if side == "right_" else 0] for row in places.reshape(-1, sizes[axis])]
    assert index.get().reshape(-1).tolist() == expected


@pytest.mark.parametrize("name, op, way, dtype", SCAN)
def test_scan(name: str, op: str, way: str, dtype: str) -> None:
    sizes = (17, 5)
    for strides in layouts(sizes, dtype):
        space = Space()
        x = space.hold(gentle(1, sizes, dtype) if op == "prod" else draw(1, sizes, dtype), dtype, strides)
        out = space.room(sizes, dtype, strides)
        call(name, x, out)
        values = exact(x.get())
        for row in range(sizes[0]):    # by hand: the sum of all rows up to this one, or from it on
            part = values[row:] if way else values[:row + 1]
            expected = MEANING[op](part, axis=0)
            if dtype in FLOATS:
                bound = np.sum(np.abs(part), axis=0) if op == "sum" else np.abs(expected)
                assert (np.abs(exact(out.get()[row]) - expected) <= len(part) * EPS[dtype] * bound + 2.0**-24).all()
            else:
                np.testing.assert_array_equal(out.get()[row], rounded(expected, dtype))


def test_a_scan_in_place() -> None:
    space = Space()
    x = space.hold(np.ones((4, 8)), "f32")
    call("cumsum_ra_reverse_float", x, x)
    assert x.get()[:, 0].tolist() == [4, 3, 2, 1]
