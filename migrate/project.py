"""The package around a file: its other modules, and where one of their names is really defined."""
from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from migrate import encoding
from migrate.encoding import PythonFile
from migrate.source import Source
from migrate.tree import find


@dataclass(frozen=True)
class Upstream:
    """Where a package comes from; `name` and `version` are "" for a folder that is no pinned release."""

    root: Path                  # the folder that would be on sys.path
    port_as: str                # its first folder under the output
    package: str                # its first folder upstream, "" for a lone file
    name: str = ""
    version: str = ""
    licence: str = ""

    @property
    def spec(self) -> str:
        return f"{self.name}=={self.version}" if self.name else str(self.root)


class PackageProject:
    """The modules of one package as upstream wrote them, parsed when first asked for (see source.Project)."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._sources: dict[str, Source | None] = {}
        self._files: dict[str, PythonFile] = {}

    def path(self, module: str) -> str | None:
        """The file of a module, relative to the root; None where the package has no such module."""
        if not module or module.partition(".")[0] != self.upstream.package:
            return None
        stem = module.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if (self.upstream.root / path).is_file():
                return path
        return None

    def file(self, path: str) -> PythonFile:
        """Raises MigrateError when it cannot be read as Python."""
        if path not in self._files:
            self._files[path] = encoding.read(self.upstream.root / path)
        return self._files[path]

    def source(self, path: str) -> Source:
        """A file of the package, parsed. Raises MigrateError when it does not parse."""
        module = module_name(path)
        if self._sources.get(module) is None:
            self._sources[module] = self._parse(path, module)
        source = self._sources[module]
        assert source is not None
        return source

    def module(self, name: str) -> Source | None:
        if name not in self._sources:
            path = self.path(name)
            self._sources[name] = self._parse(path, name) if path else None
        return self._sources[name]

    def has(self, name: str) -> bool:
        return self.path(name) is not None

    def named_elsewhere(self, name: str, module: str) -> bool:
        word, own = name.encode(), self.path(module)
        return any(path != own and word in text and f"def {name}(".encode() not in text
                   for path, text in self._texts.items())

    @functools.cached_property
    def _texts(self) -> dict[str, bytes]:
        """Every file of the package. A lone file has no package, and nothing beside it is read."""
        if not self.upstream.package:
            return {}
        folder = self.upstream.root / self.upstream.package
        return {p.relative_to(self.upstream.root).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*.py"))
                if p.is_file()}

    def _parse(self, path: str, module: str) -> Source:
        text = self.file(path).text
        shown = str(self.upstream.root / path)
        try:
            return Source.parse(text, module=module, is_package=path.endswith("__init__.py"), project=self)
        except cst.ParserSyntaxError as error:
            raise encoding.syntax_error(text, shown, error.message) from error
        except RecursionError as error:
            raise encoding.syntax_error(text, shown, "nested too deeply") from error


class TextProject:
    """Modules from their text, for examples and tests."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def has(self, name: str) -> bool:
        return name in self.texts or any(other.startswith(name + ".") for other in self.texts)

    def named_elsewhere(self, name: str, module: str) -> bool:
        return any(other != module and name in text and f"def {name}(" not in text
                   for other, text in self.texts.items())

    @functools.cache    # noqa: B019  it lives as long as one test
    def module(self, name: str) -> Source | None:
        if not self.has(name):
            return None
        package = any(other.startswith(name + ".") for other in self.texts)
        return Source.parse(self.texts.get(name, ""), module=name, is_package=package, project=self)


def module_name(path: str) -> str:
    """`a/b/__init__.py` -> `a.b`"""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def of_path(path: Path) -> Upstream:
    """The package that a file on disk belongs to: the outermost folder of the chain that has an `__init__.py`."""
    top = path.parent
    while (top / "__init__.py").is_file() and top.parent != top:
        top = top.parent
    parts = path.relative_to(top).parts
    package = parts[0] if len(parts) > 1 else ""
    return Upstream(root=top, port_as=package, package=package)


