# --- ported by migrate: do not edit; change the rules, then run `migrate port` again ---
# upstream: not a pinned release
# path: state_transition.py
# sha256: 5e20deed202cadbf21221684adbcb9e1e32bdbfdd8380415620f215e8af12ea4
# licence: see the file
# tool: migrate 0.1.0, 27 rules ebcf244e9a8b, triton-ascend 3.2.0, Ascend910B2, --set K=128 --split K
# body: eccde56364caeaca583f5cc6f9dd7a6a2e2cd2f977d04b3d924a9294a24cae85
# --- end of the header of migrate ---
"""Kimi Delta Attention: the matrix that a part of the sequence multiplies the incoming state by."""
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ported_kernels import runtime
from ported_kernels.kda import check


@triton.jit(do_not_specialize=["T", "head_offset"])
def kda_state_transition_kernel(
    gate, key,                      # [B, T, H_TOTAL, K]
    w,                              # [B, T, H_TOTAL, K]; [B, H_TOTAL, T, K] where W_HEAD_FIRST
    M,                              # [B, H, K, K], written
    T,
    head_offset,
    H: tl.constexpr,
    H_TOTAL: tl.constexpr,
    K: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,               # columns that a program takes
    W_HEAD_FIRST: tl.constexpr,
):
    tl.static_assert(K == 128)
    i_h, i_b = tl.program_id(1), tl.program_id(2)
    head = head_offset + i_h
    state = tl.cast(i_b * H + i_h, tl.int64) * K
    first_token = tl.cast(i_b, tl.int64) * T
    o_t = tl.arange(0, BT)
    o_k1 = tl.arange(0, 64)
    o_k2 = 64 + tl.arange(0, 64)
    o_c = tl.program_id(0) * BV + tl.arange(0, BV)
    p_m1 = M + state * K + o_k1[:, None] * K + o_c[None, :]
    p_m2 = M + state * K + o_k2[:, None] * K + o_c[None, :]
    b_m1 = tl.where(o_k1[:, None] == o_c[None, :], 1.0, 0.0)
    b_m2 = tl.where(o_k2[:, None] == o_c[None, :], 1.0, 0.0)
    tl.store(p_m1, b_m1)
    tl.store(p_m2, b_m2)

    for i_t in range(T // BT):
        start = i_t * BT
        token = (first_token + start) * H_TOTAL + head
        p_k1 = key + token * K + o_t[:, None] * (H_TOTAL * K) + o_k1[None, :]
        p_k2 = key + token * K + o_t[:, None] * (H_TOTAL * K) + o_k2[None, :]
        if W_HEAD_FIRST:
            w_token = first_token * H_TOTAL + tl.cast(head, tl.int64) * T + start
            p_w1 = w + w_token * K + o_t[:, None] * K + o_k1[None, :]
            p_w2 = w + w_token * K + o_t[:, None] * K + o_k2[None, :]
        else:
            p_w1 = w + token * K + o_t[:, None] * (H_TOTAL * K) + o_k1[None, :]
            p_w2 = w + token * K + o_t[:, None] * (H_TOTAL * K) + o_k2[None, :]
        b_k1 = tl.load(p_k1).to(tl.float32)
        b_k2 = tl.load(p_k2).to(tl.float32)
        b_w1 = tl.load(p_w1).to(tl.float32)
        b_w2 = tl.load(p_w2).to(tl.float32)
        # the decay over the chunk stands in its last row
        b_g1 = tl.load(gate + (token + (BT - 1) * H_TOTAL) * K + o_k1).to(tl.float32)
        b_g2 = tl.load(gate + (token + (BT - 1) * H_TOTAL) * K + o_k2).to(tl.float32)
        b_a11 = tl.where(o_k1[:, None] == o_k1[None, :], tl.exp2(b_g1)[:, None], 0.0)
        b_a12 = tl.where(o_k1[:, None] == o_k2[None, :], tl.exp2(b_g1)[:, None], 0.0)
        b_a21 = tl.where(o_k2[:, None] == o_k1[None, :], tl.exp2(b_g2)[:, None], 0.0)
        b_a22 = tl.where(o_k2[:, None] == o_k2[None, :], tl.exp2(b_g2)[:, None], 0.0)
        b_a11 -= tl.dot(tl.trans(b_k1), b_w1, input_precision="ieee")
        b_a12 -= tl.dot(tl.trans(b_k1), b_w2, input_precision="ieee")
        b_a21 -= tl.dot(tl.trans(b_k2), b_w1, input_precision="ieee")
        b_a22 -= tl.dot(tl.trans(b_k2), b_w2, input_precision="ieee")
        tl.debug_barrier()
        b_m1 = tl.load(p_m1)
        b_m2 = tl.load(p_m2)
        b_m1, b_m2 = (
            tl.dot(b_a11, b_m1, input_precision="ieee") + tl.dot(b_a12, b_m2, input_precision="ieee"),
            tl.dot(b_a21, b_m1, input_precision="ieee") + tl.dot(b_a22, b_m2, input_precision="ieee"),
        )
        tl.debug_barrier()
        tl.store(p_m1, b_m1)
        tl.store(p_m2, b_m2)


def kda_state_transition(gate: torch.Tensor, key: torch.Tensor, w: torch.Tensor, *, chunk_size: int = 64,
                         heads: int | None = None, head_offset: int = 0, w_head_first: bool = False,
                         block_columns: int = 64) -> torch.Tensor:
    """The matrix M of S_out = S_ext + M @ S_in, composed from the matrix of each chunk.

    For each batch and head, from M = I, chunk by chunk, with the chunk's rows K_c, W_c of `key` and `w`, and g the
    last row of `gate` in it:

        M <- (diag(2^g) - K_c^T W_c) M

    Args:
        gate: cumulative log2 decay within each chunk; shape [B, T, H_TOTAL, K], float32 or the dtype of `key`. K is
            128, T a multiple of `chunk_size`.
        key: shape [B, T, H_TOTAL, K], float32 or bfloat16.
        w: dtype of `key`; shape [B, T, H_TOTAL, K] or, with `w_head_first`, [B, H_TOTAL, T, K].
        chunk_size: tokens in a chunk: 16, 32 or 64.
        heads: H, how many heads to process; all from `head_offset` on when None.
        head_offset: the first head to process.
        w_head_first: the layout of `w`.
        block_columns: columns of M that one program takes: 32 or 64.

    Returns:
        M, float32, of shape [B, H, K, K].

    Raises:
        ValueError: an argument does not fit; its name, what was expected and what came.
        runtime.DeviceUnavailable: the tensors' device cannot run kernels here.

    All products are of float32 operands. Tensors that are not contiguous are copied. `kda_split_state_summary` gives
    the same M without the K x K matrices of the chunks; this form is the more exact one for bfloat16 inputs.
    Formula: as there.
    """
    check.tiles(chunk_size, block_columns)
    check.part(gate, key, w, w_head_first)
    check.whole_chunks(key, chunk_size)
    B, T, H_TOTAL, K = key.shape
    H = check.heads(heads, head_offset, key)
    blocks = check.programs(K, B, H, block_columns)

    gate, key, w = gate.contiguous(), key.contiguous(), w.contiguous()
    M = torch.empty((B, H, K, K), dtype=torch.float32, device=key.device)
    with runtime.on(key.device):
        kda_state_transition_kernel[(blocks, H, B)](
            gate, key, w, M, T, head_offset, H=H, H_TOTAL=H_TOTAL, K=K, BT=chunk_size, BV=block_columns,
            W_HEAD_FIRST=w_head_first, **runtime.launch_options(M.device, multibuffer=False))
    return M
