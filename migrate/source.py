"""One version of one file, with what rules ask about it: names, ignore comments, and where other modules are."""
from __future__ import annotations

import functools
import io
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import libcst as cst
from libcst.helpers import get_absolute_module_for_import, get_full_name_for_node

from migrate.asked import NOTHING, Asked
from migrate.tree import Tree, find

if TYPE_CHECKING:
    from migrate.analysis.kernels import Kernel
    from migrate.analysis.launches import Launch
    from migrate.rule import Rule

IGNORE = re.compile(r"#\s*migrate:\s*ignore\[(?P<ids>[^\]]*)\]")


class Project(Protocol):
    """Finds the other modules of the package that a file belongs to."""

    def module(self, name: str) -> Source | None:
        """The module `a.b.c` as upstream wrote it; None where this package has none."""

    def has(self, name: str) -> bool:
        """Whether the package has such a module; cheaper than `module`, which parses it."""

    def named_elsewhere(self, name: str, module: str) -> bool:
        """Whether a file other than that of `module` has the name without defining it: it may import and use it."""


@dataclass
class Ignore:
    """A `# migrate: ignore[ASC101, drop-strides] reason` comment and the lines of the statement it covers."""

    line: int
    first: int
    last: int
    ids: frozenset[str]
    comment: str


