"""A pointer that may be None, read behind a condition that mixes constexpr and run time."""
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, bias, y, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + at)
    if HAS_BIAS or tl.program_id(0) < n:
        tile += tl.load(bias + at)  # flaw
    tl.store(y + at, tile)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.scale[(1,)](x, None, x, x.numel(), HAS_BIAS=False, BLOCK=256)
