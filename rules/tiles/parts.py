"""The text of a kernel some of whose axes are cut into parts."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.analysis.axes import Axes
from migrate.analysis.axis_memory import Memory
from migrate.analysis.axis_values import ARANGE, HELPER, WHOLE, Axis, Spread, Value
from migrate.analysis.constants import PART
from migrate.analysis.kernels import Kernel
from migrate.edit import code, expression, is_atom, parenthesised, without_args
from migrate.tree import children, find

Pair = tuple[cst.BaseExpression, cst.BaseExpression]
Index = tuple[int | None, ...]      # for each axis of a value the number of a part, None where it is whole


class CannotSplit(Exception):
    """Says what stands in the way, and where."""

    def __init__(self, node: cst.CSTNode, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


@dataclass
class Line:
    """A statement of the new text; `sets` are parts that it assigns, `reads` those that it reads."""

    node: cst.BaseSmallStatement
    sets: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    keep: bool = True               # does more than setting parts


@dataclass
class Parts:
    """Writes the parts of expressions and statements. `cut` says into how many parts an axis goes, by its root."""

    kernel: Kernel
    found: Axes
    cut: Mapping[Axis, int]
    names: dict[tuple[str, Index], str] = field(default_factory=dict)
    separators: dict[str, str] = field(default_factory=dict)
    now: dict[Axis, int] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.taken = {n.value for n in find(self.kernel.node, cst.Name)}
        self.language = self.kernel.source.language
        self.memory = Memory(self.kernel, self.found, lambda axis: self.count(axis) > 1)

    # Which parts there are

    def count(self, axis: Axis) -> int:
        return self.cut.get(axis.root, 1)

    def is_cut(self, value: Value | None) -> bool:
        if value is None:
            return False
        return any(self.count(a) > 1 for a in value.axes or ()) or any(self.is_cut(v) for v in value.items or ())

    def indices(self, axes: Sequence[Axis]) -> list[Index]:
        return list(itertools.product(*(range(self.count(a)) if self.count(a) > 1 else (None,) for a in axes)))

    def value(self, node: cst.CSTNode) -> Value:
        return self.found.values.get(node, Value())

    def part_name(self, name: str, index: Index) -> str:
        """`b_h1`; `b_h_1` where that name, or the digit before it, would mislead."""
        numbers = [i + 1 for i in index if i is not None]
        if not numbers:
            return name
        tail = ("_" if max(numbers) > 9 else "").join(map(str, numbers))
        if name not in self.separators:
            choices = ["_" * n for n in range(int(name[-1].isdigit()), 9)]
            self.separators[name] = next(s for s in choices if not any(
                other.startswith(name + s) and other[len(name + s):].replace("_", "").isdigit()
                for other in self.taken))
        new = name + self.separators[name] + tail
        self.made.add(new)
        return new

    def renamed(self, name: cst.Name, index: Index) -> cst.Name:
        return name.with_changes(value=self.part_name(name.value, index))

    # Expressions

    def whole(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """An expression that keeps its shape, with what is below it written in parts; the same node if nothing is."""
        if self.is_cut(self.value(node)):
            raise CannotSplit(node, f"`{code(node)}` is used where a tile cannot be in parts")
        return self.part(node, (None,) * len(self.value(node).axes or ()))

    def part(self, node: cst.BaseExpression, index: Index) -> cst.BaseExpression:
        """One part of an expression."""
        if isinstance(node, cst.Name):
            name = self.part_name(node.value, index)
            return node if name == node.value else node.with_changes(value=name)
        spread = self.found.spreads.get(node)
        if spread is None:
            return node
        if spread.kind == ARANGE:
            return self.arange(node, spread, index)
        if spread.kind == HELPER:
            return self.helper(node, spread, index)
        if spread.kind == WHOLE:
            news = ((operand, self.whole(operand)) for operand, _ in spread.operands)
            return self.rebuilt(node, {old: new for old, new in news if new is not old})
        copies = self.terms(node, spread, index)
        return copies[0] if len(copies) == 1 else self.join(copies, spread.join)

    def terms(self, node: cst.BaseExpression, spread: Spread, index: Index) -> list[cst.BaseExpression]:
        """What a part is the sum of: one term for each part of the axes that are summed over."""
        out = []
        summed = spread.axes[len(index):]
        outer = self.now
        for n, inner in enumerate(self.indices(summed)):
            self.now = outer | {a.root: i for a, i in zip(summed, inner, strict=True) if i is not None}
            out.append(self.copy(node, spread, (*index, *inner), first=n == 0))
        self.now = outer
        return out

    def join(self, copies: list[cst.BaseExpression], how: str) -> cst.BaseExpression:
        out = copies[0]
        for copy in copies[1:]:
            if how in ("+", "^"):
                out = cst.BinaryOperation(out, cst.Add() if how == "+" else cst.BitXor(), copy)
            else:
                out = cst.Call(expression(f"{self.language}.{how}"), [cst.Arg(out), cst.Arg(copy)])
        return out

    def copy(self, node: cst.BaseExpression, spread: Spread, full: Index, *, first: bool = True) -> cst.BaseExpression:
        table: dict[cst.CSTNode, cst.BaseExpression] = {}
        for operand, places in spread.operands:
            axes = self.value(operand).axes or ()
            if places is None:
                index: Index = tuple(self.now.get(a.root, 0) if self.count(a) > 1 else None for a in axes)
            else:
                index = tuple(full[p] if self.count(a) > 1 else None for a, p in zip(axes, places, strict=True))
            new = self.part(operand, index)
            if operand is spread.once and not first:
                node, new = _without(node, operand)
            if new is not operand:
                table[operand] = new
        for length, at in spread.lengths.items():
            if full[at] is not None:
                table[length] = cst.Integer(str(PART))
        for start, at in spread.starts.items():
            if full[at]:
                table[start] = self.moved(start, PART * (full[at] or 0))
        return self.rebuilt(node, table)

    def moved(self, start: cst.BaseExpression, by: int) -> cst.BaseExpression:
        if isinstance(start, cst.Integer):
            return cst.Integer(str(start.evaluated_value + by))
        left = start if not isinstance(start, (cst.IfExp, cst.BooleanOperation, cst.Comparison)) or start.lpar \
            else parenthesised(start)
        return cst.BinaryOperation(left, cst.Add(), cst.Integer(str(by)))

    def arange(self, node: cst.BaseExpression, spread: Spread, index: Index) -> cst.BaseExpression:
        if index[0] is None:
            return node
        (start,), (end,) = spread.starts, spread.lengths
        first = self.value(start).number.value
        assert isinstance(first, int)           # else its length would not be known
        if first == 0:
            piece = self.rebuilt(node, {end: cst.Integer(str(PART))})
            return cst.BinaryOperation(cst.Integer(str(PART * index[0])), cst.Add(), piece) if index[0] else piece
        at = first + PART * index[0]
        return self.rebuilt(node, {start: cst.Integer(str(at)), end: cst.Integer(str(at + PART))})

    def helper(self, node: cst.BaseExpression, spread: Spread, index: Index) -> cst.BaseExpression:
        """A helper that works on each element is called on each part."""
        chosen: dict[Axis, int] = {}
        for axes in (spread.axes, *(self.value(n).axes or () for n, _ in spread.operands)):
            roots = [a.root for a in axes if self.count(a) > 1]
            if len(set(roots)) < len(roots):
                raise CannotSplit(node, "a helper is given a tile with this axis twice")
        for axis, i in zip(spread.axes, index, strict=True):
            if i is not None:
                chosen[axis.root] = i
        table: dict[cst.CSTNode, cst.BaseExpression] = {}
        for operand, _ in spread.operands:
            axes = self.value(operand).axes or ()
            if any(self.count(a) > 1 and a.root not in chosen for a in axes):
                raise CannotSplit(node, "the axis is not in the result of a helper that takes it")
            new = self.part(operand, tuple(chosen[a.root] if self.count(a) > 1 else None for a in axes))
            if new is not operand:
                table[operand] = new
        return self.rebuilt(node, table)

    def rebuilt(self, node: cst.BaseExpression, table: dict[cst.CSTNode, cst.BaseExpression]) -> cst.BaseExpression:
        if not table:
            return node
        apart = {a.value for a in find(node, cst.Arg, cst.Element, cst.Index)}      # commas and brackets around them
        if isinstance(node, cst.Comparison):
            apart |= {node.left, *(c.comparator for c in node.comparisons)}
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            apart.add(node.left)
            right = table.get(node.right)
            if isinstance(right, cst.BinaryOperation) and isinstance(right.left, cst.Integer) and not right.lpar:
                # a + (64 + arange): integers, which need no brackets
                table[node.left] = cst.BinaryOperation(table.get(node.left, node.left), cst.Add(), right.left)
                table[node.right] = right.right
        for old, new in table.items():
            if old not in apart and isinstance(new, cst.BinaryOperation) and not new.lpar \
                    and not isinstance(old, cst.BinaryOperation):
                table[old] = parenthesised(new)
        swapped = node.visit(_Swap(table))
        assert isinstance(swapped, cst.BaseExpression)
        return swapped

    # Statements

    def lines(self, node: cst.BaseSmallStatement) -> list[Line] | None:
        """What becomes of a statement; None if it stays as it is. Raises CannotSplit."""
        lines = self.written(node)
        if lines is not None:
            self.effects(node, lines)
        self.complete(_value(node), [_value(line.node) for line in lines] if lines is not None else [_value(node)])
        return lines

    def test(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """The test of a branch or a loop, in parts; the same node if nothing in it is. Raises CannotSplit."""
        new = self.whole(node)
        self.complete(node, [new])
        for call in self.memory.stores(node):
            if self.repeated(call, node, [new]):
                raise CannotSplit(call, f"`{code(call.func)}` inside a larger expression cannot be doubled")
        return new

    def complete(self, old: cst.CSTNode, news: Sequence[cst.CSTNode]) -> None:
        """Nothing may still read a name that exists only in parts."""
        gone = {n.value for n in _read(old) if self.is_cut(self.found.values.get(n))}
        if any(n.value in gone for new in news for n in _read(new)):
            raise CannotSplit(old, f"`{code(old)}` is not understood")

    def written(self, node: cst.BaseSmallStatement) -> list[Line] | None:
        if isinstance(node, cst.Assign):
            lines = self.assign(node)
        elif isinstance(node, cst.AugAssign):
            lines = self.augmented(node)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            lines = self.changed(node, node.value)
        elif isinstance(node, cst.Expr):
            if self.is_cut(self.value(node.value)):
                lines = [self.line(node.with_changes(value=new)) for _, new in self.each(node.value)]
            else:
                lines = self.changed(node, node.value)
        elif isinstance(node, cst.Return) and node.value is not None:
            lines = self.changed(node, node.value)
        elif isinstance(node, cst.Assert):
            new = self.whole(node.test)
            lines = None if new is node.test else [self.line(node.with_changes(test=new))]
        else:
            return None
        return lines

    def line(self, node: cst.BaseSmallStatement, targets: Sequence[str] = ()) -> Line:
        value = node.value if isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign)) and node.value else node
        reads = frozenset(n.value for n in find(value, cst.Name) if n.value in self.made)
        sets = frozenset(t for t in targets if t in self.made)
        keep = len(sets) < len(targets) or not targets or any(True for _ in self.memory.stores(node))
        return Line(node, sets, reads, keep)

    def changed(self, node: cst.Assign | cst.AnnAssign | cst.Expr | cst.Return, value: cst.BaseExpression,
                ) -> list[Line] | None:
        new = self.whole(value)
        if new is value:
            return None
        if isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            return self.summed(node, node.targets[0].target, (None,) * len(self.value(value).axes or ()), new)
        return [self.line(node.with_changes(value=new))]

    def summed(self, node: cst.Assign, target: cst.Name, index: Index, whole: cst.BaseExpression) -> list[Line]:
        """`x = dot(...)` over a cut axis becomes `x = dot(...)`, `x += dot(...)`; else one assignment."""
        name = self.renamed(target, index)
        first, *rest = self.terms_apart(node.value, index, target.value) or [whole]
        left = node.targets[0].with_changes(target=name)
        return [self.line(node.with_changes(targets=[left], value=first), [name.value]),
                *(self.line(cst.AugAssign(name, cst.AddAssign(), term), [name.value]) for term in rest)]

    def each(self, node: cst.BaseExpression) -> Iterator[tuple[Index, cst.BaseExpression]]:
        axes = self.value(node).axes or ()
        for index in self.indices(axes):
            self.now = {a.root: i for a, i in zip(axes, index, strict=True) if i is not None}
            yield index, self.part(node, index)
            self.now = {}

    def assign(self, node: cst.Assign) -> list[Line] | None:
        targets = [t.target for t in node.targets]
        value = self.value(node.value)
        pairs: list[Pair] = []
        if not self.is_cut(value):
            return self.changed(node, node.value)
        if len(targets) == 1 and isinstance(targets[0], cst.Name) and value.items is None:
            out: list[Line] = []
            for index, new in self.each(node.value):
                pairs.append((self.renamed(targets[0], index), new))
                out += self.summed(node, targets[0], index, new)
            return [self.together(pairs)] if self.clash(out) else out
        left = targets[0]
        if len(targets) == 1 and isinstance(left, (cst.Tuple, cst.List)) and isinstance(node.value, cst.Tuple) \
                and len(left.elements) == len(node.value.elements) \
                and all(isinstance(e.value, cst.Name) for e in left.elements):
            rows: dict[Index, list[Pair]] = {}
            for target, element in zip(left.elements, node.value.elements, strict=True):
                assert isinstance(target.value, cst.Name)
                for index, new in self.each(element.value):
                    rows.setdefault(index, []).append((self.renamed(target.value, index), new))
            out = [self.together(row) for row in rows.values()]
            if any(len(row) < len(left.elements) for row in rows.values()) or self.clash(out):
                return [self.together([pair for row in rows.values() for pair in row])]
            return out
        raise CannotSplit(node, "only a name, or a tuple of names beside a tuple of values, is assigned in parts")

    def together(self, pairs: Sequence[Pair]) -> Line:
        left = cst.Tuple([cst.Element(a) for a, _ in pairs], lpar=[], rpar=[])
        right = cst.Tuple([cst.Element(b) for _, b in pairs], lpar=[], rpar=[])
        return self.line(cst.Assign([cst.AssignTarget(left)], right), [code(a) for a, _ in pairs])

    @staticmethod
    def clash(lines: Sequence[Line]) -> bool:
        done: set[str] = set()
        for line in lines:
            if line.reads & done:
                return True
            done |= line.sets
        return False

    def augmented(self, node: cst.AugAssign) -> list[Line] | None:
        spread = self.found.spreads.get(node)
        places = {} if spread is None else dict(spread.operands)
        mine, theirs = places.get(node.target), places.get(node.value)
        if spread is None or mine is None or theirs is None or not isinstance(node.target, cst.Name):
            new = self.whole(node.value)
            return None if new is node.value else [self.line(node.with_changes(value=new))]
        name, value = node.target.value, node.value
        out: list[Line] = []
        pairs: list[Pair] = []
        grows = False                           # the target was whole, and is in parts from here on
        for index in self.indices(spread.axes):
            self.now = {a.root: i for a, i in zip(spread.axes, index, strict=True) if i is not None}
            before = self.part_name(name, self.below(index, node.target, mine))
            target = self.renamed(node.target, index)
            at = self.below(index, value, theirs)
            new = self.part(value, at)
            pairs.append((target, self.operated(node, before, new)))
            apart = isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign))
            terms = self.terms_apart(value, at, name) if apart else []
            if not terms and new is value and target.value == name:
                return None
            out += [self.line(node.with_changes(target=target, value=v), [target.value]) for v in terms or [new]]
            grows |= before != target.value
            self.now = {}
        return [self.together(pairs)] if grows or self.clash(out) else out

    def below(self, index: Index, operand: cst.BaseExpression, places: tuple[int, ...]) -> Index:
        axes = self.value(operand).axes or ()
        return tuple(index[p] if self.count(a) > 1 else None for a, p in zip(axes, places, strict=True))

    def operated(self, node: cst.AugAssign, left: str, right: cst.BaseExpression) -> cst.BaseExpression:
        """`left * right` of `left *= right`."""
        if not is_atom(right):
            right = parenthesised(right)
        sign = cst.ensure_type(expression(f"a {code(node.operator).strip()[:-1]} b"), cst.BinaryOperation).operator
        return cst.BinaryOperation(cst.Name(left), sign, right)

    def terms_apart(self, value: cst.BaseExpression, index: Index, target: str) -> list[cst.BaseExpression]:
        """The terms of a product or sum over a cut axis, for a statement each, as by hand; none where that differs."""
        spread = self.found.spreads.get(value)
        if spread is None or spread.join != "+" or spread.kind or any(n.value == target for n in find(value, cst.Name)):
            return []
        terms = self.terms(value, spread, index)
        return terms if len(terms) > 1 else []

    # What must happen once, and in order

    @staticmethod
    def repeated(call: cst.Call, old: cst.CSTNode, news: Sequence[cst.CSTNode]) -> bool:
        """Whether the new text has more calls of this function than the old one."""
        name = code(call.func)
        return sum(code(c.func) == name for new in news for c in find(new, cst.Call)) > sum(
            code(c.func) == name for c in find(old, cst.Call))

    def effects(self, node: cst.BaseSmallStatement, lines: Sequence[Line]) -> None:
        """Raises CannotSplit where a statement that is doubled stores what it also reads, or stores on the way."""
        top = getattr(node, "value", None)
        doubled = len(lines) > 1 or any(isinstance(line.node, cst.Assign) and isinstance(line.node.value, cst.Tuple)
                                        for line in lines)
        for call in self.memory.stores(node):
            known = call is top or self.memory.is_store(call)
            if (known and (call is not top or (doubled and not self.is_cut(self.value(call))))) \
                    or (not known and self.repeated(call, node, [line.node for line in lines])):
                raise CannotSplit(call, f"`{code(call.func)}` inside a larger expression cannot be doubled")
            load = self.memory.conflict(node, call) if doubled else None
            if load is not None:
                raise CannotSplit(load, "one part might be loaded after another has been stored over it")


def _value(node: cst.BaseSmallStatement) -> cst.CSTNode:
    """What a statement reads, but for the target of `x += 1`."""
    if isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Expr, cst.Return)) and node.value is not None:
        return node.value
    return node.test if isinstance(node, cst.Assert) else node


def _read(node: cst.CSTNode) -> Iterator[cst.Name]:
    """Names of values: neither keywords nor attributes."""
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, cst.Name):
            yield top
        elif isinstance(top, (cst.Arg, cst.Attribute)):
            stack.append(top.value)
        else:
            stack += children(top)


def _without(call: cst.BaseExpression, value: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    """A call without an argument; where others follow by position the call stays, and None is what to pass."""
    call = cst.ensure_type(call, cst.Call)
    at = next(i for i, arg in enumerate(call.args) if arg.value is value)
    if call.args[at].keyword is None and any(arg.keyword is None for arg in call.args[at + 1:]):
        return call, expression("None")
    return without_args(call, {call.args[at]}), value


class _Swap(cst.CSTTransformer):
    def __init__(self, table: Mapping[cst.CSTNode, cst.BaseExpression]) -> None:
        super().__init__()
        self.table = table

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node not in self.table

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:     # type: ignore[override]
        return self.table.get(original, updated)
