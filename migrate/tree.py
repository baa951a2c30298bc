"""A parsed file that is quick to search and cheap to change.

LibCST's own visitors rebuild every node of a file on every walk, which costs more than parsing it. A port makes
a dozen small edits, so here each top-level statement is a unit with its own index, text and positions; an edit
rebuilds only the path from the edited node up to its unit, and every other unit is kept as it is.
"""
from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, overload

import libcst as cst
from libcst._add_slots import add_slots
from libcst._nodes.internal import CodegenState

Node = TypeVar("Node", bound=cst.CSTNode)
Edit = Any      # a node, cst.FlattenSentinel or cst.RemovalSentinel: what LibCST's transformers may return

NEWLINE = re.compile(r"\r\n?|\n")
LAYOUT = frozenset({
    "lpar", "rpar", "comma", "semicolon", "equal", "dot", "leading_lines", "lines_after_decorators", "header",
    "footer", "lbracket", "rbracket", "lbrace", "rbrace", "trailing_whitespace", "async_header"})


@functools.cache
def _child_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Fields of a node class that can hold code, as opposed to layout."""
    return tuple(f.name for f in dataclasses.fields(kind)
                 if f.name not in LAYOUT and not f.name.startswith("whitespace"))


class _IsNode(dict[type, bool]):
    """Whether a class is a node class; asking LibCST's abstract base class each time is what makes walks slow."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, cst.CSTNode)
        return self[kind]


_IS_NODE = _IsNode()


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Child nodes in source order, without white space and punctuation."""
    below: list[cst.CSTNode] = []
    for field in _child_fields(type(node)):
        value = getattr(node, field)
        if _IS_NODE[type(value)]:
            below.append(value)
        elif type(value) in (list, tuple):
            below += [item for item in value if _IS_NODE[type(item)]]
    return below


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all below it, in source order."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack += reversed(children(top))


@overload
def find(node: cst.CSTNode, kind: type[Node], /) -> Iterator[Node]: ...
@overload
def find(node: cst.CSTNode, /, *kinds: type[cst.CSTNode]) -> Iterator[Any]: ...
def find(node: cst.CSTNode, /, *kinds: type[cst.CSTNode]) -> Iterator[Any]:
    """Nodes of these exact classes at or below `node`, in source order."""
    return (n for n in walk(node) if type(n) in kinds)


@add_slots
@dataclasses.dataclass
class _Recorder(CodegenState):
    """Writes code and notes which tokens belong to which node: LibCST's PositionProvider at a fifth of its cost."""

    ranges: dict[cst.CSTNode, tuple[int, int]] = dataclasses.field(default_factory=dict)
    stack: list[int] = dataclasses.field(default_factory=list)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.stack.append(len(self.tokens))

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self.stack.pop()
        self.ranges.setdefault(node, (start, len(self.tokens)))

    @contextlib.contextmanager
    def record_syntactic_position(self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None,
                                  end_node: cst.CSTNode | None = None) -> Iterator[None]:
        start = len(self.tokens)
        yield
        first = self.ranges[start_node][0] if start_node is not None else start
        last = self.ranges[end_node][1] if end_node is not None else len(self.tokens)
        self.ranges[node] = (first, last)


