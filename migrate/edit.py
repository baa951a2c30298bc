"""Small edits that several rules make, done so that the layout of what stays survives."""
from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TypeVar

import libcst as cst

from migrate.tree import Edit


def expression(code: str) -> cst.BaseExpression:
    return cst.parse_expression(code)


def statement(code: str, like: cst.Module | None = None) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    """One statement from its text, in the indentation and line endings of a module."""
    config = like.config_for_parsing if like else cst.PartialParserConfig()
    return cst.parse_statement(code, config)


def code(node: cst.CSTNode) -> str:
    """The text of a node on its own."""
    return cst.Module([]).code_for_node(node)


def without_args(call: cst.Call, drop: Container[cst.Arg]) -> cst.Call:
    """The call without these arguments."""
    args = edited_items(call.args, drop)
    if not args:
        return call.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
    return call.with_changes(args=args)


Item = TypeVar("Item", cst.Arg, cst.Param)


def edited_items(items: Sequence[Item], drop: Container[Item], insert: Mapping[Item, Sequence[Item]] | None = None,
                 ) -> list[Item]:
    """Arguments or parameters without some of them, and with new ones before others.

    Comments stand in the white space after a comma. The comment above a dropped group goes with the group, the one
    above the first item that is kept after it stays there; a comment at the end of a kept line stays.
    """
    out: list[Item] = []
    for item in items:
        new = list((insert or {}).get(item, ()))
        if new:
            out += _on_a_line_of_their_own(new, item, out, item in drop)
        if item not in drop:
            out.append(item)
        elif out:
            out[-1] = _take_over(out[-1], item)
    return out


def _after(item: cst.Arg | cst.Param) -> str:
    return "whitespace_after_arg" if isinstance(item, cst.Arg) else "whitespace_after_param"


def _take_over(kept: Item, dropped: Item) -> Item:
    """`kept` becomes the neighbour of what came after `dropped`."""
    field = _after(kept)
    if not isinstance(dropped.comma, cst.Comma) or not isinstance(kept.comma, cst.Comma):
        return kept.with_changes(comma=dropped.comma, **{field: getattr(dropped, field)})
    before, after = kept.comma.whitespace_after, dropped.comma.whitespace_after
    if isinstance(after, cst.ParenthesizedWhitespace):
        if isinstance(before, cst.ParenthesizedWhitespace):
            first = before.first_line
        else:
            first = after.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
        before = after.with_changes(first_line=first)
    return kept.with_changes(comma=kept.comma.with_changes(whitespace_after=before))


def _on_a_line_of_their_own(new: list[Item], at: Item, before: list[Item], replaces: bool) -> list[Item]:
    """New items, separated like words; the last one is followed as the item it comes before is preceded."""
    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = space
    comma = before[-1].comma if before else None
    if isinstance(comma, cst.Comma) and isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
        line = comma.whitespace_after
        if replaces:                            # the comments above are about what is dropped
            bare = comma.with_changes(whitespace_after=line.with_changes(empty_lines=[]))
            before[-1] = before[-1].with_changes(comma=bare)
        else:
            plain = cst.TrailingWhitespace(newline=line.first_line.newline)
            last = cst.Comma(whitespace_after=line.with_changes(first_line=plain, empty_lines=[]))
    out = [item.with_changes(comma=space) for item in new]
    out[-1] = out[-1].with_changes(comma=last)
    return out


def parameters(function: cst.FunctionDef) -> tuple[cst.Param, ...]:
    """The named parameters in order: positional-only, plain, keyword-only."""
    params = function.params
    return (*params.posonly_params, *params.params, *params.kwonly_params)


def is_atom(node: cst.BaseExpression) -> bool:
    """Binds tighter than any operator: needs no parentheses of its own."""
    return bool(node.lpar) or isinstance(
        node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float, cst.List, cst.Dict))


def terms(node: cst.BaseExpression) -> list[tuple[str, cst.BaseExpression]]:
    """`a + b - c` -> +a, +b, -c."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Subtract)):
        sign = "+" if isinstance(node.operator, cst.Add) else "-"
        return [*terms(node.left), (sign, node.right)]
    return [("+", node)]


def parenthesised(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.with_changes(lpar=[cst.LeftParen(), *node.lpar], rpar=[*node.rpar, cst.RightParen()])


def comments(lines: Sequence[cst.EmptyLine]) -> list[str]:
    return [line.comment.value for line in lines if line.comment]


def removed(statement: cst.CSTNode) -> Edit:
    """What to put in place of a statement that goes: nothing, or the comments above it that a blank line sets apart.

    A comment that touches the statement is about it, and goes with it.
    """
    above = detached(getattr(statement, "leading_lines", ()))
    return cst.FlattenSentinel(above) if above else cst.RemoveFromParent()


def detached(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The lines above a statement down to the last comment that a blank line separates from it."""
    touching = len(lines)
    while touching and lines[touching - 1].comment:
        touching -= 1
    above = list(lines[:touching])
    while above and not above[-1].comment:
        above.pop()
    return above


def cast(node: cst.BaseExpression, dtype: str, *, language: str, tensor: bool) -> cst.BaseExpression:
    """`node.to(dtype)`; `tl.cast(node, dtype)` where the value may be a number, which has no `.to`."""
    to = cst.parse_expression(dtype)
    if not tensor:
        return cst.Call(cst.parse_expression(f"{language}.cast"), [cst.Arg(node), cst.Arg(to)])
    base = node if is_atom(node) else parenthesised(node)
    return cst.Call(cst.Attribute(base, cst.Name("to")), [cst.Arg(to)])
