"""What the functions of ssd_chunk_scan.py compute, in float64, and the inputs they are tried on.

In a chunk, with the products cb of its tokens and the state before it,

    y_l = sum over m <= l of cb[l, m] exp(cs_l - cs_m) dt_m x_m + exp(cs_l) states C_l + D x_l,   out = y * silu(z)

where the state reaches only tokens of the sequence that the chunk before ended with (the first chunk: sequence 0). The
others are gradients of <dout, y>, taken by autograd: of the first term in x (with D's), dt, cb and the decays; of the
second in states, C and cs. `_chunk_scan_bwd_dz` is the gradient of <dout, out> in z, y (`dout_x`) and D, and what
the sum over a head of dout_x (y - D x) is; `..._ddAcs_unstable` is the latter minus dt ddt.

Not here: `_chunk_scan_fwd_wip`, which upstream has not finished: it leaves the products with cb and the gate out. Sums
over tiles are atomics, in float32.
"""
from __future__ import annotations

from collections.abc import Callable

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, port_of
from ported_kernels.signature import DTYPE, FLAG, Declaration, Given, Integer, Signature, Tensor
from ported_kernels.signature import Sizes as Known
from ported_kernels.ssd.chunk_state_reference import DECAYS, F32, SEQ_IDX, SHAPES, case, cases, into
from ported_kernels.ssd.formula import Sizes, last_indices, leaf, per_head, split, upstream

Maybe = torch.Tensor | None


def within(cb: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, cs: torch.Tensor) -> torch.Tensor:
    """cb [B, Z, G, C, C], x [B, T, H, P], dt, cs [B, H, Z, C] -> the first term, [B, T, H, P]."""
    heads, size = x.shape[2], dt.shape[-1]
    decay = (cs[..., :, None] - cs[..., None, :]).clamp(max=0).exp().tril()
    mixed = torch.einsum("bzhlm,bhzlm,bhzm,bzmhp->bzlhp", per_head(cb, heads, 2), decay, dt, split(x, size))
    return mixed.flatten(1, 2)[:, :x.shape[1]]


def before(C: torch.Tensor, states: torch.Tensor, cs: torch.Tensor, seq_idx: Maybe) -> torch.Tensor:
    """C [B, T, G, N], states [B, Z, H, P, N], cs [B, H, Z, C] -> the second term, [B, T, H, P]."""
    size, heads = cs.shape[-1], states.shape[2]
    factor = cs.exp()
    if seq_idx is not None:
        ends = last_indices(seq_idx, size)
        came = torch.cat((torch.zeros_like(ends[:, :1]), ends[:, :-1]), 1)
        factor = factor * (split(seq_idx, size, -1) == came[..., None])[:, None]
    out = torch.einsum("bzchn,bzhpn,bhzc->bzchp", split(per_head(C, heads, 2), size), states, factor)
    return out.flatten(1, 2)[:, :C.shape[1]]


def skipped(x: torch.Tensor, D: Maybe) -> torch.Tensor:
    if D is None:
        return torch.zeros_like(x)
    return x * (D if D.dim() == 2 else D[:, None])


def fwd_reference(cb: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor, C: torch.Tensor,
                  states: torch.Tensor, D: Maybe = None, z: Maybe = None, seq_idx: Maybe = None
                  ) -> tuple[Maybe, Maybe]:
    """Returns out and, given z, y [B, T, H, P]."""
    y = (within(cb.double(), x.double(), dt.double(), dA_cumsum.double())
         + before(C.double(), states.double(), dA_cumsum.double(), seq_idx)
         + skipped(x.double(), None if D is None else D.double()))
    return (y, None) if z is None else (y * torch.nn.functional.silu(z.double()), y)


