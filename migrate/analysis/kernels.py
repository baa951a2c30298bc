"""Triton functions of a file: parameters, decorators, what they write, which of their names are rebound."""
from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from migrate.edit import parameters
from migrate.tree import children, find

if TYPE_CHECKING:
    from migrate.source import Source

JIT = "triton.jit"
AUTOTUNE = "triton.autotune"
HEURISTICS = "triton.heuristics"
STORES = frozenset("triton.language." + name for name in (
    "store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_cas", "atomic_and", "atomic_or",
    "atomic_xor"))


@dataclass(frozen=True)
class KernelParam:
    """One parameter of a Triton function."""

    name: str
    node: cst.Param
    constexpr: bool
    default: cst.BaseExpression | None


class Kernel:
    """A function under `@triton.jit`, whatever else decorates it. Helpers called by kernels count too."""

    def __init__(self, source: Source, node: cst.FunctionDef) -> None:
        self.source = source
        self.node = node
        self.name = node.name.value
        params = parameters(node)
        self.params = {p.name.value: KernelParam(p.name.value, p, _is_constexpr(source, p), p.default)
                       for p in params}

    def decorator(self, qualified: str) -> list[cst.Decorator]:
        """Its decorators of one kind (`triton.autotune`, `triton.heuristics`, `triton.jit`), outermost first."""
        return [d for d in self.node.decorators if self.source.qualified(_called(d.decorator)) == qualified]

    @functools.cached_property
    def rebound(self) -> frozenset[str]:
        """Names that the body assigns, loops over, or augments."""
        return frozenset(n for target in _targets(self.node.body) for n in _names(target))

    @functools.cached_property
    def writes(self) -> frozenset[str]:
        """Parameters through which it, or a helper it calls, stores to global memory.

        Errs on the side of "written": a pointer that reaches a store through local names counts.
        """
        roots = self._roots
        written: set[str] = set()
        for call in find(self.node.body, cst.Call):
            target = self.source.qualified(call.func)
            if target in STORES and call.args:
                written |= roots(call.args[0].value)
            elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "store":
                written |= roots(call.func.value)
            elif isinstance(call.func, cst.Name):
                helper = self.source.resolve(call.func.value)
                if helper and helper[1] is not self.node and is_jit(*helper):
                    inner = Kernel(*helper)
                    for arg, name in match_args(call, list(inner.params)):
                        if name in inner.writes:
                            written |= roots(arg.value)
        return frozenset(written)

    def _roots(self, expression: cst.CSTNode) -> set[str]:
        """Parameters that an expression depends on, through the assignments of the body."""
        seen: set[str] = set()
        todo = _read_names(expression)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo |= self._feeds.get(name, set())
        return seen & self.params.keys()

    @functools.cached_property
    def _feeds(self) -> dict[str, set[str]]:
        feeds: dict[str, set[str]] = {}
        for node in find(self.node.body, cst.Assign, cst.AugAssign, cst.AnnAssign):
            if node.value is None:
                continue
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            for target in targets:
                for name in _names(target):
                    feeds.setdefault(name, set()).update(_read_names(node.value))
        return feeds


def kernels(source: Source) -> dict[str, Kernel]:
    """Every Triton function of the file by name. One that is unchanged since the last edit is not read again."""
    found = {}
    for unit in source.tree.units:
        for node in unit.index.get(cst.FunctionDef, ()):
            if node.decorators and is_jit(source, node):       # type: ignore[attr-defined, arg-type]
                kernel = unit.memo.get(("kernel", node))
                if kernel is None:
                    kernel = unit.memo[("kernel", node)] = Kernel(source, node)     # type: ignore[arg-type]
                found[kernel.name] = kernel
    return found


def is_jit(source: Source, node: cst.FunctionDef) -> bool:
    return any(source.qualified(_called(d.decorator)) == JIT for d in node.decorators)


def match_args(call: cst.Call, params: list[str]) -> list[tuple[cst.Arg, str]]:
    """Arguments of a call with the parameter each one fills; starred ones and extra ones are left out."""
    out = []
    for i, arg in enumerate(call.args):
        if arg.star:
            break
        if arg.keyword is not None:
            if arg.keyword.value in params:
                out.append((arg, arg.keyword.value))
        elif i < len(params):
            out.append((arg, params[i]))
    return out


def _called(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


def _is_constexpr(source: Source, param: cst.Param) -> bool:
    if param.annotation is None:
        return False
    kind = param.annotation.annotation
    if isinstance(kind, cst.SimpleString):
        return kind.evaluated_value in ("tl.constexpr", "triton.language.constexpr", "constexpr")
    return source.qualified(kind) in ("triton.language.constexpr", "triton.language.core.constexpr")


def _targets(body: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    for node in find(body, cst.Assign, cst.AugAssign, cst.AnnAssign, cst.For, cst.NamedExpr):
        if isinstance(node, cst.Assign):
            yield from (t.target for t in node.targets)
        else:
            yield node.target


def _names(target: cst.BaseExpression) -> Iterator[str]:
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _names(element.value)
    elif isinstance(target, cst.StarredElement):
        yield from _names(target.value)


def _read_names(expression: cst.CSTNode) -> set[str]:
    """Names an address may come from. A pointer is added to, never multiplied, and never an index."""
    names: set[str] = set()
    stack = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Name):
            names.add(node.value)
        elif isinstance(node, cst.Attribute):
            stack.append(node.value)
        elif isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute) and node.func.attr.value == "load":
                continue                        # what is loaded is data
            stack += [a.value for a in node.args]
            if isinstance(node.func, cst.Attribute):
                stack.append(node.func.value)
        elif isinstance(node, cst.Subscript):
            stack.append(node.value)
        elif isinstance(node, cst.Comparison) or (
                isinstance(node, cst.BinaryOperation) and not isinstance(node.operator, (cst.Add, cst.Subtract))):
            continue
        else:
            stack += list(children(node))
    return names
