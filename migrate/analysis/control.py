"""What a Triton function's control flow is decided by: constants of the compilation, or values on the device."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.analysis.kernels import Kernel
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source

# Python's own functions, which Triton evaluates while it compiles
FOLDED = frozenset({"len", "isinstance", "hasattr", "getattr", "min", "max", "int", "float", "bool", "abs"})
ARITHMETIC = frozenset({
    "to", "cast", "cdiv", "min", "max", "minimum", "maximum", "where", "program_id", "num_programs"})
RANGES = frozenset({"range", "triton.language.range"})           # loops that stay loops
TYPE_FACTS = frozenset({"dtype", "type", "shape", "numel"})       # known from the type, whatever the value is


def kernel_of(source: Source, node: cst.CSTNode) -> Kernel | None:
    """The Triton function whose body holds the node; None for host code, signatures and decorators."""
    for up in source.tree.ancestors(node):
        if isinstance(up, (cst.Decorator, cst.Parameters, cst.Lambda)):
            return None
        if isinstance(up, cst.FunctionDef):
            kernel = source.kernels.get(up.name.value)
            return kernel if kernel is not None and kernel.node is up else None
    return None


def bindings(body: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode, cst.BaseExpression | None]]:
    """Each name that a body binds, with the node that binds it and, for a plain `name = value`, the value."""
    for node in find(body, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr):
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        value = node.value if isinstance(node, (cst.Assign, cst.AnnAssign, cst.NamedExpr)) else None
        for target in targets:
            if isinstance(target, cst.Name):
                yield target.value, node, value
            elif isinstance(target, (cst.Tuple, cst.List)):
                pairs = (value.elements if isinstance(value, (cst.Tuple, cst.List))
                         and len(value.elements) == len(target.elements) else None)
                for i, element in enumerate(target.elements):
                    if isinstance(element.value, cst.Name):
                        yield element.value.value, node, pairs[i].value if pairs else None
                    else:                       # a tuple inside a tuple
                        yield from ((inner.value, node, None) for inner in find(element.value, cst.Name))


class Constness:
    """Which expressions of one Triton function its compiler folds.

    triton 3.2 turns a plain `n = CONSTEXPR + 1` into a value on the device; only parameters and names annotated
    `tl.constexpr`, and the index of a `tl.static_range`, stay constants.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.source = kernel.source
        constant = {name for name, p in kernel.params.items() if p.constexpr}
        dynamic = kernel.params.keys() - constant
        for name, node, _ in bindings(kernel.node.body):
            (constant if self._stays_constant(node) else dynamic).add(name)
        self.dynamic = dynamic

    def _stays_constant(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.AnnAssign):
            return self.source.qualified(node.annotation.annotation).endswith(".constexpr")
        return (isinstance(node, cst.For) and isinstance(node.iter, cst.Call)
                and self.source.qualified(node.iter.func).endswith(".static_range"))

    def folds(self, node: cst.BaseExpression) -> bool:
        """Whether the value is known while compiling. What is not understood counts as a value on the device."""
        if isinstance(node, (cst.Integer, cst.Float, cst.SimpleString, cst.ConcatenatedString)):
            return True
        if isinstance(node, cst.Name):
            return node.value not in self.dynamic
        if isinstance(node, cst.Attribute):
            return node.attr.value in TYPE_FACTS or self.folds(node.value)
        if isinstance(node, cst.Comparison):
            if all(isinstance(c.operator, (cst.Is, cst.IsNot)) for c in node.comparisons):
                return True
            return self.folds(node.left) and all(self.folds(c.comparator) for c in node.comparisons)
        if isinstance(node, (cst.BooleanOperation, cst.BinaryOperation)):
            return self.folds(node.left) and self.folds(node.right)
        if isinstance(node, cst.UnaryOperation):
            return self.folds(node.expression)
        if isinstance(node, cst.IfExp):
            return self.folds(node.test) and self.folds(node.body) and self.folds(node.orelse)
        if isinstance(node, (cst.Tuple, cst.List)):
            return all(self.folds(e.value) for e in node.elements)
        if isinstance(node, cst.Subscript):
            return self.folds(node.value) and all(
                isinstance(e.slice, cst.Index) and self.folds(e.slice.value) for e in node.slice)
        if isinstance(node, cst.Call):
            return (isinstance(node.func, cst.Name) and node.func.value in FOLDED
                    and all(self.folds(a.value) for a in node.args))
        return False


def operands(test: cst.BaseExpression, operator: type[cst.BaseBooleanOp]) -> list[cst.BaseExpression]:
    """`a and b and (c and d)` -> the four; a test of another shape is its own only operand."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, operator):
        return operands(test.left, operator) + operands(test.right, operator)
    return [test]


def constness(kernel: Kernel) -> Constness:
    """Kept for as long as the kernel's statement is unchanged."""
    memo = kernel.source.tree.unit(kernel.node).memo
    key = ("constness", kernel.node)
    if key not in memo:
        memo[key] = Constness(kernel)
    found: Constness = memo[key]
    return found


def is_arithmetic(source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression may be worked out at any time, and again: it reads no memory."""
    return all(source.qualified(call.func).rpartition(".")[2] in ARITHMETIC
               or (isinstance(call.func, cst.Attribute) and call.func.attr.value in ARITHMETIC)
               for call in find(node, cst.Call))
