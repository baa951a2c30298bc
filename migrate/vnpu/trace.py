"""One program of a launch in time: for Perfetto (https://ui.perfetto.dev) or chrome://tracing, and as figures.

Every pipe of every core is a row. A call stands where the cost model puts it, and where a pipe waits for a flag, a
handshake or the scalar unit that issues to it, a block says what for. Times are cycles of `cost_model`: a model, not a
measurement. The file follows the Trace Event Format, in which times are microseconds: one cycle is shown as one.
"""
from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from migrate.vnpu.core import PIPES, SharedMemory
from migrate.vnpu.cost_model import HANDSHAKE
from migrate.vnpu.log import Barrier, Event, FlagSet, FlagTaken, Issued, Signalled, SignalTaken
from migrate.vnpu.memory import View

A_MODEL = "model cycles: a model, not a measurement (migrate/vnpu/cost_model.py has its constants)"
CORES = {"AIC": "AIC, the cube core", "AIV0": "AIV0, a vector core", "AIV1": "AIV1, the other vector core"}
DOES = {"S": "S: scalar unit", "V": "V: vectors", "M": "M: cube products", "MTE1": "MTE1: L1 to L0",
        "MTE2": "MTE2: global memory in", "MTE3": "MTE3: out to global memory", "FIX": "FIX: L0C out"}

Pipe = tuple[str, str]      # core, pipe


@dataclass
class Wait:
    """A pipe that stands still. `giver` is the call that it waited for, None for the program's begin."""

    pipe: Pipe
    start: float
    end: float
    what: str
    giver: Issued | None


@dataclass
class Timeline:
    """What one program did, and why no sooner. `before` maps a call, by its number, to the number of the call that it
    could not begin without: the critical path goes back along it."""

    calls: list[Issued] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    before: dict[int, int | None] = field(default_factory=dict)

    @property
    def cycles(self) -> float:
        return max((call.end for call in self.calls), default=0.0)

    def busy(self) -> dict[Pipe, float]:
        """Cycles that each pipe works, by core and pipe."""
        found: dict[Pipe, float] = defaultdict(float)
        for call in self.calls:
            found[call.core, call.pipe] += call.end - call.start
        return {pipe: found[pipe] for pipe in sorted(found, key=lambda p: (p[0], PIPES.index(p[1])))}

    def critical_path(self) -> list[Issued]:
        """The chain of calls, first to last, that the length of the program comes from: each could not begin before
        the one before it had ended. What is between them are the latencies of handshakes."""
        if not self.calls:
            return []
        path = []
        k: int | None = max(range(len(self.calls)), key=lambda k: self.calls[k].end)
        while k is not None:
            path.append(self.calls[k])
            k = self.before[k]
        return path[::-1]


Reached = tuple[float, int | None]      # a time, and the call that it comes from


def timeline(events: Sequence[Event]) -> Timeline:
    """The log of one program, in time."""
    made = Timeline()
    reached: dict[Pipe, Reached] = defaultdict(lambda: (0.0, None))
    tokens: dict[Any, list[Reached]] = defaultdict(list)
    cores = sorted({event.core for event in events})

    def wait(pipe: Pipe, until: Reached, what: str) -> None:
        if until[0] > reached[pipe][0]:
            giver = None if until[1] is None else made.calls[until[1]]
            made.waits.append(Wait(pipe, reached[pipe][0], until[0], what, giver))
            reached[pipe] = until

    for event in events:
        core = event.core
        if isinstance(event, Issued):
            pipe = (core, event.pipe)
            wait(pipe, reached[core, "S"], "issue by S")
            made.before[len(made.calls)] = reached[pipe][1]
            reached[pipe] = (event.end, len(made.calls))
            made.calls.append(event)
        elif isinstance(event, FlagSet):
            tokens[core, event.source, event.sink, event.event].append(
                max(reached[core, event.source], reached[core, "S"], key=_time))
        elif isinstance(event, FlagTaken):
            wait((core, event.sink), tokens[core, event.source, event.sink, event.event].pop(0),
                 f"{event.source}, flag {event.event}")
        elif isinstance(event, Barrier):
            if event.pipe == "ALL":
                latest = max((reached[core, name] for name in PIPES), key=_time)
                for name in PIPES:
                    if reached[core, name][1] is not None:
                        wait((core, name), latest, "all pipes")
                    else:       # a pipe that has done nothing needs no row
                        reached[core, name] = latest
        elif isinstance(event, Signalled):
            time, call = max(reached[core, event.pipe], reached[core, "S"], key=_time)
            for other in _others(core, cores):
                tokens[core, other, event.flag].append((time + HANDSHAKE, call))
        elif isinstance(event, SignalTaken):
            for other in _others(core, cores):
                wait((core, event.pipe), tokens[other, core, event.flag].pop(0), f"{other}, handshake {event.flag}")
    return made


def _time(reached: Reached) -> float:
    return reached[0]


def _others(core: str, cores: Sequence[str]) -> list[str]:
    return [other for other in cores if (other == "AIC") != (core == "AIC")]


# -- the file --------------------------------------------------------------------------------------------------------

