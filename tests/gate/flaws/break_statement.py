"""A loop that is left early."""
import torch
import triton
import triton.language as tl


@triton.jit
def until(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(n):
        tile = tl.load(x + i * BLOCK + at)
        if tl.sum(tile) > 1.0:
            break  # flaw
        total += tile
    tl.store(y + at, total)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.until[(1,)](x, x, 7, BLOCK=256)