class Unit:
    """One top-level statement. Lives as long as the statement is unchanged, whatever happens around it."""

    def __init__(self, statement: cst.CSTNode, module: cst.Module) -> None:
        self.memo: dict[Any, Any] = {}          # analyses keep what they worked out for this statement here
        self.index, self.parents = self._scan(statement)
        if self.parents is None:                # one node object in two places: give each place its own
            statement = statement.deep_clone()
            self.index, self.parents = self._scan(statement)
        self.statement = statement
        self._layout = module.with_changes(header=[], footer=[], body=[statement], has_trailing_newline=True)

    @staticmethod
    def _scan(root: cst.CSTNode) -> tuple[dict[type, list[cst.CSTNode]], Any]:
        index: dict[type, list[cst.CSTNode]] = {type(root): [root]}
        parents: dict[cst.CSTNode, cst.CSTNode | None] = {root: None}
        stack: list[cst.CSTNode] = [root]
        while stack:
            node = stack.pop()
            if node is not root:
                index.setdefault(type(node), []).append(node)
            below = children(node)
            for child in below:
                if child in parents:
                    return {}, None
                parents[child] = node
            stack += reversed(below)
        return index, parents

    @functools.cached_property
    def _written(self) -> _Recorder:
        state = _Recorder(self._layout.default_indent, self._layout.default_newline)
        self._layout._codegen(state)
        return state

    @functools.cached_property
    def code(self) -> str:
        return "".join(self._written.tokens)

    @functools.cached_property
    def line_starts(self) -> list[int]:
        """Offset in `code` of each of its lines."""
        return [0, *(m.end() for m in NEWLINE.finditer(self.code))]

    @property
    def lines(self) -> int:
        """How many line ends its text has."""
        return len(self.line_starts) - 1

    @functools.cached_property
    def _offsets(self) -> list[int]:
        return [0, *itertools.accumulate(map(len, self._written.tokens))]

    def span(self, node: cst.CSTNode) -> tuple[int, int, int]:
        """First line and column, and last line, all from 1 and counted from the start of this statement's text."""
        first, last = self._written.ranges[node]
        start, end = self._offsets[first], self._offsets[last]
        line = bisect.bisect_right(self.line_starts, start)
        return line, start - self.line_starts[line - 1] + 1, bisect.bisect_left(self.line_starts, max(end, start + 1))


class Tree:
    """One version of a file. `replace` gives the next version and leaves this one as it was."""

    def __init__(self, module: cst.Module, units: list[Unit] | None = None) -> None:
        self.units = units if units is not None else [Unit(s, module) for s in module.body]
        self.module = module.with_changes(body=[u.statement for u in self.units])

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Raises libcst.ParserSyntaxError."""
        return cls(cst.parse_module(text))

    @functools.cached_property
    def code(self) -> str:
        if not self.module.has_trailing_newline:
            return self.module.code
        around = self.module.with_changes(body=[])
        head = around.with_changes(footer=[], has_trailing_newline=True).code if self.module.header else ""
        foot = around.with_changes(header=[], has_trailing_newline=True).code if self.module.footer else ""
        return head + "".join(u.code for u in self.units) + foot

    @overload
    def all(self, kind: type[Node], /) -> Iterator[Node]: ...
    @overload
    def all(self, /, *kinds: type[cst.CSTNode]) -> Iterator[Any]: ...
    def all(self, /, *kinds: type[cst.CSTNode]) -> Iterator[Any]:
        """Every node of these exact classes, unit by unit; in source order within a unit and class."""
        for unit in self.units:
            for kind in kinds:
                yield from unit.index.get(kind, ())

    @functools.cached_property
    def _home(self) -> dict[cst.CSTNode, Unit]:
        return {node: unit for unit in self.units for node in unit.parents}

    def unit(self, node: cst.CSTNode) -> Unit:
        return self._home[node]

    def __contains__(self, node: cst.CSTNode) -> bool:
        return node in self._home

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around this one; None for a top-level statement."""
        return self._home[node].parents[node]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the parent outwards, ending with the top-level statement."""
        parents = self._home[node].parents
        up = parents[node]
        while up is not None:
            yield up
            up = parents[up]

    def enclosing(self, node: cst.CSTNode, kind: type[Node]) -> Node | None:
        """The innermost ancestor of exactly this class."""
        return next((a for a in self.ancestors(node) if type(a) is kind), None)     # type: ignore[misc]

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The innermost statement that holds the node (a whole line, or the compound statement itself)."""
        while not isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            up = self.parent(node)
            if up is None:
                break
            node = up
        return node

    @functools.cached_property
    def _first_line(self) -> dict[int, int]:
        line = 1
        if self.module.header:
            head = self.module.with_changes(body=[], footer=[], has_trailing_newline=True).code
            line += len(NEWLINE.findall(head))
        first = {}
        for unit in self.units:
            first[id(unit)] = line
            line += unit.lines
        return first

    def first_line(self, unit: Unit) -> int:
        """The line (from 1) that a top-level statement begins on, with the comments and blank lines above it."""
        return self._first_line[id(unit)]

    def span(self, node: cst.CSTNode) -> tuple[int, int, int]:
        """First line, column (both from 1) and last line of a node, in this version of the file."""
        unit = self._home[node]
        first, col, last = unit.span(node)
        base = self._first_line[id(unit)] - 1
        return base + first, col, base + last

    def replace(self, edits: Mapping[cst.CSTNode, Edit]) -> Tree:
        """The file with these nodes replaced, removed or made several. Edits inside a replacement apply too."""
        if not edits:
            return self
        touched: set[cst.CSTNode] = set()
        for node in edits:
            touched.update(self.ancestors(node))
        units: list[Unit] = []
        for unit in self.units:
            statement = unit.statement
            if statement not in touched and statement not in edits:
                units.append(unit)
                continue
            rebuilt = _Rebuild(edits, touched, self._home).one(statement)
            units += [Unit(s, self.module) for s in _flatten(rebuilt)]
        return Tree(self.module, units)


