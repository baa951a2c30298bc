"""What the functions of ssd_bmm.py compute, in float64, and the inputs they are tried on.

Within each chunk, out[i, j] = a_i . b_j; 0 where the tokens are of different sequences or there is no token.
Backward: the gradient of <dout, out> in b (so that, with dout transposed, it is that in a), plus a residual.

`causal` leaves what is above the diagonal to chance, tile by tile; the case with it has one tile, which is computed
whole.
"""
from __future__ import annotations

from collections.abc import Callable

import torch

from ported_kernels.arguments import reject
from ported_kernels.catalog import Case, Inputs, Operator, Tolerance, axes_swapped, port_of, with_gaps
from ported_kernels.signature import DTYPE, FLAG, INTEGERS, Given, Integer, Signature, Tensor
from ported_kernels.signature import Sizes as Known
from ported_kernels.ssd.formula import Sizes, leaf, split, upstream


def _products(a: torch.Tensor, b: torch.Tensor, size: int) -> torch.Tensor:
    """[B, T, G, K] twice, or without G -> [B, Z, G, C, C], or without G."""
    return torch.einsum("bzi...k,bzj...k->bz...ij", split(a, size), split(b, size))


def bmm_fwd_reference(a: torch.Tensor, b: torch.Tensor, chunk_size: int, seq_idx: torch.Tensor | None = None,
                      causal: bool = False, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """a, b [B, T, K] or [B, T, G, K], seq_idx [B, T]. Returns [B, Z, C, C] or [B, Z, G, C, C]."""
    out = _products(a.double(), b.double(), chunk_size)
    if seq_idx is None:
        return out
    of = split(seq_idx, chunk_size, -1)
    same = (of[..., :, None] == of[..., None, :]).double()
    return out * (same if a.dim() == 3 else same[:, :, None])


def bmm_bwd_reference(a: torch.Tensor, dout: torch.Tensor, residual: torch.Tensor | None = None,
                      out: torch.Tensor | None = None) -> torch.Tensor:
    """dout [B, Z, C, C] or [B, Z, G, C, C]; residual as a. Returns the gradient in b, as a; `out` is for it."""
    b = leaf(torch.zeros_like(a))
    (db,) = torch.autograd.grad((dout.double() * _products(a.double(), b, dout.shape[-1])).sum(), b)
    return db if residual is None else db + residual.double()


SHAPES = {"T37 K24": (2, 37, 4, 3, 20, 24, 16), "T32 K16": (1, 32, 2, 1, 16, 16, 16),
          "T70 K128 C64": (1, 70, 2, 2, 64, 128, 64), "one token": (1, 1, 1, 1, 1, 5, 16)}


def _pair(sizes: Sizes, grouped: bool) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = sizes.b(), sizes.b()
    return (a, b) if grouped else (a[:, :, 0].contiguous(), b[:, :, 0].contiguous())


def _fwd(sizes: Sizes, grouped: bool, full: bool, apart: bool) -> Inputs:
    a, b = _pair(sizes, grouped)
    inputs: Inputs = {"a": axes_swapped(a, 1, 2) if apart else a, "b": with_gaps(b) if apart else b,
                      "chunk_size": sizes.size}
    return inputs | ({"seq_idx": sizes.seq_idx(), "output_dtype": torch.float32} if full else {})


def _bwd(sizes: Sizes, grouped: bool, full: bool, apart: bool) -> Inputs:
    a, residual = _pair(sizes, grouped)
    groups = (sizes.groups,) * grouped
    dout = (0.3 * sizes.normal(sizes.batch, sizes.count, *groups, sizes.size, sizes.size)).to(sizes.dtype)
    inputs: Inputs = {"a": with_gaps(a) if apart else a, "dout": axes_swapped(dout, -1, -2) if apart else dout}
    return inputs | ({"residual": residual} if full else {})


def _cases(build: Callable[[Sizes, bool, bool, bool], Inputs]) -> tuple[Case, ...]:
    def case(name: str, shape: str, grouped: bool, full: bool = False, apart: bool = False) -> Case:
        return Case(name, lambda seed, dtype: build(Sizes(seed, dtype, *SHAPES[shape]), grouped, full, apart))
    word = "sequences" if build is _fwd else "residual"
    return (*(case(shape, shape, False) for shape in SHAPES),
            *(case(f"{shape}, groups", shape, True) for shape in SHAPES),
            case(f"T37 K24, {word}", "T37 K24", False, full=True),
            case(f"T37 K24, groups, {word}", "T37 K24", True, full=True),
            case("views with gaps", "T37 K24", True, apart=True))


def _causal(seed: int, dtype: torch.dtype) -> Inputs:
    return _fwd(Sizes(seed, dtype, *SHAPES["T37 K24"]), True, False, False) | {"causal": True}


# Products of rounded numbers are exact in float32, the sums are float32, and the output is rounded once; atol is for
# elements whose terms cancel in float32.
_TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-5, 1e-5), torch.bfloat16: Tolerance(2**-8, 2**-7, 1e-5),
               torch.float16: Tolerance(2**-11, 2**-10, 1e-5)}
_FWD, _BWD = upstream("ssd_bmm", "_bmm_chunk_fwd"), upstream("ssd_bmm", "_bmm_chunk_bwd")


def _into(seed: int, dtype: torch.dtype) -> Inputs:
    inputs = _bwd(Sizes(seed, dtype, *SHAPES["T37 K24"]), True, False, False)
    return inputs | {"out": axes_swapped(torch.full_like(inputs["a"], torch.nan), 1, 2)}


_TOKENS = "B T K | B T G K"


def _rows_or_columns(sizes: Known, given: Given) -> None:
    out = given["out"]
    if out is not None and 1 not in (out.stride(-1), out.stride(1)):
        raise reject("out", "a stride of 1 along T or K", f"strides {out.stride()}")


_FWD_SIGNATURE = Signature({
    "a": Tensor(_TOKENS), "b": Tensor(_TOKENS), "chunk_size": Integer(), "seq_idx": Tensor("B T", INTEGERS, True),
    "causal": FLAG, "output_dtype": DTYPE})
_BWD_SIGNATURE = Signature({
    "a": Tensor(_TOKENS), "dout": Tensor("B T/C C C | B T/C G C C"), "residual": Tensor(_TOKENS, optional=True),
    "out": Tensor(_TOKENS, optional=True)}, also=_rows_or_columns)

OPERATORS = (
    Operator(name="_bmm_chunk_fwd", summary="SSD: products of all pairs of tokens in a chunk", wrapper=port_of(_FWD),
             reference="ported_kernels.ssd.bmm_reference:bmm_fwd_reference",
             oracle="float64 torch on the CPU, from the formula",
             outputs={"out": lambda inputs: inputs.get("output_dtype") or inputs["a"].dtype},
             cases=(*_cases(_fwd), Case("T37 K24, groups, causal", _causal)), tolerances=_TOLERANCES, upstream=_FWD,
             signature=_FWD_SIGNATURE),
    Operator(name="_bmm_chunk_bwd", summary="SSD: gradient of a factor of those products", wrapper=port_of(_BWD),
             reference="ported_kernels.ssd.bmm_reference:bmm_bwd_reference",
             oracle="float64 autograd through the formula", outputs={"db": "a"},
             cases=(*_cases(_bwd), Case("T37 K24, groups, out given", _into)),
             tolerances=_TOLERANCES, upstream=_BWD, signature=_BWD_SIGNATURE, mutates=("out",)),
)
