"""Conversions: every pair of types that the library has, every rounding mode."""
from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from calling import C_TYPES, Space, call, draw, layouts

from migrate.vnpu.memory import FLOATS, STORAGE, Fault, float32_to_bfloat16

WITH_MODE = ["bf16 f32", "bf16 i32", "f32 bf16", "f32 f32", "f32 f16", "f32 i16", "f32 i32", "f32 i64", "f16 f32",
             "f16 i16", "f16 i32", "f16 i8", "f16 ui8", "i16 f32", "i16 f16", "i32 f32", "i32 i16", "i32 i64",
             "i64 f32", "i64 i32", "i8 f16", "ui8 f16"]
WITH_TEMP = ["i1 bf16", "i1 f32", "i1 f16", "i1 i16", "i1 i32", "i1 ui16", "i1 ui32", "ui8 bf16", "ui8 f32", "ui8 f16",
             "ui8 i16", "ui8 i32", "ui8 ui16", "ui8 ui32"]
OVERFLOW = ["i16 i8", "i32 i16", "i32 i8", "i64 i32"]
CASES = [(f"vcast_{C_TYPES[source]}_to_{C_TYPES[target]}_{rank}d_with_{form}", source, target, rank, form)
         for form, pairs in (("mode", WITH_MODE), ("temp", WITH_TEMP), ("overflow", OVERFLOW))
         for source, target in map(str.split, pairs) for rank in (1, 2)]
COVERED = [case[0] for case in CASES]


def whole(value: float, mode: int) -> int:
    """A number rounded to a whole one, by the meaning of the mode, in exact arithmetic."""
    x = Fraction(value)
    low, high = math.floor(x), math.ceil(x)
    if mode == 0:
        return round(x)
    if mode == 1:
        return math.floor(abs(x) + Fraction(1, 2)) * (1 if x >= 0 else -1)
    return {2: low, 3: high, 4: math.trunc(x), 5: low if low % 2 else high, 6: math.trunc(x)}[mode]


def converted(values: np.ndarray, source: str, target: str, mode: int) -> list[float]:
    result: list[float] = []
    for value in values.tolist():
        if target in FLOATS and source not in FLOATS:
            result.append(value)
        elif target in FLOATS:
            result.append(whole(value, mode) if source == target else value)
        else:
            n = whole(value, mode) if source in FLOATS else int(value)
            limits = np.iinfo(STORAGE[target])
            width = limits.max - limits.min + 1
            result.append((n - limits.min) % width + limits.min if mode == 6 else min(max(n, limits.min), limits.max))
    return result