def dz_reference(x: torch.Tensor, z: torch.Tensor, out: torch.Tensor, dout: torch.Tensor, chunk_size: int,
                 has_ddAcs: bool = True, D: Maybe = None, dz: Maybe = None, recompute_output: bool = False
                 ) -> tuple[Maybe, ...]:
    """x, z, out (y), dout [B, T, H, P]. Returns dz, dout_x, dD, then the sums [B, H, Z, C] and y * silu(z); `dz` is
    for the first."""
    gate, y, skip = leaf(z), leaf(out), leaf(torch.zeros(x.shape[2]) if D is None else D)
    gated = y * torch.nn.functional.silu(gate)
    dgate, dout_x = torch.autograd.grad((dout.double() * gated).sum(), (gate, y))
    (dD,) = torch.autograd.grad((dout_x * skipped(x.double(), skip)).sum(), skip)
    found = [dgate, dout_x, None if D is None else dD]
    if has_ddAcs:
        found.append(_over_head(dout_x, out, x, D, chunk_size))
    return (*found, gated.detach()) if recompute_output else tuple(found)


def _over_head(dout: torch.Tensor, out: torch.Tensor, x: torch.Tensor, D: Maybe, size: int) -> torch.Tensor:
    plain = out.double() - skipped(x.double(), None if D is None else D.double())
    return split((dout.double() * plain).sum(-1), size).permute(0, 3, 1, 2)


def unstable_reference(x: torch.Tensor, dt: torch.Tensor, out: torch.Tensor, dout: torch.Tensor, ddt: torch.Tensor,
                       D: Maybe = None, subtract_ddtdt: bool = True) -> tuple[Maybe, Maybe]:
    """Returns the sums minus dt ddt [B, H, Z, C], and dD."""
    sums = _over_head(dout, out, x, D, dt.shape[-1]) - (dt.double() * ddt.double() if subtract_ddtdt else 0)
    if D is None:
        return sums, None
    skip = leaf(D)
    (dD,) = torch.autograd.grad((dout.double() * skipped(x.double(), skip)).sum(), skip)
    return sums, dD