def definition(source: Source, name: str) -> tuple[str, str]:
    """Where the module-level `name` of a package's module is defined: (module, its name there).

    Re-exports are followed. A submodule is (`a.b.name`, ""). What cannot be told from the text (`__getattr__`, names
    made by `setattr`) counts as defined in the module that was asked.
    """
    seen: set[tuple[str, str]] = set()
    while (source.module, name) not in seen:
        seen.add((source.module, name))
        bound = exports(source)
        if name not in bound:
            here = f"{source.module}.{name}"
            if source.is_package and source.project is not None and source.project.has(here):
                return here, ""
            return source.module, name
        origin = bound[name]
        if origin is None:
            break
        module, attribute = origin
        if origin == (source.module, name):           # `from . import name` in an __init__.py
            return f"{module}.{name}", ""
        other = source.project.module(module) if source.project else None
        if other is None:
            break
        source, name = other, attribute
    return source.module, name


@functools.lru_cache(maxsize=1024)
def exports(source: Source) -> dict[str, tuple[str, str] | None]:
    """Module-level names: None for what the module defines, else the module and name that it imports.

    Only imports from the module's own package count as imports: anything else is defined here.
    """
    return _exports(source, frozenset())


def _exports(source: Source, asking: frozenset[str]) -> dict[str, tuple[str, str] | None]:
    """`asking` are the modules on the way here: two may star-import each other."""
    asking |= {source.module}
    table: dict[str, tuple[str, str] | None] = {}
    for node, at_import in imports(source):
        if not at_import or not isinstance(node, cst.ImportFrom):
            continue
        module = source.imported_module(node)
        if module is None or module.partition(".")[0] != source.module.partition(".")[0]:
            continue
        if isinstance(node.names, cst.ImportStar):
            other = source.project.module(module) if source.project else None
            for name in _exports(other, asking) if other and other.module not in asking else ():
                if not name.startswith("_"):
                    table.setdefault(name, (module, name))
            continue
        for alias in node.names:
            local = alias.evaluated_alias or alias.evaluated_name
            table[local] = (module, alias.evaluated_name)
    for name in _defined(source):
        table[name] = None
    return table


def imports(source: Source) -> Iterator[tuple[cst.Import | cst.ImportFrom, bool]]:
    """Import statements, and whether importing the module runs them; those under TYPE_CHECKING are left out."""
    for node in source.tree.all(cst.Import, cst.ImportFrom):
        above = list(source.tree.ancestors(node))
        if any(isinstance(a, cst.If) and mentions(a.test, "TYPE_CHECKING") for a in above):
            continue
        yield node, not any(isinstance(a, cst.FunctionDef) for a in above)


def mentions(node: cst.CSTNode, name: str) -> bool:
    return any(n.value == name for n in find(node, cst.Name))


def _defined(source: Source) -> Iterator[str]:
    """Names that top-level code binds by other means than importing from its own package."""
    stack: list[cst.CSTNode] = [u.statement for u in source.tree.units]
    own = source.module.partition(".")[0]
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            yield node.name.value
        elif isinstance(node, (cst.If, cst.Try, cst.With, cst.For, cst.While, cst.Else, cst.Finally,
                               cst.ExceptHandler, cst.IndentedBlock)):
            stack += node.children
        elif isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                targets: list[cst.BaseExpression] = []
                if isinstance(small, cst.Assign):
                    targets = [t.target for t in small.targets]
                elif isinstance(small, (cst.AnnAssign, cst.AugAssign)):
                    targets = [small.target]
                elif isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar):
                    module = source.imported_module(small) if isinstance(small, cst.ImportFrom) else ""
                    if isinstance(small, cst.ImportFrom) and (module or own).partition(".")[0] == own:
                        continue
                    for alias in small.names:
                        yield alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
                for target in targets:
                    yield from (n.value for n in find(target, cst.Name))
