"""Stride arguments of a launch: which tensor and axis each one is, and whether the layout behind it is known."""
from __future__ import annotations

import functools
from dataclasses import dataclass

import libcst as cst

from migrate.analysis.dims import Dim
from migrate.analysis.kernels import Kernel
from migrate.analysis.launches import Bound, Launch
from migrate.analysis.shapes import HostShapes, host_shapes
from migrate.analysis.values import NONE, Choice, Env, Tensor, as_tensor, resolve
from migrate.edit import code, parameters
from migrate.tree import children, find

TENSOR_ATTRIBUTES = frozenset({"shape", "dtype", "device", "stride", "contiguous", "is_contiguous", "size", "numel"})


@dataclass(frozen=True)
class StrideArg:
    """`tensor.stride(axis)` for one kernel parameter, perhaps only under a condition."""

    param: str
    tensor: str
    axis: int
    when: cst.BaseExpression | None     # the condition of `x.stride(0) if c else 0`; None: always
    sense: bool = True                  # False for `0 if c else x.stride(0)`
    pointers: tuple[str, ...] = ()      # parameters that get the tensor itself


class Strides:
    """The stride arguments of one launch and the facts about their tensors at that place."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.shapes: HostShapes | None = None
        self.env: Env = {}
        if launch.function is not None:
            self.shapes = host_shapes(launch.source, launch.function)
            self.env = self.shapes.before(launch.call)
        pointers: dict[str, list[str]] = {}
        for param, bound in launch.args.items():
            for name in _tensor_names(bound.value):
                pointers.setdefault(name, []).append(param)
        self.args: dict[str, StrideArg] = {}
        for param, bound in launch.args.items():
            found = self._stride(param, bound)
            if found is not None:
                tensor, axis, when, sense = found
                self.args[param] = StrideArg(param, tensor, axis, when, sense, tuple(pointers.get(tensor, ())))
        self._borrow()

    def _borrow(self) -> None:
        """Pointers of other tensors that the kernel addresses with a tensor's strides: they must lie alike."""
        self.borrowers: dict[str, tuple[StrideArg, ...]] = {}
        self.foreign: dict[str, str] = {}       # stride parameter -> an argument addressed with it that has no name
        added = strides_added(self.launch.kernel, frozenset(self.args))
        for pointer, strides in added.items():
            bound = self.launch.args.get(pointer)
            if bound is None:
                continue
            for param in sorted(strides):
                owner = self.args[param]
                names = [n for n in _tensor_names(bound.value) if n not in (owner.tensor, "None")]
                if pointer in owner.pointers:
                    continue
                value = self.env.get(names[0]) if names else None
                if isinstance(value, Dim) or code(bound.value) == "None":
                    continue                    # a number that is added to an offset, or nothing
                if not names or not self._is_tensor(names[0]):
                    self.foreign[param] = code(bound.value)
                    continue
                test = bound.value.test if isinstance(bound.value, cst.IfExp) else None
                sense = not (isinstance(bound.value, cst.IfExp) and code(bound.value.body) == "None")
                known = self.borrowers.get(param, ())
                self.borrowers[param] = (*known, StrideArg(param, names[0], owner.axis, test, sense, (pointer,)))

    def _is_tensor(self, name: str) -> bool:
        if isinstance(self.env.get(name), (Tensor, Choice)):
            return True
        function = self.launch.function
        if function is None:
            return False
        params = parameters(function)
        annotated = any(p.name.value == name and p.annotation is not None and "Tensor" in code(p.annotation.annotation)
                        for p in params)
        return annotated or any(
            isinstance(a.value, cst.Name) and a.value.value == name and a.attr.value in TENSOR_ATTRIBUTES
            for a in find(function.body, cst.Attribute))

    def assume(self, arg: StrideArg) -> dict[str, bool]:
        """The condition under which the stride is read, for `resolve`."""
        if arg.when is None or self.shapes is None:
            return {}
        key, sense = self.shapes.test_key(arg.when, self.launch.call)
        return {key: sense == arg.sense}

    def tensor(self, arg: StrideArg) -> Tensor:
        return as_tensor(self.env.get(arg.tensor), self.assume(arg))

    def absent_otherwise(self, arg: StrideArg) -> bool:
        """Whether the kernel cannot touch the tensor where the condition fails, so that any stride will do.

        Either the tensor is None there, or its pointers are None or a stand-in that the kernel reads only under a
        constexpr flag with the same condition.
        """
        if arg.when is None or self.shapes is None:
            return True
        key, sense = self.shapes.test_key(arg.when, self.launch.call)
        holds = sense == arg.sense
        is_none = cst.parse_expression(f"{arg.tensor} is None")
        if self.shapes.test_key(is_none, self.launch.call) == (key, not holds):
            return True
        if resolve(self.env.get(arg.tensor), {key: not holds}) is NONE:
            return True
        return bool(arg.pointers) and all(self._unread(p, key, holds) for p in arg.pointers)

    def _unread(self, pointer: str, key: str, holds: bool) -> bool:
        """The pointer is None, or the kernel does not look at it, where the condition does not hold."""
        assert self.shapes is not None
        value = self.launch.args[pointer].value
        if isinstance(value, cst.IfExp):
            if self.shapes.test_key(value.test, self.launch.call) == (key, holds) and code(value.orelse) == "None":
                return True
            if self.shapes.test_key(value.test, self.launch.call) == (key, not holds) and code(value.body) == "None":
                return True
        return self._guarded(pointer, key, holds)

    def _guarded(self, pointer: str, key: str, holds: bool) -> bool:
        kernel = self.launch.kernel
        flags = [name for name, bound in self.launch.args.items()
                 if kernel.params[name].constexpr and self.shapes is not None
                 and self.shapes.test_key(bound.value, self.launch.call) == (key, holds)]
        uses = [n for n in find(kernel.node.body, cst.Name) if n.value == pointer]
        tree = kernel.source.tree
        if kernel.node not in tree:
            return False
        for use in uses:
            if not any(isinstance(up, cst.If) and code(up.test) in flags and _in_body(up, use)
                       for up in tree.ancestors(use)):
                return False
        return True

    def _stride(self, param: str, bound: Bound) -> tuple[str, int, cst.BaseExpression | None, bool] | None:
        value = bound.value
        if isinstance(value, cst.Subscript) and isinstance(value.value, cst.Name) and len(value.slice) == 1:
            value = self._element(value) or value
        elif isinstance(value, cst.Name):
            value = self.launch.source_value(value)
        plain = _stride_of(value)
        if plain is not None:
            return (*plain, bound.when, True)
        if isinstance(value, cst.IfExp) and bound.when is None:
            body, orelse = _stride_of(value.body), _stride_of(value.orelse)
            if body is not None and isinstance(value.orelse, cst.Integer):
                return (*body, value.test, True)
            if orelse is not None and isinstance(value.body, cst.Integer):
                return (*orelse, value.test, False)
        return None

    def _element(self, node: cst.Subscript) -> cst.BaseExpression | None:
        """`z_strides[1]` through the tuple, or the choice of tuples, that the name was assigned."""
        source = self.launch.source_value(node.value)
        at = node.slice[0].slice
        if not isinstance(at, cst.Index) or not isinstance(at.value, cst.Integer):
            return None
        i = at.value.evaluated_value

        def pick(value: cst.BaseExpression) -> cst.BaseExpression | None:
            if isinstance(value, (cst.Tuple, cst.List)) and i < len(value.elements):
                return value.elements[i].value
            return None

        if isinstance(source, cst.IfExp):
            body, orelse = pick(source.body), pick(source.orelse)
            return source.with_changes(body=body, orelse=orelse) if body is not None and orelse is not None else None
        return pick(source)


