"""What can be asked for: files and operators, and where the launches of each come from."""
from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from migrate import find, ports
from migrate.errors import UsageError
from migrate.gate import cache, process
from migrate.gate.toolchain import Toolchain

SPECIALISED = "specialised"     # below generated/: ports that operators made with options of their own


@dataclass(frozen=True)
class Unit:
    """A Python file to check, with the sources of its cases: files, or operators of the catalogue."""

    name: str
    file: Path
    root: Path | None               # where its package begins, for imports
    case_files: tuple[Path, ...] = ()
    operators: tuple[str, ...] = ()
    options: tuple[str, ...] = ()   # --cases and --root, where the user gave them

    def as_request(self, only: str) -> dict[str, Any]:
        return {"name": self.name, "file": str(self.file), "root": str(self.root) if self.root else "", "only": only,
                "case_files": [str(p) for p in self.case_files], "operators": list(self.operators)}


@dataclass(frozen=True)
class Kernel:
    name: str
    line: int


@dataclass
class Source:
    """What the text of a file says, without importing it."""

    kernels: list[Kernel] = field(default_factory=list)
    error: SyntaxError | None = None


def resolve(names: Sequence[str], toolchain: Toolchain, *, case_files: Sequence[Path] = (), root: Path | None = None,
            note: Callable[[str], None] = lambda text: None) -> list[Unit]:
    """Files by path or by the names that `migrate port` takes, operators by name, or `all`.

    A port that an operator wants with options of its own is made where it is missing or stale; `note` hears of it.
    """
    units: dict[str, Unit] = {}
    operators = _Operators(toolchain)
    for name in names:
        found: Iterable[Unit]
        if name == "all":
            found = [operators.unit(n) for n in operators.names()] + [
                u for p in _ports() if (u := _file_unit(p, operators, (), None)).case_files or u.operators]
        elif name.endswith(".py") or ":" in name or Path(name).exists():
            found = [_file_unit(_path(name), operators, tuple(p.resolve() for p in case_files), root)]
        else:
            found = [operators.unit(name)]
        for unit in found:
            # two files of one name are told apart by their folders
            for more in (os.path.relpath(unit.file, unit.root or unit.file.parent), str(unit.file)):
                if units.get(unit.name, unit).file != unit.file:
                    unit = replace(unit, name=more)
            units.setdefault(unit.name, unit)
    ports.make(operators.ports(units.values()), note)
    return list(units.values())


def of_operator(name: str, toolchain: Toolchain, note: Callable[[str], None] = lambda text: None) -> Unit:
    """Any operator of the catalogue; its port is made where it is missing or stale."""
    operators = _Operators(toolchain)
    unit = operators.unit(name, operators.catalogue())
    ports.make(operators.ports([unit]), note)
    return unit


def _path(name: str) -> Path:
    """A file here, or the port of what `migrate port NAME` would port; names that are ambiguous there are here."""
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    if path.is_dir():
        raise UsageError(f"{name} is a folder; check takes files, operators, or all")
    generated = package_folder() / "generated"
    exact = generated / name
    _, _, hits = find.released(name)
    if len(hits) > 1:
        shown = "\n".join(f"  migrate check {s.spec}:{f}" for s, f in hits)
        raise UsageError(f"{name} names {len(hits)} files; say which:\n{shown}")
    if hits:
        [(snapshot, file)] = hits
        port = generated / snapshot.port_as / Path(*Path(file).parts[1:])
        if not port.is_file():
            raise UsageError(f"{name} is not ported yet; first: migrate port {snapshot.spec}:{file}")
        return port
    found = [exact] if exact.is_file() else [p for p in _ports() if p.match(name)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"{name}: no such file here, none in the pinned releases, and no generated port of that "
                         "name; make one: migrate port FILE")
    shown = "\n".join(f"  migrate check {os.path.relpath(p)}" for p in found)
    raise UsageError(f"{name} is ambiguous; say which:\n{shown}")


def package_folder() -> Path:
    """The folder of `ported_kernels`."""
    spec = importlib.util.find_spec("ported_kernels")
    if spec and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path("ported_kernels").resolve()


def _ports() -> list[Path]:
    """The plain ones. What operators made with options of their own is launched by these operators alone."""
    generated = package_folder() / "generated"
    return sorted(p for p in generated.rglob("*.py") if not p.is_relative_to(generated / SPECIALISED))


