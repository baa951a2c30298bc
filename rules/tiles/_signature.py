"""Taking parameters out of a kernel: its decorators, its signature, the grids and launches that name them."""
from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, TypeVar

import libcst as cst

from migrate.analysis.kernels import HEURISTICS, JIT
from migrate.analysis.launches import Launch
from migrate.asked import Literal
from migrate.edit import edited_items, statement, without_args
from migrate.tree import Edit, find
from rules.tiles._fold import literal
from rules.tiles._outside import (
    Outside,
    argument_of,
    clause_of,
    configs,
    grid_function,
    item_of,
    strings_in,
    table_of,
    tuners,
    written,
)

LINE = 120
REASON = '"the kernel is specialised for this"'
NAMED = frozenset({"do_not_specialize", "do_not_specialize_on_alignment", "key", "reset_to_zero", "restore_value"})
Item = TypeVar("Item", cst.DictElement, cst.Element, cst.Arg)


def decorators(found: Outside, gone: Container[str]) -> list[cst.Decorator]:
    """The decorators of the kernel without the parameters in `gone`."""
    kernel, source = found.kernel, found.kernel.source
    heuristic, jit, tuned = kernel.decorator(HEURISTICS), kernel.decorator(JIT), tuners(source, kernel)
    out = []
    for each in kernel.node.decorators:
        new: cst.Decorator | None = each
        if each in heuristic:
            new = _without_heuristics(each, found, gone)
        elif each in tuned:
            new = _without_names(_without_configs(each, found, gone), gone)
        elif each in jit:
            new = _without_names(each, gone)
        if new is not None:
            out.append(new)
    return out


def _without_heuristics(decorator: cst.Decorator, found: Outside, gone: Container[str]) -> cst.Decorator | None:
    table = table_of(decorator)
    if table is None:
        return decorator
    kept: list[cst.BaseDictElement] = []
    for element in table.elements:
        name = str(element.key.evaluated_value) if isinstance(element, cst.DictElement) and isinstance(
            element.key, cst.SimpleString) else ""
        if not name or name not in gone:
            kept.append(_with_numbers(element, found, gone) if isinstance(element, cst.DictElement) else element)
    if not kept:
        return None
    if len(kept) < len(table.elements):
        kept[-1] = kept[-1].with_changes(comma=table.elements[-1].comma)
    return decorator.with_deep_changes(table, elements=kept)


def _with_numbers(element: cst.DictElement, found: Outside, gone: Container[str]) -> cst.DictElement:
    """`args["K"]` in a heuristic that stays, as its number."""
    node = element.value
    if not isinstance(node, cst.Lambda) or len(node.params.params) != 1:
        return element
    body = written(node.body, node.params.params[0].name.value, lambda name: number(found, name, gone))
    return element if body is node.body else element.with_changes(value=node.with_changes(body=body))


def number(found: Outside, name: str, gone: Container[str]) -> cst.BaseExpression | None:
    return literal(found.values[name]) if name in gone and name in found.values else None


def _without_configs(decorator: cst.Decorator, found: Outside, gone: Container[str]) -> cst.Decorator:
    """Configurations with another value than the one given go; the others lose a constant that has left."""
    while True:
        new = _one_config_less(decorator, found, gone)
        if new is None:
            return decorator
        decorator = new


def _one_config_less(decorator: cst.Decorator, found: Outside, gone: Container[str]) -> cst.Decorator | None:
    for call, element, name in configs(found.kernel.source, decorator):
        if name not in found.values:
            continue
        where, value = _list_around(decorator, call), found.values[name]
        table = cst.ensure_type(call.args[0].value, cst.Dict)
        left = table.with_changes(elements=without(table.elements, element)) if name in gone else table
        bare = call.with_changes(args=[call.args[0].with_changes(value=left), *call.args[1:]])
        if isinstance(where, cst.ListComp):
            clause = clause_of(where, element.value)
            assert clause is not None
            elt = where.with_changes(elt=bare)
            new = _without_clause(elt, clause, value) if name in gone else _narrowed(elt, clause, value)
            if not new.deep_equals(where):
                return cst.ensure_type(decorator.deep_replace(where, new), cst.Decorator)
        elif isinstance(where, cst.List) and not _equal(element.value, value):
            item = next(e for e in where.elements if e.value is call)
            return decorator.with_deep_changes(where, elements=without(where.elements, item))
        elif left is not table:
            return decorator.with_deep_changes(call, args=bare.args)
    return None


def _list_around(decorator: cst.Decorator, call: cst.Call) -> cst.List | cst.ListComp | None:
    for node in find(decorator, cst.List, cst.ListComp):
        if (isinstance(node, cst.ListComp) and node.elt is call) or (
                isinstance(node, cst.List) and any(e.value is call for e in node.elements)):
            return node         # type: ignore[no-any-return]
    return None


def _equal(node: cst.BaseExpression, value: Literal) -> bool:
    return literal(value).deep_equals(node)


def _without_clause(where: cst.ListComp, clause: cst.CompFor, value: Literal) -> cst.BaseExpression:
    """`for BV in [32, 64]` goes, or becomes `for BV in [64]` where more than the constant reads BV."""
    name = cst.ensure_type(clause.target, cst.Name).value
    reads = sum(n.value == name for n in find(where, cst.Name)) - 1
    chain = _clauses(where)
    if reads or clause.ifs:
        return _narrowed(where, clause, value)
    if len(chain) == 1:
        return cst.List([cst.Element(where.elt)], lbracket=where.lbracket, rbracket=where.rbracket)
    at = chain.index(clause)
    del chain[at]
    if at < len(chain):
        chain[at] = chain[at].with_changes(whitespace_before=clause.whitespace_before)
    return _chained(where, chain)