class Source:
    """Facts are worked out on first use. An edit makes a new Source; what an edit does not touch is shared."""

    def __init__(self, tree: Tree, *, module: str = "", is_package: bool = False,
                 project: Project | None = None, used_ignores: set[tuple[str, str]] | None = None,
                 asked: Asked = NOTHING) -> None:
        self.tree = tree
        self.module = module                    # dotted name, "" for a file outside any package
        self.is_package = is_package
        self.project = project
        self.asked = asked                      # of this file, not of the modules that it imports
        # (comment text, rule id): survives edits, which move lines but never change these comments
        self.used_ignores = used_ignores if used_ignores is not None else set()

    @classmethod
    def parse(cls, text: str, **about: Any) -> Source:
        """Raises libcst.ParserSyntaxError."""
        return cls(Tree.parse(text), **about)

    def edited(self, tree: Tree) -> Source:
        return Source(tree, module=self.module, is_package=self.is_package, project=self.project,
                      used_ignores=self.used_ignores, asked=self.asked)

    def asking(self, asked: Asked) -> Source:
        """The same version of the file, for which something is asked."""
        return Source(self.tree, module=self.module, is_package=self.is_package, project=self.project,
                      used_ignores=self.used_ignores, asked=asked)

    @property
    def text(self) -> str:
        return self.tree.code

    # Names

    def qualified(self, node: cst.CSTNode | None) -> str:
        """`tl.load` -> `triton.language.load`, through this file's imports; "" for what is not a dotted name."""
        name = get_full_name_for_node(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
        head, dot, tail = (name or "").partition(".")
        return self.imports.get(head, head) + dot + tail

    @functools.cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted name, for every import statement of the file, wherever it stands."""
        table: dict[str, str] = {}
        for node in self.tree.all(cst.Import, cst.ImportFrom):
            stem = ""
            if isinstance(node, cst.ImportFrom):
                base = self.imported_module(node)
                if base is None or isinstance(node.names, cst.ImportStar):
                    continue
                stem = base + "."
            for alias in node.names:
                if alias.asname:
                    table[alias.evaluated_alias or ""] = stem + alias.evaluated_name
                else:
                    name = alias.evaluated_name if stem else alias.evaluated_name.partition(".")[0]
                    table[name] = stem + name
        return table

    @functools.cached_property
    def language(self) -> str:
        """What this file calls `triton.language`, usually `tl`."""
        return next((k for k, v in self.imports.items() if v == "triton.language"), "triton.language")

    def imported_module(self, node: cst.ImportFrom) -> str | None:
        """The absolute module of a `from ... import`; None when a relative one leaves the package."""
        if not node.relative:
            return get_full_name_for_node(node.module) if node.module else None
        if not self.module:
            return None
        package = self.module if self.is_package else self.module.rpartition(".")[0]
        return get_absolute_module_for_import(package + ".x", node)

    @functools.cached_property
    def definitions(self) -> dict[str, cst.FunctionDef]:
        """Functions of this file by name; the last of several with one name, as Python has it."""
        return {f.name.value: f for f in self.tree.all(cst.FunctionDef)}

    def resolve(self, name: str) -> tuple[Source, cst.FunctionDef] | None:
        """The function that a name means here, also when it is imported from a module of the same package."""
        if name in self.definitions:
            return self, self.definitions[name]
        module, _, attribute = self.imports.get(name, "").rpartition(".")
        for _ in range(5):                      # a package may re-export what its own modules export
            other = self.project.module(module) if self.project and module else None
            if other is None:
                return None
            if attribute in other.definitions:
                return other, other.definitions[attribute]
            module, _, attribute = other.imports.get(attribute, "").rpartition(".")
        return None

    @functools.cached_property
    def constants(self) -> dict[str, cst.BaseExpression]:
        """Module-level names assigned exactly once, with the expression."""
        seen: dict[str, cst.BaseExpression | None] = {}
        for unit in self.tree.units:
            for node in find(unit.statement, cst.Assign, cst.AnnAssign, cst.AugAssign):
                targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
                top = isinstance(unit.statement, cst.SimpleStatementLine)
                value = None if isinstance(node, cst.AugAssign) else node.value
                for target in targets:
                    if isinstance(target, cst.Name):
                        known = target.value in seen
                        if top:
                            seen[target.value] = None if known else value
                        elif isinstance(unit.statement, (cst.If, cst.Try, cst.With, cst.For, cst.While)):
                            seen[target.value] = None
        return {k: v for k, v in seen.items() if v is not None}

    @functools.cached_property
    def strings(self) -> frozenset[str]:
        """The values of all plain string literals of the file."""
        return frozenset(str(s.evaluated_value) for s in self.tree.all(cst.SimpleString))

    @functools.cached_property
    def calls(self) -> dict[str, list[cst.Call]]:
        """Calls of plain names, by name."""
        found: dict[str, list[cst.Call]] = {}
        for call in self.tree.all(cst.Call):
            if isinstance(call.func, cst.Name):
                found.setdefault(call.func.value, []).append(call)
        return found

    # Facts about kernels; the analysis modules do the work

    @functools.cached_property
    def kernels(self) -> dict[str, Kernel]:
        from migrate.analysis.kernels import kernels
        return kernels(self)

    @functools.cached_property
    def launches(self) -> list[Launch]:
        from migrate.analysis.launches import launches
        return launches(self)

    # Ignore comments

    def ignored(self, node: cst.CSTNode, rule: Rule | type[Rule]) -> bool:
        """Whether an ignore comment on the statement (or on a line of it) covers this node for this rule."""
        if not self.ignores:
            return False
        line = self.tree.span(node)[0]
        for ignore in self.ignores:
            hit = ignore.ids & {rule.id, rule.name}
            if hit and ignore.first <= line <= ignore.last:
                self.used_ignores.update((ignore.comment, i) for i in hit)
                return True
        return False

    @functools.cached_property
    def ignores(self) -> list[Ignore]:
        """Each ignore comment with the statement it covers: the innermost it stands in, else the next one."""
        if "migrate:" not in self.text:
            return []
        lines, blocks = [], []                  # (first line, last line) of what a comment can cover
        for node in self.tree.all(cst.SimpleStatementLine, cst.Decorator):
            first, _, last = self.tree.span(node)
            lines.append((first, last))
        for node in self.tree.all(cst.FunctionDef, cst.For, cst.While, cst.With, cst.If):
            first, _, last = self.tree.span(node)
            if isinstance(node, cst.FunctionDef) and node.decorators:
                first = self.tree.span(node.decorators[0])[0]
            blocks.append((first, last))
        starts = sorted(lines + blocks, key=lambda s: (s[0], -s[1]))
        found = []
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            hit = IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
            if hit is None:
                continue
            at, alone = token.start[0], not token.line[:token.start[1]].strip()
            inside = [s for s in lines if s[0] <= at <= s[1]]
            if not inside and not alone:        # after the colon of a compound statement
                inside = [s for s in blocks if s[0] <= at <= s[1]]
            after = [s for s in starts if s[0] > at]
            first, last = min(inside, key=lambda s: s[1] - s[0]) if inside else after[0] if after else (at, at)
            ids = frozenset(i.strip() for i in hit["ids"].split(",") if i.strip())
            found.append(Ignore(at, first, last, ids, token.string))
        return found
