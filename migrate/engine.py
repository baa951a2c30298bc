"""Rules run in order and one at a time, so that every change belongs to exactly one rule."""
from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from packaging.version import InvalidVersion, Version

from migrate.errors import MigrateError, UsageError
from migrate.rule import Finding, Note, Rule
from migrate.source import Source

PASSES = 10                 # a rule may uncover work for itself; one that never stops is a bug
ENTRY_POINTS = "migrate.rules"
TRITON_ASCEND = "3.2.0"     # the release ported for unless the user says otherwise
NEWEST = "3.5"              # what is newer, nobody has looked at


@dataclass(frozen=True)
class Step:
    """One pass of one rule that changed the file."""

    rule: type[Rule]
    before: Source
    after: Source
    notes: tuple[Note, ...]             # what it did

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What it did, at lines of `before`."""
        return tuple(dict.fromkeys(note.at(self.before) for note in self.notes))


@dataclass(frozen=True)
class Outcome:
    """What the rules made of one file. `open` are the findings left for a person, at lines of `final`."""

    first: Source
    final: Source
    steps: tuple[Step, ...]
    notes: tuple[Note, ...]

    @functools.cached_property
    def open(self) -> tuple[Finding, ...]:
        found = dict.fromkeys(note.at(self.final) for note in self.notes)
        return tuple(sorted(found, key=lambda f: (f.line, f.col, f.rule)))


class RuleCrashed(MigrateError):
    """A bug in a rule. Says which, and where in the file it was looking."""


def load() -> list[type[Rule]]:
    """Every rule of every installed pack (entry point group `migrate.rules`), in the order they run."""
    packs = {e.value for e in entry_points(group=ENTRY_POINTS)} | {"rules"}
    for pack in sorted(packs):
        package = importlib.import_module(pack)
        for info in pkgutil.walk_packages(package.__path__, pack + "."):
            importlib.import_module(info.name)
    inside = tuple(pack + "." for pack in packs)
    rules = sorted((r for r in Rule.__subclasses__() if r.__module__.startswith(inside)),
                   key=lambda r: (r.phase, r.id))
    for one, two in itertools.pairwise(sorted(rules, key=lambda r: r.id)):
        if one.id == two.id:
            raise UsageError(f"rules {one.__module__} and {two.__module__} share the id {one.id}")
    return rules


def select(rules: Sequence[type[Rule]], *, only: Sequence[str] = (), ignore: Sequence[str] = (),
           triton_ascend: str = TRITON_ASCEND) -> list[type[Rule]]:
    """The rules right for a triton-ascend release, narrowed by ids or names.

    Raises UsageError for an id or name that no rule has, and for a release that is none.
    """
    known = {key for r in rules for key in (r.id, r.name)}
    for name in (*only, *ignore):
        if name not in known:
            raise UsageError(f"no rule is called {name!r}; `migrate rules` lists them")
    try:
        release = Version(triton_ascend)
    except InvalidVersion:
        raise UsageError(f"{triton_ascend!r} is no version of triton-ascend; one is {TRITON_ASCEND}") from None
    return [r for r in rules
            if (not only or {r.id, r.name} & set(only)) and not {r.id, r.name} & set(ignore)
            and Version(r.since) <= release and (r.until is None or release < Version(r.until))]


def unknown_release(triton_ascend: str) -> bool:
    """Whether the rules know nothing of this release: newer than any that was looked at, or older than the first."""
    release = Version(triton_ascend)
    return release > Version(NEWEST) or release < Version(TRITON_ASCEND)


def apply(source: Source, rules: Sequence[type[Rule]]) -> Outcome:
    """Run each rule until it has nothing more to change, then the next. Raises RuleCrashed."""
    first, steps = source, []
    reported: list[type[Rule]] = []
    for rule in rules:
        for n in range(PASSES + 1):
            found = _look(rule, source)
            if found is None:
                break
            if not found.edits:
                if found.notes:
                    reported.append(rule)
                break
            if n == PASSES:
                raise RuleCrashed(f"{rule.id} {rule.name} still has something to change after {PASSES} passes")
            after = source.edited(source.tree.replace(found.edits))
            steps.append(Step(rule, source, after, tuple(note for note in found.notes if note.edited)))
            source = after
    # A rule that reported is asked again at the end: a later rule may have settled it, and lines have moved.
    asked = [_look(rule, source) for rule in reported]
    return Outcome(first, source, tuple(steps), tuple(note for a in asked if a for note in a.notes if not note.edited))


def _look(rule: type[Rule], source: Source) -> Rule | None:
    if rule.triggers and not any(t in source.text for t in rule.triggers):
        return None
    found = rule(source)
    try:
        found.run()
    except (MigrateError, RecursionError):
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
        raise RuleCrashed(f"{rule.id} {rule.name} crashed at {where}: {type(error).__name__}: {error}") from error
    return found
