"""A launch option that only CUDA has."""
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.scale[(1,)](x, x, BLOCK=256, maxnreg=128)  # flaw
