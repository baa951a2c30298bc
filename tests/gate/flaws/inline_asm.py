"""PTX in the kernel."""
import torch
import triton
import triton.language as tl


@triton.jit
def fast_tanh(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tile = tl.load(x + at)
    tile = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [tile], tl.float32, True, 1)  # flaw
    tl.store(y + at, tile)


def gate_cases():
    x = torch.zeros(4096)
    yield "fp32", lambda m: m.fast_tanh[(1,)](x, x, BLOCK=256)
