"""Inside a kernel: which axes of its values are one and the same, and how each value is made from others.

Every axis of every value is a variable. Elementwise work, loads, products and the joins of control flow say that two
axes are one; the classes that come out are the kernel's axes. Beside its axes, each expression is given a `Spread`:
which axis of which operand becomes which axis of the result. Whoever cuts an axis into parts needs nothing else.

What keeps an axis whole is kept as a `Block` with the place: a scan, a reshape, a function that is not known.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import libcst as cst

from migrate.analysis import axis_calls
from migrate.analysis.axis_calls import Arguments
from migrate.analysis.axis_values import (
    HELPER,
    MIXED,
    NONE,
    NUMBER,
    OTHER,
    TILE,
    UNKNOWN,
    WHOLE,
    Axis,
    Block,
    Length,
    Number,
    Spread,
    Value,
    unknown,
)
from migrate.analysis.kernels import Kernel, is_jit
from migrate.analysis.tiles import LANGUAGE, called, dotted
from migrate.asked import Literal
from migrate.edit import code, parameters
from migrate.source import Source
from migrate.tree import find

HELPER_DEPTH = 5
LOOP_ROUNDS = 3


class Axes:
    """The axes of one kernel."""

    def __init__(self) -> None:
        self.values: dict[cst.CSTNode, Value] = {}
        self.spreads: dict[cst.CSTNode, Spread] = {}
        self.blocks: list[Block] = []

    def all(self) -> list[Axis]:
        """One axis of each class, in the order in which the kernel names them."""
        found: dict[Axis, None] = {}
        for value in self.values.values():
            for one in value.items or (value,):
                found.update((axis.root, None) for axis in one.axes or ())
        return list(found)


def axes(kernel: Kernel, values: dict[str, Literal]) -> Axes:
    """`values` are what is known of the kernel's `tl.constexpr` parameters."""
    found = Axes()
    env = {}
    for name, param in kernel.params.items():
        number = Number(frozenset({name}), frozenset({name}), values.get(name))
        env[name] = Value((), NUMBER, number) if param.constexpr else Value()
    Run(kernel.source, found, env).body(kernel.node.body)
    return found


Env = dict[str, Value]


