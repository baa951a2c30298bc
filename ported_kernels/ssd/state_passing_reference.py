"""What the functions of ssd_state_passing.py compute, in float64, and the inputs they are tried on.

With the decay of each chunk, S_{z+1} = exp(dA_z) S_z + states_z, where the first S is the initial state; where chunk z
ends in another sequence than the chunk before it (the first: than sequence 0), S_z does not pass. Forward returns S_0
.. S_{Z-1} and S_Z. Backward is given S_0 .. S_{Z-1}, and is the gradient of the sum of <dout_z, S_z> and
<dfinal, S_Z>; autograd goes through each step from the given state. The first chunk's decay has a gradient only if
there is an initial state.
"""
from __future__ import annotations

from collections.abc import Callable

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, port_of, with_gaps
from ported_kernels.signature import DTYPE, FLAG_OR_NONE, INTEGERS, Declaration, Given, Integer, Signature, Tensor
from ported_kernels.signature import Sizes as Known
from ported_kernels.ssd.chunk_state_reference import F32, ROUNDED
from ported_kernels.ssd.formula import Sizes, last_indices, leaf, upstream


def _passes(seq_idx: torch.Tensor | None, size: int | None, batch: int, count: int) -> torch.Tensor:
    """[B, Z]: 1 where the state before a chunk passes through it."""
    if seq_idx is None or size is None:
        return torch.ones(batch, count).double()
    ends = last_indices(seq_idx, size)
    return (ends == torch.cat((torch.zeros_like(ends[:, :1]), ends[:, :-1]), 1)).double()


def state_passing_fwd_reference(states: torch.Tensor, dA_chunk_cumsum: torch.Tensor,
                                initial_states: torch.Tensor | None = None, seq_idx: torch.Tensor | None = None,
                                chunk_size: int | None = None, out_dtype: torch.dtype | None = None
                                ) -> tuple[torch.Tensor, torch.Tensor]:
    """states [B, Z, H, D], dA_chunk_cumsum [B, H, Z], initial_states [B, H, D], seq_idx [B, T]. Returns [B, Z, H, D]
    and [B, H, D]."""
    batch, count = states.shape[:2]
    passes = _passes(seq_idx, chunk_size, batch, count)
    state = torch.zeros_like(states[:, 0]).double() if initial_states is None else initial_states.double()
    out = []
    for z in range(count):
        out.append(state)
        factor = dA_chunk_cumsum[:, :, z].double().exp() * passes[:, z, None]
        state = factor[..., None] * state + states[:, z].double()
    return torch.stack(out, 1), state


def state_passing_bwd_reference(states: torch.Tensor, dA_chunk_cumsum: torch.Tensor, dout: torch.Tensor,
                                dfinal_states: torch.Tensor | None = None, seq_idx: torch.Tensor | None = None,
                                has_initial_states: bool | None = None, dstates_dtype: torch.dtype | None = None,
                                states_dtype: torch.dtype | None = None, chunk_size: int | None = None
                                ) -> tuple[torch.Tensor | None, ...]:
    """states, dout [B, Z, H, D]; dfinal_states [B, H, D]. Returns dstates [B, Z, H, D], the gradient in the decays
    [B, H, Z], that in the initial state [B, H, D] or None, and, given states_dtype, states in it."""
    batch, count = states.shape[:2]
    passes = _passes(seq_idx, chunk_size, batch, count)
    after = torch.zeros_like(states[:, 0]).double() if dfinal_states is None else dfinal_states.double()
    dstates, ddecay = torch.zeros_like(states).double(), torch.zeros(dA_chunk_cumsum.shape).double()
    for z in reversed(range(count)):
        dstates[:, z] = after
        before, decay = leaf(states[:, z]), leaf(dA_chunk_cumsum[:, :, z])
        reached = (decay.exp() * passes[:, z, None])[..., None] * before
        grads = torch.autograd.grad((reached * after).sum(), (before, decay))
        ddecay[:, :, z] = grads[1]
        after = grads[0] + dout[:, z].double()
    if not has_initial_states:
        ddecay[:, :, 0] = 0
    found = (dstates, ddecay, after if has_initial_states else None)
    return found if states_dtype is None else (*found, states.double())


SHAPES = {"Z3 D480": (2, 37, 4, 2, 20, 24, 16), "one chunk": (1, 16, 1, 1, 1, 7, 16), "Z5 D64": (1, 70, 3, 1, 8, 8, 16)}


def _inputs(sizes: Sizes, full: bool) -> Inputs:
    inputs: Inputs = {"states": sizes.states(sizes.dtype).flatten(-2),
                      "dA_chunk_cumsum": -sizes.normal(sizes.batch, sizes.heads, sizes.count).abs().float()}
    return inputs | ({"seq_idx": sizes.seq_idx(), "chunk_size": sizes.size} if full else {})


