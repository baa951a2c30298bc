"""Second opinions on the order of what a program did, from the log of its run.

Two, neither of which uses the vector clocks of the checks:

- `unordered` works out, instruction by instruction, everything that has ended before each one begins, and looks for
  two that touch the same byte, one of them writing, neither of which has ended before the other.
- `Replay` carries out the same instructions again in another order that the flags, barriers and handshakes allow: each
  pipe goes through its own queue, and which pipe goes next is chosen. With `late`, what the vector pipe writes arrives
  as late as it may.
"""
from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.vnpu.log import Barrier, Event, FlagSet, FlagTaken, Issued, Signalled, SignalTaken
from migrate.vnpu.memory import Array, View

Pipe = tuple[str, str]      # core, pipe


@dataclass(frozen=True)
class Access:
    """What one instruction touches. `writes`: what it leaves there was not there before."""

    event: int
    pipe: Pipe
    view: View
    writes: bool
    atomic: bool


def accesses(events: Sequence[Event]) -> Iterator[Access]:
    for k, event in enumerate(events):
        if isinstance(event, Issued):
            one, pipe = event.instruction, (event.core, event.pipe)
            for views, writes in (([m.view for m in one.reads], False), ([m.view for m in one.writes], True),
                                  (one.shared_reads, False), (one.shared_writes, True)):
                for view in views:
                    yield Access(k, pipe, view, writes, bool(one.atomic))
            for marks in one.scratch:
                # written as it begins, but by its end read back: what follows need not wait for the write
                yield Access(k, pipe, marks.view, True, False)


def _pipe(event: Event) -> Pipe:
    return (event.core, event.source if isinstance(event, FlagSet) else
            event.sink if isinstance(event, FlagTaken) else event.pipe)


def ended_before(events: Sequence[Event]) -> Array:
    """A matrix: whether event [column] has ended whenever event [row] begins."""
    n = len(events)
    ended: Array = np.zeros((n, n), bool)
    known: dict[Pipe, Array] = defaultdict(lambda: np.zeros(n, bool))      # what a pipe may take as done
    given: dict[Pipe, Array] = defaultdict(lambda: np.zeros(n, bool))      # all that a pipe was given
    tokens: dict[Any, list[Array]] = defaultdict(list)
    cores = sorted({event.core for event in events})
    for k, event in enumerate(events):
        core, pipe = event.core, _pipe(event)
        if isinstance(event, Barrier) and event.pipe == "ALL":
            mine = [p for p in {*known, *given} if p[0] == core]
            everything = np.any([given[p] | known[p] for p in mine], axis=0) if mine else np.zeros(n, bool)
            for name in ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"):
                known[core, name] = known[core, name] | everything
            continue
        if pipe[1] != "S":       # issued by the scalar pipe, after all that this did
            known[pipe] = known[pipe] | known[core, "S"] | given[core, "S"]
        if isinstance(event, Issued):
            ended[k] = known[pipe]
            given[pipe] = given[pipe].copy()
            given[pipe][k] = True
            if event.pipe != "V":
                known[pipe] = known[pipe] | given[pipe]
        elif isinstance(event, Barrier):
            known[pipe] = known[pipe] | given[pipe]
        elif isinstance(event, FlagSet):
            tokens[core, event.source, event.sink, event.event].append(known[pipe] | given[pipe])
        elif isinstance(event, FlagTaken):
            known[pipe] = known[pipe] | tokens[core, event.source, event.sink, event.event].pop(0)
        else:
            for key in _signals(event, cores):
                if isinstance(event, Signalled):
                    tokens[key].append(known[pipe] | given[pipe])
                else:
                    known[pipe] = known[pipe] | tokens[key].pop(0)
    return ended


def _signals(event: Signalled | SignalTaken, cores: Sequence[str]) -> list[Any]:
    """The boxes that a handshake fills or empties: (sender, receiver, flag)."""
    others = [core for core in cores if (core == "AIC") != (event.core == "AIC")]
    return [(event.core, other, event.flag) if isinstance(event, Signalled) else (other, event.core, event.flag)
            for other in others]


def unordered(events: Sequence[Event]) -> tuple[Issued, Issued, View] | None:
    """Two instructions of one program that touch the same byte with nothing between them, or None. The log of one
    program is expected, whole."""
    all_of_them = list(accesses(events))
    if not all_of_them:
        return None
    ended = ended_before(events)
    memories = {id(a.view.memory): a.view.memory for a in all_of_them}
    for memory in memories.values():
        here = [a for a in all_of_them if a.view.memory is memory]
        event = np.array([a.event for a in here])
        start = np.array([a.view.region().start for a in here])
        stop = np.array([a.view.region().stop for a in here])
        writes = np.array([a.writes for a in here])
        atomic = np.array([a.atomic for a in here])
        vector = np.array([a.pipe[1] == "V" for a in here])
        core = np.array([a.pipe[0] for a in here])
        for k, later in enumerate(here):
            doubtful = (start[:k] < stop[k]) & (start[k] < stop[:k]) & (writes[:k] | writes[k]) & (
                ~ended[later.event, event[:k]]) & (event[:k] != later.event) & ~(atomic[:k] & atomic[k])
            if vector[k] and not memory.shared:      # begins after those before it have read
                doubtful &= writes[:k] | ~(vector[:k] & (core[:k] == core[k]))
            for i in np.flatnonzero(doubtful):
                if _scratch_then_vector(events, here[i], later):
                    continue
                if here[i].view.region().overlaps(later.view.region()):
                    first, second = events[here[i].event], events[later.event]
                    assert isinstance(first, Issued) and isinstance(second, Issued)
                    return first, second, later.view
    return None