def strides_of(launch: Launch) -> Strides:
    """The stride arguments of a launch, worked out once as long as host function and kernel are unchanged."""
    memo = launch.source.tree.unit(launch.call).memo
    key = ("strides", launch.call, launch.kernel.node)
    if key not in memo:
        memo[key] = Strides(launch)
    known: Strides = memo[key]
    known.launch = launch
    if known.shapes is not None:
        known.shapes.source = launch.source
    return known


def compared_with_zero(launch: Launch) -> frozenset[str]:
    """Tensors of which the host function asks whether a stride is 0."""
    assert launch.function is not None
    memo = launch.source.tree.unit(launch.call).memo
    key = ("zero strides", launch.function)
    if key not in memo:
        memo[key] = frozenset(
            found[0] for c in find(launch.function.body, cst.Comparison) for part in c.comparisons
            if isinstance(part.operator, cst.Equal) and code(part.comparator) == "0"
            and (found := _stride_of(c.left)) is not None)
    names: frozenset[str] = memo[key]
    return names


def complete(kernel: Kernel, pointer: str, strides: frozenset[str]) -> bool:
    """Whether every offset that the kernel adds to a pointer carries one of these strides.

    Then the strides are those of all its axes. A kernel that gets `x.stride(0)` alone and adds bare columns takes
    the last axis for granted, and says nothing of how many there are.
    """
    return Offsets(kernel, strides).complete(pointer)


