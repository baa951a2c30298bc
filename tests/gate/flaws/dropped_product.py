"""A product added to a tile after the tile was stored: the compiler loses it in silence."""
import torch
import triton
import triton.language as tl


@triton.jit
def states(x, y, h, n, B: tl.constexpr):
    i = tl.arange(0, B)
    state = tl.zeros([B, B], dtype=tl.float32)
    for t in range(n):
        tl.store(h + t * B * B + i[:, None] * B + i[None, :], state)
        left = tl.load(x + t * B * B + i[:, None] * B + i[None, :])
        right = tl.load(y + t * B * B + i[:, None] * B + i[None, :])
        state += tl.dot(left, right)  # flaw


def gate_cases():
    x = torch.zeros(1 << 14)
    yield "fp32", lambda m: m.states[(1,)](x, x, x, 3, B=32)
