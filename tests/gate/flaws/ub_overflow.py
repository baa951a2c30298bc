"""A tile larger than the Unified Buffer."""
import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    left = tl.load(x + at, mask=keep)  # flaw
    right = tl.load(y + at, mask=keep)
    tl.store(z + at, left + right, mask=keep)


def gate_cases():
    x = torch.zeros(1 << 17)
    yield "fp32", lambda m: m.add[(2,)](x, x, x, x.numel(), BLOCK=65536)
