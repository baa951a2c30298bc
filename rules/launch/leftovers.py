"""Functions, constants and imports of a file that nothing uses once some of its code is gone."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from migrate import edit
from migrate.source import Source
from migrate.tree import Edit, find

Remove = Callable[[cst.CSTNode, Edit, str], bool]


def leftovers(source: Source, gone: Sequence[cst.CSTNode], stay: set[str], remove: Remove) -> None:
    """Calls `remove(node, edit, message)` for each definition that only the code in `gone` used.

    Names in `stay` are used by what took its place. `remove` says whether it was allowed to.
    """
    dead = {id(n) for node in gone for n in find(node, cst.Name)}
    todo = {n.value for node in gone for n in find(node, cst.Name)} - stay
    uses: dict[str, list[int]] = {}
    for node in source.tree.all(cst.Name):
        uses.setdefault(node.value, []).append(id(node))
    exported, defined = _exported(source), _top_level(source)
    imports: dict[cst.ImportFrom, list[cst.ImportAlias]] = {}
    while todo:
        name = min(todo)
        todo.discard(name)
        owner = defined.get(name)
        if owner is None or name in exported:
            continue
        own = {id(n) for n in find(owner, cst.Name)}
        if any(n not in dead and n not in own for n in uses.get(name, ())):
            continue
        if isinstance(owner, cst.ImportAlias):
            statement = cst.ensure_type(source.tree.parent(owner), cst.ImportFrom)
            if owner not in imports.setdefault(statement, []):
                imports[statement].append(owner)
        elif remove(owner, edit.removed(owner), f"`{name}` is not used any more"):
            dead |= own
            todo |= {n.value for n in find(owner, cst.Name)} - {name} - stay
    for statement, aliases in imports.items():
        _drop(source, statement, aliases, remove)


def _exported(source: Source) -> set[str]:
    value = source.constants.get("__all__")
    return {str(s.evaluated_value) for s in find(value, cst.SimpleString)} if value is not None else set()


def _top_level(source: Source) -> dict[str, cst.CSTNode]:
    """Names that the module defines with one statement at its top: functions, constants, imported names."""
    table: dict[str, cst.CSTNode] = {}
    for unit in source.tree.units:
        node = unit.statement
        if isinstance(node, cst.FunctionDef) and node.name.value not in source.kernels:
            table[node.name.value] = node
        elif isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
            small = node.body[0]
            if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
                table.update({(a.evaluated_alias or a.evaluated_name): a for a in small.names})
            elif isinstance(small, cst.Assign) and len(small.targets) == 1:
                target = small.targets[0].target
                if isinstance(target, cst.Name) and target.value in source.constants:
                    table[target.value] = node
    return table


def _drop(source: Source, node: cst.ImportFrom, aliases: list[cst.ImportAlias], remove: Remove) -> None:
    assert not isinstance(node.names, cst.ImportStar)
    message = ", ".join(f"`{a.evaluated_alias or a.evaluated_name}`" for a in aliases) + ": not used any more"
    kept = [a for a in node.names if a not in aliases]
    if not kept:
        line = source.tree.statement(node)
        remove(line, edit.removed(line), message)
        return
    if node.names[-1] in aliases:
        kept[-1] = kept[-1].with_changes(comma=node.names[-1].comma)
    remove(node, node.with_changes(names=kept), message)
