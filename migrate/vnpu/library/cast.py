"""Conversions between element types.

Rounding modes are HIVM's `round_mode`: 0 to the nearest, ties to even; 1 to the nearest, ties away from zero; 2 down;
3 up; 4 towards zero; 5 to odd; 6 towards zero, and integers that do not fit wrap. From float32 to float32 a mode
rounds to whole numbers. Floats that do not fit an integer type saturate, NaN gives 0; floats too large for float16
become infinite. Whether the device saturates there, and what it makes of NaN, depends on a control register that the
text does not show.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.table import DTYPES, Effect, handles, scratch
from migrate.vnpu.memory import BITS, FLOATS, STORAGE, Array, Fault, View, rounded

NEAREST, AWAY, DOWN, UP, TO_ZERO, ODD, WRAP = range(7)


@handles(r"vcast_<Tsource>_to_<Ttarget>_\dd_with_mode")
def cast_with_mode(x: View, out: View, mode: int, *, source: str, target: str) -> Effect:
    return _cast(x, out, (), mode, DTYPES[source], DTYPES[target])


@handles(r"vcast_<Tsource>_to_<Ttarget>_\dd_with_(?:temp|overflow)")
def cast_with_buffer(x: View, out: View, spare: View, mode: int, *, source: str, target: str) -> Effect:
    return _cast(x, out, scratch(spare), mode, DTYPES[source], DTYPES[target])


def _cast(x: View, out: View, spare: Sequence[View], mode: int, source: str, target: str) -> Effect:
    if not NEAREST <= mode <= WRAP:
        raise Fault("value", f"a cast has rounding modes 0 to 6, not {mode}")
    # memrefs are signless; whether an integer has a sign is in the name
    x, out = x.typed(source), out.typed(target)
    return Effect("V", (x,), (out,), cost_model.vector(x if x.bits > out.bits else out),
                  lambda: out.put(convert(x.get(), source, target, mode)), spare)


def convert(values: Array, source: str, target: str, mode: int) -> Array:
    """`values` of type `source` as they come out in type `target`."""
    if target not in FLOATS:
        if source in FLOATS:
            return _to_integer(values, target, mode)
        return values if mode == WRAP or source == "i1" else _saturated(values, target)
    if source == target:
        return to_whole(values, mode)
    if mode == NEAREST or (source in FLOATS and BITS[source] < BITS[target]):
        return values   # storing rounds to the nearest
    return narrowed(values.astype(np.float64), target, mode)


def to_whole(values: Array, mode: int) -> Array:
    """Whole numbers, in the same float type."""
    if mode == NEAREST:
        return np.rint(values)
    if mode == AWAY:
        return np.copysign(np.floor(np.abs(values) + np.where(np.abs(values) < 2**23, 0.5, 0)), values)
    if mode == DOWN:
        return np.floor(values)
    if mode == UP:
        return np.ceil(values)
    whole = np.trunc(values)
    if mode == ODD:   # of the two neighbours the odd one, unless the value is whole
        return np.where((whole != values) & (np.mod(whole, 2) == 0), whole + np.copysign(1, values), whole)
    return whole


def narrowed(values: Array, target: str, mode: int) -> Array:
    """float64 values rounded to a narrower float type by any mode, as float64."""
    nearest = rounded(values, target).astype(np.float64)
    if mode == NEAREST or not np.isfinite(values).any():
        return nearest
    above = np.where(nearest >= values, nearest, _neighbour(nearest, target, np.inf))
    below = np.where(nearest <= values, nearest, _neighbour(nearest, target, -np.inf))
    inexact = np.isfinite(values) & (nearest != values)
    if mode == DOWN:
        chosen = below
    elif mode == UP:
        chosen = above
    elif mode == ODD:
        chosen = np.where(_last_bit(below, target), below, above)
    else:
        outer, inner = np.where(values < 0, below, above), np.where(values < 0, above, below)
        chosen = inner if mode in (TO_ZERO, WRAP) else np.where(
            np.abs(values - outer) <= np.abs(values - inner), outer, inner)
    return np.where(inexact, chosen, nearest)


def _patterns(values: Array, target: str) -> Array:
    """Bit patterns of values that the type holds exactly, as signed integers of 64 bits that grow with magnitude."""
    if target == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
    kind = STORAGE[target]
    return values.astype(kind).view(f"u{np.dtype(kind).itemsize}").astype(np.int64)


def _last_bit(values: Array, target: str) -> Array:
    return _patterns(values, target) & 1 == 1


def _neighbour(values: Array, target: str, towards: float) -> Array:
    """The next value of the type in one direction."""
    if target == "bf16":
        pattern = _patterns(values, target)
        outward = (values > 0) == (towards > 0)
        stepped = np.where(values == 0, 0x8001 if towards < 0 else 1, np.where(outward, pattern + 1, pattern - 1))
        return (stepped.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    kind = STORAGE[target]
    return np.nextafter(values.astype(kind), np.array(towards, kind)).astype(np.float64)


def _to_integer(values: Array, target: str, mode: int) -> Array:
    whole = to_whole(values.astype(np.float64), mode)
    if target == "i1":
        return whole != 0
    whole = np.where(np.isnan(whole), 0, whole)
    if mode == WRAP:
        return np.clip(whole, -2.0**63, np.nextafter(2.0**63, 0)).astype(np.int64)
    return _saturated(whole, target)


def _saturated(values: Array, target: str) -> Array:
    if target == "i1":
        return values != 0
    limits: Any = np.iinfo(np.dtype(STORAGE[target]))
    if values.dtype.kind == "f":   # 2**63 - 1 is no float: compare first, then convert what fits
        fits = (values > float(limits.min)) & (values < float(limits.max))
        inside = np.where(fits, values, 0).astype(STORAGE[target])
        return np.where(fits, inside, np.where(values > 0, limits.max, limits.min).astype(STORAGE[target]))
    return np.clip(values, limits.min, limits.max)
