"""What the functions of ssd_chunk_state.py compute, in float64, and the inputs they are tried on.

`_chunk_cumsum_fwd` makes step sizes and their cumulative decays; `_chunk_state_fwd` sums what a chunk adds to the
state (formula.chunk_states). The others are gradients of <dstates, chunk states>, taken by autograd: in x, dt and the
cumulative sums; in B and the decays themselves (`_chunk_state_bwd_db`, `..._ddAcs_stable`: not in their sums, and
where a chunk has tokens only up to the last one before the end, which is all that matters). `_chunk_cumsum_bwd` is
the gradient of <ddA, dt A> + <ddt_out, dt> through limits and softplus.

Sums over tiles are atomics, in float32.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, port_of, with_gaps
from ported_kernels.signature import FLAG, INTEGERS, LIMITS, Declaration, Integer, Packed, Signature, Tensor
from ported_kernels.ssd.formula import Sizes, chunk_states, leaf, per_head, respread, step_sizes, upstream

Limit = tuple[float, float]
NO_LIMIT: Limit = (0.0, float("inf"))


def cumsum_fwd_reference(dt: torch.Tensor, A: torch.Tensor, chunk_size: int, dt_bias: torch.Tensor | None = None,
                         dt_softplus: bool = False, dt_limit: Limit = NO_LIMIT) -> tuple[torch.Tensor, torch.Tensor]:
    """dt [B, T, H], A, dt_bias [H]. Returns dA_cumsum, dt_out [B, H, Z, C]."""
    steps = step_sizes(dt.double(), None if dt_bias is None else dt_bias.double(), dt_softplus, dt_limit, chunk_size)
    return (steps * A.double()[:, None, None]).cumsum(-1), steps


def cumsum_bwd_reference(ddA: torch.Tensor, ddt_out: torch.Tensor, dt: torch.Tensor, A: torch.Tensor,
                         dt_bias: torch.Tensor | None = None, dt_softplus: bool = False, dt_limit: Limit = NO_LIMIT,
                         ddt: torch.Tensor | None = None) -> tuple[torch.Tensor | None, ...]:
    """ddA, ddt_out [B, H, Z, C]. Returns ddt [B, T, H], dA [H], ddt_bias [H] or None; `ddt` is for the first."""
    leaves = [leaf(dt), leaf(A), leaf(torch.zeros(A.shape) if dt_bias is None else dt_bias)]
    steps = step_sizes(leaves[0], leaves[2], dt_softplus, dt_limit, ddA.shape[-1])
    loss = (ddA * steps * leaves[1][:, None, None]).sum() + (ddt_out * steps).sum()
    ddt_, dA, ddt_bias = torch.autograd.grad(loss, leaves)
    return ddt_, dA, None if dt_bias is None else ddt_bias


def state_fwd_reference(B: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor,
                        seq_idx: torch.Tensor | None = None, states: torch.Tensor | None = None,
                        states_in_fp32: bool = True) -> torch.Tensor:
    """B [B, T, G, N], x [B, T, H, P], dt, dA_cumsum [B, H, Z, C], seq_idx [B, T]. Returns [B, Z, H, P, N]; `states` is
    for it."""
    return chunk_states(B.double(), x.double(), dt.double(), dA_cumsum.double(), seq_idx)


def state_dx_reference(B: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor,
                       dstates: torch.Tensor, dx: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """Returns dx [B, T, H, P], ddt, ddA_cumsum [B, H, Z, C]; `dx` is for the first."""
    leaves = [leaf(x), leaf(dt), leaf(dA_cumsum)]
    loss = (dstates.double() * chunk_states(B.double(), *leaves)).sum()
    return torch.autograd.grad(loss, leaves)


def _through_decays(B: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor,
                    dstates: torch.Tensor, seq_idx: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    decays = leaf(torch.diff(dA_cumsum.double(), dim=-1, prepend=torch.zeros_like(dA_cumsum[..., :1]).double()))
    keys = leaf(B)
    loss = (dstates.double() * chunk_states(keys, x.double(), dt.double(), decays.cumsum(-1), seq_idx)).sum()
    dB, ddA = torch.autograd.grad(loss, (keys, decays))
    return dB, ddA


def state_db_reference(x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor, dstates: torch.Tensor,
                       seq_idx: torch.Tensor | None = None, B: torch.Tensor | None = None, ngroups: int = 1
                       ) -> tuple[torch.Tensor, ...]:
    """Returns dB [B, T, G, N] and, given B, the gradient in the decays [B, H, Z, C]."""
    if B is None:      # the states are linear in B: any will do
        B = torch.zeros(*x.shape[:2], ngroups, dstates.shape[-1])
        return _through_decays(B, x, dt, dA_cumsum, dstates, seq_idx)[:1]
    return _through_decays(B, x, dt, dA_cumsum, dstates, seq_idx)


def state_ddacs_reference(B: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor,
                          dstates: torch.Tensor, seq_idx: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the gradient in the decays [B, H, Z, C]."""
    return _through_decays(B, x, dt, dA_cumsum, dstates, seq_idx)[1]


