"""Launches of the kernels in split_tile.py, for the compile gate: zeros on the CPU, as only shapes and dtypes count."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from types import ModuleType
from unittest import mock

import torch

DTYPES = (torch.float32, torch.bfloat16)
SISO = {128: ((64, 64), (64, 32), (64, 16), (128, 64), (128, 32)), 256: ((64, 64), (64, 32), (64, 16))}
HEADS, TOKENS = 2, 200


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dqkv(dim: int, width: int, chunk: int, dtype: torch.dtype, module: ModuleType) -> object:
    """With every optional gradient, two value heads to one of q and k, and a last chunk that is not full."""
    chunks = -(-TOKENS // chunk)
    q, v = zeros(1, TOKENS, HEADS // 2, dim, dtype=dtype), zeros(1, TOKENS, HEADS, width, dtype=dtype)
    a_token, a_chunk = zeros(1, HEADS, TOKENS), zeros(1, HEADS, chunks)
    return module.compute_dqkv(
        q, q.clone(), v, a_token, a_chunk, a_token.clone(), zeros(1, HEADS, width, chunks * dim, dtype=dtype),
        v.clone(), d_ossm_state=zeros(1, HEADS, width, dim), d_ov_state=zeros(1, HEADS, width), D=zeros(HEADS),
        chunk_size=chunk, has_input_state=True)


def _trio(columns: int, mode: str, dtype: torch.dtype, module: ModuleType) -> object:
    """K = V = 128, chunks of 64. The wrappers take 32 and 64 columns; 128 is tried past their check."""
    key = zeros(1, 256, HEADS, 128, dtype=dtype)
    gate, value = zeros(1, 256, HEADS, 128), key.clone()
    with mock.patch.object(module.check, "tiles"):
        if hasattr(module, "kda_split_state_summary"):
            return module.kda_split_state_summary(gate, key, key.clone(), value, mode=mode, block_columns=columns)
        if hasattr(module, "kda_state_transition"):
            return module.kda_state_transition(gate, key, key.clone(), block_columns=columns)
        return module.kda_state_grad_ext(key.clone(), key, key.clone(), gate, value, value.clone(), 1.0,
                                         block_columns=columns)


def _chunk_h(backward: bool, gated: str, dtype: torch.dtype, module: ModuleType) -> object:
    k = zeros(1, TOKENS, HEADS, 128, dtype=dtype)
    h0 = zeros(1, HEADS, 128, 128)
    gates = {"g": zeros(1, TOKENS, HEADS)} if gated == "g" else {"gk": zeros(1, TOKENS, HEADS, 128)}
    if backward:
        return module.chunk_bwd_dh(k.clone(), k, k.clone(), k.clone(), h0, h0.clone(), 1.0, **gates)
    return module.chunk_fwd_h(k, k.clone(), h0=h0, output_final_state=True, **gates)


def cases() -> Iterator[tuple[str, Callable[[ModuleType], object]]]:
    """A name begins with the subject that the case is for, in brackets."""
    for dim, sizes in SISO.items():     # of q and k; then that of v, and the chunk
        for (width, chunk), dtype in product(sizes, DTYPES):
            yield f"[dqkv {dim}] V {width}, chunk {chunk}, {_name(dtype)}", partial(_dqkv, dim, width, chunk, dtype)
    for columns, dtype in product((32, 64, 128), DTYPES):
        for mode in ("both", "state"):
            yield f"[summary] {mode}, {columns} columns, {_name(dtype)}", partial(_trio, columns, mode, dtype)
        for name in ("transition", "gradient"):
            yield f"[{name}] {columns} columns, {_name(dtype)}", partial(_trio, columns, "", dtype)
    for backward, gated, dtype in product((False, True), ("g", "gk"), DTYPES):
        name = f"{'backward' if backward else 'forward'}, {gated}, {_name(dtype)}"
        yield f"[chunk_h] {name}", partial(_chunk_h, backward, gated, dtype)
