"""What the KDA state operators compute, in float64 torch from the formulas, and the inputs they are tried on.

With a chunk's matrices K_c, W_c, U_c and the last row g of its gate, a state S becomes

    diag(2^g) S + K_c^T (U_c - W_c S).

The inputs are those of Kimi Delta Attention: keys of length one, steps beta in (0, 1), decays below one, and W, U from
the triangular system that makes a chunk of the recurrence

    S_t = D_t S + beta_t k_t (v_t - k_t^T D_t S)^T,     D_t = diag(2^(log2 decay of token t))

out of its tokens. The states stay of moderate size, however long the sequence is.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, Upstream, axes_swapped, seeded, with_gaps


def _chunks(tensors: tuple[torch.Tensor, ...], size: int, heads: int | None,
            offset: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """[B, T, H_TOTAL, D] -> chunk by chunk [B, H, t, D] of the heads asked for, in float64."""
    last = None if heads is None else offset + heads
    chosen = [x[:, :, offset:last].double().transpose(1, 2) for x in tensors]
    for start in range(0, tensors[0].shape[1], size):
        yield tuple(x[:, :, start:start + size] for x in chosen)


def _tokens_first(w: torch.Tensor, head_first: bool) -> torch.Tensor:
    return w.transpose(1, 2) if head_first else w


def kda_split_state_summary_reference(
        gate: torch.Tensor, key: torch.Tensor, w: torch.Tensor, u: torch.Tensor | None = None, *, chunk_size: int = 64,
        heads: int | None = None, head_offset: int = 0, w_head_first: bool = False, mode: str = "both",
        block_columns: int = 64) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The state that starts as zero, and, as it is linear in the state, what the identity becomes without U."""
    w = _tokens_first(w, w_head_first)
    values = torch.zeros_like(key) if u is None else u
    H = (key.shape[2] if heads is None else head_offset + heads) - head_offset
    state = torch.zeros(key.shape[0], H, key.shape[3], values.shape[3], dtype=torch.float64)
    transfer = torch.eye(key.shape[3], dtype=torch.float64).expand(*state.shape[:2], -1, -1)
    for g, k, weight, value in _chunks((gate, key, w, values), chunk_size, heads, head_offset):
        decay = 2 ** g[:, :, -1, :, None]
        state = decay * state + k.mT @ (value - weight @ state)
        transfer = decay * transfer - k.mT @ (weight @ transfer)
    return state if mode != "transfer" else None, transfer if mode != "state" else None


def kda_state_transition_reference(
        gate: torch.Tensor, key: torch.Tensor, w: torch.Tensor, *, chunk_size: int = 64, heads: int | None = None,
        head_offset: int = 0, w_head_first: bool = False, block_columns: int = 64) -> torch.Tensor:
    """The product of the chunks' matrices, the last one leftmost."""
    product = torch.eye(key.shape[3], dtype=torch.float64)
    for g, k, weight in _chunks((gate, key, _tokens_first(w, w_head_first)), chunk_size, heads, head_offset):
        product = (torch.diag_embed(2 ** g[:, :, -1]) - k.mT @ weight) @ product
    return product


def kda_state_grad_ext_reference(
        query: torch.Tensor, key: torch.Tensor, w: torch.Tensor, gate: torch.Tensor, grad_output: torch.Tensor,
        grad_value: torch.Tensor, scale: float, *, chunk_size: int = 64, heads: int | None = None,
        head_offset: int = 0, w_head_first: bool = False, block_columns: int = 64) -> torch.Tensor:
    tensors = (query, key, _tokens_first(w, w_head_first), gate, grad_output, grad_value)
    grad = torch.zeros((), dtype=torch.float64)
    for q, k, weight, g, d_out, d_value in reversed(list(_chunks(tensors, chunk_size, heads, head_offset))):
        if not grad.dim():
            grad = torch.zeros(*q.shape[:2], q.shape[3], d_out.shape[3], dtype=torch.float64)
        d_new = k @ grad + d_value
        grad = 2 ** g[:, :, -1, :, None] * grad + q.mT @ (scale * d_out) - weight.mT @ d_new
    return grad


def tokens(seed: int, B: int, T: int, H: int, K: int, V: int) -> tuple[torch.Tensor, ...]:
    """log2 decay, key [B, T, H, K], beta [B, T, H] and value [B, T, H, V] of each token, float64."""
    normal = seeded(seed)
    decay = -0.003 * torch.nn.functional.softplus(2 * normal(B, T, H, K))
    key = torch.nn.functional.normalize(normal(B, T, H, K), dim=-1)
    return decay, key, torch.sigmoid(normal(B, T, H) - 1), normal(B, T, H, V)


