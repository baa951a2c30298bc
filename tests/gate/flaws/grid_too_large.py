"""One program an element."""
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2)


def gate_cases():
    x = torch.zeros(1 << 21)
    yield "fp32", lambda m: m.scale[(1 << 17,)](x, x, BLOCK=16)  # flaw
