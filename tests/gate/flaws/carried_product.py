"""A cube product carried round a loop into the next one."""
import torch
import triton
import triton.language as tl


@triton.jit
def power(a, y, n, K: tl.constexpr):
    i = tl.arange(0, K)
    state = tl.load(y + i[:, None] * K + i[None, :])
    for t in range(n):
        factor = tl.load(a + t * K * K + i[:, None] * K + i[None, :])
        state = state - tl.dot(factor, state)
    tl.store(y + i[:, None] * K + i[None, :], state)


def gate_cases():
    x = torch.zeros(1 << 14)
    yield "fp32", lambda m: m.power[(1,)](x, x, 4, K=64)
