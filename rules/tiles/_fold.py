"""The body of a kernel of which some values are known: branches chosen, loops of one round inlined, numbers put in."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import libcst as cst

from migrate.analysis.control import bindings
from migrate.analysis.kernels import Kernel
from migrate.analysis.known import PRESENT, UNKNOWN, Known, folded_call, pure
from migrate.analysis.pointers import Pointers
from migrate.analysis.tiles import FLOATS, NUMBER, called, tiles
from migrate.asked import Literal
from migrate.edit import code, is_atom, parenthesised
from migrate.errors import MigrateError
from migrate.tree import children, find
from rules.tiles._layout import Lines, as_statements, merged

Node = TypeVar("Node", bound=cst.CSTNode)
Statement = cst.BaseStatement
LOOPS = ("range", "triton.language.range", "triton.language.static_range")
STATIC = "triton.language.static_range"
SIZED = frozenset("triton.language." + name for name in ("arange", "zeros", "full", "make_block_ptr", "static_range",
                                                         "range"))
INTEGERS = frozenset({"int32", "int64"})
LEAVES = (cst.Lambda, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp, cst.FunctionDef, cst.ClassDef)
ENDS = (cst.Return, cst.Break, cst.Continue, cst.Raise)


@dataclass(frozen=True)
class Event:
    """Something that was decided. Events with one text are one sentence for the reviewer."""

    node: cst.CSTNode
    text: str


class Types:
    """Which expressions of a kernel are surely integers or pointers, so that `0 + x` is `x`."""

    def __init__(self, kernel: Kernel) -> None:
        self.source = kernel.source
        self._tiles = tiles(kernel)
        self._pointers = Pointers(kernel)
        self._accessed = frozenset(p for a in self._pointers.accesses for p in a.loads | a.stores)
        self._constants = constants = {name for name, p in kernel.params.items() if p.constexpr}
        self.sizes = frozenset(n.value for call in find(kernel.node.body, cst.Call)
                               if called(self.source, call.func) in SIZED or folded_call(self.source, call) == "range"
                               for a in call.args for n in find(a.value, cst.Name) if n.value in constants)
        self._offsets: set[cst.CSTNode] = set()
        for node in find(kernel.node.body, cst.BinaryOperation):
            if isinstance(node.operator, (cst.Add, cst.Subtract)) and self.pointer(node.left):
                self._offset(node.right)
        for step in find(kernel.node.body, cst.AugAssign):
            if self.pointer(step.target):
                self._offset(step.value)

    def _offset(self, node: cst.BaseExpression) -> None:
        """What is added to a pointer is an integer, and so is all that it is the sum and product of."""
        if node in self._offsets:
            return
        self._offsets.add(node)
        if isinstance(node, cst.Name):
            for value in self._pointers.values.get(node.value, ()):
                self._offset(value)
        if isinstance(node, cst.BinaryOperation) and not isinstance(node.operator, (cst.Divide, cst.Power)):
            self._offset(node.left)
            self._offset(node.right)

    def integer(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Integer) or (isinstance(node, cst.Name) and node.value in self.sizes):
            return True
        if node in self._offsets or self._tiles.of(node).dtype in INTEGERS:
            return True
        return (isinstance(node, cst.BinaryOperation) and not isinstance(node.operator, (cst.Divide, cst.Power))
                and self.integer(node.left) and self.integer(node.right))

    def pointer(self, node: cst.BaseExpression) -> bool:
        return bool(self._pointers.bases(node) & self._accessed)

    def scalar(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Integer) or (isinstance(node, cst.Name) and node.value in self._constants):
            return True
        if isinstance(node, cst.BinaryOperation):
            return self.scalar(node.left) and self.scalar(node.right)
        return self._tiles.of(node).shape == ()

    def takes_any_integer(self, node: cst.BaseExpression) -> bool:
        """Whether a number beside this operand gives what an int32 gives: an int8 beside an int32 becomes one."""
        value = self._tiles.of(node)
        return (self.integer(node) or self.pointer(node) or value.dtype in FLOATS or value.kind == NUMBER)


class Fold:
    """One walk over the statements of a kernel. `dead` are names whose assignments go."""

    def __init__(self, known: Known, types: Types, body: cst.BaseSuite, dead: frozenset[str] = frozenset(),
                 keep: frozenset[str] = frozenset()) -> None:
        self.known, self.types, self.root, self.dead, self.keep = known, types, body, dead, keep
        self.source = known.source
        self.events: list[Event] = []
        self.replaced: list[cst.Name] = []

    def suite(self, body: cst.BaseSuite) -> cst.BaseSuite | None:
        """The same object where nothing changes; None where nothing is left."""
        if isinstance(body, cst.SimpleStatementSuite):
            new = self._smalls(body.body)
            if new is None:
                return body
            return body.with_changes(body=new) if new else None
        block = cst.ensure_type(body, cst.IndentedBlock)
        lines = self._block(block.body)
        if not lines.body:
            return None
        if len(lines.body) == len(block.body) and all(a is b for a, b in zip(lines.body, block.body, strict=True)):
            return body
        return block.with_changes(body=lines.body, footer=[*lines.carried_comments(), *block.footer])

    def _block(self, statements: Sequence[cst.BaseStatement]) -> Lines:
        lines = Lines()
        for statement in statements:
            ended = self._statement(statement, lines)
            if ended:                           # a branch that returns was chosen: the rest is never reached
                break
        return lines

    def _statement(self, node: cst.BaseStatement, out: Lines) -> bool:
        """Whether what was put in place of the statement ends the block."""
        if isinstance(node, cst.If):
            return self._if(node, node, out)
        if isinstance(node, cst.For):
            return self._for(node, out)
        if isinstance(node, cst.SimpleStatementLine):
            new = self._smalls(node.body)
            if new is None:
                out.add(node)
            elif new:
                out.add(node.with_changes(body=new))
            else:
                out.drop(node)
        elif isinstance(node, cst.While) and node.orelse is None and self._truth(node.test) is False:
            self._say(node, f"`{code(node.test)}` is False: the loop goes")
            out.drop(node)
        elif isinstance(node, (cst.While, cst.With)):
            body = self.suite(node.body)
            changes: dict[str, Any] = {"body": body or _nothing()}
            if isinstance(node, cst.While):
                changes["test"] = self._test(node.test)
            out.add(_changed(node, changes))
        else:
            out.add(node)
        return False

    # Branches

    def _if(self, node: cst.If, at: cst.CSTNode, out: Lines) -> bool:
        truth = self._truth(node.test)
        if truth is True:
            self._say(at, f"`{code(node.test)}` is True: its branch stays, without the test")
            return self._splice(node, node.body, (), out)
        if truth is False:
            self._say(at, f"`{code(node.test)}` is False: its branch goes")
            if isinstance(node.orelse, cst.Else):
                return self._splice(node, node.orelse.body, node.orelse.leading_lines, out)
            if isinstance(node.orelse, cst.If):
                lines = [*node.leading_lines, *(x for x in node.orelse.leading_lines if x.comment)]
                return self._if(node.orelse.with_changes(leading_lines=lines), node.orelse, out)
            out.drop(node)
            return False
        test, body, orelse = self._test(node.test), self.suite(node.body), self._orelse(node.orelse)
        out.put(node, joined(node, test, body, orelse, self.source))
        return False

    def _orelse(self, node: cst.If | cst.Else | None) -> cst.If | cst.Else | None:
        if node is None:
            return None
        if isinstance(node, cst.Else):
            body = self.suite(node.body)
            return None if body is None else node if body is node.body else node.with_changes(body=body)
        truth = self._truth(node.test)
        if truth is not None:
            self._say(node, f"`{code(node.test)}` is {truth}: its branch "
                            f"{'stays, without the test' if truth else 'goes'}")
        if truth is True:
            body = self.suite(node.body)
            return None if body is None else cst.Else(body, leading_lines=node.leading_lines)
        if truth is False:
            return self._orelse(node.orelse)
        test, body, orelse = self._test(node.test), self.suite(node.body), self._orelse(node.orelse)
        new = joined(node, test, body, orelse, self.source)
        if isinstance(new, cst.If) or new is None:
            return new
        return cst.Else(cst.IndentedBlock([new]), leading_lines=node.leading_lines)

    def _splice(self, around: cst.If | cst.For, body: cst.BaseSuite, more: Sequence[cst.EmptyLine],
                out: Lines) -> bool:
        """The statements of a branch in place of the statement that held it."""
        lines = self._block(as_statements(body))
        first = True
        for statement in lines.body:
            if first:
                above = merged([*around.leading_lines, *(x for x in more if x.comment), *_beside(body)],
                               getattr(statement, "leading_lines", ()))
                statement = statement.with_changes(leading_lines=above)
            out.add(statement)
            first = False
        if first:
            out.drop(around)
        out.carry(lines.carried_comments())
        if isinstance(body, cst.IndentedBlock):
            out.carry([x for x in body.footer if x.comment])
        return not first and _ends(out.body[-1])

    def _test(self, node: cst.BaseExpression) -> cst.BaseExpression:
        return _bare(node, self.expression(node, test=True))

    def _truth(self, test: cst.BaseExpression, truth: bool = True) -> bool | None:
        """None where it is not known, or known without the values that were given: such code was there before."""
        if not self._concerned(test):
            return None
        value = self.known.value(test, test=truth)
        return None if value is UNKNOWN or value is PRESENT else bool(value)

    # Loops

    def _for(self, node: cst.For, out: Lines) -> bool:
        plain = node.orelse is None and isinstance(node.target, cst.Name) and self._concerned(node.iter)
        rounds = self._rounds(node) if plain else None
        if rounds is not None and len(rounds) == 0:
            self._say(node, f"`{code(node.iter)}` has no round: the loop goes")
            out.drop(node)
            return False
        if rounds is not None and len(rounds) == 1 and not _exits(node.body):
            name, index = cst.ensure_type(node.target, cst.Name).value, rounds[0]
            if not any(n == name for n, _, _ in bindings(node.body)):
                said = f"`{code(node.iter)}` has one round: its body stays, with {name} = {index}"
                if self._may_write(node, name):
                    self._say(node, said)
                    with self._knowing(name, index):
                        return self._splice(node, node.body, (), out)
                if called(self.source, _func(node.iter)) != STATIC:
                    self._say(node, said)
                    first = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(node.target)], literal(index))],
                                                    leading_lines=node.leading_lines)
                    out.add(first)
                    return self._splice(node.with_changes(leading_lines=()), node.body, (), out)
        body = self.suite(node.body)
        if body is None and node.orelse is None and pure(self.source, node.iter):
            out.drop(node)
            return False
        out.add(_changed(node, {"iter": self.expression(node.iter), "body": body or _nothing()}))
        return False

    def _rounds(self, node: cst.For) -> range | None:
        call = node.iter
        if not isinstance(call, cst.Call) or called(self.source, call.func) not in LOOPS:
            return None
        bounds = [self.known.value(a.value) for a in call.args if a.keyword is None and not a.star]
        named = [a.keyword.value for a in call.args if a.keyword is not None]
        if not 1 <= len(bounds) <= 3 or any(type(b) is not int for b in bounds) or {"end", "step"} & set(named):
            return None
        if len(bounds) == 3 and bounds[2] == 0:
            return None
        return range(*bounds)

    def _may_write(self, loop: cst.For, name: str) -> bool:
        """Whether the index may be written as a number: nothing reads it later, and no reading needs a value that
        lives on the device, as the index of a plain `range` does."""
        if _read_outside(self.root, loop, name) or self._methods(loop.body, name):
            return False
        if called(self.source, _func(loop.iter)) == STATIC:
            return True
        return all(self._any_integer_does(parent, use) for parent, use in _uses(loop.body, name))

    def _any_integer_does(self, parent: cst.CSTNode, use: cst.CSTNode) -> bool:
        if isinstance(parent, cst.BinaryOperation):
            return self.types.takes_any_integer(parent.right if parent.left is use else parent.left)
        return isinstance(parent, (cst.Comparison, cst.ComparisonTarget, cst.Element, cst.Index))

    def _methods(self, body: cst.CSTNode, name: str) -> bool:
        return any(isinstance(a.value, cst.Name) and a.value.value == name for a in find(body, cst.Attribute))

    @contextlib.contextmanager
    def _knowing(self, name: str, value: Literal) -> Iterator[None]:
        before = self.known
        self.known = replace(before, text={**before.text, name: value},
                             held={k: v for k, v in before.held.items() if k != name})
        yield
        self.known = before

    # Simple statements

    def _smalls(self, smalls: Sequence[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement] | None:
        """None where nothing changes."""
        out = [new for small in smalls if (new := self._small(small)) is not None]
        if len(out) == len(smalls) and all(a is b for a, b in zip(out, smalls, strict=True)):
            return None
        if out and len(out) < len(smalls):
            out[-1] = out[-1].with_changes(semicolon=smalls[-1].semicolon if smalls[-1] is out[-1]
                                           else cst.MaybeSentinel.DEFAULT)
        return out

    def _small(self, small: cst.BaseSmallStatement) -> cst.BaseSmallStatement | None:
        if code(small) in self.keep:
            return small
        condition = self._asserted(small)
        if condition is not None:
            truth = self._truth(condition)
            if truth is False:
                raise MigrateError(f"`{code(small).strip()}` does not hold for the values that --set gives")
            if truth is True:
                self._say(small, "an assertion that holds for the given values goes")
                return None
        if isinstance(small, (cst.Assign, cst.AnnAssign, cst.AugAssign)):
            return self._assignment(small)
        if isinstance(small, (cst.Expr, cst.Return, cst.Assert)):
            return self._map(small)
        return small

    def _asserted(self, small: cst.BaseSmallStatement) -> cst.BaseExpression | None:
        if isinstance(small, cst.Assert):
            return small.test
        if (isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and small.value.args
                and called(self.source, small.value.func) == "triton.language.static_assert"):
            return small.value.args[0].value
        return None

    def _assignment(self, node: cst.Assign | cst.AnnAssign | cst.AugAssign) -> cst.BaseSmallStatement | None:
        if node.value is None:
            return node
        names = targets(node)
        if self.dead and names and set(names) & self.dead:
            if set(names) <= self.dead and pure(self.source, node.value):
                self._say(node, "what only the code that has gone read goes too")
                return None
            return shrunk(node, self.dead, self.source) if isinstance(node, cst.Assign) else node
        return _changed(node, {"value": _bare(node.value, self.expression(node.value))})

    # Expressions

    def expression(self, node: Any, *, test: bool = False, device: bool = True) -> Any:
        """The expression with known names as numbers. `device` says that a number may stand for what the compiler
        keeps in a register."""
        if isinstance(node, (cst.Integer, cst.Float, cst.SimpleString, *LEAVES)):
            return node
        if self._mentions(node) and (device or not _on_device(self.source, node)):
            value = self.known.only_text().value(node, test=test)
            if value is not UNKNOWN and value is not PRESENT and (value is not None or isinstance(node, cst.Name)):
                self.replaced += [n for n in find(node, cst.Name) if n.value in self.known.text]
                return literal(value)
        if isinstance(node, cst.IfExp):
            return self._choice(node)
        if isinstance(node, cst.BooleanOperation):
            return self._boolean(node, test)
        if isinstance(node, cst.BinaryOperation):
            return self._binary(node)
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            return _changed(node, {"expression": self.expression(node.expression, test=True)})
        if isinstance(node, (cst.Attribute, cst.Subscript)):
            return self._member(node)
        return self._map(node)

    def _mentions(self, node: cst.CSTNode) -> bool:
        return any(n.value in self.known.text for n in find(node, cst.Name))

    def _concerned(self, node: cst.CSTNode) -> bool:
        known = self.known
        return any(n.value in known.text or n.value in known.held or n.value in known.present
                   for n in find(node, cst.Name))

    def _choice(self, node: cst.IfExp) -> cst.BaseExpression:
        truth = self._truth(node.test)
        if truth is None:
            return _changed(node, {"test": self.expression(node.test, test=True),
                                   "body": self.expression(node.body), "orelse": self.expression(node.orelse)})
        self._say(node, f"`{code(node.test)}` is {truth}")
        return in_place_of(node, self.expression(node.body if truth else node.orelse))

    def _boolean(self, node: cst.BooleanOperation, test: bool) -> cst.BaseExpression:
        ends = isinstance(node.operator, cst.Or)
        left, right = self._truth(node.left, test), self._truth(node.right, test)
        if left is (not ends) and (test or _boolean_value(node.right)):
            self._say(node, f"`{code(node.left)}` is {left}")
            return in_place_of(node, self.expression(node.right, test=test))
        if right is (not ends) and (test or _boolean_value(node.left)):
            self._say(node, f"`{code(node.right)}` is {right}")
            return in_place_of(node, self.expression(node.left, test=test))
        return _changed(node, {"left": self.expression(node.left, test=test),
                               "right": self.expression(node.right, test=test)})

    def _binary(self, node: cst.BinaryOperation) -> cst.BaseExpression:
        left = self.expression(node.left, device=self.types.takes_any_integer(node.right))
        right = self.expression(node.right, device=self.types.takes_any_integer(node.left))
        if left is node.left and right is node.right:
            return node
        kept = self._neutral(node, left, right)
        if kept is not None:
            return in_place_of(node, kept)
        if isinstance(node.operator, cst.Power) and isinstance(left, cst.UnaryOperation) and not left.lpar:
            left = parenthesised(left)
        return _changed(node, {"left": left, "right": right})

    def _neutral(self, node: cst.BinaryOperation, left: cst.BaseExpression,
                 right: cst.BaseExpression) -> cst.BaseExpression | None:
        """`0 + x`, `x - 0`, `x * 1`, `x // 1` of integers are `x`; `0 * x` is 0 for a scalar."""
        how = type(node.operator)
        a, b = _number(left), _number(right)
        if (b == {cst.Add: 0, cst.Subtract: 0, cst.Multiply: 1, cst.FloorDivide: 1}.get(how, UNKNOWN)
                and (self.types.integer(node.left) or (b == 0 and self.types.pointer(node.left)))):
            return left
        if (a == {cst.Add: 0, cst.Multiply: 1}.get(how, UNKNOWN)
                and (self.types.integer(node.right) or (a == 0 and self.types.pointer(node.right)))):
            return right
        if how is cst.Multiply and 0 in (a, b):
            other = node.right if a == 0 else node.left
            if self.types.integer(other) and self.types.scalar(other) and pure(self.source, other):
                return cst.Integer("0")
        return None

    def _member(self, node: cst.Attribute | cst.Subscript) -> cst.BaseExpression:
        """A number has no methods and no items: `K.to(...)` and `(K // 2).to(...)` keep their names."""
        base: cst.BaseExpression = node.value
        new: cst.BaseExpression = base
        if isinstance(base, cst.Name) and base.value in self.known.text:
            if isinstance(node, cst.Attribute) and node.attr.value == "value":
                self.replaced.append(base)
                return literal(self.known.text[base.value])
        else:
            new = self.expression(base)
            if _is_literal(new) and new is not base:
                new = base
            elif new is not base and not is_atom(new) and not isinstance(new, (cst.Tuple, cst.List)):
                new = parenthesised(new)
        changes: dict[str, Any] = {"value": new}
        if isinstance(node, cst.Subscript):
            changes["slice"] = [self._map(s) for s in node.slice]
        return _changed(node, changes)

    def _map(self, node: Node) -> Node:
        """The node with the expressions below it put right."""
        changes: dict[str, Any] = {}
        outside = isinstance(node, cst.Call) and not self._takes_numbers(node)
        for field in (f.name for f in fields(node)):
            value = getattr(node, field)
            if isinstance(value, cst.BaseExpression) and not self._names(node, field):
                changes[field] = self.expression(value, device=not outside)
            elif field not in ("lpar", "rpar") and isinstance(value, (list, tuple)):
                changes[field] = [self._argument(v, outside) if isinstance(v, cst.Arg) else self._map(v)
                                  for v in value]
            elif isinstance(value, (cst.BaseSlice, cst.ComparisonTarget, cst.Arg)):
                changes[field] = self._map(value)
        return _changed(node, changes)

    def _argument(self, arg: cst.Arg, outside: bool) -> cst.Arg:
        return _changed(arg, {"value": _bare(arg.value, self.expression(arg.value, device=not outside))})

    def _takes_numbers(self, call: cst.Call) -> bool:
        """A function that asks no more of an argument than its value: not a helper, which may call `.to` of it."""
        name = called(self.source, call.func)
        return name.startswith("triton.") or name in LOOPS or bool(folded_call(self.source, call))

    @staticmethod
    def _names(node: cst.CSTNode, field: str) -> bool:
        return field in ("keyword", "attr", "target", "annotation", "func") and not (
            field == "func" and isinstance(getattr(node, field), cst.Attribute))

    def _say(self, node: cst.CSTNode, text: str) -> None:
        self.events.append(Event(node, text))


def joined(node: cst.If, test: cst.BaseExpression, body: cst.BaseSuite | None, orelse: cst.If | cst.Else | None,
           source: Any) -> cst.If | None:
    """An `if` of what is left of its parts; None where that is nothing."""
    if body is None and orelse is None and pure(source, test):
        return None
    if body is None and orelse is not None:
        rest = orelse.body if isinstance(orelse, cst.Else) else cst.IndentedBlock([orelse])
        return node.with_changes(test=inverse(test), body=rest, orelse=None,
                                 whitespace_before_test=cst.SimpleWhitespace(" "))
    return _changed(node, {"test": test, "body": body or _nothing(), "orelse": orelse})


def inverse(test: cst.BaseExpression) -> cst.BaseExpression:
    """`not test`, written as people do."""
    opposite: dict[type, cst.BaseCompOp] = {
        cst.Is: cst.IsNot(), cst.IsNot: cst.Is(), cst.Equal: cst.NotEqual(), cst.NotEqual: cst.Equal()}
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        how = opposite.get(type(test.comparisons[0].operator))
        if how is not None:
            return test.with_changes(comparisons=[test.comparisons[0].with_changes(operator=how)])
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    return cst.UnaryOperation(cst.Not(), test if is_atom(test) else parenthesised(test))


def literal(value: Literal) -> cst.BaseExpression:
    return cst.parse_expression(repr(value) if not isinstance(value, str) else '"' + value + '"'
                                if value.isprintable() and not set(value) & set('"\\') else repr(value))


def in_place_of(node: cst.BaseExpression, kept: cst.BaseExpression) -> cst.BaseExpression:
    """A part of an expression instead of all of it, in its parentheses if it needs any."""
    if not node.lpar or kept.lpar or is_atom(kept):
        return kept
    return kept.with_changes(lpar=node.lpar, rpar=node.rpar)


def targets(node: cst.Assign | cst.AnnAssign | cst.AugAssign) -> list[str]:
    """The names that an assignment binds; nothing where it binds anything else."""
    places = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
    names: list[str] = []
    for place in places:
        parts = [e.value for e in place.elements] if isinstance(place, (cst.Tuple, cst.List)) else [place]
        for part in parts:
            if not isinstance(part, cst.Name):
                return []
            names.append(part.value)
    return names


def shrunk(node: cst.Assign, dead: frozenset[str], source: Any) -> cst.Assign:
    """`a, b = x, y` without the part that nothing reads."""
    place, value = node.targets[0].target, node.value
    if len(node.targets) != 1 or not isinstance(place, cst.Tuple) or not isinstance(value, cst.Tuple) \
            or len(place.elements) != len(value.elements) or any(
                not isinstance(e, cst.Element) for e in (*place.elements, *value.elements)):
        return node
    pairs = [(p, v) for p, v in zip(place.elements, value.elements, strict=True)
             if cst.ensure_type(p.value, cst.Name).value not in dead or not pure(source, v.value)]
    if len(pairs) == len(place.elements):
        return node
    if len(pairs) == 1:
        target = node.targets[0].with_changes(target=pairs[0][0].value)
        return node.with_changes(targets=[target], value=pairs[0][1].value)
    commas = [e.comma for e in value.elements]
    last = cst.MaybeSentinel.DEFAULT
    left = [p.with_changes(comma=place.elements[i].comma if i < len(pairs) - 1 else last)
            for i, (p, _) in enumerate(pairs)]
    right = [v.with_changes(comma=commas[i] if i < len(pairs) - 1 else last) for i, (_, v) in enumerate(pairs)]
    return node.with_changes(targets=[node.targets[0].with_changes(target=place.with_changes(elements=left))],
                             value=value.with_changes(elements=right))


def _changed(node: Node, changes: dict[str, Any]) -> Node:
    """The same node where no field is new. A part that has lost its parentheses gets them back if they were needed
    to tell it from the word before it."""
    new = {}
    for field, value in changes.items():
        old = getattr(node, field)
        if isinstance(value, list):
            if len(value) != len(old) or any(a is not b for a, b in zip(value, old, strict=True)):
                new[field] = value
        elif value is not old:
            new[field] = value
    if not new:
        return node
    try:
        return node.with_changes(**new)
    except cst.CSTValidationError:
        return node.with_changes(**{k: parenthesised(v) if isinstance(v, cst.BaseExpression) and not v.lpar else v
                                    for k, v in new.items()})


def _bare(old: cst.BaseExpression, new: cst.BaseExpression) -> cst.BaseExpression:
    """Without the parentheses that only what is gone needed."""
    if new is old or len(new.lpar) != 1 or isinstance(new, (cst.Tuple, cst.GeneratorExp, cst.NamedExpr, cst.Yield)) \
            or type(new) is type(old) or "\n" in code(new):
        return new
    return new.with_changes(lpar=[], rpar=[])


def _nothing() -> cst.IndentedBlock:
    return cst.IndentedBlock([cst.SimpleStatementLine([cst.Pass()])])


def _beside(body: cst.BaseSuite) -> list[cst.EmptyLine]:
    """The comment after the colon, as a line of its own."""
    comment = body.header.comment if isinstance(body, cst.IndentedBlock) else None
    return [cst.EmptyLine(comment=comment)] if comment else []


def _ends(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], ENDS)


def _exits(body: cst.CSTNode) -> bool:
    """Whether a break or continue of this loop, not of one inside it, stands in its body."""
    stack = [body]
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.Break, cst.Continue)):
            return True
        if not isinstance(node, (cst.For, cst.While)):
            stack += children(node)
    return False


def _func(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


def _uses(body: cst.CSTNode, name: str) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    stack = [body]
    while stack:
        node = stack.pop()
        for child in children(node):
            if isinstance(child, cst.Name) and child.value == name:
                if not (isinstance(node, cst.Arg) and node.keyword is child) and not (
                        isinstance(node, cst.Attribute) and node.attr is child):
                    yield node, child
            else:
                stack.append(child)


def _read_outside(root: cst.CSTNode, loop: cst.For, name: str) -> bool:
    """Whether a name is read anywhere but in this loop and others that bind it."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node is loop:
            continue
        if isinstance(node, cst.Name) and node.value == name:
            return True
        if isinstance(node, cst.For) and isinstance(node.target, cst.Name) and node.target.value == name:
            stack.append(node.iter)
        elif isinstance(node, (cst.Arg, cst.Attribute)):
            stack.append(node.value)
        else:
            stack += children(node)
    return False


def _on_device(source: Any, node: cst.CSTNode) -> bool:
    return any(folded_call(source, c) for c in find(node, cst.Call))


def _boolean_value(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.BooleanOperation):
        return _boolean_value(node.left) and _boolean_value(node.right)
    return isinstance(node, cst.Comparison) or (isinstance(node, cst.UnaryOperation)
                                                and isinstance(node.operator, cst.Not))


def _number(node: cst.BaseExpression) -> Any:
    """An integer that is written; `False * x` is `0 * x`."""
    if isinstance(node, cst.Name):
        return {"True": 1, "False": 0}.get(node.value)
    return node.evaluated_value if isinstance(node, cst.Integer) else None


def _is_literal(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.Float, cst.SimpleString)) or (
        isinstance(node, cst.UnaryOperation) and isinstance(node.expression, (cst.Integer, cst.Float))) or (
        isinstance(node, cst.Name) and node.value in ("True", "False", "None"))
