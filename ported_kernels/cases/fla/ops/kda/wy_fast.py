"""Launches of fla/ops/kda/wy_fast.py (fla-core 0.6.0) for the compile gate, at the shapes of Kimi Delta Attention.

`cases()` yields (name, call). `call` gets the module under test and calls its public functions with tensors of
zeros on the CPU: only shapes, dtypes and which arguments are None reach the compiler.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import torch

B, T, H, HV, K, V, CHUNK = 1, 200, 2, 4, 128, 128, 64
STARTS = (0, 70, 71, 200)       # of three packed sequences


def _inputs(dtype: torch.dtype, varlen: bool) -> dict[str, torch.Tensor | None]:
    return {"k": torch.zeros(B, T, H, K, dtype=dtype), "v": torch.zeros(B, T, HV, V, dtype=dtype),
            "beta": torch.zeros(B, T, HV, dtype=dtype), "A": torch.zeros(B, T, HV, CHUNK, dtype=dtype),
            "gk": torch.zeros(B, T, HV, K), "cu_seqlens": torch.tensor(STARTS) if varlen else None}


def _forward(dtype: torch.dtype, varlen: bool, query: bool, module: ModuleType) -> None:
    q = torch.zeros(B, T, H, K, dtype=dtype) if query else None
    module.recompute_w_u_fwd(**_inputs(dtype, varlen), q=q)


def _backward(dtype: torch.dtype, varlen: bool, module: ModuleType) -> None:
    per_key = torch.zeros(B, T, HV, K)
    module.prepare_wy_repr_bwd(**_inputs(dtype, varlen), dk=per_key, dw=per_key.to(dtype),
                               du=torch.zeros(B, T, HV, V, dtype=dtype), dg=per_key.clone())


def cases() -> Iterator[tuple[str, Callable[[ModuleType], None]]]:
    """Both functions in bfloat16 and float32, at one length for all and with packed sequences."""
    for dtype in (torch.bfloat16, torch.float32):
        for varlen in (False, True):
            name = f"{str(dtype).removeprefix('torch.')} {'varlen' if varlen else 'fixed length'}"
            yield f"forward {name}", partial(_forward, dtype, varlen, False)
            yield f"forward with q {name}", partial(_forward, dtype, varlen, True)
            yield f"backward {name}", partial(_backward, dtype, varlen)
