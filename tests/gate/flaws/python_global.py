"""A Python global read inside a kernel."""
import torch
import triton
import triton.language as tl

SCALE = 2.0


@triton.jit
def scale(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * SCALE)  # flaw


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.scale[(1,)](x, x, BLOCK=256)
