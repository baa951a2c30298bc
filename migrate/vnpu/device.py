"""The virtual NPU as the device behind triton: what a launch would run on a card is compiled, and run here.

Inside `entered()`, a launch of a `@triton.jit` function on CPU tensors is lowered and compiled for the chosen target as
the gate does it, and its final HIVM is executed on the tensors' memory. Wrappers run unchanged, whole chains of
kernels with autograd included. What does not compile raises `NotCompiled`, with the gate's reason.

    with entered():
        kernel[(48,)](x, y, BLOCK=256)

Two patches of triton do it, one of `JITFunction` and one of `Autotuner` (which takes the first configuration that
compiles); both are taken back on leaving. `ported_kernels.runtime` enters here for the device "vnpu".
"""
from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from migrate.errors import UsageError
from migrate.gate import compiler, diagnose, process, targets, toolchain
from migrate.gate.result import Outcome
from migrate.gate.toolchain import Toolchain
from migrate.gate.ttir import Ttir
from migrate.vnpu.core import ATOMIC, SharedMemory
from migrate.vnpu.findings import Finding
from migrate.vnpu.load import load
from migrate.vnpu.machine import Machine, Options, Run, Tensor

_lock = threading.RLock()     # triton's patches are global to the process


class NotCompiled(RuntimeError):
    """A kernel of a launch does not compile for the target: nothing of it was run."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(f"{kernel} does not compile: {reason}")
        self.kernel, self.reason = kernel, reason


class Found(RuntimeError):
    """The checks found something in a launch that no correct program does."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = list(findings)


@dataclass(frozen=True)
class Settings:
    """The card that is stood in for, and how launches are run on it. `strict`: errors that the checks find are raised
    as `Found` when the launch ends; otherwise they are kept in `Device.runs` alone."""

    target: str = targets.DEFAULT
    options: Options = field(default_factory=Options)
    limits: process.Limits = field(default_factory=process.Limits)
    strict: bool = True


settings = Settings()
"""Those of the next `entered()`."""


def configure(chosen: Settings) -> None:
    """Choose the target and the options; a target that is not known, or not supported, is refused."""
    global settings

    if targets.get(chosen.target).family == "A5":
        raise UsageError(f"{chosen.target}: the virtual NPU does not read the HIVM of the 950 family")
    settings = chosen


@cache
def unusable() -> str | None:
    """Why this environment has no virtual NPU, or None when it has one."""
    found = toolchain.current()
    if not found.sound:
        return (f"no sound Ascend toolchain in this environment ({'; '.join(found.problems)}); "
                "install it with: pip install 'triton-ascend-migrate[cpu]'")
    try:
        import xdsl  # noqa: F401
    except ImportError:
        return "reading HIVM needs xdsl; install it with: pip install 'triton-ascend-migrate[cpu]'"
    return None