@pytest.mark.parametrize("name, source, target, rank, form", CASES)
def test_cast(name: str, source: str, target: str, rank: int, form: str) -> None:
    sizes = (48,) if rank == 1 else (6, 8)
    modes = (6,) if form == "overflow" else (0, 4) if target in FLOATS and source != target else (0, 1, 2, 3, 4)
    for mode in modes:
        for strides in layouts(sizes, source):
            if source == "i1" and strides[-1] != 1:
                continue
            space = Space()
            values = draw(mode, sizes, source.removeprefix("u"))
            if source in FLOATS:    # halves, and what does not fit
                flat = values.reshape(-1)
                flat[:6] = [0.5, -0.5, 1.5, -2.5, 200, -300]
                flat[6:8] = [40_000, -65_504] if target in FLOATS else [60_000, -65_504]
            x, out = space.hold(values, source.removeprefix("u"), strides), space.room(sizes, target.removeprefix("u"))
            spare = [] if form == "mode" else [space.hold(np.zeros(48), "f16")]
            call(name, x, out, *spare, mode)
            read = x.typed(source).get()
            expected = np.array(converted(read.reshape(-1), source, target, mode))
            if target in FLOATS and source in FLOATS and source != target and mode == 4:
                exact = out.get().reshape(-1).astype(np.float64)
                assert (np.abs(exact) <= np.abs(expected)).all()   # towards zero, by less than one step
                np.testing.assert_allclose(exact, expected, rtol=2.0**-7 if target == "bf16" else 2.0**-10)
            elif target in FLOATS:
                with np.errstate(over="ignore"):
                    target_values = torch.from_numpy(expected.astype(np.float64)).to(
                        {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[target]).float().numpy()
                if mode == 0 or source == target:
                    np.testing.assert_array_equal(out.get().reshape(-1).astype(np.float32), target_values)
                else:
                    np.testing.assert_allclose(out.get().reshape(-1).astype(np.float64), expected, rtol=2.0**-10)
            else:
                assert out.typed(target).get().reshape(-1).tolist() == expected.tolist()


@pytest.mark.parametrize("target", ["bf16", "f16"])
def test_every_mode_of_narrowing(target: str) -> None:
    """Against the two neighbours of each value in the narrower type, found by walking through its bit patterns."""
    patterns = np.arange(0x3C00, 0x3C40, dtype=np.uint16) if target == "f16" else np.arange(0x3F80, 0x3FC0,
                                                                                             dtype=np.uint16)
    grid = patterns.view(np.float16).astype(np.float64) if target == "f16" else (
        (patterns.astype(np.uint32) << 16).view(np.float32).astype(np.float64))
    low, high = grid[:-1], grid[1:]
    odd_low = patterns[:-1] & 1 == 1
    for part in (0.25, 0.5, 0.75):
        for sign in (1, -1):
            values = sign * (low + part * (high - low))
            inner, outer = sign * low, sign * high
            expected = {0: np.where(part == 0.5, np.where(odd_low, outer, inner), outer if part > 0.5 else inner),
                        1: outer if part >= 0.5 else inner, 2: np.minimum(inner, outer), 3: np.maximum(inner, outer),
                        4: inner, 5: np.where(odd_low, inner, outer)}
            for mode, wanted in expected.items():
                space = Space()
                out = space.room(values.shape, target)
                call(f"vcast_float_to_{C_TYPES[target]}_1d_with_mode", space.hold(values, "f32"), out, mode)
                np.testing.assert_array_equal(out.get().astype(np.float64), wanted, f"mode {mode}, {part}")


def test_values_of_the_type_stay() -> None:
    values = np.array([0, -0.0, 1, -2, 2.0**-24, 65504, np.inf, -np.inf], np.float32)
    for mode in range(6):
        space = Space()
        out = space.room((8,), "f16")
        call("vcast_float_to_half_1d_with_mode", space.hold(values, "f32"), out, mode)
        np.testing.assert_array_equal(out.get().astype(np.float32), values)


def test_no_number_and_none_of_that_size() -> None:
    space = Space()
    x = space.hold([np.nan, np.inf, -np.inf, 3e9], "f32")
    out, half = space.room((4,), "i32"), space.room((4,), "f16")
    call("vcast_float_to_int32_t_1d_with_mode", x, out, 4)
    assert out.get().tolist() == [0, 2**31 - 1, -2**31, 2**31 - 1]
    call("vcast_float_to_half_1d_with_mode", x, half, 0)
    assert np.isnan(half.get()[0]) and half.get()[1:].tolist() == [np.inf, -np.inf, np.inf]


def test_bfloat16_ties_go_to_even() -> None:
    space = Space()
    values = (np.arange(0x3F800000, 0x3F900000, 0x8000, dtype=np.uint32)).view(np.float32)
    out = space.room(values.shape, "bf16")
    call("vcast_float_to_bfloat16_t_1d_with_mode", space.hold(values, "f32"), out, 0)
    expected = torch.from_numpy(values.copy()).bfloat16().float().numpy()
    np.testing.assert_array_equal(out.get(), expected)
    np.testing.assert_array_equal(out.raw(), float32_to_bfloat16(values))


def test_modes_there_are_not() -> None:
    space = Space()
    with pytest.raises(Fault, match="rounding modes 0 to 6, not 7"):
        call("vcast_float_to_half_1d_with_mode", space.hold([1], "f32"), space.room((1,), "f16"), 7)
