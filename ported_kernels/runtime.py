"""Where kernels run: which devices there are, how large they are, and entering one.

Four devices, one code path: a wrapper checks its arguments, opens `on(tensor.device)` and launches.
- `npu`: torch_npu and triton-ascend; torch_npu is imported when an NPU is first asked for, not before;
- `cuda`: triton;
- `cpu`: Triton's interpreter (see interpreter.py). Nothing is to be set in the environment;
- `vnpu`: the virtual NPU of `migrate.vnpu`, which compiles each launch for an Ascend card and runs what the compiler
  made. Its tensors are on the CPU (`home`), so a wrapper is called inside `on("vnpu")`, which it then leaves alone.

    with runtime.on(x.device):
        kernel[(runtime.vector_programs(x.device, tasks),)](x, ...)

Modules that were not written for this, such as ports of upstream files, run the same way: import them with
`load(path, "cpu")` and call their functions inside `on("cpu")`. Autotuned kernels then take their first
configuration. A child process with TRITON_INTERPRET=1 is not needed, but works: `on` corrects that one, too.
"""
from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ported_kernels import interpreter

DEVICES = ("npu", "cuda", "cpu", "vnpu")
KIB = 1024

# Unified Buffer of one vector core; AscendNPU-IR, NPUTargetSpec.td (248 KB usable on the 950 family).
UB_BYTES = {"Ascend910B": 192 * KIB, "Ascend910_93": 192 * KIB,
            "Ascend910_95": 248 * KIB, "Ascend950": 248 * KIB}


class DeviceUnavailable(RuntimeError):
    """The device was asked for and is not there; the message says why and what would help."""


@dataclass(frozen=True)
class Properties:
    """What a launch needs to know of a device; `arch` is the SoC, the GPU's name, or "interpreter"."""

    arch: str
    cube_cores: int
    vector_cores: int
    ub_bytes: int | None     # None: the device has no Unified Buffer


def why_not(device: str) -> str | None:
    """Why nothing can run on `device` (one of DEVICES) here, or None when it can."""
    if device not in DEVICES:
        raise ValueError(f"device: expected one of {', '.join(DEVICES)}, got {device!r}")
    if device == "cpu":
        return interpreter.unusable()
    if device == "vnpu":
        return _virtual().unusable()
    return _why_no_npu() if device == "npu" else _why_no_cuda()


def default_device() -> str:
    """The first of npu, cuda, cpu that is there; the virtual NPU is asked for by name."""
    for device in DEVICES[:3]:
        if why_not(device) is None:
            return device
    raise DeviceUnavailable("; ".join(f"{device}: {why_not(device)}" for device in DEVICES[:3]))


def home(device: str) -> str:
    """Where the tensors of `device` are, as torch names it."""
    return "cpu" if device == "vnpu" else device


def wait(device: str) -> None:
    """Until all that was launched on `device` is done."""
    if home(device) != "cpu":
        getattr(torch, device).synchronize()


def require(device: str) -> None:
    """Raises `DeviceUnavailable` when `device` cannot be used here."""
    if reason := why_not(device):
        raise DeviceUnavailable(f"device {device!r}: {reason}")


def properties(device: str) -> Properties:
    """Core counts and Unified Buffer size, asked once.

    The CPU counts as few cores, because its programs run one after another and several tasks to a program
    show more. While launches are recorded for the compiler, or run on the virtual NPU, it has the cores of the NPU
    that the active driver names.
    """
    require(device)
    if device == "vnpu":
        with on(device):
            return _npu_properties()
    return _npu_properties() if device == "cpu" and interpreter.recording() else _properties(device)


def _npu_properties() -> Properties:
    from triton.runtime import driver

    counts = driver.active.utils.get_device_properties(driver.active.get_current_device())
    arch = str(driver.active.get_current_target().arch)
    family = next((name for name in UB_BYTES if arch.startswith(name)), "Ascend910B")
    return Properties(arch, counts["num_aicore"], counts["num_vectorcore"], UB_BYTES[family])


@cache
def _properties(device: str) -> Properties:
    if device == "npu":
        return _npu_properties()
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        return Properties(gpu.name, gpu.multi_processor_count, gpu.multi_processor_count, None)
    return Properties("interpreter", 2, 4, UB_BYTES["Ascend910B"])


# A GPU hides latency with several programs on one multiprocessor; an Ascend core runs one at a time.
PROGRAMS_PER_CORE = {"npu": 1, "cuda": 16, "cpu": 1, "vnpu": 1}


