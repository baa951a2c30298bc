"""What `_layer_norm_fwd` and `_layer_norm_bwd` of layernorm_gated.py compute, in float64, and the inputs they are
tried on.

In each group of columns, x is brought to mean 0 (not for RMS) and deviation 1, times weight, plus bias; with a gate z,
the result is multiplied by silu(z), or x is before it. Backward is the gradient of <dy, out>, taken by autograd. It is
given the mean and 1 / deviation of the forward pass, one for each group and row, in this order.

Upstream calls for last strides of 1; rows may be apart.
"""
from __future__ import annotations

from collections.abc import Callable

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, port_of, seeded
from ported_kernels.signature import FLAG, NUMBER, Declaration, Given, Integer, Signature, Sizes, Tensor
from ported_kernels.ssd.formula import leaf, upstream

Maybe = torch.Tensor | None


def norm(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float, z: Maybe, group_size: int | None,
          norm_before_gate: bool, is_rms_norm: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All [M, N] or [N], float64 -> out [M, N], mean and 1 / deviation [M, G]."""
    gate = None if z is None else torch.nn.functional.silu(z)
    if gate is not None and not norm_before_gate:
        x = x * gate
    groups = x.unflatten(1, (-1, group_size or x.shape[1]))
    mean = torch.zeros_like(groups[..., 0]) if is_rms_norm else groups.mean(-1)
    centred = groups - mean[..., None]
    rstd = (centred.square().mean(-1) + eps).rsqrt()
    out = (centred * rstd[..., None]).flatten(1) * weight
    out = out if bias is None else out + bias
    return (out * gate if gate is not None and norm_before_gate else out), mean, rstd


def _double(value: Maybe) -> Maybe:
    return None if value is None else value.double()


def layer_norm_fwd_reference(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float, z: Maybe = None,
                             out: Maybe = None, group_size: int | None = None, norm_before_gate: bool = True,
                             is_rms_norm: bool = False) -> tuple[Maybe, ...]:
    """x, z [M, N]; weight, bias [N]. Returns out [M, N] (`out` is for it), mean (None for RMS), rstd [G*M]."""
    found, mean, rstd = norm(x.double(), weight.double(), _double(bias), eps, _double(z), group_size, norm_before_gate,
                            is_rms_norm)
    return found, None if is_rms_norm else mean.T.flatten(), rstd.T.flatten()


def layer_norm_bwd_reference(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float,
                             mean: Maybe, rstd: torch.Tensor, z: Maybe = None, group_size: int | None = None,
                             norm_before_gate: bool = True, is_rms_norm: bool = False, recompute_output: bool = False,
                             dz: Maybe = None, out: Maybe = None) -> tuple[Maybe, ...]:
    """Returns dx, dweight, dbias or None, dz or None and, if asked for, the output; before a gate that x goes
    through. `dz` and `out` are for what they are named after."""
    named = {"x": x, "weight": weight, "bias": bias, "z": z}
    leaves = {name: leaf(value) for name, value in named.items() if value is not None}
    normed = norm(leaves["x"], leaves["weight"], leaves.get("bias"), eps, leaves.get("z"), group_size,
                   norm_before_gate, is_rms_norm)[0]
    grads = dict(zip(leaves, torch.autograd.grad((dy.double() * normed).sum(), list(leaves.values())), strict=True))
    found = tuple(grads.get(name) for name in named)
    return (*found, normed.detach()) if recompute_output else found


def _case(name: str, rows: int, columns: int, groups: int, *, backward: bool, gate: bool = False, first: bool = True,
          rms: bool = False, bias: bool = True, again: bool = False, apart: bool = False, given: bool = False) -> Case:
    """`first`: the norm comes before the gate; `again`: the output is asked for; `apart`: rows are; `given`: outputs
    are, where they can be."""
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)

        def rows_of(scale: float = 1, shift: float = 0) -> torch.Tensor:
            home = torch.full((rows, columns + 3 * apart), 7.0, dtype=dtype)
            home[:, :columns] = shift + scale * normal(rows, columns)
            return home[:, :columns]

        inputs: Inputs = {"x": rows_of(1.5, 0.5), "weight": normal(columns).float(),
                          "bias": normal(columns).float() if bias else None, "eps": 1e-5,
                          "z": rows_of() if gate else None, "group_size": columns // groups,
                          "norm_before_gate": first, "is_rms_norm": rms}
        if backward:
            _, mean, rstd = layer_norm_fwd_reference(**inputs)
            assert rstd is not None
            inputs |= {"dy": rows_of(), "mean": None if mean is None else mean.float(), "rstd": rstd.float(),
                       "recompute_output": again}
        if given:
            inputs |= {out: rows_of(torch.nan) for out in (("dz", "out") if backward else ("out",))}
        return inputs
    return Case(name, build)


def _cases(backward: bool) -> tuple[Case, ...]:
    def case(name: str, *sizes: int, **more: bool) -> Case:
        return _case(name, *sizes, backward=backward, **more)
    again = {"again": True} if backward else {}
    return (case("layer, one row", 1, 40, 1), case("layer, 19 rows of 72", 19, 72, 1),
            case("layer, no bias", 7, 64, 1, bias=False), case("RMS, no bias", 7, 60, 1, rms=True, bias=False),
            case("layer, 3 groups, norm first", 19, 72, 3, gate=True, **again),
            case("RMS, 3 groups, norm first", 19, 72, 3, gate=True, rms=True, **again),
            case("layer, 3 groups, gate first", 19, 72, 3, gate=True, first=False),
            case("RMS, 3 groups, gate first", 19, 72, 3, gate=True, first=False, rms=True),
            case("layer, rows apart", 5, 100, 1, gate=True, apart=True),
            case("layer, outputs given, rows apart", 5, 100, 1, gate=True, apart=True, given=True, **again),
            case("300 rows of 8", 300, 8, 1, gate=True))


# All arithmetic is float32, and an output is rounded once: at most 2^-8 (bfloat16) or 2^-11 (float16) of an element.
# atol is for elements whose terms cancel in float32.
TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-4),
              torch.float16: Tolerance(2**-11, 2**-10, 1e-4)}


def _operator(function: str, summary: str, reference: str, oracle: str, outputs: dict,
              cases: Callable[[], tuple[Case, ...]], signature: Signature, mutates: tuple[str, ...]) -> Operator:
    port = upstream("layernorm_gated", function)
    return Operator(
        name=function, summary=summary, wrapper=port_of(port),
        reference=f"ported_kernels.ssd.layernorm_gated_reference:{reference}", oracle=oracle, outputs=outputs,
        cases=cases(),
        tolerances=TOLERANCES,
        upstream=port, signature=signature, mutates=mutates)


LIMIT = 65536     # bytes in a group of columns, which a program keeps whole


def group_fits(sizes: Sizes, given: Given) -> None:
    columns = LIMIT // given["x"].element_size()
    if sizes["L"] > columns:
        raise reject("group_size", f"at most {columns} columns of {given['x'].dtype}", sizes["L"])


def _backward_fits(sizes: Sizes, given: Given) -> None:
    group_fits(sizes, given)
    if given["mean"] is None and not given["is_rms_norm"]:
        raise reject("mean", "a tensor, as is_rms_norm is False", None)
    if given["dz"] is not None and given["z"] is None:
        raise reject("z", "a tensor, as dz is given", None)


_ROWS, _ROWS_OR_NONE = (Tensor("M N", optional=optional, memory="rows") for optional in (False, True))
_NORM: dict[str, Declaration] = {
    "x": _ROWS, "weight": Tensor("N", memory="rows"), "bias": Tensor("N", optional=True, memory="rows"), "eps": NUMBER,
    "z": _ROWS_OR_NONE, "group_size": Integer("L", optional=True, divides="N"), "norm_before_gate": FLAG,
    "is_rms_norm": FLAG, "out": _ROWS_OR_NONE}

OPERATORS = (
    _operator("_layer_norm_fwd", "layer or RMS norm of groups, with a gate before or after", "layer_norm_fwd_reference",
              "float64 torch on the CPU, from the formula",
              {"out": "x", "mean": torch.float32, "rstd": torch.float32}, lambda: _cases(False),
              Signature(_NORM, group_fits), ("out",)),
    _operator("_layer_norm_bwd", "gradients of x, weight, bias and gate", "layer_norm_bwd_reference",
              "float64 autograd through the formula",
              {"dx": "x", "dweight": "weight", "dbias": torch.float32, "dz": "z", "out": "x"}, lambda: _cases(True),
              Signature({**_NORM, "dy": _ROWS, "mean": Tensor("M*N/L", optional=True), "rstd": Tensor("M*N/L"),
                         "recompute_output": FLAG, "dz": _ROWS_OR_NONE}, _backward_fits), ("dz", "out")),
)