class Run:
    """Walks one function in the order of execution; both sides of every branch.

    Inside a helper, `call` is the kernel's call of it: what is done there to an axis can only be undone there.
    """

    def __init__(self, source: Source, found: Axes, env: Env, call: cst.Call | None = None, depth: int = 0) -> None:
        self.source, self.found, self.env = source, found, env
        self.call, self.depth = call, depth
        self.returned: Value | None = None
        self.stores = False
        self.named: dict[tuple[cst.CSTNode, int], Axis] = {}

    # Axes

    def axis(self, node: cst.CSTNode, value: Value, at: int = 0) -> Axis:
        """The axis that a length in the text makes: always the same one for the same place."""
        key = (node, at)
        if key not in self.named:
            number = value.number if value.kind == NUMBER else Number()
            self.named[key] = axis = Axis(Length(number, node), one=number.value == 1)
            if self.call is not None and not axis.one:
                self.block([axis], "is made inside a helper", node)
        return self.named[key]

    def block(self, axes: Iterable[Axis], why: str, node: cst.CSTNode) -> None:
        place = self.call if self.call is not None else node
        self.found.blocks += [Block(axis, why, place) for axis in axes if not axis.one]

    def unite(self, one: Axis, other: Axis, node: cst.CSTNode) -> None:
        """The two are one axis: the program says so."""
        if not one.like(other):
            names = " and ".join(f"`{code(axis.root.lengths[0].node)}`" for axis in (one, other) if axis.root.lengths)
            self.block([one], f"meets another one, and {names} are not known to be equal", node)
        one.unite(other)

    def block_values(self, values: Iterable[Value], why: str, node: cst.CSTNode) -> None:
        for value in values:
            self.block(value.axes or (), why, node)
            self.block_values(value.items or (), why, node)

    def unclear(self, node: cst.CSTNode, operands: Iterable[tuple[cst.BaseExpression, Value]]) -> Value:
        """Work on values one of which has no known shape."""
        pairs = list(operands)
        culprit, value = next((n, v) for n, v in pairs if v.axes is None)
        self.block_values((v for _, v in pairs), f"meets `{code(culprit)}`, {value.why}", node)
        self.found.spreads[node] = Spread((), [(n, ()) for n, _ in pairs], kind=WHOLE)
        return unknown()

    def consumed(self, axis: Axis, node: cst.CSTNode) -> None:
        """An axis that a sum or a product leaves out of its result."""
        if self.call is not None:
            self.block([axis], "is summed over inside a helper", node)

    # Statements

    def body(self, body: cst.BaseSuite) -> bool:
        """Whether it always returns."""
        done = False
        for node in body.body:
            done |= self.statement(node)
        return done

    def statement(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine):
            return any([self.small(s) for s in node.body])
        if isinstance(node, cst.If):
            return self.branch(node)
        if isinstance(node, (cst.For, cst.While)):
            self.loop(node)
        elif isinstance(node, cst.With):
            for item in node.items:
                self.value(item.item)
            return self.body(node.body)
        elif isinstance(node, cst.BaseSmallStatement):
            return self.small(node)
        else:
            self.opaque(node)
        return False

    def small(self, node: cst.BaseSmallStatement) -> bool:
        if isinstance(node, cst.Assign):
            value = self.value(node.value)
            for target in node.targets:
                self.bind(target.target, value)
        elif isinstance(node, cst.AnnAssign):
            value = self.value(node.value) if node.value else unknown()
            if isinstance(node.target, cst.Name) and value.kind == NUMBER \
                    and dotted(node.annotation.annotation).endswith("constexpr"):
                names = value.number.names | {node.target.value}
                self.env[node.target.value] = replace(value, number=replace(value.number, names=names))
            else:
                self.bind(node.target, value)
        elif isinstance(node, cst.AugAssign):
            self.found.spreads.pop(node, None)
            old, new = self.value(node.target), self.value(node.value)
            self.bind(node.target, self.spread(node, [(node.target, old), (node.value, new)]))
        elif isinstance(node, cst.Expr):
            self.value(node.value)
        elif isinstance(node, cst.Return):
            value = self.value(node.value) if node.value else Value((), NONE)
            self.returned = value if self.returned is None else merged(self.returned, value)
            return True
        elif isinstance(node, cst.Assert):
            self.value(node.test)
        elif not isinstance(node, (cst.Pass, cst.Break, cst.Continue)):
            self.opaque(node)
        return False

    def opaque(self, node: cst.CSTNode) -> Value:
        """What is not understood: no axis of a value that it names may change."""
        for name in find(node, cst.Name):
            if name.value in self.env:
                self.block_values([self.env[name.value]], "is in code that is not understood", node)
        return unknown()

    def bind(self, target: cst.BaseExpression, value: Value) -> None:
        if isinstance(target, cst.Name):
            self.env[target.value] = Value() if value.kind == NUMBER else value
        elif isinstance(target, (cst.Tuple, cst.List)):
            items: Sequence[Value] = value.items or ()
            if len(items) != len(target.elements):
                items = [unknown()] * len(target.elements)
            for element, item in zip(target.elements, items, strict=True):
                self.bind(element.value, item)
        else:
            self.block_values([value], "is stored in a place that is no name", target)

    def branch(self, node: cst.If) -> bool:
        self.value(node.test)
        decided = self.none_test(node.test)
        if decided is not None:
            side = node.body if decided else node.orelse
            return self.branch(side) if isinstance(side, cst.If) else self.body(
                side.body if isinstance(side, cst.Else) else side) if side is not None else False
        before = dict(self.env)
        done = self.body(node.body)
        after, self.env = self.env, before
        other = False
        if isinstance(node.orelse, cst.If):
            other = self.branch(node.orelse)
        elif node.orelse is not None:
            other = self.body(node.orelse.body)
        if other:
            self.env = after
        elif not done:
            self.env = joined(after, self.env)
        return done and other

    def none_test(self, test: cst.BaseExpression) -> bool | None:
        """What `x is None` comes to inside a helper, where x is an argument that was left out or is None."""
        if self.call is None or not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 \
                or dotted(test.comparisons[0].comparator) != "None" \
                or self.env.get(dotted(test.left), Value()).kind != NONE:
            return None
        operator = test.comparisons[0].operator
        return True if isinstance(operator, cst.Is) else False if isinstance(operator, cst.IsNot) else None

    def loop(self, node: cst.For | cst.While) -> None:
        for _ in range(LOOP_ROUNDS):
            before = dict(self.env)
            if isinstance(node, cst.For):
                static = isinstance(node.iter, cst.Call) and dotted(node.iter.func).endswith("static_range")
                self.value(node.iter)
                self.bind(node.target, Value())
                if static and isinstance(node.target, cst.Name):
                    self.env[node.target.value] = Value((), NUMBER)
            else:
                self.value(node.test)
            self.body(node.body)
            self.env = joined(before, self.env)
            if all(self.env[name].kind == value.kind for name, value in before.items()):
                break                   # a value that is new to the first statements is seen by them, too
        if node.orelse is not None:
            self.body(node.orelse.body)

    # Expressions

    def value(self, node: cst.BaseExpression) -> Value:
        self.found.spreads.pop(node, None)              # of an earlier round of a loop
        method = getattr(self, "expression_" + type(node).__name__, self.opaque)
        found: Value = method(node)
        self.found.values[node] = found
        return found

    def spread(self, node: cst.CSTNode, operands: Sequence[tuple[cst.BaseExpression, Value]],
               like: int | None = None) -> Value:
        """Elementwise work: shapes broadcast, to that of the operand `like` if that is given."""
        values = [v for _, v in operands if v.kind != NONE and v.kind != OTHER]
        if any(v.axes is None for v in values):
            return self.unclear(node, operands)
        known = [v.axes or () for v in values]
        rank = len(operands[like][1].axes or ()) if like is not None else max(map(len, known), default=0)
        if any(len(axes) > rank for axes in known):
            self.block_values(values, "does not fit the address", node)
            return unknown()
        out: list[Axis | None] = [None] * rank
        if like is not None:
            out = list(operands[like][1].axes or ())
        for axes in known:
            for at, axis in enumerate(axes, rank - len(axes)):
                old = out[at]
                if old is None or (old.one and not axis.one and like is None):
                    out[at] = axis
                elif old.one and not axis.one:
                    self.block([axis], "does not fit the address", node)
                elif not axis.one:
                    self.unite(old, axis, node)
        result = tuple(axis for axis in out if axis is not None)
        places = [(n, tuple(range(rank - len(v.axes or ()), rank))) for n, v in operands]
        self.found.spreads[node] = Spread(result, places)       # type: ignore[arg-type]
        return Value(result)

    def expression_Name(self, node: cst.Name) -> Value:
        found = self.env.get(node.value)
        if found is not None:
            if found.kind == MIXED:
                why = "has another shape on another path"
                self.block_values([found], f"belongs to `{node.value}`, which {why}", node)
                return unknown("which " + why)
            return found
        if node.value == "None":
            return Value((), NONE)
        if node.value in ("True", "False"):
            return Value((), NUMBER, Number(value=node.value == "True"))
        if node.value in self.source.constants:         # a module-level number
            value = self.source.constants[node.value]
            if isinstance(value, cst.Call) and len(value.args) == 1 and dotted(value.func).endswith("constexpr"):
                value = value.args[0].value
            known = value.evaluated_value if isinstance(value, cst.Integer) else None
            return Value((), NUMBER, Number(frozenset({node.value}), value=known))
        return Value((), OTHER)                         # a dtype, a function, a module

    def expression_Integer(self, node: cst.Integer) -> Value:
        return Value((), NUMBER, Number(value=node.evaluated_value))

    def expression_Float(self, node: cst.Float) -> Value:
        return Value((), NUMBER)

    def expression_SimpleString(self, node: cst.SimpleString) -> Value:
        return Value((), OTHER)

    expression_FormattedString = expression_ConcatenatedString = opaque

    def expression_Tuple(self, node: cst.Tuple | cst.List) -> Value:
        return Value((), OTHER, items=tuple(self.value(e.value) for e in node.elements))

    expression_List = expression_Tuple

    def expression_BinaryOperation(self, node: cst.BinaryOperation) -> Value:
        a, b = self.value(node.left), self.value(node.right)
        if a.kind == b.kind == NUMBER:
            return Value((), NUMBER, _computed(a.number, b.number, type(node.operator).__name__))
        return self.spread(node, [(node.left, a), (node.right, b)])

    def expression_BooleanOperation(self, node: cst.BooleanOperation) -> Value:
        return self.spread(node, [(node.left, self.value(node.left)), (node.right, self.value(node.right))])

    def expression_UnaryOperation(self, node: cst.UnaryOperation) -> Value:
        value = self.value(node.expression)
        if value.kind == NUMBER:
            known = value.number.value
            if isinstance(known, int) and isinstance(node.operator, cst.Minus):
                return Value((), NUMBER, Number(params=value.number.params, value=-known))
            return Value((), NUMBER)
        return self.spread(node, [(node.expression, value)])

    def expression_Comparison(self, node: cst.Comparison) -> Value:
        parts = [node.left, *(c.comparator for c in node.comparisons)]
        return self.spread(node, [(part, self.value(part)) for part in parts])

    def expression_IfExp(self, node: cst.IfExp) -> Value:
        test, a, b = self.value(node.test), self.value(node.body), self.value(node.orelse)
        if a.kind == b.kind and a.kind in (NUMBER, OTHER) and a.items is None and b.items is None:
            return Value((), a.kind)
        if NONE in (a.kind, b.kind) or a.items is not None or b.items is not None \
                or len(a.axes or ()) != len(b.axes or ()):
            self.block_values([a, b], "belongs to a value that has another shape on another path", node)
        return self.spread(node, [(node.test, test), (node.body, a), (node.orelse, b)])

    def expression_Attribute(self, node: cst.Attribute) -> Value:
        full = dotted(node)
        if full and full.partition(".")[0] not in self.env:
            return Value((), OTHER)
        base, name = self.value(node.value), node.attr.value
        if name in ("dtype", "type", "element_ty", "scalar"):
            self.found.spreads[node] = Spread((), [(node.value, None)])
            return Value((), OTHER)
        if name == "T" and base.axes is not None:
            self.found.spreads[node] = Spread(base.axes[::-1], [(node.value, tuple(range(len(base.axes)))[::-1])])
            return Value(base.axes[::-1])
        self.block_values([base], f"is read as `.{name}`", node)
        if name == "shape" and base.axes is not None:
            sizes = (axis.root.lengths[0].number if axis.root.lengths else Number() for axis in base.axes)
            return Value((), OTHER, items=tuple(Value((), NUMBER, n) for n in sizes))
        return unknown()

    def expression_Subscript(self, node: cst.Subscript) -> Value:
        base = self.value(node.value)
        index = [e.slice for e in node.slice]
        if base.items is not None and len(index) == 1 and isinstance(index[0], cst.Index):
            at = self.value(index[0].value).number.value
            self.block_values(base.items, "is taken out of a tuple", node)
            return base.items[at] if isinstance(at, int) and -len(base.items) <= at < len(base.items) else unknown()
        if base.kind == TILE and base.axes == () and all(
                isinstance(part, cst.Index) and self.value(part.value).kind == NUMBER for part in index):
            return Value()                      # of a tuple that was passed
        left = list(enumerate(base.axes or ()))
        out: list[Axis] = []
        places: list[int] = []
        for i, part in enumerate(index):
            if isinstance(part, cst.Index) and dotted(part.value) == "None":
                key = (node, i)
                out.append(self.named.setdefault(key, Axis(one=True)))
            elif isinstance(part, cst.Slice) and not (part.lower or part.upper or part.step) and left:
                places.append(len(out))
                out.append(left.pop(0)[1])
            else:
                base = replace(base, axes=base.axes, kind=MIXED)
        if base.kind != TILE or base.axes is None:
            self.block_values([base], "is indexed", node)
            return unknown()
        for _, axis in left:
            places.append(len(out))
            out.append(axis)
        self.found.spreads[node] = Spread(tuple(out), [(node.value, tuple(places))])
        return Value(tuple(out))

    def expression_Call(self, node: cst.Call) -> Value:
        full = dotted(node.func)
        if full and full.partition(".")[0] not in self.env:
            name, first = called(self.source, node.func), None
        elif isinstance(node.func, cst.Attribute):
            first = (node.func.value, self.value(node.func.value))
            name = LANGUAGE + ("cast" if node.func.attr.value == "to" else node.func.attr.value)
        else:
            return self.opaque(node)
        call = Arguments(self, node, name, first)
        if call.starred:
            self.block_values(call.values(), "is passed with a star", node)
            return unknown()
        if name.startswith(LANGUAGE):
            return axis_calls.language(self, call, name.removeprefix(LANGUAGE))
        if name in ("min", "max", "abs", "range", "int", "float", "bool", "len"):
            if all(v.kind == NUMBER for v in call.values()):
                return Value((), NUMBER)
            return self.spread(node, call.plain())
        if isinstance(node.func, cst.Name):
            return self.helper(node, node.func.value, call)
        return self.not_known(call)

    def not_known(self, call: Arguments) -> Value:
        self.block_values(call.values(), f"is passed to `{code(call.node.func)}`, which is not known", call.node)
        self.found.spreads[call.node] = Spread((), [(n, ()) for n, _ in call.flat()], kind=WHOLE)
        return unknown()

    def helper(self, node: cst.Call, name: str, call: Arguments) -> Value:
        found = self.source.resolve(name) if self.depth < HELPER_DEPTH else None
        if found is None or not is_jit(*found):
            return self.not_known(call)
        source, function = found
        inner = Run(source, Axes(), {}, self.call or node, self.depth + 1)
        inner.found.blocks = self.found.blocks
        for i, param in enumerate(parameters(function)):
            given = call.get(i, param.name.value)
            inner.env[param.name.value] = given[1] if given is not None else \
                inner.value(param.default) if param.default is not None else unknown()
        inner.body(function.body)
        given_values = list(call.values())
        if inner.stores:
            self.stores = True
            self.block_values(given_values, f"is passed to `{name}`, which stores", node)
        if any(v.items is not None for v in given_values):
            self.block_values(given_values, f"is passed to `{name}` beside a tuple", node)
        result = inner.returned or Value((), NONE)
        if result.axes is None or result.items is not None:
            self.block_values([*given_values, result], f"is passed to `{name}`, whose result is not understood", node)
        operands = [(n, tuple(range(len(v.axes or ())))) for n, v in call.flat()]
        self.found.spreads[node] = Spread(result.axes or (), operands, kind=HELPER)     # type: ignore[arg-type]
        return result


