"""Functions that place values: ranges, broadcasts, copies within the Unified Buffer, interleaving, gathers, sorts."""
from __future__ import annotations

from typing import Any

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.elementwise import scalar
from migrate.vnpu.library.table import Effect, handles, scratch
from migrate.vnpu.memory import Array, Fault, View


@handles(r"arange_[123]d_<T>")
def arange(out: View, offset: int, *steps: int) -> Effect:
    """offset + sum of index times step over the axes."""
    def run() -> None:
        values: Any = np.asarray(offset)
        for axis, (n, step) in enumerate(zip(out.sizes, steps, strict=True)):
            values = values + (np.arange(n) * step).reshape(-1, *[1] * (len(out.sizes) - 1 - axis))
        out.put(values)
    return Effect("V", (), (out,), cost_model.vector(out), run)


@handles(r"broadcast_scalar_<T>_to_[12]d")
def broadcast_scalar(value: Any, out: View) -> Effect:
    return Effect("V", (), (out,), cost_model.vector(out), lambda: out.put(scalar(value, out)))


@handles(r"broadcast_(?P<axis>first|middle|last)_axis_(?:align|unalign|unknown_align)_[23]d_<T>")
def broadcast_axis(x: View, out: View, *spare: View, axis: str) -> Effect:
    """An axis of one element becomes as long as the destination's."""
    return Effect("V", (x,), (out,), cost_model.vector(out, f"broadcast_{axis}"), lambda: _copy(x, out),
                  scratch(*spare))


@handles(r"broadcast_1d_<T>")
def broadcast(x: View, out: View) -> Effect:
    return Effect("V", (x,), (out,), cost_model.vector(out), lambda: _copy(x, out))


@handles(r"copy_ubuf_to_ubuf_[123]d_<T>")
def copy(x: View, out: View, pad_mode: int = 0, pad_value: Any = 0) -> Effect:
    if pad_mode:
        raise Fault("value", f"a copy within the Unified Buffer with pad mode {pad_mode} is not understood")
    _same_sizes("copy_ubuf_to_ubuf", x, out)
    return Effect("V", (x,), (out,), cost_model.vector(out), lambda: _copy(x, out))


@handles(r"deinterleave_channel_(?P<channel>[01])_from_(?:2|n)_channels_[12]d_<T>")
def deinterleave(x: View, out: View, *, channel: str) -> Effect:
    """Every n-th element of the last axis. The source is all channels side by side, or, with n channels, only the
    wanted one, with their number as its stride."""
    if 0 in out.sizes and 0 in x.sizes:
        return Effect("V", (), (), 1, lambda: None)
    if x.sizes[:-1] != out.sizes[:-1] or not out.sizes[-1] or x.sizes[-1] % out.sizes[-1]:
        raise Fault("shape", f"{x} is no whole number of channels of {out}")
    step = x.sizes[-1] // out.sizes[-1]
    wanted = x.reshaped(x.offset + int(channel) % step * x.strides[-1], out.sizes,
                        (*x.strides[:-1], x.strides[-1] * step))
    return Effect("V", (x,), (out,), cost_model.vector(x, "interleave"), lambda: _copy(wanted, out))


@handles(r"interleave_1d_<T>")
def interleave(x: View, y: View, out: View, spare: View) -> Effect:
    """x0, y0, x1, y1, ..."""
    return Effect("V", (x, y), (out,), cost_model.vector(out, "interleave"),
                  lambda: _put(out, np.stack([x.raw(), y.raw()], -1).reshape(out.sizes)), scratch(spare))


@handles(r"flip_1d_<T>")
def flip(x: View, out: View) -> Effect:
    return Effect("V", (x,), (out,), cost_model.vector(out), lambda: _put(out, x.raw()[..., ::-1]))


@handles(r"gather_1d_<T>")
def gather(x: View, indices: View, out: View, spare: View) -> Effect:
    def run() -> None:
        at = indices.get()
        if at.size and (at.min() < 0 or at.max() >= x.sizes[0]):
            raise Fault("out of bounds", f"gather takes elements {at.min()} to {at.max()} of {x}")
        _put(out, x.raw()[at])
    return Effect("V", (x, indices), (out,), cost_model.vector(out, "gather"), run, scratch(spare))


@handles(r"sort_1d_<T>")
def sort(x: View, out: View, spare: View, descending: bool) -> Effect:
    def run() -> None:
        values = np.sort(x.get())
        out.put(values[::-1] if descending else values)
    return Effect("V", (x,), (out,), cost_model.vector(x, "sort"), run, scratch(spare))


@handles(r"sort_with_index_1d_<T>")
def sort_with_index(x: View, out: View, index: View, spare: View, descending: bool) -> Effect:
    """Sorted values, and where each was; of equal ones the first comes first."""
    def run() -> None:
        values = x.get()
        order = np.argsort(-values if descending else values, kind="stable")
        index.put(order)
        out.put(values[order])
    return Effect("V", (x,), (out, index), cost_model.vector(x, "sort"), run, scratch(spare))


def _copy(x: View, out: View) -> None:
    """Bits as they are; x is broadcast."""
    if x.dtype == "i1" or out.dtype == "i1":
        out.put(x.get())
    else:
        _put(out, x.raw())


def _put(out: View, storage: Array) -> None:
    out.raw()[...] = storage


def _same_sizes(what: str, x: View, out: View) -> None:
    if x.sizes != out.sizes:
        raise Fault("shape", f"{what} from {x} to {out}: the sizes differ")
