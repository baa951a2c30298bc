"""A cube core with its two vector cores, or a vector core alone, running the programs of a launch one after another.

A card runs as many programs at once as it has cores, in no order that a kernel may rely on; here that shows as a check
(no program may read or write what another one writes), not as parallel work.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from migrate.errors import UsageError
from migrate.vnpu import library
from migrate.vnpu.core import PIPES, Core, SharedMemory
from migrate.vnpu.findings import ERROR, Finding, Findings
from migrate.vnpu.log import Event
from migrate.vnpu.memory import BITS, Array, Fault, View
from migrate.vnpu.program import Function, Program, make, workspace

GRID_LIMIT = 65_535      # programs a launch; the launcher of triton-ascend refuses more
LOCK_BYTES = 4096

Signal = tuple[float, Array]


@dataclass(frozen=True)
class Tensor:
    """A pointer argument: `offset` bytes into a memory. Arguments that share storage share the memory."""

    memory: SharedMemory
    offset: int = 0


@dataclass(frozen=True)
class Options:
    """How to run a launch. `programs`: which, by number, with negative ones counted from the end; None: all. `trace`:
    keep what every program did, for `Run.events`."""

    programs: tuple[int, ...] | None = None
    trace: bool = False

    def chosen(self, count: int) -> Sequence[int]:
        if self.programs is None:
            return range(count)
        return sorted({p % count for p in self.programs if -count <= p < count})


def parse_programs(text: str) -> tuple[int, ...]:
    """"0,1,last" as numbers for `Options.programs`."""
    words = [part.strip() for part in text.split(",")]
    try:
        if any(word.startswith("-") for word in words):
            raise ValueError
        return tuple(-1 if word == "last" else int(word) for word in words)
    except ValueError:
        raise UsageError(f"programs: expected numbers and 'last', as in 0,1,last, got {text!r}") from None


@dataclass
class Run:
    """What came of a launch."""

    kernel: str
    grid: tuple[int, ...]
    programs: int                                   # how many were run
    findings: list[Finding]
    seconds: list[float] = field(default_factory=list)     # wall time of each program
    cycles: list[float] = field(default_factory=list)      # of each program, by the cost model
    events: list[Event] = field(default_factory=list)
    ended: bool = True                              # whether every program came to its end

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]


class Machine:
    """The cores that one compiled kernel needs, kept from launch to launch."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.findings = Findings(program.kernel)
        self.events: list[Event] | None = None
        self.atomics: dict[tuple[Any, ...], str] = {}     # atomic updates of a program, and the core that was first
        self._signals: dict[tuple[str, int], list[Signal]] = {}
        mixed = any(function.mixed for function in program.functions)
        kinds = [(function, half) for function in program.functions
                 for half in ((0, 1) if mixed and function.core == "AIV" else (0,))]
        self.cores: list[Core] = []
        self._bodies: list[tuple[Core, Function, Callable[..., Any]]] = []
        made = {id(function): make(function) for function in program.functions}
        for k, (function, half) in enumerate(kinds):
            core = Core(self, function.core, half, k * len(PIPES), len(kinds) * len(PIPES), program.memories)
            self.cores.append(core)
            self._bodies.append((core, function, made[id(function)](core)))
        self._workspace = workspace(program)

    def thread_name(self, thread: int) -> str:
        return f"{PIPES[thread % len(PIPES)]} of {self.cores[thread // len(PIPES)].name}"

    # -- handshakes between the cube core and its vector cores ----------------------------------------------------

    def signal(self, sender: Core, flag: int, time: float, clock: Array) -> None:
        """The cube core signals each vector core; a vector core signals the cube core."""
        receivers = [core.name for core in self.cores if core.kind != "AIC"] if sender.kind == "AIC" else [
            f"AIC from {sender.name}"]
        for receiver in receivers:
            self._signals.setdefault((receiver, flag), []).append((time, clock))

    def signalled(self, receiver: Core, flag: int) -> list[Signal] | None:
        """One signal from each core of the other side, or None while one is missing. The cube core waits for both
        vector cores."""
        boxes = [self._signals.get((name, flag), []) for name in (
            [receiver.name] if receiver.kind != "AIC"
            else [f"AIC from {core.name}" for core in self.cores if core.kind != "AIC"])]
        return [box.pop(0) for box in boxes] if boxes and all(boxes) else None

    # -- launches --------------------------------------------------------------------------------------------

    def launch(self, grid: Sequence[int], arguments: Sequence[Tensor | int | float | bool], options: Options) -> Run:
        """Run the chosen programs. `arguments` are those of the Python kernel that reach the device, in order.

        Tensors are changed in place. A program that faults (out of bounds, a hang, an unknown operation) ends the
        launch; that is a finding, too.
        """
        extents = (*grid, 1, 1, 1)[:3]
        count = prod(extents)
        if count > GRID_LIMIT:
            raise UsageError(f"grid {tuple(grid)}: expected at most {GRID_LIMIT:,} programs, got {count:,}")
        self.findings = Findings(self.program.kernel)
        self.events = [] if options.trace else None
        chosen = options.chosen(count)
        run = Run(self.program.kernel, tuple(grid), 0, [])
        shared = {"workspace": SharedMemory("the workspace", None, max(self._workspace * count, 64), 2),
                  "sync_block_lock": SharedMemory("the lock", np.zeros(LOCK_BYTES, np.uint8), LOCK_BYTES, 1)}
        bodies = [(core, body, self._arguments(function, arguments, shared, extents))
                  for core, function, body in self._bodies]
        with np.errstate(all="ignore"):      # kernels overflow to inf and mask it later, as on a device
            for number in chosen:
                start = time.perf_counter()
                run.ended = self._run(number, count, bodies)
                run.seconds.append(time.perf_counter() - start)
                run.cycles.append(max(max(core.times) for core in self.cores))
                run.programs += 1
                if not run.ended:
                    break
        for argument in arguments:
            if isinstance(argument, Tensor):
                argument.memory.give_back()
        run.findings, run.events = self.findings.take(), self.events or []
        return run

    def _arguments(self, function: Function, own: Sequence[Any], shared: dict[str, SharedMemory],
                   grid: Sequence[int]) -> list[Any]:
        given = iter((*own, *grid))
        values: list[Any] = []
        for kind in function.parameters:
            if kind in shared:
                memory = shared[kind]
                values.append(View(memory, memory.margin, 0, (memory.inner,), (1,), "i8"))
            elif kind == "ffts_base_address":
                values.append(0)
            elif kind.startswith("*"):
                tensor, dtype = next(given), kind[1:]
                size = (tensor.memory.inner - tensor.offset) * 8 // BITS[dtype]
                values.append(View(tensor.memory, tensor.memory.margin + tensor.offset, 0, (size,), (1,), dtype))
            else:
                value = next(given)
                values.append(value if kind == "i1" else int(value) if kind[0] == "i" else float(value))
        if (left := len(list(given))) != 0:
            raise ValueError(f"{function.name}: {left} arguments more than the compiled kernel takes")
        return values

    def _run(self, number: int, count: int, bodies: Iterable[tuple[Core, Callable[..., Any], list[Any]]]) -> bool:
        """One program. False where it could not go on."""
        epochs = [epoch for core in self.cores for epoch in core.epochs]
        self._signals.clear()
        self.atomics.clear()
        for core in self.cores:
            core.begin(number, count, epochs)
        waiting = [(core, body(*values)) for core, body, values in bodies]
        while waiting:
            still, moved = [], False
            for core, steps in waiting:
                before = core.steps
                try:
                    next(steps)
                except StopIteration:
                    moved = True
                    continue
                except library.Unknown as error:
                    core.found("unknown function", ERROR, str(error))
                    return False
                except Fault as fault:
                    core.found(fault.kind, ERROR, str(fault).removeprefix(f"{fault.kind}: "))
                    return False
                except Exception as error:       # a fault of this simulator: it says where, and is not hidden
                    site = core.site
                    raise RuntimeError(f"the virtual NPU failed at {site.name}, {site.place}, program {number} of "
                                       f"{self.program.kernel}: {type(error).__name__}: {error}") from error
                moved |= core.steps != before
                still.append((core, steps))
            if still and not moved:
                for core, _ in still:
                    core.found("hang", ERROR, "waits for a signal of the other cores that never comes")
                return False
            waiting = still
        for core in self.cores:
            core.end()
        left = [f"{receiver}, flag {flag}" for (receiver, flag), box in self._signals.items() if box]
        if left:
            self.cores[0].found("flag", ERROR, f"signalled and never waited for: {'; '.join(left)}")
        return True
