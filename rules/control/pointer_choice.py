"""Pointers that the device chooses between, as offsets that it chooses between. Part of ASC501 plain-control."""
from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.analysis.control import bindings, is_arithmetic
from migrate.analysis.kernels import Kernel
from migrate.analysis.liveness import read_after
from migrate.analysis.pointers import Pointers
from migrate.edit import code, expression, terms
from migrate.source import Source
from migrate.tree import find


class PointerChoice:
    """One Triton function's pointers, and the choices between them."""

    def __init__(self, source: Source, kernel: Kernel, tl: str) -> None:
        self.source, self.kernel, self.tl = source, kernel, tl
        self.pointers = Pointers(kernel)
        self.bindings = list(bindings(kernel.node.body))

    def offset(self, test: cst.BaseExpression, yes: cst.BaseExpression,
               no: cst.BaseExpression) -> cst.BaseExpression | None:
        """`x + a if test else x + b` -> `x + tl.where(test, a, b)`; None where they start from different tensors."""
        one, two = terms(yes), terms(no)
        same = 0
        while same < min(len(one), len(two)) and code(one[same][1]) == code(two[same][1]) and (
                one[same][0] == two[same][0]):
            same += 1
        rest = [node for side in (one, two) for _, node in side[same:]]
        if not same or not all(is_arithmetic(self.source, n) and not self.pointers.is_pointer(n) for n in rest):
            return None
        return expression(f"{_sum(one[:same])} + {self.tl}.where({code(test)}, {_sum(one[same:])}, {_sum(two[same:])})")

    def of_if(self, node: cst.If) -> list[cst.SimpleStatementLine] | None:
        """An `if` that only gives pointers their values, as assignments."""
        yes = _assignments(node.body)
        no = _assignments(node.orelse.body) if isinstance(node.orelse, cst.Else) else None
        if not yes or isinstance(node.orelse, cst.If):
            return None
        if no is not None and [name for name, _ in no] != [name for name, _ in yes]:
            return None
        lines: list[cst.SimpleStatementLine] = []
        for i, (name, value) in enumerate(yes):
            other = no[i][1] if no is not None else cst.Name(name)
            chosen = all(map(self.pointers.is_pointer, (value, other)))
            new = self.offset(node.test, value, other) if chosen else None
            read = {n.value for n in find(value, cst.Name)} | {n.value for n in find(node.test, cst.Name)}
            if new is None or (len(yes) > 1 and read & {n for n, _ in yes}):
                return None
            moved = code(new).removeprefix(f"{name} + ") if no is None else code(new)
            small: cst.BaseSmallStatement = cst.Assign([cst.AssignTarget(cst.Name(name))], new)
            if moved != code(new):              # p = p + where(...)
                small = cst.AugAssign(cst.Name(name), cst.AddAssign(), expression(moved))
            old = cst.ensure_type(node.body.body[i], cst.SimpleStatementLine)
            above = [*old.leading_lines]
            if isinstance(node.orelse, cst.Else):
                above += cst.ensure_type(node.orelse.body.body[i], cst.SimpleStatementLine).leading_lines
            lines.append(old.with_changes(body=[small], leading_lines=above))
        lines[0] = lines[0].with_changes(leading_lines=[*node.leading_lines, *lines[0].leading_lines])
        return lines

    def merged(self, node: cst.If) -> Iterator[str]:
        """Pointers that an `if` rebinds and that are read after it, whichever way it went."""
        seen = set()
        blocks = [node.body, *([node.orelse] if node.orelse is not None else [])]
        for name, _, value in (b for block in blocks if not _returns(block) for b in bindings(block)):
            rebound = value is None and name in self.pointers.tensors        # p += 64
            if name not in seen and (rebound or (value is not None and self.pointers.is_pointer(value))):
                seen.add(name)
                if self._lives_before(node, name) and read_after(self.source, node, name):
                    yield name

    def _lives_before(self, node: cst.If, name: str) -> bool:
        if name in self.kernel.params:
            return True
        inside = set(find(node, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For))
        elsewhere = [where for n, where, _ in self.bindings if n == name and where not in inside]
        first = self.source.tree.span(node)[0]
        both = isinstance(node.orelse, cst.Else) and all(
            any(n == name for n, _, _ in bindings(b)) for b in (node.body, node.orelse.body))
        return both or any(self.source.tree.span(where)[0] < first for where in elsewhere)


def _returns(block: cst.CSTNode) -> bool:
    """Whether nothing after the block sees what it bound."""
    block = block.body if isinstance(block, cst.Else) else block
    last = block.body[-1] if isinstance(block, cst.IndentedBlock) else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return)


def _sum(terms: list[tuple[str, cst.BaseExpression]]) -> str:
    text = "".join(f" {sign} {code(node)}" for sign, node in terms)
    return text.removeprefix(" + ").replace(" - ", "-", 1) if text.startswith(" - ") else text[3:] or "0"


def _assignments(body: cst.BaseSuite) -> list[tuple[str, cst.BaseExpression]] | None:
    """The body as `name = value` lines; `p += n` counts as `p = p + n`. None where it does anything else."""
    out: list[tuple[str, cst.BaseExpression]] = []
    for line in body.body:
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        small = line.body[0]
        if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
            out.append((small.targets[0].target.value, small.value))
        elif isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Name) and isinstance(
                small.operator, (cst.AddAssign, cst.SubtractAssign)):
            operator = cst.Add() if isinstance(small.operator, cst.AddAssign) else cst.Subtract()
            value = small.value
            if isinstance(value, cst.BinaryOperation) and not value.lpar and isinstance(
                    value.operator, (cst.Add, cst.Subtract)):
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            out.append((small.target.value, cst.BinaryOperation(cst.Name(small.target.value), operator, value)))
        else:
            return None
    return out
