"""Which rule changed which line: the steps of the engine, followed line by line.

Each line of each version knows whether it is a line of upstream's file, and if not, who made it. So the difference
between upstream's file and the port needs no guessing about which line became which.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.engine import Step
from migrate.port import Ported
from migrate.tree import Tree, Unit

_Span = tuple[int, int, "Note", bool]
STATEMENTS = (cst.BaseStatement, cst.BaseSmallStatement, cst.Decorator)
ALIKE = 0.3                     # share of words from which on a line counts as another one changed
LARGE = 10_000                  # pairs of lines, above which nobody reads which became which
TOOL = "port"                   # owner of the header's lines
LEFT = "left for a person"      # what is said of a comment that a finding left


@dataclass(frozen=True)
class Note:
    """A rule, and the sentence it gave for a change."""

    rule: str
    message: str


@dataclass
class Line:
    """A line of some version. `origin` counts upstream's lines from 0; None for a line that a rule wrote.

    `root` is the upstream line that it took the place of, if there is one; `moved` if it differs from that one in
    nothing but its indentation.
    """

    text: str
    origin: int | None
    notes: tuple[Note, ...] = ()
    root: int | None = None
    moved: bool = False


@dataclass(frozen=True)
class Change:
    """A line of the difference: `sign` is " ", "-" or "+". The text keeps its line feed; a last line may have none."""

    sign: str
    text: str
    notes: tuple[Note, ...] = ()

    @property
    def owner(self) -> str:
        """The rule that wrote the line as it stands, or took it away: the last one; "" for a line that stayed."""
        return self.notes[-1].rule if self.notes else ""


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



def hunks(ported: Ported, context: int = 3, *, with_header: bool = True) -> list[Hunk]:
    """The difference between upstream's file and the port, each changed line with the rules that changed it."""
    changes = [c for c in difference(ported) if with_header or c.owner != TOOL]
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
    edits = _Edits(step)
    for i1, i2, new in _blocks(step.before.tree, step.after.tree, lines, _split(step.after.text)):
        if new is None:
            out += lines[i1:i2]
            continue
        heirs: dict[int, int] = {}
        made: list[Line] = []
        for k1, k2, j1, j2 in _pairs([line.text for line in lines[i1:i2]], new):
            old = range(i1 + k1, i1 + k2)
            if len(old) == j2 - j1:
                heirs.update(zip(old, range(len(made), len(made) + len(old)), strict=True))
                made += [_heir(lines[k], text, edits.on(k, k + 1)) for k, text in zip(old, new[j1:j2], strict=True)]
            elif j1 < j2:
                earlier = tuple(n for k in old for n in lines[k].notes)
                if old:
                    notes = edits.on(old.start, old.stop)
                else:                                       # goes with the line before it, or the one it is put before
                    notes = edits.on(old.start - 1, old.start) if k1 else edits.on(old.start, min(old.start + 1, i2))
                made += [Line(text, None, _last(earlier, notes)) for text in new[j1:j2]]
        for k in range(i1, i2):
            _leaves(lines[k], made[heirs[k]] if k in heirs else None, edits, k, gone)
        out += made
    return out


def _heir(line: Line, text: str, notes: tuple[Note, ...]) -> Line:
    root = line.root if line.origin is None else line.origin
    moved = (line.origin is not None or line.moved) and line.text.strip() == text.strip()
    return Line(text, None, _last(line.notes, notes), root, moved)


def _last(earlier: tuple[Note, ...], notes: tuple[Note, ...]) -> tuple[Note, ...]:
    """In the order in which they were acted on."""
    return (*dict.fromkeys(n for n in earlier if n not in notes), *notes)


def _leaves(line: Line, heir: Line | None, edits: _Edits, at: int, gone: dict[int, tuple[Note, ...]]) -> None:
    """Who took an upstream line away: the first to change more than its indentation, and who removed the rest."""
    if line.origin is not None:
        gone[line.origin] = edits.on(at, at + 1)
    elif line.root is not None and line.moved and (heir is None or not heir.moved):
        gone[line.root] = edits.on(at, at + 1)
    elif line.root is not None and heir is None:
        notes = edits.on(at, at + 1)
        gone[line.root] = notes if edits.whole(at) else _last(gone[line.root], notes)


