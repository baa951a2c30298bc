"""Whether the value that a name has behind a statement may still be read."""
from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.edit import code
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source


def read_after(source: Source, statement: cst.CSTNode, name: str, holds: Container[str] = ()) -> bool:
    """Whether some way on from a statement reads the name before it gets another value.

    `holds` are tests, as text, that are known to be true: an `if` on one of them is entered.
    """
    node = statement
    while True:
        block = source.tree.parent(node)
        if isinstance(block, cst.IndentedBlock):
            at = next(i for i, s in enumerate(block.body) if s is node)
            answer = reads_first(block.body[at + 1:], name, holds)
            owner = source.tree.parent(block)
            if answer is not None:
                return answer
            if isinstance(owner, cst.While) and _reads(owner.test, name):
                return True
            if isinstance(owner, (cst.For, cst.While)) and reads_first(block.body, name, holds):
                return True                     # in the next round
        if block is None or isinstance(block, cst.FunctionDef):
            return False
        node = block


def reads_first(statements: Sequence[cst.CSTNode], name: str, holds: Container[str] = ()) -> bool | None:
    """Whether statements may read a name (True), or surely give it another value first (False); else None."""
    for statement in statements:
        answer = _one(statement, name, holds)
        if answer is not None:
            return answer
    return None


def _one(node: cst.CSTNode, name: str, holds: Container[str]) -> bool | None:
    if isinstance(node, cst.SimpleStatementLine):
        return reads_first(node.body, name)
    if isinstance(node, cst.If):
        if _reads(node.test, name):
            return True
        then = reads_first(node.body.body, name, holds)
        if code(node.test) in holds:
            return then
        orelse = None
        if node.orelse is not None:
            orelse = _one(node.orelse, name, holds) if isinstance(node.orelse, cst.If) else reads_first(
                node.orelse.body.body, name, holds)
        return then if then == orelse else True if then or orelse else None
    if isinstance(node, (cst.For, cst.While)):
        if _reads(node.iter if isinstance(node, cst.For) else node.test, name):
            return True
        return True if reads_first(node.body.body, name, holds) else None
    if isinstance(node, (cst.Assign, cst.AnnAssign)):
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        if node.value is None:
            return None
        if _reads(node.value, name) or any(_reads(t, name) for t in targets if not _binds(t, name)):
            return True
        return False if any(_binds(t, name) for t in targets) else None
    if _reads(node, name):
        return True
    return False if isinstance(node, (cst.Return, cst.Raise)) else None


def _reads(node: cst.CSTNode, name: str) -> bool:
    return any(n.value == name for n in find(node, cst.Name))


def _binds(target: cst.BaseExpression, name: str) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_binds(element.value, name) for element in target.elements)
    return isinstance(target, cst.Name) and target.value == name
