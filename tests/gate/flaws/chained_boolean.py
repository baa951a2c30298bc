"""Three operands of `or` without parentheses."""
import torch
import triton
import triton.language as tl


@triton.jit
def pick(x, y, a, b, c, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tile = tl.load(x + at)
    if a > 0 or b > 0 or c > 0:  # flaw
        tile = tile * 2
    tl.store(y + at, tile)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.pick[(1,)](x, x, 3, 5, 7, BLOCK=256)