def in_chunks(decay: torch.Tensor, key: torch.Tensor, beta: torch.Tensor, value: torch.Tensor,
              size: int) -> tuple[torch.Tensor, ...]:
    """gate, key, w and u of the operators, [B, T, H, ...], from what `tokens` gives.

    With G the cumulative decay in a chunk, and L the strictly lower triangle of beta_i (k_i 2^(G_i - G_j)) . k_j:
    W = (I + L)^-1 beta k 2^G, U = (I + L)^-1 beta v, and the key of token j is brought to the end of the chunk.
    """
    parts = []
    for start in range(0, key.shape[1], size):
        g, k, v = (x[:, start:start + size].transpose(1, 2) for x in (decay.clone(), key, value))
        step = beta[:, start:start + size].transpose(1, 2)[..., None]
        g = g.cumsum(-2)
        mixed = step * (k * 2 ** g) @ (k * 2 ** -g).mT
        system = torch.eye(k.shape[-2], dtype=torch.float64) + mixed.tril(-1)
        w, u = (torch.linalg.solve_triangular(system, step * x, upper=False) for x in (k * 2 ** g, v))
        parts.append((g, k * 2 ** (g[:, :, -1:] - g), w, u))
    return tuple(torch.cat(one, dim=2).transpose(1, 2).contiguous() for one in zip(*parts, strict=True))


H, H_TOTAL, WIDTH = 2, 3, 128


def _head_first(inputs: Inputs) -> None:
    inputs["w"] = inputs["w"].transpose(1, 2).contiguous()
    inputs["w_head_first"] = True


def apart(inputs: Inputs) -> None:
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            inputs[name] = with_gaps(value)


def turned(inputs: Inputs) -> None:
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            inputs[name] = axes_swapped(value, 1, 2)


def _poisoned(inputs: Inputs) -> None:
    """NaN in the heads that the call leaves out."""
    first = inputs["head_offset"]
    last = first + inputs["heads"]
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            by_head = value.transpose(1, 2) if name == "w" and inputs.get("w_head_first") else value
            by_head[:, :, :first] = float("nan")
            by_head[:, :, last:] = float("nan")


def gate_in_dtype(inputs: Inputs) -> None:
    inputs["gate"] = inputs["gate"].to(inputs["key"].dtype)


Change = Callable[[Inputs], None]


def _build(seed: int, dtype: torch.dtype, B: int, T: int, V: int, chunk: int, heads: tuple[int, int, int]) -> Inputs:
    """`heads`: H, the first one, H_TOTAL."""
    count, offset, total = heads
    decay, each, beta, value = tokens(seed, B, T, total, WIDTH, V)
    gate, key, w, u = in_chunks(decay, each, beta, value, chunk)
    return {"gate": gate.float(), "key": key.to(dtype), "w": w.to(dtype), "u": u.to(dtype), "chunk_size": chunk,
            "heads": count, "head_offset": offset}


def _case(name: str, T: int, *changes: Change, mode: str | None = None, B: int = 1, V: int = WIDTH, chunk: int = 64,
          block: int = 64, heads: tuple[int, int, int] = (H, 1, H_TOTAL)) -> Case:
    """Of the summary; without `mode`, of the transition."""
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        inputs = _build(seed, dtype, B, T, V, chunk, heads)
        if mode is None or mode == "transfer":
            del inputs["u"]
        if mode is not None:
            inputs["mode"] = mode
        inputs["block_columns"] = block
        for change in changes:
            change(inputs)
        return inputs
    return Case(name, build)


def _grad_case(name: str, T: int, *changes: Change, B: int = 1, V: int = WIDTH, chunk: int = 64, block: int = 64,
               heads: tuple[int, int, int] = (H, 1, H_TOTAL), scale: float = WIDTH ** -0.5) -> Case:
    def build(seed: int, dtype: torch.dtype) -> Inputs:
        inputs = _build(seed, dtype, B, T, V, chunk, heads)
        del inputs["u"]
        normal = seeded(seed + 1)
        shape = inputs["key"].shape
        # a query stands at its own token: it sees the state decayed from the start of the chunk
        inputs["query"] = (normal(*shape) * 2 ** inputs["gate"].double()).to(dtype)
        inputs["grad_output"] = normal(*shape[:3], V).to(dtype)
        inputs["grad_value"] = normal(*shape[:3], V).to(dtype)
        inputs["scale"] = scale
        inputs["block_columns"] = block
        for change in changes:
            change(inputs)
        return inputs
    return Case(name, build)


SOURCE = "fla/ops/cp/chunk_delta_h.py"
# float32 sums of 128 products, over at most 16 chunks whose states decay: errors do not grow with the length. For
# bfloat16 the inputs are exact for the reference. What is rounded is the state and the residual as operands of a
# chunk's products, each by at most 2^-9 of its value; an element that cancels keeps the error of its terms.
TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-5, 1e-5), torch.bfloat16: Tolerance(5e-3, 1e-2, 2e-2)}

