"""What `compute_dqktheta` of mamba3_siso_bwd.py computes, in float64, and the inputs it is tried on.

With q and k plus their biases, rotated by the angles, it is the gradient of

    <dq_in, rotated q> + <dk_in, scale * rotated k> + <dqk, gamma * q . k> + <d_ok_state, rotated k of the last token>

in q, k, both biases, the angles, scale and gamma; autograd takes it. Packed sequences matter to the last term only.
Gradients of q and k add up over the value heads that share them.

The last term is added by atomics to dk in its own dtype. The CPU's interpreter has them for float32 only, so in the
cases with that term dk_in, whose dtype dk has, is float32.
"""
from __future__ import annotations

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, Upstream, port_of, seeded
from ported_kernels.mamba3.siso_recurrence import per_head, respread, rotate, spans
from ported_kernels.signature import Given, Integer, Packed, Signature, Sizes, Tensor


def compute_dqktheta_reference(q: torch.Tensor, k: torch.Tensor, scale: torch.Tensor, gamma: torch.Tensor,
                               q_bias: torch.Tensor, k_bias: torch.Tensor, angles: torch.Tensor, dq_in: torch.Tensor,
                               dk_in: torch.Tensor, dqk: torch.Tensor, d_ok_state: torch.Tensor | None = None,
                               chunk_size: int = 64, Cu_Seqlens: torch.Tensor | None = None
                               ) -> tuple[torch.Tensor, ...]:
    """q, k [B, T, G, K]; scale, gamma, dqk [B, H, T]; q_bias, k_bias [H, K]; angles [B, T, H, A]; dq_in, dk_in
    [B, T, H, K]; d_ok_state [S, H, K]. Returns dq, dk [B, T, G, K], dq_bias, dk_bias [H, K], dangles [B, T, H, A],
    dscale, dgamma [B, H, T]."""
    leaves = [x.double().clone().requires_grad_() for x in (q, k, q_bias, k_bias, angles, scale, gamma)]
    q_, k_, q_bias_, k_bias_, angles_, scale_, gamma_ = leaves
    heads = q_bias.shape[0]
    query, key = per_head(q_, heads) + q_bias_, per_head(k_, heads) + k_bias_
    turned = rotate(key, angles_)
    loss = ((dq_in.double() * rotate(query, angles_)).sum()
            + (dk_in.double() * turned * scale_.transpose(1, 2)[..., None]).sum()
            + (dqk.double() * gamma_ * (query * key).sum(-1).transpose(1, 2)).sum())
    if d_ok_state is not None:
        last = [end - 1 for _, end in spans(q.shape[1], Cu_Seqlens)]
        rows = turned[:, last[0]] if Cu_Seqlens is None else turned[0, last]
        loss = loss + (d_ok_state.double() * rows).sum()
    return torch.autograd.grad(loss, leaves)


def _case(name: str, batch: int, length: int, heads: int, groups: int, dim: int, turned: int, chunk: int, *,
          ends: tuple[int, ...] = (), state: bool = False, apart: bool = False) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        packed = torch.tensor((0, *ends), dtype=torch.int32) if ends else None
        per_token = (batch, heads, length)
        inputs: Inputs = {
            "q": normal(batch, length, groups, dim).to(dtype), "k": normal(batch, length, groups, dim).to(dtype),
            "scale": (0.1 + normal(*per_token).abs()).float(), "gamma": (0.1 + normal(*per_token).abs()).float(),
            "q_bias": normal(heads, dim).float(), "k_bias": normal(heads, dim).float(),
            "angles": (2 * normal(batch, length, heads, turned)).float(),
            "dq_in": normal(batch, length, heads, dim).to(dtype),
            "dk_in": normal(batch, length, heads, dim).to(torch.float32 if state else dtype),
            "dqk": normal(*per_token).float(), "chunk_size": chunk, "Cu_Seqlens": packed}
        if state:
            inputs["d_ok_state"] = normal(len(ends) or batch, heads, dim).float()
        if apart:
            respread(inputs)
        return inputs
    return Case(name, build)


UPSTREAM = Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py", "compute_dqktheta")


def angles_fit(sizes: Sizes, given: Given) -> None:
    if 2 * sizes["A"] > sizes["K"]:
        raise reject("angles", f"at most K/2 = {sizes['K'] // 2} angles", sizes["A"])


SIGNATURE = Signature({
    "q": Tensor("B T G K"), "k": Tensor("B T G K"), "scale": Tensor("B H%G T"), "gamma": Tensor("B H T"),
    "q_bias": Tensor("H K"), "k_bias": Tensor("H K"), "angles": Tensor("B T H A"), "dq_in": Tensor("B T H K"),
    "dk_in": Tensor("B T H K"), "dqk": Tensor("B H T"), "chunk_size": Integer(power_of_two=True),
    "Cu_Seqlens": Packed(optional=True), "d_ok_state": Tensor("S H K", optional=True)}, also=angles_fit)

OPERATOR = Operator(
    name="compute_dqktheta",
    summary="Mamba-3 SISO backward, step 3: gradients of q, k, biases, angles, scale and gamma through the rotation",
    wrapper=port_of(UPSTREAM),
    reference="ported_kernels.mamba3.compute_dqktheta_reference:compute_dqktheta_reference",
    oracle="float64 autograd through bias, rotation and scaling",
    outputs={"dq": "dq_in", "dk": "dk_in", "dq_bias": torch.float32, "dk_bias": torch.float32, "dangles": "angles",
             "dscale": "scale", "dgamma": "gamma"},
    cases=(
        _case("one token", 1, 1, 1, 1, 16, 8, 16),
        _case("T37 K24 A8, grouped", 2, 37, 4, 2, 24, 8, 16),
        _case("T37 K24 A8, grouped, K state", 2, 37, 4, 2, 24, 8, 16, state=True),
        _case("T32 K64 A32, all rotated", 1, 32, 3, 1, 64, 32, 32),
        _case("T70 K128 A32, two blocks, K state", 1, 70, 2, 1, 128, 32, 64, state=True),
        _case("packed", 1, 37, 4, 2, 32, 8, 16, ends=(9, 10, 26, 37)),
        _case("packed, K state", 1, 37, 4, 2, 32, 16, 16, ends=(9, 10, 26, 37), state=True),
        _case("views with gaps", 2, 21, 4, 2, 24, 8, 16, state=True, apart=True),
    ),
    # Everything is computed in float32 from the rounded inputs, and dq and dk are rounded once at the end: at most
    # 2^-8 (bfloat16) or 2^-11 (float16) of an element. The other outputs are float32.
    tolerances={torch.float32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-4),
                torch.float16: Tolerance(2**-11, 2**-10, 1e-4)},
    upstream=UPSTREAM,
    signature=SIGNATURE,
)
