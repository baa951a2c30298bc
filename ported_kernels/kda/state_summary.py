# --- ported by migrate: do not edit; change the rules, then run `migrate port` again ---
# upstream: not a pinned release
# path: state_summary.py
# sha256: 26bae05de5e7156c5093b202dd21fd9175cf7828db5ce53f86744fbc0c9c7bb0
# licence: see the file
# tool: migrate 0.1.0, 27 rules ebcf244e9a8b, triton-ascend 3.2.0, Ascend910B2, --set K=128 --split K
# body: 8b57293f3e001f37a3ddf7deb0678e9d39a245388f82f14c032aab3934c727ec
# --- end of the header of migrate ---
"""Kimi Delta Attention: a part of the sequence as an affine map of the state that comes in.

A chunk takes the state S [K, V] to diag(2^g) S + K_c^T (U_c - W_c S). A whole part therefore takes it to
S_ext + M S, and parts that lie on different devices are put together by one product each.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ported_kernels import runtime
from ported_kernels.kda import check


@triton.jit(do_not_specialize=["T", "head_offset"])
def kda_split_state_summary_kernel(
    gate, key,                      # [B, T, H_TOTAL, K]
    w,                              # [B, T, H_TOTAL, K]; [B, H_TOTAL, T, K] where W_HEAD_FIRST
    u,                              # [B, T, H_TOTAL, V]; None unless STATE
    S_ext,                          # [B, H, K, V], written; None unless STATE
    M,                              # [B, H, K, K], written; None unless TRANSFER
    T,
    head_offset,
    H: tl.constexpr,
    H_TOTAL: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,                # 0 unless STATE
    BT: tl.constexpr,
    BV: tl.constexpr,               # columns that a program takes
    W_HEAD_FIRST: tl.constexpr,
    STATE: tl.constexpr,
    TRANSFER: tl.constexpr,
    FLOAT32: tl.constexpr,          # products of float32 operands, whatever the inputs are
):
    tl.static_assert(K == 128)
    i_h, i_b = tl.program_id(1), tl.program_id(2)
    head = head_offset + i_h
    state = tl.cast(i_b * H + i_h, tl.int64) * K
    first_token = tl.cast(i_b, tl.int64) * T
    o_t = tl.arange(0, BT)
    o_k1 = tl.arange(0, 64)
    o_k2 = 64 + tl.arange(0, 64)
    # M is a state as well: it starts as the identity, and no u reaches it. Its columns follow those of S_ext.
    first = tl.program_id(0) * BV
    o_c = first + tl.arange(0, BV)
    b_s1 = tl.where(V + o_k1[:, None] == o_c[None, :], 1.0, 0.0)
    b_s2 = tl.where(V + o_k2[:, None] == o_c[None, :], 1.0, 0.0)

    for i_t in range(tl.cdiv(T, BT)):
        start = i_t * BT
        m_t = o_t < T - start
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
        b_k1 = tl.load(p_k1, mask=m_t[:, None], other=0.0)
        b_k2 = tl.load(p_k2, mask=m_t[:, None], other=0.0)
        b_w1 = tl.load(p_w1, mask=m_t[:, None], other=0.0)
        b_w2 = tl.load(p_w2, mask=m_t[:, None], other=0.0)
        if FLOAT32:
            b_k1 = b_k1.to(tl.float32)
            b_k2 = b_k2.to(tl.float32)
            b_w1 = b_w1.to(tl.float32)
            b_w2 = b_w2.to(tl.float32)
        b_v = tl.dot(b_w1, b_s1.to(b_w1.dtype), input_precision="ieee")
        b_v += tl.dot(b_w2, b_s2.to(b_w2.dtype), input_precision="ieee")
        if STATE:
            p_u = u + token * V + o_t[:, None] * (H_TOTAL * V) + o_c[None, :]
            b_v = tl.load(p_u, mask=m_t[:, None] & (o_c < V)[None, :], other=0.0) - b_v
        else:
            b_v = -b_v
        # the decay over the chunk stands in its last row
        last = tl.minimum(T - start, BT) - 1
        b_g1 = tl.load(gate + (token + last * H_TOTAL) * K + o_k1).to(tl.float32)
        b_g2 = tl.load(gate + (token + last * H_TOTAL) * K + o_k2).to(tl.float32)
        b_s1 = b_s1 * tl.exp2(b_g1)[:, None]
        b_s2 = b_s2 * tl.exp2(b_g2)[:, None]
        b_s1 += tl.dot(tl.trans(b_k1), b_v.to(b_k1.dtype), input_precision="ieee")
        b_s2 += tl.dot(tl.trans(b_k2), b_v.to(b_k2.dtype), input_precision="ieee")

    # a constant and a value on the device do not go into one condition on Ascend
    if STATE:                       # noqa: SIM102
        if first < V:
            tl.store(S_ext + state * V + o_k1[:, None] * V + o_c[None, :], b_s1)
            tl.store(S_ext + state * V + o_k2[:, None] * V + o_c[None, :], b_s2)
    if TRANSFER:                    # noqa: SIM102
        if first >= V:
            tl.store(M + state * K + o_k1[:, None] * K + (o_c - V)[None, :], b_s1)
            tl.store(M + state * K + o_k2[:, None] * K + (o_c - V)[None, :], b_s2)


def kda_split_state_summary(gate: torch.Tensor, key: torch.Tensor, w: torch.Tensor, u: torch.Tensor | None = None, *,
                            chunk_size: int = 64, heads: int | None = None, head_offset: int = 0,
                            w_head_first: bool = False, mode: str = "both", block_columns: int = 64,
                            ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What a part of the sequence makes of the state that comes in: S_out = S_ext + M @ S_in.

    For each batch and head, from S = 0 and M = I, chunk by chunk, with the chunk's rows K_c, W_c, U_c of `key`, `w`
    and `u`, and g the last row of `gate` in it:

        S <- diag(2^g) S + K_c^T (U_c - W_c S)
        M <- diag(2^g) M - K_c^T (W_c M)

    Args:
        gate: cumulative log2 decay within each chunk; shape [B, T, H_TOTAL, K], float32 or the dtype of `key`. K is
            128, T any length.
        key: shape [B, T, H_TOTAL, K], float32 or bfloat16.
        w: dtype of `key`; shape [B, T, H_TOTAL, K] or, with `w_head_first`, [B, H_TOTAL, T, K].
        u: dtype of `key`; shape [B, T, H_TOTAL, V], V a multiple of `block_columns`. Not used where `mode` is
            "transfer".
        chunk_size: tokens in a chunk: 16, 32 or 64. The last chunk may be shorter.
        heads: H, how many heads to process; all from `head_offset` on when None.
        head_offset: the first head to process.
        w_head_first: the layout of `w`.
        mode: "both" outputs; "state", S_ext alone, with every product of float32 operands; "transfer", M alone.
        block_columns: columns of S_ext or M that one program takes: 32 or 64.

    Returns:
        (S_ext, M), float32, of shapes [B, H, K, V] and [B, H, K, K]; None for what `mode` leaves out.

    Raises:
        ValueError: an argument does not fit; its name, what was expected and what came.
        runtime.DeviceUnavailable: the tensors' device cannot run kernels here.

    The state is float32 throughout. In the modes "both" and "transfer" it is rounded to the dtype of `key` as an
    operand of the two products of a chunk, as upstream does. Tensors that are not contiguous are copied.
    Formula: Kimi Delta Attention's chunk recurrence in its WY form; upstream's is pre_process_fwd_kernel_merged in
    fla/ops/cp/chunk_delta_h.py of fla-core 0.5.2.
    """
    check.mode(mode)
    check.tiles(chunk_size, block_columns)
    check.part(gate, key, w, w_head_first)
    B, T, H_TOTAL, K = key.shape
    H = check.heads(heads, head_offset, key)
    state, transfer = mode != "transfer", mode != "state"
    V = check.value("u", u, key, block_columns) if state else 0
    blocks = check.programs(V + K if transfer else V, B, H, block_columns)

    gate, key, w = gate.contiguous(), key.contiguous(), w.contiguous()
    u = None if u is None or not state else u.contiguous()
    S_ext = torch.empty((B, H, K, V), dtype=torch.float32, device=key.device) if state else None
    M = torch.empty((B, H, K, K), dtype=torch.float32, device=key.device) if transfer else None
    with runtime.on(key.device):
        kda_split_state_summary_kernel[(blocks, H, B)](
            gate, key, w, u, S_ext, M, T, head_offset, H=H, H_TOTAL=H_TOTAL, K=K, V=V, BT=chunk_size,
            BV=block_columns, W_HEAD_FIRST=w_head_first, STATE=state, TRANSFER=transfer, FLOAT32=mode == "state")
    return S_ext, M
