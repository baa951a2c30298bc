"""A file of a package, and the modules of it that the port imports, through the rules.

Porting one file depends on that file, its package and the rules, and on nothing else. So a closure is a work list:
port a file, look which modules of its own package the result imports, port those.
"""
from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from migrate import __version__, engine, header
from migrate.analysis import constants
from migrate.asked import NOTHING, Asked
from migrate.encoding import PythonFile
from migrate.engine import Outcome
from migrate.errors import MigrateError
from migrate.gate import targets
from migrate.header import Header
from migrate.project import PackageProject, definition, imports, module_name
from migrate.rule import Finding, Rule
from migrate.source import Source

UNKNOWN_IGNORE, UNUSED_IGNORE = "MIG001", "MIG002"
COMMENT_WIDTH = 110
JIT = re.compile(rb"^[ \t]*@(?:(\w+)\.)?(?:\w+\.)*jit\b", re.MULTILINE)
NOT_TRITON = frozenset({b"tilelang", b"cute", b"gluon", b"torch", b"numba"})


@dataclass(frozen=True)
class Settings:
    """What a port depends on besides the file. `known` are the ids and names that an ignore comment may use."""

    rules: tuple[type[Rule], ...]
    known: frozenset[str]
    triton_ascend: str = engine.TRITON_ASCEND
    target: str = targets.DEFAULT
    asked: Asked = NOTHING          # of the file named, not of the modules that it imports

    @classmethod
    def make(cls, *, only: Sequence[str] = (), ignore: Sequence[str] = (),
             triton_ascend: str = engine.TRITON_ASCEND, target: str = targets.DEFAULT,
             asked: Asked = NOTHING) -> Settings:
        """Raises UsageError for an id or name that no rule has, a release that is none, or a chip that is unknown."""
        targets.get(target)
        everything = engine.load()
        chosen = engine.select(everything, only=only, ignore=ignore, triton_ascend=triton_ascend)
        known = frozenset(key for r in everything for key in (r.id, r.name))
        return cls(tuple(chosen), known, triton_ascend, target, asked)

    @functools.cached_property
    def tool(self) -> str:
        """The line of the header that says what made a port."""
        return (f"migrate {__version__}, {len(self.rules)} rules {_digest(self.rules)}, "
                f"triton-ascend {self.triton_ascend}, {self.target}{f', {self.asked}' if self.asked else ''}")


