"""An atomic whose old value is used: a global lock round a load and a store."""
import torch
import triton
import triton.language as tl


@triton.jit
def running(total, x, before, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    old = tl.atomic_add(total + at, tl.load(x + at))  # flaw
    tl.store(before + tl.program_id(0) * BLOCK + at, old)


def gate_cases():
    x = torch.zeros(1 << 14)
    yield "fp32", lambda m: m.running[(4,)](x, x, x, BLOCK=256)
