"""Small kernels whose compiled form has what the virtual NPU's checks look at: flags between pipes, vector barriers,
loops with several buffers, cube products beside vector work, handshakes between the cores.

Each wrapper takes tensors on the CPU and launches a grid of few programs.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, out, cols, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * cols + at, at < cols, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value) / cols + eps)
    weights = tl.load(weight + at, at < cols, 0.0).to(tl.float32)
    tl.store(out + row * cols + at, (value * scale * weights).to(out.dtype.element_ty), at < cols)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols) and weight (cols) of any float dtype -> x / rms(x) * weight, of x's dtype."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    rms_norm_kernel[(rows,)](x, weight, out, cols, eps, BLOCK=triton.next_power_of_2(cols))
    return out


@triton.jit
def matmul_silu_kernel(a, b, bias, out, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows, cols, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    tile = tl.program_id(0)
    total = tl.zeros([M, N], dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        left = tl.load(a + (tile * M + rows[:, None]) * K + k + inner[None, :])
        right = tl.load(b + (k + inner[:, None]) * N + cols[None, :])
        total += tl.dot(left, right)
    total += tl.load(bias + cols)[None, :]
    total = total / (1 + tl.exp(-total))
    tl.store(out + (tile * M + rows[:, None]) * N + cols[None, :], total)


def matmul_silu(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """a (rows, K), b (K, N), bias (N) of float32 -> silu(a b + bias), float32. rows in tiles of 32, K of 32."""
    rows, inner = a.shape
    out = torch.empty(rows, b.shape[1], dtype=torch.float32)
    matmul_silu_kernel[(rows // 32,)](a, b, bias, out, inner, M=32, N=b.shape[1], BLOCK_K=32)
    return out


@triton.jit
def decayed_state_kernel(k, v, decay, state, T, D: tl.constexpr, C: tl.constexpr):
    """A state carried over chunks: scaled, then k^T (v * decay) added."""
    head = tl.program_id(0)
    at, dims = tl.arange(0, C), tl.arange(0, D)
    held = tl.zeros([D, D], dtype=tl.float32)
    for chunk in range(0, T, C):
        row = head * T + chunk + at
        gate = tl.exp(tl.load(decay + row))
        keys = tl.load(k + row[:, None] * D + dims[None, :])
        values = tl.load(v + row[:, None] * D + dims[None, :]) * gate[:, None]
        held = held * 0.5 + tl.dot(tl.trans(keys), values)
    tl.store(state + (head * D + dims[:, None]) * D + dims[None, :], held)


def decayed_state(k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """k, v (heads, T, D) and decay (heads, T) of float32 -> (heads, D, D). T in chunks of 32."""
    heads, length, dims = k.shape
    state = torch.empty(heads, dims, dims, dtype=torch.float32)
    decayed_state_kernel[(heads,)](k, v, decay, state, length, D=dims, C=32)
    return state