def dstates_reference(C: torch.Tensor, dA_cumsum: torch.Tensor, dout: torch.Tensor, seq_idx: Maybe = None,
                      dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns the gradient in states [B, Z, H, P, N]."""
    batch, _, heads, width = dout.shape
    states = leaf(torch.zeros(batch, dA_cumsum.shape[2], heads, width, C.shape[-1]))
    loss = (dout.double() * before(C.double(), states, dA_cumsum.double(), seq_idx)).sum()
    return torch.autograd.grad(loss, states)[0]


def dc_reference(prev_states: torch.Tensor, dA_cumsum: torch.Tensor, dout: torch.Tensor, seq_idx: Maybe = None,
                 C: Maybe = None, ngroups: int = 1) -> tuple[torch.Tensor, ...]:
    """Returns dC [B, T, G, N] and, given C, the gradient in cs [B, H, Z, C]."""
    shape = (*dout.shape[:2], ngroups, prev_states.shape[-1])
    query, cs = leaf(torch.zeros(shape) if C is None else C), leaf(dA_cumsum)
    loss = (dout.double() * before(query, prev_states.double(), cs, seq_idx)).sum()
    dC, dcs = torch.autograd.grad(loss, (query, cs))
    return (dC,) if C is None else (dC, dcs)


def prev_reference(prev_states: torch.Tensor, C: torch.Tensor, dout: torch.Tensor, dA_cumsum: torch.Tensor,
                   seq_idx: Maybe = None) -> torch.Tensor:
    """Returns the gradient in cs [B, H, Z, C]."""
    return dc_reference(prev_states, dA_cumsum, dout, seq_idx, C)[1]


def _through(cb: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor, dout: torch.Tensor
             ) -> tuple[torch.Tensor, ...]:
    """Gradients of <dout, first term> in cb, x, dt and the decays."""
    decays = torch.diff(dA_cumsum.double(), dim=-1, prepend=torch.zeros_like(dA_cumsum[..., :1]).double())
    cb, x, dt, decays = leaf(cb), leaf(x), leaf(dt), leaf(decays)
    loss = (dout.double() * within(cb, x, dt, decays.cumsum(-1))).sum()
    return torch.autograd.grad(loss, (cb, x, dt, decays))


def dcb_reference(x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor, dout: torch.Tensor, seq_idx: Maybe = None,
                  CB: Maybe = None, ngroups: int = 1) -> tuple[torch.Tensor, ...]:
    """Returns dcb [B, Z, G, C, C], 0 between sequences, and, given CB, the gradient in the decays [B, H, Z, C]."""
    size = dt.shape[-1]
    cb = torch.zeros(x.shape[0], dt.shape[2], ngroups, size, size) if CB is None else CB
    dcb, _, _, ddecays = _through(cb, x, dt, dA_cumsum, dout)
    if seq_idx is not None:
        of = split(seq_idx, size, -1)
        dcb = dcb * (of[..., :, None] == of[..., None, :])[:, :, None]
    return (dcb,) if CB is None else (dcb, ddecays)


def dx_reference(cb: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor, dout: torch.Tensor,
                 D: Maybe = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns dx [B, T, H, P], ddt [B, H, Z, C]."""
    _, dx, ddt, _ = _through(cb, x, dt, dA_cumsum, dout)
    return dx + skipped(dout.double(), None if D is None else D.double()), ddt


def ddacs_reference(x: torch.Tensor, dt: torch.Tensor, dA_cumsum: torch.Tensor, dout: torch.Tensor, cb: torch.Tensor
                    ) -> torch.Tensor:
    """Returns the gradient in the decays [B, H, Z, C]."""
    return _through(cb, x, dt, dA_cumsum, dout)[3]


def _cb(sizes: Sizes) -> torch.Tensor:
    shape = (sizes.batch, sizes.count, sizes.groups, sizes.size, sizes.size)
    return (0.5 * sizes.normal(*shape)).to(sizes.dtype)


def _skip(sizes: Sizes, dims: int) -> Inputs:
    return {"D": sizes.normal(*(sizes.heads, sizes.width)[:dims]).float()} if dims else {}


def _fwd(sizes: Sizes, dims: int, full: bool) -> Inputs:
    inputs = {"cb": _cb(sizes), "x": sizes.x(), **sizes.decays(), "C": sizes.b(), "states": sizes.states(sizes.dtype),
              **_skip(sizes, dims)}
    return inputs | ({"z": sizes.x(), "seq_idx": sizes.seq_idx()} if full else {})


def _dz(sizes: Sizes, dims: int, full: bool) -> Inputs:
    return {"x": sizes.x(), "z": sizes.x(), "out": sizes.x(), "dout": sizes.x(), "chunk_size": sizes.size,
            "has_ddAcs": full, "recompute_output": full, **_skip(sizes, dims)}


def _unstable(sizes: Sizes, dims: int, full: bool) -> Inputs:
    return {"x": sizes.x(), "dt": sizes.decays()["dt"], "out": sizes.x(), "dout": sizes.x(),
            "ddt": sizes.normal(sizes.batch, sizes.heads, sizes.count, sizes.size).float(), **_skip(sizes, dims)}


def _inner(sizes: Sizes, dims: int, full: bool) -> Inputs:
    return {"cb": _cb(sizes), "x": sizes.x(), **sizes.decays(), "dout": sizes.x(), **_skip(sizes, dims)}


def _seq(sizes: Sizes, full: bool) -> Inputs:
    return {"seq_idx": sizes.seq_idx()} if full else {}


def _dstates(sizes: Sizes, full: bool) -> Inputs:
    inputs = {"C": sizes.b(), "dA_cumsum": sizes.decays()["dA_cumsum"], "dout": sizes.x(), **_seq(sizes, full)}
    return inputs | ({"dtype": torch.float32} if full else {})


def _prev(sizes: Sizes, full: bool) -> Inputs:
    return {"prev_states": sizes.states(sizes.dtype), "C": sizes.b(), "dout": sizes.x(),
            "dA_cumsum": sizes.decays()["dA_cumsum"], **_seq(sizes, full)}


def _dc(sizes: Sizes, full: bool) -> Inputs:
    return _prev(sizes, full) | {"ngroups": sizes.groups}


def _dc_only(sizes: Sizes) -> Inputs:
    return {name: value for name, value in _dc(sizes, False).items() if name != "C"}


def _dcb(sizes: Sizes, full: bool) -> Inputs:
    """Sequences or CB: upstream does not take both."""
    inputs: Inputs = {"x": sizes.x(), **sizes.decays(), "dout": sizes.x(), "ngroups": sizes.groups}
    return inputs | (_seq(sizes, True) if full else {"CB": _cb(sizes)})


def _with_skips(build: Callable[[Sizes, int, bool], Inputs], full: str = "") -> tuple[Case, ...]:
    """Every shape without D, and the grouped one with D of a head and of a channel, and with all that is optional."""
    found = cases(lambda sizes: build(sizes, 0, False), apart=("x",))
    found += (case("T37, grouped, D[H]", "T37, grouped", lambda sizes: build(sizes, 1, False)),
              case("T37, grouped, D[H, P]", "T37, grouped", lambda sizes: build(sizes, 2, False)))
    if full:
        found += tuple(case(f"{shape}, D, {full}", shape, lambda sizes: build(sizes, 2, True)) for shape in SHAPES)
    return found


def _with_sequences(build: Callable[[Sizes, bool], Inputs]) -> tuple[Case, ...]:
    return cases(lambda sizes: build(sizes, False), lambda sizes: build(sizes, True), ("dout",))


# u = 2^-8 or 2^-11, the most that rounding to nearest moves a number by. In each product one operand is rounded to
# the dtype, and an output is rounded: 2 u of the terms' RMS. The two terms of y come from products side by side. Where
# terms cancel, atol covers sums of 2^10 products of the size 1; in float32 as well.
_PRODUCT = {F32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(2 * 2**-8, 2 * 2**-8, 2**-3),
            torch.float16: Tolerance(2 * 2**-11, 2 * 2**-11, 2**-6)}
# No products of tiles: float32 arithmetic, an output is rounded once.
_ROUNDED = {F32: Tolerance(1e-5, 1e-5, 1e-4), torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-4),
            torch.float16: Tolerance(2**-11, 2**-10, 1e-4)}
