"""Kernels and cases that hang, crash or eat memory, between two that are fine."""
import os
import signal

import torch
import triton
import triton.language as tl


@triton.jit
def first(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 1)


@triton.jit
def last(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 2)


@triton.jit
def never_compiles(k, m, chunks, K: tl.constexpr):
    """Sends the compiler into a loop without end, unless multi-buffering is off; see facts.py."""
    i = tl.arange(0, K)
    square = i[:, None] * K + i[None, :]
    for c in range(chunks):
        key = tl.load(k + c * K * K + square)
        step = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.dot(tl.trans(key), key)
        tl.store(m + square, tl.dot(step, tl.load(m + square)))


@triton.jit
def crashes_the_compiler(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(tl.float64) * 2)


# Each calls the one before it eight times: inlined, the last is 8^9 = 134 million operations, tens of GiB.
@triton.jit
def grow1(x):
    return x + x * 1.5 + x * 2.5 + x * 3.5


@triton.jit
def grow2(x):
    return grow1(grow1(grow1(grow1(grow1(grow1(grow1(grow1(x))))))))


@triton.jit
def grow3(x):
    return grow2(grow2(grow2(grow2(grow2(grow2(grow2(grow2(x))))))))


@triton.jit
def grow4(x):
    return grow3(grow3(grow3(grow3(grow3(grow3(grow3(grow3(x))))))))


@triton.jit
def grow5(x):
    return grow4(grow4(grow4(grow4(grow4(grow4(grow4(grow4(x))))))))


@triton.jit
def grow6(x):
    return grow5(grow5(grow5(grow5(grow5(grow5(grow5(grow5(x))))))))


@triton.jit
def grow7(x):
    return grow6(grow6(grow6(grow6(grow6(grow6(grow6(grow6(x))))))))


@triton.jit
def grow8(x):
    return grow7(grow7(grow7(grow7(grow7(grow7(grow7(grow7(x))))))))


@triton.jit
def needs_all_the_memory(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, grow8(grow8(grow8(grow8(grow8(grow8(grow8(grow8(tl.load(x + at))))))))))


def wait_forever(module):
    while True:
        pass


def gate_cases():
    x = torch.zeros(4096)
    yield "first", lambda m: m.first[(1,)](x, 1024)
    yield "hangs before launching", wait_forever
    yield "dies before launching", lambda m: os.kill(os.getpid(), signal.SIGSEGV)
    yield "never compiles", lambda m: m.never_compiles[(1,)](x, x, 4, 64)
    yield "crashes the compiler", lambda m: m.crashes_the_compiler[(1,)](x, x, 1024)
    yield "needs all the memory", lambda m: m.needs_all_the_memory[(1,)](x, 64)
    yield "last", lambda m: m.last[(1,)](x, 1024)
