"""Arguments that the KDA operators share: gate, key and w of a part of the sequence, and the heads of a call.

Each refusal is one ValueError that names the argument, what was expected and what came.
"""
from __future__ import annotations

from typing import Any

import torch

from ported_kernels import arguments
from ported_kernels.interpreter import MAX_PROGRAMS

K = 128                     # rows of the state; the kernels hold them as two halves of 64
DTYPES = (torch.float32, torch.bfloat16)
CHUNK_SIZES = (16, 32, 64)
BLOCKS = (32, 64)           # columns of the state that a program may take
MODES = ("both", "state", "transfer")


def part(gate: Any, key: Any, w: Any, w_head_first: bool) -> None:
    """`key` [B, T, H_TOTAL, K]; `gate` likewise, in float32 or the dtype of `key`; `w` likewise or, where
    `w_head_first`, [B, H_TOTAL, T, K]."""
    arguments.tensor("key", key, "B T H_TOTAL K", DTYPES)
    if key.shape[-1] != K:
        raise arguments.reject("key", f"K = {K} in [B, T, H_TOTAL, K]", tuple(key.shape))
    arguments.like("gate", gate, "B T H_TOTAL K", "key", key, (torch.float32, key.dtype))
    if not w_head_first:
        arguments.like("w", w, "B T H_TOTAL K", "key", key)
        return
    arguments.tensor("w", w, "B H_TOTAL T K", (key.dtype,))
    B, T, H_TOTAL, _ = key.shape
    if w.shape != (B, H_TOTAL, T, K):
        raise arguments.reject("w", f"shape [B, H_TOTAL, T, K] = {(B, H_TOTAL, T, K)}, w_head_first being set",
                               tuple(w.shape))
    arguments.on_device_of("w", w, "key", key)


def value(name: str, tensor: Any, key: torch.Tensor, block: int) -> int:
    """A tensor [B, T, H_TOTAL, V] that goes with `key`. Returns V."""
    arguments.tensor(name, tensor, "B T H_TOTAL V", (key.dtype,))
    if tensor.shape[:-1] != key.shape[:-1]:
        raise arguments.reject(name, f"[B, T, H_TOTAL] of key, {tuple(key.shape[:-1])}, before V", tuple(tensor.shape))
    arguments.on_device_of(name, tensor, "key", key)
    V = tensor.shape[-1]
    if V % block:
        raise arguments.reject(name, f"V a multiple of block_columns, {block}", V)
    return V


def heads(heads: int | None, head_offset: int, key: torch.Tensor) -> int:
    """The heads of a call: head_offset .. head_offset + H - 1 of H_TOTAL. Returns H."""
    H_TOTAL = key.shape[2]
    if not _whole(head_offset) or not 0 <= head_offset < H_TOTAL:
        raise arguments.reject("head_offset", f"a head of key, 0 to {H_TOTAL - 1}", repr(head_offset))
    left = H_TOTAL - head_offset
    if heads is None:
        return left
    if not _whole(heads) or not 1 <= heads <= left:
        raise arguments.reject("heads", f"1 to {left}, as key has {H_TOTAL} heads and head_offset is {head_offset}",
                               repr(heads))
    return heads


def tiles(chunk_size: int, block_columns: int) -> None:
    if not _whole(chunk_size) or chunk_size not in CHUNK_SIZES:
        raise arguments.reject("chunk_size", f"one of {', '.join(map(str, CHUNK_SIZES))}", repr(chunk_size))
    if not _whole(block_columns) or block_columns not in BLOCKS:
        raise arguments.reject("block_columns", f"one of {', '.join(map(str, BLOCKS))}", repr(block_columns))


def whole_chunks(key: torch.Tensor, chunk_size: int) -> None:
    if key.shape[1] % chunk_size:
        raise arguments.reject("key", f"T a multiple of chunk_size, {chunk_size}", key.shape[1])


def mode(name: str) -> None:
    if name not in MODES:
        raise arguments.reject("mode", f"one of {', '.join(MODES)}", repr(name))


def number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise arguments.reject(name, "a number", type(value).__name__)


def programs(columns: int, B: int, H: int, block: int) -> int:
    """The blocks of `columns` columns, one to a program for each of B * H heads; Ascend's launcher takes 65,535."""
    blocks = columns // block
    if blocks * B * H > MAX_PROGRAMS:
        raise arguments.reject("heads", f"at most {MAX_PROGRAMS // (blocks * B)} with a batch of {B}, for the "
                               f"launcher takes {MAX_PROGRAMS} programs", H)
    return blocks


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
