"""What the autograd functions of layernorm_gated.py compute, in float64, and the inputs they are tried on:
`layernorm_fn` and `rmsnorm_fn`, forward and backward. The formula is that of layernorm_gated_reference.py; rows may
have any number of axes before the columns. A case gives the gradient of the output, too.
"""
from __future__ import annotations

import torch

from ported_kernels.catalog import Case, Inputs, Operator, axes_swapped, port_of, seeded, with_gaps
from ported_kernels.signature import FLAG, NUMBER, Declaration, Integer, Signature, Tensor
from ported_kernels.ssd.formula import leaf, upstream
from ported_kernels.ssd.layernorm_gated_reference import TOLERANCES, group_fits, norm

Maybe = torch.Tensor | None


def layernorm_fn_reference(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, z: Maybe = None, eps: float = 1e-6,
                           group_size: int | None = None, norm_before_gate: bool = True, is_rms_norm: bool = False, *,
                           dout: torch.Tensor) -> tuple[Maybe, ...]:
    """x, z, dout [..., N]; weight, bias [N]. Returns out [..., N], and the gradients in x, weight, bias and z."""
    named = {"x": x, "weight": weight, "bias": bias, "z": z}
    leaves = {name: leaf(value) for name, value in named.items() if value is not None}
    rows = {name: value.flatten(0, -2) if name in ("x", "z") else value for name, value in leaves.items()}
    out = norm(rows["x"], rows["weight"], rows.get("bias"), eps, rows.get("z"), group_size, norm_before_gate,
               is_rms_norm)[0].reshape(x.shape)
    found = dict(zip(leaves, torch.autograd.grad((dout.double() * out).sum(), list(leaves.values())), strict=True))
    return (out.detach(), *(found.get(name) for name in named))


def rmsnorm_fn_reference(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, z: Maybe = None, eps: float = 1e-6,
                         group_size: int | None = None, norm_before_gate: bool = True, *, dout: torch.Tensor
                         ) -> tuple[Maybe, ...]:
    """As layernorm_fn_reference, with mean 0."""
    return layernorm_fn_reference(x, weight, bias, z, eps, group_size, norm_before_gate, True, dout=dout)


def _case(name: str, *shape: int, groups: int = 0, gate: bool = False, first: bool = True, bias: bool = True,
          apart: bool = False) -> Case:
    """`groups` 0: none are asked for. `first`: the norm comes before the gate."""
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal, columns = seeded(seed), shape[-1]
        inputs: Inputs = {"x": (0.5 + 1.5 * normal(*shape)).to(dtype), "weight": normal(columns).float(),
                          "bias": normal(columns).float() if bias else None, "dout": normal(*shape).to(dtype)}
        if groups:
            inputs["group_size"] = columns // groups
        if gate:
            inputs |= {"z": normal(*shape).to(dtype), "norm_before_gate": first}
        if apart:
            inputs |= {"x": with_gaps(inputs["x"]), "weight": with_gaps(inputs["weight"][None])[0],
                       "dout": axes_swapped(inputs["dout"], 0, -1)}
        return inputs
    return Case(name, build)


_CASES = (_case("one row", 1, 40), _case("19 rows of 72", 19, 72), _case("no bias", 2, 7, 60, bias=False),
          _case("3 groups, norm first", 2, 3, 5, 72, groups=3, gate=True),
          _case("3 groups, gate first", 2, 9, 72, groups=3, gate=True, first=False),
          _case("views with gaps", 5, 4, 100, gate=True, apart=True))
_ROWS = "*R N"
_NORM: dict[str, Declaration] = {
    "x": Tensor(_ROWS), "weight": Tensor("N"), "bias": Tensor("N", optional=True), "z": Tensor(_ROWS, optional=True),
    "eps": NUMBER, "group_size": Integer("L", optional=True, divides="N"), "norm_before_gate": FLAG}


def _operator(function: str, summary: str, signature: dict[str, Declaration]) -> Operator:
    port = upstream("layernorm_gated", function)
    return Operator(
        name=function, summary=summary, wrapper=port_of(port),
        reference=f"ported_kernels.ssd.layernorm_autograd_reference:{function}_reference",
        oracle="float64 autograd through the formula",
        outputs={"out": "x", "dx": "x", "dweight": "weight", "dbias": "bias", "dz": "z"},
        leaves=("x", "weight", "bias", "z"), gradients=("dout",), cases=_CASES, tolerances=TOLERANCES, upstream=port,
        signature=Signature(signature, group_fits))


OPERATORS = (
    _operator("layernorm_fn", "layer or RMS norm of groups, with a gate, for autograd", {**_NORM, "is_rms_norm": FLAG}),
    _operator("rmsnorm_fn", "RMS norm of groups, with a gate, for autograd", _NORM),
)
