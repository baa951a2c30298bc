"""Small edits that several rules make, done so that the layout of what stays survives."""
from __future__ import annotations

from collections.abc import Container, Sequence

import libcst as cst


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
    """The call without these arguments. The new last argument takes over the old one's comma and line break."""
    kept = [a for a in call.args if a not in drop]
    if kept and call.args[-1] in drop:
        last = call.args[-1]
        kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    if not kept:
        return call.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
    return call.with_changes(args=kept)


def name_or(value: str) -> cst.BaseExpression:
    """A plain name stays one; anything longer gets parentheses if it stands inside another expression."""
    node = cst.parse_expression(value)
    return node if is_atom(node) else parenthesised(node)


def is_atom(node: cst.BaseExpression) -> bool:
    """Binds tighter than any operator: needs no parentheses of its own."""
    return bool(node.lpar) or isinstance(
        node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float, cst.List, cst.Dict))


def parenthesised(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.with_changes(lpar=[cst.LeftParen(), *node.lpar], rpar=[*node.rpar, cst.RightParen()])


def comments(lines: Sequence[cst.EmptyLine]) -> list[str]:
    return [line.comment.value for line in lines if line.comment]
