"""`other` given to a load that has no mask."""
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, other=0.0))  # flaw


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.copy[(1,)](x, x, BLOCK=256)
