"""Reading host code for the shape analysis: whose shape, which axis, what is tested."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from migrate.edit import code


def body_of(suite: cst.BaseSuite) -> Sequence[cst.CSTNode]:
    if isinstance(suite, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(suite.body)]
    return suite.body


def blocks_of(node: cst.For | cst.While | cst.Try) -> Iterator[Sequence[cst.CSTNode]]:
    yield body_of(node.body)
    if isinstance(node, cst.Try):
        for handler in node.handlers:
            yield body_of(handler.body)
        if node.finalbody is not None:
            yield body_of(node.finalbody.body)
    if node.orelse is not None:
        yield body_of(node.orelse.body)


def int_of(node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = int_of(node.expression)
        return -inner if inner is not None else None
    return None


def shape_owner(node: cst.BaseExpression) -> str | None:
    """`x` in `x.shape` and `x.size()`."""
    if isinstance(node, cst.Call) and not node.args and isinstance(node.func, cst.Attribute):
        if node.func.attr.value == "size" and isinstance(node.func.value, cst.Name):
            return node.func.value.value
    elif isinstance(node, cst.Attribute) and node.attr.value == "shape" and isinstance(node.value, cst.Name):
        return node.value.value
    return None


def axis_of(node: cst.BaseExpression) -> tuple[str, int] | None:
    """(`x`, 1) for `x.shape[1]` and `x.size(1)`."""
    if isinstance(node, cst.Subscript):
        owner, index = shape_owner(node.value), literal_index(node)
        return (owner, index) if owner is not None and index is not None else None
    if (isinstance(node, cst.Call) and len(node.args) == 1 and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "size" and isinstance(node.func.value, cst.Name)):
        index = int_of(node.args[0].value)
        return (node.func.value.value, index) if index is not None else None
    return None


def rank_owner(node: cst.BaseExpression) -> str | None:
    """`x` in `x.dim()`, `x.ndim` and `len(x.shape)`."""
    if isinstance(node, cst.Attribute) and node.attr.value == "ndim" and isinstance(node.value, cst.Name):
        return node.value.value
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "dim":
            return node.func.value.value if isinstance(node.func.value, cst.Name) else None
        if isinstance(node.func, cst.Name) and node.func.value == "len" and len(node.args) == 1:
            return shape_owner(node.args[0].value)
    return None


def literal_index(node: cst.Subscript) -> int | None:
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return int_of(node.slice[0].slice.value)
    return None


def tested_for_none(node: cst.BaseExpression, *, is_none: bool) -> str | None:
    """The name in `x is None` (or, with is_none=False, in `x is not None`)."""
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1 and isinstance(node.left, cst.Name):
        part = node.comparisons[0]
        if code(part.comparator) == "None" and isinstance(part.operator, cst.Is if is_none else cst.IsNot):
            return node.left.value
    return None


def einops_groups(side: str) -> list[list[str]] | None:
    """Axis groups of one side of an einops pattern; None for an ellipsis or anything unusual."""
    if "..." in side or "…" in side:
        return None
    groups = []
    for token in re.findall(r"\(([^()]*)\)|(\w+)", side):
        groups.append(token[0].split() if token[0] or not token[1] else [token[1]])
    return groups