def strides_added(kernel: Kernel, strides: frozenset[str]) -> dict[str, frozenset[str]]:
    """Pointer parameter -> the strides among `strides` that the kernel adds multiples of to it."""
    memo = kernel.source.tree.unit(kernel.node).memo if kernel.node in kernel.source.tree else {}
    key = ("strides added", kernel.node, strides)
    if key not in memo:
        offsets = Offsets(kernel, strides)
        memo[key] = {p: found for p in kernel.params if p not in strides and not kernel.params[p].constexpr
                     and (found := offsets.used_by(p))}
    added: dict[str, frozenset[str]] = memo[key]
    return added


class Offsets:
    """What a kernel adds to its pointers, term by term."""

    MEMORY = frozenset("triton.language." + n for n in (
        "load", "store", "make_block_ptr", "make_tensor_descriptor", "atomic_add", "atomic_max", "atomic_min"))

    def __init__(self, kernel: Kernel, strides: frozenset[str]) -> None:
        self.kernel, self.strides = kernel, strides
        self.values: dict[str, list[cst.BaseExpression]] = {}
        self.added: dict[str, list[cst.BaseExpression]] = {}
        for node in find(kernel.node.body, cst.Assign, cst.AnnAssign, cst.AugAssign):
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            into = self.added if isinstance(node, cst.AugAssign) else self.values
            for target in targets:
                for name, value in pairs(target, node.value):
                    into.setdefault(name, []).append(value)

    def used_by(self, pointer: str) -> frozenset[str]:
        """The strides in the terms that are added to the pointer, or to a name made from it."""
        derived = self._derived(pointer)
        found: set[str] = set()
        for name in derived:
            for value in self.added.get(name, ()):
                found |= self._strides_in(value)
        for chain in self._chains:
            terms = _terms(chain)
            if any(_name(t) in derived for t in terms):
                for term in terms:
                    if _name(term) not in derived:
                        found |= self._strides_in(term)
        for call in self._calls_with_pointers:
            first, *rest = [a.value for a in call.args]
            heads = {_name(t) for a in ([first] if self._is_memory(call) else [first, *rest]) for t in _terms(a)}
            if heads & derived:                 # a block pointer's strides, or a helper that gets both
                for value in rest if self._is_memory(call) else [first, *rest]:
                    found |= self._strides_in(value)
        return frozenset(found)

    def _is_memory(self, call: cst.Call) -> bool:
        return self.kernel.source.qualified(call.func) in self.MEMORY

    @functools.cached_property
    def _calls_with_pointers(self) -> list[cst.Call]:
        """Block pointers, descriptors, and calls of helper functions."""
        plain = {"triton.language." + n for n in ("load", "store", "atomic_add", "atomic_max", "atomic_min")}
        return [c for c in find(self.kernel.node.body, cst.Call) if c.args and (
            isinstance(c.func, cst.Name) or (self._is_memory(c) and self.kernel.source.qualified(c.func) not in plain))]

    @functools.cached_property
    def _chains(self) -> list[cst.BinaryOperation]:
        """Sums that are not part of a larger sum."""
        sums = [b for b in find(self.kernel.node.body, cst.BinaryOperation)
                if isinstance(b.operator, (cst.Add, cst.Subtract))]
        inner = {id(t) for b in sums for t in (b.left, b.right)}
        return [b for b in sums if id(b) not in inner]

    def _strides_in(self, term: cst.CSTNode, depth: int = 0) -> set[str]:
        """Strides that a term depends on, through local names but not through memory."""
        found: set[str] = set()
        stack: list[cst.CSTNode] = [term]
        while stack:
            node = stack.pop()
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "load":
                continue
            if isinstance(node, cst.Name):
                if node.value in self.strides:
                    found.add(node.value)
                elif depth < 5:
                    for value in (*self.values.get(node.value, ()), *self.added.get(node.value, ())):
                        found |= self._strides_in(value, depth + 1)
            else:
                stack += children(node)
        return found

    def _derived(self, pointer: str) -> set[str]:
        derived = {pointer}
        while True:
            more = {name for name, values in self.values.items()
                    if any(_name(t) in derived for v in values for t in _terms(v))} - derived
            if not more:
                return derived
            derived |= more

    def complete(self, pointer: str) -> bool:
        """Every term added to the pointer, or to a name made from it, is a multiple of one of the strides."""
        derived = self._derived(pointer)
        if any(not self._strided(v) for name in derived for v in self.added.get(name, ())):
            return False
        for chain in self._chains:
            terms = _terms(chain)
            if any(_name(t) in derived for t in terms) and not all(
                    _name(t) in derived or self._strided(t) for t in terms):
                return False
        return not self._escapes(derived)

    def _escapes(self, derived: set[str]) -> bool:
        for call in find(self.kernel.node.body, cst.Call):
            known = self.kernel.source.qualified(call.func) in self.MEMORY
            if not known and any(_name(a.value) in derived for a in call.args):
                return True
        return False

    def _strided(self, term: cst.BaseExpression, depth: int = 0) -> bool:
        if isinstance(term, cst.Name):
            if term.value in self.strides:
                return True
            values = [*self.values.get(term.value, ()), *self.added.get(term.value, ())]
            return bool(values) and depth < 5 and all(self._strided(v, depth + 1) for v in values)
        if isinstance(term, cst.BinaryOperation):
            if isinstance(term.operator, (cst.Add, cst.Subtract)):
                return self._strided(term.left, depth) and self._strided(term.right, depth)
            if isinstance(term.operator, cst.Multiply):
                return self._strided(term.left, depth) or self._strided(term.right, depth)
        if isinstance(term, cst.Subscript):
            return self._strided(term.value, depth)
        if isinstance(term, cst.Call) and isinstance(term.func, cst.Attribute) and term.func.attr.value == "to":
            return self._strided(term.func.value, depth)
        return False


