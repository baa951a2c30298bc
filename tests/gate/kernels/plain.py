"""Kernels whose cost is known from their text."""
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


@triton.jit
def stream(x, y, blocks, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        tl.store(y + block * BLOCK + at, tl.exp(tl.load(x + block * BLOCK + at)))


@triton.jit
def matmul(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    square = i[:, None] * N + i[None, :]
    tl.store(c + square, tl.dot(tl.load(a + square), tl.load(b + square)) + 1.0)


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (1024, 65536)], key=["n"])
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    tl.store(y + at, tl.load(x + at, mask=keep) + tl.load(y + at, mask=keep), mask=keep)


@triton.jit
def double(x):
    return x * 2


@triton.jit
def unreached(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, double(tl.load(x + at)))


def gate_cases():
    x = torch.zeros(1 << 17)
    yield "copy", lambda m: m.copy[(4,)](x, x.clone(), 1024)
    yield "stream", lambda m: m.stream[(4,)](x, x.clone(), 20, 2048, multibuffer=True)
    yield "matmul", lambda m: m.matmul[(1,)](x, x.clone(), x.clone(), 64)
    yield "tuned", lambda m: m.tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.clone(), x.numel())