def merged(a: Value, b: Value) -> Value:
    """After two paths have met."""
    if a is b or b.kind == NONE:
        return a
    if a.kind == NONE:
        return b
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        return Value(a.axes, OTHER, items=tuple(merged(x, y) for x, y in zip(a.items, b.items, strict=True)))
    kinds = {a.kind, b.kind}
    if kinds == {OTHER} or kinds == {UNKNOWN}:
        return b
    if kinds == {NUMBER}:
        return a if a.number == b.number else Value((), NUMBER)
    if kinds <= {TILE, NUMBER} and a.axes is not None and b.axes is not None and len(a.axes) == len(b.axes) \
            and all(x.like(y) for x, y in zip(a.axes, b.axes, strict=True)):
        for x, y in zip(a.axes, b.axes, strict=True):
            if not x.one:
                x.unite(y)
        return Value(a.axes)
    return Value(None, MIXED, items=(a, b))


def joined(a: Env, b: Env) -> Env:
    """A name that one path lacks is only read where the other one ran."""
    return {**b, **{name: merged(value, b[name]) if name in b else value for name, value in a.items()}}


def _computed(a: Number, b: Number, operator: str) -> Number:
    params, x, y = a.params | b.params, a.value, b.value
    if not isinstance(x, int) or not isinstance(y, int):
        return Number(params=params)
    if operator in ("FloorDivide", "Modulo") and y == 0:
        return Number(params=params)
    value = {"Add": x + y, "Subtract": x - y, "Multiply": x * y,
             "FloorDivide": x // y if y else None, "Modulo": x % y if y else None}.get(operator)
    return Number(params=params, value=value)

