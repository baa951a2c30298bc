"""What `apply_dk_state_post` of mamba3_siso_bwd.py adds to three gradients, in float64, and the inputs it is tried on.

With k plus its bias, rotated by the angles, it is the gradient of <d_ok_state, rotated k of each sequence's last token>
in k, the bias and the angles; autograd takes it. `compute_dqktheta` calls it after its own kernel.

It adds by atomics in the dtype of what it adds to. The CPU's interpreter has them for float32 only, so in the cases dk,
dk_bias and dangles are float32.
"""
from __future__ import annotations

import torch

from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, Upstream, port_of, seeded, with_gaps
from ported_kernels.mamba3.compute_dqktheta_reference import angles_fit
from ported_kernels.mamba3.siso_recurrence import per_head, rotate, spans
from ported_kernels.signature import Packed, Signature, Tensor


def apply_dk_state_post_reference(
        d_ok_state: torch.Tensor, angles: torch.Tensor, k: torch.Tensor, k_bias: torch.Tensor, dk: torch.Tensor,
        dk_bias: torch.Tensor, dangles: torch.Tensor, Cu_Seqlens: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, ...]:
    """d_ok_state [S, H, K]; angles, dangles [B, T, H, A]; k, dk [B, T, G, K]; k_bias, dk_bias [H, K]. Returns dk,
    dk_bias and dangles after it; changes nothing."""
    leaves = [x.double().clone().requires_grad_() for x in (k, k_bias, angles)]
    turned = rotate(per_head(leaves[0], k_bias.shape[0]) + leaves[1], leaves[2])
    last = [end - 1 for _, end in spans(k.shape[1], Cu_Seqlens)]
    rows = turned[:, last[0]] if Cu_Seqlens is None else turned[0, last]
    added = torch.autograd.grad((d_ok_state.double() * rows).sum(), leaves)
    return tuple(before.double() + more for before, more in zip((dk, dk_bias, dangles), added, strict=True))


def _case(name: str, batch: int, length: int, heads: int, groups: int, dim: int, turned: int, *,
          ends: tuple[int, ...] = (), apart: bool = False) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        lay = with_gaps if apart else torch.Tensor.contiguous
        inputs: Inputs = {
            "d_ok_state": lay(normal(len(ends) or batch, heads, dim).to(dtype)),
            "angles": lay((2 * normal(batch, length, heads, turned)).float()),
            "k": lay(normal(batch, length, groups, dim).to(dtype)), "k_bias": lay(normal(heads, dim).float()),
            "dk": lay(normal(batch, length, groups, dim).float()), "dk_bias": lay(normal(heads, dim).float()),
            "dangles": lay(normal(batch, length, heads, turned).float())}
        return inputs | ({"Cu_Seqlens": torch.tensor((0, *ends), dtype=torch.int32)} if ends else {})
    return Case(name, build)


UPSTREAM = Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py", "apply_dk_state_post")
CHANGED = ("dk", "dk_bias", "dangles")

OPERATOR = Operator(
    name="apply_dk_state_post",
    summary="Mamba-3 SISO backward, in step 3: adds the gradient of the K state to those of k, its bias and the angles",
    wrapper=port_of(UPSTREAM),
    reference="ported_kernels.mamba3.dk_state_post_reference:apply_dk_state_post_reference",
    oracle="float64 autograd through bias and rotation",
    outputs={name: name for name in CHANGED},
    cases=(
        _case("one token", 1, 1, 1, 1, 16, 8),
        _case("T37 K24 A8, grouped", 2, 37, 4, 2, 24, 8),
        _case("T5 K128 A64, all rotated", 1, 5, 3, 1, 128, 64),
        _case("packed", 1, 37, 4, 2, 24, 8, ends=(9, 10, 26, 37)),
        _case("views with gaps", 2, 7, 4, 2, 24, 8, apart=True),
    ),
    # All arithmetic and all that is added to is float32, so every dtype has the bound of float32.
    tolerances=dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), Tolerance(1e-5, 1e-5, 1e-5)),
    upstream=UPSTREAM,
    mutates=CHANGED,
    left_in=CHANGED,
    signature=Signature({
        "k": Tensor("B T G K"), "dk": Tensor("B T G K"), "angles": Tensor("B T H%G A"), "dangles": Tensor("B T H A"),
        "k_bias": Tensor("H K"), "dk_bias": Tensor("H K"), "Cu_Seqlens": Packed(optional=True),
        "d_ok_state": Tensor("S H K")}, also=angles_fit),
)
