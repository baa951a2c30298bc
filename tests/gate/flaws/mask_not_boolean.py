"""A mask of int8."""
import torch
import triton
import triton.language as tl


@triton.jit
def keep(x, flags, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tile = tl.load(x + at, mask=tl.load(flags + at), other=0.0)  # flaw
    tl.store(y + at, tile)


def gate_cases():
    x = torch.zeros(4096)
    flags = torch.zeros(4096, dtype=torch.int8)
    yield "fp32", lambda m: m.keep[(1,)](x, flags, x, BLOCK=256)
