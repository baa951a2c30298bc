"""What the launch functions of mamba3_mimo_utils.py compute, in float64, and the inputs they are tried on.

A chunk's decays da_1 .. da_C have the sums cs_i = da_1 + .. + da_i, rest_i = da_{i+1} + .. + da_C and, for i > j,
seg_ij = da_{j+1} + .. + da_i. `compute_dacs_segsum_*` returns them; `bwd_dadt_fused_*` is the gradient in da of
<ddA_cs, exp(cs)> + <ddA_cs_rev, exp(rest)> + <dSSdA^T, exp(seg)>, with the exponents as given; autograd takes it.
`bwd_dtrap_ddt_*` is the gradient of <dfactor, scale> + <dgamma_diag, gamma> in dt and trap (siso_recurrence.weights).

Packed sequences (`..._varlen`) begin chunks of their own; the slot of a sequence's first chunk is its number plus the
whole chunks before it, and each has one slot more than it may need. A last chunk is continued by decays of 0.

Upstream's limits, avoided in the cases: the dense functions take whole chunks only, and bwd_dadt_fused_triton reads
four vectors with the strides of one; sums and exponentials run in the dtype of the inputs, which is float32 in use.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, Upstream, axes_swapped, port_of, seeded, with_gaps
from ported_kernels.mamba3.siso_recurrence import chunks, slots, spans, weights
from ported_kernels.signature import Declaration, Integer, Packed, Signature, Tensor


def _sums(da: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """da [..., C] -> cs, rest [..., C], seg [..., C, C] with zeros where i <= j."""
    size = da.shape[-1]
    i, j, term = torch.arange(size)[:, None, None], torch.arange(size)[None, :, None], torch.arange(size)
    between = ((term > j) & (term <= i)).double()
    upto, after = (term <= i[:, 0]).double(), (term > i[:, 0]).double()
    return da @ upto.T, da @ after.T, torch.einsum("...l,ijl->...ij", da, between)


def _pieces(length: int, ends: torch.Tensor | None, size: int) -> list[tuple[int, int, int]]:
    return [piece for _, found in chunks(length, ends, size) for piece in found]


def _padded(values: torch.Tensor, start: int, end: int, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(values[..., start:end].double(), (0, size - (end - start)))


def dacs_segsum_reference(da: torch.Tensor, chunk_size: int, cu_seqlens: torch.Tensor | None = None
                          ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """da [B, H, T], at most 0. Returns cs, rest [B, H, T] and seg [B, H, N, C, C]."""
    batch, heads, length = da.shape
    cs, rest = torch.zeros(da.shape).double(), torch.zeros(da.shape).double()
    seg = torch.zeros(batch, heads, slots(length, cu_seqlens, chunk_size), chunk_size, chunk_size).double()
    for slot, start, end in _pieces(length, cu_seqlens, chunk_size):
        found = _sums(_padded(da, start, end, chunk_size))
        cs[..., start:end], rest[..., start:end] = (values[..., :end - start] for values in found[:2])
        seg[:, :, slot] = found[2]
    return cs, rest, seg


def dadt_reference(dSSdA: torch.Tensor, SSdA: torch.Tensor, ddA_cs: torch.Tensor, ddA_cs_rev: torch.Tensor,
                   dA_cs: torch.Tensor, dA_cs_rev: torch.Tensor, chunk_size: int,
                   cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
    """dSSdA (query index last), SSdA [B, H, N, C, C]; the others [B, H, T]. Returns dadt [B, H, T]."""
    out = torch.zeros(ddA_cs.shape).double()
    for slot, start, end in _pieces(ddA_cs.shape[-1], cu_seqlens, chunk_size):
        w_cs, w_rest = (_padded(value.double() * exponent.double().exp(), start, end, chunk_size)
                        for value, exponent in ((ddA_cs, dA_cs), (ddA_cs_rev, dA_cs_rev)))
        w_seg = (dSSdA[:, :, slot].double().transpose(-1, -2) * SSdA[:, :, slot].double().exp()).tril(-1)
        da = torch.zeros(w_cs.shape, dtype=torch.float64, requires_grad=True)
        cs, rest, seg = _sums(da)
        (grad,) = torch.autograd.grad((w_cs * cs).sum() + (w_rest * rest).sum() + (w_seg * seg).sum(), da)
        out[..., start:end] = grad[..., :end - start]
    return out


def dtrap_ddt_reference(trap: torch.Tensor, dt: torch.Tensor, dfactor: torch.Tensor, dgamma_diag: torch.Tensor,
                        chunk_size: int, cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """All [B, H, T]; trap before its sigmoid. Returns ddt, dtrap."""
    step, mix = dt.double().clone().requires_grad_(), trap.double().clone().requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for start, end in spans(dt.shape[-1], cu_seqlens):
        if start < end:
            scale, gamma = weights(step[..., start:end], mix[..., start:end])
            loss = loss + (dfactor[..., start:end] * scale).sum() + (dgamma_diag[..., start:end] * gamma).sum()
    return torch.autograd.grad(loss, (step, mix))


def _case(kind: str, name: str, batch: int, length: int, heads: int, size: int, *, ends: tuple[int, ...] = (),
          apart: bool = False) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        normal = seeded(seed)
        shape = (batch, heads, length)
        packed = torch.tensor((0, *ends), dtype=torch.int32) if ends else None
        inputs: Inputs = {"cu_seqlens": packed} if ends else {}
        inputs["chunk_size"] = size
        lay = with_gaps if apart else torch.Tensor.contiguous
        if kind == "dacs":
            inputs["da"] = lay((-0.3 * normal(*shape).abs()).float())
        elif kind == "dtrap":
            inputs |= {"trap": lay(normal(*shape).to(dtype)), "dt": lay((0.01 + normal(*shape).abs()).float()),
                       "dfactor": normal(*shape).float(), "dgamma_diag": normal(*shape).float()}
        else:
            blocks = (batch, heads, slots(length, packed, size), size, size)
            inputs |= {"dSSdA": normal(*blocks).float(), "SSdA": (-normal(*blocks).abs()).float()}
            if apart:
                inputs["dSSdA"] = axes_swapped(inputs["dSSdA"], 3, 4)
                inputs["SSdA"] = with_gaps(inputs["SSdA"])
            inputs |= {name: normal(*shape).float() for name in ("ddA_cs", "ddA_cs_rev")}
            inputs |= {name: (-normal(*shape).abs()).float() for name in ("dA_cs", "dA_cs_rev")}
        return inputs
    return Case(name, build)


def _cases(kind: str, packed: bool) -> tuple[Case, ...]:
    if packed:
        return (_case(kind, "one empty, one of length 1", 1, 37, 3, 16, ends=(9, 10, 10, 37)),
                _case(kind, "whole chunks", 1, 48, 2, 16, ends=(16, 48)),
                _case(kind, "one token", 1, 1, 1, 16, ends=(1,)),
                _case(kind, "C32, views with gaps", 1, 70, 2, 32, ends=(33, 70), apart=True))
    return (_case(kind, "one chunk", 1, 16, 1, 16), _case(kind, "three chunks", 2, 48, 3, 16),
            _case(kind, "C64", 1, 128, 2, 64), _case(kind, "C8", 2, 24, 5, 8),
            _case(kind, "C32, views with gaps", 2, 64, 2, 32, apart=True))


_PATH = "mamba_ssm/ops/triton/mamba3/mamba3_mimo_utils.py"
# All arithmetic is float32. trap may come in another dtype; dtrap has it too and is rounded to it once.
_EXACT = {torch.float32: Tolerance(1e-5, 1e-5, 1e-5)}
_ROUNDED = {**_EXACT, torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-5), torch.float16: Tolerance(2**-11, 2**-10, 1e-5)}



# The dense functions leave what is behind the last whole chunk as it is, or read behind the last token.
def _signature(kind: str, packed: bool) -> Signature:
    first = Tensor("B H T" if packed else "B H T%C", memory="contiguous" if kind == "dadt" else "")
    token = Tensor("B H T", memory=first.memory)
    declared: dict[str, Declaration] = {"chunk_size": Integer("C", power_of_two=True)}
    if kind == "dacs":
        declared["da"] = first
    elif kind == "dtrap":
        declared |= {"trap": first, "dt": token, "dfactor": token, "dgamma_diag": token}
    else:
        declared |= {"ddA_cs": first, "ddA_cs_rev": token, "dA_cs": token, "dA_cs_rev": token}
    if packed:
        declared["cu_seqlens"] = Packed(optional=kind == "dacs", row=False)
    if kind == "dadt":
        declared |= dict.fromkeys(("dSSdA", "SSdA"), Tensor("B H N C C" if packed else "B H T/C C C"))
    return Signature(declared)


def _operator(function: str, summary: str, reference: str, outputs: Mapping[str, Any], kind: str,
              packed: bool) -> Operator:
    upstream = Upstream("mamba-ssm==2.3.2.post1", _PATH, function)
    return Operator(
        name=function, summary=f"Mamba-3 MIMO: {summary}{', packed sequences' if packed else ''}",
        wrapper=port_of(upstream), reference=f"ported_kernels.mamba3.mimo_utils_reference:{reference}",
        oracle="float64 torch on the CPU, from the sums" if kind == "dacs" else "float64 autograd through the formula",
        outputs=outputs, cases=_cases(kind, packed), tolerances=_ROUNDED if kind == "dtrap" else _EXACT,
        upstream=upstream, signature=_signature(kind, packed))


OPERATORS = tuple(
    _operator(function + ("_varlen" if packed else ""), summary, reference, outputs, kind, packed)
    for packed in (False, True)
    for function, summary, reference, outputs, kind in (
        ("bwd_dadt_fused_triton", "gradient of the log decays from all their sums", "dadt_reference",
         {"dadt": torch.float32}, "dadt"),
        ("bwd_dtrap_ddt_triton", "gradients of dt and trap", "dtrap_ddt_reference",
         {"ddt": "dt", "dtrap": "trap"}, "dtrap"),
        ("compute_dacs_segsum_triton", "sums of the log decays in a chunk", "dacs_segsum_reference",
         {"da_cs": "da", "da_cs_rev": "da", "segsum": "da"}, "dacs")))