def _pairs(old: list[str], new: list[str]) -> list[tuple[int, int, int, int]]:
    """Ranges of old and new lines that belong together, in order: first by what they say but for the indentation,
    then by the words that they share."""
    a, b = [line.strip() for line in old], [line.strip() for line in new]
    same = []
    k = j = 0
    for k1, j1, size in difflib.SequenceMatcher(lambda text: not text, a, b, autojunk=False).get_matching_blocks():
        if k1 - k != j1 - j:
            same += [(k + one, j + two) for one, two in _alike(a[k:k1], b[j:j1])]
        else:
            same += zip(range(k, k1), range(j, j1), strict=True)
        same += zip(range(k1, k1 + size), range(j1, j1 + size), strict=True)
        k, j = k1 + size, j1 + size
    out = []
    k = j = 0
    for k1, j1 in [*same, (len(old), len(new))]:
        if k < k1 or j < j1:
            out.append((k, k1, j, j1))
        if k1 < len(old) and j1 < len(new):
            out.append((k1, k1 + 1, j1, j1 + 1))
        k, j = k1 + 1, j1 + 1
    return out


def _alike(old: list[str], new: list[str]) -> list[tuple[int, int]]:
    """Pairs of similar lines, in order: those that together share most."""
    if not old or not new or len(old) * len(new) > LARGE:
        return []
    words = [[frozenset(re.findall(r"\w+", line)) for line in lines] for lines in (old, new)]
    best: list[list[tuple[float, tuple[tuple[int, int], ...]]]] = [[(0.0, ())] * (len(new) + 1)]
    for k, one in enumerate(words[0]):
        row: list[tuple[float, tuple[tuple[int, int], ...]]] = [(0.0, ())]
        for j, two in enumerate(words[1]):
            here = max(best[k][j + 1], row[j], key=lambda b: b[0])
            alike = len(one & two) / max(1, len(one | two))
            if alike > ALIKE and best[k][j][0] + alike > here[0]:
                here = (best[k][j][0] + alike, (*best[k][j][1], (k, j)))
            row.append(here)
        best.append(row)
    return list(best[-1][-1][1])


class _Edits:
    """The lines that each edit of a step stands on, so that a changed line finds the sentence about it."""

    def __init__(self, step: Step) -> None:
        tree = step.before.tree
        self._spans = [(*_lines_of(node, tree), Note(n.rule.id, n.message), isinstance(node, STATEMENTS))
                       for n in step.notes for node in n.nodes]

    def on(self, first: int, end: int) -> tuple[Note, ...]:
        """The notes of the innermost edits on lines `first` to `end` (from 0), or, where nothing was taken away,
        of those around the place; of the nearest where there is none."""
        found: list[Note] = []
        for line in range(first, end):
            found += [n for _, _, n, _ in self._innermost(line)]
        if not found:
            found = [n for _, _, n, _ in self._smallest([s for s in self._spans if s[0] <= first and end <= s[1]])]
        if not found and self._spans:
            found = [min(self._spans, key=lambda s: max(s[0] - end, first - s[1]))[2]]
        return tuple(dict.fromkeys(found))

    def whole(self, line: int) -> bool:
        """Whether the line is part of a statement that was edited as one."""
        return any(statement for *_, statement in self._innermost(line))

    def _innermost(self, line: int) -> list[_Span]:
        return self._smallest([s for s in self._spans if s[0] <= line < s[1]])

    @staticmethod
    def _smallest(spans: list[_Span]) -> list[_Span]:
        least = min((s[1] - s[0] for s in spans), default=0)
        return [s for s in spans if s[1] - s[0] == least]


def _lines_of(node: cst.CSTNode, tree: Tree) -> tuple[int, int]:
    """First line of a node and the one after its last, from 0, with the comments and decorators above it."""
    first, _, last = tree.span(node)
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        first = min([first, *(_lines_of(d, tree)[0] + 1 for d in node.decorators)])
    return first - 1 - len(getattr(node, "leading_lines", ())), last


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
    if len(before.units) == len(after.units):   # one for one: each is compared with what became of it alone
        kept = {id(u) for u in (*before.units, *after.units)}

    def ends(tree: Tree) -> list[tuple[Unit, int, int]]:
        return [(u, tree.first_line(u) - 1, tree.first_line(u) - 1 + u.lines) for u in tree.units if id(u) in kept]

    cuts: list[tuple[int, int, bool]] = []
    i = j = 0
    for (one, i1, i2), (two, j1, j2) in zip(ends(before), ends(after), strict=True):
        if one is not two and len(before.units) != len(after.units):        # statements that changed places
            return [(old, new, False)]
        if (i1, j1) != (i, j):
            cuts.append((i1, j1, False))
        cuts.append((i2, j2, one is two))
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
