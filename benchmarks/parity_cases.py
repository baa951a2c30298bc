"""The rows of gpu_parity.py: the cases of mamba's ported functions, and our own operators beside what they replace."""
from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from ported_kernels.cases import mamba
from ported_kernels.cases.mamba import Case, Draw

_CHUNK = 64


def _segsum(draw: Draw) -> dict[str, Any]:
    size = draw.size
    blocks = (size.batch, size.heads, size.chunks, _CHUNK, _CHUNK)
    return {"dSSdA": draw.normal(*blocks, any_last=True), "SSdA": draw.uniform(-2, 0, *blocks, any_last=True),
            "ddt_out": draw.normal(size.batch, size.heads, size.chunks * _CHUNK, dtype=torch.float32),
            "chunk_size": _CHUNK}


def _upstream_segsum(dSSdA: torch.Tensor, SSdA: torch.Tensor, ddt_out: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """Upstream launches this kernel within bwd_dadt_fused_triton only; here it is launched by itself."""
    kernel = importlib.import_module("mamba_ssm.ops.triton.mamba3.mamba3_mimo_utils").bwd_segsum_dadt_kernel
    batch, heads, chunks = dSSdA.shape[:3]
    kernel[(batch, heads, chunks)](dSSdA, SSdA, ddt_out, *dSSdA.stride(), *SSdA.stride(), *ddt_out.stride(),
                                   batch, heads, chunks, chunk_size, CHUNK_SIZE=chunk_size)
    return ddt_out


OWN = (
    Case("ops.triton.mamba3.mamba3_siso_bwd", "compute_dzdo", "", mamba.dzdo, operator="mamba3_siso_bwd_dzdo"),
    # float32 only: upstream's kernel takes the exponential in the inputs' dtype, which does not compile in bfloat16
    Case("ops.triton.mamba3.mamba3_mimo_utils", "bwd_segsum_dadt_kernel", "", _segsum, mutated=("ddt_out",),
         operator="bwd_segsum_dadt", dtypes=("float32",)),
)

CASES = [*OWN, *mamba.CASES]


def upstream_function(case: Case) -> Callable[..., Any]:
    if case.operator == "bwd_segsum_dadt":
        return _upstream_segsum
    return _attribute(f"mamba_ssm.{case.module}", case.function)


def port_function(case: Case, ports: str) -> Callable[..., Any]:
    """`ports` is the package of the generated ports."""
    if case.operator:
        return _attribute("ported_kernels", case.operator)
    return _attribute(f"{ports}.{case.module}", case.function)


def _attribute(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
