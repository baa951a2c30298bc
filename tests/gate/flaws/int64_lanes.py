"""Vector arithmetic in int64, which the vector unit does not have."""
import torch
import triton
import triton.language as tl


@triton.jit
def shift(ids, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    tile = tl.load(ids + at, mask=keep, other=0)
    tl.store(out + at, tile * 3 + 1, mask=keep)  # flaw


def gate_cases():
    ids = torch.zeros(4096, dtype=torch.int64)
    yield "int64", lambda m: m.shift[(4,)](ids, ids, ids.numel(), BLOCK=1024)