def state_varlen_reference(B: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor,
                           cu_seqlens: torch.Tensor, chunk_states: torch.Tensor) -> torch.Tensor:
    """B [T, G, N], x [T, H, P], dt, dA_cumsum [H, Z, C], chunk_states [Z, H, P, N] before each chunk. Returns the
    state after each packed sequence [S, H, P, N]: its tokens in the chunk it ends in, and the state before that chunk
    if it began earlier."""
    heads, size = dt.shape[0], dt.shape[-1]
    keys, out, ends = per_head(B.double(), heads, 1), [], cu_seqlens.tolist()
    for start, end in pairwise(ends):
        chunk = (end - 1) // size
        at = slice(max(start, chunk * size), end)
        here = slice(at.start - chunk * size, end - chunk * size)
        sums = dA_cumsum[:, chunk, here].double()
        weight = (sums[:, -1:] - sums).exp() * dt[:, chunk, here].double()
        state = torch.einsum("ht,thp,thn->hpn", weight, x[at].double(), keys[at])
        if start < chunk * size:
            state = state + chunk_states[chunk].double() * sums[:, -1].exp()[:, None, None]
        out.append(state)
    return torch.stack(out)


Build = Callable[[Sizes], Inputs]
SHAPES = {"T37, grouped": (2, 37, 4, 2, 20, 24, 16), "T32, whole chunks": (1, 32, 3, 1, 16, 16, 16),
          "one token": (1, 1, 1, 1, 16, 16, 16), "T70 P64 N128 C64": (1, 70, 2, 1, 64, 128, 64)}


def case(name: str, shape: str, build: Build, apart: tuple[str, ...] = ()) -> Case:
    def made(seed: int, dtype: torch.dtype) -> Inputs:
        inputs = build(Sizes(seed, dtype, *SHAPES[shape]))
        respread(inputs, apart)
        return inputs
    return Case(name, made)


def cases(build: Build, with_seq_idx: Build | None = None, apart: tuple[str, ...] = ()) -> tuple[Case, ...]:
    found = [case(shape, shape, build) for shape in SHAPES]
    if with_seq_idx:
        found.append(case("T37, grouped, sequences", "T37, grouped", with_seq_idx))
    if apart:
        found.append(case("views with gaps", "T37, grouped", build, apart))
    return tuple(found)


def into(name: str, build: Build, output: Callable[[Sizes], torch.Tensor]) -> Case:
    """The case in which the caller gives the tensor for an output; full of NaN, and with gaps."""
    def filled(sizes: Sizes) -> Inputs:
        return build(sizes) | {name: with_gaps(output(sizes).fill_(torch.nan))}
    return case(f"T37, grouped, {name} given", "T37, grouped", filled)


