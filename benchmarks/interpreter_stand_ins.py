"""What Triton 3.2's interpreter lacks and upstream's mamba3 kernels use: tensor descriptors and three PTX functions.

Only `gpu_parity.py --device cpu` uses this, to look for faults in ports before a GPU is at hand. A descriptor is
modelled as what it means: a window into a matrix, zero outside of it, stores outside of it dropped. Base pointers
and strides are taken as given: alignment, which the hardware demands, is not checked.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl

_PTX = {"cos.approx.f32": np.cos, "sin.approx.f32": np.sin, "tanh.approx.f32": np.tanh}


class _Descriptor:
    def __init__(self, base: Any, shape: list[Any], strides: list[Any], block_shape: list[Any]) -> None:
        self.base, self.shape, self.strides, self.dtype = base, shape, strides, base.dtype.element_ty
        self.block = [int(getattr(extent, "value", extent)) for extent in block_shape]

    def _window(self, offsets: list[Any]) -> tuple[Any, Any]:
        rows = tl.arange(0, self.block[0]) + offsets[0]
        columns = tl.arange(0, self.block[1]) + offsets[1]
        inside = (rows < self.shape[0])[:, None] & (columns < self.shape[1])[None, :]
        return self.base + rows[:, None] * self.strides[0] + columns[None, :] * self.strides[1], inside

    def load(self, offsets: list[Any]) -> Any:
        pointers, inside = self._window(offsets)
        return tl.load(pointers, mask=inside, other=0.0)

    def store(self, offsets: list[Any], value: Any) -> None:
        pointers, inside = self._window(offsets)
        tl.store(pointers, value.to(self.dtype), mask=inside)


def _make_tensor_descriptor(base: Any, shape: Any, strides: Any, block_shape: Any, **_: Any) -> _Descriptor:
    return _Descriptor(base, shape, strides, block_shape)


def _inline_asm(asm: str, constraints: str, args: list[Any], dtype: Any, is_pure: bool, pack: int) -> Any:
    from triton.runtime.interpreter import TensorHandle

    function = _PTX[str(getattr(asm, "value", asm)).split()[0]]
    value = args[0]
    return tl.core.tensor(TensorHandle(function(value.handle.data), tl.float32), value.type)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Inside, upstream's modules import and their kernels run, on tensors of the CPU."""
    from triton.runtime import interpreter

    cuda = torch.cuda
    with contextlib.ExitStack() as stack:
        for owner, name, stand_in in (
                (triton, "set_allocator", lambda allocate: None),
                (tl, "make_tensor_descriptor", _make_tensor_descriptor),
                (tl, "inline_asm_elementwise", _inline_asm),
                (torch.Tensor, "is_cuda", property(lambda self: True)),
                (cuda, "device", lambda index: contextlib.nullcontext()),
                (cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=8))):
            stack.enter_context(mock.patch.object(owner, name, stand_in, create=True))
        # The interpreter's smallest dot is 16x16x16; Ascend's is 1x1x1, and upstream multiplies with a [V, 1] tile.
        sizes = {"min_dot_size": lambda lhs, rhs: (1, 1, 1)}
        stack.enter_context(mock.patch.dict(interpreter.interpreter_builder.codegen_fns, sizes))
        yield