# Both operands of the product are inputs, and the outputs are float32: nothing is rounded on the way.
_EXACT = dict.fromkeys(_PRODUCT, _PRODUCT[F32])


TOKENS = Tensor("B T H P")
HEADS = Tensor("B T H%G P")
FACTOR = Tensor("B T H P", "x")      # of a product with x, in which nothing is cast
CB: dict[str, Declaration] = {"cb": Tensor("B T/C G C C")}
PREVIOUS: dict[str, Declaration] = {"prev_states": Tensor("B T/C H P N")}
SKIP: dict[str, Declaration] = {"D": Tensor("H | H P", optional=True)}


def _not_both(sizes: Known, given: Given) -> None:
    if given["seq_idx"] is not None and given["CB"] is not None:
        raise reject("CB", "None, as seq_idx is given", "a tensor")


def _operator(function: str, summary: str, reference: str, outputs: dict, made: tuple[Case, ...],
              signature: dict[str, Declaration], tolerances: dict[torch.dtype, Tolerance] = _PRODUCT, *,
              also: Callable[[Known, Given], None] = lambda sizes, given: None,
              mutates: tuple[str, ...] = ()) -> Operator:
    port = upstream("ssd_chunk_scan", function)
    oracle = "float64 torch on the CPU, from the formula" if function.endswith("fwd") else \
        "float64 autograd through the formula"
    return Operator(name=function, summary=f"SSD: {summary}", wrapper=port_of(port),
                    reference=f"ported_kernels.ssd.chunk_scan_reference:{reference}", oracle=oracle, outputs=outputs,
                    cases=made, tolerances=tolerances, upstream=port, signature=Signature(signature, also),
                    mutates=mutates)


_INNER_SIGNATURE = {"x": HEADS, **DECAYS, "dout": FACTOR, **CB}
_INNER_CASES = cases(lambda sizes: _inner(sizes, 0, False), apart=("x", "dout"))