def _steps(sizes: Sizes, full: bool) -> Inputs:
    inputs: Inputs = {"dt": sizes.normal(sizes.batch, sizes.length, sizes.heads).to(sizes.dtype),
                      "A": -(0.1 + sizes.normal(sizes.heads).abs()).float()}
    if full:
        inputs |= {"dt_bias": sizes.normal(sizes.heads).float(), "dt_softplus": True, "dt_limit": (0.05, 1.5)}
    return inputs


def _steps_fwd(sizes: Sizes, full: bool) -> Inputs:
    return _steps(sizes, full) | {"chunk_size": sizes.size}


def _steps_bwd(sizes: Sizes, full: bool) -> Inputs:
    shape = (sizes.batch, sizes.heads, sizes.count, sizes.size)
    return _steps(sizes, full) | {"ddA": sizes.normal(*shape).float(), "ddt_out": sizes.normal(*shape).float()}


def _bx(sizes: Sizes) -> Inputs:
    return {"B": sizes.b(), "x": sizes.x(), **sizes.decays()}


def _fwd(sizes: Sizes) -> Inputs:
    return _bx(sizes) | {"seq_idx": sizes.seq_idx(), "states_in_fp32": False}


def _bwd(sizes: Sizes) -> Inputs:
    return _bx(sizes) | {"dstates": sizes.states()}


def _bwd_seq(sizes: Sizes) -> Inputs:
    return _bwd(sizes) | {"seq_idx": sizes.seq_idx()}


def _db(sizes: Sizes) -> Inputs:
    return _bwd(sizes) | {"ngroups": sizes.groups}


def _db_seq(sizes: Sizes) -> Inputs:
    return _bwd_seq(sizes) | {"ngroups": sizes.groups}


def _db_only(sizes: Sizes) -> Inputs:
    return {name: value for name, value in _db(sizes).items() if name != "B"}


