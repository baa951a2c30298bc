"""Transposes. With the last axis, three axes are reversed (a, b, c -> c, b, a); without it, the first two change
places: the library has no other permutation. The destination may be smaller than what comes out, where the source is
padded to blocks; what is over is cut off."""
from __future__ import annotations

from migrate.vnpu import cost_model
from migrate.vnpu.library.table import Effect, handles, scratch
from migrate.vnpu.memory import Array, Fault, View


@handles(r"transpose_[23]d_with_last_axis_<T>")
def transpose(x: View, out: View, *spare: View) -> Effect:
    return Effect("V", (x,), (out,), cost_model.vector(out, "transpose"), lambda: _put(x, out, x.raw().T),
                  scratch(*spare))


@handles(r"transpose_3d_without_last_axis_<T>")
def transpose_rows(x: View, out: View) -> Effect:
    return Effect("V", (x,), (out,), cost_model.vector(out, "transpose_rows"),
                  lambda: _put(x, out, x.raw().swapaxes(0, 1)))


def _put(x: View, out: View, values: Array) -> None:
    if len(values.shape) != len(out.sizes) or any(n < m for n, m in zip(values.shape, out.sizes, strict=True)):
        raise Fault("shape", f"transposing {x} gives {values.shape}, which does not fill {out}")
    out.raw()[...] = values[tuple(slice(n) for n in out.sizes)]
