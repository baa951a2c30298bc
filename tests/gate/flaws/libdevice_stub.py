"""A function of triton's generic libdevice, which has no body here."""
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def power(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, libdevice.tanh(tl.load(x + at)) + 1.0)  # flaw


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.power[(1,)](x, x, BLOCK=256)
