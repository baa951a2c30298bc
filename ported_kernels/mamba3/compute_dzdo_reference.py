"""What `compute_dzdo` of mamba3_siso_bwd.py computes is what `mamba3_siso_bwd_dzdo` does (see dzdo_reference.py);
this is the contract of the generated port.

Upstream's limit: a head is masked by its padded width, so the head dimension must be a power of two; with any other,
a row's store runs into the next head.
"""
from __future__ import annotations

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Inputs, Operator, Upstream, axes_swapped, port_of, with_gaps
from ported_kernels.mamba3.dzdo_reference import TOLERANCES, gates_case, mamba3_siso_bwd_dzdo_reference
from ported_kernels.signature import Given, Integer, Signature, Sizes, Tensor, power_of_two


def compute_dzdo_reference(do: torch.Tensor, z: torch.Tensor, o: torch.Tensor,
                           chunk_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """do, z, o [B, T, H, D]. Returns (dz, do_scaled) in float64. The chunk size is a hint that changes nothing."""
    return mamba3_siso_bwd_dzdo_reference(do, z, o)


def _mixed(inputs: Inputs) -> None:
    inputs["z"] = with_gaps(inputs["z"])
    inputs["o"] = axes_swapped(inputs["o"], 1, 2)


def _far(inputs: Inputs) -> None:
    inputs["z"] = inputs["z"] * 30


UPSTREAM = Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py", "compute_dzdo")


def _whole(sizes: Sizes, given: Given) -> None:
    if not power_of_two(sizes["D"]):
        raise reject("do", "a head dimension that is a power of two", sizes["D"])


SIGNATURE = Signature({"do": Tensor("B T H D"), "z": Tensor("B T H D"), "o": Tensor("B T H D"),
                       "chunk_size": Integer()}, also=_whole)

OPERATOR = Operator(
    name="compute_dzdo",
    summary="Mamba-3 SISO backward, step 1: gradient of the gate z, and do carried through it",
    wrapper=port_of(UPSTREAM),
    reference="ported_kernels.mamba3.compute_dzdo_reference:compute_dzdo_reference",
    oracle="float64 torch on the CPU, derivative of silu",
    outputs={"dz": "do", "do_scaled": "do"},
    cases=(
        gates_case("one element", (1, 1, 1, 1)),
        gates_case("one token, D64", (2, 1, 3, 64)),
        gates_case("T37 D32", (2, 37, 4, 32)),
        gates_case("T64 D128", (1, 64, 2, 128)),
        gates_case("T65 D16, one head", (3, 65, 1, 16)),
        gates_case("T129 D64", (1, 129, 5, 64)),
        gates_case("each input laid out differently", (2, 37, 3, 32), _mixed),
        gates_case("gates far out", (1, 33, 2, 64), _far),
    ),
    # Here, too, all arithmetic is in float32: each product has the float32 sigmoid in it.
    tolerances=TOLERANCES,
    upstream=UPSTREAM,
    signature=SIGNATURE,
)
