"""Whole chains of upstream's ports on the virtual NPU, autograd included, beside recurrences in float64.

    python benchmarks/vnpu_chains.py PORTS NAME DTYPE      one chain; prints a line of JSON

PORTS is a folder with the port of the file, made with `migrate port FILE -o PORTS`. A chain runs in a process of its
own, as FLA wants a torch.npu when it is imported, and finds a stand-in.
"""
from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import vnpu_recurrences as exact

from migrate.vnpu import device
from migrate.vnpu.machine import Run
from ported_kernels.catalog import spread

FLA, MAMBA = "fla-core==0.6.0", "mamba-ssm==2.3.2.post1"
BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 1e-2}      # relative L2 error; several roundings of 2^-9 in a chain

Inputs = dict[str, torch.Tensor]


class Draw:
    """Inputs of one dtype, always the same."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self._from = dtype, torch.Generator().manual_seed(0)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> torch.Tensor:
        return (scale * torch.randn(*shape, generator=self._from)).to(dtype or self.dtype)

    def decay(self, *shape: int) -> torch.Tensor:
        """Logarithms of decays a little below 1, in float32."""
        return torch.nn.functional.logsigmoid(self.normal(*shape, dtype=torch.float32)) / 4


@dataclass(frozen=True)
class Chain:
    """`function` of `module` on `inputs`, with `options`; `reference` takes the inputs in float64. Where there are
    `leaves`, backward is run as well, and their gradients are compared. `dtypes` are those that the function takes."""

    release: str
    module: str
    function: str
    inputs: Callable[[Draw], Inputs]
    reference: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "bfloat16")

    @property
    def file(self) -> str:
        """What `migrate port` takes."""
        return f"{self.release}:{self.module.replace('.', '/')}.py"


def _ssd(T: int, H: int, P: int, N: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "x": draw.normal(1, T, H, P), "dt": draw.normal(1, T, H), "A": -draw.normal(H, dtype=torch.float32).exp(),
        "B": draw.normal(1, T, 1, N, scale=0.5), "C": draw.normal(1, T, 1, N, scale=0.5),
        "D": draw.normal(H, dtype=torch.float32), "z": draw.normal(1, T, H, P),
        "dt_bias": draw.normal(H, scale=0.5, dtype=torch.float32)}


def _attention(T: int, H: int, K: int, V: int, beta: bool = False, decay: bool = True,
               state: bool = False) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        found = {"q": draw.normal(1, T, H, K, scale=0.5), "k": draw.normal(1, T, H, K, scale=0.5),
                 "v": draw.normal(1, T, H, V)}
        if decay:
            found["g"] = draw.decay(1, T, H)
        if state:
            found["initial_state"] = draw.normal(1, H, K, V, dtype=torch.float32)
        if beta:
            found["k"] = torch.nn.functional.normalize(found["k"].float(), dim=-1).to(draw.dtype)
            found["beta"] = draw.normal(1, T, H).sigmoid()
        return found
    return inputs


_SSD = (MAMBA, "mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")
_SSD_OPTIONS = {"chunk_size": 16, "dt_softplus": True, "return_final_states": True}
_GLA = (FLA, "fla.ops.simple_gla.chunk", "chunk_simple_gla")
_LINEAR = (FLA, "fla.ops.linear_attn.chunk", "chunk_linear_attn")
_DELTA = (FLA, "fla.ops.delta_rule.chunk", "chunk_delta_rule")
_GDN = (FLA, "fla.ops.gated_delta_rule.chunk", "chunk_gated_delta_rule")
_CUMSUM = (FLA, "fla.ops.utils.cumsum")
_STATE = {"output_final_state": True}

CHAINS = {
    "ssd, forward": Chain(*_SSD, _ssd(40, 2, 16, 16), exact.ssd, _SSD_OPTIONS),
    "ssd, forward, P64 N64 C32": Chain(*_SSD, _ssd(64, 2, 64, 64), exact.ssd, _SSD_OPTIONS | {"chunk_size": 32}),
    "ssd, forward, P64 N128 C64": Chain(*_SSD, _ssd(128, 2, 64, 128), exact.ssd, _SSD_OPTIONS | {"chunk_size": 64}),
    "ssd, forward and backward": Chain(*_SSD, _ssd(40, 2, 16, 16), exact.ssd, _SSD_OPTIONS,
                                       ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")),
    "l2norm, forward and backward": Chain(FLA, "fla.modules.norm.l2norm", "l2norm",
                                          lambda draw: {"x": draw.normal(2, 37, 3, 48)}, exact.l2norm, leaves=("x",)),
    "l2norm, forward and backward, D1024": Chain(FLA, "fla.modules.norm.l2norm", "l2norm",
                                                 lambda draw: {"x": draw.normal(2, 5, 1024)}, exact.l2norm,
                                                 leaves=("x",)),
    "local cumsum, [B, T, H]": Chain(*_CUMSUM, "chunk_local_cumsum", lambda draw: {"g": draw.normal(2, 100, 3)},
                                     lambda g: exact.local_cumsum(g, 32), {"chunk_size": 32}),
    "local cumsum, [B, T, H, S]": Chain(*_CUMSUM, "chunk_local_cumsum", lambda draw: {"g": draw.normal(2, 100, 3, 24)},
                                        lambda g: exact.local_cumsum(g, 32), {"chunk_size": 32}),
    "global cumsum, [B, T, H]": Chain(*_CUMSUM, "chunk_global_cumsum", lambda draw: {"s": draw.normal(2, 100, 3)},
                                      lambda s: s.cumsum(1)),
    "global cumsum, [B, T, H, S]": Chain(*_CUMSUM, "chunk_global_cumsum",
                                         lambda draw: {"s": draw.normal(2, 100, 3, 24)}, lambda s: s.cumsum(1)),
    "simple_gla, forward and backward": Chain(*_GLA, _attention(128, 2, 32, 32), exact.simple_gla, _STATE,
                                              ("q", "k", "v", "g")),
    "simple_gla, forward and backward, T40": Chain(*_GLA, _attention(40, 1, 16, 16), exact.simple_gla, _STATE,
                                                   ("q", "k", "v", "g")),
    "linear attention, forward and backward, T136": Chain(
        *_LINEAR, _attention(136, 1, 16, 16, decay=False), exact.linear_attention, _STATE | {"normalize": False},
        ("q", "k", "v")),
    "linear attention, forward and backward, from a state": Chain(
        *_LINEAR, _attention(160, 2, 32, 32, decay=False, state=True), exact.linear_attention,
        _STATE | {"normalize": False}, ("q", "k", "v", "initial_state")),
    "delta rule, forward, C32": Chain(*_DELTA, _attention(96, 2, 32, 32, beta=True, decay=False), exact.delta_rule,
                                      _STATE | {"chunk_size": 32}, dtypes=("bfloat16",)),
    "gated delta rule, forward, C16": Chain(*_GDN, _attention(40, 2, 32, 32, beta=True), exact.gated_delta_rule,
                                            _STATE | {"chunk_size": 16}),
    "gated delta rule, forward, C32": Chain(*_GDN, _attention(96, 2, 32, 32, beta=True), exact.gated_delta_rule,
                                            _STATE | {"chunk_size": 32}),
    "gated delta rule, forward": Chain(*_GDN, _attention(128, 2, 32, 32, beta=True), exact.gated_delta_rule, _STATE),
    "gated delta rule, recurrent, forward": Chain(
        FLA, "fla.ops.gated_delta_rule.fused_recurrent", "fused_recurrent_gated_delta_rule",
        _attention(20, 2, 32, 32, beta=True), exact.gated_delta_rule, _STATE),
}


def compute(chain: Chain, dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Each output, and each gradient as "d" and its leaf, on the virtual NPU and in float64."""
    draw = Draw(dtype)
    inputs = chain.inputs(draw)
    here = {name: x.clone().requires_grad_(name in chain.leaves) for name, x in inputs.items()}
    there = {name: x.double().requires_grad_(name in chain.leaves) for name, x in inputs.items()}
    run = getattr(importlib.import_module(chain.module), chain.function)
    got = [out for out in spread(run(**here, **chain.options)) if out is not None]
    want = spread(chain.reference(**there))
    if len(got) != len(want):
        raise ValueError(f"{len(got)} outputs, {len(want)} expected")
    if chain.leaves:
        given = [draw.normal(*out.shape, dtype=out.dtype) for out in got]
        torch.autograd.backward(got, given)
        torch.autograd.backward(want, [one.double() for one in given])
    pairs = {f"out{k}" if k else "out": pair for k, pair in enumerate(zip(got, want, strict=True))}
    return pairs | {f"d{name}": (_gradient(here[name]), _gradient(there[name])) for name in chain.leaves}


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    assert leaf.grad is not None
    return leaf.grad


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative L2 error; infinite where something is not a number, or the shape is another."""
    if got.shape != want.shape:
        return math.inf
    found = float((got.detach().double() - want.detach()).norm() / want.detach().norm())
    return math.inf if math.isnan(found) else found


def told(runs: Iterable[Run]) -> dict[str, Any]:
    """What launches say of themselves, as JSON."""
    runs = list(runs)
    seconds = [s for run in runs for s in run.seconds]
    return {"launches": len(runs), "programs": len(seconds),
            "ms": 1e3 * statistics.median(seconds) if seconds else None,
            "errors": Counter(f.kind for run in runs for f in run.errors),
            "notes": Counter(f.kind for run in runs for f in run.findings if f not in run.errors),
            "first": next((str(f) for run in runs for f in run.errors), None)}


def main(ports: str, name: str, dtype: str) -> None:
    from migrate.gate.child import npu

    npu.install("Ascend910B2", 24)
    sys.path.insert(0, ports)
    device.configure(device.Settings(strict=False))
    started = time.perf_counter()
    result: dict[str, Any] = {"bound": BOUNDS[getattr(torch, dtype)]}
    with device.entered() as virtual:
        try:
            result["outputs"] = {out: error(*pair) for out, pair in
                                 compute(CHAINS[name], getattr(torch, dtype)).items()}
        except device.NotCompiled as refused:
            result["refused"] = str(refused)
        except Exception as failure:      # a row of the table, not the end of it
            result["raised"] = f"{type(failure).__name__}: {failure}"
        result |= told(virtual.take())
    print(json.dumps(result | {"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main(*sys.argv[1:])
