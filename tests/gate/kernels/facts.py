"""Kernels whose fate on Ascend910B2 was measured before the gate existed; tests/gate/test_facts.py holds it to them."""
import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    tl.store(z + at, tl.load(x + at, mask=keep) + tl.load(y + at, mask=keep), mask=keep)


@triton.jit
def segsum_strided(d, s, out, d_chunk, d_row, d_column, s_chunk, s_row, s_column, out_step, C: tl.constexpr):
    """Run-time strides, and the first operand read transposed."""
    chunk = tl.program_id(0)
    i = tl.arange(0, C)
    left = tl.load(d + chunk * d_chunk + i[:, None] * d_column + i[None, :] * d_row)
    right = tl.load(s + chunk * s_chunk + i[:, None] * s_row + i[None, :] * s_column)
    lower = i[:, None] > i[None, :]
    sums = tl.cumsum(left * tl.exp(tl.where(lower, right, 0.0)), axis=0, reverse=True)
    at = out + (chunk * C + i) * out_step
    tl.store(at, tl.load(at) + tl.sum(tl.where(lower, sums, 0.0), axis=1))


@triton.jit
def segsum_contiguous(d, s, out, C: tl.constexpr):
    """The same of contiguous chunks, transposed after the load."""
    chunk = tl.program_id(0)
    i = tl.arange(0, C)
    square = chunk * C * C + i[:, None] * C + i[None, :]
    left = tl.trans(tl.load(d + square))
    lower = i[:, None] > i[None, :]
    sums = tl.cumsum(left * tl.exp(tl.where(lower, tl.load(s + square), 0.0)), axis=0, reverse=True)
    at = out + chunk * C + i
    tl.store(at, tl.load(at) + tl.sum(tl.where(lower, sums, 0.0), axis=1))


@triton.jit
def transition(k, w, g, m, chunks, K: tl.constexpr, BT: tl.constexpr):
    """M <- (diag(2^g) - K_c^T W_c) M, with M in global memory: the default options never finish compiling it."""
    i, t = tl.arange(0, K), tl.arange(0, BT)
    square = i[:, None] * K + i[None, :]
    for c in range(chunks):
        key = tl.load(k + (c * BT + t)[:, None] * K + i[None, :])
        weight = tl.load(w + (c * BT + t)[:, None] * K + i[None, :])
        decay = tl.exp2(tl.load(g + c * K + i))
        step = tl.where(i[:, None] == i[None, :], decay[:, None], 0.0) - tl.dot(tl.trans(key), weight)
        tl.store(m + square, tl.dot(step, tl.load(m + square)))


def gate_cases():
    x = torch.zeros(1 << 17)
    for block in (1024, 65536):
        yield f"add {block}", lambda m, block=block: m.add[(x.numel() // block,)](x, x, x, x.numel(), block)
    C = 64
    every_other = torch.zeros(4, 2 * C, 2 * C)[:, ::2, ::2]
    strides = (*every_other.stride(), *every_other.stride(), 1)
    yield "segsum strided", lambda m: m.segsum_strided[(4,)](every_other, every_other, x, *strides, C)
    yield "segsum contiguous", lambda m: m.segsum_contiguous[(4,)](x, x, x, C)
    yield "transition", lambda m: m.transition[(1,)](x, x, x, x, 4, K=128, BT=64)
