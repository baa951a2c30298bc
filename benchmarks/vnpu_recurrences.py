"""What the chains of vnpu_chains.py compute, token by token, in plain torch. Differentiable; give float64 tensors.

B batch, T tokens, H heads, G groups of heads, K and V values of a key and of a value, P values of a head, N state size.
"""
from __future__ import annotations

import torch
from torch.nn.functional import silu, softplus

Tensor = torch.Tensor


def ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor,
        dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba-2's state space model (Dao and Gu, 2024): with d = softplus(dt + dt_bias),

        S <- exp(d A) S + d x B^T;  out = (S C + D x) silu(z)

    x, z [B, T, H, P], dt [B, T, H], A, D, dt_bias [H], B, C [B, T, G, N]. Returns out and the last S [B, H, P, N].
    """
    steps, heads = softplus(dt + dt_bias), x.shape[2]
    B, C = (values.repeat_interleave(heads // values.shape[2], 2) for values in (B, C))
    state, found = x.new_zeros(*x.shape[:1], *x.shape[2:], B.shape[-1]), []
    for t in range(x.shape[1]):
        d = steps[:, t, :, None, None]
        state = torch.exp(d * A[:, None, None]) * state + d * x[:, t, :, :, None] * B[:, t, :, None, :]
        found.append((state * C[:, t, :, None, :]).sum(-1))
    return (torch.stack(found, 1) + D[:, None] * x) * silu(z), state


def l2norm(x: Tensor) -> Tensor:
    """x / sqrt(sum of squares + 1e-6), over the last axis."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def local_cumsum(g: Tensor, chunk_size: int) -> Tensor:
    """Sums along axis 1 that begin anew with each chunk."""
    return torch.cat([chunk.cumsum(1) for chunk in g.split(chunk_size, 1)], 1)


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Linear attention with one decay a head: S <- exp(g) S + k v^T; o = S^T q / sqrt(K).

    q, k [B, T, H, K], v [B, T, H, V], g [B, T, H]. Returns o [B, T, H, V] and the last S [B, H, K, V].
    """
    return _delta(q, k, v, g, None)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`simple_gla` that forgets nothing: S <- S + k v^T, from an initial state [B, H, K, V] or zeros."""
    return _delta(q, k, v, q.new_zeros(q.shape[:3]), None, initial_state)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """`gated_delta_rule` that forgets nothing."""
    return _delta(q, k, v, q.new_zeros(q.shape[:3]), beta)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The gated delta rule (Yang, Kautz and Hatamizadeh, 2024): S <- exp(g) S; S <- S + beta k (v - S^T k)^T;
    o = S^T q / sqrt(K). As `simple_gla`; beta [B, T, H]."""
    return _delta(q, k, v, g, beta)


def _delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None,
           state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    if state is None:
        state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    found = []
    for t in range(q.shape[1]):
        state = torch.exp(g[:, t, :, None, None]) * state
        value = v[:, t]
        if beta is not None:
            value = beta[:, t, :, None] * (value - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * value[:, :, None, :]
        found.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[3]**-0.5)
    return torch.stack(found, 1), state
