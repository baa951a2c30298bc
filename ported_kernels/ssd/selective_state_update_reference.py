"""What `selective_state_update` computes, in float64, and the inputs it is tried on.

One step of the recurrence for a batch of tokens, in place:

    dt = softplus(dt + dt_bias),  state = exp(dt A) state + dt x B^T,  out = (state C + D x) * silu(z)

With `state_batch_indices`, row i of the batch has its state in that slot; a negative one means padding: its output is
0 and no state changes. Upstream's limit, avoided in the cases: D and dt_bias must be given.
"""
from __future__ import annotations

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, port_of, seeded, with_gaps
from ported_kernels.signature import FLAG, INTEGERS, Given, Signature, Sizes, Tensor
from ported_kernels.ssd.formula import per_head, upstream

Maybe = torch.Tensor | None


def selective_state_update_reference(state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor,
                                     B: torch.Tensor, C: torch.Tensor, D: Maybe = None, z: Maybe = None,
                                     dt_bias: Maybe = None, dt_softplus: bool = False,
                                     state_batch_indices: Maybe = None) -> tuple[torch.Tensor, torch.Tensor]:
    """state [S, H, P, N], x, dt, z [B, H, P], A [H, P, N], B, C [B, G, N], D, dt_bias [H, P], all in float64 and all
    possibly without H and G. Returns out [B, H, P] and the states after it."""
    if state.dim() == 3:
        named = {"x": x, "dt": dt, "B": B, "C": C} | ({} if z is None else {"z": z})
        given = {name: value[:, None] for name, value in named.items()}
        given |= {name: value[None] for name, value in (("A", A), ("D", D), ("dt_bias", dt_bias)) if value is not None}
        out, after = selective_state_update_reference(
            state[:, None], dt_softplus=dt_softplus, state_batch_indices=state_batch_indices, **given)
        return out[:, 0], after[:, 0]
    heads = state.shape[1]
    slots = torch.arange(x.shape[0]) if state_batch_indices is None else state_batch_indices.long()
    step = dt.double() + (0 if dt_bias is None else dt_bias.double())
    step = torch.nn.functional.softplus(step, threshold=1e9) if dt_softplus else step
    keys, queries = per_head(B.double(), heads, 1), per_head(C.double(), heads, 1)
    after, out = state.double().clone(), torch.zeros(x.shape).double()
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        decay = (step[row, :, :, None] * A.double()).exp()
        after[slot] = decay * after[slot] + (step[row] * x[row].double())[..., None] * keys[row, :, None]
        out[row] = (after[slot] * queries[row, :, None]).sum(-1)
    padded = (slots < 0)[:, None, None]
    out = out if D is None else out + x.double() * D.double()
    out = out if z is None else out * torch.nn.functional.silu(z.double())
    return out.masked_fill(padded, 0), after


def _case(name: str, batch: int, heads: int, groups: int, width: int, size: int, *, tied: bool = False,
          gate: bool = False, indexed: bool = False, softplus: bool = True, apart: bool = False) -> Case:
    """heads 0: without that axis. `tied`: A, dt and dt_bias are one value for a head, repeated by strides of 0."""
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        h, g = ((heads,), (groups,)) if heads else ((), ())
        slots = batch + 2 if indexed else batch
        lay = with_gaps if apart else torch.Tensor.contiguous
        inputs: Inputs = {
            "state": lay(normal(slots, *h, width, size).to(dtype)), "x": lay(normal(batch, *h, width).to(dtype)),
            "B": lay(normal(batch, *g, size).to(dtype)), "C": normal(batch, *g, size).to(dtype),
            "D": normal(*h, width).float(), "dt_softplus": softplus}
        if tied:
            rate, step, bias = -normal(*h).abs().float(), normal(batch, *h).to(dtype), normal(*h).float()
            inputs |= {"A": rate[..., None, None].expand(*h, width, size),
                       "dt": step[..., None].expand(batch, *h, width),
                       "dt_bias": bias[..., None].expand(*h, width)}
        else:
            inputs |= {"A": -normal(*h, width, size).abs().float(), "dt": normal(batch, *h, width).to(dtype),
                       "dt_bias": normal(*h, width).float()}
        if not softplus:
            inputs["dt"], inputs["dt_bias"] = inputs["dt"].abs(), inputs["dt_bias"].abs()
        if gate:
            inputs["z"] = normal(batch, *h, width).to(dtype)
        if indexed:
            order = torch.argsort(normal(slots))[:batch].int()
            order[batch // 2] = -1
            inputs["state_batch_indices"] = order
        return inputs
    return Case(name, build)


_PORT = upstream("selective_state_update", "selective_state_update")


def _enough(sizes: Sizes, given: Given) -> None:
    if given["state_batch_indices"] is None and sizes["S"] < sizes["B"]:
        raise reject("state", f"a state for each of B = {sizes['B']} rows of x", f"S = {sizes['S']}")


_ROW = "B P | B H%G P"
_WEIGHT = "P | H P"
SIGNATURE = Signature({
    "B": Tensor("B N | B G N"), "C": Tensor("B N | B G N"), "x": Tensor(_ROW), "dt": Tensor(_ROW),
    "z": Tensor(_ROW, optional=True), "A": Tensor("P N | H P N"), "D": Tensor(_WEIGHT), "dt_bias": Tensor(_WEIGHT),
    "dt_softplus": FLAG, "state_batch_indices": Tensor("B", INTEGERS, optional=True),
    "state": Tensor("S P N | S H P N")}, also=_enough)

OPERATOR = Operator(
    name="selective_state_update",
    summary="Mamba-2: one token's step of the state, in place, and its output",
    wrapper=port_of(_PORT),
    reference="ported_kernels.ssd.selective_state_update_reference:selective_state_update_reference",
    oracle="float64 torch on the CPU, from the recurrence",
    outputs={"out": "x", "state": "state"},
    cases=(
        _case("P20 N24", 3, 0, 0, 20, 24),
        _case("P20 N24, z, no softplus", 3, 0, 0, 20, 24, gate=True, softplus=False),
        _case("H4 G2 P20 N24, z", 3, 4, 2, 20, 24, gate=True),
        _case("H4 G2 P20 N24, tied", 3, 4, 2, 20, 24, tied=True),
        _case("H4 G1 P64 N128, tied, z, slots, padding", 5, 4, 1, 64, 128, tied=True, gate=True, indexed=True),
        _case("H2 G2 P20 N16, slots, padding", 5, 2, 2, 20, 16, indexed=True),
        _case("one element", 1, 0, 0, 1, 1),
        _case("views with gaps", 3, 4, 2, 20, 24, gate=True, apart=True),
    ),
    # All arithmetic is float32; out and state are rounded once each: at most 2^-8 (bfloat16) or 2^-11 (float16) of an
    # element. atol is for elements whose terms cancel in float32.
    tolerances={torch.float32: Tolerance(1e-5, 1e-5, 1e-5), torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-5),
                torch.float16: Tolerance(2**-11, 2**-10, 1e-5)},
    upstream=_PORT,
    signature=SIGNATURE,
    mutates=("state",),
    left_in=("state",),
)
