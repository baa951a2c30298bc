"""The host statements that take the place of an autotune hook: which tensor a launch passes, and zeroing it."""
from __future__ import annotations

import libcst as cst

from migrate import edit
from migrate.analysis.launches import Launch
from migrate.edit import code
from migrate.source import Source
from migrate.tree import find

EMPTY = frozenset({"torch.empty", "torch.empty_like", "torch.empty_strided"})
ZEROS = frozenset({"torch.zeros", "torch.zeros_like"})
FILLED = frozenset({"torch.ones", "torch.full", "torch.ones_like", "torch.full_like", "torch.rand", "torch.randn"})
NEW = {"new_empty": "empty", "new_zeros": "zeros", "new_ones": "other", "new_full": "other"}


class CannotZero(Exception):
    """The host tensor behind a zeroed parameter cannot be named; the text says why."""


def zeroing(launch: Launch, names: tuple[str, ...]) -> list[str]:
    """The statements that zero what these parameters get at a launch. Raises CannotZero."""
    lines: list[str] = []
    for name in names:
        bound = launch.args.get(name)
        if bound is None:
            param = launch.kernel.params.get(name)
            if launch.matched and param is not None and param.default is not None and _is_none(param.default):
                continue
            raise CannotZero(f"a launch does not show what `{name}` gets")
        if bound.when is not None:
            raise CannotZero(f"`{name}` comes out of a conditional tuple at a launch")
        line = _zero(launch, bound.value)
        if line and line not in lines:
            lines.append(line)
    if lines and not _has_room(launch):
        raise CannotZero("a launch is inside another statement")
    return lines


def _zero(launch: Launch, value: cst.BaseExpression) -> str:
    if _is_none(value):
        return ""
    if isinstance(value, cst.IfExp):
        if _is_none(value.orelse) and _is_place(value.body):
            return f"if {code(value.test)}:\n    {code(value.body)}.zero_()"
        if _is_none(value.body) and _is_place(value.orelse):
            return f"if not {code(_tight(value.test))}:\n    {code(value.orelse)}.zero_()"
    if not _is_place(value):
        raise CannotZero(f"`{code(value)}` is no tensor that could be zeroed in place")
    text = code(value)
    if _is_tensor(launch, value):
        return f"{text}.zero_()"
    return f"if {text} is not None:\n    {text}.zero_()"


def _is_tensor(launch: Launch, value: cst.BaseExpression) -> bool:
    """Whether it cannot be None: freshly allocated, or the launch itself asks it for a stride."""
    if _read_anyway(launch.call, code(value)):
        return True
    kinds = _allocations(launch, value)
    return bool(kinds) and "other" not in kinds


def _allocations(launch: Launch, value: cst.BaseExpression) -> set[str]:
    """How the host function fills a local name: "empty", "zeros", "filled", "other"."""
    if not isinstance(value, cst.Name) or launch.function is None:
        return set()
    kinds = {"other" for p in find(launch.function.params, cst.Param) if p.name.value == value.value}
    for node in find(launch.function.body, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr):
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        for target in targets:
            if isinstance(target, cst.Name) and target.value == value.value:
                plain = isinstance(node, (cst.Assign, cst.AnnAssign))
                kinds.add(_kind(launch.source, node.value) if plain else "other")
            elif isinstance(target, cst.Tuple) and any(n.value == value.value for n in find(target, cst.Name)):
                kinds.add("other")
    return kinds


def resetting(launch: Launch, names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Statements for `reset_to_zero` where the host allocates without values; names that nothing is known of."""
    lines, uncertain = [], []
    for name in names:
        bound = launch.args.get(name)
        kinds = _allocations(launch, bound.value) if bound is not None else set()
        if bound is not None and kinds == {"empty"} and _has_room(launch):
            lines.append(f"{code(bound.value)}.zero_()")
        elif kinds != {"zeros"} and not (bound is not None and _is_none(bound.value)):
            uncertain.append(name)
    return lines, uncertain


def _kind(source: Source, value: cst.BaseExpression | None) -> str:
    if isinstance(value, cst.IfExp):
        kinds = {_kind(source, value.body), _kind(source, value.orelse)}
        return kinds.pop() if len(kinds) == 1 else "other"
    if not isinstance(value, cst.Call):
        return "other"
    name = source.qualified(value.func)
    if name in EMPTY:
        return "empty"
    if name in ZEROS:
        return "zeros"
    if name in FILLED:
        return "filled"
    return NEW.get(value.func.attr.value, "other") if isinstance(value.func, cst.Attribute) else "other"


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _is_place(node: cst.BaseExpression) -> bool:
    """A name, attribute or slice: naming it twice gives the same memory."""
    if isinstance(node, cst.Name):
        return True
    if isinstance(node, cst.Attribute):
        return _is_place(node.value)
    if isinstance(node, cst.Subscript):
        return _is_place(node.value) and next(find(node, cst.Call), None) is None
    return False


def _tight(node: cst.BaseExpression) -> cst.BaseExpression:
    return node if edit.is_atom(node) else edit.parenthesised(node)


def _read_anyway(call: cst.Call, name: str) -> bool:
    """Whether evaluating the arguments takes an attribute of `name`, whatever happens."""
    stack: list[cst.CSTNode] = [a.value for a in call.args]
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.IfExp, cst.BooleanOperation, cst.Lambda)):
            continue
        if isinstance(node, cst.Attribute) and code(node.value) == name:
            return True
        stack += node.children
    return False


def _has_room(launch: Launch) -> bool:
    """Whether statements can stand before the launch: it is on a line of its own block."""
    tree = launch.source.tree
    lambdas = any(isinstance(a, (cst.Lambda, cst.ListComp, cst.GeneratorExp, cst.IfExp))
                  for a in tree.ancestors(launch.call))
    home = tree.statement(launch.call)
    return isinstance(home, cst.SimpleStatementLine) and len(home.body) == 1 and not lambdas


def above(source: Source, statement: cst.CSTNode) -> set[str]:
    """Code of the statements just before this one in its block."""
    up = source.tree.parent(statement)
    body: list[cst.CSTNode] = [u.statement for u in source.tree.units]
    if isinstance(up, cst.IndentedBlock):
        body = list(up.body)
    at = body.index(statement)
    return {code(s.with_changes(leading_lines=[])).strip() for s in body[max(0, at - 6):at]
            if isinstance(s, (cst.SimpleStatementLine, cst.If))}
