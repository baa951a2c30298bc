"""FLA's context-parallel kernels at K = V = 128, held against the references of the KDA state trio.

Their second output is M of the trio, backward its transpose. What the kernels have and the trio lacks: several heads of
`w`, `u` and the gate to one of `key` and `query`.
"""
from __future__ import annotations

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Upstream, seeded
from ported_kernels.interpreter import MAX_PROGRAMS
from ported_kernels.kda.fla_cp import ASKED, CHUNK_SIZE, PORT, K, V
from ported_kernels.kda.state_reference import (
    TOLERANCES,
    Change,
    apart,
    gate_in_dtype,
    in_chunks,
    kda_split_state_summary_reference,
    kda_state_grad_ext_reference,
    kda_state_transition_reference,
    tokens,
    turned,
)
from ported_kernels.signature import NUMBER, Given, Signature, Sizes, Tensor, Value

BLOCKS = (32, 64)


def _for_each(head: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, T, H, K] -> [B, T, heads, K], each head as often as it is used."""
    return head.repeat_interleave(heads // head.shape[2], dim=2)


def fla_cp_state_summary_reference(key: torch.Tensor, w: torch.Tensor, u: torch.Tensor, gate: torch.Tensor,
                                   block_columns: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    S_ext, M = kda_split_state_summary_reference(gate, _for_each(key, w.shape[2]), w, u, chunk_size=CHUNK_SIZE)
    assert S_ext is not None and M is not None
    return S_ext, M


def fla_cp_state_grad_ext_reference(
        query: torch.Tensor, key: torch.Tensor, w: torch.Tensor, gate: torch.Tensor, grad_output: torch.Tensor,
        grad_value: torch.Tensor, scale: float, block_columns: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    query, key = (_for_each(x, w.shape[2]) for x in (query, key))
    dS_ext = kda_state_grad_ext_reference(query, key, w, gate, grad_output, grad_value, scale, chunk_size=CHUNK_SIZE)
    return dS_ext, kda_state_transition_reference(gate, key, w, chunk_size=CHUNK_SIZE).mT


def _build(seed: int, dtype: torch.dtype, T: int, heads: int, shared: int) -> Inputs:
    """`shared` heads to one of `key`. Gate, key, W and U belong together where that is 1; where it is more, the key is
    that of the first of them, and the state stays bounded all the same: keys have length one, beta is below it."""
    decay, each, beta, value = tokens(seed, 1, T, heads, K, V)
    each = _for_each(each[:, :, ::shared], heads)
    if shared > 1:
        decay = _for_each(decay[:, :, ::shared], heads)     # else a key would need a decay to the chunk's end for each
    gate, key, w, u = in_chunks(decay, each, beta, value, CHUNK_SIZE)
    return {"key": key[:, :, ::shared].to(dtype), "w": w.to(dtype), "u": u.to(dtype), "gate": gate.float()}


def _case(name: str, T: int, *changes: Change, backward: bool, block: int = 32, heads: int = 2,
          shared: int = 1) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        inputs = _build(seed, dtype, T, heads, shared)
        if backward:
            del inputs["u"]
            normal = seeded(seed + 1)
            # a query stands at its own token: it sees the state decayed from the start of the chunk
            inputs["query"] = (normal(1, T, heads, K) * 2 ** inputs["gate"].double())[:, :, ::shared].to(dtype)
            inputs["grad_output"] = normal(1, T, heads, V).to(dtype)
            inputs["grad_value"] = normal(1, T, heads, V).to(dtype)
            inputs["scale"] = K ** -0.5
        for change in changes:
            change(inputs)
        return inputs | {"block_columns": block}
    return Case(name, build)


def _cases(backward: bool) -> tuple[Case, ...]:
    return (
        *(_case(f"T{T}", T, backward=backward) for T in (64, 100, 256, 1000)),
        *(_case(f"T{T}, blocks of 64", T, backward=backward, block=64) for T in (64, 100)),
        _case("one token", 1, backward=backward),
        _case("T65, one head", 65, backward=backward, heads=1),
        _case("T130, two heads to a key", 130, backward=backward, heads=4, shared=2),
        _case("gate in the inputs' dtype", 100, gate_in_dtype, backward=backward),
        _case("views with gaps", 100, apart, backward=backward),
        _case("swapped axes", 100, turned, backward=backward),
    )


DTYPES = (torch.float32, torch.bfloat16)
_KEY = Tensor(f"1 T H {K}", DTYPES)
_WIDE = Tensor("1 T HV%H 128", "key")
_GATE = Tensor("1 T HV 128", DTYPES)
_COLUMNS = Value(lambda value: isinstance(value, int) and not isinstance(value, bool) and value in BLOCKS,
                 f"one of {', '.join(map(str, BLOCKS))}")


def _launchable(sizes: Sizes, given: Given) -> None:
    blocks = (V + K) // given["block_columns"]
    if sizes["HV"] * blocks > MAX_PROGRAMS:
        raise reject("w", f"at most {MAX_PROGRAMS // blocks} heads, for the launcher takes {MAX_PROGRAMS} programs",
                     sizes["HV"])


_RELEASE, _SOURCE = "fla-core==0.5.2", "fla/ops/cp/chunk_delta_h.py"

SUMMARY = Operator(
    name="fla_cp_state_summary",
    summary="FLA context parallelism: a part of the sequence as an affine map of the state, S_ext and M",
    wrapper="ported_kernels.kda.fla_cp:fla_cp_state_summary",
    reference="ported_kernels.kda.fla_cp_reference:fla_cp_state_summary_reference",
    oracle="float64 torch on the CPU, chunk by chunk",
    outputs={"S_ext": torch.float32, "M": torch.float32},
    cases=_cases(backward=False),
    tolerances=TOLERANCES,
    upstream=Upstream(_RELEASE, _SOURCE, "pre_process_fwd_kernel_merged", ASKED, PORT),
    signature=Signature({"key": _KEY, "w": _WIDE, "u": Tensor("1 T HV 128", "key"), "gate": _GATE,
                         "block_columns": _COLUMNS}, _launchable),
)

GRAD_EXT = Operator(
    name="fla_cp_state_grad_ext",
    summary="FLA context parallelism, backward: a part of the sequence as a map of the state's gradient, dS_ext and dM",
    wrapper="ported_kernels.kda.fla_cp:fla_cp_state_grad_ext",
    reference="ported_kernels.kda.fla_cp_reference:fla_cp_state_grad_ext_reference",
    oracle="float64 torch on the CPU, chunk by chunk in reverse",
    outputs={"dS_ext": torch.float32, "dM": torch.float32},
    cases=_cases(backward=True),
    tolerances=TOLERANCES,
    upstream=Upstream(_RELEASE, _SOURCE, "pre_process_bwd_kernel_merged", ASKED, PORT),
    signature=Signature({"query": _KEY, "key": Tensor(f"1 T H {K}", "query"),
                         "w": Tensor("1 T HV%H 128", "query"), "gate": _GATE,
                         "grad_output": Tensor("1 T HV 128", "query"),
                         "grad_value": Tensor("1 T HV 128", "query"), "scale": NUMBER, "block_columns": _COLUMNS},
                        _launchable),
)

OPERATORS = (SUMMARY, GRAD_EXT)
