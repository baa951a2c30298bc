"""A product of float32 and bfloat16."""
import torch
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    left = tl.load(a + i[:, None] * N + i[None, :])
    right = tl.load(b + i[:, None] * N + i[None, :])
    tl.store(c + i[:, None] * N + i[None, :], tl.dot(left, right))  # flaw


def gate_cases():
    x = torch.zeros(4096)
    yield "mixed", lambda m: m.matmul[(1,)](x, x.to(torch.bfloat16), x, N=32)
