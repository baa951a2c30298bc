"""An allocator for descriptors, which triton 3.2 does not have."""
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2)


triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))  # flaw


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.scale[(1,)](x, x, BLOCK=256)
