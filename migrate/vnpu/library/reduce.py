"""Reductions. The name says which axes there are and which goes: `r` 1-D, `ar` the last of two, `ra` the first of two,
`ra0a1` the first of three, `ara` the middle one. The result keeps the axis with one element. The scalar at the end is
the operation's neutral element, with which the library fills the lanes it does not use; it is not used here.

In which order the device adds is not modelled.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.table import Effect, handles, scratch
from migrate.vnpu.memory import View

REDUCE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "xori": np.bitwise_xor,
          "ori": np.bitwise_or, "andi": np.bitwise_and}
AXIS = {"r": 0, "ar": 1, "ra": 0, "ra0a1": 0, "ara": 1}


@handles(r"(?:enablevc_)?reduce_(?P<op>sum|prod|max|min|xori|ori|andi)_(?P<axes>r|ar|ra|ra0a1|ara)_<T>")
def reduce(x: View, out: View, spare: View, neutral: Any, *, op: str, axes: str) -> Effect:
    def run() -> None:
        values = x.get()
        out.put(REDUCE[op].reduce(values, axis=AXIS[axes], dtype=values.dtype).reshape(out.sizes))
    return Effect("V", (x,), (out,), cost_model.vector(x, "reduce"), run, scratch(spare))


@handles(r"reduce_(?P<op>max|min)_with_index_(?P<side>left_|right_|)(?P<axes>r|ar|ra)_<T>")
def reduce_with_index(x: View, value: View, index: View, spare: View, neutral: Any = None, *, op: str, side: str,
                      axes: str) -> Effect:
    """The extreme and where it is: of equal ones the first, or the last where the name says `right`."""
    axis = AXIS[axes]

    def run() -> None:
        values = x.get()
        find = np.argmax if op == "max" else np.argmin
        if side == "right_":
            at = values.shape[axis] - 1 - find(np.flip(values, axis), axis=axis)
        else:
            at = find(values, axis=axis)
        value.put(np.take_along_axis(values, np.expand_dims(at, axis), axis).reshape(value.sizes))
        index.put(at.reshape(index.sizes))
    return Effect("V", (x,), (value, index), cost_model.vector(x, "arg_reduce"), run, scratch(spare))
