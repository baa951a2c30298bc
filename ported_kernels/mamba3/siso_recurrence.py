"""Mamba-3 with one input and one output (SISO), token by token, in plain torch: the formula behind the contracts
of mamba3_siso_bwd.py and mamba3_siso_fwd.py. Sequential and slow, nothing chunked, differentiable.

With decay a_t = exp(adt_t) and lambda_t = sigmoid(trap_t), the trapezoidal rule reads

    S_t   = a_t S_{t-1} + dt_t lambda_t v_t k_t^T + a_t dt_t (1 - lambda_t) v_{t-1} k_{t-1}^T
    out_t = S_t q_t + D v_t

where q and k have had their biases added and are rotated by the token's angles. A state holds each token's k with
both of its weights, which is what the kernels compute:

    gamma_t = dt_t lambda_t,   scale_t = gamma_t + dt_{t+1} (1 - lambda_{t+1})     (the second 0 at the end)
    out_t   = a_t H_{t-1} q_t + (D + gamma_t q_t . k_t) v_t,   H_t = a_t H_{t-1} + scale_t v_t k_t^T
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from ported_kernels.catalog import Inputs, axes_swapped, with_gaps

LOG2E = math.log2(math.e)


def per_head(values: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, T, G, K] -> [B, T, H, K]: H/G value heads share a query and key head."""
    return values.repeat_interleave(heads // values.shape[2], dim=2)


def rotate(values: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turns the pairs (0, 1), (2, 3), ... of the last axis [..., K] by angles [..., A], A <= K/2; the rest stays."""
    count = angles.shape[-1]
    even, odd = values[..., 0:2 * count:2], values[..., 1:2 * count:2]
    turned = torch.stack((even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()), -1)
    return torch.cat((turned.flatten(-2), values[..., 2 * count:]), -1)


def weights(dt: torch.Tensor, trap: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """dt, trap [..., T] of one sequence -> (scale, gamma)."""
    mix = torch.sigmoid(trap)
    late = dt * (1 - mix)
    gamma = dt * mix
    return gamma + torch.cat((late[..., 1:], torch.zeros_like(late[..., :1])), -1), gamma


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, adt: torch.Tensor, own: torch.Tensor,
        state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One sequence: q and k [B, T, H, K] ready for use (k scaled), v [B, T, H, V], adt [B, H, T], own [B, H, T] the
    weight of a token's own value, state [B, H, V, K]. Returns out [B, T, H, V] and the state before each token and
    after the last."""
    states, outputs = [state], []
    for t in range(q.shape[1]):
        state = adt[:, :, t].exp()[..., None, None] * state
        outputs.append((state * q[:, t, :, None]).sum(-1) + own[:, :, t, None] * v[:, t])
        state = state + v[:, t, :, :, None] * k[:, t, :, None]
        states.append(state)
    return torch.stack(outputs, 1), states


def spans(length: int, ends: torch.Tensor | None) -> list[tuple[int, int]]:
    """(first token, end) of each packed sequence; of the only one, when nothing is packed."""
    places = [0, length] if ends is None else ends.tolist()
    return list(pairwise(places))


def chunks(length: int, ends: torch.Tensor | None, size: int) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """For each sequence: its number, and (slot, first token, end) of its chunks. A packed sequence's first chunk has
    the slot that follows from the number of sequences and whole chunks before it; slots between stay unused."""
    for number, (start, end) in enumerate(spans(length, ends)):
        first = 0 if ends is None else number + start // size
        yield number, [(first + i, at, min(at + size, end)) for i, at in enumerate(range(start, end, size))]


def slots(length: int, ends: torch.Tensor | None, size: int) -> int:
    return -(-length // size) if ends is None else ends.numel() - 1 + length // size


def respread(inputs: Inputs, names: tuple[str, ...] = ()) -> None:
    """Lays the named inputs (all, without names) out with gaps or swapped axes, in turn; values stay."""
    for turn, name in enumerate(names or tuple(inputs)):
        value = inputs[name]
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            swap = turn % 2 and value.dim() > 2
            inputs[name] = axes_swapped(value, 1, 2) if swap else with_gaps(value)
