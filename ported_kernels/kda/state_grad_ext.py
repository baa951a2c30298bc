# --- ported by migrate: do not edit; change the rules, then run `migrate port` again ---
# upstream: not a pinned release
# path: state_grad_ext.py
# sha256: e9406cd7fcb2597d09cc1df2395f09886a25b217df8c735842f48e9ab2953d18
# licence: see the file
# tool: migrate 0.1.0, 27 rules ebcf244e9a8b, triton-ascend 3.2.0, Ascend910B2, --set K=128 --split K
# body: caed0821ca9554b966d94860b9480e2969122c6150b416c9bee5d97761178d66
# --- end of the header of migrate ---
"""Kimi Delta Attention, backward: the gradient that a part of the sequence sends to the state that came in."""
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ported_kernels import arguments, runtime
from ported_kernels.kda import check


@triton.jit(do_not_specialize=["T", "head_offset"])
def kda_state_grad_ext_kernel(
    query, key,                     # [B, T, H_TOTAL, K]
    w,                              # [B, T, H_TOTAL, K]; [B, H_TOTAL, T, K] where W_HEAD_FIRST
    gate,                           # [B, T, H_TOTAL, K]
    grad_output, grad_value,        # [B, T, H_TOTAL, V]
    dS_ext,                         # [B, H, K, V], written
    scale,
    T,
    head_offset,
    H: tl.constexpr,
    H_TOTAL: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
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
    o_v = tl.program_id(0) * BV + tl.arange(0, BV)
    b_d1 = tl.zeros([64, BV], dtype=tl.float32)
    b_d2 = tl.zeros([64, BV], dtype=tl.float32)

    chunks = tl.cdiv(T, BT)
    for i in range(chunks):
        start = (chunks - 1 - i) * BT
        m_t = o_t < T - start
        token = (first_token + start) * H_TOTAL + head
        p_q1 = query + token * K + o_t[:, None] * (H_TOTAL * K) + o_k1[None, :]
        p_q2 = query + token * K + o_t[:, None] * (H_TOTAL * K) + o_k2[None, :]
        p_k1 = key + token * K + o_t[:, None] * (H_TOTAL * K) + o_k1[None, :]
        p_k2 = key + token * K + o_t[:, None] * (H_TOTAL * K) + o_k2[None, :]
        if W_HEAD_FIRST:
            w_token = first_token * H_TOTAL + tl.cast(head, tl.int64) * T + start
            p_w1 = w + w_token * K + o_t[:, None] * K + o_k1[None, :]
            p_w2 = w + w_token * K + o_t[:, None] * K + o_k2[None, :]
        else:
            p_w1 = w + token * K + o_t[:, None] * (H_TOTAL * K) + o_k1[None, :]
            p_w2 = w + token * K + o_t[:, None] * (H_TOTAL * K) + o_k2[None, :]
        p_do = grad_output + token * V + o_t[:, None] * (H_TOTAL * V) + o_v[None, :]
        p_dv = grad_value + token * V + o_t[:, None] * (H_TOTAL * V) + o_v[None, :]
        b_q1 = tl.load(p_q1, mask=m_t[:, None], other=0.0)
        b_q2 = tl.load(p_q2, mask=m_t[:, None], other=0.0)
        b_k1 = tl.load(p_k1, mask=m_t[:, None], other=0.0)
        b_k2 = tl.load(p_k2, mask=m_t[:, None], other=0.0)
        b_w1 = tl.load(p_w1, mask=m_t[:, None], other=0.0)
        b_w2 = tl.load(p_w2, mask=m_t[:, None], other=0.0)
        b_do = tl.load(p_do, mask=m_t[:, None], other=0.0).to(tl.float32) * scale
        b_dv = tl.load(p_dv, mask=m_t[:, None], other=0.0)
        b_dv += tl.dot(b_k1, b_d1.to(b_k1.dtype), input_precision="ieee")
        b_dv += tl.dot(b_k2, b_d2.to(b_k2.dtype), input_precision="ieee")
        # the decay over the chunk stands in its last row
        last = tl.minimum(T - start, BT) - 1
        b_g1 = tl.load(gate + (token + last * H_TOTAL) * K + o_k1).to(tl.float32)
        b_g2 = tl.load(gate + (token + last * H_TOTAL) * K + o_k2).to(tl.float32)
        b_d1 = b_d1 * tl.exp2(b_g1)[:, None]
        b_d2 = b_d2 * tl.exp2(b_g2)[:, None]
        b_d1 += tl.dot(tl.trans(b_q1), b_do.to(b_q1.dtype), input_precision="ieee")
        b_d2 += tl.dot(tl.trans(b_q2), b_do.to(b_q2.dtype), input_precision="ieee")
        b_d1 -= tl.dot(tl.trans(b_w1), b_dv.to(b_w1.dtype), input_precision="ieee")
        b_d2 -= tl.dot(tl.trans(b_w2), b_dv.to(b_w2.dtype), input_precision="ieee")

    tl.store(dS_ext + state * V + o_k1[:, None] * V + o_v[None, :], b_d1)
    tl.store(dS_ext + state * V + o_k2[:, None] * V + o_v[None, :], b_d2)


def kda_state_grad_ext(query: torch.Tensor, key: torch.Tensor, w: torch.Tensor, gate: torch.Tensor,
                       grad_output: torch.Tensor, grad_value: torch.Tensor, scale: float, *, chunk_size: int = 64,
                       heads: int | None = None, head_offset: int = 0, w_head_first: bool = False,
                       block_columns: int = 64) -> torch.Tensor:
    """The part of the gradient of S_in that does not come from the gradient of S_out.

    For each batch and head, from D = 0, over the chunks in reverse order, with the chunk's rows Q_c, K_c, W_c, dO_c,
    dV_c of `query`, `key`, `w`, `grad_output` and `grad_value`, and g the last row of `gate` in it:

        G <- K_c D + dV_c
        D <- diag(2^g) D + Q_c^T (scale * dO_c) - W_c^T G

    Args:
        query: shape [B, T, H_TOTAL, K], dtype of `key`. K is 128, T any length.
        key: shape [B, T, H_TOTAL, K], float32 or bfloat16.
        w: dtype of `key`; shape [B, T, H_TOTAL, K] or, with `w_head_first`, [B, H_TOTAL, T, K].
        gate: cumulative log2 decay within each chunk; shape [B, T, H_TOTAL, K], float32 or the dtype of `key`.
        grad_output: gradient of the output; dtype of `key`, shape [B, T, H_TOTAL, V], V a multiple of
            `block_columns`.
        grad_value: gradient of the chunk's new values that does not pass through the state; as `grad_output`.
        scale: of the attention; multiplied into `grad_output` in float32, before the product's operand is rounded to
            the dtype of `key`.
        chunk_size: tokens in a chunk: 16, 32 or 64. The last chunk may be shorter.
        heads: H, how many heads to process; all from `head_offset` on when None.
        head_offset: the first head to process.
        w_head_first: the layout of `w`.
        block_columns: columns of dS_ext that one program takes: 32 or 64.

    Returns:
        dS_ext, float32, of shape [B, H, K, V].

    Raises:
        ValueError: an argument does not fit; its name, what was expected and what came.
        runtime.DeviceUnavailable: the tensors' device cannot run kernels here.

    D is float32 throughout, and rounded to the dtype of `key` as an operand, as upstream does. Tensors that are not
    contiguous are copied. Formula: the transpose of the forward recurrence of `kda_split_state_summary`; upstream's
    is pre_process_bwd_kernel_merged in fla/ops/cp/chunk_delta_h.py of fla-core 0.5.2.
    """
    check.tiles(chunk_size, block_columns)
    check.part(gate, key, w, w_head_first)
    arguments.like("query", query, "B T H_TOTAL K", "key", key)
    B, T, H_TOTAL, K = key.shape
    H = check.heads(heads, head_offset, key)
    V = check.value("grad_output", grad_output, key, block_columns)
    arguments.like("grad_value", grad_value, "B T H_TOTAL V", "grad_output", grad_output)
    check.number("scale", scale)
    blocks = check.programs(V, B, H, block_columns)

    query, key, w, gate = query.contiguous(), key.contiguous(), w.contiguous(), gate.contiguous()
    grad_output, grad_value = grad_output.contiguous(), grad_value.contiguous()
    dS_ext = torch.empty((B, H, K, V), dtype=torch.float32, device=key.device)
    with runtime.on(key.device):
        kda_state_grad_ext_kernel[(blocks, H, B)](
            query, key, w, gate, grad_output, grad_value, dS_ext, scale, T, head_offset, H=H, H_TOTAL=H_TOTAL, K=K,
            V=V, BT=chunk_size, BV=block_columns, W_HEAD_FIRST=w_head_first,
            **runtime.launch_options(key.device, num_stages=1))     # tiles loaded ahead are too much for a GPU
    return dS_ext
