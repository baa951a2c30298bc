"""Taking planned strides out of a kernel and its launches."""
from __future__ import annotations

import re
from collections import Counter

import libcst as cst

from migrate.analysis.kernels import Kernel
from migrate.analysis.launches import Launch, assignments
from migrate.edit import code, edited_items, statement
from migrate.tree import Edit, Tree, find
from rules.memory.stride_plan import Plan

# Dimensions that vary from call to call stay run-time arguments: as a constexpr each value is a compile of its own.
LENGTH = re.compile(
    r"(?i)(.*(seq|len|batch|rows?$|tokens?|total).*|n?_?chunks?|num_chunks|nchunks\w*|b|t|l|m|n|s|nt|ns|bsz)$")


def new_param(name: str, tl: str) -> cst.Param:
    """A parameter for a dimension: constexpr unless it is a length, or nothing is known of it."""
    param = cst.Param(cst.Name(name))
    varies = LENGTH.match(name) or LENGTH.match(name.rpartition("_")[2]) or re.search(r"_dim\d+$", name)
    return param if varies else as_constexpr(param, tl)


def as_constexpr(param: cst.Param, tl: str) -> cst.Param:
    return param.with_changes(annotation=cst.Annotation(cst.parse_expression(f"{tl}.constexpr"),
                                                        whitespace_before_indicator=cst.SimpleWhitespace("")))


def body_edits(kernel: Kernel, plan: Plan, module: cst.Module, tl: str) -> dict[cst.CSTNode, Edit]:
    """Each use of a dropped stride becomes its expression; a factor of 1 goes."""
    edits: dict[cst.CSTNode, Edit] = {}
    tree = kernel.source.tree
    for name in find(kernel.node.body, cst.Name):
        value = plan.values.get(name.value)
        around = tree.parent(name)
        if value is None or (isinstance(around, cst.Arg) and around.keyword is name) or (
                isinstance(around, cst.Attribute) and around.attr is name):
            continue
        if isinstance(around, cst.Attribute):   # stride.to(tl.int64): a constexpr or a literal has no such method
            call = tree.parent(around)
            assert isinstance(call, cst.Call)
            args = [cst.Arg(cst.parse_expression(value)), *call.args]
            edits[call] = cst.Call(cst.parse_expression(f"{tl}.cast"), args)
            continue
        if isinstance(around, cst.BinaryOperation) and isinstance(around.operator, cst.Multiply):
            if value == "1" and around not in edits:
                edits[around] = _alone(around.right if around.left is name else around.left, around)
                continue
            if "*" in value and around.right is name and around not in edits:
                edits[around] = _product(around, value)
                continue
            bare = around.left is name
        else:
            bare = _loose(around)
        edits[name] = cst.parse_expression(value if bare or "*" not in value else f"({value})")
    body = kernel.node.body
    if plan.saved and isinstance(body, cst.IndentedBlock):
        lines = [statement(f"{new} = {old}", module) for new, old in plan.saved.items()]
        documented = kernel.node.get_docstring() is not None and len(body.body) > 1
        at = body.body[1 if documented else 0]
        edits[at] = cst.FlattenSentinel([*lines, at])
    return edits


def _loose(around: cst.CSTNode | None) -> bool:
    """A place where a product needs no parentheses."""
    if isinstance(around, cst.BinaryOperation):
        return isinstance(around.operator, (cst.Add, cst.Subtract))
    return isinstance(around, (cst.Arg, cst.Element, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Index))


def _alone(kept: cst.BaseExpression, product_: cst.BinaryOperation) -> cst.BaseExpression:
    """One factor in place of the product, in the product's parentheses if it needs any."""
    if not product_.lpar or kept.lpar or isinstance(kept, (cst.Name, cst.Subscript, cst.Call, cst.Attribute)):
        return kept
    return kept.with_changes(lpar=product_.lpar, rpar=product_.rpar)


def _product(times: cst.BinaryOperation, value: str) -> cst.BinaryOperation:
    """`x * stride` as `x * a * b`: left to right, so that an index that was widened stays wide."""
    first, *more = value.split(" * ")
    out = times.with_changes(right=cst.Name(first) if first.isidentifier() else cst.parse_expression(first),
                             lpar=[], rpar=[])
    for factor in more:
        out = cst.BinaryOperation(out, cst.Multiply(), cst.parse_expression(factor))
    return out.with_changes(lpar=times.lpar, rpar=times.rpar)


def launch_edit(launch: Launch, plan: Plan, first: str, index: int) -> cst.Call:
    """The launch without the strides, and with the arguments of new parameters where the first stride was."""
    drop = {launch.args[p].arg for p in plan.values}
    at = launch.args[first].arg
    new = []
    for name, texts in plan.added.items():
        value = cst.parse_expression(texts[index])
        new.append(cst.Arg(value) if at.keyword is None else cst.Arg(
            value, keyword=cst.Name(name), equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))))
    return launch.call.with_changes(args=edited_items(launch.call.args, drop, {at: new}))


def dead_locals(launches: list[Launch], plan: Plan) -> dict[cst.CSTNode, Edit]:
    """Removes tuples of strides (`z_strides = ...`) that nothing reads once the arguments are gone."""
    edits: dict[cst.CSTNode, Edit] = {}
    for function in dict.fromkeys(launch.function for launch in launches):
        if function is None:
            continue
        source = launches[0].source
        dropped = {n for launch in launches if launch.function is function for p in plan.values
                   for n in find(launch.args[p].arg, cst.Name)}
        assigned = assignments(source, function)
        locals_ = {n.value for n in dropped} & assigned.keys()
        uses = Counter(n.value for n in find(function.body, cst.Name) if n.value in locals_ and n not in dropped)
        for local in locals_:
            alone = all(len(a.targets) == 1 for a in assigned[local]) and uses[local] == len(assigned[local])
            if alone and any(".stride(" in code(a.value) for a in assigned[local]):
                for assign in assigned[local]:
                    line = source.tree.statement(assign)
                    edits[_only_statement_of_else(line, source.tree) or line] = cst.RemoveFromParent()
    return edits


def _only_statement_of_else(line: cst.CSTNode, tree: Tree) -> cst.CSTNode | None:
    block = tree.parent(line)
    if isinstance(block, cst.IndentedBlock) and len(block.body) == 1:
        around = tree.parent(block)
        if isinstance(around, cst.Else):
            return around
    return None