SUMMARY = Operator(
    name="kda_split_state_summary",
    summary="Kimi Delta Attention: a part of the sequence as an affine map of the state, S_ext and M",
    wrapper="ported_kernels.kda.state_summary:kda_split_state_summary",
    reference="ported_kernels.kda.state_reference:kda_split_state_summary_reference",
    oracle="float64 torch on the CPU, chunk by chunk",
    outputs={"S_ext": torch.float32, "M": torch.float32},
    cases=(
        *(_case(f"T{T} {mode}", T, mode=mode) for T in (64, 100, 256, 1000) for mode in ("both", "state", "transfer")),
        *(_case(f"T{T} {mode}, w head-first", T, _head_first, mode=mode)
          for T, mode in ((64, "both"), (1000, "both"), (100, "state"), (256, "transfer"))),
        *(_case(f"T100 {mode}, blocks of 32", 100, mode=mode, block=32) for mode in ("both", "state", "transfer")),
        _case("T100 both, blocks of 32, w head-first", 100, _head_first, mode="both", block=32),
        _case("one token", 1, mode="both"),
        _case("T65 V64, batch of 2", 65, mode="both", B=2, V=64),
        _case("T50, chunks of 16", 50, mode="both", chunk=16, V=64),
        _case("all heads of one", 70, mode="both", heads=(1, 0, 1)),
        _case("T100, nan in the other heads", 100, _poisoned, mode="both", B=2, heads=(2, 1, 4)),
        _case("T100, nan in the other heads, w head-first", 100, _head_first, _poisoned, mode="state", B=2,
              heads=(1, 2, 4)),
        _case("gate in the inputs' dtype", 100, gate_in_dtype, mode="both"),
        _case("views with gaps", 100, apart, mode="both"),
        _case("swapped axes", 100, turned, mode="both"),
    ),
    tolerances=TOLERANCES,
    plain="ported_kernels/kda/plain/state_summary.py",
    upstream=Upstream("fla-core==0.5.2", SOURCE, "pre_process_fwd_kernel_merged"),
)

TRANSITION = Operator(
    name="kda_state_transition",
    summary="Kimi Delta Attention: the matrix M of a part of the sequence, from the matrices of its chunks",
    wrapper="ported_kernels.kda.state_transition:kda_state_transition",
    reference="ported_kernels.kda.state_reference:kda_state_transition_reference",
    oracle="float64 torch on the CPU, chunk by chunk",
    outputs={"M": torch.float32},
    cases=(
        *(_case(f"T{T}", T) for T in (64, 256, 960)),
        *(_case(f"T{T}, w head-first", T, _head_first) for T in (64, 256)),
        _case("T128, blocks of 32", 128, block=32),
        _case("T128, blocks of 32, w head-first", 128, _head_first, block=32),
        _case("T48, chunks of 16, batch of 2", 48, chunk=16, B=2),
        _case("all heads of one", 64, heads=(1, 0, 1)),
        _case("T128, nan in the other heads", 128, _poisoned, B=2, heads=(2, 1, 4)),
        _case("gate in the inputs' dtype", 128, gate_in_dtype),
        _case("views with gaps", 128, apart),
        _case("swapped axes", 128, turned),
    ),
    # Every product is of float32 operands, so bfloat16 inputs, exact for the reference, have the bound of float32.
    tolerances=dict.fromkeys(TOLERANCES, TOLERANCES[torch.float32]),
    plain="ported_kernels/kda/plain/state_transition.py",
    upstream=Upstream("fla-core==0.5.2", SOURCE, "pre_process_fwd_kernel_merged"),
)

GRAD_EXT = Operator(
    name="kda_state_grad_ext",
    summary="Kimi Delta Attention, backward: what a part of the sequence adds to the gradient of the state",
    wrapper="ported_kernels.kda.state_grad_ext:kda_state_grad_ext",
    reference="ported_kernels.kda.state_reference:kda_state_grad_ext_reference",
    oracle="float64 torch on the CPU, chunk by chunk in reverse",
    outputs={"dS_ext": torch.float32},
    cases=(
        *(_grad_case(f"T{T}", T) for T in (64, 100, 256, 1000)),
        *(_grad_case(f"T{T}, w head-first", T, _head_first) for T in (100, 1000)),
        _grad_case("T100, blocks of 32", 100, block=32),
        _grad_case("T100, blocks of 32, w head-first", 100, _head_first, block=32),
        _grad_case("one token", 1),
        _grad_case("T65 V64, batch of 2", 65, B=2, V=64),
        _grad_case("T50, chunks of 16, scale 1", 50, chunk=16, V=64, scale=1.0),
        _grad_case("all heads of one, scale 0.3", 70, heads=(1, 0, 1), scale=0.3),
        _grad_case("T100, nan in the other heads", 100, _poisoned, B=2, heads=(2, 1, 4)),
        _grad_case("gate in the inputs' dtype", 100, gate_in_dtype),
        _grad_case("views with gaps", 100, apart),
        _grad_case("swapped axes", 100, turned),
    ),
    tolerances=TOLERANCES,
    plain="ported_kernels/kda/plain/state_grad_ext.py",
    upstream=Upstream("fla-core==0.5.2", SOURCE, "pre_process_bwd_kernel_merged"),
)

OPERATORS = (SUMMARY, TRANSITION, GRAD_EXT)
