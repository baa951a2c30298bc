"""The import of `ported_kernels.runtime`, for rules whose edits call it."""
from __future__ import annotations

import libcst as cst

from migrate import edit
from migrate.source import Source
from migrate.tree import Edit

MODULE = "ported_kernels.runtime"


def name(source: Source) -> str:
    """What a file calls the module, or is to call it."""
    for local, module in source.imports.items():
        if module == MODULE:
            return local
    taken = any(n.value == "runtime" for n in source.tree.all(cst.Name))
    return "device_runtime" if taken else "runtime"


def edits(source: Source) -> dict[cst.CSTNode, Edit]:
    """The edit that imports it after the file's own imports; none where the file has it."""
    if MODULE in source.imports.values():
        return {}
    local = name(source)
    alias = "" if local == "runtime" else f" as {local}"
    line = edit.statement(f"from ported_kernels import runtime{alias}", source.tree.module)
    last = None
    for unit in source.tree.units:
        node = unit.statement
        if isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], (cst.Import, cst.ImportFrom)):
            last = node
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            break
    if last is not None:
        return {last: cst.FlattenSentinel([last, line])}
    first = source.tree.units[0].statement
    return {first: cst.FlattenSentinel([line, first])}
