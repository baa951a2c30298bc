"""A tile read across its rows."""
import torch
import triton
import triton.language as tl


@triton.jit
def transpose(x, y, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + m[:, None] + n[None, :] * M)  # flaw
    tl.store(y + m[:, None] * N + n[None, :], tile * 2)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.transpose[(1,)](x, x, M=32, N=64)
