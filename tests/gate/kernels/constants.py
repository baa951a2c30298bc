"""Two kernels and a helper, for `--set-from`, and a third kernel that no case reaches."""
import torch
import triton
import triton.language as tl


@triton.jit
def twice(x, TIMES: tl.constexpr):
    return x * TIMES


@triton.jit
def scale_kernel(x, y, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, KIND: tl.constexpr,
                 DTYPE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if EVEN:
        value = value * 2
    if KIND == "double":
        value = twice(value, 2)
    tl.store(y + at, (value * FACTOR).to(DTYPE), mask=at < n)


@triton.jit
def clear_kernel(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 0.0, mask=at < n)


@triton.jit
def unreached_kernel(y, SIZE: tl.constexpr):
    tl.store(y + tl.arange(0, SIZE), 0.0)


def scale(x, even):
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 64),)
    clear_kernel[grid](y, x.numel(), BLOCK=64)
    scale_kernel[grid](x, y, x.numel(), FACTOR=0.5, BLOCK=64, EVEN=even, KIND="double", DTYPE=tl.float32)
    return y


def gate_cases():
    for even in (False, True):
        yield f"even {even}", lambda module, even=even: module.scale(torch.zeros(100), even)