def chrome(made: Timeline, title: str) -> dict[str, Any]:
    """The Trace Event Format's JSON object."""
    cores = [core for core in CORES if any(call.core == core for call in made.calls)]
    pipes = {(call.core, call.pipe) for call in made.calls} | {wait.pipe for wait in made.waits}
    ordered = sorted(pipes, key=lambda pipe: (cores.index(pipe[0]), PIPES.index(pipe[1])))
    # to Perfetto, process 0 and thread 0 are idle ones, and a thread with its process's number the main one
    process = {core: {"pid": 100 * k} for k, core in enumerate(cores, 1)}
    rows = {pipe: {**process[pipe[0]], "tid": k} for k, pipe in enumerate(ordered, 1)}
    events: list[dict[str, Any]] = []

    def name(kind: str, row: dict[str, int], argument: str, value: Any) -> None:
        events.append({"name": kind, "ph": "M", "tid": 1, **row, "args": {argument: value}})

    for k, core in enumerate(cores):
        name("process_name", process[core], "name", CORES[core])
        name("process_sort_index", process[core], "sort_index", k)
    for (_, pipe), row in rows.items():
        name("thread_name", row, "name", DOES[pipe])
        name("thread_sort_index", row, "sort_index", row["tid"])
    critical = {id(call) for call in made.critical_path()}
    for call in made.calls:
        events.append({"name": call.name, "cat": "call", "ph": "X", **rows[call.core, call.pipe],
                       **_when(call.start, call.end),
                       "args": _about(call) | {"on the critical path": id(call) in critical}})
    for k, wait in enumerate(made.waits):
        row = rows[wait.pipe]
        if round(wait.start) == round(wait.end):
            continue
        events.append({"name": f"wait for {wait.what}", "cat": "wait", "ph": "X", "cname": "grey", "args": {}, **row,
                       **_when(wait.start, wait.end)})
        if wait.giver:      # an arrow from the call that was waited for
            arrow = {"name": "wait", "cat": "wait", "id": k}
            giver = wait.giver
            end = round(wait.end) - 1       # within the wait, and not before the arrow begins
            events.append({**arrow, "ph": "s", **rows[giver.core, giver.pipe],
                           "ts": min(round((giver.start + giver.end) / 2), end)})
            events.append({**arrow, "ph": "f", "bp": "e", **row, "ts": end})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title, "times": A_MODEL}}


def _when(start: float, end: float) -> dict[str, int]:
    """In whole cycles: Perfetto drops a block that begins a fraction before the one in front of it has ended."""
    return {"ts": round(start), "dur": round(end) - round(start)}


def _about(call: Issued) -> dict[str, Any]:
    one = call.instruction
    reads = [*(marks.view for marks in one.reads), *one.shared_reads]
    writes = [*(marks.view for marks in one.writes), *one.shared_writes]
    return {"line": call.place, "bytes read": sum(view.nbytes for view in reads),
            "bytes written": sum(view.nbytes for view in writes), "reads": [*map(_words, reads)],
            "writes": [*map(_words, writes)], "scratch": [_words(marks.view) for marks in one.scratch]}


def _words(view: View) -> str:
    """Where a view lies, and what it holds: its first byte, its sizes and type."""
    shape = "x".join(map(str, (*view.sizes, view.dtype)))
    margin = view.memory.margin if isinstance(view.memory, SharedMemory) else 0
    return f"{view.memory.name}, byte {view.region().start - margin}: {shape}"


# -- figures ---------------------------------------------------------------------------------------------------------

def report(made: Timeline, title: str, lines: int = 8) -> Iterator[str]:
    """What is told on the terminal."""
    total = made.cycles or 1.0
    yield f"{title}: {made.cycles:,.0f} {A_MODEL}"
    yield "pipe         calls    busy cycles    of all"
    for (core, pipe), busy in made.busy().items():
        calls = sum((call.core, call.pipe) == (core, pipe) for call in made.calls)
        yield f"{core + ' ' + pipe:<10} {calls:>7} {busy:>14,.0f} {busy / total:>8.0%}"
    path = made.critical_path()
    work = sum(call.end - call.start for call in path)
    yield (f"critical path: {len(path)} calls, {work:,.0f} cycles of work, {made.cycles - work:,.0f} of handshakes; "
           "its heaviest lines:")
    spent: dict[tuple[str, str], list[Issued]] = defaultdict(list)
    for call in path:
        spent[call.place, f"{call.core} {call.pipe}"].append(call)
    weights = sorted(((sum(c.end - c.start for c in some), key) for key, some in spent.items()), reverse=True)
    for weight, (place, pipe) in weights[:lines]:
        names = dict.fromkeys(call.name for call in spent[place, pipe])
        count = len(spent[place, pipe])
        yield (f"{weight:>10,.0f} {weight / total:>5.0%}  {_short(place)}  {pipe}: {count} "
               f"{'call' if count == 1 else 'calls'}, {', '.join(names)}")


def _short(place: str) -> str:
    """FILE:LINE as seen from here."""
    file, _, line = place.rpartition(":")
    return f"{os.path.relpath(file)}:{line}" if file else "no line known"
