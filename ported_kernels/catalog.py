"""The operators: what each computes, on which inputs it is tried, and how close it must come.

An operator's contract is a file `..._reference.py` that shares no code with its kernel and ends in
`OPERATOR = Operator(...)`, or `OPERATORS = (...)`; naming that file in CONTRACTS registers it. The wrapper may be a
function of a file: `port_of(upstream)` is one in `generated/`, which `migrate port` writes. `from_file` takes a
contract from anywhere. The catalogue imports no triton.
"""
from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch

CONTRACTS = [
    "ported_kernels.mamba3.segsum_dadt_reference",
    "ported_kernels.mamba3.dzdo_reference",
    "ported_kernels.mamba3.compute_dzdo_reference",
    "ported_kernels.mamba3.compute_dqkv_reference",
    "ported_kernels.mamba3.compute_dqktheta_reference",
    "ported_kernels.mamba3.compute_ddt_reference",
    "ported_kernels.mamba3.siso_fwd_reference",
    "ported_kernels.mamba3.mimo_utils_reference",
    "ported_kernels.ssd.chunk_state_reference",
    "ported_kernels.ssd.state_passing_reference",
    "ported_kernels.ssd.bmm_reference",
    "ported_kernels.ssd.chunk_scan_reference",
    "ported_kernels.ssd.layernorm_gated_reference",
    "ported_kernels.ssd.selective_state_update_reference",
]

PACKAGE = Path(__file__).resolve().parent
GENERATED = PACKAGE / "generated"     # what `migrate port` writes; never committed

Inputs = dict[str, Any]     # keyword arguments of the wrapper, tensors on the CPU


@dataclass(frozen=True)
class Case:
    """One input: `build(seed, dtype)` gives the same each time. The name says what is awkward about it."""

    name: str
    build: Callable[[int, torch.dtype], Inputs]


@dataclass(frozen=True)
class Tolerance:
    """`ratio` bounds an output's relative RMS error; each element keeps |error| <= atol + rtol * |ref|."""

    ratio: float
    rtol: float
    atol: float


@dataclass(frozen=True)
class Upstream:
    """The function an operator ports, in a pinned release."""

    release: str     # "mamba-ssm==2.3.2.post1"
    path: str        # inside the release
    function: str


class NotPorted(RuntimeError):
    """The port that an operator runs has not been made; the message says how to make it."""


def port_of(upstream: Upstream) -> str:
    """The wrapper of an operator that runs what the rules make of `upstream`."""
    return f"{GENERATED / upstream.path}:{upstream.function}"


@dataclass(frozen=True, eq=False)      # one object, one operator: hashable by identity
class Operator:
    """`wrapper` and `reference` are "module:function", imported when first used; a wrapper may also be
    "path/to/port.py:function". Both take the inputs of a case by keyword; the reference returns float64, and None
    where the wrapper must return None."""

    name: str
    summary: str
    wrapper: str
    reference: str
    oracle: str                                  # what the reference is, for reports
    # name -> the input that has its dtype, or the dtype, or what tells it from the inputs
    outputs: Mapping[str, str | torch.dtype | Callable[[Inputs], torch.dtype]]
    cases: tuple[Case, ...]
    tolerances: Mapping[torch.dtype, Tolerance]  # one for each dtype the operator takes
    upstream: Upstream
    mutates: tuple[str, ...] = ()                # inputs changed in place, as documented
    left_in: tuple[str, ...] = ()                # of these, the outputs that are not returned; named last
    own_tolerances: Mapping[str, Tolerance] = field(default_factory=dict)     # of outputs whose dtype is fixed
    root: Path | None = None                     # the folder on sys.path when the wrapper is a file
    contract: Path | None = None                 # the file it was read from, when not from CONTRACTS

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return tuple(self.tolerances)

    @property
    def port(self) -> Path | None:
        """The generated file that the operator runs; None when it runs code written by hand."""
        path = Path(self.wrapper.rpartition(":")[0])
        return path if path.is_relative_to(GENERATED) else None

    @property
    def import_root(self) -> Path | None:
        """The folder on sys.path when the wrapper is a file of a package."""
        return PACKAGE.parent if self.port else self.root

    @property
    def origin(self) -> str:
        """What runs, for reports."""
        release, path = self.upstream.release, self.upstream.path
        if self.port:
            return f"the generated port of {path} ({release})"
        return f"written by hand, after {self.upstream.function} in {path} ({release})"

    def load(self, device: str) -> Callable[..., Any]:
        """The function to call; a file is imported for `device`. Raises NotPorted when there is no port yet."""
        place, _, function = self.wrapper.rpartition(":")
        if self.port and not self.port.is_file():
            raise NotPorted(f"{self.name} runs the port of {self.upstream.path}, which has not been made; run: "
                            f"migrate port {self.upstream.release}:{self.upstream.path}")
        if place.endswith(".py"):
            from ported_kernels import runtime

            return _within(getattr(runtime.load(place, device, self.import_root), function), device)
        found = getattr(importlib.import_module(place), function)
        # its tensors are on the CPU, so a wrapper cannot tell from them that the virtual NPU is meant
        return _within(found, device) if device == "vnpu" else found

    def load_reference(self) -> Callable[..., Any]:
        module, _, function = self.reference.rpartition(":")
        return getattr(importlib.import_module(module), function)

    def case(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        known = ", ".join(one.name for one in self.cases)
        raise KeyError(f"{self.name} has no case {name!r}; it has {known}")

    def tolerance(self, output: str, dtype: torch.dtype) -> Tolerance:
        return self.own_tolerances.get(output, self.tolerances[dtype])

    def output_dtype(self, name: str, inputs: Inputs) -> torch.dtype:
        source = self.outputs[name]
        if isinstance(source, str):
            return inputs[source].dtype
        return source if isinstance(source, torch.dtype) else source(inputs)


def _within(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """A function that does not enter `device` by itself, inside `runtime.on`: that of a port, for one."""
    from ported_kernels import runtime

    @wraps(function)
    def call(*arguments: Any, **more: Any) -> Any:
        with runtime.on(device):
            return function(*arguments, **more)

    return call


def operators() -> dict[str, Operator]:
    """All operators by name, sorted."""
    return dict(sorted(_own().items()))


@cache
def _own() -> dict[str, Operator]:
    contracts = [importlib.import_module(module) for module in CONTRACTS]
    found = [getattr(contract, "OPERATORS", None) or (contract.OPERATOR,) for contract in contracts]
    return {operator.name: operator for some in found for operator in some}


@cache
def from_file(path: Path) -> Operator:
    """The OPERATOR of a contract file that is in no package: one's own operator, or a port under trial."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return replace(module.OPERATOR, contract=path)


def get(name: str) -> Operator:
    try:
        return operators()[name]
    except KeyError:
        raise KeyError(f"no operator {name!r}; there are {', '.join(operators())}") from None


def seeded(seed: int) -> Callable[..., torch.Tensor]:
    """`normal(*shape)`: float64 values from N(0, 1), reproducible from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def with_gaps(values: torch.Tensor) -> torch.Tensor:
    """The same values in a view with an offset, every other element of the last axis, and padded rows."""
    shape = values.shape
    home = torch.full((*shape[:-1], 2 * shape[-1] + 3), 7.0, dtype=values.dtype)
    view = home[..., 1:1 + 2 * shape[-1]:2]
    view.copy_(values)
    return view


def axes_swapped(values: torch.Tensor, first: int, second: int) -> torch.Tensor:
    """The same values, laid out with two axes in the other order."""
    return values.transpose(first, second).contiguous().transpose(first, second)
