"""One core at work: its memories, its pipes, the flags between them, and the checks.

A core issues its instructions in order to seven pipes; each pipe works in order, and beside the others. What orders two
pipes are flags, barriers, and the handshakes between cores. Every pipe of every core has a clock of what it may take
as done (a vector clock: one entry for each pipe of each core, counting that pipe's instructions). An instruction that
touches bytes which another pipe wrote, or overwrites bytes that another pipe reads, without knowing of it, is a race.

The vector pipe is not even in order with itself: what a vector instruction wrote may be read by the next one only
after a `pipe_barrier`, or a round trip over another pipe.

Reading what nobody wrote is no fault by itself: a product is moved out of L0C as a whole tile, and vector instructions
work on padded lanes. What is moved stays "never written" where it arrives, and so does what a vector instruction makes
of it; it is an error when it gets to a tensor of the launch, becomes a scalar, or enters a product.

What a buffer holds is what was written through that buffer. Where another one, planned on the same bytes, was written
since, it holds nothing, as if nobody had written there. This is kept byte by byte: a loop over the elements of a buffer
may put its results, one at a time, into another buffer on the very same bytes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from migrate.vnpu import cost_model, library, log, views
from migrate.vnpu.findings import ERROR, NOTE
from migrate.vnpu.memory import BITS, FLOATS, POISON, Array, Fault, Memory, Region, View
from migrate.vnpu.program import Site
from migrate.vnpu.views import LocalMemory

if TYPE_CHECKING:
    from migrate.vnpu.machine import Machine

PIPES = ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX")
NUMBER = {name: k for k, name in enumerate(PIPES)}
SCALAR, VECTOR = NUMBER["S"], NUMBER["V"]
MOVERS = frozenset(NUMBER[name] for name in ("MTE2", "MTE3", "FIX"))
OTHERS = (0x00, 0x7F)      # what may as well lie, byte by byte, where nobody wrote
CELL = 32           # bytes for which a race is looked up: buffers are planned at multiples of it
DONE = 2**31 - 1    # the clock entry of a pipe that is always in order with itself
KEPT = 4096         # calls remembered for one site
ASIDE = -1          # in `PrivateMemory.owner`: set aside for the time of one instruction


class PrivateMemory(LocalMemory):
    """A core's own memory, with the last instruction of every pipe that touched each cell: a row for each pipe that
    wrote it, then a row for each that read it."""

    __slots__ = ("_marks", "owner", "touched")

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self.touched = np.zeros((2 * len(PIPES), -(-size // CELL)), np.int32)
        self.owner = np.zeros(size, np.int16)      # of each byte: the buffer through which it was last written
        self._marks: dict[View, Marks] = {}

    def marks(self, view: View) -> Marks:
        found = self._marks.get(view)
        if found is None:
            if len(self._marks) > views.MOST:
                self._marks.clear()
            found = self._marks[view] = Marks(view, self)
        return found

    def forget(self, poison: bool = True) -> None:
        super().forget(poison)
        self.owner.fill(0)


class Marks:
    """The shadow of one view of a private memory."""

    __slots__ = ("buffer", "count", "owner", "shape", "touched", "view", "written", "wrote")

    def __init__(self, view: View, memory: PrivateMemory) -> None:
        inside(view)
        assert memory.written is not None
        self.view, self.touched = view, _beside(memory.touched, view.region())
        self.buffer, self.owner = view.buffer, view.region().over(memory.owner)
        self.wrote = self.touched[:len(PIPES)]
        self.written = view.region().over(memory.written)
        self.count = self.written.size
        self.shape = (-1, *[1] * (self.wrote.ndim - 1))     # of a limit, to stand beside the cells


def _beside(shadow: Array, region: Region) -> Array:
    """The cells beside a region, for every pipe: the first axis is the pipe."""
    cells = region.over(shadow[0], CELL)
    return np.ndarray((len(shadow), *cells.shape), shadow.dtype, shadow, _offset(cells, shadow),
                      (shadow.strides[0], *cells.strides)) if cells.size else shadow[:, :0]


def _offset(part: Array, whole: Array) -> int:
    return int(part.__array_interface__["data"][0] - whole.__array_interface__["data"][0])


class SharedMemory(Memory):
    """Global memory: the storage of an argument, or the workspace. Every `grain` bytes have two stamps: of the last
    instruction that wrote them, and of the last that read them. A stamp holds the program, the thread (a pipe of a
    core), whether it was atomic, and the thread's clock.

    The last stamp hides those before it. Programs run one after another, so who came first is enough to know whether
    another program than the present one was there: `first` holds its number + 1, for every (what it did, "read" or
    "written"; how, as an atomic update or "") that there was.

    The storage of an argument is copied, with a margin of poison on both sides: a program that goes a little out of
    bounds is told so and goes on, as it would on a card. `give_back` copies what was written to where it belongs.
    """

    __slots__ = ("_home", "first", "grain", "margin", "read", "wrote")

    def __init__(self, name: str, home: Array | None, size: int, grain: int) -> None:
        self._home, self.grain, self.margin = home, grain, MARGIN if home is not None else 0
        data = None
        if home is not None:
            data = np.full(size + 2 * MARGIN, POISON, np.uint8)
            data[MARGIN:MARGIN + size] = home
        super().__init__(name, size + 2 * self.margin, data=data, shared=True)
        self.wrote: Array | None = None     # until somebody writes
        self.read = np.zeros(-(-self.size // grain), np.int64)
        self.first: dict[tuple[str, str], Array] = {}

    @property
    def inner(self) -> int:
        """Bytes without the margins."""
        return self.size - 2 * self.margin

    def remember(self, region: Region, did: str, atomic: str, program: int) -> None:
        """Notes a program in `first`, where none is."""
        first = self.first.get((did, atomic))
        if first is None:      # the launcher takes 65,535 programs
            first = self.first[did, atomic] = np.zeros(self.read.size, np.uint16)
        cells = region.over(first, self.grain)
        np.copyto(cells, program + 1, where=cells == 0, casting="unsafe")

    def give_back(self) -> None:
        if self._home is not None and self.wrote is not None:
            self._home[...] = self.data[self.margin:self.size - self.margin]


MARGIN = 64 << 10
ATOMIC = 1 << 39


def stamp(program: int, thread: int, epoch: int, atomic: bool) -> int:
    return (program + 1) << 40 | thread << 32 | epoch | (ATOMIC if atomic else 0)


def extent(view: View) -> tuple[int, int]:
    """The first byte of a view, and one past the last."""
    region = view.region()
    start, stop = region.start, region.start
    for n, stride in zip(region.sizes, region.strides, strict=True):
        start, stop = start + min(0, (n - 1) * stride), stop + max(0, (n - 1) * stride)
    return start, stop + region.run


def inside(view: View) -> None:
    """Fault unless every byte of the view lies in its memory."""
    start, stop = extent(view)
    if start < stop and (start < 0 or stop > view.memory.size):
        margin = view.memory.margin if isinstance(view.memory, SharedMemory) else 0
        raise Fault("out of bounds", f"bytes {start - margin} to {stop - margin} of {view.memory.name}, which has "
                                     f"{view.memory.size - 2 * margin}")


class Conflict(NamedTuple):
    """Two accesses to global memory with no order between them."""

    kind: str
    message: str
    vector_cores: bool = False      # between the two vector cores of one program


@dataclass(slots=True)
class Instruction:
    """An effect of the library, with the shadows of what it touches looked up."""

    pipe: int
    cycles: float
    run: Callable[[], None]
    reads: list[Marks]
    writes: list[Marks]
    scratch: list[Marks]
    shared_reads: list[View] = field(default_factory=list)
    shared_writes: list[View] = field(default_factory=list)
    atomic: str = ""


Prepared = Instruction | library.SetFlag | library.WaitFlag


class Core:
    """A cube core (AIC) or one of the two vector cores (AIV) beside it. `thread` is the number of its first pipe in
    the vector clocks, `threads` how many pipes there are in all."""

    def __init__(self, machine: Machine, kind: str, half: int, thread: int, threads: int,
                 sizes: dict[str, int]) -> None:
        self.machine, self.kind, self.half, self.thread = machine, kind, half, thread
        self.name = kind if kind == "AIC" else f"{kind}{half}"
        spaces = {"ub": "UB", "cbuf": "L1", "cc": "L0C"} if kind == "AIC" else {"ub": "UB"}
        self._memories = {space: PrivateMemory(name, sizes[space]) for space, name in spaces.items()}
        self._unplanned: dict[Site, PrivateMemory] = {}
        self.program = self.programs = 0
        self.locked = False                                   # inside the lock that all programs share
        self.steps = 0                                        # goes up with everything that is done
        self.site = Site("", "")
        self.times = [0.0] * len(PIPES)
        self.busy = [0.0] * len(PIPES)
        self.epochs = [0] * len(PIPES)
        self.clocks = np.zeros((len(PIPES), threads), np.int32)
        self._own = slice(thread, thread + len(PIPES))
        # what a pipe knows of its own core, for writes and for reads before it; None: to be looked up
        self._limits: list[Array | None] = [None] * len(PIPES)
        self._flags: dict[tuple[int, int, Any], list[tuple[float, Array]]] = {}
        self._scalar_news = 0                                 # counts what the scalar pipe got to know
        self._heard = [0] * len(PIPES)
        self._calls: dict[Site, dict[tuple[Any, ...], list[Prepared]]] = {}

    # -- a program begins and ends ---------------------------------------------------------------------------

    def begin(self, program: int, programs: int, epochs: Sequence[int]) -> None:
        """`epochs` of all threads: what earlier programs did is over, and known to everybody."""
        self.program, self.programs, self.locked = program, programs, False
        self.times, self.busy = [0.0] * len(PIPES), [0.0] * len(PIPES)
        self._flags.clear()
        self._limits = [None] * len(PIPES)
        self.clocks[:] = epochs
        for pipe in range(len(PIPES)):
            if pipe != VECTOR:
                self.clocks[pipe, self.thread + pipe] = DONE
        for memory in (*self._memories.values(), *self._unplanned.values()):
            memory.forget()

    def end(self) -> None:
        left = [f"{PIPES[a]} to {PIPES[b]}, event {event}" for (a, b, event), waiting in self._flags.items()
                if waiting and event != library_event]
        if left:
            self.found("flag", ERROR, f"set and never waited for: {'; '.join(left)}")

    def found(self, kind: str, severity: str, message: str) -> None:
        self.machine.findings.add(kind, severity, self.program, self.name, self.site.name, self.site.place, message)

    # -- what the generated code calls -----------------------------------------------------------------------

    def memory(self, space: str) -> PrivateMemory:
        if space not in self._memories:
            raise Fault("address space", f"a {self.name} core has no {space!r}")
        return self._memories[space]

    def unplanned(self, site: Site, space: str, sizes: tuple[int, ...], dtype: str) -> View:
        """A `memref.alloc` that the memory planner left without an address gets room of its own."""
        self.site = site
        size = -(-prod(sizes) * BITS[dtype] // 8)
        memory = self._unplanned.get(site)
        if memory is None or memory.size < size:
            memory = self._unplanned[site] = PrivateMemory(f"an unplanned buffer in {space}", size)
        self.found("unplanned", NOTE, f"{size} bytes of {space} have no planned address")
        return views.at_address(memory, 0, sizes, dtype)

    def unknown(self, site: Site) -> None:
        self.site = site
        raise Fault("unknown operation", site.name)

    def call(self, site: Site, arguments: tuple[Any, ...]) -> None:
        """A library function."""
        self.site = site
        known = self._calls.get(site)
        if known is None:
            known = self._calls[site] = {}
        steps = known.get(arguments)
        if steps is None:
            steps = self._prepare(site.name, arguments)
            if not any(isinstance(x, View) and x.memory.shared for x in arguments):
                if len(known) >= KEPT:
                    known.clear()
                known[arguments] = steps
        for step in steps:
            if isinstance(step, Instruction):
                self._issue(step)
            elif isinstance(step, library.SetFlag):
                self.set_flag(site, step.source, step.sink, step.flag)
            else:
                self.wait_flag(site, step.source, step.sink, step.flag)

    def load(self, site: Site, source: View, index: tuple[int, ...]) -> Any:
        self.site = site
        element = views.element(source, index)
        shared = element.memory.shared
        if shared:
            self._bounds(element, "S", "reads")
        self._issue(Instruction(
            SCALAR, cost_model.SCALAR_GLOBAL if shared else cost_model.SCALAR, _nothing,
            [] if shared else [self._marks(element)], [], [], [element] if shared else []))
        return element.get().item()

    def store(self, site: Site, value: Any, target: View, index: tuple[int, ...]) -> None:
        self.site = site
        element = views.element(target, index)
        shared = element.memory.shared
        if shared:
            self._bounds(element, "S", "writes")
        self._issue(Instruction(
            SCALAR, cost_model.SCALAR, lambda: element.put(value), [], [] if shared else [self._marks(element)], [], [],
            [element] if shared else []))

    # -- instructions ----------------------------------------------------------------------------------------

    def _marks(self, view: View) -> Marks:
        assert isinstance(view.memory, PrivateMemory)
        return view.memory.marks(view)

    def _prepare(self, name: str, arguments: tuple[Any, ...]) -> list[Prepared]:
        effects = library.find(name)(*arguments)
        return [self._instruction(step) if isinstance(step, library.Effect) else step
                for step in (effects if isinstance(effects, list) else [effects])]

    def _instruction(self, effect: library.Effect) -> Instruction:
        reads, writes, scratch = ([view for view in some if 0 not in view.sizes]
                                  for some in (effect.reads, effect.writes, effect.scratch))
        instruction = Instruction(
            NUMBER[effect.pipe], effect.cycles, effect.run,
            [self._marks(v) for v in reads if not v.memory.shared],
            [self._marks(v) for v in writes if not v.memory.shared],
            [self._marks(v) for v in scratch],
            [v for v in reads if v.memory.shared], [v for v in writes if v.memory.shared], effect.atomic)
        for does, some in (("reads", instruction.shared_reads), ("writes", instruction.shared_writes)):
            for view in some:
                self._bounds(view, effect.pipe, does)
        return instruction

    def _bounds(self, view: View, pipe: str, does: str) -> None:
        """Tells of a view that leaves its tensor; Fault where it is not even near."""
        memory = view.memory
        assert isinstance(memory, SharedMemory)
        start, stop = extent(view)
        if start < memory.margin or stop > memory.size - memory.margin:
            inside(view)
            self.found("out of bounds", ERROR, f"{pipe} {does} bytes {start - memory.margin} to {stop - memory.margin} "
                                               f"of {memory.name}, which has {memory.inner}")

    def _issue(self, instruction: Instruction) -> None:
        """Check, account and carry out one instruction."""
        self.steps += 1
        pipe = instruction.pipe
        if self._heard[pipe] != self._scalar_news:
            self._hear(pipe)
        start = max(self.times[pipe], self.times[SCALAR])
        self.times[pipe] = start + instruction.cycles
        self.busy[pipe] += instruction.cycles
        if self.machine.events is not None:
            self.machine.events.append(log.Issued(self.program, self.name, PIPES[pipe], start, self.times[pipe],
                                                  self.site, instruction))
        self.epochs[pipe] = epoch = self.epochs[pipe] + 1
        if pipe == SCALAR:
            self._scalar_news += 1
        limit = self._limit(pipe)
        garbage = ""
        aside = [_set_aside(marks) for marks in instruction.reads
                 if marks.buffer and np.count_nonzero(marks.owner != marks.buffer)]
        for marks in instruction.reads:
            if np.count_nonzero(marks.written) != marks.count:
                garbage = self._never_written(pipe, marks)
            if np.count_nonzero(marks.wrote > limit[:len(PIPES)].reshape(marks.shape)):
                self._race(pipe, marks, "reads", limit)
        for marks in (*instruction.writes, *instruction.scratch):
            if np.count_nonzero(marks.touched > limit.reshape(marks.shape)):
                self._race(pipe, marks, "writes", limit)
        for marks in instruction.reads:
            marks.touched[len(PIPES) + pipe] = epoch
        for marks in instruction.writes:
            marks.touched[pipe] = epoch
        for marks in instruction.scratch:
            # a library function writes its scratch, waits, and reads it: what comes next follows a read
            marks.touched[len(PIPES) + pipe] = epoch
        stale = False
        atomic = "locked" if self.locked else instruction.atomic
        for view in instruction.shared_reads:
            missing, too_early = self._shared_read(view, pipe, epoch, atomic)
            garbage, stale = missing or garbage, stale or too_early
        doubtful: list[tuple[Conflict, View, bytes]] = []
        for view in instruction.shared_writes:
            doubtful += self._shared_write(view, pipe, epoch, atomic)
        undefined: list[tuple[View, Array]] = []
        if garbage and pipe == VECTOR:
            undefined = _run_on_garbage(instruction)
        else:
            instruction.run()
        for marks in instruction.writes:
            marks.written[...] = True
            marks.owner[...] = marks.buffer
        for marks in (*instruction.scratch, *(instruction.writes if stale else ())):
            marks.view.clobber()
            marks.owner[...] = marks.buffer
        for view in instruction.shared_writes:
            view.mark_written()
            if instruction.atomic and instruction.reads:
                self._added_twice(view, instruction.reads[0].view)
        for cells in reversed(aside):
            cells.put_back()
        for view, where in undefined:
            view.clobber(where)
        if garbage and pipe in MOVERS:
            for view in (*(marks.view for marks in instruction.writes), *instruction.shared_writes):
                self._arrives(view, garbage)
        for conflict, view, before in doubtful:
            if _content(view) == before:
                self.found("same bytes", NOTE, conflict.message + ", but it is the same content")
            else:
                self.found(conflict.kind, ERROR, conflict.message)

    def _limit(self, pipe: int) -> Array:
        """The last instructions of its own core that a pipe may take as done: those that write, then those that read.
        A pipe begins its instructions in order, so what it reads itself it has read before it writes."""
        limit = self._limits[pipe]
        if limit is None:
            known = self.clocks[pipe, self._own]
            limit = self._limits[pipe] = np.concatenate((known, known))
            limit[len(PIPES) + pipe] = DONE
        return limit

    def _never_written(self, pipe: int, marks: Marks) -> str:
        """What an instruction reads that nobody wrote."""
        missing = marks.count - int(np.count_nonzero(marks.written))
        why = "another buffer was written there since" if marks.buffer and (
            (marks.owner != marks.buffer) & (marks.owner != 0)).any() else "which nobody wrote"
        what = f"{missing} of {marks.count} bytes of {marks.view}, {why}"
        if pipe not in MOVERS:
            self.found("never written", NOTE if pipe == VECTOR else ERROR, f"{PIPES[pipe]} reads {what}")
        return what

    def _arrives(self, view: View, garbage: str) -> None:
        """Something that nobody wrote may have been moved into a view: where it was, there is poison."""
        if view.dtype == "i1":
            return
        there = _poison(view)
        if not there.any():
            return
        if view.memory.written is None:
            self.found("never written", ERROR, f"{int(np.count_nonzero(there))} elements of {view.memory.name} come "
                                               f"from {garbage}")
            return
        view.clobber(there)

    def _race(self, pipe: int, marks: Marks, does: str, limit: Array) -> None:
        for k, cells in enumerate(marks.wrote if does == "reads" else marks.touched):
            if (cells > limit[k]).any():
                other = k % len(PIPES)
                self.found("race", ERROR, f"{PIPES[pipe]} {does} {marks.view} while {PIPES[other]} still "
                                          f"{'writes' if k < len(PIPES) else 'reads'} it: no "
                                          f"{'barrier' if other == pipe else 'flag'} between them")

    # -- global memory ---------------------------------------------------------------------------------------

    def _shared_read(self, view: View, pipe: int, epoch: int, atomic: str) -> tuple[str, bool]:
        """Notes the read. (What it reads that nobody wrote, or ""; whether it may come too early.)

        Where the two vector cores do the same work and one of them stores, the other reads what may not be there yet;
        its results are not stored either. So such a read gives poison, which does no harm where it is not used.
        """
        memory = view.memory
        assert isinstance(memory, SharedMemory)
        region, too_early = view.region(), False
        if memory.wrote is not None:
            # A plain write of its own that hides another program's was told of, or wrote what was there.
            for conflict in (self._conflicts(region.over(memory.wrote, memory.grain), pipe, atomic, "reads", view,
                                             "written")
                             or self._hidden(region, atomic, "reads",
                                             [key for key in memory.first if key[0] == "written" and key[1]])):
                too_early |= conflict.vector_cores
                self.found(conflict.kind, NOTE if conflict.vector_cores else ERROR, conflict.message)
        missing = view.unwritten()
        if not (missing or too_early):     # who overwrites rubbish takes nothing away
            region.over(memory.read, memory.grain)[...] = stamp(self.program, self.thread + pipe, epoch, bool(atomic))
            memory.remember(region, "read", atomic, self.program)
        return f"{missing} bytes of {view}, which nobody wrote" if missing else "", too_early

    def _shared_write(self, view: View, pipe: int, epoch: int,
                      atomic: str) -> list[tuple[Conflict, View, bytes]]:
        """Notes the write. What conflicts is only known to do harm when the content changes: it comes back, with the
        content before."""
        memory = view.memory
        assert isinstance(memory, SharedMemory)
        if memory.wrote is None:
            memory.wrote = np.zeros_like(memory.read)
        region = view.region()
        wrote, read = region.over(memory.wrote, memory.grain), region.over(memory.read, memory.grain)
        conflicts = [*self._conflicts(wrote, pipe, atomic, "writes", view, "written"),
                     *self._conflicts(read, pipe, atomic, "writes", view, "read")
                     ] or self._hidden(region, atomic, "writes", memory.first)
        wrote[...] = stamp(self.program, self.thread + pipe, epoch, bool(atomic))
        memory.remember(region, "written", atomic, self.program)
        before = _content(view) if conflicts else b""
        return [(conflict, view, before) for conflict in conflicts]

    def _added_twice(self, target: View, source: View) -> None:
        """A vector core that does not work on a half of its own does everything that the other one does. For a store
        that is no harm; an atomic addition counts twice."""
        content = _content(source)
        key = (self.site, target.region(), content)
        if self.machine.atomics.setdefault(key, self.name) != self.name and any(content):
            self.found("added twice", ERROR, f"both vector cores add the same values to {target.memory.name}")

    def _conflicts(self, stamps: Array, pipe: int, atomic: str, does: str, view: View, did: str) -> list[Conflict]:
        """What a pipe did not know of, among the stamps on the bytes that it is about to touch."""
        if not stamps.size:
            return []
        low, high = int(stamps.min()), int(stamps.max())
        found: list[Conflict] = []
        for one in [high] if low == high else np.unique(stamps).tolist():
            if not one or (atomic and one & ATOMIC):
                continue
            program, thread, epoch = (one >> 40) - 1, one >> 32 & 0x7F, one & 0xFFFFFFFF
            if program != self.program:
                found.append(self._overlap(does, view.memory, program, did))
            elif thread != self.thread + pipe and self.clocks[pipe, thread] < epoch:
                other = self.machine.thread_name(thread)
                found.append(Conflict(
                    "race", f"{PIPES[pipe]} {does} bytes of {view.memory.name} that {other} has {did}, with no order "
                    "between them", self.kind == "AIV" and "AIV" in other and not other.endswith(self.name)))
        return found[:1]

    def _hidden(self, region: Region, atomic: str, does: str, accesses: Iterable[tuple[str, str]]) -> list[Conflict]:
        """What another program did before the last access, among `accesses` (keys of `SharedMemory.first`). Atomic
        updates of one kind have no need of an order."""
        memory = region.memory
        assert isinstance(memory, SharedMemory)
        for did, kind in accesses:
            if kind and kind == atomic:
                continue
            cells = region.over(memory.first[did, kind], memory.grain)
            others = cells[(cells != 0) & (cells != self.program + 1)]
            if others.size:
                return [self._overlap(does, memory, int(others.flat[0]) - 1, did)]
        return []

    def _overlap(self, does: str, memory: Memory, program: int, did: str) -> Conflict:
        return Conflict("overlap", f"program {self.program} {does} bytes of {memory.name} that program {program} has "
                                   f"{did}: programs have no order")

    # -- order -----------------------------------------------------------------------------------------------

    def _hear(self, pipe: int) -> None:
        """The scalar pipe issues everything: what it knows, every later instruction knows."""
        if pipe != SCALAR:
            self._learn(pipe, self._snapshot(SCALAR))
        self._heard[pipe] = self._scalar_news

    def _snapshot(self, pipe: int) -> Array:
        """What is over once all that this pipe was given is over."""
        clock = self.clocks[pipe].copy()
        clock[self.thread + pipe] = self.epochs[pipe]
        return clock

    def _learn(self, pipe: int, clock: Array) -> None:
        self._limits[pipe] = None
        np.maximum(self.clocks[pipe], clock, out=self.clocks[pipe])
        if pipe == SCALAR:
            self._scalar_news += 1

    def set_flag(self, site: Site, source: str, sink: str, event: Any) -> None:
        a, b = NUMBER[source], NUMBER[sink]
        if self._heard[a] != self._scalar_news:
            self._hear(a)
        waiting = self._flags.setdefault((a, b, event), [])
        waiting.append((max(self.times[a], self.times[SCALAR]), self._snapshot(a)))
        if self.machine.events is not None:
            self.machine.events.append(log.FlagSet(self.program, self.name, source, sink, event, site))
        if len(waiting) > 1:
            self.site = site
            self.found("flag", ERROR, f"{source} to {sink}, event {event}, is set again before anybody waited for it")

    def wait_flag(self, site: Site, source: str, sink: str, event: Any) -> None:
        a, b = NUMBER[source], NUMBER[sink]
        waiting = self._flags.get((a, b, event))
        if not waiting:
            self.site = site
            raise Fault("hang", f"{sink} waits for {source}, event {event}, which was not set")
        time, clock = waiting.pop(0)
        if self.machine.events is not None:
            self.machine.events.append(log.FlagTaken(self.program, self.name, source, sink, event, self.times[b],
                                                     max(self.times[b], time), site))
        self.times[b] = max(self.times[b], time)
        self._learn(b, clock)

    def barrier(self, pipe: str) -> None:
        """The pipe, or "ALL" of them, goes on when everything it was given is done."""
        if self.machine.events is not None:
            self.machine.events.append(log.Barrier(self.program, self.name, pipe))
        if pipe != "ALL":
            self._limits[NUMBER[pipe]] = None
            self.clocks[NUMBER[pipe], self.thread + NUMBER[pipe]] = (
                self.epochs[VECTOR] if pipe == "V" else DONE)
            return
        everything = np.max([self._snapshot(k) for k in range(len(PIPES))], axis=0)
        for k in range(len(PIPES)):
            self._learn(k, everything)
        self.times = [max(self.times)] * len(PIPES)

    def signal(self, site: Site, flag: int, pipe: str) -> None:
        """Tell the other side of the mix kernel that this pipe came so far."""
        if self.machine.events is not None:
            self.machine.events.append(log.Signalled(self.program, self.name, pipe, flag, site))
        self.steps += 1
        k = NUMBER[pipe]
        if self._heard[k] != self._scalar_news:
            self._hear(k)
        time = max(self.times[k], self.times[SCALAR]) + cost_model.HANDSHAKE
        self.machine.signal(self, flag, time, self._snapshot(k))

    def must_wait(self, site: Site, flag: int, pipe: str) -> bool:
        """Whether the other side has yet to signal; when it has, the signal is taken."""
        self.site = site
        signals = self.machine.signalled(self, flag)
        if signals is None:
            return True
        self.steps += 1
        k = NUMBER[pipe]
        start = self.times[k]
        for time, clock in signals:
            self.times[k] = max(self.times[k], time)
            self._learn(k, clock)
        if self.machine.events is not None:
            self.machine.events.append(log.SignalTaken(self.program, self.name, pipe, flag, start, self.times[k], site))
        return False


library_event = "library"     # of flags that a library function sets and waits for by itself


class _SetAside:
    """Bytes of a buffer that another one has taken, poisoned for the time of one instruction."""

    def __init__(self, memory: PrivateMemory, at: Array) -> None:
        assert memory.written is not None
        self.memory, self.at = memory, at
        self.data, self.written, self.owners = memory.data[at], memory.written[at], memory.owner[at]
        memory.data[at], memory.written[at], memory.owner[at] = POISON, False, ASIDE

    def put_back(self) -> None:
        """Unless the instruction wrote there."""
        memory, kept = self.memory, self.memory.owner[self.at] == ASIDE
        assert memory.written is not None
        at = self.at[kept]
        memory.data[at], memory.written[at], memory.owner[at] = self.data[kept], self.written[kept], self.owners[kept]


def _set_aside(marks: Marks) -> _SetAside:
    memory = marks.view.memory
    assert isinstance(memory, PrivateMemory)
    at = np.unique(marks.view.region().over(np.arange(memory.size)))
    owners = memory.owner[at]
    return _SetAside(memory, at[(owners != marks.buffer) & (owners > 0)])


def _run_on_garbage(instruction: Instruction) -> list[tuple[View, Array]]:
    """Carry out a vector instruction that reads what nobody wrote: (view, which elements of it come of that).

    Those are the elements that come out otherwise when something else lies there. A comparison may come out the same
    by chance: where a result is of another type than what is read, and as large, it is undefined beside what is.
    """
    results = [marks.view for marks in instruction.writes]
    undefined = []
    for view in results:
        where = np.zeros(view.sizes, bool)
        for marks in instruction.reads:
            if marks.view.dtype != view.dtype and _spreads(marks.view.sizes, view.sizes):
                where |= marks.view.missing()
        undefined.append(where)
    before = [(cells, cells.copy()) for marks in (*instruction.reads, *instruction.writes, *instruction.scratch)
              for cells in [marks.view.region().over(marks.view.memory.data)]]
    nobodys = [(marks.view.region().over(marks.view.memory.data), ~marks.written) for marks in instruction.reads]
    others = []
    for filling in OTHERS:
        for cells, there in nobodys:
            cells[there] = filling
        instruction.run()
        others.append([_bits(view) for view in results])
        for cells, content in before:
            cells[...] = content
    instruction.run()
    for k, view in enumerate(results):
        mine = _bits(view)
        for other in others:
            undefined[k] |= (mine != other[k]).any(-1)
        if view.dtype in FLOATS:
            undefined[k] |= _poison(view)
    return [(view, where) for view, where in zip(results, undefined, strict=True) if where.any()]


def _spreads(sizes: Sequence[int], over: Sequence[int]) -> bool:
    """Whether sizes are those of a result, or 1 where it repeats them."""
    return len(sizes) == len(over) and all(n in (1, m) for n, m in zip(sizes, over, strict=True))


def _bits(view: View) -> Array:
    """A copy of the content, to be compared: elements, then their bytes."""
    if view.dtype == "i1":
        return np.array(view.get())[..., None]
    raw = np.ascontiguousarray(view.raw())
    return np.frombuffer(raw.tobytes(), np.uint8).reshape(*view.sizes, -1)


def _nothing() -> None:
    pass


def _poison(view: View) -> Array:
    """Which elements look like memory that nobody wrote."""
    raw = view.raw()
    if view.dtype == "bf16":
        return np.asarray(raw & 0x7FFF) > 0x7F80
    return np.isnan(raw) if view.dtype in FLOATS else raw == np.array(-1).astype(raw.dtype)


def _content(view: View) -> bytes:
    return view.region().over(view.memory.data).tobytes()
