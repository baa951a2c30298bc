"""Mamba-2's state-space duality, chunk by chunk, in plain float64 torch: the formula behind the contracts of this
folder. Everything is differentiable; a backward function's reference is autograd through it.

B batch, T tokens, H heads, G groups of heads, P values of a head, N state size, C chunk length, Z chunks. Tensors of
a chunk are [B, H, Z, C]; the last chunk is continued by zeros. `cs` is the cumulative sum of dt * A in a chunk.
"""
from __future__ import annotations

import torch

from ported_kernels.catalog import Inputs, Upstream, axes_swapped, seeded, with_gaps

RELEASE = "mamba-ssm==2.3.2.post1"


def upstream(module: str, function: str) -> Upstream:
    return Upstream(RELEASE, f"mamba_ssm/ops/triton/{module}.py", function)


def leaf(value: torch.Tensor) -> torch.Tensor:
    return value.detach().double().clone().requires_grad_()


def split(values: torch.Tensor, size: int, fill: float = 0) -> torch.Tensor:
    """[B, T, ...] -> [B, Z, C, ...], continued by `fill`."""
    count = -(-values.shape[1] // size)
    more = values.new_full((values.shape[0], count * size - values.shape[1], *values.shape[2:]), fill)
    return torch.cat((values, more), 1).unflatten(1, (count, size))


def per_head(values: torch.Tensor, heads: int, axis: int) -> torch.Tensor:
    """Heads share a group's values."""
    return values.repeat_interleave(heads // values.shape[axis], dim=axis)


def last_indices(seq_idx: torch.Tensor, size: int) -> torch.Tensor:
    """The sequence of each chunk's last token, [B, Z]."""
    length = seq_idx.shape[1]
    return seq_idx[:, [min(end, length) - 1 for end in range(size, length + size, size)]]


def step_sizes(dt: torch.Tensor, bias: torch.Tensor | None, softplus: bool, limit: tuple[float, float],
               size: int) -> torch.Tensor:
    """dt [B, T, H] -> [B, H, Z, C]."""
    dt = dt if bias is None else dt + bias
    dt = torch.nn.functional.softplus(dt, threshold=1e9) if softplus else dt
    return split(dt.clamp(*limit), size).permute(0, 3, 1, 2)


def chunk_states(B: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, cs: torch.Tensor,
                 seq_idx: torch.Tensor | None = None) -> torch.Tensor:
    """B [B, T, G, N], x [B, T, H, P] -> what a chunk adds to the state after it, [B, Z, H, P, N]; with seq_idx
    [B, T], only tokens of the sequence that the chunk ends with."""
    size = dt.shape[-1]
    weight = (cs[..., -1:] - cs).exp() * dt
    if seq_idx is not None:
        same = split(seq_idx, size, -1) == last_indices(seq_idx, size)[..., None]
        weight = weight * same[:, None]
    return torch.einsum("bhzc,bzchp,bzchn->bzhpn", weight, split(x, size), split(per_head(B, x.shape[2], 2), size))


class Sizes:
    """Draws what the functions take, by their names for it; always the same for a seed."""

    def __init__(self, seed: int, dtype: torch.dtype, batch: int, length: int, heads: int, groups: int, width: int,
                 state: int, size: int) -> None:
        self.normal, self.dtype = seeded(seed), dtype
        self.batch, self.length, self.heads, self.groups = batch, length, heads, groups
        self.width, self.state, self.size = width, state, size
        self.count = -(-length // size)

    def x(self) -> torch.Tensor:
        return self.normal(self.batch, self.length, self.heads, self.width).to(self.dtype)

    def b(self) -> torch.Tensor:
        return (0.5 * self.normal(self.batch, self.length, self.groups, self.state)).to(self.dtype)

    def states(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return (0.5 * self.normal(self.batch, self.count, self.heads, self.width, self.state)).to(dtype)

    def decays(self) -> Inputs:
        """dt and dA_cumsum [B, H, Z, C]; behind the last token dt is 0 and the sum stays."""
        dt = 0.01 + 0.3 * self.normal(self.batch, self.length, self.heads).abs()
        dt = split(dt, self.size).permute(0, 3, 1, 2)
        rate = -(0.1 + self.normal(self.heads).abs())
        return {"dt": dt.float().contiguous(),
                "dA_cumsum": (dt * rate[:, None, None]).cumsum(-1).float().contiguous()}

    def seq_idx(self) -> torch.Tensor:
        """Boundaries within a chunk and between two, one token later in each batch row."""
        at = torch.arange(self.length)
        edges = torch.tensor([self.size // 2 + 1, self.size * 2])
        return torch.stack([(at[:, None] >= edges + row).sum(1) for row in range(self.batch)]).int()


def respread(inputs: Inputs, names: tuple[str, ...]) -> None:
    """Lays the named inputs out with gaps or with heads and tokens exchanged, in turn; values stay."""
    for turn, name in enumerate(names):
        inputs[name] = axes_swapped(inputs[name], 1, 2) if turn % 2 else with_gaps(inputs[name])
