"""What a value begins with that a loop carries, what the loop does with it, and a zero that no compiler knows."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from migrate import edit
from migrate.analysis.control import RANGES, Constness, bindings, constness
from migrate.analysis.kernels import Kernel
from migrate.analysis.tiles import INTS, calls, tiles
from migrate.source import Source
from migrate.tree import Tree, find

BLOCKS = (cst.If, cst.Else, cst.For, cst.While)
FACTS = frozenset({"dtype", "type", "shape"})       # of a tile, whatever it holds


@dataclass
class Start:
    """What may be the last value of a name before a loop: that of `last`, and those that `choices` bind. `bound`: on
    every way to the loop the name has one."""

    last: cst.CSTNode | None = None
    choices: list[cst.If] = field(default_factory=list)
    bound: bool = False

    def values(self, name: str) -> Iterator[cst.BaseExpression]:
        """The values of plain assignments among them."""
        for node in (self.last, *self.choices):
            if node is not None:
                yield from (value for bound, _, value in bindings(node) if bound == name and value is not None)


def start(tree: Tree, loop: cst.For, name: str) -> Start | None:
    """Where the name's value comes from when the loop begins; None where a loop around it carries the value in."""
    found, node = Start(), loop
    while True:
        block = tree.parent(node)
        if isinstance(block, cst.IndentedBlock):
            for statement in reversed(block.body[:list(block.body).index(node)]):       # type: ignore[arg-type]
                if not _binds(statement, name):
                    continue
                if isinstance(statement, cst.If):
                    found.choices.append(statement)
                elif isinstance(statement, cst.SimpleStatementLine):
                    found.last = statement
                if _always(statement, name):
                    found.bound = True
                    return found
        owner = tree.parent(block) if block is not None else None
        while isinstance(owner, cst.Else) or (
                isinstance(owner, cst.If) and isinstance(up := tree.parent(owner), cst.If) and up.orelse is owner):
            owner = tree.parent(owner)
        if owner is None or isinstance(owner, cst.FunctionDef):
            return found
        if isinstance(owner, (cst.For, cst.While)):
            return found if any(True for _ in found.values(name)) else None
        node = owner        # type: ignore[assignment]


def _binds(node: cst.CSTNode, name: str) -> bool:
    return any(bound == name for bound, _, _ in bindings(node))


def _always(statement: cst.CSTNode, name: str) -> bool:
    """Whether a statement binds the name on every way through it."""
    if isinstance(statement, cst.If):
        return statement.orelse is not None and _all(statement.body, name) and (
            _always(statement.orelse, name) if isinstance(statement.orelse, cst.If) else
            _all(statement.orelse.body, name))
    return isinstance(statement, cst.SimpleStatementLine) and _binds(statement, name)


def _all(block: cst.BaseSuite, name: str) -> bool:
    return any(_always(statement, name) for statement in block.body)


@dataclass(frozen=True)
class Event:
    """A simple statement in a loop, or the condition or range of a compound one. `conditions`: those that decide about
    it in a round, of which the compiler decides `flags`; `inner`: in a loop inside the loop."""

    node: cst.CSTNode
    conditions: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    inner: bool = False
    names: frozenset[str] = frozenset()     # that occur in it

    def at(self, node: cst.CSTNode, condition: str = "", folds: bool = False, inner: bool = False) -> Event:
        """That of a node where this one stands, under one more condition."""
        more = frozenset({condition} if condition else ())
        names = () if isinstance(node, BLOCKS) else (n.value for n in find(node, cst.Name))
        return Event(node, self.conditions | more, self.flags | more if folds else self.flags, self.inner or inner,
                     frozenset(names))


def events(kernel: Kernel, loop: cst.For) -> list[Event]:
    """What happens in a round of a loop, in order; what `tl.static_range` repeats, twice."""
    return list(_events(kernel.source, constness(kernel), loop.body, Event(loop)))


def _events(source: Source, constants: Constness, body: cst.BaseSuite, here: Event) -> Iterator[Event]:
    for statement in body.body:
        if isinstance(statement, cst.SimpleStatementLine):
            yield from map(here.at, statement.body)
        elif isinstance(statement, cst.If):
            branch: cst.If | cst.Else | None = statement
            place = here
            while isinstance(branch, cst.If):
                test, folds = edit.code(branch.test), constants.folds(branch.test)
                yield place.at(branch.test)
                yield from _events(source, constants, branch.body, place.at(branch, test, folds))
                place = place.at(branch, f"not ({test})", folds)
                branch = branch.orelse
            if branch is not None:
                yield from _events(source, constants, branch.body, place)
        elif isinstance(statement, cst.For):
            unrolled = isinstance(statement.iter, cst.Call) and calls(source, statement.iter, "static_range")
            yield here.at(statement.iter)
            for _ in range(1 + unrolled):
                yield from _events(source, constants, statement.body, here.at(statement, inner=not unrolled))
        elif isinstance(statement, cst.While):
            yield here.at(statement.test, inner=True)
            yield from _events(source, constants, statement.body, here.at(statement, inner=True))
        elif isinstance(statement, cst.BaseSmallStatement):     # the body of `if x: y` on one line
            yield here.at(statement)


def mentions(node: cst.CSTNode, name: str) -> int:
    """How often the value of a variable is asked for; `f(name=1)` and `x.name` are other names, `name.dtype` a fact."""
    other: set[cst.CSTNode | None] = set()
    for n in find(node, cst.Arg, cst.Attribute):
        if isinstance(n, cst.Arg):
            other.add(n.keyword)
        else:
            other |= {n.attr, n.value} if n.attr.value in FACTS else {n.attr}
    return sum(n.value == name and n not in other for n in find(node, cst.Name))


def changed(node: cst.CSTNode) -> str:
    """The name that `name = ...` or `name += ...` gives a value to; "" for other statements."""
    if isinstance(node, cst.Assign) and len(node.targets) == 1:
        target: cst.BaseExpression = node.targets[0].target
    elif isinstance(node, cst.AugAssign):
        target = node.target
    else:
        return ""
    return target.value if isinstance(target, cst.Name) else ""


def carried(kernel: Kernel) -> Iterator[tuple[cst.For, list[str]]]:
    """The loops over a range, with the names that they give values to, in order."""
    source = kernel.source
    for loop in find(kernel.node.body, cst.For):
        if isinstance(loop.iter, cst.Call) and source.qualified(loop.iter.func) in RANGES:
            yield loop, list(dict.fromkeys(n for n, _, _ in bindings(loop.body)))


def is_float32(kernel: Kernel, begins: Start, name: str) -> bool | None:
    """Whether a name begins with a tile of float32: None for scalars, integers and pointers. All values that it may
    begin with have one type, as Triton wants, so that it is enough to know one of them."""
    values = [tiles(kernel).of(value) for value in begins.values(name)]
    if any(value.shape == () or value.points or value.dtype in INTS for value in values):
        return None
    return any(value.dtype == "float32" for value in values)


def zero(source: Source) -> str:
    """0.0 on every core, which no compiler may fold, as it does not know that the factor is finite."""
    return f"{source.language}.program_id(0) * 0.0"


def with_comment(statement: cst.CSTNode, text: str) -> cst.CSTNode:
    """A statement with a comment right above it."""
    lines = getattr(statement, "leading_lines", ())
    return statement.with_changes(leading_lines=[*lines, cst.EmptyLine(comment=cst.Comment(text))])
