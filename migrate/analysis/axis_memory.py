"""Whether a statement that is written once for each part of an axis may do so although it stores.

The parts run one after the other: what a later part loads must not be what an earlier one has stored. That two pointer
parameters do not alias is the project's assumption; nothing else is taken for granted.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from migrate.analysis.axes import Axes
from migrate.analysis.axis_calls import ELEMENTWISE, STORES
from migrate.analysis.axis_values import ARANGE, Axis
from migrate.analysis.control import bindings
from migrate.analysis.kernels import Kernel, is_jit
from migrate.analysis.pointers import SAME_POINTER
from migrate.analysis.tiles import LANGUAGE, called, dotted
from migrate.edit import code
from migrate.source import Source
from migrate.tree import find

LOADS = frozenset({"load", "load_tensor_descriptor", "gather", "descriptor_load", "descriptor_gather"})
WRITES = STORES | {"store_tensor_descriptor", "scatter", "descriptor_store", "descriptor_scatter"}
ATOMICS = STORES - {"store"}
BUILTIN = frozenset({"min", "max", "abs", "range", "int", "float", "bool", "len"})
ELEMENT_NODES = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.BooleanOperation, cst.IfExp)


def touches(source: Source, call: cst.Call, *, stores: bool, seen: frozenset[cst.FunctionDef] = frozenset()) -> bool:
    """Whether a call may store or else load, itself or in a helper of any depth. What is not known may."""
    name = called(source, call.func)
    if name.startswith(LANGUAGE):
        return _language(name.removeprefix(LANGUAGE), stores)
    if dotted(call.func).partition(".")[0] in source.imports and isinstance(call.func, cst.Attribute):
        return not name.startswith("triton.")           # a function of another module
    if isinstance(call.func, cst.Attribute):            # `x.to(...)`, `pointer.atomic_add(...)`
        return _language(call.func.attr.value, stores)
    if name in BUILTIN and isinstance(call.func, cst.Name):
        return False
    helper = source.resolve(call.func.value) if isinstance(call.func, cst.Name) else None
    if helper is None or not is_jit(*helper):
        return True
    if helper[1] in seen:
        return False                                    # it is looked through already
    return any(touches(helper[0], c, stores=stores, seen=seen | {helper[1]}) for c in find(helper[1].body, cst.Call))


def _language(name: str, stores: bool) -> bool:
    if name.startswith("inline_asm"):
        return True
    return name in WRITES if stores else name in LOADS or name in ATOMICS


class Memory:
    """What the addresses of one kernel say. `is_cut` tells which axes are in parts."""

    def __init__(self, kernel: Kernel, found: Axes, is_cut: Callable[[Axis], bool]) -> None:
        self.kernel, self.source, self.found, self.is_cut = kernel, kernel.source, found, is_cut
        self.values: dict[str, list[cst.BaseExpression | None]] = {}
        for name, _, value in bindings(kernel.node.body):
            self.values.setdefault(name, []).append(value)
        # nobody multiplies a pointer
        self.numbers = {side.value for op in find(kernel.node.body, cst.BinaryOperation)
                        if isinstance(op.operator, (cst.Multiply, cst.FloorDivide, cst.Modulo))
                        for side in (op.left, op.right) if isinstance(side, cst.Name)}
        self.numbers -= self.values.keys()

    def stores(self, node: cst.CSTNode) -> Iterator[cst.Call]:
        return (c for c in find(node, cst.Call) if touches(self.source, c, stores=True))

    def is_store(self, call: cst.Call) -> bool:
        """Whether this very call stores, rather than a helper or what is not known."""
        return not isinstance(call.func, cst.Name) or called(self.source, call.func).startswith(LANGUAGE)

    def conflict(self, node: cst.CSTNode, store: cst.Call) -> cst.Call | None:
        """A load of this statement that may read what another part of `store` writes."""
        into = address(self.source, store)
        written = self.pointers(into) if into is not None else None
        for load in find(node, cst.Call):
            if load is store or not touches(self.source, load, stores=False):
                continue
            direct = self._direct(load)
            around = [load.func.value] if isinstance(load.func, cst.Attribute) else []
            read = self._all([direct] if direct is not None else [*around, *(a.value for a in load.args)],
                             strict=direct is not None)
            if written and read is not None and not written & read:
                continue
            if direct is not None and into is not None and code(direct) == code(into) \
                    and self._elementwise(load, store) and self._distinct(into):
                continue
            return load
        return None

    def _direct(self, call: cst.Call) -> cst.BaseExpression | None:
        """The address of a load that stands here; None for a helper."""
        if called(self.source, call.func) == LANGUAGE + "load" and not any(a.star for a in call.args):
            return address(self.source, call)
        return None

    # Which parameter

    def _all(self, addresses: list[cst.BaseExpression], *, strict: bool) -> frozenset[str] | None:
        """The parameters that these lead to. Not `strict`: every name in them counts, for they may be numbers, too."""
        out: set[str] = set()
        for node in addresses:
            one = self.pointers(node) if strict else self._named(node)
            if one is None:
                return None
            out |= one
        return frozenset(out)

    def pointers(self, node: cst.BaseExpression) -> frozenset[str] | None:
        """Parameters one of which an address points into; None where that is not clear."""
        try:
            found = self._pointers(node, frozenset())
        except LookupError:
            return None
        return frozenset(found) or None

    def _pointers(self, node: cst.BaseExpression, seen: frozenset[str]) -> set[str]:
        """Raises LookupError for a name that may be a pointer from somewhere else."""
        if isinstance(node, cst.Name):
            if node.value in seen or node.value in self.numbers:
                return set()
            param, values = self.kernel.params.get(node.value), self.values.get(node.value, [])
            own = {node.value} if param is not None and not param.constexpr else set()
            plain = [v for v in values if v is not None]
            found = own.union(*(self._pointers(v, seen | {node.value}) for v in plain))
            if found and len(plain) < len(values) and not self._only_moved(node.value):
                raise LookupError
            return found
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Subtract)):
            return self._pointers(node.left, seen) | self._pointers(node.right, seen)
        if isinstance(node, cst.IfExp):
            return self._pointers(node.body, seen) | self._pointers(node.orelse, seen)
        if isinstance(node, cst.Subscript):
            return self._pointers(node.value, seen)
        if isinstance(node, cst.Call):
            name = called(self.source, node.func).rpartition(".")[2]
            if name in SAME_POINTER and node.args:
                base = next((a.value for a in node.args if a.keyword and a.keyword.value in ("base", "input")),
                            node.args[0].value)
                return self._pointers(base, seen)
            if name == "where" and len(node.args) == 3:
                return self._pointers(node.args[1].value, seen) | self._pointers(node.args[2].value, seen)
            if isinstance(node.func, cst.Attribute) and node.func.attr.value == "to":
                return self._pointers(node.func.value, seen)
        return set()

    def _only_moved(self, name: str) -> bool:
        """Whether the bindings that are no `name = value` are all `name += number` and the like."""
        return all(value is not None or isinstance(node, cst.AugAssign)
                   for bound, node, value in bindings(self.kernel.node.body) if bound == name)

    def _named(self, node: cst.CSTNode, seen: frozenset[str] = frozenset()) -> set[str]:
        out: set[str] = set()
        for name in find(node, cst.Name):
            param = self.kernel.params.get(name.value)
            if name.value in seen or name.value in self.numbers:
                continue
            if param is not None and not param.constexpr:
                out.add(name.value)
            for bound, where, value in bindings(self.kernel.node.body):
                if bound == name.value:
                    out |= self._named(value if value is not None else _source(where), seen | {name.value})
        return out

    # The same elements

    def _elementwise(self, load: cst.Call, store: cst.Call) -> bool:
        """Whether each element of the store sees only its own element of the load."""
        for up in self.source.tree.ancestors(load):
            if up is store:
                return True
            if isinstance(up, cst.Call):
                name = called(self.source, up.func)
                method = isinstance(up.func, cst.Attribute) and not name.startswith(LANGUAGE) and up.func.attr.value
                if method != "to" and name.removeprefix(LANGUAGE) not in ELEMENTWISE:
                    return False
            elif isinstance(up, cst.Attribute):
                if up.attr.value != "to":
                    return False
            elif isinstance(up, cst.BaseExpression) and not isinstance(up, ELEMENT_NODES):
                return False
        return False

    def _distinct(self, node: cst.BaseExpression) -> bool:
        """Whether an address is a parameter, plus scalars, plus one range over the axis: no part meets another."""
        return self.pointers(node) is not None and self._ranges(node) == 1

    def _ranges(self, node: cst.BaseExpression, depth: int = 9) -> int:
        """How many ranges are added up; 9 for anything but a sum of ranges and scalars."""
        value = self.found.values.get(node)
        if value is None or value.axes is None or len(value.axes) > 1 or not depth:
            return 9
        if not value.axes:
            return 0
        if isinstance(node, cst.Name):
            bound = self.values.get(node.value, [])
            return self._ranges(bound[0], depth - 1) if len(bound) == 1 and bound[0] is not None \
                and node.value not in self.kernel.params else 9
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            return self._ranges(node.left, depth) + self._ranges(node.right, depth)
        spread = self.found.spreads.get(node)
        return 1 if spread is not None and spread.kind == ARANGE and self.is_cut(value.axes[0]) else 9


def address(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Of a load, a store or an atomic operation."""
    if isinstance(call.func, cst.Attribute) and not called(source, call.func).startswith(LANGUAGE):
        return call.func.value
    named = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "pointer"), None)
    if named is not None:
        return named
    return call.args[0].value if call.args and call.args[0].keyword is None else None


def _source(node: cst.CSTNode) -> cst.CSTNode:
    """What a name that is bound by other means than `name = value` comes from."""
    if isinstance(node, cst.For):
        return node.iter
    value = getattr(node, "value", None)
    return value if isinstance(value, cst.CSTNode) and dotted(value) != "None" else node