def pairs(target: cst.BaseExpression, value: cst.BaseExpression | None) -> list[tuple[str, cst.BaseExpression]]:
    """Names of an assignment with what each gets; all of the value where it cannot be taken apart."""
    if value is None:
        return []
    if isinstance(target, cst.Name):
        return [(target.value, value)]
    if not isinstance(target, (cst.Tuple, cst.List)):
        return []
    parts = [e.value for e in target.elements]
    if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(parts):
        return [pair for part, e in zip(parts, value.elements, strict=True) for pair in pairs(part, e.value)]
    return [pair for part in parts for pair in pairs(part, value)]


def _terms(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Add, cst.Subtract)):
        return [*_terms(value.left), *_terms(value.right)]
    return [value]


def _name(value: cst.BaseExpression) -> str:
    return value.value if isinstance(value, cst.Name) else ""


def _tensor_names(value: cst.BaseExpression) -> list[str]:
    if isinstance(value, cst.Name):
        return [value.value]
    if isinstance(value, cst.IfExp):
        return [*_tensor_names(value.body), *_tensor_names(value.orelse)]
    return []


def _stride_of(value: cst.BaseExpression) -> tuple[str, int] | None:
    if (isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "stride"
            and isinstance(value.func.value, cst.Name) and len(value.args) == 1):
        axis = value.args[0].value
        if isinstance(axis, cst.Integer):
            return value.func.value.value, axis.evaluated_value
        if isinstance(axis, cst.UnaryOperation) and isinstance(axis.expression, cst.Integer):
            return value.func.value.value, -axis.expression.evaluated_value
    return None


def _in_body(branch: cst.If, node: cst.CSTNode) -> bool:
    return any(n is node for n in find(branch.body, type(node)))
