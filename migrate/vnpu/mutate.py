"""Seeded faults in compiled kernels: does the virtual NPU notice them?

A mutant is a copy of a kernel's final HIVM with one thing taken away or moved: a pair of flags, one side of it, a
barrier, a handshake, a planned address, half of a buffer. Each is run like the kernel itself. It matters when its
result differs from the kernel's, when another order of the same instructions that its flags allow gives another result,
or when two of its instructions touch the same byte with nothing between them (`migrate.vnpu.orders`, which shares
nothing with the checks). Every mutant that matters should be noticed: the checks report an error.
"""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from migrate.gate import hivm
from migrate.vnpu import orders, program
from migrate.vnpu.core import SharedMemory
from migrate.vnpu.device import Arguments, Device, Settings, entered
from migrate.vnpu.log import Event
from migrate.vnpu.machine import Machine, Options, Tensor
from migrate.vnpu.memory import POISON

FLAG_PAIR, FLAG_SET, FLAG_WAIT = "flag pair removed", "set_flag removed", "wait_flag removed"
BARRIER, HANDSHAKE = "vector barrier removed", "cross-core pair removed"
ONTO, BY_A_BLOCK, HALVED = "address moved onto another buffer", "address moved by 32 bytes", "buffer halved"
KINDS = (FLAG_PAIR, FLAG_SET, FLAG_WAIT, BARRIER, HANDSHAKE, ONTO, BY_A_BLOCK, HALVED)

Edit = Callable[[list[Any]], None]     # of a clone's operations, numbered as those of the module


@dataclass
class Subject:
    """One launch to mutate: its HIVM, its arguments as they were before, the program of it that is run."""

    name: str
    path: Path
    values: list[Any]
    grid: tuple[int, ...]
    number: int = 0

    def arguments(self) -> tuple[list[Tensor | int | float | bool], list[SharedMemory]]:
        """The arguments anew, and the memories behind them."""
        made = Arguments()
        arguments = made.of([value.clone() if hasattr(value, "clone") else value for value in self.values])
        return arguments, list(made.memories.values())


