"""What `mamba3_siso_fwd` computes, in float64, and the inputs it is tried on.

The recurrence of siso_recurrence.py, token by token; what the backward pass needs is stored on the way: out before the
gate, the state at each chunk's start, the sums of the log2 decays in a chunk, rotated q, rotated and scaled k, gamma
q . k, scale and gamma. The k and v states are those of the last token; as initial states they enter with the second
weight of the first token. Unused slots of packed sequences are 0.

Upstream's limits, avoided in the cases: for packed sequences it finds a chunk's stored state by the padded head
dimension of q and k, which must then be a power of two; no sequence may be empty; the number of angles is even.
Without `store_states_adt_outv` it returns None for out before the gate, states and sums (and for nothing else, whatever
its docstring says); the final states are one None unless asked for.
"""
from __future__ import annotations

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, Upstream, port_of, seeded
from ported_kernels.mamba3.siso_recurrence import LOG2E, chunks, per_head, respread, rotate, run, slots, weights
from ported_kernels.signature import (
    FLAG,
    Given,
    Integer,
    Packed,
    Several,
    Signature,
    Sizes,
    Tensor,
    power_of_two,
)

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def mamba3_siso_fwd_reference(
        Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, ADT: torch.Tensor, DT: torch.Tensor, Trap: torch.Tensor,
        Q_bias: torch.Tensor, K_bias: torch.Tensor, Angles: torch.Tensor, D: torch.Tensor | None = None,
        Z: torch.Tensor | None = None, Initial_States: Three | None = None, chunk_size: int = 64,
        store_states_adt_outv: bool = False, return_final_states: bool = False, cu_seqlens: torch.Tensor | None = None
        ) -> tuple[torch.Tensor | None, ...]:
    """Q, K [B, T, G, K]; V, Z [B, T, H, V]; ADT, DT, Trap [B, H, T]; Q_bias, K_bias [H, K]; Angles [B, T, H, A]; D [H];
    Initial_States [S, H, V, K], [S, H, K], [S, H, V]. Returns out, out_v [B, T, H, V], states [B, H, V, N*K], da_cs
    [B, H, T], da_cs_sum [B, H, N], q, k [B, T, H, K], qk, scale, gamma [B, H, T], then the three final states."""
    batch, length, heads, width = V.shape
    dim = Q.shape[-1]
    q = rotate(per_head(Q.double(), heads) + Q_bias.double(), Angles.double())
    k = rotate(per_head(K.double(), heads) + K_bias.double(), Angles.double())
    v, adt, dt, trap = V.double(), ADT.double(), DT.double(), Trap.double()
    skip = torch.zeros(heads).double() if D is None else D.double()
    scale, gamma, da_cs = torch.zeros_like(dt), torch.zeros_like(dt), torch.zeros_like(dt)
    total = slots(length, cu_seqlens, chunk_size)
    da_cs_sum = torch.zeros(batch, heads, total).double()
    stored = torch.zeros(batch, heads, width, total, dim).double()
    out, last_states, last_tokens = torch.zeros_like(v), [], []
    for number, pieces in chunks(length, cu_seqlens, chunk_size):
        start, end = pieces[0][1], pieces[-1][2]
        here = slice(None) if cu_seqlens is None else slice(number, number + 1)
        scale[..., start:end], gamma[..., start:end] = weights(dt[..., start:end], trap[..., start:end])
        state = torch.zeros(batch, heads, width, dim).double()
        if Initial_States is not None:
            first_state, first_k, first_v = (value[here].double() for value in Initial_States)
            late = dt[..., start] * (1 - torch.sigmoid(trap[..., start]))
            state = first_state + late[..., None, None] * first_v[..., None] * first_k[..., None, :]
        for slot, at, stop in pieces:
            da_cs[..., at:stop] = (adt[..., at:stop] * LOG2E).cumsum(-1)
            da_cs_sum[..., slot], stored[..., slot, :] = da_cs[..., stop - 1], state
            scaled = k[:, at:stop] * scale[..., at:stop].transpose(1, 2)[..., None]
            own = gamma[..., at:stop] * (q[:, at:stop] * k[:, at:stop]).sum(-1).transpose(1, 2) + skip[:, None]
            out[:, at:stop], states = run(q[:, at:stop], scaled, v[:, at:stop], adt[..., at:stop], own, state)
            state = states[-1]
        last_states.append(state)
        last_tokens.append(end - 1)
    gated = out if Z is None else out * torch.nn.functional.silu(Z.double())
    kept = (out, stored.flatten(-2), da_cs, da_cs_sum) if store_states_adt_outv else (None,) * 4
    qk = gamma * (q * k).sum(-1).transpose(1, 2)
    found = (gated, *kept, q, k * scale.transpose(1, 2)[..., None], qk, scale, gamma)
    if not return_final_states:
        return (*found, None)
    rows = (lambda x: x[:, -1]) if cu_seqlens is None else (lambda x: x[0, last_tokens])
    return (*found, torch.cat(last_states), rows(k), rows(v))