def _scratch_then_vector(events: Sequence[Event], earlier: Access, later: Access) -> bool:
    """Scratch that a library function has itself waited for."""
    first = events[earlier.event]
    assert isinstance(first, Issued)
    return earlier.pipe == later.pipe and any(marks.view is earlier.view for marks in first.instruction.scratch)


class Replay:
    """The instructions of one program in other orders. What the program read from its scalar unit, and so which
    instructions there are, stays as it was."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._cores = sorted({event.core for event in events})
        self._queues: dict[Pipe, list[tuple[Event, int]]] = defaultdict(list)
        for event in events:
            if isinstance(event, Barrier) and event.pipe == "ALL":
                for name in ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"):
                    self._put((event.core, name), event)
            else:
                self._put(_pipe(event), event)
        self.pipes = sorted(self._queues)

    def _put(self, pipe: Pipe, event: Event) -> None:
        self._queues[pipe].append((event, len(self._queues[pipe[0], "S"])))

    def run(self, first: Callable[[Sequence[Pipe]], Sequence[Pipe]], late: str = "") -> None:
        """`first` sorts pipes by who goes next. `late`: "" or what to do with what the vector pipe writes: "in order",
        "reversed": it arrives at the next barrier or flag, in the order written or against it."""
        at: dict[Pipe, int] = dict.fromkeys(self.pipes, 0)
        flags: dict[Any, int] = defaultdict(int)
        pending: dict[str, list[list[tuple[Array, Array]]]] = defaultdict(list)

        def arrive(core: str) -> None:
            for writes in pending[core] if late != "reversed" else reversed(pending[core]):
                for cells, after in writes:
                    cells[...] = after
            pending[core].clear()

        def ready(pipe: Pipe) -> bool:
            if at[pipe] == len(self._queues[pipe]):
                return False
            event, issued = self._queues[pipe][at[pipe]]
            if pipe[1] != "S" and at.get((pipe[0], "S"), 0) < issued:
                return False
            if isinstance(event, Barrier) and event.pipe == "ALL":
                return all(self._queues[p][at[p]][0] is event for p in self.pipes
                           if p[0] == pipe[0] and at[p] < len(self._queues[p]))
            return all(flags[key] for key in self._awaited(event))

        while any(at[pipe] < len(self._queues[pipe]) for pipe in self.pipes):
            pipe = next((p for p in first(self.pipes) if ready(p)), None)
            if pipe is None:
                raise RuntimeError("no pipe can go on: the log is not that of a whole program")
            event, _ = self._queues[pipe][at[pipe]]
            core = event.core
            if isinstance(event, Barrier) and event.pipe == "ALL":
                arrive(core)
                for p in self.pipes:
                    at[p] += p[0] == core
                continue
            at[pipe] += 1
            if isinstance(event, Issued):
                if late and event.pipe == "V":
                    pending[core].append(_held_back(event))
                else:
                    _carry_out(event)
                continue
            if pipe[1] == "V" and not isinstance(event, FlagTaken | SignalTaken):
                arrive(core)
            for key in self._awaited(event):
                flags[key] -= 1
            for key in self._given(event):
                flags[key] += 1
        for core in self._cores:
            arrive(core)

    def _awaited(self, event: Event) -> list[Any]:
        if isinstance(event, FlagTaken):
            return [(event.core, event.source, event.sink, event.event)]
        return _signals(event, self._cores) if isinstance(event, SignalTaken) else []

    def _given(self, event: Event) -> list[Any]:
        if isinstance(event, FlagSet):
            return [(event.core, event.source, event.sink, event.event)]
        return _signals(event, self._cores) if isinstance(event, Signalled) else []

    def orders(self, seed: int = 0, at_random: int = 4) -> Iterator[tuple[Callable[..., Sequence[Pipe]], str]]:
        """Orders worth trying: each pipe ahead of all others, each behind all others, and a few at random; the vector
        pipe's writes at once, late, and late in the other order."""
        dice = random.Random(seed)
        fixed: list[list[Pipe]] = [[]]
        for pipe in self.pipes:
            others = [p for p in self.pipes if p != pipe]
            fixed += [[pipe, *others], [*others, pipe]]
        for late in ("in order", "reversed", ""):
            for order in fixed[1:]:
                yield (lambda pipes, order=order: order), late
        for _ in range(at_random):
            yield (lambda pipes: dice.sample(pipes, len(pipes))), dice.choice(("in order", "reversed", ""))


def _carry_out(event: Issued) -> None:
    event.instruction.run()
    for marks in event.instruction.scratch:
        marks.view.clobber()


def _held_back(event: Issued) -> list[tuple[Array, Array]]:
    """Carries out an instruction, takes back what it wrote, and returns it."""
    one = event.instruction
    views = [*(marks.view for marks in one.writes), *one.shared_writes]
    cells = [view.region().over(view.memory.data) for view in views]
    before = [part.copy() for part in cells]
    one.run()
    for marks in one.scratch:
        marks.view.clobber()
    after = [part.copy() for part in cells]
    for part, old in zip(cells, before, strict=True):
        part[...] = old
    return list(zip(cells, after, strict=True))
