"""What `compute_dqkv` of mamba3_siso_bwd.py computes, in float64, and the inputs it is tried on.

It is the gradient of the sum over chunks of <do, out>, where a chunk's out follows from its tokens and the state that
the forward pass stored at its start (siso_recurrence.run), plus <d_ossm_state, state after the last token>. Here
autograd goes through the token-by-token recurrence of each chunk, from the stored, rounded state; what reaches a
chunk's first state is what the chunk before it receives for its last. dadt is the gradient in log(decay).

Upstream's limits, avoided in the cases: for packed sequences it finds a chunk's stored state by the padded head
dimension of q and k, which must then be a power of two; a packed sequence must not be empty when `d_ov_state` is
given; decays must be at most 1.
"""
from __future__ import annotations

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, Upstream, port_of, seeded
from ported_kernels.mamba3.siso_recurrence import LOG2E, chunks, per_head, respread, run, slots, spans
from ported_kernels.signature import FLAG, Given, Integer, Packed, Signature, Sizes, Tensor, power_of_two


def compute_dqkv_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, da_cs: torch.Tensor,
                           da_cs_sum: torch.Tensor, qk_dot: torch.Tensor, SSM_States: torch.Tensor,
                           do: torch.Tensor, d_ossm_state: torch.Tensor | None = None,
                           d_ov_state: torch.Tensor | None = None, D: torch.Tensor | None = None,
                           chunk_size: int = 64, has_input_state: bool = False,
                           Cu_Seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor | None, ...]:
    """q, k [B, T, G, K]; v, do [B, T, H, V]; da_cs, qk_dot [B, H, T]; da_cs_sum [B, H, N]; SSM_States [B, H, V, N*K];
    d_ossm_state [S, H, V, K]; d_ov_state [S, H, V]; D [H]. B is 1 and S the number of packed sequences with
    Cu_Seqlens [S+1], else S is B. Returns dq, dk [B, T, H, K], dv [B, T, H, V], dadt, dqk [B, H, T], dD [H] or None,
    d_issm_state [S, H, V, K] or None."""
    batch, length, heads, width = v.shape
    dim = q.shape[-1]
    given = SSM_States.double().reshape(batch, heads, width, -1, dim)
    skip = torch.zeros(heads, dtype=torch.float64) if D is None else D.double()
    query, key, value = per_head(q.double(), heads), per_head(k.double(), heads), v.double()
    dq, dk, dv = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    dadt, dqk = torch.zeros(batch, heads, length).double(), torch.zeros(batch, heads, length).double()
    first = []
    for number, pieces in chunks(length, Cu_Seqlens, chunk_size):
        d_state = torch.zeros(batch, heads, width, dim).double()
        if d_ossm_state is not None:
            d_state += d_ossm_state.double() if Cu_Seqlens is None else d_ossm_state[number].double()
        for slot, start, end in reversed(pieces):
            decay = torch.diff(da_cs[:, :, start:end].double(), prepend=torch.zeros(batch, heads, 1).double()) / LOG2E
            inputs = [query[:, start:end], key[:, start:end], value[:, start:end], decay,
                      qk_dot[:, :, start:end].double(), given[:, :, :, slot]]
            leaves = [leaf.clone().requires_grad_() for leaf in inputs]
            q_, k_, v_, decay_, qk_, state_ = leaves
            out, states = run(q_, k_, v_, decay_, qk_ + skip[:, None], state_)
            loss = (out * do[:, start:end].double()).sum() + (states[-1] * d_state).sum()
            grads = torch.autograd.grad(loss, leaves)
            dq[:, start:end], dk[:, start:end], dv[:, start:end] = grads[:3]
            dadt[:, :, start:end], dqk[:, :, start:end], d_state = grads[3:]
        first.append(d_state)
    if d_ov_state is not None:
        for number, (_, end) in enumerate(spans(length, Cu_Seqlens)):
            dv[:, end - 1] += d_ov_state.double() if Cu_Seqlens is None else d_ov_state[number].double()
    return (dq, dk, dv, dadt, dqk, None if D is None else dqk.sum((0, 2)),
            torch.cat(first) if has_input_state else None)


