"""The operators: what each computes, on which inputs it is tried, and how close it must come.

An operator's contract is a file `..._reference.py` that shares no code with its kernel and ends in
`OPERATOR = Operator(...)`, or `OPERATORS = (...)`; naming that file in CONTRACTS registers it. The wrapper may be a
function of a file: `port_of(upstream)` is one in `generated/`, which `migrate port` writes. `from_file` takes a
contract from anywhere. The catalogue imports no triton.
"""
from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ported_kernels import arguments
from ported_kernels.signature import Signature

CONTRACTS = [
    "ported_kernels.mamba3.segsum_dadt_reference",
    "ported_kernels.mamba3.dzdo_reference",
    "ported_kernels.mamba3.compute_dzdo_reference",
    "ported_kernels.mamba3.compute_dqkv_reference",
    "ported_kernels.mamba3.compute_dqktheta_reference",
    "ported_kernels.mamba3.dk_state_post_reference",
    "ported_kernels.mamba3.compute_ddt_reference",
    "ported_kernels.mamba3.siso_fwd_reference",
    "ported_kernels.mamba3.mimo_utils_reference",
    "ported_kernels.kda.state_reference",
    "ported_kernels.kda.fla_cp_reference",
    "ported_kernels.ssd.chunk_state_reference",
    "ported_kernels.ssd.state_passing_reference",
    "ported_kernels.ssd.bmm_reference",
    "ported_kernels.ssd.chunk_scan_reference",
    "ported_kernels.ssd.layernorm_gated_reference",
    "ported_kernels.ssd.autograd_reference",
    "ported_kernels.ssd.layernorm_autograd_reference",
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
    """The function an operator ports, in a pinned release, and how.

    A port that is made with options of its own lies apart from the plain one: `port` is where, below generated/, as in
    "specialised/NAME/fla_0_5_2/ops/cp/chunk_delta_h.py". Operators with the same `port` have the same `asked`.
    """

    release: str     # "mamba-ssm==2.3.2.post1"
    path: str        # inside the release
    function: str
    asked: str = ""  # options of `migrate port`, as its header has them: "--set K=128 V=128 --split K"
    port: str = ""


class NotPorted(RuntimeError):
    """The port that an operator runs has not been made; the message says how to make it."""


def port_of(upstream: Upstream) -> str:
    """The wrapper of an operator that runs what the rules make of `upstream`."""
    return f"{GENERATED / (upstream.port or upstream.path)}:{upstream.function}"


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
    signature: Signature | None = None           # where it runs a port; code written by hand checks for itself
    # Of an autograd function: the inputs whose gradients are outputs, too, and those entries of a case, and last
    # parameters of the reference, that are the gradients given to its outputs.
    leaves: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    own_tolerances: Mapping[str, Tolerance] = field(default_factory=dict)     # of outputs whose dtype is fixed
    root: Path | None = None                     # the folder on sys.path when the wrapper is a file
    contract: Path | None = None                 # the file it was read from, when not from CONTRACTS
    plain: str = ""                              # our own source of which the wrapper launches the rules' form

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return tuple(self.tolerances)

    @property
    def port(self) -> Path | None:
        """The generated file that the operator runs, or whose kernels its wrapper launches; None when it runs code
        written by hand."""
        path = Path(self.wrapper.rpartition(":")[0])
        if path.is_relative_to(GENERATED):
            return path
        return GENERATED / self.upstream.port if self.upstream.port else None

    @property
    def import_root(self) -> Path | None:
        """The folder on sys.path when the wrapper is a file of a package."""
        return PACKAGE.parent if self.port else self.root

    @property
    def origin(self) -> str:
        """What runs, for reports."""
        release, path = self.upstream.release, self.upstream.path
        if self.port:
            asked = f", made with {self.upstream.asked}" if self.upstream.asked else ""
            return f"the generated port of {path} ({release}){asked}"
        how = f"the rules' form of our own {self.plain}" if self.plain else "written by hand"
        return f"{how}, after {self.upstream.function} in {path} ({release})"

    def load(self, device: str) -> Callable[..., Any]:
        """The function to call; a file is imported for `device`. Raises NotPorted when there is no port yet."""
        run = _imported(self, device)
        if self.signature:
            run = self.function
        elif self.wrapper.rpartition(":")[0].endswith(".py"):
            return _within(run, device)
        return _where(run, device)

    @property
    def function(self) -> Callable[..., Any]:
        """What `from ported_kernels import NAME` gives. It runs where its tensors are. A port is imported at the first
        call whose arguments fit; that call raises NotPorted when there is none."""
        return _checked(self) if self.signature else self.load("cpu")

    def trial(self, device: str) -> Callable[..., Any]:
        """What takes a case's inputs: the function; of an autograd function, both ways."""
        return _where(_both_ways(self, self.load(device)), device) if self.gradients else self.load(device)

    def results(self, returned: Any, inputs: Inputs) -> tuple[Any, ...]:
        """What a call returned, tuples in it spread out, and the outputs it left in its inputs: as `outputs` has
        them."""
        found = () if returned is None and len(self.left_in) == len(self.outputs) else spread(returned)
        return (*found, *(inputs[name] for name in self.left_in))

    def load_reference(self) -> Callable[..., Any]:
        module, _, function = self.reference.rpartition(":")
        return getattr(importlib.import_module(module), function)

    def case(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        known = "; ".join(one.name for one in self.cases)
        raise KeyError(f"{self.name} has no case {name!r}; it has {known}")

    def tolerance(self, output: str, dtype: torch.dtype) -> Tolerance:
        return self.own_tolerances.get(output, self.tolerances[dtype])

    def output_dtype(self, name: str, inputs: Inputs) -> torch.dtype:
        source = self.outputs[name]
        if isinstance(source, str):
            return inputs[source].dtype
        return source if isinstance(source, torch.dtype) else source(inputs)


@cache
def _imported(operator: Operator, device: str) -> Callable[..., Any]:
    place, _, function = operator.wrapper.rpartition(":")
    if operator.port and not operator.port.is_file():
        upstream = operator.upstream
        # what is made with options goes to a folder of its own, which the verbs that run an operator know
        make = f"verify {operator.name}" if upstream.asked else f"port {upstream.release}:{upstream.path}"
        raise NotPorted(f"{operator.name} runs the port of {upstream.path}, which has not been made; run: "
                        f"migrate {make}")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), function)
    from ported_kernels import runtime

    module = runtime.load(place, device, operator.import_root)
    if operator.gradients:
        _enter_backward(module)
    return getattr(module, function)