def _narrowed(where: cst.ListComp, clause: cst.CompFor, value: Literal) -> cst.ListComp:
    new = clause.with_changes(iter=cst.List([cst.Element(literal(value))]))
    return _chained(where, [new if c is clause else c for c in _clauses(where)])


def _clauses(where: cst.ListComp) -> list[cst.CompFor]:
    chain: list[cst.CompFor] = []
    current: cst.CompFor | None = where.for_in
    while current is not None:
        chain.append(current)
        current = current.inner_for_in
    return chain


def _chained(where: cst.ListComp, chain: Sequence[cst.CompFor]) -> cst.ListComp:
    inner: cst.CompFor | None = None
    for part in reversed(chain):
        inner = part.with_changes(inner_for_in=inner)
    return where.with_changes(for_in=inner)


def _without_names(decorator: cst.Decorator, gone: Container[str]) -> cst.Decorator:
    """Lists of parameter names (`key`, `do_not_specialize`) without those in `gone`; an empty one goes."""
    call = decorator.decorator
    if not isinstance(call, cst.Call):
        return decorator
    args: list[cst.Arg] = []
    drop = []
    for i, arg in enumerate(call.args):
        named = arg.keyword.value in NAMED if arg.keyword is not None else i == 1
        if named and isinstance(arg.value, (cst.List, cst.Tuple)):
            left = [e for e in arg.value.elements if not (
                isinstance(e.value, cst.SimpleString) and str(e.value.evaluated_value) in gone)]
            if len(left) < len(arg.value.elements):
                if left:
                    left[-1] = left[-1].with_changes(comma=arg.value.elements[-1].comma)
                new = arg.with_changes(value=arg.value.with_changes(elements=left))
                if not left and arg.keyword is not None and arg.keyword.value != "key":
                    drop.append(new)
                arg = new
        args.append(arg)
    if all(a is b for a, b in zip(args, call.args, strict=True)):
        return decorator
    new_call = without_args(call.with_changes(args=args), drop)
    if not new_call.args and isinstance(call.func, (cst.Name, cst.Attribute)):
        return decorator.with_changes(decorator=call.func)
    return decorator.with_changes(decorator=new_call)


def without(elements: Sequence[Any], drop: Any) -> list[Any]:
    """A list or dict display without an element."""
    kept = [e for e in elements if e is not drop]
    if kept and elements[-1] is drop:
        kept[-1] = kept[-1].with_changes(comma=drop.comma)
    return kept


def parameters(found: Outside, gone: Container[str]) -> cst.Parameters:
    params = found.kernel.node.params
    drop = [info.node for name, info in found.kernel.params.items() if name in gone]
    return params.with_changes(params=edited_items(params.params, drop),
                               kwonly_params=edited_items(params.kwonly_params, drop),
                               posonly_params=edited_items(params.posonly_params, drop))


def still_named(found: Outside, new: Sequence[cst.Decorator], gone: Container[str],
                edits: dict[cst.CSTNode, Edit]) -> set[str]:
    """Parameters in `gone` that a decorator, or the grid or other text of a launching function, still names."""
    named = {s for d in new for s in strings_in(d) if s in gone}
    for launch in found.launches:
        for node in (launch.grid, grid_function(launch), launch.function):
            for item in find(node, cst.SimpleString) if node is not None else ():
                name = str(item.evaluated_value)
                if name in gone and not any(a in edits for a in launch.source.tree.ancestors(item)):
                    named.add(name)
    return named


def grid_edits(found: Outside, gone: Container[str]) -> dict[cst.CSTNode, Edit]:
    """`meta["BV"]` in a grid, as its number. A grid that another kernel uses too is left alone."""
    edits: dict[cst.CSTNode, Edit] = {}
    for launch in found.launches:
        function = grid_function(launch)
        if function is None or _shared(launch, function):
            continue
        argument = argument_of(function)
        for node in find(function.body, cst.Subscript):
            new = number(found, item_of(node, argument), gone) if argument else None
            if new is not None:
                edits[node] = new
    return edits


def _shared(launch: Launch, function: cst.CSTNode) -> bool:
    return any(other.kernel is not launch.kernel and grid_function(other) is function
               for other in launch.source.launches)


def launch_edits(found: Outside, gone: Container[str]) -> dict[cst.CSTNode, Edit]:
    """Launches without the arguments, below an assertion of what is not plain from them."""
    edits: dict[cst.CSTNode, Edit] = {}
    for launch in found.launches:
        drop = [bound.arg for name, bound in launch.args.items() if name in gone]
        if drop:
            edits[launch.call] = without_args(launch.call, drop)
        lines = assertions(found, launch)
        if lines:
            home = cst.ensure_type(launch.source.tree.statement(launch.call), cst.SimpleStatementLine)
            blank = [line for line in home.leading_lines[:1] if line.comment is None]
            first, *more = (statement(line, launch.source.tree.module) for line in lines)
            rest = list(home.leading_lines[len(blank):])
            edits[home] = cst.FlattenSentinel([first.with_changes(leading_lines=blank), *more,
                                               home.with_changes(leading_lines=rest)])
    return edits


def assertions(found: Outside, launch: Launch) -> list[str]:
    """The conditions of a launch, as many to a line as fit."""
    lines: list[str] = []
    room = LINE - len("assert , ") - len(REASON) - 8
    for condition in found.conditions.get(launch, ()):
        if lines and len(lines[-1]) + len(" and ") + len(condition) <= room:
            lines[-1] += f" and {condition}"
        else:
            lines.append(condition)
    return [f"assert {line}, {REASON}" for line in lines]
