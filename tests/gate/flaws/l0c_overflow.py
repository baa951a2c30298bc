"""An accumulator larger than L0C."""
import torch
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    product = tl.dot(left, right)  # flaw
    tl.store(c + m[:, None] * N + n[None, :], product)


def gate_cases():
    x = torch.zeros(1 << 17)
    yield "fp32", lambda m: m.matmul[(1,)](x, x, x, M=256, N=256, K=32)
