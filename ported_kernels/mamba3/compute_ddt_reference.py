"""What `compute_ddt_dtrap_dinput_states` of mamba3_siso_bwd.py computes, in float64, and the inputs it is tried on.

With gamma and scale of dt and trap (siso_recurrence.weights), sequence by sequence, it is the gradient of

    <dscale, scale> + <dgamma, gamma> + <d_issm_state, input state + dt_0 (1 - sigmoid(trap_0)) input v input k^T>

in dt, trap and the three input states; autograd takes it. `trap` is given before its sigmoid.

Upstream's limit, avoided in the cases: with input states no packed sequence may be empty.
"""
from __future__ import annotations

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, Upstream, port_of, seeded
from ported_kernels.mamba3.siso_recurrence import respread, spans, weights
from ported_kernels.signature import Given, Packed, Signature, Sizes, Tensor


def compute_ddt_dtrap_dinput_states_reference(
        dscale: torch.Tensor, dgamma: torch.Tensor, dt: torch.Tensor, trap: torch.Tensor,
        d_issm_state: torch.Tensor | None = None, input_k_state: torch.Tensor | None = None,
        input_v_state: torch.Tensor | None = None, Cu_Seqlens: torch.Tensor | None = None
        ) -> tuple[torch.Tensor | None, ...]:
    """dscale, dgamma, dt, trap [B, H, T]; d_issm_state [S, H, V, K]; input_k_state [S, H, K]; input_v_state
    [S, H, V]. Returns ddt, dtrap [B, H, T], d_input_state [S, H, V, K], d_input_k [S, H, K], d_input_v [S, H, V]."""
    dt, trap = dt.double().clone().requires_grad_(), trap.double().clone().requires_grad_()
    parts = spans(dt.shape[-1], Cu_Seqlens)
    loss = torch.zeros((), dtype=torch.float64)
    for start, end in parts:
        scale, gamma = weights(dt[..., start:end], trap[..., start:end])
        loss = loss + (dscale[..., start:end] * scale).sum() + (dgamma[..., start:end] * gamma).sum()
    if d_issm_state is None or input_k_state is None or input_v_state is None:
        return (*torch.autograd.grad(loss, (dt, trap)), None, None, None)
    k, v = input_k_state.double().clone().requires_grad_(), input_v_state.double().clone().requires_grad_()
    state = torch.zeros(d_issm_state.shape, dtype=torch.float64, requires_grad=True)
    late = dt * (1 - torch.sigmoid(trap))
    starts = [start for start, _ in parts]
    first = late[..., 0] if Cu_Seqlens is None else late[0, :, starts].T
    entering = state + first[..., None, None] * v[..., None] * k[..., None, :]
    loss = loss + (d_issm_state * entering).sum()
    return torch.autograd.grad(loss, (dt, trap, state, k, v))


def _case(name: str, batch: int, length: int, heads: int, dim: int = 0, width: int = 0, *,
          ends: tuple[int, ...] = (), apart: bool = False) -> Case:
    """With `dim` of k and `width` of v there are input states."""
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        shape = (batch, heads, length)
        inputs: Inputs = {
            "dscale": normal(*shape).float(), "dgamma": normal(*shape).float(),
            "dt": (0.01 + 0.3 * normal(*shape).abs()).float(), "trap": normal(*shape).to(dtype),
            "Cu_Seqlens": torch.tensor((0, *ends), dtype=torch.int32) if ends else None}
        if dim:
            count = len(ends) or batch
            inputs["d_issm_state"] = 0.3 * normal(count, heads, width, dim).float()
            inputs["input_k_state"] = normal(count, heads, dim).float()
            inputs["input_v_state"] = normal(count, heads, width).to(dtype)
        if apart:
            respread(inputs)
        return inputs
    return Case(name, build)


UPSTREAM = Upstream("mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py",
                    "compute_ddt_dtrap_dinput_states")


def _together(sizes: Sizes, given: Given) -> None:
    for name in ("input_k_state", "input_v_state"):
        if given["d_issm_state"] is not None and given[name] is None:
            raise reject(name, "a tensor, as d_issm_state is given", None)


SIGNATURE = Signature({
    "dscale": Tensor("B H T"), "dgamma": Tensor("B H T"), "dt": Tensor("B H T"), "trap": Tensor("B H T"),
    "Cu_Seqlens": Packed(optional=True), "d_issm_state": Tensor("S H V K", optional=True),
    "input_k_state": Tensor("S H K", optional=True), "input_v_state": Tensor("S H V", optional=True)}, also=_together)

OPERATOR = Operator(
    name="compute_ddt_dtrap_dinput_states",
    summary="Mamba-3 SISO backward, step 4: gradients of dt, trap and the input states",
    wrapper=port_of(UPSTREAM),
    reference="ported_kernels.mamba3.compute_ddt_reference:compute_ddt_dtrap_dinput_states_reference",
    oracle="float64 autograd through the trapezoidal weights",
    outputs={"ddt": torch.float32, "dtrap": torch.float32, "d_input_state": torch.float32,
             "d_input_k": torch.float32, "d_input_v": torch.float32},
    cases=(
        _case("one token", 1, 1, 1),
        _case("T37", 2, 37, 4),
        _case("T64", 1, 64, 3),
        _case("T300", 1, 300, 2),
        _case("one token, input states", 1, 1, 1, 16, 16),
        _case("T37 K24 V20, input states", 2, 37, 4, 24, 20),
        _case("T65 K128 V64, input states", 1, 65, 2, 128, 64),
        _case("packed, one empty", 1, 37, 4, ends=(9, 10, 10, 37)),
        _case("packed, input states", 1, 90, 4, 24, 20, ends=(9, 10, 77, 90)),
        _case("views with gaps", 2, 21, 4, 24, 20, apart=True),
    ),
    # `trap` and `input_v_state` come in the dtype and are exact for the reference; all arithmetic and all outputs are
    # float32, so every dtype has the bound of float32.
    tolerances=dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), Tolerance(1e-5, 1e-5, 1e-5)),
    upstream=UPSTREAM,
    signature=SIGNATURE,
)
