"""A return inside a loop."""
import torch
import triton
import triton.language as tl


@triton.jit
def until(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for i in range(n):
        if i > 3:  # flaw
            return
        tl.store(y + i * BLOCK + at, tl.load(x + i * BLOCK + at))


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.until[(1,)](x, x, 7, BLOCK=256)
