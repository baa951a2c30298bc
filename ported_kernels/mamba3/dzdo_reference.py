"""What `mamba3_siso_bwd_dzdo` computes, in float64 torch from the formula, and the inputs it is tried on.

For out = o * silu(z): d out / d z = o * silu'(z) with silu'(z) = sigmoid(z) + z * sigmoid'(z), and what
reaches o is do * silu(z).
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


def mamba3_siso_bwd_dzdo_reference(do: torch.Tensor, z: torch.Tensor,
                                   o: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """do, z, o [B, T, H, D]. Returns (dz, do_scaled) in float64; changes nothing."""
    do, z, o = do.double(), z.double(), o.double()
    open_, shut = torch.sigmoid(z), torch.sigmoid(-z)       # sigmoid' = open_ * shut, with no cancellation
    return do * o * (open_ + z * open_ * shut), do * (z * open_)


def gates_case(name: str, shape: tuple[int, int, int, int],
               change: Callable[[Inputs], None] = lambda inputs: None) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        inputs: Inputs = {name: (scale * normal(*shape)).to(dtype)
                          for name, scale in (("do", 1), ("z", 2), ("o", 1))}
        change(inputs)
        return inputs
    return Case(name, build)


def _apart(inputs: Inputs) -> None:
    for name in inputs:
        inputs[name] = with_gaps(inputs[name])


def _heads_first(inputs: Inputs) -> None:
    for name in inputs:
        inputs[name] = axes_swapped(inputs[name], 1, 2)


def _mixed(inputs: Inputs) -> None:
    """One contiguous input, one with gaps, one with swapped axes: each is made contiguous by itself."""
    inputs["z"] = with_gaps(inputs["z"])
    inputs["o"] = axes_swapped(inputs["o"], 1, 3)


def _expanded(inputs: Inputs) -> None:
    inputs["do"] = inputs["do"][:, :1].expand(inputs["z"].shape)


def _offset(inputs: Inputs) -> None:
    for name, values in inputs.items():
        home = torch.zeros(values.numel() + 1, dtype=values.dtype)
        inputs[name] = home[1:].view(values.shape).copy_(values)


def _gates(*values: float) -> Callable[[Inputs], None]:
    def change(inputs: Inputs) -> None:
        z = inputs["z"]
        inputs["z"] = torch.tensor(values, dtype=z.dtype).repeat(z.numel())[:z.numel()].reshape(z.shape)
    return change


CASES = (
    gates_case("one element", (1, 1, 1, 1)),
    gates_case("one token, D40", (1, 1, 1, 40)),
    gates_case("one token, D256", (2, 1, 3, 256)),
    gates_case("T37 D40", (2, 37, 5, 40)),
    gates_case("T37 D64", (1, 37, 4, 64)),
    gates_case("T63 D100", (2, 63, 3, 100)),
    gates_case("T64 D128", (2, 64, 4, 128)),
    gates_case("T65 D128", (1, 65, 4, 128)),
    gates_case("T129 D256", (1, 129, 2, 256)),
    gates_case("T300 D48, one head", (3, 300, 1, 48)),
    gates_case("odd everything", (3, 7, 11, 13)),
    gates_case("T1023 D64", (1, 1023, 2, 64)),
    gates_case("70000 rows of 8", (1, 35000, 2, 8)),
    gates_case("views with gaps", (2, 33, 3, 40), _apart),
    gates_case("heads before tokens", (2, 33, 3, 64), _heads_first),
    gates_case("each input laid out differently", (2, 17, 3, 40), _mixed),
    gates_case("do expanded over T", (2, 17, 3, 64), _expanded),
    gates_case("unaligned start", (1, 19, 3, 64), _offset),
    gates_case("gates far out", (1, 16, 2, 64), _gates(-100.0, -30.0, 30.0, 100.0)),
    gates_case("gates about zero", (1, 16, 2, 64), _gates(0.0, -0.0, 1e-3, -1e-3, 0.5)),
    gates_case("gates where dz crosses zero", (1, 16, 2, 64), _gates(-1.28, -1.2785, -1.27, 2.0)),
)

# Computed in float32 and rounded once at the end. Rounding to nearest moves an element by at most half a
# unit in the last place, 2^-8 (bfloat16) or 2^-11 (float16) of its value, so the RMS cannot exceed that
# either (0.42 of it is expected). An element is given twice as much, and atol covers results near zero,
# where 1 + z * (1 - s) cancels or float16 runs out of exponents.
TOLERANCES = {torch.float32: Tolerance(1e-6, 1e-5, 1e-6), torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-6),
              torch.float16: Tolerance(2**-11, 2**-10, 1e-6)}

OPERATOR = Operator(
    name="mamba3_siso_bwd_dzdo",
    summary="Mamba-3 SISO backward: gradient of the gate z, and do carried through it",
    wrapper="ported_kernels.mamba3.dzdo:mamba3_siso_bwd_dzdo",
    reference="ported_kernels.mamba3.dzdo_reference:mamba3_siso_bwd_dzdo_reference",
    oracle="float64 torch on the CPU, derivative of silu",
    outputs={"dz": "do", "do_scaled": "do"},
    cases=CASES,
    tolerances=TOLERANCES,
    upstream=Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py",
                      "compute_dzdo"),
)
