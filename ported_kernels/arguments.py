"""Checks of operator arguments: one ValueError that names the argument, what was expected, what came."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ported_kernels import runtime

DEVICES = tuple(dict.fromkeys(runtime.home(device) for device in runtime.DEVICES))     # of tensors
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def reject(name: str, expected: str, got: object) -> ValueError:
    return ValueError(f"{name}: expected {expected}, got {got}")


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensor(name: str, value: Any, dims: str, dtypes: Sequence[torch.dtype] = FLOATS) -> torch.Tensor:
    """A non-empty tensor on a device with kernels; `dims` names its axes: "B T H D". `|` stands between layouts."""
    layouts = [one.split() for one in dims.split("|")]
    layout = " or ".join(f"[{', '.join(axes)}]" for axes in layouts)
    if not isinstance(value, torch.Tensor):
        raise reject(name, f"a tensor of shape {layout}", type(value).__name__)
    if value.dim() not in map(len, layouts):
        ranks = " or ".join(str(len(axes)) for axes in layouts)
        raise reject(name, f"{ranks} dimensions {layout}", f"shape {tuple(value.shape)}")
    if value.numel() == 0:
        raise reject(name, f"a tensor {layout} with elements", f"the empty shape {tuple(value.shape)}")
    if value.dtype not in dtypes:
        raise reject(name, " or ".join(dict.fromkeys(map(short, dtypes))), short(value.dtype))
    if value.device.type not in DEVICES:
        raise reject(name, f"a tensor on {', '.join(DEVICES)}", f"device {str(value.device)!r}")
    return value


def like(name: str, value: Any, dims: str, model: str, expected: torch.Tensor,
         dtypes: Sequence[torch.dtype] | None = None) -> torch.Tensor:
    """A tensor with the shape, dtype (or one of `dtypes`) and device of the argument `model`."""
    tensor(name, value, dims, FLOATS if dtypes is None else dtypes)
    if value.shape != expected.shape:
        raise reject(name, f"the shape of {model}, {tuple(expected.shape)}", tuple(value.shape))
    if dtypes is None and value.dtype != expected.dtype:
        raise reject(name, f"the dtype of {model}, {short(expected.dtype)}", short(value.dtype))
    on_device_of(name, value, model, expected)
    return value


def on_device_of(name: str, value: torch.Tensor, model: str, expected: torch.Tensor) -> None:
    if value.device != expected.device:
        raise reject(name, f"the device of {model}, {expected.device}", value.device)


def writable(name: str, value: torch.Tensor) -> None:
    """No two elements share memory, as those of an expanded tensor do."""
    if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
        raise reject(name, "memory of its own for every element", f"strides {value.stride()}")