def _file_unit(path: Path, operators: _Operators, case_files: tuple[Path, ...], root: Path | None) -> Unit:
    given = [part for file in case_files for part in ("--cases", str(file))]
    given += ["--root", str(root.resolve())] if root else []
    generated = package_folder() / "generated"
    specialised = path.is_relative_to(generated / SPECIALISED)
    if root is None and specialised:
        root = package_folder().parent
    elif root is None and path.is_relative_to(generated):
        root = generated       # a port keeps upstream's package path, and is imported under it
    # upstream's wrappers, which the case files call, do not launch what is folded for other values
    cases = case_files or (() if specialised else tuple(_case_files(path)))
    own = tuple(operators.living_in(path)) if not case_files else ()
    return Unit(path.name, path, (root or _package_root(path)).resolve(), cases, own, tuple(given))


def _package_root(path: Path) -> Path:
    folder = path.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _case_files(path: Path) -> Iterator[Path]:
    if any(isinstance(node, ast.FunctionDef) and node.name == "gate_cases" for node in _tree(path).body):
        yield path
    ours = package_folder() / "cases"
    for file in sorted(ours.glob("*/**/*.py")):
        # laid out as ports are, so that files of one name are told apart: cases/fla/ops/gla/chunk.py
        if path != file and path.match(str(file.relative_to(ours))):
            yield file


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())     # which heeds what the file says of its encoding
    except SyntaxError:
        return ast.Module([], [])


def read_source(path: Path) -> Source:
    """The kernels of a file. A jit function that returns a value, or that another one calls, is a helper."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        return Source(error=error)
    jitted = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
              and any(_is_jit(decorator) for decorator in node.decorator_list)}
    called = {call.func.id for node in jitted.values() for call in ast.walk(node)
              if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    returns = {name for name, node in jitted.items() for inner in ast.walk(node)
               if isinstance(inner, ast.Return) and inner.value is not None}
    return Source([Kernel(name, node.lineno) for name, node in jitted.items() if name not in called | returns])


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (isinstance(target, ast.Attribute) and target.attr == "jit") or \
           (isinstance(target, ast.Name) and target.id == "jit")


class _Operators:
    """The catalogue, as a child process sees it: importing it needs torch, which the command may not have."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._known: dict[str, dict[str, Any]] | None = None

    def _all(self) -> dict[str, dict[str, Any]]:
        return {name: operator for name, operator in self.catalogue().items() if not operator["checked_as_file"]}

    def catalogue(self) -> dict[str, dict[str, Any]]:
        """Those whose ports are checked as files, too."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> dict[str, dict[str, Any]]:
        folder = package_folder()
        sources = [p for p in sorted(folder.rglob("*.py")) if not p.is_relative_to(folder / "generated")]
        if not any(p.name == "catalog.py" for p in sources):
            return {}
        entries = cache.Entries("catalogue")
        key = cache.key({str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sources})
        if found := entries.find(key):
            return found[1]
        end = process.run([self._toolchain.python, "-m", "migrate.gate.child.operators"], process.Limits(),
                          env={**self._toolchain.environment, "PYTHONPATH": str(folder.parent) + ":"
                               + self._toolchain.environment["PYTHONPATH"]})
        if end.returncode:
            raise UsageError(f"the catalogue cannot be imported: {end.stderr.strip().splitlines()[-1:]}")
        operators: dict[str, dict[str, Any]] = json.loads(end.stdout.strip().splitlines()[-1])
        entries.put(key, operators, {})
        return operators

    def names(self) -> list[str]:
        return list(self._all())

    def living_in(self, path: Path) -> list[str]:
        return [name for name, operator in self._all().items() if operator["file"] == str(path)]

    def ports(self, units: Iterable[Unit]) -> list[ports.Wanted]:
        """The ports without which the operators of `units` do not run."""
        found = (self.catalogue()[name]["port"] for unit in units for name in unit.operators)
        return [ports.Wanted(**{**port, "place": Path(port["place"])}) for port in found if port]

    def unit(self, name: str, among: dict[str, dict[str, Any]] | None = None) -> Unit:
        known = self._all() if among is None else among
        if name not in known and (port := self.catalogue().get(name, {}).get("port")):
            raise UsageError(f"{name} is checked with the file that it comes from: {Path(port['place']).name}")
        if name not in known:
            raise UsageError(f"{name!r} is neither a file nor an operator; operators: {', '.join(known) or 'none'}")
        operator = known[name]
        root = Path(operator["root"]) if operator["root"] else package_folder().parent
        return Unit(name, Path(operator["file"]), root, operators=(name,))
