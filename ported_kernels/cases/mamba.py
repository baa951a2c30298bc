"""Calls of mamba's launch functions: what to call, with which inputs, in which layout. Needs torch only.

A `Case` names a function and draws its keyword arguments from a `Draw` (seed, device, dtype, layout, size), so
that upstream, a port and a reference can be given the same values (benchmarks/gpu_parity.py), and the compile gate
the same launches (the files of mamba_ssm/ beside this one). Sizes are awkward on purpose: T is no multiple
of the chunk where the function allows it, head dimensions are no powers of two, heads are grouped, packed
sequences have length 1. Decays are negative, so that results stay moderate.

Layouts: "contiguous" (C order) or "strided": the same values behind other strides (heads and time exchanged in
memory, or a slice of something wider). A last stride other than 1 appears only where upstream takes one.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch

LAYOUTS = ("contiguous", "strided")
_TRITON = "ops.triton."
_BWD = _TRITON + "mamba3.mamba3_siso_bwd"
_FWD = _TRITON + "mamba3.mamba3_siso_fwd"
_MIMO = _TRITON + "mamba3.mamba3_mimo_utils"


@dataclass(frozen=True)
class Size:
    batch: int
    time: int
    heads: int
    groups: int
    qk: int       # head dimension of queries and keys, also the state size of the ssd functions
    v: int        # head dimension of values, also headdim of the ssd functions
    chunk: int
    rows: int     # rows and columns of the element-wise and normalizing functions
    columns: int

    @property
    def chunks(self) -> int:
        return -(-self.time // self.chunk)


SIZES = {"small": Size(batch=2, time=37, heads=4, groups=2, qk=24, v=20, chunk=16, rows=19, columns=72),
         "large": Size(batch=2, time=2000, heads=32, groups=4, qk=48, v=40, chunk=64, rows=4001, columns=1200),
         # the models' own head dimensions and chunk, for the compile gate: nothing runs, so few tokens will do
         "model": Size(batch=2, time=200, heads=4, groups=2, qk=128, v=64, chunk=64, rows=19, columns=1024)}


@dataclass
class Draw:
    """Draws tensors: always the same values for a seed, whatever the device and the layout."""

    size: Size
    device: str
    dtype: torch.dtype
    layout: str = "contiguous"
    seed: int = 0
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {self.layout!r}")
        self._generator = torch.Generator().manual_seed(self.seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None, any_last: bool = False
               ) -> torch.Tensor:
        return self.place(torch.randn(shape, generator=self._generator) * scale, dtype, any_last)

    def uniform(self, low: float, high: float, *shape: int, dtype: torch.dtype | None = None,
                any_last: bool = False) -> torch.Tensor:
        values = torch.rand(shape, generator=self._generator) * (high - low) + low
        return self.place(values, dtype, any_last)

    def place(self, values: torch.Tensor, dtype: torch.dtype | None = None, any_last: bool = False) -> torch.Tensor:
        """The values on the device, in the layout; `any_last`: the function takes a last stride other than 1."""
        values = values.to(self.dtype if dtype is None else dtype).contiguous().to(self.device)
        if self.layout == "contiguous":
            return values
        if any_last and values.dim() >= 2:
            return values.transpose(-1, -2).contiguous().transpose(-1, -2)
        return exchanged(values) if values.dim() >= 4 else sliced(values)

    def integers(self, values: list[int] | torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.int32).to(self.device)


def exchanged(values: torch.Tensor) -> torch.Tensor:
    """Dimensions 1 and 2 exchanged in memory: dense, last stride 1."""
    return values.transpose(1, 2).contiguous().transpose(1, 2)


def sliced(values: torch.Tensor) -> torch.Tensor:
    """A slice of something wider: not dense, last stride 1; rows begin at odd offsets."""
    wide = values.new_full((*values.shape[:-1], values.shape[-1] + 3), 7.0)   # 7: wrong where it is read
    part = wide[..., :values.shape[-1]]
    part.copy_(values)
    return part


def _lower_triangles(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Upstream promises only the causal half of each [chunk, chunk] block."""
    return [out.tril() for out in outputs]


@dataclass(frozen=True)
class Case:
    module: str                                   # below mamba_ssm, e.g. "ops.triton.ssd_bmm"
    function: str
    variant: str
    arguments: Callable[[Draw], dict[str, Any]]
    mutated: tuple[str, ...] = ()                 # arguments that the function writes to
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    cost: int = 1                                 # 1 cheap .. 3 long to compile; cheap ones run first
    operator: str = ""                            # ours, written by hand, in place of the generated port
    # Picks what the function promises out of its flattened outputs.
    defined: Callable[[list[torch.Tensor]], list[torch.Tensor]] = list

    @property
    def name(self) -> str:
        name = self.operator or self.function
        return f"{name}[{self.variant}]" if self.variant else name


