"""`continue` and `break` as conditions. Part of ASC501 plain-control."""
from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.source import Source
from migrate.tree import find

LEAVES = (cst.Break, cst.Continue)


def without_exit(source: Source, loop: cst.For | cst.While) -> cst.For | cst.While | None:
    """The loop with its one `if test: ... break` or `... continue` made a condition on what follows it.

    None where the exit has another shape: deeper inside, several, or with an else.
    """
    exits = [e for e in find(loop.body, *LEAVES) if _loop_of(source, e) is loop]
    if len(exits) != 1 or loop.orelse is not None or not isinstance(loop.body, cst.IndentedBlock):
        return None
    body = list(loop.body.body)
    where = next((i for i, s in enumerate(body) if _leaves_last(s, exits[0])), None)
    if where is None:
        return None
    before, test, after = body[:where], cst.ensure_type(body[where], cst.If), body[where + 1:]
    inner = cst.ensure_type(test.body, cst.IndentedBlock)
    first = inner.body[:-1]
    if isinstance(exits[0], cst.Continue):
        return _with(loop, [*before, *_choose(test, test.test, first, after)])
    if not isinstance(loop, cst.For) or not _is_predicate(test.test) or _uses(source, loop, "stop"):
        return None
    if _read_after(source, loop):
        return None                             # the index stays where the loop was left, and then it would not
    decide = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name("stop"))], test.test)],
                                     leading_lines=test.leading_lines)
    rest = _choose(test.with_changes(leading_lines=[]), cst.Name("stop"), first, after)
    return _with(loop, [cst.If(_negated(cst.Name("stop")), cst.IndentedBlock([*before, decide, *rest]))])


def _loop_of(source: Source, node: cst.CSTNode) -> cst.CSTNode | None:
    return next((a for a in source.tree.ancestors(node) if isinstance(a, (cst.For, cst.While))), None)


def _leaves_last(statement: cst.CSTNode, leave: cst.CSTNode) -> bool:
    """`if test:` without an else, whose last statement is this exit."""
    if not isinstance(statement, cst.If) or statement.orelse or not isinstance(statement.body, cst.IndentedBlock):
        return False
    last = statement.body.body[-1]
    return isinstance(last, cst.SimpleStatementLine) and list(last.body) == [leave]


def _choose(old: cst.If, test: cst.BaseExpression, first: Sequence[cst.BaseStatement],
            after: Sequence[cst.BaseStatement]) -> list[cst.If]:
    if first:
        orelse = cst.Else(cst.IndentedBlock(list(after))) if after else None
        return [old.with_changes(test=test, body=cst.IndentedBlock(list(first)), orelse=orelse)]
    if after:
        return [old.with_changes(test=_negated(test), body=cst.IndentedBlock(list(after)))]
    return []


def _negated(test: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    if not test.lpar and not isinstance(test, (cst.Name, cst.Call, cst.Attribute)):
        test = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), test)


def _is_predicate(test: cst.BaseExpression) -> bool:
    """Surely one bit, as the flag that it is kept in."""
    if isinstance(test, cst.BooleanOperation):
        return _is_predicate(test.left) and _is_predicate(test.right)
    return isinstance(test, cst.Comparison)


def _read_after(source: Source, loop: cst.For) -> bool:
    """Whether the function reads the loop's index behind the loop."""
    function = source.tree.enclosing(loop, cst.FunctionDef)
    if function is None:
        return True
    index = {n.value for n in find(loop.target, cst.Name)}
    inside = set(find(loop, cst.Name))
    line = source.tree.span(loop)[0]
    return any(n.value in index and n not in inside and source.tree.span(n)[0] > line
               for n in find(function.body, cst.Name))


def _uses(source: Source, loop: cst.CSTNode, name: str) -> bool:
    function = source.tree.enclosing(loop, cst.FunctionDef)
    return function is None or any(n.value == name for n in find(function, cst.Name))


def _with(loop: cst.For | cst.While, body: Sequence[cst.BaseStatement]) -> cst.For | cst.While:
    return loop.with_changes(body=loop.body.with_changes(body=body or [cst.SimpleStatementLine([cst.Pass()])]))