OPERATORS = (
    _operator("_chunk_scan_fwd", "outputs of a chunk's tokens", "fwd_reference", {"out": "x", "out_x": "x"},
              _with_skips(_fwd, "z, sequences"),
              {"x": HEADS, **DECAYS, "C": Tensor("B T G N"), **CB, "states": Tensor("B T/C H P N"), **SKIP,
               "z": Tensor("B T H P", optional=True), "seq_idx": SEQ_IDX}),
    _operator("_chunk_scan_bwd_dz", "gradients of the gate, what it gates, and D", "dz_reference",
              {"dz": "z", "dout_x": "dout", "dD": F32, "ddA_cumsum": F32, "outz": "x"},
              (*_with_skips(_dz, "all outputs"), into("dz", lambda sizes: _dz(sizes, 1, False), Sizes.x)),
              {"x": TOKENS, "z": TOKENS, "out": TOKENS, "dout": TOKENS, "chunk_size": Integer(), "has_ddAcs": FLAG,
               "D": Tensor("H | H P", optional=True, memory="rows"), "dz": Tensor("B T H P", optional=True),
               "recompute_output": FLAG}, _ROUNDED, mutates=("dz",)),
    _operator("_chunk_scan_bwd_dstates", "gradient of the states before chunks", "dstates_reference",
              {"dprev_states": lambda inputs: inputs.get("dtype") or inputs["C"].dtype}, _with_sequences(_dstates),
              {"C": Tensor("B T G N"), "dout": HEADS, "dA_cumsum": Tensor("B H T/C C"), "seq_idx": SEQ_IDX,
               "dtype": DTYPE}),
    _operator("_chunk_scan_bwd_dC", "gradients of C and the cumulative decays", "dc_reference",
              {"dC": F32, "ddA_cumsum_prev": F32},
              (*_with_sequences(_dc), case("T37, grouped, without C", "T37, grouped", _dc_only)),
              {"ngroups": Integer("G"), "dout": HEADS, "dA_cumsum": Tensor("B H T/C C"), **PREVIOUS, "seq_idx": SEQ_IDX,
               "C": Tensor("B T G N", optional=True)}, _EXACT),
    _operator("_chunk_scan_bwd_dcb", "gradients of the products and the decays", "dcb_reference",
              {"dcb": F32, "ddA_cumsum": F32}, _with_sequences(_dcb),
              {"ngroups": Integer("G"), "x": HEADS, **DECAYS, "dout": FACTOR, "seq_idx": SEQ_IDX,
               "CB": Tensor("B T/C G C C", optional=True)}, _EXACT, also=_not_both),
    _operator("_chunk_scan_bwd_dx", "gradients of x and dt", "dx_reference", {"dx": "x", "ddt": F32},
              _with_skips(_inner), {"x": HEADS, **DECAYS, "dout": TOKENS, **CB, **SKIP}),
    _operator("_chunk_scan_bwd_ddAcs_unstable", "gradient of the cumulative decays, and of D", "unstable_reference",
              {"ddA_cumsum": F32, "dD": F32}, _with_skips(_unstable),
              {"x": TOKENS, **dict.fromkeys(("dt", "ddt"), Tensor("B H T/C C")), "out": TOKENS, "dout": TOKENS, **SKIP,
               "subtract_ddtdt": FLAG}, _EXACT),
    _operator("_chunk_scan_bwd_ddAcs_stable", "gradient of the decays", "ddacs_reference", {"ddA_cumsum": F32},
              _INNER_CASES, _INNER_SIGNATURE, _EXACT),
    _operator("_chunk_scan_bwd_ddAcs_stable_old", "gradient of the decays, the older kernel", "ddacs_reference",
              {"ddA_cumsum": F32}, _INNER_CASES, _INNER_SIGNATURE, _EXACT),
    _operator("_chunk_scan_bwd_ddAcs_prev", "gradient of the cumulative decays from the states", "prev_reference",
              {"ddA_cumsum_prev": F32}, _with_sequences(_prev),
              {"C": Tensor("B T G N"), "dout": HEADS, "dA_cumsum": Tensor("B H T/C C"), **PREVIOUS, "seq_idx": SEQ_IDX},
              _EXACT),
)