def _within(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """A function that does not enter `device` by itself, inside `runtime.on`: that of a port, for one."""
    from ported_kernels import runtime

    @wraps(function)
    def call(*given: Any, **more: Any) -> Any:
        with runtime.on(device):
            return function(*given, **more)

    return call


def _where(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Tensors of the virtual NPU are on the CPU, so a wrapper cannot tell from them that it is meant."""
    return _within(function, device) if device == "vnpu" else function


@cache
def _checked(operator: Operator) -> Callable[..., Any]:
    """The function of a port, its arguments checked, on the device of its tensors."""
    signature = operator.signature
    assert signature is not None
    reference = inspect.signature(operator.load_reference())
    parameters = [one for name, one in reference.parameters.items() if name in signature.arguments]
    expected = reference.replace(parameters=parameters)

    def call(*given: Any, **more: Any) -> Any:
        bound = expected.bind(*given, **more)
        bound.apply_defaults()
        device = signature.check(bound.arguments)
        for name in operator.mutates:
            if isinstance(bound.arguments[name], torch.Tensor):
                arguments.writable(name, bound.arguments[name])
        from ported_kernels import runtime

        function = _imported(operator, device.type)
        with runtime.on(device):
            return function(*given, **more)

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = f"{operator.summary}.\n\n{operator.origin}. Arguments that do not fit are a ValueError:\n\n" + \
        "\n".join(f"    {name}: {declared}" for name, declared in signature.arguments.items())
    call.__signature__ = expected       # type: ignore[attr-defined]
    return call


@cache
def _enter_backward(module: ModuleType) -> None:
    """Autograd calls `backward` when `on` has long been left; here the module's functions enter it again."""
    from ported_kernels import runtime

    def entering(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def call(context: Any, *given: Any) -> Any:
            device = next(one.device for one in given if isinstance(one, torch.Tensor))
            with runtime.on(device):
                return backward(context, *given)

        return call

    for one in vars(module).values():
        if isinstance(one, type) and issubclass(one, torch.autograd.Function) and one.__module__ == module.__name__:
            one.backward = staticmethod(entering(one.backward))      # type: ignore[assignment]


def _both_ways(operator: Operator, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(**inputs: Any) -> tuple[Any, ...]:
        given = [inputs.pop(name) for name in operator.gradients]
        held = {name: inputs[name].detach().requires_grad_() for name in operator.leaves
                if inputs.get(name) is not None}
        out = spread(function(**(inputs | held)))
        found = dict(zip(held, torch.autograd.grad(out, list(held.values()), given), strict=True))
        return (*(one.detach() for one in out), *(found.get(name) for name in operator.leaves))

    return call


def spread(value: Any) -> tuple[Any, ...]:
    """What a function returned, with the tuples in it spread out."""
    if not isinstance(value, (tuple, list)):
        return (value,)
    return tuple(single for one in value for single in spread(one))


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
        raise KeyError(unknown(name)) from None


def unknown(name: str) -> str:
    """What is said of a name that no operator has: those that are like it, else all."""
    near = difflib.get_close_matches(name, operators(), n=3)
    return f"no operator {name!r}; " + (f"did you mean {' or '.join(near)}?" if near else
                                        f"there are {', '.join(operators())}")


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