def vector_programs(device: torch.device | str, tasks: int) -> int:
    """Programs of a one-dimensional grid for vector kernels that loop over `tasks`: one for each physical
    vector core, never more than there are tasks."""
    kind = _kind(device)
    return max(1, min(tasks, properties(kind).vector_cores * PROGRAMS_PER_CORE[kind]))


GPU_OPTIONS = ("num_warps", "num_stages")


def launch_options(device: torch.device | str, **options: Any) -> dict[str, Any]:
    """Keyword arguments of a launch that only one kind of compiler knows: Ascend's multibuffer=False, a GPU's
    num_stages=1.

        kernel[grid](x, BLOCK=64, **runtime.launch_options(x.device, multibuffer=False))

    On a GPU, Triton takes an unknown one for a mistake, so it gets its own ones only; multibuffer=False, which forbids
    to load the next round's tiles ahead, is num_stages=1 there. Everybody else gets the rest: the interpreter drops
    them, and whoever records launches instead of running them (the compile gate) sees them.
    """
    if not str(device).startswith("cuda"):
        return {name: value for name, value in options.items() if name not in GPU_OPTIONS}
    ahead = {} if options.get("multibuffer", True) else {"num_stages": 1}
    return ahead | {name: value for name, value in options.items() if name in GPU_OPTIONS}


def on(device: torch.device | str) -> AbstractContextManager:
    """Launches inside go to `device`; on the CPU, to Triton's interpreter, unless an outer `on("vnpu")` has them."""
    kind = _kind(device)
    require(kind)
    if kind == "cpu":
        return interpreter.interpreted()
    if kind == "vnpu":
        return _virtual().entered()
    return getattr(torch, kind).device(torch.device(device))


def _kind(device: torch.device | str) -> str:
    """The type of a device; torch has no name for the virtual NPU."""
    return "vnpu" if device == "vnpu" else torch.device(device).type


def _virtual() -> ModuleType:
    return importlib.import_module("migrate.vnpu.device")


def device_of(what: torch.Tensor | torch.device | str | int | None) -> AbstractContextManager:
    """Makes the card of `what` the current one: a launch goes to the current card, not to that of its tensors.

    Ports open it where upstream opens `torch.cuda.device`. Nothing is to be done on the CPU, or for None. A number
    counts the cards of the default device.
    """
    if what is None:
        return contextlib.nullcontext()
    if isinstance(what, int):
        device = torch.device(default_device(), what)
    else:
        device = what.device if isinstance(what, torch.Tensor) else torch.device(what)
    if device.type in ("cpu", "meta"):
        return contextlib.nullcontext()
    return getattr(torch, device.type).device(device)


def load(path: str | Path, device: str = "cpu", root: str | Path | None = None) -> ModuleType:
    """Imports the file `path` with what `device` needs in place.

    A file whose imports expect a package (`from mamba_ssm.ops... import ...`) is given the folder that holds
    that package as `root`; it is then imported under its dotted name, and `root` leaves sys.path again. Raises
    ImportError where another file was imported under that name.
    """
    path = Path(path).resolve()
    with on(device), _on_path(root):
        if root is not None:
            dotted = ".".join(path.relative_to(Path(root).resolve()).with_suffix("").parts)
            found = importlib.import_module(dotted)
            if Path(found.__file__ or "").resolve() != path:
                raise ImportError(f"{path}: {dotted} is imported already, from {found.__file__}")
            return found
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@contextlib.contextmanager
def _on_path(root: str | Path | None) -> Iterator[None]:
    entry = None if root is None else str(Path(root).resolve())
    if entry:
        sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry:
            sys.path.remove(entry)


@cache
def _why_no_npu() -> str | None:
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed; on a machine with CANN: pip install 'triton-ascend-migrate[npu]'"
    try:
        npu = importlib.import_module("torch_npu").npu
    except Exception as error:     # a CANN that does not match fails in many ways
        return f"torch_npu cannot be imported ({error}); was CANN's set_env.sh sourced?"
    return None if npu.is_available() else "torch_npu sees no NPU"


@cache
def _why_no_cuda() -> str | None:
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        from triton.backends import backends
    except ImportError as error:
        return f"triton cannot be imported ({error}); install: pip install 'triton-ascend-migrate[cuda]'"
    if "nvidia" not in backends and "amd" not in backends:
        return ("the installed triton has no GPU backend (triton-ascend takes the folder of triton); "
                "use another environment: pip install 'triton-ascend-migrate[cuda]'")
    return None
