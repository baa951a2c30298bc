"""Names of a kernel's body that nothing reads."""
from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.tree import children
from rules.tiles._fold import targets

ASSIGNMENTS = (cst.Assign, cst.AnnAssign, cst.AugAssign)


def reads(body: cst.CSTNode) -> dict[str, set[tuple[str, ...]]]:
    """Each name that is read, with what its readers assign: () for a reader that does more than assign names."""
    found: dict[str, set[tuple[str, ...]]] = {}
    stack: list[tuple[cst.CSTNode, tuple[str, ...]]] = [(body, ())]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, ASSIGNMENTS):
            names = tuple(targets(node))
            if node.value is not None:
                stack.append((node.value, names))
            for place in () if names else _places(node):
                stack.append((place, ()))
        elif isinstance(node, cst.Name):
            found.setdefault(node.value, set()).add(owner)
        elif isinstance(node, (cst.Arg, cst.Attribute)):
            stack.append((node.value, owner))
        elif isinstance(node, cst.For):
            stack += [(node.iter, ()), (node.body, ())]
            if node.orelse is not None:
                stack.append((node.orelse, ()))
        else:
            stack += [(child, owner) for child in children(node)]
    return found


def unread(body: cst.CSTNode) -> frozenset[str]:
    """Names that are assigned and read by nothing, or only to compute their own next value."""
    by = reads(body)
    return frozenset(name for name in assigned(body) if by.get(name, set()) <= {(name,)})


def assigned(body: cst.CSTNode) -> frozenset[str]:
    names: set[str] = set()
    stack = [body]
    while stack:
        node = stack.pop()
        if isinstance(node, ASSIGNMENTS):
            names.update(targets(node))
        elif isinstance(node, (cst.BaseStatement, cst.BaseSuite, cst.Else)):
            stack += children(node)
    return frozenset(names)


def _places(node: cst.Assign | cst.AnnAssign | cst.AugAssign) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Assign):
        yield from (t.target for t in node.targets)
    else:
        yield node.target