def _varlen(sizes: Sizes) -> Inputs:
    inputs = {name: value[0] for name, value in _bx(sizes).items()}
    ends = sorted({0, sizes.length // 4, sizes.length // 4 + 1, sizes.length * 2 // 3, sizes.length})
    return inputs | {"cu_seqlens": torch.tensor(ends, dtype=torch.int32), "chunk_states": sizes.states()[0]}


def _states_dtype(inputs: Inputs) -> torch.dtype:
    if "states" in inputs:
        return inputs["states"].dtype
    return torch.float32 if inputs.get("states_in_fp32", True) else inputs["B"].dtype


F32 = torch.float32
EXACT = {F32: Tolerance(1e-5, 1e-5, 1e-5)}
# u = 2^-8 or 2^-11, the most that rounding to nearest moves a number by. Where only an output has the dtype: u.
ROUNDED = EXACT | {torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-5), torch.float16: Tolerance(2**-11, 2**-10, 1e-5)}
# One operand of the product is rounded to the dtype before it, and the output after it: 2 u of the terms' RMS. An
# element whose terms cancel may be off by more of itself: atol covers sums of 2^10 products of the size 1.
PRODUCT = {F32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(2 * 2**-8, 2 * 2**-8, 2**-3),
           torch.float16: Tolerance(2 * 2**-11, 2 * 2**-11, 2**-6)}


def _operator(function: str, summary: str, reference: str, oracle: str, outputs: dict, made: tuple[Case, ...],
              tolerances: dict[torch.dtype, Tolerance], signature: dict[str, Declaration],
              mutates: tuple[str, ...] = ()) -> Operator:
    port = upstream("ssd_chunk_state", function)
    return Operator(name=function, summary=f"SSD: {summary}", wrapper=port_of(port),
                    reference=f"ported_kernels.ssd.chunk_state_reference:{reference}", oracle=oracle, outputs=outputs,
                    cases=made, tolerances=tolerances, upstream=port, signature=Signature(signature), mutates=mutates)


SEQ_IDX = Tensor("B T", INTEGERS, optional=True)
GROUPED: dict[str, Declaration] = {"B": Tensor("B T G N"), "x": Tensor("B T H%G P")}
DECAYS: dict[str, Declaration] = dict.fromkeys(("dt", "dA_cumsum"), Tensor("B H T/C C"))
STEPS: dict[str, Declaration] = {"dt": Tensor("B T H"), "A": Tensor("H"), "dt_bias": Tensor("H", optional=True),
                                 "dt_softplus": FLAG, "dt_limit": LIMITS}
STATES = Tensor("B T/C H P N")

_FORMULA, _AUTOGRAD = "float64 torch on the CPU, from the formula", "float64 autograd through the formula"

OPERATORS = (
    _operator("_chunk_cumsum_fwd", "step sizes and cumulative decays of a chunk", "cumsum_fwd_reference", _FORMULA,
              {"dA_cumsum": F32, "dt_out": F32},
              (*cases(lambda sizes: _steps_fwd(sizes, False), apart=("dt",)),
               case("T37, bias, softplus, limits", "T37, grouped", lambda sizes: _steps_fwd(sizes, True))),
              dict.fromkeys((F32, torch.bfloat16, torch.float16), EXACT[F32]), {**STEPS, "chunk_size": Integer()}),
    _operator("_chunk_cumsum_bwd", "gradients of step sizes, A and the bias", "cumsum_bwd_reference", _AUTOGRAD,
              {"ddt": "dt", "dA": F32, "ddt_bias": F32},
              (*cases(lambda sizes: _steps_bwd(sizes, False), apart=("dt",)),
               case("T37, bias, softplus, limits", "T37, grouped", lambda sizes: _steps_bwd(sizes, True)),
               into("ddt", lambda sizes: _steps_bwd(sizes, False),
                    lambda sizes: _steps(sizes, False)["dt"])),
              ROUNDED,
              {**STEPS, **dict.fromkeys(("ddA", "ddt_out"), Tensor("B H T/C C")),
               "ddt": Tensor("B T H", optional=True)},
              ("ddt",)),
    _operator("_chunk_state_fwd", "what a chunk adds to the state", "state_fwd_reference", _FORMULA,
              {"states": _states_dtype}, (*cases(_bx, _fwd, ("x", "B")), into("states", _bx, Sizes.states)), PRODUCT,
              {**GROUPED, **DECAYS, "seq_idx": SEQ_IDX, "states": Tensor("B T/C H P N", optional=True),
               "states_in_fp32": FLAG}, ("states",)),
    _operator("_chunk_state_bwd_dx", "gradients of x, dt and the cumulative decays", "state_dx_reference", _AUTOGRAD,
              {"dx": "x", "ddt": F32, "ddA_cumsum": F32},
              (*cases(_bwd, None, ("x", "B")), into("dx", _bwd, Sizes.x)), PRODUCT,
              {**GROUPED, **DECAYS, "dstates": STATES, "dx": Tensor("B T H P", optional=True)}, ("dx",)),
    _operator("_chunk_state_bwd_db", "gradients of B and the decays", "state_db_reference", _AUTOGRAD,
              {"dB": F32, "ddA": F32},
              (*cases(_db, _db_seq, ("x", "B")), case("T37, grouped, without B", "T37, grouped", _db_only)), PRODUCT,
              {"ngroups": Integer("G"), "x": Tensor("B T H%G P"), **DECAYS, "dstates": STATES, "seq_idx": SEQ_IDX,
               "B": Tensor("B T G N", optional=True)}),
    _operator("_chunk_state_bwd_ddAcs_stable", "gradient of the decays", "state_ddacs_reference", _AUTOGRAD,
              {"ddA": F32}, cases(_bwd, _bwd_seq, ("x", "B")), PRODUCT,
              {**GROUPED, **DECAYS, "dstates": STATES, "seq_idx": SEQ_IDX}),
    _operator("chunk_state_varlen", "the state after each packed sequence", "state_varlen_reference", _FORMULA,
              {"states": "chunk_states"}, cases(_varlen), PRODUCT,
              {"B": Tensor("T G N"), "x": Tensor("T H%G P"), **dict.fromkeys(("dt", "dA_cumsum"), Tensor("H T/C C")),
               "cu_seqlens": Packed(slots=""), "chunk_states": Tensor("T/C H P N")}),
)