def _state(sizes: Sizes) -> torch.Tensor:
    return sizes.normal(sizes.batch, sizes.heads, sizes.width * sizes.state).to(sizes.dtype)


def _fwd(sizes: Sizes, full: bool) -> Inputs:
    return _inputs(sizes, full) | ({"initial_states": _state(sizes), "out_dtype": torch.float32} if full else {})


def _bwd(sizes: Sizes, full: bool) -> Inputs:
    inputs = _inputs(sizes, full)
    inputs["dout"] = sizes.normal(*inputs["states"].shape).to(sizes.dtype)
    if full:
        inputs |= {"dfinal_states": _state(sizes), "has_initial_states": True, "states_dtype": torch.float32,
                   "dstates_dtype": torch.float32}
    return inputs


def _cases(build: Callable[[Sizes, bool], Inputs]) -> tuple[Case, ...]:
    def case(shape: str, full: bool) -> Case:
        return Case(shape + (", states, sequences" if full else ""),
                    lambda seed, dtype: build(Sizes(seed, dtype, *SHAPES[shape]), full))
    def one_sequence(seed: int, dtype: torch.dtype) -> Inputs:
        inputs = build(Sizes(seed, dtype, *SHAPES["Z3 D480"]), True)
        return {name: value for name, value in inputs.items() if name not in ("seq_idx", "chunk_size")}

    def apart(seed: int, dtype: torch.dtype) -> Inputs:
        inputs = build(Sizes(seed, dtype, *SHAPES["Z5 D64"]), False)
        return inputs | {"states": with_gaps(inputs["states"])}
    return (*(case(shape, False) for shape in SHAPES), case("Z3 D480", True), case("Z5 D64", True),
            Case("Z3 D480, states, one sequence", one_sequence), Case("views with gaps", apart))


def _operator(function: str, summary: str, reference: str, oracle: str, outputs: dict,
              build: Callable[[Sizes, bool], Inputs], signature: Signature) -> Operator:
    port = upstream("ssd_state_passing", function)
    # All arithmetic is float32; an output is rounded once.
    return Operator(name=function, summary=f"SSD: {summary}", wrapper=port_of(port),
                    reference=f"ported_kernels.ssd.state_passing_reference:{reference}", oracle=oracle,
                    outputs=outputs, cases=_cases(build), tolerances=ROUNDED, upstream=port, signature=signature)


def _given(option: str, source: str) -> Callable[[Inputs], torch.dtype]:
    return lambda inputs: inputs.get(option) or inputs[source].dtype


CHUNKS: dict[str, Declaration] = {"states": Tensor("B Z H D"), "dA_chunk_cumsum": Tensor("B H Z")}
_SEQUENCES: dict[str, Declaration] = {"seq_idx": Tensor("B T", INTEGERS, optional=True),
                                      "chunk_size": Integer(optional=True)}


def _sized(sizes: Known, given: Given) -> None:
    if given["seq_idx"] is not None and given["chunk_size"] is None:
        raise reject("chunk_size", "an integer, as seq_idx is given", None)


def _convertible(sizes: Known, given: Given) -> None:
    _sized(sizes, given)
    states, dtype = given["states"], given["states_dtype"]
    if dtype not in (None, states.dtype) and torch.empty_like(states).stride() != states.stride():
        raise reject("states", "memory without gaps, as they are to be converted", f"strides {states.stride()}")


OPERATORS = (
    _operator("_state_passing_fwd", "states before each chunk, and the last", "state_passing_fwd_reference",
              "float64 torch on the CPU, from the formula",
              {"out": _given("out_dtype", "states"), "final_states": F32}, _fwd,
              Signature({**CHUNKS, "initial_states": Tensor("B H D", optional=True), **_SEQUENCES, "out_dtype": DTYPE},
                        _sized)),
    _operator("_state_passing_bwd", "gradients of what each chunk adds, decays, initial state",
              "state_passing_bwd_reference", "float64 autograd through each step",
              {"dstates": _given("dstates_dtype", "dout"), "ddA_chunk_cumsum": F32,
               "dinitstates": _given("dstates_dtype", "dout"), "states_converted": _given("states_dtype", "states")},
              _bwd, Signature({**CHUNKS, "dout": Tensor("B Z H D"), "dfinal_states": Tensor("B H D", optional=True),
                               **_SEQUENCES, "has_initial_states": FLAG_OR_NONE, "dstates_dtype": DTYPE,
                               "states_dtype": DTYPE}, _convertible)),
)