CASES: list[Case] = []


def _case(module: str, function: str, variant: str, arguments: Callable[[Draw], dict[str, Any]],
          **more: Any) -> None:
    CASES.append(Case(module, function, variant, arguments, **more))


# ---------------------------------------------------------------------------------------------- mamba3, SISO

def packed(draw: Draw, empty: bool = False) -> torch.Tensor:
    """Cumulative lengths of packed sequences: a short one, one of length 1, one empty if asked for, the rest."""
    size = draw.size
    short = size.chunk // 2 + 1
    ends = [0, short, short + 1, size.time // 2 + 3, size.time]
    return draw.integers(ends[:3] + ends[2:3] * empty + ends[3:])


def _batch_and_sequences(draw: Draw, varlen: bool) -> tuple[int, int, torch.Tensor | None]:
    if not varlen:
        return draw.size.batch, draw.size.batch, None
    ends = packed(draw)
    return 1, ends.numel() - 1, ends


def _siso_chunks(draw: Draw, sequences: int, varlen: bool) -> int:
    return sequences + draw.size.time // draw.size.chunk if varlen else draw.size.chunks


def power_of_two(extent: int) -> int:
    """At least `extent`."""
    return 1 << (extent - 1).bit_length()


def _state_qk(draw: Draw, varlen: bool) -> int:
    """Packed sequences: upstream finds a chunk's state by the padded head dimension, so only a power of two works."""
    return power_of_two(draw.size.qk) if varlen else draw.size.qk


def dzdo(draw: Draw) -> dict[str, Any]:
    size = draw.size
    # A power of two: upstream masks with the padded head dimension, and so overwrites the next head otherwise.
    shape = (size.batch, size.time, size.heads, power_of_two(size.v))
    return {"do": draw.normal(*shape), "z": draw.normal(*shape), "o": draw.normal(*shape)}


def _chunk_decays(draw: Draw, batch: int, sequences: int, ends: torch.Tensor | None
                  ) -> tuple[torch.Tensor, torch.Tensor]:
    """log2 of the decays since each chunk's start [B, H, T], and of whole chunks [B, H, N]; slots of packed sequences
    that no chunk has hold 0."""
    size, chunk = draw.size, draw.size.chunk
    steps = torch.rand(batch, size.heads, size.time, generator=draw._generator) * -0.1 - 0.001
    cumulative = torch.zeros_like(steps)
    whole = torch.zeros(batch, size.heads, _siso_chunks(draw, sequences, ends is not None))
    places = [0, size.time] if ends is None else ends.tolist()
    for number, (start, end) in enumerate(pairwise(places)):
        slot = 0 if ends is None else number + start // chunk
        for at in range(start, end, chunk):
            past = min(at + chunk, end)
            cumulative[..., at:past] = steps[..., at:past].cumsum(-1)
            whole[..., slot] = cumulative[..., past - 1]
            slot += 1
    return draw.place(cumulative, torch.float32), draw.place(whole, torch.float32)


def _dqkv(draw: Draw, varlen: bool = False, skip: bool = False, states: bool = False) -> dict[str, Any]:
    size = draw.size
    batch, sequences, ends = _batch_and_sequences(draw, varlen)
    chunks = _siso_chunks(draw, sequences, varlen)
    heads, qk, v, time = size.heads, _state_qk(draw, varlen), size.v, size.time
    qk_shape, v_shape = (batch, time, heads, qk), (batch, time, heads, v)
    fp32 = torch.float32
    da_cs, da_cs_sum = _chunk_decays(draw, batch, sequences, ends)
    arguments = {
        "q": draw.normal(*qk_shape, scale=0.3), "k": draw.normal(*qk_shape, scale=0.3), "v": draw.normal(*v_shape),
        "da_cs": da_cs, "da_cs_sum": da_cs_sum,
        "qk_dot": draw.normal(batch, heads, time, dtype=fp32),
        "SSM_States": draw.normal(batch, heads, v, chunks * qk, scale=0.3),
        "do": draw.normal(*v_shape), "chunk_size": size.chunk, "has_input_state": states, "Cu_Seqlens": ends}
    if skip:
        arguments["D"] = draw.normal(heads, dtype=fp32)
    if states:
        arguments["d_ossm_state"] = draw.normal(sequences, heads, v, qk, scale=0.3, dtype=fp32)
        arguments["d_ov_state"] = draw.normal(sequences, heads, v)
    return arguments


def _dqktheta(draw: Draw, varlen: bool = False, state: bool = False) -> dict[str, Any]:
    size = draw.size
    batch, sequences, ends = _batch_and_sequences(draw, varlen)
    heads, groups, qk, time, fp32 = size.heads, size.groups, size.qk, size.time, torch.float32
    arguments = {
        "q": draw.normal(batch, time, groups, qk), "k": draw.normal(batch, time, groups, qk),
        "scale": draw.uniform(0.1, 1, batch, heads, time, dtype=fp32),
        "gamma": draw.uniform(0.1, 1, batch, heads, time, dtype=fp32),
        "q_bias": draw.normal(heads, qk, dtype=fp32), "k_bias": draw.normal(heads, qk, dtype=fp32),
        "angles": draw.uniform(-3, 3, batch, time, heads, qk // 2 - 4, dtype=fp32),
        "dq_in": draw.normal(batch, time, heads, qk), "dk_in": draw.normal(batch, time, heads, qk),
        "dqk": draw.normal(batch, heads, time, dtype=fp32), "chunk_size": size.chunk, "Cu_Seqlens": ends}
    if state:
        arguments["d_ok_state"] = draw.normal(sequences, heads, qk, dtype=fp32)
    return arguments


def _ddt_dtrap(draw: Draw, varlen: bool = False, states: bool = False) -> dict[str, Any]:
    size = draw.size
    batch, sequences, ends = _batch_and_sequences(draw, varlen)
    heads, fp32 = size.heads, torch.float32
    shape = (batch, heads, size.time)
    arguments = {
        "dscale": draw.normal(*shape, dtype=fp32, any_last=True), "dgamma": draw.normal(*shape, dtype=fp32),
        "dt": draw.uniform(0.01, 1, *shape, dtype=fp32, any_last=True), "trap": draw.normal(*shape),
        "Cu_Seqlens": ends}
    if states:
        arguments["d_issm_state"] = draw.normal(sequences, heads, size.v, size.qk, scale=0.3, dtype=fp32)
        arguments["input_k_state"] = draw.normal(sequences, heads, size.qk, scale=0.3, dtype=fp32)
        arguments["input_v_state"] = draw.normal(sequences, heads, size.v)
    return arguments


def _siso_fwd(draw: Draw, varlen: bool = False, extras: bool = False, store: bool = True) -> dict[str, Any]:
    size = draw.size
    batch, sequences, ends = _batch_and_sequences(draw, varlen)
    heads, groups, qk, v, time = size.heads, size.groups, _state_qk(draw, varlen), size.v, size.time
    fp32 = torch.float32
    per_step, values = (batch, heads, time), (batch, time, heads, v)
    arguments = {
        "Q": draw.normal(batch, time, groups, qk, scale=0.3), "K": draw.normal(batch, time, groups, qk, scale=0.3),
        "V": draw.normal(*values), "ADT": draw.uniform(-0.5, -0.01, *per_step, dtype=fp32),
        "DT": draw.uniform(0.01, 0.5, *per_step, dtype=fp32), "Trap": draw.normal(*per_step),
        "Q_bias": draw.normal(heads, qk, scale=0.3, dtype=fp32),
        "K_bias": draw.normal(heads, qk, scale=0.3, dtype=fp32),
        "Angles": draw.uniform(-3, 3, batch, time, heads, qk // 2 - 4, dtype=fp32),
        "chunk_size": size.chunk, "store_states_adt_outv": store, "return_final_states": extras, "cu_seqlens": ends}
    if extras:
        arguments["D"] = draw.normal(heads, dtype=fp32)
        arguments["Z"] = draw.normal(*values)
        arguments["Initial_States"] = (draw.normal(sequences, heads, v, qk, scale=0.3, dtype=fp32),
                                       draw.normal(sequences, heads, qk, scale=0.3, dtype=fp32),
                                       draw.normal(sequences, heads, v))
    return arguments


_case(_BWD, "compute_dzdo", "", dzdo)
for _varlen in (False, True):
    _kind = "varlen" if _varlen else "dense"
    _case(_BWD, "compute_ddt_dtrap_dinput_states", _kind, lambda draw, a=_varlen: _ddt_dtrap(draw, a), cost=2)
    _case(_BWD, "compute_ddt_dtrap_dinput_states", _kind + ", states",
          lambda draw, a=_varlen: _ddt_dtrap(draw, a, states=True), cost=2)
    _case(_BWD, "compute_dqktheta", _kind, lambda draw, a=_varlen: _dqktheta(draw, a), cost=3)
    _case(_BWD, "compute_dqktheta", _kind + ", d_ok_state",
          lambda draw, a=_varlen: _dqktheta(draw, a, state=True), cost=3)
    _case(_BWD, "compute_dqkv", _kind, lambda draw, a=_varlen: _dqkv(draw, a), cost=3)
    _case(_BWD, "compute_dqkv", _kind + ", D, states",
          lambda draw, a=_varlen: _dqkv(draw, a, skip=True, states=True), cost=3)
    _case(_FWD, "mamba3_siso_fwd", _kind, lambda draw, a=_varlen: _siso_fwd(draw, a), cost=3)
    _case(_FWD, "mamba3_siso_fwd", _kind + ", D, Z, states",
          lambda draw, a=_varlen: _siso_fwd(draw, a, extras=True), cost=3)
_case(_FWD, "mamba3_siso_fwd", "dense, nothing stored", lambda draw: _siso_fwd(draw, store=False), cost=3)


# ---------------------------------------------------------------------------------------------- mamba3, MIMO

_MIMO_CHUNK = 16     # upstream's own tests use 16


def _whole_chunks(draw: Draw) -> int:
    """The dense functions take whole chunks only."""
    return draw.size.time // _MIMO_CHUNK * _MIMO_CHUNK


def _mimo_ends(draw: Draw) -> torch.Tensor:
    return packed(draw, empty=True)


def _dadt(draw: Draw, varlen: bool = False) -> dict[str, Any]:
    size, chunk, fp32 = draw.size, _MIMO_CHUNK, torch.float32
    ends = _mimo_ends(draw) if varlen else None
    batch, time = (1, size.time) if varlen else (size.batch, _whole_chunks(draw))
    chunks = time // chunk + (0 if ends is None else ends.numel() - 1)
    blocks, plain = (batch, size.heads, chunks, chunk, chunk), Draw(size, draw.device, fp32, seed=draw.seed + 1)
    # Upstream applies the strides of ddA_cs to all four vectors and to its contiguous output.
    vector = (batch, size.heads, time)
    arguments = {
        "dSSdA": draw.normal(*blocks, any_last=True), "SSdA": draw.uniform(-2, 0, *blocks, any_last=True),
        "ddA_cs": plain.normal(*vector), "ddA_cs_rev": plain.normal(*vector),
        "dA_cs": plain.uniform(-2, 0, *vector), "dA_cs_rev": plain.uniform(-2, 0, *vector), "chunk_size": chunk}
    return {**arguments, "cu_seqlens": ends} if varlen else arguments


def _dtrap(draw: Draw, varlen: bool = False) -> dict[str, Any]:
    size, fp32 = draw.size, torch.float32
    shape = (1, size.heads, size.time) if varlen else (size.batch, size.heads, _whole_chunks(draw))
    arguments = {
        "trap": draw.normal(*shape, any_last=True),
        "dt": draw.uniform(0.01, 1, *shape, dtype=fp32, any_last=True),
        "dfactor": draw.normal(*shape, dtype=fp32), "dgamma_diag": draw.normal(*shape, dtype=fp32, any_last=True),
        "chunk_size": _MIMO_CHUNK}
    return {**arguments, "cu_seqlens": _mimo_ends(draw)} if varlen else arguments


def _dacs(draw: Draw, varlen: bool = False) -> dict[str, Any]:
    size = draw.size
    # Dense: upstream reads behind the last token where the last chunk is not full, and returns what it finds.
    shape = (1, size.heads, size.time) if varlen else (size.batch, size.heads, _whole_chunks(draw))
    arguments = {"da": draw.uniform(-0.5, -0.01, *shape, any_last=True), "chunk_size": _MIMO_CHUNK}
    return {**arguments, "cu_seqlens": _mimo_ends(draw)} if varlen else arguments


for _varlen in (False, True):
    _end, _kind = ("_varlen", "varlen") if _varlen else ("", "dense")
    # exp and cumsum run in the tensors' own dtype: float32, as upstream calls them.
    _case(_MIMO, "bwd_dadt_fused_triton" + _end, _kind, lambda draw, a=_varlen: _dadt(draw, a),
          dtypes=("float32",))
    _case(_MIMO, "bwd_dtrap_ddt_triton" + _end, _kind, lambda draw, a=_varlen: _dtrap(draw, a))
    _case(_MIMO, "compute_dacs_segsum_triton" + _end, _kind, lambda draw, a=_varlen: _dacs(draw, a),
          dtypes=("float32",))


# ------------------------------------------------------------------------------------------------------- SSD

def _decays(draw: Draw, chunk: int | None = None) -> dict[str, Any]:
    """dt and the cumulative dA of each chunk, [B, H, chunks, chunk]; dt is zero behind the last token."""
    size = draw.size
    chunk = size.chunk if chunk is None else chunk
    chunks = -(-size.time // chunk)
    dt = torch.rand(size.batch, size.heads, chunks * chunk, generator=draw._generator) * 0.3 + 0.01
    dt[..., size.time:] = 0
    dt = dt.reshape(size.batch, size.heads, chunks, chunk)
    rates = torch.rand(size.heads, generator=draw._generator) * 0.9 + 0.1
    cumulative = (dt * -rates[:, None, None]).cumsum(-1)
    return {"dt": draw.place(dt, torch.float32), "dA_cumsum": draw.place(cumulative, torch.float32)}


def _seq_idx(draw: Draw) -> torch.Tensor:
    """Which sequence a token belongs to, [B, T]: boundaries within and between chunks."""
    size = draw.size
    at = torch.arange(size.time)
    edges = torch.tensor([size.chunk // 2 + 1, size.chunk * 2])
    rows = [(at[:, None] >= edges + row).sum(1) for row in range(size.batch)]
    return draw.place(torch.stack(rows), torch.int32)


def _x(draw: Draw) -> torch.Tensor:
    return draw.normal(draw.size.batch, draw.size.time, draw.size.heads, draw.size.v)


def _b(draw: Draw) -> torch.Tensor:
    return draw.normal(draw.size.batch, draw.size.time, draw.size.groups, draw.size.qk, scale=0.3)


def _states(draw: Draw, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
    size = draw.size
    return draw.normal(size.batch, size.chunks, size.heads, size.v, size.qk, scale=0.3, dtype=dtype)


def _cb(draw: Draw) -> torch.Tensor:
    size = draw.size
    return draw.normal(size.batch, size.chunks, size.groups, size.chunk, size.chunk, scale=0.3)


def _optional_seq_idx(draw: Draw, wanted: bool) -> dict[str, Any]:
    return {"seq_idx": _seq_idx(draw)} if wanted else {}


def _cumsum_fwd(draw: Draw, bias: bool) -> dict[str, Any]:
    size, fp32 = draw.size, torch.float32
    arguments = {"dt": draw.normal(size.batch, size.time, size.heads, any_last=True),
                 "A": draw.uniform(-1, -0.1, size.heads, dtype=fp32), "chunk_size": size.chunk}
    if bias:
        arguments |= {"dt_bias": draw.normal(size.heads, dtype=fp32), "dt_softplus": True, "dt_limit": (0.05, 1.5)}
    return arguments


def _cumsum_bwd(draw: Draw, bias: bool) -> dict[str, Any]:
    size, fp32 = draw.size, torch.float32
    arguments = _cumsum_fwd(draw, bias)
    del arguments["chunk_size"]
    shape = (size.batch, size.heads, size.chunks, size.chunk)
    return arguments | {"ddA": draw.normal(*shape, dtype=fp32), "ddt_out": draw.normal(*shape, dtype=fp32)}


def _with_x(draw: Draw, **more: Any) -> dict[str, Any]:
    return {"x": _x(draw), **_decays(draw), **more}


def _state_varlen(draw: Draw) -> dict[str, Any]:
    """Packed sequences of one batch row: x [T, H, P], dt [H, chunks, chunk]."""
    decays = {name: values[0] for name, values in _decays(draw).items()}
    return {"B": _b(draw)[0], "x": _x(draw)[0], **decays, "cu_seqlens": packed(draw),
            "chunk_states": _states(draw)[0]}


_STATE = _TRITON + "ssd_chunk_state"
for _flag in (False, True):
    _word = "bias, softplus, limit" if _flag else "plain"
    _case(_STATE, "_chunk_cumsum_fwd", _word, lambda draw, a=_flag: _cumsum_fwd(draw, a))
    _case(_STATE, "_chunk_cumsum_bwd", _word, lambda draw, a=_flag: _cumsum_bwd(draw, a))
    _word = "seq_idx" if _flag else "plain"
    _case(_STATE, "_chunk_state_fwd", _word,
          lambda draw, a=_flag: _with_x(draw, B=_b(draw), states_in_fp32=not a, **_optional_seq_idx(draw, a)), cost=2)
    _case(_STATE, "_chunk_state_bwd_db", "seq_idx, B" if _flag else "plain",
          lambda draw, a=_flag: _with_x(draw, dstates=_states(draw), ngroups=draw.size.groups,
                                        **_optional_seq_idx(draw, a), **({"B": _b(draw)} if a else {})), cost=2)
    _case(_STATE, "_chunk_state_bwd_ddAcs_stable", _word,
          lambda draw, a=_flag: _with_x(draw, B=_b(draw), dstates=_states(draw), **_optional_seq_idx(draw, a)), cost=2)
_case(_STATE, "_chunk_state_bwd_dx", "", lambda draw: _with_x(draw, B=_b(draw), dstates=_states(draw)), cost=2)
_case(_STATE, "chunk_state_varlen", "", _state_varlen, cost=2)


def _skip(draw: Draw, dims: int) -> dict[str, Any]:
    """D: none, one for each head, or one for each head and channel."""
    shape = (draw.size.heads, draw.size.v)[:dims]
    return {"D": draw.normal(*shape, dtype=torch.float32)} if dims else {}


def _scan_fwd(draw: Draw, full: bool, dims: int) -> dict[str, Any]:
    arguments = _with_x(draw, cb=_cb(draw), C=_b(draw), states=_states(draw, None), **_skip(draw, dims))
    return arguments | ({"z": _x(draw), "seq_idx": _seq_idx(draw)} if full else {})


def _scan_fwd_wip(draw: Draw) -> dict[str, Any]:
    """Without z: upstream's unfinished kernel returns an `out_x` that it never writes."""
    return _scan_fwd(draw, False, 2) | {"B": _b(draw), "seq_idx": _seq_idx(draw)}


def _scan_dz(draw: Draw, dims: int, full: bool) -> dict[str, Any]:
    return {"x": _x(draw), "z": _x(draw), "out": _x(draw), "dout": _x(draw), "chunk_size": draw.size.chunk,
            "has_ddAcs": full, "recompute_output": full, **_skip(draw, dims)}


def _unstable(draw: Draw, dims: int) -> dict[str, Any]:
    decays = _decays(draw)
    return {"x": _x(draw), "dt": decays["dt"], "ddt": draw.place(decays["dA_cumsum"], torch.float32),
            "out": _x(draw), "dout": _x(draw), **_skip(draw, dims)}


def _scan_dstates(draw: Draw, full: bool) -> dict[str, Any]:
    return {"C": _b(draw), "dA_cumsum": _decays(draw)["dA_cumsum"], "dout": _x(draw),
            "dtype": torch.float32, **_optional_seq_idx(draw, full)}


def _scan_dc(draw: Draw, full: bool) -> dict[str, Any]:
    return {"prev_states": _states(draw, None), "dA_cumsum": _decays(draw)["dA_cumsum"], "dout": _x(draw),
            "ngroups": draw.size.groups, **_optional_seq_idx(draw, full), **({"C": _b(draw)} if full else {})}


def _scan_dcb(draw: Draw, packed_rows: bool) -> dict[str, Any]:
    """Upstream takes seq_idx or CB, not both."""
    return _with_x(draw, dout=_x(draw), ngroups=draw.size.groups, **_optional_seq_idx(draw, packed_rows),
                   **({} if packed_rows else {"CB": _cb(draw)}))


def _scan_ddacs_prev(draw: Draw, full: bool) -> dict[str, Any]:
    return {"prev_states": _states(draw, None), "C": _b(draw), "dout": _x(draw),
            "dA_cumsum": _decays(draw)["dA_cumsum"], **_optional_seq_idx(draw, full)}


_SCAN = _TRITON + "ssd_chunk_scan"
_case(_SCAN, "_chunk_scan_fwd", "plain", lambda draw: _scan_fwd(draw, False, 0), cost=3)
_case(_SCAN, "_chunk_scan_fwd", "D[H], z, seq_idx", lambda draw: _scan_fwd(draw, True, 1), cost=3)
_case(_SCAN, "_chunk_scan_fwd", "D[H, P]", lambda draw: _scan_fwd(draw, False, 2), cost=3)
_case(_SCAN, "_chunk_scan_fwd_wip", "D[H, P], seq_idx", _scan_fwd_wip, cost=3)
for _dims in (0, 1, 2):
    _word = ("no D", "D[H]", "D[H, P]")[_dims]
    _case(_SCAN, "_chunk_scan_bwd_dz", _word, lambda draw, d=_dims: _scan_dz(draw, d, d != 1))
    _case(_SCAN, "_chunk_scan_bwd_ddAcs_unstable", _word, lambda draw, d=_dims: _unstable(draw, d))
    _case(_SCAN, "_chunk_scan_bwd_dx", _word,
          lambda draw, d=_dims: _with_x(draw, cb=_cb(draw), dout=_x(draw), **_skip(draw, d)), cost=2)
for _flag in (False, True):
    _word = "seq_idx" if _flag else "plain"
    _case(_SCAN, "_chunk_scan_bwd_dstates", _word, lambda draw, a=_flag: _scan_dstates(draw, a), cost=2)
    _case(_SCAN, "_chunk_scan_bwd_dC", _word, lambda draw, a=_flag: _scan_dc(draw, a), cost=2)
    _case(_SCAN, "_chunk_scan_bwd_dcb", _word, lambda draw, a=_flag: _scan_dcb(draw, a), cost=2)
    _case(_SCAN, "_chunk_scan_bwd_ddAcs_prev", _word, lambda draw, a=_flag: _scan_ddacs_prev(draw, a), cost=2)
for _name in ("_chunk_scan_bwd_ddAcs_stable_old", "_chunk_scan_bwd_ddAcs_stable"):
    _case(_SCAN, _name, "", lambda draw: _with_x(draw, dout=_x(draw), cb=_cb(draw)), cost=2)


def _passing(draw: Draw, full: bool) -> dict[str, Any]:
    """Flattened states [B, chunks, H, P·N] and the decay of each chunk [B, H, chunks]."""
    size = draw.size
    arguments = {"states": draw.normal(size.batch, size.chunks, size.heads, size.v * size.qk),
                 "dA_chunk_cumsum": draw.uniform(-2, -0.1, size.batch, size.heads, size.chunks,
                                                 dtype=torch.float32, any_last=True)}
    return arguments | ({"seq_idx": _seq_idx(draw), "chunk_size": size.chunk} if full else {})


def _passing_fwd(draw: Draw, full: bool) -> dict[str, Any]:
    size, arguments = draw.size, _passing(draw, full)
    initial = draw.normal(size.batch, size.heads, size.v * size.qk)
    return arguments | ({"initial_states": initial, "out_dtype": torch.float32} if full else {})


def _passing_bwd(draw: Draw, full: bool) -> dict[str, Any]:
    size, arguments = draw.size, _passing(draw, full)
    arguments["dout"] = draw.normal(*arguments["states"].shape)
    if full:
        arguments |= {"dfinal_states": draw.normal(size.batch, size.heads, size.v * size.qk),
                      "has_initial_states": True, "states_dtype": torch.float32, "dstates_dtype": torch.float32}
    return arguments


_PASSING = _TRITON + "ssd_state_passing"
for _flag in (False, True):
    _word = "initial state, seq_idx" if _flag else "plain"
    _case(_PASSING, "_state_passing_fwd", _word, lambda draw, a=_flag: _passing_fwd(draw, a))
    _case(_PASSING, "_state_passing_bwd", _word, lambda draw, a=_flag: _passing_bwd(draw, a))


def _bmm_fwd(draw: Draw, grouped: bool, causal: bool, full: bool = False) -> dict[str, Any]:
    size = draw.size
    shape = (size.batch, size.time, size.groups, size.qk) if grouped else (size.batch, size.time, size.qk)
    # Without groups upstream takes a or b stored as [B, K, T]; with groups it calls for last stride 1 or copies.
    arguments = {"a": draw.normal(*shape, scale=0.3, any_last=not grouped), "b": draw.normal(*shape, scale=0.3),
                 "chunk_size": size.chunk, "causal": causal}
    return arguments | ({"seq_idx": _seq_idx(draw), "output_dtype": torch.float32} if full else {})


def _bmm_bwd(draw: Draw, grouped: bool, residual: bool) -> dict[str, Any]:
    size = draw.size
    groups = (size.groups,) * grouped
    shape = (size.batch, size.time, *groups, size.qk)
    arguments = {"a": draw.normal(*shape, scale=0.3),
                 "dout": draw.normal(size.batch, size.chunks, *groups, size.chunk, size.chunk, any_last=True)}
    return arguments | ({"residual": draw.normal(*shape)} if residual else {})


_BMM = _TRITON + "ssd_bmm"
for _grouped in (False, True):
    _word = "groups" if _grouped else "no groups"
    _case(_BMM, "_bmm_chunk_fwd", _word, lambda draw, g=_grouped: _bmm_fwd(draw, g, False))
    _case(_BMM, "_bmm_chunk_fwd", _word + ", causal", lambda draw, g=_grouped: _bmm_fwd(draw, g, True),
          defined=_lower_triangles)
    _case(_BMM, "_bmm_chunk_bwd", _word, lambda draw, g=_grouped: _bmm_bwd(draw, g, False))
    _case(_BMM, "_bmm_chunk_bwd", _word + ", residual", lambda draw, g=_grouped: _bmm_bwd(draw, g, True))
_case(_BMM, "_bmm_chunk_fwd", "groups, seq_idx", lambda draw: _bmm_fwd(draw, True, False, full=True))


# ------------------------------------------------------------------- normalization, activation, one-step update

def _norm(draw: Draw, gate: bool, groups: int) -> dict[str, Any]:
    rows, columns, fp32 = draw.size.rows, draw.size.columns, torch.float32
    arguments = {"x": draw.normal(rows, columns), "weight": draw.normal(columns, dtype=fp32),
                 "bias": draw.normal(columns, dtype=fp32), "eps": 1e-5, "group_size": columns // groups}
    return arguments | ({"z": draw.normal(rows, columns)} if gate else {})


def _norm_fwd(draw: Draw, gate: bool, groups: int, before: bool, rms: bool) -> dict[str, Any]:
    return _norm(draw, gate, groups) | {"norm_before_gate": before, "is_rms_norm": rms}


def _norm_bwd(draw: Draw, gate: bool, groups: int, before: bool, rms: bool) -> dict[str, Any]:
    arguments = _norm_fwd(draw, gate, groups, before, rms)
    rows, columns, fp32 = draw.size.rows, draw.size.columns, torch.float32
    x, z = arguments["x"].float().contiguous(), arguments.get("z")    # contiguous: the same values in every layout
    if z is not None and not before:
        x = x * torch.nn.functional.silu(z.float().contiguous())
    grouped = x.unflatten(1, (groups, -1)).transpose(0, 1)
    mean = torch.zeros_like(grouped[..., 0]) if rms else grouped.mean(-1)
    rstd = ((grouped - mean[..., None]).square().mean(-1) + arguments["eps"]).rsqrt()
    # One mean and one 1/deviation for each group and row, in this order.
    return arguments | {"dy": draw.normal(rows, columns), "mean": None if rms else draw.place(mean.flatten(), fp32),
                        "rstd": draw.place(rstd.flatten(), fp32), "recompute_output": gate}


_NORM = _TRITON + "layernorm_gated"
for _gate, _groups, _before, _rms in ((False, 1, True, False), (True, 1, True, True), (True, 3, False, False),
                                      (True, 3, True, False), (True, 3, False, True)):
    _word = ", ".join(filter(None, ("rms" if _rms else "layer", "z" if _gate else "", f"{_groups} groups",
                                    "" if not _gate else "norm first" if _before else "gate first")))
    _options = (_gate, _groups, _before, _rms)
    _case(_NORM, "_layer_norm_fwd", _word, lambda draw, a=_options: _norm_fwd(draw, *a))
    _case(_NORM, "_layer_norm_bwd", _word, lambda draw, a=_options: _norm_bwd(draw, *a))


def _swiglu(draw: Draw, backward: bool, recompute: bool = False) -> dict[str, Any]:
    size = draw.size
    half = size.columns // 2 + 5
    arguments: dict[str, Any] = {"xy": draw.normal(size.batch, size.time, 2 * half)}
    if backward:
        arguments |= {"dout": draw.normal(size.batch, size.time, half), "recompute_output": recompute}
    return arguments


_ACTIVATION = _TRITON + "k_activations"
_case(_ACTIVATION, "_swiglu_fwd", "", lambda draw: _swiglu(draw, False))
_case(_ACTIVATION, "_swiglu_bwd", "plain", lambda draw: _swiglu(draw, True))
_case(_ACTIVATION, "_swiglu_bwd", "output again", lambda draw: _swiglu(draw, True, True))


def _update(draw: Draw, heads: int, tied: bool, gate: bool, indexed: bool) -> dict[str, Any]:
    """heads 0: state [B, P, N]. D and dt_bias are always given: upstream's call fails without them."""
    size, fp32 = draw.size, torch.float32
    batch, dim, state = size.batch * 3, size.v, size.qk
    h, groups = ((heads,), (size.groups,)) if heads else ((), ())
    slots = batch + 2 if indexed else batch
    arguments = {
        "state": draw.normal(slots, *h, dim, state), "x": draw.normal(batch, *h, dim),
        "B": draw.normal(batch, *groups, state), "C": draw.normal(batch, *groups, state),
        "D": draw.normal(*h, dim, dtype=fp32), "dt_softplus": True}
    if tied:     # one value for a head, repeated by strides of 0: upstream then loads it once
        arguments |= {"A": draw.uniform(-1, -0.1, *h, dtype=fp32)[..., None, None].expand(*h, dim, state),
                      "dt": draw.normal(batch, *h)[..., None].expand(batch, *h, dim),
                      "dt_bias": draw.normal(*h, dtype=fp32)[..., None].expand(*h, dim)}
    else:
        arguments |= {"A": draw.uniform(-1, -0.1, *h, dim, state, dtype=fp32),
                      "dt": draw.normal(batch, *h, dim), "dt_bias": draw.normal(*h, dim, dtype=fp32)}
    if gate:
        arguments["z"] = draw.normal(batch, *h, dim)
    if indexed:
        arguments["state_batch_indices"] = draw.integers(torch.randperm(slots, generator=draw._generator)[:batch])
    return arguments


_UPDATE = _TRITON + "selective_state_update"
for _word, _how in (("3-d state", (0, False, False, False)), ("3-d state, z", (0, False, True, False)),
                    ("4-d state, z", (1, False, True, False)), ("4-d state, tied", (1, True, False, False)),
                    ("4-d state, tied, z, indices", (1, True, True, True))):
    _case(_UPDATE, "selective_state_update", _word, mutated=("state",),
          arguments=lambda draw, a=_how: _update(draw, draw.size.heads * a[0], *a[1:]))

CASES.sort(key=lambda case: case.cost)     # stable: within a cost, the order above


def gate_cases_of(module: str) -> Iterator[tuple[str, Callable[[ModuleType], object]]]:
    """Every case of a module in every dtype, in the form of a cases file (docs/gate.md)."""
    for case in CASES:
        for dtype in case.dtypes if case.module == module else ():
            yield f"{case.name} {dtype}", partial(_launch, case, dtype)


def _launch(case: Case, dtype: str, module: ModuleType) -> object:
    return getattr(module, case.function)(**case.arguments(Draw(SIZES["model"], "cpu", getattr(torch, dtype))))
