"""Which pointer parameter an address comes from, and what a Triton function loads and stores in which order."""
from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from migrate.analysis.control import bindings
from migrate.analysis.kernels import STORES, Kernel, is_jit, match_args
from migrate.tree import find

LANGUAGE = "triton.language."
# what hands on the pointer that it is given first
SAME_POINTER = frozenset({"multiple_of", "max_contiguous", "max_constancy", "advance", "make_block_ptr", "cast",
                          "make_tensor_descriptor", "_experimental_make_tensor_descriptor", "broadcast_to"})
LOADS = frozenset({LANGUAGE + "load", LANGUAGE + "load_tensor_descriptor"})
ATOMICS = frozenset(s for s in STORES if "atomic" in s)
DESCRIPTOR_STORE = LANGUAGE + "store_tensor_descriptor"


@dataclass(frozen=True)
class Access:
    """A place that reads or writes global memory. A call of a helper may be both."""

    node: cst.Call
    loads: frozenset[str]       # parameters
    stores: frozenset[str]


class Pointers:
    """Addresses of one Triton function. An address is a pointer on the left and offsets added to it."""

    def __init__(self, kernel: Kernel, callers: frozenset[cst.FunctionDef] = frozenset()) -> None:
        self.kernel, self.source = kernel, kernel.source
        self.callers = callers | {kernel.node}      # helpers that call each other end here
        self.values: dict[str, list[cst.BaseExpression]] = {}
        for name, _, value in bindings(kernel.node.body):
            if value is not None:
                self.values.setdefault(name, []).append(value)

    @functools.cached_property
    def tensors(self) -> frozenset[str]:
        """The parameters that something is loaded from or stored to, also through block pointers."""
        return self.loaded | self.stored | frozenset().union(*(
            self.bases(c.args[0].value) for c in find(self.kernel.node.body, cst.Call)
            if c.args and self.source.qualified(c.func).endswith(".make_block_ptr")))

    def is_pointer(self, value: cst.BaseExpression) -> bool:
        return bool(self.bases(value) & self.tensors)

    def bases(self, address: cst.BaseExpression) -> frozenset[str]:
        """The parameters that an address may point into; several where a name has several values."""
        return frozenset(self._bases(address, set()))

    def _bases(self, node: cst.BaseExpression, seen: set[str]) -> set[str]:
        if isinstance(node, cst.Name):
            if node.value in seen:
                return set()
            seen.add(node.value)
            param = self.kernel.params.get(node.value)
            own = {node.value} if param is not None and not param.constexpr else set()
            return own.union(*(self._bases(v, seen) for v in self.values.get(node.value, ())))
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Subtract)):
            return self._bases(node.left, seen) or self._bases(node.right, seen)
        if isinstance(node, cst.IfExp):
            return self._bases(node.body, seen) | self._bases(node.orelse, seen)
        if isinstance(node, cst.Subscript):
            return self._bases(node.value, seen)
        if isinstance(node, cst.Call):
            name = self.source.qualified(node.func).rpartition(".")[2]
            if name in SAME_POINTER and node.args:
                return self._bases(node.args[0].value, seen)
            if name == "where" and len(node.args) == 3:
                return self._bases(node.args[1].value, seen) | self._bases(node.args[2].value, seen)
            if isinstance(node.func, cst.Attribute) and node.func.attr.value == "to":
                return self._bases(node.func.value, seen)
        return set()

    @functools.cached_property
    def accesses(self) -> list[Access]:
        """In source order."""
        return list(self._accesses())

    @functools.cached_property
    def loaded(self) -> frozenset[str]:
        return frozenset().union(*(a.loads for a in self.accesses))

    @functools.cached_property
    def stored(self) -> frozenset[str]:
        return frozenset().union(*(a.stores for a in self.accesses))

    def _accesses(self) -> Iterator[Access]:
        nothing: frozenset[str] = frozenset()
        for call in find(self.kernel.node.body, cst.Call):
            target = self.source.qualified(call.func)
            first = self.bases(call.args[0].value) if call.args else nothing
            if target in LOADS:
                yield Access(call, first, nothing)
            elif target in ATOMICS:
                yield Access(call, first, first)
            elif target in STORES or target == DESCRIPTOR_STORE:
                yield Access(call, nothing, first)
            elif isinstance(call.func, cst.Attribute) and call.func.attr.value in ("load", "store"):
                base = self.bases(call.func.value)
                yield Access(call, base, nothing) if call.func.attr.value == "load" else Access(call, nothing, base)
            elif isinstance(call.func, cst.Name):
                helper = self.source.resolve(call.func.value)
                if helper and helper[1] not in self.callers and is_jit(*helper):
                    yield self._through(call, Pointers(Kernel(*helper), self.callers))

    def _through(self, call: cst.Call, helper: Pointers) -> Access:
        loads: set[str] = set()
        stores: set[str] = set()
        for arg, name in match_args(call, list(helper.kernel.params)):
            if name in helper.loaded:
                loads |= self.bases(arg.value)
            if name in helper.stored:
                stores |= self.bases(arg.value)
        return Access(call, frozenset(loads), frozenset(stores))
