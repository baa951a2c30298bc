"""Launches of mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py at the model's own shape, for the compile gate.

`cases()` yields (name, call). `call` gets the module under test and calls its public functions with tensors of
zeros on the CPU: only shapes, dtypes and which arguments are None reach the compiler. Heads are grouped (4
value heads on 2 query and key heads), every optional gradient is present, and no length is a multiple of the chunk.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import torch

HEADDIM_QK, HEADDIM_V, CHUNK = 128, 64, 64
HEADS, HEADS_QK = 4, 2
ROTARY_ANGLES = HEADDIM_QK // 4      # half of the dimensions are rotated, two to an angle
BATCH, LENGTH = 2, 200
STARTS = (0, 70, 71, 200)            # of three packed sequences; the second has one token

Case = tuple[str, Callable[[ModuleType], object]]


class _Inputs:
    """Tensors named as upstream names them; B batch, T tokens, S sequences, H heads, N chunks."""

    def __init__(self, dtype: torch.dtype, varlen: bool) -> None:
        self.starts = torch.tensor(STARTS, dtype=torch.int32) if varlen else None
        batch = 1 if varlen else BATCH
        sequences = len(STARTS) - 1 if varlen else BATCH
        chunks = sequences + LENGTH // CHUNK if varlen else -(-LENGTH // CHUNK)

        def zeros(*shape: int, of: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=of)

        self.q = zeros(batch, LENGTH, HEADS_QK, HEADDIM_QK, of=dtype)               # [B, T, H_qk, D_qk]
        self.v = zeros(batch, LENGTH, HEADS, HEADDIM_V, of=dtype)                   # [B, T, H, D_v]
        self.per_token = zeros(batch, HEADS, LENGTH)                                # [B, H, T]
        self.per_chunk = zeros(batch, HEADS, chunks)                                # [B, H, N]
        self.states = zeros(batch, HEADS, HEADDIM_V, chunks * HEADDIM_QK, of=dtype)  # [B, H, D_v, N * D_qk]
        self.state = zeros(sequences, HEADS, HEADDIM_V, HEADDIM_QK)                 # [S, H, D_v, D_qk]
        self.k_state = zeros(sequences, HEADS, HEADDIM_QK)                          # [S, H, D_qk]
        self.v_state = zeros(sequences, HEADS, HEADDIM_V)                           # [S, H, D_v]
        self.skip = zeros(HEADS)                                                    # [H]
        self.bias = zeros(HEADS, HEADDIM_QK)                                        # [H, D_qk]
        self.angles = zeros(batch, LENGTH, HEADS, ROTARY_ANGLES)                    # [B, T, H, A]
        self.dq = zeros(batch, LENGTH, HEADS, HEADDIM_QK, of=dtype)                 # [B, T, H, D_qk]


def _dzdo(module: ModuleType, x: _Inputs) -> None:
    module.compute_dzdo(x.v, x.v.clone(), x.v.clone(), chunk_size=CHUNK)


def _dqkv(module: ModuleType, x: _Inputs) -> None:
    module.compute_dqkv(x.q, x.q.clone(), x.v, x.per_token, x.per_chunk, x.per_token.clone(), x.states, x.v.clone(),
                        d_ossm_state=x.state, d_ov_state=x.v_state, D=x.skip, chunk_size=CHUNK, has_input_state=True,
                        Cu_Seqlens=x.starts)


def _dqktheta(module: ModuleType, x: _Inputs) -> None:
    module.compute_dqktheta(x.q, x.q.clone(), x.per_token, x.per_token.clone(), x.bias, x.bias.clone(), x.angles, x.dq,
                            x.dq.clone(), x.per_token.clone(), d_ok_state=x.k_state, chunk_size=CHUNK,
                            Cu_Seqlens=x.starts)


def _ddt(module: ModuleType, x: _Inputs) -> None:
    module.compute_ddt_dtrap_dinput_states(x.per_token, x.per_token.clone(), x.per_token.clone(), x.per_token.clone(),
                                           d_issm_state=x.state, input_k_state=x.k_state, input_v_state=x.v_state,
                                           Cu_Seqlens=x.starts)


def cases() -> Iterator[Case]:
    """Every public function, in bfloat16 and float32, at one length for all and with packed sequences."""
    functions: dict[str, Callable[[ModuleType, _Inputs], object]] = {
        "dzdo": _dzdo, "dqkv": _dqkv, "dqktheta": _dqktheta, "ddt_dtrap_dinput_states": _ddt}
    for function, call in functions.items():
        for dtype in (torch.bfloat16, torch.float32):
            for varlen in (False, True):
                name = f"{function} {str(dtype).removeprefix('torch.')} {'varlen' if varlen else 'fixed length'}"
                yield name, partial(_call, call, dtype, varlen)


def _call(call: Callable[[ModuleType, _Inputs], object], dtype: torch.dtype, varlen: bool,
          module: ModuleType) -> object:
    return call(module, _Inputs(dtype, varlen))