def _case(name: str, batch: int, length: int, heads: int, groups: int, dim: int, width: int, turned: int, chunk: int, *,
          ends: tuple[int, ...] = (), full: bool = False, store: bool = True, apart: bool = False) -> Case:
    """`full`: D, Z, initial and final states."""
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        per_token, count = (batch, heads, length), len(ends) or batch
        inputs: Inputs = {
            "Q": (0.5 * normal(batch, length, groups, dim)).to(dtype),
            "K": (0.5 * normal(batch, length, groups, dim)).to(dtype),
            "V": normal(batch, length, heads, width).to(dtype),
            "ADT": (-0.01 - 0.3 * normal(*per_token).abs()).float(),
            "DT": (0.01 + 0.3 * normal(*per_token).abs()).float(),
            "Trap": normal(*per_token).to(dtype), "Q_bias": (0.5 * normal(heads, dim)).float(),
            "K_bias": (0.5 * normal(heads, dim)).float(),
            "Angles": (2 * normal(batch, length, heads, turned)).float(), "chunk_size": chunk,
            "store_states_adt_outv": store, "return_final_states": full,
            "cu_seqlens": torch.tensor((0, *ends), dtype=torch.int32) if ends else None}
        if full:
            inputs |= {"D": normal(heads).float(), "Z": normal(batch, length, heads, width).to(dtype),
                       "Initial_States": ((0.3 * normal(count, heads, width, dim)).float(),
                                          normal(count, heads, dim).float(), normal(count, heads, width).to(dtype))}
        if apart:
            respread(inputs)
        return inputs
    return Case(name, build)


UPSTREAM = Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_siso_fwd.py", "mamba3_siso_fwd")
_F32 = torch.float32


def _fits(sizes: Sizes, given: Given) -> None:
    if 2 * sizes["A"] > sizes["K"] or sizes["A"] % 2:
        raise reject("Angles", f"an even number of angles, at most K/2 = {sizes['K'] // 2}", sizes["A"])
    if given["cu_seqlens"] is not None and not power_of_two(sizes["K"]):
        raise reject("Q", "a head dimension K that is a power of two, as cu_seqlens is given", sizes["K"])


SIGNATURE = Signature({
    "Q": Tensor("B T G K"), "K": Tensor("B T G K", "Q"), "V": Tensor("B T H%G V"), "ADT": Tensor("B H T"),
    "DT": Tensor("B H T"), "Trap": Tensor("B H T"), "Q_bias": Tensor("H K"), "K_bias": Tensor("H K"),
    "Angles": Tensor("B T H A"), "D": Tensor("H", optional=True), "Z": Tensor("B T H V", optional=True),
    "chunk_size": Integer(power_of_two=True), "store_states_adt_outv": FLAG, "return_final_states": FLAG,
    "cu_seqlens": Packed(optional=True),
    "Initial_States": Several((Tensor("S H V K"), Tensor("S H K"), Tensor("S H V")), optional=True)}, also=_fits)

OPERATOR = Operator(
    name="mamba3_siso_fwd",
    summary="Mamba-3 SISO forward, with what the backward pass needs",
    wrapper=port_of(UPSTREAM),
    reference="ported_kernels.mamba3.siso_fwd_reference:mamba3_siso_fwd_reference",
    oracle="float64 torch on the CPU, the token-by-token recurrence",
    outputs={"out": "V", "out_v": "V", "states": torch.bfloat16, "da_cs": _F32, "da_cs_sum": _F32, "q": "Q", "k": "K",
             "qk": _F32, "scale": _F32, "gamma": _F32, "final_state": _F32, "final_k": _F32, "final_v": "V"},
    cases=(
        _case("one token", 1, 1, 1, 1, 16, 16, 4, 16),
        _case("T37 K24 V20, grouped", 2, 37, 4, 2, 24, 20, 8, 16),
        _case("T37 K24 V20, grouped, D, Z, states", 2, 37, 4, 2, 24, 20, 8, 16, full=True),
        _case("T70 K128 V64 C64, D, Z, states", 1, 70, 2, 1, 128, 64, 32, 64, full=True),
        _case("T32, nothing stored", 1, 32, 2, 1, 16, 16, 8, 16, store=False),
        _case("packed", 1, 37, 4, 2, 32, 20, 8, 16, ends=(9, 10, 26, 37)),
        _case("packed, D, Z, states", 1, 53, 2, 1, 16, 16, 8, 16, ends=(1, 33, 53), full=True),
        _case("views with gaps", 2, 21, 4, 2, 24, 20, 8, 16, full=True, apart=True),
    ),
    # float32: the bound. bfloat16 and float16, with u = 2^-8 and 2^-11, the most that rounding to nearest moves
    # a number by: on the way to out, q and k are rounded, then the scores or the state as operands of a product, then
    # out; the state's own update rounds v once: at most five roundings in a row, 5 u of the terms' RMS. Where terms
    # cancel, atol covers sums of 2^12 products of the size 1.
    tolerances={_F32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(5 * 2**-8, 5 * 2**-8, 2**-2),
                torch.float16: Tolerance(5 * 2**-11, 5 * 2**-11, 2**-5)},
    # Stored as bfloat16 whatever the inputs are.
    own_tolerances={"states": Tolerance(5 * 2**-8, 5 * 2**-8, 2**-3)},
    upstream=UPSTREAM,
    signature=SIGNATURE,
)
