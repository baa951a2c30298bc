"""`torch.npu` without torch_npu: as much of it as importing a file and recording its launches asks for.

FLA picks its torch module by triton's backend, `getattr(torch, "npu")`, counts devices with it and enters
`torch.npu.device(i)` round a launch. Tensors stay on the CPU: the device type "npu" gets its name, so that
`torch.amp.custom_fwd(device_type="npu")` is accepted, and no tensor can be made on it. Whatever is not here
raises AttributeError, which the report then shows at the line that asked. Installed in the worker alone.
"""
from __future__ import annotations

import contextlib
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


class Device(contextlib.nullcontext[None]):
    """`with torch.npu.device(index)`."""

    def __init__(self, device: object = None) -> None:
        super().__init__()
        self.idx = 0


class Stream:
    """A stream on which nothing is ever queued."""

    npu_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        pass


def module(name: str, cores: int) -> ModuleType:
    """The stand-in, for one SoC."""
    npu = ModuleType("torch.npu", __doc__)
    stream = Stream()
    members: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_device_name": lambda device=None: name,
        "get_device_properties": lambda device=None: SimpleNamespace(
            name=name, multi_processor_count=cores, total_memory=64 << 30),
        "is_bf16_supported": lambda: True,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
        "device": Device,
        "Stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(stream),
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
    }
    for member, value in members.items():
        setattr(npu, member, value)
    return npu


def install(name: str, cores: int) -> None:
    """Make it `torch.npu`, unless a real torch_npu is there."""
    if hasattr(torch, "npu"):
        return
    torch.utils.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", module(name, cores))
