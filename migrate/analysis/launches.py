"""Launch sites: `k[grid](...)`, `mod.k[grid](...)`, `wrap_triton(k)[grid](...)`, argument by parameter."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from migrate.analysis.kernels import Kernel, is_jit
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source

# ported_kernels/runtime.py: the options it is given, without some of them, and one that it makes of multibuffer=False
LAUNCH_OPTIONS = "ported_kernels.runtime.launch_options"
MADE_OPTIONS = frozenset({"num_stages"})


@dataclass(frozen=True)
class Bound:
    """What one parameter gets at a launch.

    `value` is the expression; `index` says which element of a starred tuple it is. `arg` is the argument node
    in the call that carries it; `when` is the condition of a conditional tuple (`*((a, b) if c else (0, 0))`), in
    which case `value` is its true branch and `other` its false branch.
    """

    arg: cst.Arg
    value: cst.BaseExpression
    index: int | None = None
    when: cst.BaseExpression | None = None
    other: cst.BaseExpression | None = None


class Launch:
    """One launch of a kernel of this package."""

    def __init__(self, source: Source, call: cst.Call, kernel: Kernel) -> None:
        self.source, self.call, self.kernel = source, call, kernel

    @property
    def grid(self) -> cst.BaseExpression | None:
        """The expression in the brackets; a tuple where several are given."""
        subscript = self.call.func
        assert isinstance(subscript, cst.Subscript)
        values = [e.slice.value for e in subscript.slice if isinstance(e.slice, cst.Index)]
        if len(values) == 1:
            return values[0]
        return cst.Tuple([cst.Element(v) for v in values]) if values else None

    @functools.cached_property
    def function(self) -> cst.FunctionDef | None:
        """The host function around the launch."""
        return self.source.tree.enclosing(self.call, cst.FunctionDef)

    @functools.cached_property
    def matched(self) -> bool:
        """Whether every argument could be matched to a parameter."""
        return self._bind[1]

    @property
    def args(self) -> dict[str, Bound]:
        """Parameter -> what it gets. Complete only where `matched`; defaults and heuristics are not in it."""
        return self._bind[0]

    @functools.cached_property
    def _bind(self) -> tuple[dict[str, Bound], bool]:
        names = list(self.kernel.params)
        bound: dict[str, Bound] = {}
        at, whole = 0, True
        for arg in self.call.args:
            if arg.keyword is not None:
                if arg.keyword.value in self.kernel.params:
                    bound[arg.keyword.value] = Bound(arg, arg.value)
                continue
            if arg.star == "**":
                whole = whole and self._only_options(arg.value)
                continue
            items = [Bound(arg, arg.value)] if arg.star == "" else self._spread(arg)
            if items is None:
                return bound, False             # how many it stands for is unknown, and so is all that follows
            for item in items:
                if at >= len(names):
                    return bound, False
                bound[names[at]] = item
                at += 1
        return bound, whole

    def _only_options(self, value: cst.BaseExpression) -> bool:
        """Whether a `**` is `runtime.launch_options(device, num_stages=1)`, and no parameter has the name of one of
        the options that come out of it."""
        if not isinstance(value, cst.Call) or self.source.qualified(value.func) != LAUNCH_OPTIONS:
            return False
        keywords = {a.keyword.value for a in value.args if a.keyword is not None}
        return all(a.star == "" for a in value.args) and not (keywords | MADE_OPTIONS) & self.kernel.params.keys()

    def _spread(self, arg: cst.Arg) -> list[Bound] | None:
        value = self.source_value(arg.value)
        if isinstance(value, (cst.Tuple, cst.List)):
            return [Bound(arg, e.value, i) for i, e in enumerate(value.elements) if isinstance(e, cst.Element)]
        if isinstance(value, cst.IfExp) and isinstance(value.body, (cst.Tuple, cst.List)):
            n = len(value.body.elements)
            other: list[cst.BaseExpression | None]
            if isinstance(value.orelse, (cst.Tuple, cst.List)) and len(value.orelse.elements) == n:
                other = [e.value for e in value.orelse.elements]
            else:
                other = [None] * n
            return [Bound(arg, e.value, i, value.test, other[i]) for i, e in enumerate(value.body.elements)]
        return None

    def source_value(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """What a local name was assigned: by its one assignment, or by both branches of one `if` as a choice."""
        if not isinstance(value, cst.Name) or self.function is None:
            return value
        tree = self.source.tree
        hits = assignments(self.source, self.function).get(value.value, [])
        if len(hits) == 1:
            return hits[0].value
        if len(hits) == 2:
            test = tree.enclosing(hits[0], cst.If)
            other = tree.enclosing(hits[1], cst.Else)
            if test is not None and other is not None and test.orelse is other:
                return cst.IfExp(test=test.test, body=hits[0].value, orelse=hits[1].value)
        return value


def assignments(source: Source, function: cst.FunctionDef) -> dict[str, list[cst.Assign]]:
    """The plain assignments of a function to each of its local names."""
    memo = source.tree.unit(function).memo
    if ("assignments", function) not in memo:
        found: dict[str, list[cst.Assign]] = {}
        for assign in find(function.body, cst.Assign):
            for target in assign.targets:
                if isinstance(target.target, cst.Name):
                    found.setdefault(target.target.value, []).append(assign)
        memo["assignments", function] = found
    result: dict[str, list[cst.Assign]] = memo["assignments", function]
    return result


def is_launch(node: cst.CSTNode) -> bool:
    """`something[grid](...)`."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Subscript)


def launches(source: Source) -> list[Launch]:
    """Every launch in the file of a kernel that can be found in the file or its package."""
    out = []
    for call in source.tree.all(cst.Call):
        if isinstance(call.func, cst.Subscript):
            kernel = _kernel(source, call.func.value)
            if kernel is not None:
                out.append(Launch(source, call, kernel))
    return out


def _kernel(source: Source, target: cst.BaseExpression) -> Kernel | None:
    if isinstance(target, cst.Call) and target.args:           # torch.library.wrap_triton(kernel)
        target = target.args[0].value
    if isinstance(target, cst.Name):
        name = target.value
        if name in source.kernels:
            return source.kernels[name]
        found = source.resolve(name)
    elif isinstance(target, cst.Attribute):
        module, _, name = source.qualified(target).rpartition(".")
        other = source.project.module(module) if source.project else None
        found = other.resolve(name) if other else None
    else:
        return None
    return Kernel(*found) if found and is_jit(*found) else None
