"""What `bwd_segsum_dadt` computes, in plain float64 torch from the formula, and the inputs it is tried on.

    ddt_out[b, h, n*C + i] += sum over i' >= i and j < i of D[j, i'] * exp(S[i', j])

With L the lower triangular matrix of ones and P[i', j] = D[j, i'] * exp(S[i', j]) where i' > j, 0 elsewhere,
the sum over i' >= i is L^T P; of that, row i is summed over j < i.
"""
from __future__ import annotations

from collections.abc import Callable

import torch

from ported_kernels.catalog import (
    Case,
    Inputs,
    Operator,
    Tolerance,
    Upstream,
    axes_swapped,
    seeded,
    with_gaps,
)


def bwd_segsum_dadt_reference(dSSdA: torch.Tensor, SSdA: torch.Tensor, ddt_out: torch.Tensor,
                              chunk_size: int) -> torch.Tensor:
    """dSSdA, SSdA [B, H, N, C, C]; ddt_out [B, H, N*C]. Returns the float64 sum; changes nothing."""
    C = chunk_size
    ones = torch.ones(C, C, dtype=torch.float64)
    below = ones.tril(-1).bool()
    decay = SSdA.double().masked_fill(~below, 0).exp()
    pairs = (dSSdA.double().mT * decay).masked_fill(~below, 0)      # [.., i', j]
    later = ones.triu() @ pairs                                     # over i' >= i
    return ddt_out.double() + later.masked_fill(~below, 0).sum(-1).reshape(ddt_out.shape)


def segment_sums(seed: int, B: int, H: int, N: int, C: int) -> torch.Tensor:
    """S[i, j] = sum of a_t < 0 over j < t <= i, as the forward pass leaves it; 0 above the diagonal."""
    steps = -torch.nn.functional.softplus(seeded(seed + 1)(B, H, N, C) - 2)
    total = steps.cumsum(-1)
    return (total[..., :, None] - total[..., None, :]).tril(-1)


def _case(name: str, shape: tuple[int, int, int, int],
          change: Callable[[Inputs], None] = lambda inputs: None, *, narrow: bool = False) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        B, H, N, C = shape
        normal = seeded(seed)
        inputs: Inputs = {
            "dSSdA": normal(B, H, N, C, C).to(dtype),
            "SSdA": segment_sums(seed, B, H, N, C).to(dtype),
            "ddt_out": normal(B, H, N * C).to(dtype if narrow else torch.float32),
            "chunk_size": C,
        }
        change(inputs)
        return inputs
    return Case(name, build)


def _poison(inputs: Inputs) -> None:
    """inf, -inf, NaN where the result must not look: i <= j of S, and the same pairs of D (stored [j, i])."""
    C = inputs["chunk_size"]
    upper = torch.ones(C, C).triu().bool()
    bad = torch.tensor([float("inf"), float("nan"), float("-inf")]).repeat(C * C)[:C * C].reshape(C, C)
    for name, where in (("SSdA", upper), ("dSSdA", upper.mT)):
        inputs[name] = torch.where(where, bad.to(inputs[name].dtype), inputs[name])


def _apart(inputs: Inputs) -> None:
    for name in ("dSSdA", "SSdA", "ddt_out"):
        inputs[name] = with_gaps(inputs[name])


def _turned(inputs: Inputs) -> None:
    inputs["dSSdA"] = axes_swapped(inputs["dSSdA"], -1, -2)
    inputs["SSdA"] = axes_swapped(inputs["SSdA"], 1, 2)
    inputs["ddt_out"] = axes_swapped(inputs["ddt_out"], 1, 2)


def _offset(inputs: Inputs) -> None:
    """Contiguous, but starting one element into its storage: no 16-byte alignment to rely on."""
    for name in ("dSSdA", "SSdA"):
        values = inputs[name]
        home = torch.zeros(values.numel() + 1, dtype=values.dtype)
        inputs[name] = home[1:].view(values.shape).copy_(values)


SHAPES = [(1, 1, 1, 8), (1, 1, 1, 16), (1, 2, 2, 16), (2, 4, 4, 32),
          (1, 1, 2, 64), (1, 8, 1, 32), (1, 16, 1, 16), (2, 4, 2, 128)]

CASES = (
    *(_case("B{} H{} N{} C{}".format(*shape), shape) for shape in SHAPES),
    _case("odd number of chunks", (1, 3, 7, 16)),
    _case("odd number of chunks of 8", (3, 1, 5, 8)),
    _case("ddt_out in the inputs' dtype", (1, 2, 3, 32), narrow=True),
    _case("inf and nan above the diagonal", (1, 2, 3, 16), _poison),
    _case("inf and nan above the diagonal, C128", (1, 1, 1, 128), _poison),
    _case("views with gaps", (1, 2, 3, 16), _apart),
    _case("views with gaps, C128", (1, 1, 2, 128), _apart),
    _case("swapped axes", (2, 3, 2, 32), _turned),
    _case("swapped axes, C64", (1, 2, 2, 64), _turned),
    _case("unaligned start", (1, 2, 2, 16), _offset),
)

OPERATOR = Operator(
    name="bwd_segsum_dadt",
    summary="Mamba-3 MIMO backward: gradient of dA*dt through the segment sums of a chunk",
    wrapper="ported_kernels.mamba3.segsum_dadt:bwd_segsum_dadt",
    reference="ported_kernels.mamba3.segsum_dadt_reference:bwd_segsum_dadt_reference",
    oracle="float64 torch on the CPU, triangular matrix products",
    outputs={"ddt_out": "ddt_out"},
    cases=CASES,
    # The contract's figures; the same number bounds the relative RMS error and, with atol, each element.
    tolerances={torch.float32: Tolerance(1e-4, 1e-4, 1e-5), torch.bfloat16: Tolerance(1e-2, 1e-2, 5e-3),
                torch.float16: Tolerance(1e-3, 1e-3, 5e-4)},
    upstream=Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_mimo_utils.py",
                      "bwd_segsum_dadt_kernel"),
    mutates=("ddt_out",),
)
