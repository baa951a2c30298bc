"""Arithmetic in float64."""
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tile = tl.load(x + at).to(tl.float64)  # flaw
    tl.store(y + at, tile * 2)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.scale[(1,)](x, x, BLOCK=256)
