"""Mamba-3 SISO backward: through the gate silu(z) at the block's output, out = o * z * sigmoid(z)."""
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ported_kernels import arguments, runtime

# Elements a program takes at a time. With 4096 the compiler keeps double buffering on for every dtype; at
# 8192 it switches it off (float32), and at 16384 the Unified Buffer overflows.
BLOCK = 4096
SMALLEST_BLOCK = 256


@triton.jit(do_not_specialize=["elements"])
def mamba3_siso_bwd_dzdo_kernel(
    do, z, o,           # [elements] read
    dz, do_scaled,      # [elements] written
    elements,
    BLOCK: tl.constexpr,
):
    at = tl.arange(0, BLOCK)
    total = tl.cast(elements, tl.int64)
    blocks = tl.cast((total + BLOCK - 1) // BLOCK, tl.int32)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0)):
        base = tl.cast(block, tl.int64) * BLOCK     # wide; the offsets within a block stay 32 bits
        # The comparison is of 32-bit values: Ascend compares 64-bit vectors element by element.
        here = at < tl.cast(tl.minimum(total - base, BLOCK), tl.int32)
        grad = tl.load(do + base + at, mask=here, other=0.0).to(tl.float32)
        gate = tl.load(z + base + at, mask=here, other=0.0).to(tl.float32)
        out = tl.load(o + base + at, mask=here, other=0.0).to(tl.float32)
        s = 1.0 / (1.0 + tl.exp(-gate))
        by_s = grad * s
        tl.store(do_scaled + base + at, (by_s * gate).to(do_scaled.dtype.element_ty), mask=here)
        tl.store(dz + base + at, (by_s * out * (1.0 + gate * (1.0 - s))).to(dz.dtype.element_ty), mask=here)


def mamba3_siso_bwd_dzdo(do: torch.Tensor, z: torch.Tensor,
                         o: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of the gate, and the output gradient carried through it.

    With s = sigmoid(z), in float32:

        dz        = do * o * s * (1 + z * (1 - s))
        do_scaled = do * z * s

    Args:
        do: gradient of the gated output; shape [B, T, H, D], float32, bfloat16 or float16. Any T and D.
        z: the gate before its sigmoid; shape, dtype and device of `do`.
        o: the output before gating; shape, dtype and device of `do`.

    Returns:
        (dz, do_scaled), each contiguous, of the shape and dtype of `do`.

    Raises:
        ValueError: an argument does not fit; its name, what was expected and what came.
        runtime.DeviceUnavailable: the tensors' device cannot run kernels here.

    The formula is the derivative of o * silu(z), silu'(z) = s + z * s * (1 - s).
    Tensors that are not contiguous are copied first; the kernel sees one long vector.
    """
    arguments.tensor("do", do, "B T H D")
    arguments.like("z", z, "B T H D", "do", do)
    arguments.like("o", o, "B T H D", "do", do)

    do, z, o = do.contiguous(), z.contiguous(), o.contiguous()
    dz, do_scaled = torch.empty_like(do), torch.empty_like(do)
    elements = do.numel()
    with runtime.on(do.device):
        # Short inputs are spread over the cores; long ones use whole blocks.
        share = triton.cdiv(elements, runtime.vector_programs(do.device, elements))
        block = max(SMALLEST_BLOCK, min(BLOCK, triton.next_power_of_2(share)))
        programs = runtime.vector_programs(do.device, triton.cdiv(elements, block))
        mamba3_siso_bwd_dzdo_kernel[(programs,)](do, z, o, dz, do_scaled, elements, BLOCK=block)
    return dz, do_scaled