def _case(name: str, batch: int, length: int, heads: int, groups: int, dim: int, width: int, chunk: int, *,
          ends: tuple[int, ...] = (), skip: bool = False, states: bool = False, apart: bool = False) -> Case:
    """`dim` of q and k, `width` of v; `ends` packs sequences."""
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        packed = torch.tensor((0, *ends), dtype=torch.int32) if ends else None
        count = len(ends) or batch
        q, k = 0.5 * normal(batch, length, groups, dim), 0.5 * normal(batch, length, groups, dim)
        v, do = normal(batch, length, heads, width), normal(batch, length, heads, width)
        q, k, v, do = q.to(dtype), k.to(dtype), v.to(dtype), do.to(dtype)
        adt = -0.3 * normal(batch, heads, length).abs() - 0.01
        initial = 0.3 * normal(count, heads, width, dim)
        # As the forward pass stores them: computed in float64, then rounded. NaN where no chunk is.
        total = slots(length, packed, chunk)
        da_cs = torch.empty(batch, heads, length).double()
        da_cs_sum = torch.full((batch, heads, total), torch.nan, dtype=torch.float64)
        stored = torch.full((batch, heads, width, total, dim), torch.nan, dtype=torch.float64)
        for number, pieces in chunks(length, packed, chunk):
            state = initial[number][None] if packed is not None else initial
            state = state if states else torch.zeros_like(state)
            for slot, start, end in pieces:
                da_cs[:, :, start:end] = (adt[:, :, start:end] * LOG2E).cumsum(-1)
                da_cs_sum[:, :, slot], stored[:, :, :, slot] = da_cs[:, :, end - 1], state
                q_, k_, v_ = (per_head(x[:, start:end].double(), heads) for x in (q, k, v))
                here = adt[:, :, start:end]
                state = run(q_, k_, v_, here, torch.zeros_like(here), state)[1][-1]
        inputs: Inputs = {
            "q": q, "k": k, "v": v, "da_cs": da_cs.float(), "da_cs_sum": da_cs_sum.float(),
            "qk_dot": normal(batch, heads, length).float(), "SSM_States": stored.flatten(-2).to(dtype), "do": do,
            "chunk_size": chunk, "has_input_state": states, "Cu_Seqlens": packed}
        if states:
            inputs["d_ossm_state"] = 0.3 * normal(count, heads, width, dim).float()
            inputs["d_ov_state"] = normal(count, heads, width).to(dtype)
        if skip:
            inputs["D"] = normal(heads).float()
        if apart:
            respread(inputs)
        return inputs
    return Case(name, build)


UPSTREAM = Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py", "compute_dqkv")


def _whole(sizes: Sizes, given: Given) -> None:
    if given["Cu_Seqlens"] is not None and not power_of_two(sizes["K"]):
        raise reject("q", "a head dimension K that is a power of two, as Cu_Seqlens is given", sizes["K"])


SIGNATURE = Signature({
    "q": Tensor("B T G K"), "k": Tensor("B T G K", "q"), "v": Tensor("B T H%G V", "q"), "do": Tensor("B T H V", "q"),
    "chunk_size": Integer("C", power_of_two=True), "has_input_state": FLAG, "Cu_Seqlens": Packed(optional=True),
    "da_cs": Tensor("B H T"), "da_cs_sum": Tensor("B H N"), "qk_dot": Tensor("B H T"),
    "SSM_States": Tensor("B H V N*K", "q"), "d_ossm_state": Tensor("S H V K", optional=True),
    "d_ov_state": Tensor("S H V", optional=True), "D": Tensor("H", optional=True)}, also=_whole)

OPERATOR = Operator(
    name="compute_dqkv",
    summary="Mamba-3 SISO backward, step 2: gradients of rotated q and k, v, log decay, q.k, D, the input state",
    wrapper=port_of(UPSTREAM),
    reference="ported_kernels.mamba3.compute_dqkv_reference:compute_dqkv_reference",
    oracle="float64 autograd through the token-by-token recurrence",
    outputs={"dq": "q", "dk": "k", "dv": "v", "dadt": "da_cs", "dqk": "da_cs", "dD": torch.float32,
             "d_issm_state": torch.float32},
    cases=(
        _case("one token", 1, 1, 1, 1, 16, 16, 16),
        _case("T16, one chunk", 1, 16, 2, 2, 16, 16, 16, skip=True),
        _case("T37 K24 V20, grouped", 2, 37, 4, 2, 24, 20, 16),
        _case("T37 K24 V20, grouped, D, states", 2, 37, 4, 2, 24, 20, 16, skip=True, states=True),
        _case("T65 K32 V16 C32, states", 1, 65, 3, 1, 32, 16, 32, states=True),
        _case("T70 K128 V64 C64, D, states", 1, 70, 2, 1, 128, 64, 64, skip=True, states=True),
        _case("packed", 1, 37, 4, 2, 32, 20, 16, ends=(9, 10, 26, 37)),
        _case("packed, D, states", 1, 53, 2, 1, 16, 16, 16, ends=(1, 33, 53), skip=True, states=True),
        _case("views with gaps", 2, 21, 4, 2, 24, 20, 16, skip=True, states=True, apart=True),
    ),
    # float32: the bound. bfloat16 and float16, with u = 2^-8 and 2^-11, the most that rounding to nearest
    # moves a number by: inputs are the same rounded numbers for the reference. Then, on the way to an output, a
    # product's operand is rounded once (the masked scores, do * exp(decay) in the state's gradient), that gradient
    # once more when it is an operand, and the output: three roundings in a row, at most 3 u of the terms' RMS.
    # Terms of random sign add up to no more than that in RMS. Where they cancel, as in the cumulative sums of dadt and
    # in dD, an element can be off by more of itself; atol covers it: a sum of 2^12 products of the size 1, each off by
    # u, is off by 64 u in RMS.
    tolerances={torch.float32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(3 * 2**-8, 3 * 2**-8, 2**-2),
                torch.float16: Tolerance(3 * 2**-11, 3 * 2**-11, 2**-5)},
    upstream=UPSTREAM,
    signature=SIGNATURE,
)
