"""ASC101 gpu-launch-hint."""
from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.edit import code, without_args
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import find

HINTS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg"})
READ_BY_PRUNING = re.compile(r"\.(?:num_warps|num_stages)\b")


class GpuLaunchHint(Rule):
    """Drop GPU scheduling hints from `triton.Config(...)` and from `kernel[grid](...)`.

    ## Why
    A warp is a GPU notion. In the SIMD mode of A2 and A3 these keywords do not shape the code that is generated, yet
    they are part of the compile key: four configurations that differ in `num_warps` alone are one kernel, compiled
    and timed four times.

    ## What it leaves alone
    * `num_stages=1`, or a stage count that cannot be read from the file, at a launch. Up to 3.2.1 the backend ignored
      `num_stages`; from 3.2.2 the value 1 means `multibuffer=False`, and dropping it would double the buffers.
      Reported instead. In a `triton.Config` the same holds, unless ASC102 freezes the choice.
    * configurations whose `num_warps` or `num_stages` a pruning function reads. Reported instead.
    * a hint that is a parameter of the kernel itself (`num_stages: tl.constexpr`).
    * files that ask for SIMT (`simt_only`), where `num_warps` does count.
    """

    id = "ASC101"
    name = "gpu-launch-hint"
    summary = "`num_warps`, `num_stages`, `num_ctas` and `maxnreg` do not steer an NPU"
    safety = Safety.SAFE
    triggers = tuple(sorted(HINTS))
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/blob/a84b1eb52/docs/en/examples/06_autotune_example.md",
            "num_warps and num_stages are not supported due to hardware architecture differences", "doc"),
        Ref("https://github.com/triton-lang/triton-ascend/blob/b9fe1fa1924a/third_party/ascend/backend/compiler.py",
            "num_stages == 1 becomes --enable-auto-multi-buffer=False; every option is in the hash", "source"),
        Ref("https://github.com/fla-org/flash-linear-attention/pull/1023",
            "review: tuning them is a wasted 3x3 search", "issue"),
    )
    examples = (
        Example("autotune configurations through an alias, comments kept",
            before="""
                from triton import Config as C

                configs = [
                    C({"BLOCK": 64}, num_warps=4, num_stages=3),  # small heads
                    C({"BLOCK": 128}, num_warps=8),
                ]
                """,
            after="""
                from triton import Config as C

                configs = [
                    C({"BLOCK": 64}),  # small heads
                    C({"BLOCK": 128}),
                ]
                """),
        Example("a swept stage count that is never 1",
            before="""
                configs = [triton.Config({}, num_warps=w, num_stages=s) for w in [2, 4] for s in [2, 3]]
                """,
            after="""
                configs = [triton.Config({}) for w in [2, 4] for s in [2, 3]]
                """),
        Example("a launch over several lines, and a local name that only the hint used",
            before="""
                def scale(x):
                    BLOCK, num_warps = ((64, 4) if x.numel() < 4096 else (128, 8))
                    kernel[(1,)](
                        x,
                        BLOCK=BLOCK,
                        num_warps=num_warps,
                    )
                """,
            after="""
                def scale(x):
                    BLOCK = (64 if x.numel() < 4096 else 128)
                    kernel[(1,)](
                        x,
                        BLOCK=BLOCK,
                    )
                """),
        Example("what stands below the name's value moves with it",
            before="""
                def scale(x):
                    BLOCK, num_warps = ((64, 4) if x.numel() < 4096 else
                                        (128, 8))  # two rows
                    HALF, num_stages = (
                        (32, 2) if x.numel() < 4096 else (64, 3)
                    )
                    kernel[(1,)](x, BLOCK, HALF, num_warps=num_warps, num_stages=num_stages)
                """,
            after="""
                def scale(x):
                    BLOCK = (64 if x.numel() < 4096 else
                             128)  # two rows
                    HALF, num_stages = (
                        (32, 2) if x.numel() < 4096 else (64, 3)
                    )
                    kernel[(1,)](x, BLOCK, HALF, num_stages=num_stages)
                """,
            reports=1),
        Example("a launch inside a launch argument",
            before="""
                outer[grid](inner[grid](x, num_warps=4), num_warps=8)
                """,
            after="""
                outer[grid](inner[grid](x))
                """),
        Example("a launch through wrap_triton",
            before="""
                torch.library.wrap_triton(kernel)[grid](x, num_warps=8, BLOCK=64)
                """,
            after="""
                torch.library.wrap_triton(kernel)[grid](x, BLOCK=64)
                """),
        Example("keeps and reports a single stage",
            before="""
                kernel[grid](x, num_warps=4, num_stages=1)
                """,
            after="""
                kernel[grid](x, num_stages=1)
                """,
            reports=1),
        Example("reports configurations that a pruning function reads",
            before="""
                def prune(configs, nargs, **kwargs):
                    return [c for c in configs if c.num_warps <= 4]

                configs = [triton.Config({"BLOCK": 64}, num_warps=8)]
                """,
            after=SAME,
            reports=1),
        Example("leaves a kernel parameter of that name",
            before="""
                def kernel(x, num_stages: tl.constexpr):
                    pass

                kernel[grid](x, num_stages=2)
                """,
            after=SAME),
        Example("leaves what the author asked to keep",
            before="""
                # migrate: ignore[ASC101] measured on 910B3, keep
                kernel[grid](
                    x,
                    num_warps=8,
                )
                """,
            after=SAME),
    )

    def visit_Call(self, node: cst.Call) -> None:
        if "simt_only" in self.source.text:
            return
        is_config = self.source.qualified(node.func) == "triton.Config"
        own: frozenset[str] = frozenset()
        if not is_config:
            kernel = launched(node)
            if not kernel:
                return
            own = self._params.get(kernel, frozenset())
        hints = [a for a in node.args if a.keyword and a.keyword.value in HINTS - own]
        if not hints:
            return
        if is_config and READ_BY_PRUNING.search(self.source.text):
            self.report(node, "a pruning function in this file reads these hints: rewrite it first")
            return
        drop = [a for a in hints if not self._may_be_one_stage(a)]
        if len(drop) < len(hints):
            self.report(node, "`num_stages` is or may be 1, which from 3.2.2 means `multibuffer=False`: "
                              "write that instead, or drop it if two buffers fit")
        if not drop:
            return
        edits: dict[cst.CSTNode, object] = {node: without_args(node, drop)}
        for arg in drop:
            edits.update(self._unused_after(node, arg))
        names = ", ".join(f"`{a.keyword.value}`" for a in drop if a.keyword)
        verb = "does" if len(drop) == 1 else "do"
        self.together(edits, f"removed {names}: {verb} not steer an NPU", at=node)

    @functools.cached_property
    def _params(self) -> dict[str, frozenset[str]]:
        return {name: frozenset(p.name.value for p in (*f.params.params, *f.params.kwonly_params))
                for name, f in self.source.definitions.items()}

    def _may_be_one_stage(self, arg: cst.Arg) -> bool:
        if arg.keyword is None or arg.keyword.value != "num_stages":
            return False
        values = self._ints(arg.value)
        return values is None or 1 in values

    def _ints(self, node: cst.BaseExpression) -> set[int] | None:
        """Every value the expression can have; None when that cannot be told from this file."""
        if isinstance(node, cst.Integer):
            return {node.evaluated_value}
        return self._bound.get(node.value) if isinstance(node, cst.Name) else None

    @functools.cached_property
    def _bound(self) -> dict[str, set[int] | None]:
        """Integers that a name is bound to anywhere in the file; None when any binding is not a literal."""
        seen: dict[str, set[int] | None] = {}

        def bind(target: cst.CSTNode, values: Sequence[cst.BaseExpression]) -> None:
            literals = {v.evaluated_value for v in values if isinstance(v, cst.Integer)}
            for name in find(target, cst.Name):
                old = seen.setdefault(name.value, set())
                known = target is name and values and all(isinstance(v, cst.Integer) for v in values)
                seen[name.value] = old | literals if known and old is not None else None

        for node in self.source.tree.all(cst.CompFor, cst.For, cst.Assign, cst.AnnAssign, cst.AugAssign,
                                         cst.NamedExpr, cst.Param):
            if isinstance(node, (cst.CompFor, cst.For)):
                items = node.iter.elements if isinstance(node.iter, (cst.List, cst.Tuple)) else ()
                bind(node.target, [e.value for e in items])
            elif isinstance(node, cst.Assign):
                for target in node.targets:
                    bind(target.target, [node.value])
            elif isinstance(node, cst.Param):
                bind(node.name, [])
            else:
                value = None if isinstance(node, cst.AugAssign) else node.value
                bind(node.target, [value] if value is not None else [])
        return seen

    def _unused_after(self, call: cst.Call, arg: cst.Arg) -> dict[cst.CSTNode, object]:
        """The edit that removes a local name which nothing but this hint reads."""
        function = self.source.tree.enclosing(call, cst.FunctionDef)
        if function is None or not isinstance(arg.value, cst.Name):
            return {}
        name = arg.value.value
        uses = [n for n in find(function, cst.Name) if n.value == name and n is not arg.keyword]
        assigned = [a for a in find(function.body, cst.Assign)
                    if any(n.value == name for t in a.targets for n in find(t.target, cst.Name))]
        if len(assigned) != 1 or len(uses) != 2 or len(assigned[0].targets) != 1:
            return {}
        target = assigned[0].targets[0].target
        if isinstance(target, cst.Name):
            return {assigned[0]: cst.RemoveFromParent()} if _has_no_call(assigned[0].value) else {}
        if not isinstance(target, cst.Tuple) or not all(isinstance(e.value, cst.Name) for e in target.elements):
            return {}
        keep = [i for i, e in enumerate(target.elements) if code(e.value) != name]
        value = _project(assigned[0].value, keep, len(target.elements))
        if value is None:
            return {}
        left = [target.elements[i] for i in keep]
        new = left[0].value if len(left) == 1 else target.with_changes(
            elements=[*left[:-1], left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
        old = assigned[0].value
        return {target: new, old: self._moved(old, value, len(code(target)) - len(code(new)))}

    def _moved(self, old: cst.BaseExpression, new: cst.BaseExpression, by: int) -> cst.BaseExpression:
        """The lines below the first one of a value, which stands `by` columns further left: those aligned with it."""
        first, *rest = code(new).split("\n")
        if not rest or '"""' in code(new) or "'''" in code(new):
            return new
        column = self.source.tree.span(old)[1] - self.source.tree.span(self.source.tree.statement(old))[1]
        if old.lpar:
            column -= len(old.lpar)             # a span is that of what the parentheses hold
        lines = [line[by:] if not line[:column].strip() and len(line) > column else line for line in rest]
        return cst.parse_expression("\n".join([first, *lines]), self.source.tree.module.config_for_parsing)


def launched(call: cst.Call) -> str | None:
    """The kernel's name in `k[grid](...)`, `mod.k[grid](...)` and `wrap_triton(k)[grid](...)`."""
    if not isinstance(call.func, cst.Subscript):
        return None
    target: cst.BaseExpression = call.func.value
    if isinstance(target, cst.Call) and target.args:
        target = target.args[0].value
    return (get_full_name_for_node(target) or "").rpartition(".")[2] or None


def _has_no_call(value: cst.BaseExpression) -> bool:
    return next(find(value, cst.Call), None) is None


def _project(value: cst.BaseExpression, keep: list[int], width: int) -> cst.BaseExpression | None:
    """Some elements of a tuple, also through conditional expressions whose branches are tuples."""
    if isinstance(value, cst.IfExp):
        body, orelse = _project(value.body, keep, width), _project(value.orelse, keep, width)
        return value.with_changes(body=body, orelse=orelse) if body is not None and orelse is not None else None
    if not isinstance(value, cst.Tuple) or len(value.elements) != width or not _has_no_call(value):
        return None
    elements = [value.elements[i] for i in keep]
    if len(elements) == 1:
        return elements[0].value
    return value.with_changes(elements=[*elements[:-1], elements[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
