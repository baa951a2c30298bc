"""ASC009 backend-dispatch."""
from __future__ import annotations

import libcst as cst

from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find

DISPATCH = frozenset({"fla.backends.dispatch", "fla.backends.register", "fla.ops.backends.dispatch"})


class BackendDispatch(Rule):
    """Remove FLA's `@dispatch("...")` and `@register(...)`, so that calling the ported function runs the ported kernel.

    ## Why
    The decorator lets CUDA libraries, TileLang, Gluon or, on an NPU, FLA's own `triton_ascend` code take the place of
    the function at each call. It finds them by importing `fla.ops.<name>.backends`, which is not part of a port, when
    the decorated module is imported. In a port the function below the decorator is the implementation: it is what
    `dispatch` calls where no backend accepts, and what was checked. Nor does a port register itself as the backend of
    another function, which has no registry without the decorator.

    ## What it leaves alone
    * `dispatch` and `register` used in other ways than as a decorator: reported.
    * functions of that name from elsewhere.
    """

    id = "ASC009"
    name = "backend-dispatch"
    summary = "a ported function runs the ported kernel, not what `fla.backends` picks"
    safety = Safety.REVIEW
    triggers = ("dispatch", "register")
    references = (
        Ref("https://github.com/fla-org/flash-linear-attention/blob/main/fla/ops/backends/__init__.py",
            "falls back to the decorated function when no backend accepts; disabled by FLA_DISABLE_BACKEND_DISPATCH=1",
            "source"),
    )
    examples = (
        Example("the decorator and its import go",
            before="""
                import torch

                from fla.backends import dispatch
                from fla.utils import input_guard

                # q: [B, T, H, K]
                @dispatch('kda')
                @input_guard
                def chunk(q):
                    return q
                """,
            after="""
                import torch

                from fla.utils import input_guard

                # q: [B, T, H, K]
                @input_guard
                def chunk(q):
                    return q
                """),
        Example("the only decorator, and an import that gives other names",
            before="""
                from fla.ops.backends import BaseBackend, dispatch

                @dispatch('kda')
                def chunk(q):
                    return BaseBackend
                """,
            after="""
                from fla.ops.backends import BaseBackend

                def chunk(q):
                    return BaseBackend
                """),
        Example("a backend of another function is a function",
            before="""
                import torch
                from fla.backends import register

                @register(chunk, backend=Ascend)
                def chunk_ascend(q):
                    return q
                """,
            after="""
                import torch

                def chunk_ascend(q):
                    return q
                """),
        Example("reports another use",
            before="""
                from fla.backends import dispatch

                chunk = dispatch('kda')(slow_chunk)
                """,
            after=SAME, reports=1),
        Example("leaves a function of that name from elsewhere",
            before="""
                from functools import singledispatch as dispatch

                @dispatch
                def chunk(q):
                    return q
                """,
            after=SAME),
    )

    def finish(self) -> None:
        decorators = []
        covered: set[cst.CSTNode] = set()
        for node in self.source.tree.all(cst.Decorator):
            called = node.decorator.func if isinstance(node.decorator, cst.Call) else node.decorator
            if self.source.qualified(called) in DISPATCH:
                decorators.append(node)
                covered.update(find(node, cst.Name, cst.Attribute))
        others = [n for n in self.source.tree.all(cst.Name) if n not in covered and self._is_use(n)]
        for name in others:
            self.report(name, "backends that FLA chooses at run time are not part of a port: call the function itself")
        removed = [d for d in decorators if self._remove(d)]
        if removed and len(removed) == len(decorators) and not others:
            self._drop_import(removed[0])

    def _remove(self, decorator: cst.Decorator) -> bool:
        return self.replace(decorator, cst.RemoveFromParent(),
                            f"removed `@{code(decorator.decorator)}`: a port runs its own kernel")

    def _is_use(self, name: cst.Name) -> bool:
        parent = self.source.tree.parent(name)
        while isinstance(parent, (cst.ImportAlias, cst.AsName)):
            return False
        return self.source.qualified(name) in DISPATCH and not isinstance(parent, (cst.Attribute, cst.ImportFrom))

    def _drop_import(self, on_behalf_of: cst.Decorator) -> None:
        for node in self.source.tree.all(cst.ImportFrom):
            if isinstance(node.names, cst.ImportStar):
                continue
            base = self.source.imported_module(node)
            kept = [a for a in node.names if f"{base}.{a.evaluated_name}" not in DISPATCH]
            if len(kept) == len(node.names):
                continue
            new: cst.ImportFrom | cst.RemovalSentinel = cst.RemoveFromParent()
            if kept:
                kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                new = node.with_changes(names=kept)
            line = self.source.tree.parent(node)
            edits: dict[cst.CSTNode, Edit] = {node: new}
            if not kept and isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
                edits = {line: new, **self._hand_down(line)}
            self.together(edits, "removed the import: nothing of it is left", at=on_behalf_of)

    def _hand_down(self, line: cst.SimpleStatementLine) -> dict[cst.CSTNode, Edit]:
        """The comments and blank lines above a line that goes, moved to the statement below it."""
        below = [u.statement for u in self.source.tree.units]
        after = below[below.index(line) + 1:] if line in below else []
        if not line.leading_lines or not after:
            return {}
        lines = [*line.leading_lines, *getattr(after[0], "leading_lines", ())]
        return {after[0]: after[0].with_changes(leading_lines=lines)}
