"""ASC002 ported-imports."""
from __future__ import annotations

import libcst as cst

from migrate.edit import code, statement
from migrate.project import definition, imports
from migrate.rule import SAME, Example, Ref, Rule, Safety

UTILS = {"pkg.ops.utils": "from pkg.ops.index import offsets\nfrom . import op\n",
         "pkg.ops.index": "def offsets(lengths): ...\n",
         "pkg.ops.utils.op": "def exp(x): ...\n",
         "pkg.ops.scan": "", "pkg.flags": "USE_FAST = False\n"}


class PortedImports(Rule):
    """Make imports from the file's own package relative, each from the module that defines the name.

    ## Why
    A port is a closure: the file and every module of its package that it imports are ported together, into a folder
    of another name. Relative imports find the ported copies wherever that folder is, and cannot fall back on an
    upstream package that happens to be installed. Upstream's `__init__.py` files import hundreds of modules, GPU-only
    ones among them; going to the module that defines a name leaves them behind, and so does writing out a constant
    such as `__version__` that an `__init__.py` defines.

    ## What it leaves alone
    * imports under `if TYPE_CHECKING:`, which never run;
    * other packages, and files that are in no package;
    * `import a.b.c` without `as`, and modules that the package does not have. Reported.
    """

    id = "ASC002"
    name = "ported-imports"
    summary = "imports of the same package go to the ported copies"
    safety = Safety.SAFE
    triggers = ("import",)
    references = (
        Ref("https://docs.python.org/3/reference/import.html#package-relative-imports",
            "relative imports resolve against the package they stand in", "doc"),
        Ref("https://github.com/fla-org/flash-linear-attention/blob/v0.5.2/fla/ops/__init__.py",
            "importing one operator through the package imports all of them", "source"),
    )
    examples = (
        Example("names go to the modules that define them",
            before="""
                from pkg.ops.utils import offsets, op  # helpers
                from pkg.flags import USE_FAST as FAST
                """,
            after="""
                from .index import offsets  # helpers
                from .utils import op
                from ..flags import USE_FAST as FAST
                """,
            module="pkg.ops.scan", others=UTILS),
        Example("a module under another name, and an import inside a function",
            before="""
                import pkg.ops.index as index

                def scan(x):
                    from pkg.ops.utils.op import exp
                    return exp(x)
                """,
            after="""
                from . import index as index

                def scan(x):
                    from .utils.op import exp
                    return exp(x)
                """,
            module="pkg.ops.scan", others=UTILS),
        Example("a constant of the package is written out",
            before="""
                from pkg import __version__
                """,
            after="""
                __version__ = "1.0"
                """,
            module="pkg.ops.scan", others={**UTILS, "pkg": '__version__ = "1.0"\nimport gpu_library\n'}),
        Example("leaves what only type checkers read, and other packages",
            before="""
                import torch

                if TYPE_CHECKING:
                    from pkg.ops.context import Context
                """,
            after=SAME, module="pkg.ops.scan", others=UTILS),
        Example("reports what it cannot place",
            before="""
                import pkg.ops.index
                from pkg.compiled import fast_scan
                """,
            after=SAME, reports=2, module="pkg.ops.scan", others=UTILS),
    )

    def finish(self) -> None:
        own = self.source.module.partition(".")[0]
        if not self.source.module or self.source.project is None:
            return
        for node, _ in imports(self.source):
            if isinstance(node, cst.ImportFrom):
                module = self.source.imported_module(node)
                if module is not None and module.partition(".")[0] == own:
                    self._from(node, module)
            elif any(alias.evaluated_name.partition(".")[0] == own for alias in node.names):
                self._plain(node)

    def _from(self, node: cst.ImportFrom, module: str) -> None:
        assert self.source.project is not None
        if not self.source.project.has(module):
            self.report(node, f"`{module}` is not among the package's Python files: what it gives must come from "
                              "elsewhere on an NPU")
            return
        if isinstance(node.names, cst.ImportStar):
            if not node.relative:
                self._swap(node, [f"from {self._relative(module)} import *"], module)
            return
        other = self.source.project.module(module)
        if other is None:
            return
        groups: dict[str, list[str]] = {}
        constants: list[str] = []
        moved = False
        for alias in node.names:
            name = alias.evaluated_name
            local = alias.evaluated_alias or name
            home, there = definition(other, name)
            if not there:                               # a submodule: imported from its parent
                home, _, there = home.rpartition(".")
            elif value := self._literal(home, there):
                constants.append(f"{local} = {value}")
                moved = True
                continue
            moved |= home != module
            groups.setdefault(home, []).append(there if there == local and not alias.asname else f"{there} as {local}")
        if moved:
            self._swap(node, [f"from {self._relative(home)} import {', '.join(names)}"
                              for home, names in groups.items()] + constants, module)
        elif not node.relative:                         # the statement keeps its layout
            stem = cst.ensure_type(cst.parse_statement(f"from {self._relative(module)} import x"),
                                   cst.SimpleStatementLine).body[0]
            assert isinstance(stem, cst.ImportFrom)
            self.replace(node, node.with_changes(module=stem.module, relative=stem.relative), self._says(module))

    def _literal(self, module: str, name: str) -> str | None:
        """The text of a constant (`__version__ = "1.0"`) that an `__init__.py` defines."""
        assert self.source.project is not None
        home = self.source.project.module(module)
        value = home.constants.get(name) if home and home.is_package else None
        return code(value) if isinstance(value, (cst.SimpleString, cst.Integer, cst.Float)) else None

    def _plain(self, node: cst.Import) -> None:
        assert self.source.project is not None
        lines = []
        for alias in node.names:
            name, local = alias.evaluated_name, alias.evaluated_alias
            if local is None or "." not in name or not self.source.project.has(name):
                self.report(node, f"`{code(node)}` binds the package itself: import what is used from it by name")
                return
            parent, _, last = name.rpartition(".")
            lines.append(f"from {self._relative(parent)} import {last} as {local}")
        self._swap(node, lines, node.names[0].evaluated_name)

    def _swap(self, node: cst.Import | cst.ImportFrom, lines: list[str], module: str) -> None:
        """Import statements in place of one; the first keeps the comments around it."""
        line = self.source.tree.parent(node)
        if not isinstance(line, cst.SimpleStatementLine):
            self.report(node, f"`{module}`: write this import on a line of its own")
            return
        new = [statement(text, self.source.tree.module) for text in lines]
        small = [cst.ensure_type(s, cst.SimpleStatementLine).body[0] for s in new]
        if len(line.body) > 1 and len(small) > 1:
            self.report(node, f"`{module}`: write this import on a line of its own")
        elif len(small) == 1:
            semicolon = node.semicolon
            self.replace(node, small[0].with_changes(semicolon=semicolon), self._says(module))
        else:
            first = line.with_changes(body=[small[0]])
            self.replace(line, cst.FlattenSentinel([first, *new[1:]]), self._says(module), at=node)

    def _says(self, module: str) -> str:
        return f"`{module}` is ported too: imported from the ported copy"

    def _relative(self, module: str) -> str:
        """How a module of the same package is written in a `from ... import` of this file."""
        here = self.source.module.split(".") if self.source.is_package else self.source.module.split(".")[:-1]
        there = module.split(".")
        common = 0
        while common < min(len(here), len(there)) and here[common] == there[common]:
            common += 1
        return "." * (len(here) - common + 1) + ".".join(there[common:])