class Device:
    """Compiles and runs launches for one target."""

    def __init__(self, chosen: Settings) -> None:
        self.settings, self.target = chosen, targets.get(chosen.target)
        self.toolchain = toolchain.current()
        self.compiler = compiler.Compiler(self.toolchain, chosen.limits)
        self.runs: list[Run] = []
        self._written: dict[int, SharedMemory] = {}
        self.machines: dict[tuple[int, str], Machine | NotCompiled] = {}

    def take(self) -> list[Run]:
        """The launches since the last call of `take`."""
        taken, self.runs = self.runs, []
        return taken

    def written(self, tensor: Any) -> Any:
        """Which elements of a tensor the launches wrote since this was asked of it last; known where not all programs
        are run. What was updated atomically does not count: other programs have their share in it. A boolean tensor."""
        import torch

        memory = self._written.pop(tensor.untyped_storage().data_ptr(), None)
        if memory is None or memory.wrote is None:
            return torch.zeros(tensor.shape, dtype=torch.bool)
        cells = torch.from_numpy((memory.wrote != 0) & (memory.wrote & ATOMIC == 0))
        scale = tensor.element_size() // memory.grain
        return cells.as_strided(tensor.shape, [s * scale for s in tensor.stride()],
                                memory.margin // memory.grain + tensor.storage_offset() * scale)

    def run(self, launch: Any, values: Sequence[Any], grid: Sequence[int]) -> None:
        """One launch: a `migrate.gate.child.recorder.Launch`, its run-time arguments, its grid."""
        machine = self._machine(launch)
        if 0 in grid:
            return
        arguments = Arguments()
        done = machine.launch(grid, arguments.of(values), self.settings.options)
        self.runs.append(done)
        if self.settings.options.programs is not None:
            self._written |= {k: memory for k, memory in arguments.memories.items() if memory.wrote is not None}
        if self.settings.strict and done.errors:
            raise Found(done.errors)

    def _machine(self, launch: Any) -> Machine:
        key = (id(launch.fn), launch.key)
        if key not in self.machines:
            try:
                self.machines[key] = Machine(load(self.compiled(launch), self.toolchain, self.target,
                                                  self.settings.limits))
            except NotCompiled as error:
                self.machines[key] = error
        found = self.machines[key]
        if isinstance(found, NotCompiled):
            raise found
        return found

    def compiled(self, launch: Any) -> Path:
        """The final HIVM of a `migrate.gate.child.recorder.Launch`. Raises NotCompiled."""
        from migrate.gate.child.load import explain
        from migrate.gate.child.lower import lower

        kernel = launch.fn.fn.__name__
        try:
            with _environment(self.toolchain):
                text, adapter, flags = lower(launch, a5=False)
        except Exception as error:
            file = launch.describe()["file"]
            raise NotCompiled(kernel, diagnose.front_end(explain(error, file)).message) from error
        ttir = Ttir(text)
        with tempfile.TemporaryDirectory(prefix="migrate-vnpu-") as folder:
            path = Path(folder) / "ttir.mlir"
            path.write_text(text)
            step = self.compiler.to_linalg(path, adapter)
        if step.outcome is Outcome.OK:
            step = self.to_hivm(Path(step.text), flags)
        if step.outcome is not Outcome.OK:
            raise NotCompiled(kernel, diagnose.compile_step(step, ttir, launch.constants).message)
        return Path(step.text)

    def to_hivm(self, linalg: Path, flags: Sequence[str]) -> compiler.Step:
        """The last step of a compile: as launched, or with the launch option that it needs; the first failure."""
        steps = self.compiler.to_hivm(linalg, flags, self.target)
        return steps[0] if steps[-1].outcome is not Outcome.OK else steps[-1]


@contextlib.contextmanager
def _environment(found: Toolchain) -> Iterator[None]:
    """What triton-ascend reads while it lowers: the compiler on PATH, and that Python's lines are wanted."""
    changed = {"PATH": found.environment["PATH"], "TRITON_DISABLE_LINE_INFO": "false"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Arguments:
    """The arguments of one launch, as the machine takes them: tensors that share storage share a memory."""

    def __init__(self) -> None:
        self.memories: dict[int, SharedMemory] = {}

    def of(self, values: Sequence[Any]) -> list[Tensor | int | float | bool]:
        tensors = [_tensor(value) for value in values if _tensor(value) is not None]
        for tensor in tensors:
            self._remember(tensor, [other for other in tensors
                                    if other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()])
        return [value if (tensor := _tensor(value)) is None else
                Tensor(self.memories[tensor.untyped_storage().data_ptr()],
                       tensor.storage_offset() * tensor.element_size()) for value in values]

    def _remember(self, tensor: Any, sharing: Sequence[Any]) -> None:
        import torch

        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.memories:
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            grain = min(other.element_size() for other in sharing)
            self.memories[storage.data_ptr()] = SharedMemory(
                "/".join(dict.fromkeys(f"a {str(t.dtype).removeprefix('torch.')} tensor {list(t.shape)}"
                                       for t in sharing)), data, data.size, min(grain, 4))


def _tensor(value: Any) -> Any:
    """The torch tensor of an argument, or None."""
    if type(value).__name__ == "TensorWrapper":      # triton.reinterpret
        value = value.base
    return value if hasattr(value, "untyped_storage") else None


_device: Device | None = None
_entered: list[Device] = []      # innermost last: launches go to that one


def current() -> Device:
    """The device for the chosen settings; what it compiled is kept."""
    global _device

    if _device is None or _device.settings != settings:
        _device = Device(settings)
    return _device


@contextlib.contextmanager
def entered(device: Device | None = None) -> Iterator[Device]:
    """Inside, launches of `@triton.jit` kernels go to the virtual NPU; also when modules are imported that need a
    driver at import. `device`: another than that of the settings, for the same card where one is entered already."""
    with _lock:
        device = device or (_entered[-1] if _entered else current())
        _entered.append(device)
        try:
            with contextlib.ExitStack() as stack:
                if len(_entered) == 1:
                    stack.enter_context(_patched(device))
                yield device
        finally:
            _entered.pop()


@contextlib.contextmanager
def _patched(device: Device) -> Iterator[None]:
    import triton.backends.ascend.compiler as ascend
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    from migrate.gate.child.driver import OfflineDriver

    target = device.target
    offline = OfflineDriver(target.name, target.cube_cores, target.vector_cores)
    before = dict(vars(driver))
    kept: list[tuple[Any, str, Any]] = [(owner, name, vars(owner)[name]) for owner, name in (
        (JITFunction, "run"), (JITFunction, "_call_hook"), (Autotuner, "run"), (ascend, "NPUUtils"))]
    bound: list[Any] = []
    run, call_hook = _stand_in(JITFunction.run, bound)
    try:
        driver.set_active(offline)
        ascend.NPUUtils = lambda: offline.utils
        JITFunction.run, JITFunction._call_hook, Autotuner.run = run, call_hook, _first_that_compiles
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        vars(driver).clear()
        vars(driver).update(before)


def _stand_in(original: Callable[..., Any], bound: list[Any]) -> tuple[Any, Any]:
    """What takes the place of `JITFunction.run` and of its hook. Triton's own `run` binds and checks the arguments;
    where it would compile, it asks the hook, which takes over."""
    from migrate.gate.child.recorder import Launch

    def call_hook(jit: Any, key: Any, signature: dict[str, str], index: int, constants: dict[str, Any], options: Any,
                  configs: Any, is_warmup: bool, before: bool) -> bool:
        bound.append(Launch(jit, signature, constants, configs[0], options))
        return True

    def run(jit: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        bound.clear()
        original(jit, *args, grid=grid, warmup=warmup, **kwargs)
        if warmup or not bound:
            return
        launch = bound.pop()
        kwargs.setdefault("debug", False)
        values = jit.binder(*args, **kwargs)[0]
        extents = grid(values) if callable(grid) else grid
        extents = tuple(int(n) for n in ((extents,) if isinstance(extents, int) else extents))
        _entered[-1].run(launch, [value for name, value in values.items()
                                  if name in launch.signature and name not in launch.constants], extents)

    return run, call_hook


def _first_that_compiles(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands in for `Autotuner.run`. On a card each configuration is compiled and timed, and those that do not
    compile drop out; here nothing can be timed."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    refused: NotCompiled | None = None
    for config in tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs:
        tuner.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
        try:
            return tuner.fn.run(*args, **{**kwargs, **config.all_kwargs()})
        except NotCompiled as error:
            refused = refused or error
    assert refused is not None
    raise refused
