"""Scalar arithmetic of the generated programs: what Python's own operators do not do as MLIR says.

Integers are Python's, kept in range by the generated code; floats are Python's, rounded to their type.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from migrate.vnpu.memory import STORAGE, Fault, bfloat16_to_float32, float32_to_bfloat16, rounded


def f32(x: float) -> float:
    return float(np.float32(x))


def f16(x: float) -> float:
    return float(np.float16(x))


def bf16(x: float) -> float:
    return float(rounded(x, "bf16"))


def divide(a: int, b: int) -> int:
    """Toward zero, as arith.divsi."""
    if b == 0:
        raise Fault("division by zero", f"{a} / 0")
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def remainder(a: int, b: int) -> int:
    return a - b * divide(a, b)


def floor_divide(a: int, b: int) -> int:
    if b == 0:
        raise Fault("division by zero", f"{a} / 0")
    return a // b


def ceil_divide(a: int, b: int) -> int:
    return -floor_divide(-a, b)


def quotient(a: float, b: float) -> float:
    return float(np.float64(a) / np.float64(b))


def float_remainder(a: float, b: float) -> float:
    return float(np.fmod(a, b))


def maximum(a: float, b: float) -> float:
    return float(np.maximum(a, b))


def minimum(a: float, b: float) -> float:
    return float(np.minimum(a, b))


def maximum_number(a: float, b: float) -> float:
    return float(np.fmax(a, b))


def minimum_number(a: float, b: float) -> float:
    return float(np.fmin(a, b))


FUNCTIONS: dict[str, Callable[..., object]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x), "absf": np.abs, "floor": np.floor, "ceil": np.ceil, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "erf": lambda x: np.float32(math.erf(x))}


def function(name: str, type_: str, x: float) -> float:
    """An operation of MLIR's `math`, in float32, rounded to its type."""
    return float(rounded(FUNCTIONS[name](np.float32(x)), type_))


def to_integer(type_: str, x: float) -> int:
    """Toward zero; what does not fit has no defined value in MLIR, and takes the nearest that fits here."""
    if math.isnan(x):
        return 0
    limits = np.iinfo(STORAGE[type_])    # type: ignore[type-var]
    return int(min(max(x, limits.min), limits.max))


def bitcast(from_: str, to: str, x: float) -> float:
    bits = float32_to_bfloat16(x) if from_ == "bf16" else np.array(x, STORAGE[from_])
    if to == "bf16":
        return float(bfloat16_to_float32(bits.view(np.uint16)))
    return bits.view(STORAGE[to]).item()
