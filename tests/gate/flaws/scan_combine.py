"""A linear recurrence as an associative scan."""
import torch
import triton
import triton.language as tl


@triton.jit
def step(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def recurrence(a, b, y, T: tl.constexpr):
    t = tl.arange(0, T)
    decay = tl.load(a + t)
    value = tl.load(b + t)
    decay, value = tl.associative_scan((decay, value), 0, step)  # flaw
    tl.store(y + t, value)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.recurrence[(1,)](x, x, x, T=256)
