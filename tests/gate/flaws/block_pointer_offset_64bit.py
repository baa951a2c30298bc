"""A block pointer with an int64 offset."""
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    source = tl.make_block_ptr(x, (n,), (1,), (start,), (BLOCK,), (0,))  # flaw
    tl.store(y + tl.arange(0, BLOCK), tl.load(source))


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.copy[(1,)](x, x, x.numel(), BLOCK=256)
