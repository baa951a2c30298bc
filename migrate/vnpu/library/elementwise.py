"""Arithmetic and bitwise functions, element by element.

Operands of one element along an axis are broadcast along it (vsub_2d takes 128x1 and 1x32 to 128x32). Floats are
computed in their own width; integers wrap; right shifts of signed integers keep the sign. A last buffer is scratch,
of no elements where the function needs none.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.table import DTYPES, Effect, handles, scratch
from migrate.vnpu.memory import Array, Fault, View, rounded


def _power(base: Array, exponent: Array) -> Array:
    if (exponent < 0).any():
        raise Fault("value", f"vpow of integers with the exponent {int(exponent.min())}")
    with np.errstate(all="ignore"):
        return np.power(base, exponent)


UNARY: dict[str, Callable[[Array], Any]] = {
    "abs": np.abs, "exp": np.exp, "ln": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "rec": lambda x: 1 / x, "relu": lambda x: np.maximum(x, 0)}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "pow": _power, "shl": np.left_shift, "shr": np.right_shift}
BITWISE: dict[str, Callable[[Any, Any], Any]] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def scalar(value: Any, view: View) -> Any:
    """A scalar operand in the type that `view`'s elements are computed in."""
    return rounded(value, view.dtype)[()]


def bits(view: View) -> Array:
    """The elements as unsigned integers of their width; bool for i1."""
    return view.get() if view.dtype == "i1" else view.raw().view(f"u{view.bits // 8}")


@handles(r"v(?P<op>abs|exp|ln|sqrt|rsqrt|rec|relu)_\dd_<T>")
def unary(x: View, out: View, spare: View, *, op: str) -> Effect:
    compute = UNARY[op]
    return Effect("V", (x,), (out,), cost_model.vector(out, op), lambda: out.put(compute(x.get())), scratch(spare))


@handles(r"v(?P<op>add|sub|mul|div|max|min|pow)_\dd_<T>")
def binary(x: View, y: View, out: View, spare: View, *, op: str) -> Effect:
    compute = BINARY[op]
    return Effect("V", (x, y), (out,), cost_model.vector(out, op), lambda: out.put(compute(x.get(), y.get())),
                  scratch(spare))


@handles(r"v(?P<op>add|mul|max|min)s_vs_\dd_<Tkind>")
@handles(r"v(?P<op>sub|div)_vs_\dd_<Tkind>")
@handles(r"v(?P<op>shl|shr)s_vs_\dd_<Tkind>")
def with_scalar(x: View, value: Any, out: View, *spare: View, op: str, kind: str) -> Effect:
    """A shift has no scratch."""
    x, out = x.typed(DTYPES[kind]), out.typed(DTYPES[kind])   # signed or not: memrefs do not say, and shifts care
    compute, value = BINARY[op], scalar(value, x)
    return Effect("V", (x,), (out,), cost_model.vector(out, op), lambda: out.put(compute(x.get(), value)),
                  scratch(*spare))


@handles(r"v(?P<op>sub|div)_sv_\dd_<T>")
def scalar_with(value: Any, x: View, out: View, spare: View, *, op: str) -> Effect:
    compute, value = BINARY[op], scalar(value, x)
    return Effect("V", (x,), (out,), cost_model.vector(out, op), lambda: out.put(compute(value, x.get())),
                  scratch(spare))


@handles(r"v(?P<op>and|or|xor)_\dd_<T>")
def bitwise(x: View, y: View, out: View, spare: View, *, op: str) -> Effect:
    compute = BITWISE[op]
    return Effect("V", (x, y), (out,), cost_model.vector(out), lambda: put_bits(out, compute(bits(x), bits(y))),
                  scratch(spare))


@handles(r"vnot_\dd_<T>")
def invert(x: View, out: View, spare: View) -> Effect:
    return Effect("V", (x,), (out,), cost_model.vector(out), lambda: put_bits(out, ~bits(x)), scratch(spare))


def put_bits(out: View, values: Array) -> None:
    if out.dtype == "i1":
        out.put(values)
    else:
        bits(out)[...] = values


@handles(r"mul_extended_1d_int16_t")
def mul_extended(x: View, y: View, high: View, low: View, spare: View) -> Effect:
    """The 32 bits of each product of two int16, its upper half apart from its lower one."""
    def run() -> None:
        product = x.get().astype(np.int32) * y.get()
        high.put(product >> 16)
        low.put(product)
    return Effect("V", (x, y), (high, low), cost_model.vector(x, "mul_extended"), run, scratch(spare))
