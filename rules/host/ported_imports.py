"""ASC002 ported-imports."""
from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import libcst as cst

from migrate.edit import code, statement
from migrate.project import definition, imports
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit

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
        Example("a constant comes after the imports that follow, unless one of them needs it",
            before="""
                import torch

                # which release this is
                from pkg import __version__
                from pkg.ops.index import offsets

                BLOCK = 64
                """,
            after="""
                import torch

                from .index import offsets

                __version__ = "1.0"

                BLOCK = 64
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
                self._swap(node, [f"from {self._relative(module)} import *"], [module])
            return
        other = self.source.project.module(module)
        if other is None:
            return
        groups: dict[str, list[str]] = {}
        constants: dict[str, str] = {}
        moved = False
        for alias in node.names:
            name = alias.evaluated_name
            local = alias.evaluated_alias or name
            home, there = definition(other, name)
            if not there:                               # a submodule: imported from its parent
                home, _, there = home.rpartition(".")
            elif value := self._literal(home, there):
                constants[local] = value
                moved = True
                continue
            moved |= home != module
            groups.setdefault(home, []).append(there if there == local and not alias.asname else f"{there} as {local}")
        if moved:
            self._swap(node, [f"from {self._relative(home)} import {', '.join(names)}"
                              for home, names in groups.items()], list(groups), constants, module)
        elif not node.relative:                         # the statement keeps its layout
            stem = cst.ensure_type(cst.parse_statement(f"from {self._relative(module)} import x"),
                                   cst.SimpleStatementLine).body[0]
            assert isinstance(stem, cst.ImportFrom)
            self.replace(node, node.with_changes(module=stem.module, relative=stem.relative),
                         _imported([module]))

    def _literal(self, module: str, name: str) -> str | None:
        """The text of a constant (`__version__ = "1.0"`) that an `__init__.py` defines."""
        assert self.source.project is not None
        home = self.source.project.module(module)
        value = home.constants.get(name) if home and home.is_package else None
        return code(value) if isinstance(value, (cst.SimpleString, cst.Integer, cst.Float)) else None

    def _plain(self, node: cst.Import) -> None:
        assert self.source.project is not None
        lines, modules = [], []
        for alias in node.names:
            name, local = alias.evaluated_name, alias.evaluated_alias
            if local is None or "." not in name or not self.source.project.has(name):
                self.report(node, f"`{code(node)}` binds the package itself: import what is used from it by name")
                return
            parent, _, last = name.rpartition(".")
            lines.append(f"from {self._relative(parent)} import {last} as {local}")
            modules.append(name)
        self._swap(node, lines, modules)

    def _swap(self, node: cst.Import | cst.ImportFrom, lines: list[str], modules: list[str],
              constants: Mapping[str, str] = MappingProxyType({}), home: str = "") -> None:
        """Imports and constants in place of one import; the first keeps the comments around it."""
        line = self.source.tree.parent(node)
        count = len(lines) + len(constants)
        if not isinstance(line, cst.SimpleStatementLine) or (len(line.body) > 1 and count > 1):
            self.report(node, f"`{home or modules[0]}`: write this import on a line of its own")
            return
        says = "; ".join(filter(None, (_imported(modules), _written_out(list(constants), home))))
        new = [statement(text, self.source.tree.module) for text in lines]
        written = [statement(f"{name} = {value}", self.source.tree.module) for name, value in constants.items()]
        last = self._last_import(line, constants.keys()) if constants else line
        if last is line:
            new += written
        if last is line and len(new) == 1:
            small = cst.ensure_type(new[0], cst.SimpleStatementLine).body[0]
            self.replace(node, small.with_changes(semicolon=node.semicolon), says)
            return
        edits: dict[cst.CSTNode, Edit] = {}
        if new:
            first = line.with_changes(body=cst.ensure_type(new[0], cst.SimpleStatementLine).body)
            edits[line] = cst.FlattenSentinel([first, *new[1:]])
        else:
            edits = self._without(line)
        if last is not line:
            apart = written[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
            edits[last] = cst.FlattenSentinel([edits.get(last, last), apart, *written[1:]])
        # What touches a statement that is edited already waits for the next pass.
        if not any(n in self.edits for n in edits):
            self.together(edits, says, at=node)

    def _without(self, line: cst.SimpleStatementLine) -> dict[cst.CSTNode, Edit]:
        """Removes a statement of the module; blank lines above it, and comments set apart, go to the one below."""
        statements = [unit.statement for unit in self.source.tree.units]
        below = statements[statements.index(line) + 1]
        lines = list(line.leading_lines)
        while lines and lines[-1].comment:
            lines.pop()
        if not lines:
            return {line: cst.RemoveFromParent()}
        return {line: cst.RemoveFromParent(),
                below: below.with_changes(leading_lines=[*lines, *getattr(below, "leading_lines", ())])}

    def _last_import(self, line: cst.SimpleStatementLine, names: Collection[str]) -> cst.CSTNode:
        """The last of the imports that follow a statement of the module and read none of `names`; else itself."""
        last: cst.CSTNode = line
        below = itertools.dropwhile(lambda unit: unit.statement is not line, self.source.tree.units)
        for unit in itertools.islice(below, 1, None):
            if (len(line.body) > 1 or isinstance(unit.statement, (cst.FunctionDef, cst.ClassDef))
                    or any(n.value in names for n in unit.index.get(cst.Name, ()) if isinstance(n, cst.Name))):
                break
            if cst.Import in unit.index or cst.ImportFrom in unit.index:
                last = unit.statement
        return last

    def _relative(self, module: str) -> str:
        """How a module of the same package is written in a `from ... import` of this file."""
        here = self.source.module.split(".") if self.source.is_package else self.source.module.split(".")[:-1]
        there = module.split(".")
        common = 0
        while common < min(len(here), len(there)) and here[common] == there[common]:
            common += 1
        return "." * (len(here) - common + 1) + ".".join(there[common:])


def _imported(modules: Sequence[str]) -> str:
    if not modules:
        return ""
    listed = ", ".join(f"`{m}`" for m in modules)
    return (f"{listed} is ported too: imported from the ported copy" if len(modules) == 1 else
            f"{listed} are ported too: imported from the ported copies")


def _written_out(names: Sequence[str], module: str) -> str:
    if not names:
        return ""
    listed = ", ".join(f"`{n}`" for n in names)
    return f"{listed} of `{module}` {'is' if len(names) == 1 else 'are'} written out: its `__init__.py` stays behind"
