"""Comparisons and selections."""
from __future__ import annotations

import numpy as np
import pytest
from calling import C_TYPES, Space, call, draw, layouts

from migrate.vnpu.memory import FLOATS, rounded

OPS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARE = [(f"vcmp_{op}_1d_{C_TYPES[dtype]}", op, dtype) for op in OPS for dtype in ("f32", "f16", "i32")]
COMPARE_SCALAR = [(f"vcmps_{op}_1d_{C_TYPES[dtype]}", op, dtype) for op in OPS for dtype in ("f32", "f16", "i32")]
CHOSEN = ("f32", "f16", "bf16", "i16", "i32", "i64", "ui16", "ui32")
SELECT = [("vsel_vv_1d_bool_" + C_TYPES[dtype], "vv", dtype) for dtype in CHOSEN] + [
    (f"vsel_{form}_1d_{C_TYPES[dtype]}", form, dtype) for form in ("vs", "sv", "ss") for dtype in CHOSEN]
COVERED = [case[0] for case in COMPARE + COMPARE_SCALAR + SELECT] + ["vsel_vv_1d_int8_t_int64_t"]


def with_equals(dtype: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = draw(1, (n,), dtype), draw(2, (n,), dtype)
    y[::3] = x[::3]
    if dtype in FLOATS:
        x[1], y[4], x[5] = np.nan, np.inf, -np.inf
    return x, y


@pytest.mark.parametrize("name, op, dtype", COMPARE)
def test_compare(name: str, op: str, dtype: str) -> None:
    values = with_equals(dtype, 43)
    for strides in layouts((43,), dtype):
        space = Space()
        x, y = (space.hold(v, dtype, strides) for v in values)
        out = space.room((43,), "i1")
        call(name, x, y, out)
        np.testing.assert_array_equal(out.get(), OPS[op](*(v.astype(np.float64) for v in values)))


@pytest.mark.parametrize("name, op, dtype", COMPARE_SCALAR)
def test_compare_with_a_scalar(name: str, op: str, dtype: str) -> None:
    space = Space()
    x = space.hold(draw(1, (43,), dtype), dtype)
    value = 0.7 if dtype in FLOATS else -5
    x.get()[7] = rounded(value, dtype)       # 0.7 is no float: it is compared in the elements' type
    out = space.room((43,), "i1")
    call(name, x, value, out)
    np.testing.assert_array_equal(out.get(), OPS[op](x.get().astype(np.float64), float(rounded(value, dtype))))
    assert out.get()[7] == (op in ("eq", "le", "ge"))


@pytest.mark.parametrize("name, form, dtype", SELECT)
def test_select(name: str, form: str, dtype: str) -> None:
    dtype = dtype.removeprefix("u")     # memrefs are signless
    for strides in layouts((50,), dtype):
        space = Space()
        condition = space.hold(draw(3, (50,), "i1"), "i1")
        scalars = (0.1, -2.5) if dtype in FLOATS else (17, -3)
        operands = [space.hold(draw(k, (50,), dtype), dtype, strides) if c == "v" else scalars[k]
                    for k, c in enumerate(form)]
        out, spare = space.room((50,), dtype, strides), space.hold(np.zeros(8), "f32")
        scratch = [] if dtype == "i64" else [spare]
        call(name, condition, *operands, out, *scratch)
        yes, no = (rounded(v, dtype) if c == "s" else v.get() for v, c in zip(operands, form, strict=True))
        np.testing.assert_array_equal(out.get(), np.where(condition.get(), yes, no))
        assert all(one.unwritten() == 32 for one in scratch)


def test_select_by_bytes() -> None:
    space = Space()
    condition = space.hold([0, 1, -1, 0], "i8")
    x, y = space.hold([1 << 40, 2, 3, 4], "i64"), space.hold([5, 6, 7, -1 << 50], "i64")
    out = space.room((4,), "i64")
    call("vsel_vv_1d_int8_t_int64_t", condition, x, y, out, space.none("i64"))
    assert out.get().tolist() == [5, 2, 3, -1 << 50]


def test_what_is_not_chosen_does_not_matter() -> None:
    space = Space()
    condition = space.hold([1, 0], "i1")
    out = space.room((2,), "f32")
    call("vsel_vs_1d_float", condition, space.hold([1.5, np.nan], "f32"), 0.0, out, space.none("f32"))
    assert out.get().tolist() == [1.5, 0]