def _flatten(result: Edit) -> list[cst.CSTNode]:
    if isinstance(result, cst.RemovalSentinel):
        return []
    return list(result) if isinstance(result, cst.FlattenSentinel) else [result]


class _Rebuild:
    def __init__(self, edits: Mapping[cst.CSTNode, Edit], touched: set[cst.CSTNode],
                 known: Mapping[cst.CSTNode, Unit]) -> None:
        self.edits, self.touched, self.known = edits, touched, known

    def one(self, node: cst.CSTNode) -> Edit:
        if node in self.edits:
            new = self.edits[node]
            if isinstance(new, cst.CSTNode) and new is not node and new in self.edits:
                return self.one(new)            # replaced by a part of itself that is edited as well
            if isinstance(new, cst.FlattenSentinel):
                return cst.FlattenSentinel([self._inside(n, node) for n in new])
            return self._inside(new, node) if isinstance(new, cst.CSTNode) else new
        return self._inside(node, None) if node in self.touched else node

    def _inside(self, node: cst.CSTNode, replaced: cst.CSTNode | None) -> cst.CSTNode:
        """Rebuild below a node that is on the way to an edit, or that a rule has just made."""
        changes: dict[str, Any] = {}
        for field in _child_fields(type(node)):
            value = getattr(node, field)
            if isinstance(value, cst.CSTNode):
                new = self._child(value, replaced)
                if new is not value:
                    changes[field] = None if isinstance(new, cst.RemovalSentinel) else new
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], cst.CSTNode):
                items = [new for item in value for new in _flatten(self._child(item, replaced))]
                if len(items) != len(value) or any(a is not b for a, b in zip(items, value, strict=True)):
                    changes[field] = items
        if not changes:
            return node
        if isinstance(node, (cst.IndentedBlock, cst.SimpleStatementSuite)) and changes.get("body") == []:
            changes["body"] = [cst.parse_statement("pass")] if isinstance(node, cst.IndentedBlock) else [cst.Pass()]
        if isinstance(node, cst.SimpleStatementLine) and changes.get("body") == []:
            changes["body"] = [cst.Pass()]
        return node.with_changes(**changes)

    def _child(self, node: cst.CSTNode, replaced: cst.CSTNode | None) -> Edit:
        if node is replaced:                    # a wrapper put round the node that it replaces
            return self._inside(node, replaced) if node in self.touched else node
        if node in self.edits or node in self.touched:
            return self.one(node)
        return node if node in self.known else self._inside(node, replaced)
