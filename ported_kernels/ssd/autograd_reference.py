"""What the autograd functions of ssd_chunk_state.py, ssd_chunk_scan.py and ssd_state_passing.py compute, in float64,
and the inputs they are tried on: `chunk_state`, `chunk_scan` and `state_passing`, forward and backward.

A case gives the gradients of the outputs, too; a trial calls the function, then backward with them, and compares
outputs and gradients with those of autograd through the formula.

`chunk_scan` takes whole chunks only. Without z, upstream takes the gradient of the cumulative decays from the rounded
output, by a difference of large numbers (`_chunk_scan_bwd_ddAcs_unstable`).
"""
from __future__ import annotations

from typing import Any

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, port_of, with_gaps
from ported_kernels.signature import FLAG, Declaration, Given, Signature, Tensor
from ported_kernels.signature import Sizes as Known
from ported_kernels.ssd.bmm_reference import bmm_fwd_reference
from ported_kernels.ssd.chunk_scan_reference import SKIP, before, skipped, within
from ported_kernels.ssd.chunk_state_reference import DECAYS, F32, GROUPED, PRODUCT
from ported_kernels.ssd.formula import Sizes, chunk_states, leaf, upstream
from ported_kernels.ssd.state_passing_reference import CHUNKS, state_passing_fwd_reference

Maybe = torch.Tensor | None


def _leaves(*values: Maybe) -> list[Any]:
    return [None if one is None else leaf(one) for one in values]


def _gradients(outputs: dict[torch.Tensor, torch.Tensor], leaves: list[Any]) -> tuple[Maybe, ...]:
    """Of the sum of <output, its gradient>, in each leaf; None for those that are not there."""
    loss = torch.stack([(out * given.double()).sum() for out, given in outputs.items()]).sum()
    there = [one for one in leaves if one is not None]
    found = iter(torch.autograd.grad(loss, there))
    return tuple(None if one is None else next(found) for one in leaves)


def chunk_state_reference(B: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor,
                          states_in_fp32: bool = True, *, dstates: torch.Tensor) -> tuple[Maybe, ...]:
    """B [B, T, G, N], x [B, T, H, P], dt, dA_cumsum [B, H, Z, C]. Returns states [B, Z, H, P, N], and the gradients in
    B, x, dt and dA_cumsum."""
    leaves = _leaves(B, x, dt, dA_cumsum)
    states = chunk_states(*leaves)
    return (states.detach(), *_gradients({states: dstates}, leaves))


def chunk_scan_reference(B: torch.Tensor, C: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor,
                         prev_states: torch.Tensor, D: Maybe = None, z: Maybe = None, *, dout: torch.Tensor
                         ) -> tuple[Maybe, ...]:
    """B, C [B, T, G, N], x, z [B, T, H, P], dt, dA_cumsum [B, H, Z, C], prev_states [B, Z, H, P, N], D [H] or [H, P].
    Returns out [B, T, H, P] and the gradients in the arguments, in their order."""
    leaves = _leaves(B, C, x, dt, dA_cumsum, prev_states, D, z)
    B_, C_, x_, dt_, cs, states, skip, gate = leaves
    y = (within(bmm_fwd_reference(C_, B_, dt.shape[-1]), x_, dt_, cs) + before(C_, states, cs, None)
         + skipped(x_, skip))
    out = y if gate is None else y * torch.nn.functional.silu(gate)
    return (out.detach(), *_gradients({out: dout}, leaves))


def state_passing_reference(states: torch.Tensor, dA_chunk_cumsum: torch.Tensor, initial_states: Maybe = None, *,
                            dout: torch.Tensor, dfinal_states: torch.Tensor) -> tuple[Maybe, ...]:
    """states [B, Z, H, D], dA_chunk_cumsum [B, H, Z], initial_states [B, H, D]. Returns out [B, Z, H, D], the final
    states [B, H, D], and the gradients in the arguments."""
    leaves = _leaves(states, dA_chunk_cumsum, initial_states)
    out, final = state_passing_fwd_reference(*leaves)
    return (out.detach(), final.detach(), *_gradients({out: dout, final: dfinal_states}, leaves))


SHAPES = {"T37, grouped": (2, 37, 4, 2, 20, 24, 16), "T32, whole chunks": (1, 32, 3, 1, 16, 16, 16),
          "one chunk": (1, 16, 2, 2, 20, 24, 16), "T128 P64 N128 C64": (1, 128, 2, 1, 64, 128, 64)}
_WHOLE = {"T48, grouped": (2, 48, 4, 2, 20, 24, 16), **{name: SHAPES[name] for name in tuple(SHAPES)[1:]}}


def _state(sizes: Sizes, apart: bool) -> Inputs:
    inputs = {"B": sizes.b(), "x": sizes.x(), **sizes.decays(), "dstates": sizes.states()}
    return {name: with_gaps(value) for name, value in inputs.items()} if apart else inputs


def _scan(sizes: Sizes, full: bool, apart: bool) -> Inputs:
    inputs = {"B": sizes.b(), "C": sizes.b(), "x": sizes.x(), **sizes.decays(),
              "prev_states": sizes.states(sizes.dtype), "dout": sizes.x()}
    if full:
        inputs |= {"D": sizes.normal(sizes.heads, sizes.width).float(), "z": sizes.x()}
    return {name: with_gaps(value) for name, value in inputs.items()} if apart else inputs


