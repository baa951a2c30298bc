"""Launches of FLA's context-parallel kernels, at fixed length, from their port for K = V = 128 and chunks of 64.

Upstream's wrappers launch them for packed sequences only, between collectives. The port is made with the options ASKED
and lies at PORT; the verbs that run an operator make it. Arguments are checked by the catalogue: call these functions
as `ported_kernels.fla_cp_state_summary` and `ported_kernels.fla_cp_state_grad_ext`.
"""
from __future__ import annotations

import importlib
from types import ModuleType

import torch

PORT = "specialised/fla_cp/fla_0_5_2/ops/cp/chunk_delta_h.py"
K = V = 128
CHUNK_SIZE = 64
ASKED = ("--set K=128 V=128 BT=64 BK1=128 BK=128 USE_G=False USE_GK=True USE_BG=False IS_VARLEN=False MULTI_SEQS=False "
         "STATE_V_FIRST=False --split BK1,BK")


def _port() -> ModuleType:
    dotted = PORT.removesuffix(".py").replace("/", ".")
    return importlib.import_module(f"ported_kernels.generated.{dotted}")


def fla_cp_state_summary(key: torch.Tensor, w: torch.Tensor, u: torch.Tensor, gate: torch.Tensor,
                         block_columns: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """What a part of the sequence makes of the state that comes in: S_out = S_ext + M @ S_in.

    Formulas as for `kda_split_state_summary`; the head of `w`, `u` and `gate` with index i takes head i // (HV / H) of
    `key`.

    Args:
        key: shape [1, T, H, 128], float32 or bfloat16.
        w: dtype of `key`, shape [1, T, HV, 128], HV a multiple of H.
        u: as `w`.
        gate: cumulative log2 decay within each chunk of 64; shape [1, T, HV, 128], float32 or bfloat16.
        block_columns: columns of S_ext or M that one program takes: 32 or 64.

    Returns:
        (S_ext, M), float32, views of shape [1, HV, 128, 128] in one tensor.
    """
    key, w, u, gate = key.contiguous(), w.contiguous(), u.contiguous(), gate.contiguous()
    (_, T, H, _), HV = key.shape, w.shape[2]
    hm = torch.empty((1, HV, K, V + K), dtype=torch.float32, device=key.device)
    _port().pre_process_fwd_kernel_merged[((V + K) // block_columns, HV)](
        k=key, v=u, w=w, g=None, gk=gate, bg=None, u=u, hm=hm, cu_seqlens=None, T=T, H=H, HV=HV, K=K, V=V,
        BT=CHUNK_SIZE, BLOCK_SIZE=block_columns, BK1=K, MULTI_SEQS=False)
    return hm[..., :V], hm[..., V:]


def fla_cp_state_grad_ext(query: torch.Tensor, key: torch.Tensor, w: torch.Tensor, gate: torch.Tensor,
                          grad_output: torch.Tensor, grad_value: torch.Tensor, scale: float,
                          block_columns: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """What a part of the sequence makes of the gradient of the state: dS_in = dS_ext + dM @ dS_out.

    Formulas as for `kda_state_grad_ext`; dM is the transpose of M of `fla_cp_state_summary`. Heads as there.

    Args:
        query: shape [1, T, H, 128], float32 or bfloat16.
        key: as `query`.
        w: dtype of `query`, shape [1, T, HV, 128], HV a multiple of H.
        gate: cumulative log2 decay within each chunk of 64; shape [1, T, HV, 128], float32 or bfloat16.
        grad_output: gradient of the output; as `w`.
        grad_value: gradient of the chunk's new values that does not pass through the state; as `w`.
        scale: of the attention; multiplied into the product of `query` and `grad_output`.
        block_columns: columns of dS_ext or dM that one program takes: 32 or 64.

    Returns:
        (dS_ext, dM), float32, views of shape [1, HV, 128, 128] in one tensor.
    """
    query, key, w, gate = query.contiguous(), key.contiguous(), w.contiguous(), gate.contiguous()
    grad_output, grad_value = grad_output.contiguous(), grad_value.contiguous()
    (_, T, H, _), HV = key.shape, w.shape[2]
    dhm = torch.empty((1, HV, K, V + K), dtype=torch.float32, device=key.device)
    _port().pre_process_bwd_kernel_merged[((V + K) // block_columns, HV)](
        q=query, k=key, w=w, gk=gate, do=grad_output, dhm=dhm, dv=grad_value, scale=scale, T=T, H=H, HV=HV,
        BLOCK_SIZE=block_columns, BK1=K)
    return dhm[..., :V], dhm[..., V:]
