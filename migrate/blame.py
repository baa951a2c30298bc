"""Which rule changed which line: the steps of the engine, followed line by line.

Each line of each version knows whether it is a line of upstream's file, and if not, who made it. So the difference
between upstream's file and the port needs no guessing about which line became which.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from migrate.engine import Step
from migrate.port import Ported
from migrate.rule import Finding
from migrate.tree import Tree, Unit

TOOL = "port"                   # owner of the header's lines
LEFT = "left for a person"      # what is said of a comment that a finding left


@dataclass(frozen=True)
class Note:
    """A rule, and the sentence it gave for a change."""

    rule: str
    message: str


@dataclass
class Line:
    """A line of some version. `origin` counts upstream's lines from 0; None for a line that a rule wrote."""

    text: str
    origin: int | None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Change:
    """A line of the difference: `sign` is " ", "-" or "+". The text keeps its line feed; a last line may have none."""

    sign: str
    text: str
    notes: tuple[Note, ...] = ()

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.rule for n in self.notes))


@dataclass
class Hunk:
    """Changes that stand together, with lines around them. Line numbers count from 1."""

    old_start: int
    new_start: int
    lines: list[Change] = field(default_factory=list)

    @property
    def old_length(self) -> int:
        return sum(c.sign != "+" for c in self.lines)

    @property
    def new_length(self) -> int:
        return sum(c.sign != "-" for c in self.lines)

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(dict.fromkeys(n for c in self.lines for n in c.notes))

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.rule for n in self.notes))


def hunks(ported: Ported, context: int = 3, *, with_header: bool = True) -> list[Hunk]:
    """The difference between upstream's file and the port, each changed line with the rules that changed it."""
    changes = [c for c in difference(ported) if with_header or c.rules != (TOOL,)]
    marked = [i for i, c in enumerate(changes) if c.sign != " "]
    out: list[Hunk] = []
    end = -1
    old = new = 1
    numbers = []
    for change in changes:
        numbers.append((old, new))
        old += change.sign != "+"
        new += change.sign != "-"
    for i in marked:
        first, last = max(0, i - context), min(len(changes), i + context + 1)
        if not out or first > end:
            out.append(Hunk(*numbers[first]))
            end = first
        out[-1].lines += changes[end:last]
        end = max(end, last)
    return out


def difference(ported: Ported) -> list[Change]:
    """Every line of both files, in order."""
    upstream = _split(ported.outcome.first.text)
    lines = [Line(text, i) for i, text in enumerate(upstream)]
    gone: dict[int, tuple[Note, ...]] = {}
    for step in ported.outcome.steps:
        lines = _follow(step, lines, gone)
    lines = _added(lines, _split(ported.text))
    return _align(upstream, lines, gone)


def _split(text: str) -> list[str]:
    """Lines by line feed alone, as git counts them."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _follow(step: Step, lines: list[Line], gone: dict[int, tuple[Note, ...]]) -> list[Line]:
    out: list[Line] = []
    blocks = list(_blocks(step.before.tree, step.after.tree, lines, _split(step.after.text)))
    changed = [(i1, i2) for i1, i2, new in blocks if new is not None]
    spoken: dict[tuple[int, int], list[Finding]] = {}
    for finding in step.findings:
        nearest = min(changed, key=lambda b: _distance(finding.line - 1, *b))
        spoken.setdefault(nearest, []).append(finding)
    for i1, i2, new in blocks:
        if new is None:
            out += lines[i1:i2]
            continue
        near = spoken.get((i1, i2), [])
        if not near and step.findings:          # a change far from where the rule speaks of it
            near = [min(step.findings, key=lambda f: _distance(f.line - 1, i1, i2))]
        notes = tuple(dict.fromkeys(Note(f.rule, f.message) for f in near))
        before = tuple(dict.fromkeys(n for line in lines[i1:i2] for n in line.notes))
        for line in lines[i1:i2]:
            if line.origin is not None:
                gone[line.origin] = notes
        out += [Line(text, None, (*before, *(n for n in notes if n not in before))) for text in new]
    return out


def _distance(line: int, first: int, end: int) -> int:
    return 0 if first <= line < max(end, first + 1) else min(abs(line - first), abs(line - end + 1))


def _blocks(before: Tree, after: Tree, old: list[Line],
            new: list[str]) -> list[tuple[int, int, list[str] | None]]:
    """Runs of old lines, each with what took its place, or None where it stayed. Only changed statements are
    compared: an edit leaves every other one the same object."""
    out: list[tuple[int, int, list[str] | None]] = []
    i = j = 0
    for i2, j2, same in _anchors(before, after, len(old), len(new)):
        if same:
            out.append((i, i2, None))
        else:
            a, b = [line.text for line in old[i:i2]], new[j:j2]
            for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
                out.append((i + a1, i + a2, None if tag == "equal" else b[b1:b2]))
        i, j = i2, j2
    return out


def _anchors(before: Tree, after: Tree, old: int, new: int) -> list[tuple[int, int, bool]]:
    """Where to cut both versions: (end in the old one, end in the new one, are the lines up to there the same)."""
    if not (before.module.has_trailing_newline and after.module.has_trailing_newline):
        return [(old, new, False)]
    kept = {id(u) for u in before.units} & {id(u) for u in after.units}

    def ends(tree: Tree) -> list[tuple[Unit, int, int]]:
        return [(u, tree.first_line(u) - 1, tree.first_line(u) - 1 + u.lines) for u in tree.units if id(u) in kept]

    cuts: list[tuple[int, int, bool]] = []
    i = j = 0
    for (one, i1, i2), (two, j1, j2) in zip(ends(before), ends(after), strict=True):
        if one is not two:                      # statements that changed places
            return [(old, new, False)]
        if (i1, j1) != (i, j):
            cuts.append((i1, j1, False))
        cuts.append((i2, j2, True))
        i, j = i2, j2
    if (i, j) != (old, new):
        cuts.append((old, new, False))
    return cuts


def _added(lines: list[Line], final: Sequence[str]) -> list[Line]:
    """The header and the comments for a person, which are only ever added."""
    out: list[Line] = []
    at = 0
    owner: Note | None = None
    for text in final:
        if at < len(lines) and lines[at].text == text:
            out.append(lines[at])
            at += 1
            continue
        words = text.split()
        if text.lstrip().startswith("# migrate: ") and len(words) > 2:
            owner = Note(words[2], LEFT)
        elif not text.lstrip().startswith("#   "):
            owner = None
        out.append(Line(text, None, (owner or Note(TOOL, "header"),)))
    return out


def _align(upstream: list[str], lines: list[Line], gone: dict[int, tuple[Note, ...]]) -> list[Change]:
    """Removed lines before added ones between any two lines that stayed."""
    out: list[Change] = []
    at = 0
    added: list[Line] = []

    def flush(until: int) -> None:
        nonlocal at
        removed = [Change("-", upstream[k], gone.get(k, ())) for k in range(at, until)]
        plus = [Change("+", line.text, line.notes) for line in added]
        tail: list[Change] = []
        while removed and plus and removed[0].text == plus[0].text:         # changed, and changed back
            out.append(Change(" ", removed.pop(0).text))
            plus.pop(0)
        while removed and plus and removed[-1].text == plus[-1].text:
            tail.insert(0, Change(" ", removed.pop().text))
            plus.pop()
        out.extend((*removed, *plus, *tail))
        added.clear()
        at = until

    for line in lines:
        if line.origin is None:
            added.append(line)
        else:
            flush(line.origin)
            out.append(Change(" ", line.text))
            at = line.origin + 1
    flush(len(upstream))
    return out
