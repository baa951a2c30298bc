"""`--set-from`: the constants that cases launch a file's kernels with, as settings.

The compile gate records in a child process what cases launch, and runs nothing; here its records are read. What is set
is a `tl.constexpr` parameter that has the same value in every recorded launch of its kernel.
"""
from __future__ import annotations

import ast
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from migrate import command
from migrate.analysis import constants
from migrate.analysis.kernels import Kernel
from migrate.asked import NOTHING, Literal, Setting
from migrate.errors import MigrateError, UsageError
from migrate.find import Ensure, find
from migrate.gate import process, record, targets, toolchain, units
from migrate.gate.record import Launch, Record
from migrate.port import Settings
from upstream_snapshots import sync


@dataclass(frozen=True)
class Found:
    """`notes` say what was left, and why."""

    launches: int
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def settings_of(name: str, origin: str, settings: Settings, ensure: Ensure = sync.ensure) -> Found:
    """What to set of the kernels of the FILE `name`, from `origin`: an operator, or a Python file with `cases()`.

    A cases file is given the plain port of FILE, made for the occasion. An operator runs what it runs; its launches
    count where they are of kernels in a file of FILE's name, such as its port. Raises UsageError where there is nothing
    to record: no such operator, no cases, no launch; MigrateError where recording failed.
    """
    project, path = find(name, ensure)
    chain = toolchain.find()
    # values are recorded as they come: the chip matters to a wrapper that asks for its cores
    target = targets.get(settings.target)
    if not origin.endswith(".py"):
        unit = units.of_operator(origin, chain)
        [found] = record.record([unit], target, chain, process.Limits())
        launches = [launch for launch in _recorded(found, origin) if Path(launch.facts["file"]).name == Path(path).name]
    else:
        own = Path(origin).resolve() == (project.upstream.root / path).resolve()
        _has_cases(origin, "gate_cases" if own else "cases")
        with tempfile.TemporaryDirectory(prefix="migrate-set-from-") as folder:
            output = Path(folder).resolve()
            made = command.port(name, replace(settings, asked=NOTHING), output, ensure=ensure).ports[0]
            port = output / made.target
            unit = units.Unit(port.name, port, output, (port if own else Path(origin).resolve(),))
            [found] = record.record([unit], target, chain, process.Limits(), use_cache=False)
            launches = [launch for launch in _recorded(found, origin) if launch.facts["file"] == str(port)]
    files = sorted({launch.facts["file"] for launch in launches})
    if not files:
        raise UsageError(f"--set-from {origin}: no case launches a kernel of {path}")
    if len(files) > 1:
        raise UsageError(f"--set-from {origin}: its cases launch kernels of {', '.join(files)}; which of these is "
                         f"{path} cannot be told")
    source = project.source(path)
    kernels = [kernel for kernel in source.kernels.values() if not constants.is_helper(source, kernel)]
    results = [_agreed(kernel, launches) for kernel in kernels]
    return Found(len(launches), tuple(s for agreed, _ in results for s in agreed),
                 tuple(note for _, notes in results for note in notes))


def _has_cases(origin: str, function: str) -> None:
    path = Path(origin)
    if not path.is_file():
        raise UsageError(f"--set-from {origin}: no such file; expected an operator or a Python file with {function}()")
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UsageError(f"--set-from {origin}: line {error.lineno}: {error.msg}") from error
    if not any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
        raise UsageError(f"--set-from {origin}: expected a function {function}() in it, that yields the cases")


def _recorded(found: Record, origin: str) -> list[Launch]:
    """Raises MigrateError unless every case was recorded: the one that is missing might differ."""
    failed = {"importing": found.imports} if found.imports else found.failed_cases
    for where, failure in failed.items():
        said = failure.error
        raise MigrateError(f"--set-from {origin}: recording failed: {where}: {said['type'] or failure.outcome}: "
                           f"{' '.join(said['message'].split())} ({said['file']}:{said['line']})")
    if not found.cases:
        raise UsageError(f"--set-from {origin}: it has no cases")
    return list(found.launches.values())


def _agreed(kernel: Kernel, launches: list[Launch]) -> tuple[list[Setting], list[str]]:
    mine = [launch.facts for launch in launches if launch.facts["kernel"] == kernel.name]
    if not mine:
        return [], [f"{kernel.name}: no case launches it"]
    agreed, notes = [], []
    for name in (name for name, parameter in kernel.params.items() if parameter.constexpr):
        values: dict[tuple[type, Literal], None] = {}
        for facts in mine:
            if name in facts["constants"] and name not in facts["unspoken"]:
                values[type(facts["constants"][name]), facts["constants"][name]] = None
        known = all(name in facts["constants"] and name not in facts["unspoken"] for facts in mine)
        if not known or not all(_literal(value) for _, value in values):
            notes.append(f"{kernel.name}.{name}: not in every launch as a number, True, False, None or text; left")
        elif len(values) > 1:
            notes.append(f"{kernel.name}.{name}: {_listed(value for _, value in values)} in the launches; left")
        else:
            [(_, value)] = values
            agreed.append(Setting(name, value, kernel.name))
    return agreed, notes


def _literal(value: Literal) -> bool:
    """Whether `--set NAME=VALUE` can say it, and a header, whose options are split at spaces."""
    if isinstance(value, str):
        return not any(c.isspace() for c in value)
    return not isinstance(value, float) or math.isfinite(value)


def _listed(values: Iterator[Literal]) -> str:
    shown = sorted(map(repr, values))
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
