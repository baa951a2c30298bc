"""Mamba-3 MIMO backward: the gradient of dA*dt that comes through the segment sums of a chunk.

The forward pass weighs the pair (i, j) of a chunk by exp(S[i, j]) with S[i, j] = sum of dA*dt over j+1..i.
Every dA*dt at position i therefore reaches all pairs (i', j) with j < i <= i'; its gradient is the sum over
them.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ported_kernels import arguments, runtime

CHUNK_SIZES = (8, 16, 32, 64, 128)
# Elements in a tile [G, C, J]. With 4096, every chunk size compiles with double buffering on for Ascend910B2
# and Ascend910_9382; with 8192, C = 128 in float32 overflows the Unified Buffer until it is switched off.
TILE = 4096


@triton.jit(do_not_specialize=["chunks"])
def bwd_segsum_dadt_kernel(
    dssda,       # [chunks, C, C]  element [j, i]
    ssda,        # [chunks, C, C]  element [i, j]
    ddt_out,     # [chunks, C]     added to
    chunks,
    C: tl.constexpr,
    J: tl.constexpr,     # columns j taken at a time; divides C
    G: tl.constexpr,     # chunks taken at a time
):
    g = tl.arange(0, G)[:, None, None]
    i = tl.arange(0, C)
    j = tl.arange(0, J)
    # A column j needs no other column, so a large chunk is cut into blocks of columns: each is scanned over
    # all of i at once and only a [G, C] sum is carried on. (Blocks of rows would carry a row vector into each
    # scan, which the compiler keeps broadcast in the Unified Buffer.)
    by_row = g * (C * C) + i[None, :, None] * C + j[None, None, :]      # [G, C, J] of element [i, j]
    by_column = g * (C * C) + j[None, :, None] * C + i[None, None, :]   # [G, J, C] of element [j, i]
    sums = tl.arange(0, G)[:, None] * C + i[None, :]                    # [G, C]

    for first in tl.range(tl.program_id(0) * G, chunks, tl.num_programs(0) * G):
        wide = tl.cast(first, tl.int64)         # first * C * C does not fit 32 bits on long sequences
        square = wide * (C * C)
        here = g < chunks - first
        total = tl.zeros([G, C], dtype=tl.float32)
        # A loop at run time: unrolled, C = 128 fills the Unified Buffer to the last bit.
        for column in tl.range(0, C, J):
            # Read D as it lies in memory and transpose in registers: a transposed read is element-wise DMA.
            d = tl.load(dssda + square + column * C + by_column, mask=here, other=0.0).to(tl.float32)
            s = tl.load(ssda + square + column + by_row, mask=here, other=0.0).to(tl.float32)
            lower = i[None, :, None] > (column + j)[None, None, :]
            # Masked before the scan: nothing on or above the diagonal enters it, inf and NaN included.
            p = tl.where(lower, tl.trans(d, (0, 2, 1)) * tl.exp(s), 0.0)
            r = tl.cumsum(p, axis=1, reverse=True)      # not the last axis: a vector operation on Ascend
            total += tl.sum(tl.where(lower, r, 0.0), axis=2)
        rows = ddt_out + wide * C + sums
        known = tl.arange(0, G)[:, None] < chunks - first
        before = tl.load(rows, mask=known, other=0.0).to(tl.float32)
        tl.store(rows, (before + total).to(ddt_out.dtype.element_ty), mask=known)


def bwd_segsum_dadt(dSSdA: torch.Tensor, SSdA: torch.Tensor, ddt_out: torch.Tensor,
                    chunk_size: int) -> torch.Tensor:
    """Adds the gradient through the segment sums to `ddt_out`, in place, and returns it.

    With D = dSSdA[b, h, n] and S = SSdA[b, h, n], in float32:

        ddt_out[b, h, n*C + i] += sum over i' >= i, j < i of D[j, i'] * exp(S[i', j])

    Args:
        dSSdA: gradient of the decay matrix, transposed; shape [B, H, N, C, C], float32, bfloat16 or float16.
        SSdA: segment sums; shape, dtype and device of dSSdA. Values at i <= j are never used.
        ddt_out: shape [B, H, N*C], float32 or the dtype of dSSdA. Changed in place.
        chunk_size: C, one of 8, 16, 32, 64, 128.

    Returns:
        `ddt_out` itself.

    Raises:
        ValueError: an argument does not fit; its name, what was expected and what came.
        runtime.DeviceUnavailable: the tensors' device cannot run kernels here.

    Any strides are accepted; tensors that are not contiguous are copied, `ddt_out` back again. The formula is
    derived in docs/operators/bwd_segsum_dadt.md.
    """
    arguments.tensor("dSSdA", dSSdA, "B H N C C")
    arguments.like("SSdA", SSdA, "B H N C C", "dSSdA", dSSdA)
    B, H, N, C, columns = dSSdA.shape
    if columns != C:
        raise arguments.reject("dSSdA", "square chunks [B, H, N, C, C]", tuple(dSSdA.shape))
    if chunk_size != C:
        raise arguments.reject("chunk_size", f"the chunk length of dSSdA, {C}", chunk_size)
    if C not in CHUNK_SIZES:
        raise arguments.reject("chunk_size", f"one of {', '.join(map(str, CHUNK_SIZES))}", chunk_size)
    arguments.tensor("ddt_out", ddt_out, "B H N*C", (torch.float32, dSSdA.dtype))
    if ddt_out.shape != (B, H, N * C):
        raise arguments.reject("ddt_out", f"shape [B, H, N*C] = {(B, H, N * C)}", tuple(ddt_out.shape))
    arguments.on_device_of("ddt_out", ddt_out, "dSSdA", dSSdA)
    arguments.writable("ddt_out", ddt_out)

    chunks = B * H * N
    J = min(C, TILE // C)
    dssda, ssda, sums = dSSdA.contiguous(), SSdA.contiguous(), ddt_out.contiguous()
    with runtime.on(dSSdA.device):
        programs = runtime.vector_programs(dSSdA.device, chunks)
        # Several small chunks make one long vector, but not at the price of idle cores.
        G = min(TILE // (C * J), triton.next_power_of_2(triton.cdiv(chunks, programs)))
        programs = min(programs, triton.cdiv(chunks, G))
        bwd_segsum_dadt_kernel[(programs,)](dssda, ssda, sums, chunks, C=C, J=J, G=G)
    return ddt_out if sums is ddt_out else ddt_out.copy_(sums)
