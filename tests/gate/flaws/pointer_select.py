"""A pointer chosen at run time."""
import torch
import triton
import triton.language as tl


@triton.jit
def choose(a, b, y, first, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    source = a if first > 3 else b  # flaw
    tl.store(y + at, tl.load(source + at))


def gate_cases():
    x = torch.zeros(4096)
    y = torch.zeros(4096)
    yield "fp32", lambda m: m.choose[(1,)](x, y, x, 5, BLOCK=256)