class _Recording(Device):
    """Runs launches, and keeps what they were given."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.subjects: list[Subject] = []

    def run(self, launch: Any, values: Sequence[Any], grid: Sequence[int]) -> None:
        kept = [value.clone() if hasattr(value, "clone") else value for value in values]
        self.subjects.append(Subject(launch.fn.fn.__name__, self.compiled(launch), kept, tuple(grid)))
        super().run(launch, values, grid)


def subjects(call: Callable[[], Any]) -> list[Subject]:
    """The launches that `call` makes, on contiguous tensors that share no storage."""
    device = _Recording(Settings(options=Options(programs=(0,)), strict=False))
    with entered(device):
        call()
    return device.subjects


@dataclass(frozen=True)
class Mutant:
    kind: str
    what: str
    edit: Edit


@dataclass
class Outcome:
    """What came of one mutant. `other_order` and `unordered` are "" where there is none, or where the run did not come
    to its end and was not looked at further."""

    mutant: Mutant
    errors: list[str]
    changed: bool                 # the result, in the order of the text
    other_order: str = ""         # an order that gives another result
    unordered: str = ""           # two instructions with nothing between them

    @property
    def matters(self) -> bool:
        return self.changed or bool(self.other_order) or bool(self.unordered)

    @property
    def noticed(self) -> bool:
        return bool(self.errors)


@dataclass
class Report:
    """All mutants of one subject; what is said of the kernel itself should be nothing."""

    subject: Subject
    itself: Outcome
    outcomes: list[Outcome] = field(default_factory=list)


def examine(subject: Subject, device: Device, limit: int = 0, kinds: Sequence[str] = KINDS,
            progress: Callable[[Outcome], None] = lambda _: None) -> Report:
    """Run the kernel, then its mutants: at most `limit` of a kind, spread evenly; 0: all."""
    module = hivm.parse(hivm.generic(subject.path, device.toolchain, device.target, device.settings.limits))
    original = Mutant("", "as compiled", lambda operations: None)
    expected = _result(subject, module, original)
    report = Report(subject, _judge(original, expected, expected))
    found = list(mutants(module))
    for kind in kinds:
        for mutant in _spread([m for m in found if m.kind == kind], limit):
            report.outcomes.append(_judge(mutant, _result(subject, module, mutant), expected))
            progress(report.outcomes[-1])
    return report


def _spread(some: Sequence[Mutant], limit: int) -> list[Mutant]:
    if not limit or len(some) <= limit:
        return list(some)
    return [some[k * len(some) // limit] for k in range(limit)]


# -- running ---------------------------------------------------------------------------------------------------------

@dataclass
class _Result:
    errors: list[str]
    events: list[Event]               # empty where the program did not come to its end
    memories: list[SharedMemory]      # of the arguments, with their content before and after
    before: list[bytes]
    after: list[bytes]


def _result(subject: Subject, module: Any, mutant: Mutant) -> _Result:
    clone = module.clone()
    mutant.edit(list(clone.walk()))
    machine = Machine(program.translate(clone))
    arguments, memories = subject.arguments()
    before = [memory.data.tobytes() for memory in memories]
    try:
        run = machine.launch(subject.grid, arguments, Options((subject.number,), trace=True))
        errors, events = list(map(str, run.errors)), run.events if run.ended else []
    except RuntimeError as error:      # a call that no library function understands
        errors, events = [str(error)], []
    return _Result(errors, events, memories, before, [memory.data.tobytes() for memory in memories])


def _judge(mutant: Mutant, result: _Result, expected: _Result) -> Outcome:
    outcome = Outcome(mutant, result.errors, result.after != expected.after)
    if not result.events:
        return outcome
    if pair := orders.unordered(result.events):
        first, second, view = pair
        outcome.unordered = f"{first.pipe} {first.site.name} and {second.pipe} {second.site.name} at {view}"
    outcome.other_order = _other_order(result)
    return outcome


def _other_order(result: _Result) -> str:
    """The first order found that leaves something else in the tensors."""
    replay = orders.Replay(result.events)
    touched = {id(access.view.memory): access.view.memory for access in orders.accesses(result.events)}
    given = [id(memory) for memory in result.memories]
    for order, late in replay.orders():
        for memory in touched.values():
            if id(memory) not in given:
                memory.data.fill(POISON)
        for memory, content in zip(result.memories, result.before, strict=True):
            memory.data[:] = np.frombuffer(content, np.uint8)
        with np.errstate(all="ignore"):
            replay.run(order, late)
        if [memory.data.tobytes() for memory in result.memories] != result.after:
            first = order(replay.pipes)
            return f"{' of '.join(reversed(first[0]))} first, {' of '.join(reversed(first[-1]))} last" + (
                f", vector writes late, {late}" if late else "")
    return ""


# -- mutants ---------------------------------------------------------------------------------------------------------

def mutants(module: Any) -> Iterator[Mutant]:
    """Every mutant of a parsed HIVM module."""
    operations = list(module.walk())
    number = {id(op): k for k, op in enumerate(operations)}
    functions = [op for op in module.ops if op.name == "func.func" and "hacc.entry" in hivm.attributes(op)]
    for function in functions:
        for group in _pairs(function):
            members = sorted(number[id(op)] for op in group)
            what = ", ".join(_words(operations[k]) for k in members)
            yield Mutant(FLAG_PAIR, what, _removing(members))
            for kind, verb in ((FLAG_SET, "set_flag"), (FLAG_WAIT, "wait_flag")):
                one = next(k for k in members if hivm.name_of(operations[k]).endswith(verb))
                yield Mutant(kind, _words(operations[one]), _removing([one]))
        for op in function.walk():
            name = hivm.name_of(op)
            if name == "hivm.hir.pipe_barrier" and "PIPE_V" in str(hivm.attributes(op)["pipe"]):
                yield Mutant(BARRIER, _words(op), _removing([number[id(op)]]))
        yield from _moved([op for op in function.walk() if hivm.name_of(op) == "hivm.hir.pointer_cast"], number)
    for group in _handshakes(functions):
        yield Mutant(HANDSHAKE, ", ".join(map(_words, group)), _removing([number[id(op)] for op in group]))


def _removing(members: Iterable[int]) -> Edit:
    def edit(operations: list[Any]) -> None:
        for k in members:
            operations[k].detach()
    return edit


def _pipes(op: Any) -> str:
    """The pipes of a flag; of a handshake, the one that signals."""
    found = hivm.attributes(op)
    words = [found["tpipe"]] if "tpipe" in found else [found["set_pipe"], found["wait_pipe"]]
    return " to ".join(re.sub(r".*PIPE_(\w+).*", r"\1", str(word)) for word in words)


def _event(op: Any) -> str:
    """The number of a flag or a handshake, "" where it is chosen at run time."""
    found = hivm.attributes(op)
    if "static_event_id" in found:
        return re.sub(r".*EVENT_ID(\d+).*", r"\1", str(found["static_event_id"]))
    return str(found["static_flag_id"].value.data) if "static_flag_id" in found else ""


def _words(op: Any) -> str:
    name = hivm.name_of(op).removeprefix("hivm.hir.")
    about = "" if name == "pipe_barrier" else f" {_pipes(op)}, {_event(op) or 'chosen at run time'}"
    return name + about + _line(op)


def _handshakes(functions: Sequence[Any]) -> Iterator[list[Any]]:
    """Signals of one core with the waits of the other side, by flag; where a flag is chosen at run time, all that a
    pipe signals."""
    for sender in functions:
        sides: dict[str, list[Any]] = defaultdict(list)
        for function in functions:
            verb = "set" if function is sender else "wait"
            for op in function.walk():
                if hivm.name_of(op) == f"hivm.hir.sync_block_{verb}":
                    sides[_pipes(op)].append(op)
        for some in sides.values():
            if all(_event(op) for op in some):
                for event in sorted({_event(op) for op in some}):
                    yield [op for op in some if _event(op) == event]
            else:
                yield some


def _pairs(function: Any) -> list[list[Any]]:
    """Sets and waits that hand each other the same tokens: what goes on, taken away together, leaves the rest in
    balance. Loops are gone through twice, so that what one round sets and the next one waits for is seen."""
    waiting: dict[tuple[str, str], list[Any]] = defaultdict(list)
    group: dict[int, list[Any]] = {}

    def join(first: Any, second: Any) -> None:
        one, other = group.setdefault(id(first), [first]), group.setdefault(id(second), [second])
        if one is not other:
            one += other
            for op in other:
                group[id(op)] = one

    def walk(block: Any) -> None:
        for op in block.ops:
            name = hivm.name_of(op)
            if name == "hivm.hir.set_flag":
                waiting[_pipes(op), _event(op)].append(op)
            elif name == "hivm.hir.wait_flag" and waiting[_pipes(op), _event(op)]:
                join(waiting[_pipes(op), _event(op)].pop(0), op)
            for _ in range(2 if name in ("scf.for", "scf.while") else 1):
                for region in op.regions:
                    for inner in region.blocks:
                        walk(inner)

    for region in function.regions:
        for block in region.blocks:
            walk(block)
    flags = [op for op in function.walk() if hivm.name_of(op) in ("hivm.hir.set_flag", "hivm.hir.wait_flag")]
    # where a pipe chooses events at run time, its sets and waits cannot be told apart, and go together
    chosen = {_pipes(op) for op in flags if not _event(op)}
    groups = {id(members): members for members in group.values() if _pipes(members[0]) not in chosen}
    return [*groups.values(), *([op for op in flags if _pipes(op) == pipes] for pipes in sorted(chosen))]


def _moved(casts: Sequence[Any], number: dict[int, int]) -> Iterator[Mutant]:
    """Planned buffers at other addresses, and of half the size."""
    planned = [(op, address, size) for op in casts
               if (address := _address(op)) is not None and (size := _bytes(op))]
    for k, (op, address, size) in enumerate(planned):
        space = hivm.space(op.results[0].type)
        others = [at for other, at, _ in planned if at != address and hivm.space(other.results[0].type) == space]
        what = f"{space} {address}, {size} bytes{_line(op)}"
        if others:
            onto = others[k % len(others)]
            yield Mutant(ONTO, f"{what}, to {onto}", _at(number[id(op)], onto))
        yield Mutant(BY_A_BLOCK, what, _at(number[id(op)], address + 32))
        shape = hivm.shape(op.results[0].type)
        axis = next((a for a, n in enumerate(shape) if n > 1), None)
        if axis is not None:
            yield Mutant(HALVED, f"{what}: axis {axis} of {shape}", _halved(number[id(op)], axis))


def _line(op: Any) -> str:
    place = hivm.place_of(op)
    return f" at line {place.line}" if place else ""


def _address(op: Any) -> int | None:
    owner = op.operands[0].owner
    if getattr(owner, "name", "") != "arith.constant":
        return None
    return int(hivm.attributes(owner)["value"].value.data)


def _bytes(op: Any) -> int:
    count = 1
    for n in hivm.shape(op.results[0].type):
        count *= max(n, 0)
    return count * hivm.element_bits(op.results[0].type) // 8


def _at(k: int, address: int) -> Edit:
    def edit(operations: list[Any]) -> None:
        from xdsl.dialects.arith import ConstantOp

        op = operations[k]
        constant = ConstantOp.from_int_and_width(address, 64)
        op.parent.insert_op_before(constant, op)
        op.operands[0] = constant.result
    return edit


def _halved(k: int, axis: int) -> Edit:
    def edit(operations: list[Any]) -> None:
        from xdsl.dialects.builtin import MemRefType
        from xdsl.rewriter import Rewriter

        result = operations[k].results[0]
        shape = hivm.shape(result.type)
        shape[axis] //= 2
        Rewriter.replace_value_with_new_type(
            result, MemRefType(result.type.element_type, shape, result.type.layout, result.type.memory_space))
    return edit
