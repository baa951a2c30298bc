"""Rows wrapped round with `% M` instead of masked."""
import torch
import triton
import triton.language as tl


@triton.jit
def rows(x, y, M, B: tl.constexpr, N: tl.constexpr):
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.arange(0, N)
    tile = tl.load(x + (m % M)[:, None] * N + n[None, :])  # flaw
    tl.store(y + m[:, None] * N + n[None, :], tile * 2, mask=(m < M)[:, None])


def gate_cases():
    x = torch.zeros(1 << 14)
    yield "fp32", lambda m: m.rows[(2,)](x, x, 100, B=64, N=64)
