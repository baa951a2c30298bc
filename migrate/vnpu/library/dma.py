"""Copies between global memory and a core.

The copy engine moves whole blocks of 32 bytes. What it loads into the Unified Buffer begins at a block, padding on the
left included, and each row is filled up to the end of its last block: with the pad value, or with zero where none is
given. So rows in the Unified Buffer lie at multiples of 32 bytes; the compiler sees to that, and a call where it did
not is a fault (AscendNPU-IR, lib/Template: load_gm_to_ubuf).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.table import Effect, handles, scratch
from migrate.vnpu.memory import Fault, View

BLOCK = 32   # bytes
NO_PADDING, FIRST_ELEMENT, GIVEN_VALUE = range(3)              # HIVM's padmode
ATOMIC = {0: "", 1: "add", 2: "max", 3: "min"}                 # HIVM's atomic_kind, as far as stores take it
COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum}


@handles(r"load_gm_to_ubuf_[123]d_<T>")
def load(x: View, out: View, pad_mode: int, pad_value: Any, left: int, *eviction: int) -> Effect:
    """Global memory to the Unified Buffer, with `left` elements of padding before each row."""
    if 0 in x.sizes:
        return _nothing("MTE2")
    _same_sizes("load_gm_to_ubuf", x, out)
    if pad_mode not in (NO_PADDING, GIVEN_VALUE):
        raise Fault("value", f"load_gm_to_ubuf with pad mode {pad_mode} is not understood")
    filled = _with_padding(out, left, x.strides[-1] if x.sizes else 1)
    value = pad_value if pad_mode == GIVEN_VALUE else 0

    def run() -> None:
        if filled is not out:
            filled.put(value)
        out.raw()[...] = x.raw()
    return Effect("MTE2", (x,), (filled,), cost_model.move(x), run)


def _with_padding(out: View, left: int, source_step: int) -> View:
    """All that a load into `out` writes: whole blocks."""
    item = out.bits // 8
    begin = out.base + (out.offset - left) * item
    if begin % BLOCK:
        raise Fault("alignment", f"a load into {out}, {left} elements of padding before it, begins at byte {begin}, "
                                 f"which is no multiple of {BLOCK}")
    sizes, strides = out.sizes or (1,), out.strides or (1,)
    if sizes[-1] > 1 and strides[-1] != 1:      # each element is a row of its own
        sizes, strides = (*sizes, 1), (*strides, 1)
    elif sizes[-1] > 1 and source_step != 1:    # gathered element by element, without padding
        return out
    _rows_at_blocks(out, sizes, strides)
    right = -(sizes[-1] + left) * item % BLOCK // item
    if not left and not right:
        return out
    return out.reshaped(out.offset - left, (*sizes[:-1], left + sizes[-1] + right), strides)


def _rows_at_blocks(out: View, sizes: Sequence[int], strides: Sequence[int]) -> None:
    for n, stride in zip(sizes[:-1], strides[:-1], strict=True):
        if n > 1 and stride * (out.bits // 8) % BLOCK:
            raise Fault("alignment", f"a load into {out}: its rows do not begin at multiples of {BLOCK} bytes")


@handles(r"store_ubuf_to_gm_[123]d_<T>")
def store(x: View, out: View, kind: int) -> Effect:
    """The Unified Buffer to global memory, or atomically onto what is there."""
    if 0 in x.sizes:
        return _nothing("MTE3")
    _same_sizes("store_ubuf_to_gm", x, out)
    if kind not in ATOMIC:
        raise Fault("value", f"store_ubuf_to_gm with the atomic kind {kind} is not understood")
    atomic = ATOMIC[kind]

    def run() -> None:
        if atomic:
            out.put(COMBINE[atomic](out.get(), x.get()))
        else:
            out.raw()[...] = x.raw()
    return Effect("MTE3", (x, out) if atomic else (x,), (out,), cost_model.move(out), run, atomic=atomic)


@handles(r"load_gm_to_cbuf_[123]d_<T>")
def load_l1(x: View, out: View, pad_mode: int) -> Effect:
    """Global memory to L1 as it lies, in whole blocks: what follows a row in its last block is left undefined here (it
    is what follows in global memory). The library has a pad mode for it, and hands it to nothing."""
    if 0 in x.sizes:
        return _nothing("MTE2")
    _same_sizes("load_gm_to_cbuf", x, out)
    right = 0 if out.strides and out.strides[-1] != 1 else -out.sizes[-1] * (out.bits // 8) % BLOCK // (out.bits // 8)
    if right:
        _rows_at_blocks(out, out.sizes, out.strides)
    beyond = out.reshaped(out.offset + out.sizes[-1], (*out.sizes[:-1], right), out.strides)

    def run() -> None:
        out.raw()[...] = x.raw()
    return Effect("MTE2", (x,), (out,), cost_model.move(x), run, scratch(beyond))


def _nothing(pipe: str) -> Effect:
    return Effect(pipe, (), (), 1, lambda: None)


def _same_sizes(what: str, x: View, out: View) -> None:
    if x.sizes != out.sizes:
        raise Fault("shape", f"{what} from {x} to {out}: the sizes differ")