@functools.cache
def _digest(rules: tuple[type[Rule], ...]) -> str:
    """Changes with the choice of rules and with the text of any of them."""
    digest = hashlib.sha256()
    for rule in rules:
        digest.update(rule.id.encode())
        digest.update(Path(inspect.getfile(rule)).read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Ported:
    """One file, before and after. `text` is the ported file whole: header, comments for a person, code."""

    project: PackageProject
    path: str                       # of the package, relative to its root
    file: PythonFile
    outcome: Outcome
    open: tuple[Finding, ...]       # left for a person, at lines of the upstream file's last version
    text: str
    needs: tuple[str, ...]          # modules of the package that the port imports

    @property
    def target(self) -> str:
        """Where the port goes, relative to the output folder."""
        upstream = self.project.upstream
        return upstream.port_as + self.path.removeprefix(upstream.package) if upstream.package else self.path

    @property
    def data(self) -> bytes:
        """The ported file as bytes, in upstream's encoding."""
        return self.file.encode(self.text)

    @property
    def fired(self) -> Counter[str]:
        """How many changes each rule made."""
        return Counter(note.rule.id for step in self.outcome.steps for note in step.notes)

    @property
    def kernels(self) -> list[str]:
        return list(self.outcome.first.kernels)

    @property
    def body(self) -> str:
        """The hash of the port without its header, which also names the version of the tool."""
        return header.body_hash(header.remove(self.text))


def port_file(project: PackageProject, path: str, settings: Settings) -> Ported:
    """Raises MigrateError when the file cannot be read or parsed, or a rule crashes; the message names the file.

    Raises UsageError for a value that is set of no kernel's parameter.
    """
    file = project.file(path)
    source = project.source(path).asking(settings.asked)
    constants.check(source, path)
    try:
        outcome = engine.apply(source, settings.rules)
        final = outcome.final.text
    except engine.RuleCrashed as error:
        raise engine.RuleCrashed(f"{project.upstream.root / path}: {error}") from error
    except RecursionError as error:
        raise MigrateError(f"{project.upstream.root / path}: an expression is nested too deeply") from error
    try:
        ast.parse(final)
    except SyntaxError as error:
        last = outcome.steps[-1].rule.id if outcome.steps else "the tool"
        raise engine.RuleCrashed(f"{project.upstream.root / path}: the result is not Python at line {error.lineno} "
                                 f"({error.msg}), after {last} and the rules before it; this is a bug") from error
    findings = tuple(sorted((*outcome.open, *ignore_findings(outcome, settings)), key=lambda f: (f.line, f.col)))
    upstream = project.upstream
    text = header.add(with_comments(final, findings, settings.rules), Header(
        upstream=upstream.spec if upstream.name else "not a pinned release", path=path, sha256=file.sha256,
        licence=upstream.licence or "see the file", tool=settings.tool))
    return Ported(project, path, file, outcome, findings, text, tuple(needs(outcome.final)))


def closure(project: PackageProject, path: str, settings: Settings) -> Iterator[Ported]:
    """The port of a file, then of each module that it needs, each once."""
    todo, seen = [path], {path}
    while todo:
        ported = port_file(project, todo.pop(0), settings)
        yield ported
        todo += new_paths(project, ported.needs, seen)
        settings = dataclasses.replace(settings, asked=NOTHING)


def new_paths(project: PackageProject, modules: Iterable[str], seen: set[str]) -> list[str]:
    """The files of modules that were not seen before; they are now."""
    paths = [p for p in (project.path(m) for m in modules) if p is not None and p not in seen]
    seen.update(paths)
    return list(dict.fromkeys(paths))


def needs(source: Source) -> list[str]:
    """Modules of the source's own package that it imports anywhere but under TYPE_CHECKING."""
    found: dict[str, None] = {}
    if source.project is None or not source.module:
        return []
    for node, _ in imports(source):
        module = source.imported_module(node) if isinstance(node, cst.ImportFrom) else None
        if module is None or not isinstance(node, cst.ImportFrom) or not source.project.has(module):
            continue
        if isinstance(node.names, cst.ImportStar):
            found[module] = None
            continue
        for alias in node.names:
            if source.project.has(f"{module}.{alias.evaluated_name}"):
                other = source.project.module(module)
                if other is not None and definition(other, alias.evaluated_name)[1] == "":
                    found[f"{module}.{alias.evaluated_name}"] = None
                    continue
            found[module] = None
    return [name for name in found if name != source.module]


def ignore_findings(outcome: Outcome, settings: Settings) -> list[Finding]:
    """Ignore comments that name no rule, or that kept nothing from happening though the rule ran."""
    ran = {key: r.id for r in settings.rules for key in (r.id, r.name)}
    used = outcome.final.used_ignores
    found = []
    for ignore in outcome.final.ignores:
        for key in sorted(ignore.ids):
            if key not in settings.known:
                found.append(Finding(UNKNOWN_IGNORE, ignore.line, 1, f"no rule is called {key!r}", False, ignore.line))
            elif key in ran and (ignore.comment, key) not in used:
                found.append(Finding(UNUSED_IGNORE, ignore.line, 1,
                                     f"{key} finds nothing to do here: remove it from the ignore comment", False,
                                     ignore.line))
        if not ignore.ids:
            found.append(Finding(UNKNOWN_IGNORE, ignore.line, 1, "name the rules to ignore in the brackets", False,
                                 ignore.line))
    return found


def with_comments(text: str, findings: Iterable[Finding], rules: Iterable[type[Rule]]) -> str:
    """The text with a comment above each statement that a person has to look at."""
    names = {r.id: r.name for r in rules}
    lines = text.split("\n")
    at: dict[int, list[Finding]] = {}
    for finding in findings:
        at.setdefault(finding.statement or finding.line, []).append(finding)
    for line in sorted(at, reverse=True):
        below = lines[line - 1]
        indent = below[:len(below) - len(below.lstrip())]
        end = "\r" if below.endswith("\r") else ""
        said = dict.fromkeys(tuple(comment_lines(f, names.get(f.rule, "ignore-comment"), indent)) for f in at[line])
        new = [comment for comments in said for comment in comments]
        already = lines[max(0, line - 1 - len(new)):line - 1]
        if [a.rstrip("\r") for a in already] != new:
            lines[line - 1:line - 1] = [comment + end for comment in new]
    return "\n".join(lines)


def comment_lines(finding: Finding, name: str, indent: str) -> list[str]:
    return textwrap.wrap(f"# migrate: {finding.rule} {name}: {' '.join(finding.message.split())}",
                         width=max(60, COMMENT_WIDTH - len(indent)), initial_indent=indent,
                         subsequent_indent=f"{indent}#   ", break_long_words=False, break_on_hyphens=False)


def at_lines_of(ported: Ported) -> list[Finding]:
    """The open findings at lines of the ported file: where its reader finds them."""
    text = ported.text.split("\n")
    wanted = ported.outcome.final.text.split("\n")
    # Comments and the header were only added: the final lines occur in order.
    place, row = {}, 0
    for number, line in enumerate(wanted, 1):
        while row < len(text) and text[row] != line:
            row += 1
        row += 1
        place[number] = row
    return [dataclasses.replace(f, line=place[f.line]) for f in ported.open]


def kernels_of(project: PackageProject, paths: Iterable[str]) -> list[str]:
    """The files that hold a Triton function, by their text: cheap, and rather one too many than one too few."""
    found = []
    for path in paths:
        try:
            text = (project.upstream.root / path).read_bytes()
        except OSError:
            found.append(path)                          # porting it says what is wrong
            continue
        if b"triton" in text and any(m[1] not in NOT_TRITON for m in JIT.finditer(text)):
            found.append(path)
    return found


__all__ = ["Ported", "Settings", "at_lines_of", "closure", "kernels_of", "module_name", "needs", "port_file"]