def _passing(sizes: Sizes, full: bool, apart: bool) -> Inputs:
    row = (sizes.batch, sizes.heads, sizes.width * sizes.state)
    chunks = (sizes.batch, sizes.count, *row[1:])
    inputs = {"states": sizes.normal(*chunks).to(sizes.dtype), "dout": sizes.normal(*chunks).to(sizes.dtype),
              "dA_chunk_cumsum": -sizes.normal(sizes.batch, sizes.heads, sizes.count).abs().float(),
              "dfinal_states": sizes.normal(*row).float()}
    if full:
        inputs["initial_states"] = sizes.normal(*row).to(sizes.dtype)
    return {name: with_gaps(value) for name, value in inputs.items()} if apart else inputs


def _state_case(name: str, shape: str, narrow: bool = False, apart: bool = False) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        inputs = _state(Sizes(seed, dtype, *SHAPES[shape]), apart)
        return inputs | ({"states_in_fp32": False, "dstates": inputs["dstates"].to(dtype)} if narrow else {})
    return Case(name, build)


def _scan_case(name: str, shape: str, full: bool = False, apart: bool = False) -> Case:
    return Case(name, lambda seed, dtype: _scan(Sizes(seed, dtype, *_WHOLE[shape]), full, apart))


def _passing_case(name: str, shape: str, full: bool = False, apart: bool = False) -> Case:
    return Case(name, lambda seed, dtype: _passing(Sizes(seed, dtype, *SHAPES[shape]), full, apart))


def _whole(sizes: Known, given: Given) -> None:
    if sizes["T"] % sizes["C"]:
        raise reject("x", f"T a multiple of C = {sizes['C']}, of dt", f"T = {sizes['T']}")


# u = 2^-8 or 2^-11, the most that rounding to nearest moves a number by. Backward starts from what forward rounded: in
# a row, gate or states, an operand of a product, and the output; at most 3 u of the terms' RMS. Where terms cancel,
# atol covers sums of 2^12 products of the size 1, each off by 2 u: 128 u in RMS.
_SCANNED = {F32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(3 * 2**-8, 3 * 2**-8, 2**-1),
            torch.float16: Tolerance(3 * 2**-11, 3 * 2**-11, 2**-4)}
# States are rounded once, and a decay's gradient sums up to 2^9 products with them.
_PASSED = {F32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(2**-8, 2**-7, 2**-3),
           torch.float16: Tolerance(2**-11, 2**-10, 2**-6)}
_STATE, _SCAN, _PASSING = (upstream(f"ssd_{name}", name) for name in ("chunk_state", "chunk_scan", "state_passing"))
_SCAN_SIGNATURE: dict[str, Declaration] = {
    **GROUPED, "C": Tensor("B T G N"), **DECAYS, "prev_states": Tensor("B T/C H P N"), **SKIP,
    "z": Tensor("B T H P", optional=True)}
_AUTOGRAD = "float64 autograd through the formula"
_HERE = "ported_kernels.ssd.autograd_reference:"

OPERATORS = (
    Operator(
        name="chunk_state", summary="SSD: what a chunk adds to the state, for autograd", wrapper=port_of(_STATE),
        reference=_HERE + "chunk_state_reference", oracle=_AUTOGRAD,
        outputs={"states": lambda inputs: F32 if inputs.get("states_in_fp32", True) else inputs["B"].dtype,
                 "dB": "B", "dx": "x", "ddt": F32, "ddA_cumsum": F32},
        leaves=("B", "x", "dt", "dA_cumsum"), gradients=("dstates",),
        cases=(*(_state_case(shape, shape) for shape in SHAPES),
               _state_case("T37, grouped, states in the dtype", "T37, grouped", narrow=True),
               _state_case("views with gaps", "T37, grouped", apart=True)),
        tolerances=PRODUCT, upstream=_STATE, signature=Signature({**GROUPED, **DECAYS, "states_in_fp32": FLAG})),
    Operator(
        name="chunk_scan", summary="SSD: outputs of a chunk's tokens, for autograd", wrapper=port_of(_SCAN),
        reference=_HERE + "chunk_scan_reference", oracle=_AUTOGRAD,
        outputs={"out": "x", "dB": "B", "dC": "C", "dx": "x", "ddt": F32, "ddA_cumsum": F32,
                 "dprev_states": "prev_states", "dD": F32, "dz": "z"},
        leaves=("B", "C", "x", "dt", "dA_cumsum", "prev_states", "D", "z"), gradients=("dout",),
        cases=(*(_scan_case(shape, shape) for shape in _WHOLE),
               *(_scan_case(f"{shape}, D, z", shape, full=True) for shape in _WHOLE),
               _scan_case("views with gaps", "T48, grouped", full=True, apart=True)),
        tolerances=_SCANNED, upstream=_SCAN, signature=Signature(_SCAN_SIGNATURE, _whole)),
    Operator(
        name="state_passing", summary="SSD: states before each chunk and the last, for autograd",
        wrapper=port_of(_PASSING), reference=_HERE + "state_passing_reference", oracle=_AUTOGRAD,
        outputs={"out": "states", "final_states": F32, "dstates": "states", "ddA_chunk_cumsum": F32,
                 "dinitial_states": "initial_states"},
        leaves=("states", "dA_chunk_cumsum", "initial_states"), gradients=("dout", "dfinal_states"),
        cases=(*(_passing_case(shape, shape) for shape in SHAPES),
               *(_passing_case(f"{shape}, initial states", shape, full=True) for shape in SHAPES),
               _passing_case("views with gaps", "T37, grouped", full=True, apart=True)),
        tolerances=_PASSED, upstream=_PASSING,
        signature=Signature({**CHUNKS, "initial_states": Tensor("B H D", optional=True)})),
)
