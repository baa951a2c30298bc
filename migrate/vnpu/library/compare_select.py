"""Comparisons, and choosing between two operands. Conditions are i1, or int8 where the name says so."""
from __future__ import annotations

from typing import Any

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.elementwise import scalar
from migrate.vnpu.library.table import Effect, handles, scratch
from migrate.vnpu.memory import Array, View

COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
           "ge": np.greater_equal}


@handles(r"vcmp_(?P<op>eq|ne|lt|le|gt|ge)_1d_<T>")
def compare(x: View, y: View, out: View, *, op: str) -> Effect:
    return Effect("V", (x, y), (out,), cost_model.vector(x), lambda: out.put(COMPARE[op](x.get(), y.get())))


@handles(r"vcmps_(?P<op>eq|ne|lt|le|gt|ge)_1d_<T>")
def compare_with_scalar(x: View, value: Any, out: View, *, op: str) -> Effect:
    value = scalar(value, x)
    return Effect("V", (x,), (out,), cost_model.vector(x), lambda: out.put(COMPARE[op](x.get(), value)))


@handles(r"vsel_(?:vv_1d_<T>|vs_1d|sv_1d|ss_1d)_<T>")
def select(condition: View, yes: Any, no: Any, out: View, *spare: View) -> Effect:
    """`yes` where the condition is not zero, else `no`; each a view or a scalar. Bits move, no value is rounded. For
    int64 there is no scratch."""
    def operand(x: Any) -> Array:
        if isinstance(x, View):
            return x.get() if x.dtype == "bf16" else x.raw()
        return scalar(x, out)

    def run() -> None:
        out.put(np.where(condition.get() != 0, operand(yes), operand(no)))
    reads = [x for x in (condition, yes, no) if isinstance(x, View)]
    return Effect("V", reads, (out,), cost_model.vector(out, "select"), run, scratch(*spare))
