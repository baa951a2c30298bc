"""A kernel with options, masks and a helper, in which the compiler drops a product: `migrate check --reduce` on it.

    migrate check tests/vnpu/chunk_states.py --reduce /tmp/reduced
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def normed(tile, eps):
    length = tl.sqrt(tl.sum(tile * tile, axis=1) + eps)
    return tile / length[:, None]


@triton.jit
def chunk_states_kernel(keys, values, states, last, norms, T, eps, D: tl.constexpr, C: tl.constexpr,
                        NORMED: tl.constexpr, KEEP_LAST: tl.constexpr):
    head = tl.program_id(0)
    at, dims = tl.arange(0, C), tl.arange(0, D)
    chunks = tl.cdiv(T, C)
    state = tl.zeros([D, D], dtype=tl.float32)
    for chunk in range(chunks):
        row = chunk * C + at
        here = row < T
        block = head * T * D + row[:, None] * D + dims[None, :]
        k = tl.load(keys + block, mask=here[:, None], other=0.0)
        v = tl.load(values + block, mask=here[:, None], other=0.0)
        if NORMED:
            k = normed(k, eps)
        total = tl.sum(v * v, axis=1)
        tl.store(norms + head * T + row, total, mask=here)
        square = (head * chunks + chunk) * D * D + dims[:, None] * D + dims[None, :]
        tl.store(states + square, state)
        state += tl.dot(tl.trans(k), v)
    if KEEP_LAST:
        tl.store(last + head * D * D + dims[:, None] * D + dims[None, :], state)


def chunk_states(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """keys, values (heads, T, 32) of float32 -> the sums of keys^T values before each chunk of 32."""
    heads, length, dims = keys.shape
    chunks = triton.cdiv(length, 32)
    states = torch.empty(heads, chunks, dims, dims)
    norms, last = torch.empty(heads, length), torch.empty(heads, dims, dims)
    chunk_states_kernel[(heads,)](keys, values, states, last, norms, length, 1e-6, D=dims, C=32, NORMED=True,
                                  KEEP_LAST=False)
    return states


def gate_cases() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    yield "two heads", lambda module: module.chunk_states(torch.randn(2, 96, 32), torch.randn(2, 96, 32))
