"""ASC212 split-tile."""
from __future__ import annotations

import functools
from collections.abc import Iterable

import libcst as cst

from migrate.analysis.axes import Axes, axes
from migrate.analysis.axis_values import Axis, Length
from migrate.analysis.kernels import Kernel
from migrate.asked import Literal
from migrate.edit import code, removed, statement
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.tiles.fit_line import WIDTH, fit
from rules.tiles.parts import PART, CannotSplit, Line, Parts

Problem = tuple[cst.CSTNode, str]


class SplitTile(Rule):
    """TODO"""

    id = "ASC212"
    name = "split-tile"
    summary = "an axis that is too long for the core's buffers goes in parts of 64, where that is asked for"
    safety = Safety.REVIEW
    phase = 1                   # the other rules have made pointers and products plain by then
    references = ()
    examples = ()

    def finish(self) -> None:
        words = self.source.asked.split
        kernels = [k for k in self.source.kernels.values() if not self._is_helper(k)]
        if not words or not kernels:
            return
        named: set[str] = set()
        for kernel in kernels:
            named |= self._kernel(kernel, words)
        for word in words:
            if word not in named:
                self.report(kernels[0].node, f"`--split {word}`: no kernel of this file has an axis of this length"
                            if word.isdigit() else f"`--split {word}`: no kernel of this file knows a constant {word}")

    @functools.cached_property
    def _called(self) -> frozenset[str]:
        """Triton functions that others call."""
        return frozenset(name for kernel in self.source.kernels.values() for call in find(kernel.node.body, cst.Call)
                         if isinstance(call.func, cst.Name) and (name := call.func.value) in self.source.kernels)

    def _is_helper(self, kernel: Kernel) -> bool:
        return kernel.name in self._called or any(r.value for r in find(kernel.node.body, cst.Return))

    def _kernel(self, kernel: Kernel, words: Iterable[str]) -> set[str]:
        """Cuts the axes that are asked for, all or none. Returns the words that mean something here."""
        values = self._values(kernel, words)
        found = axes(kernel, values)
        named: set[str] = set()
        cut: dict[Axis, int] = {}
        problems: list[Problem] = []
        for word in words:
            hits = [axis for axis in found.all() if any(_is(word, length) for length in axis.lengths)]
            if hits or _knows(kernel, word) or (word.isdigit() and _in_parts(found)):
                named.add(word)
            if not hits and not word.isdigit() and _knows(kernel, word) and not _in_parts(found):
                problems.append((kernel.node, f"`--split {word}`: no axis of this kernel is {word} long; "
                                              f"{_lengths(found)}"))
            for axis in hits:
                total = next(length.number.value for length in axis.lengths if _is(word, length))
                trouble = self._unfit(kernel, word, axis, total)
                if trouble is not None:
                    problems.append(trouble)
                elif isinstance(total, int):
                    cut[axis] = total // PART
        if not problems:
            blocks = [(b.node, f"{_name(b.axis.root)} stays whole: the axis {b.why}") for b in found.blocks
                      if b.axis.root in cut]
            problems = sorted(blocks, key=lambda p: self.source.tree.span(p[0]))[:1]
        if not problems and cut:
            try:
                self._rewrite(kernel, found, cut, values)
            except CannotSplit as stop:
                problems = [(stop.node, f"{', '.join(sorted({_name(a) for a in cut}))} stays whole: {stop.why}")]
        for node, message in dict.fromkeys(problems):
            self.report(node, message)
        return named

    def _values(self, kernel: Kernel, words: Iterable[str]) -> dict[str, Literal]:
        """What is set, and the defaults of what is to be split: the kernel will insist on them."""
        values = dict(self.source.asked.values(kernel.name))
        for word in words:
            default = kernel.params[word].default if word in kernel.params else None
            if word not in values and isinstance(default, cst.Integer):
                values[word] = default.evaluated_value
        return values

    def _unfit(self, kernel: Kernel, word: str, axis: Axis, total: Literal) -> Problem | None:
        if not isinstance(total, int) or isinstance(total, bool):
            return kernel.node, f"`--split {word}` needs the value: add `--set {word}=128`"
        if total <= PART:
            return kernel.node, f"{word} is {total}: an axis of up to {PART} is not split"
        if total % PART:
            return kernel.node, f"{word} is {total}: only a multiple of {PART} is split"
        for length in axis.lengths:
            if length.number.value != total:
                node = length.node if length.node in self.source.tree else kernel.node
                return node, (f"{word} stays whole: the same axis is `{code(length.node)}` long here, "
                              f"which is not known to be {total}")
        return None

    def _rewrite(self, kernel: Kernel, found: Axes, cut: dict[Axis, int], values: dict[str, Literal]) -> None:
        """Raises CannotSplit."""
        parts = Parts(kernel, found, cut)
        tests: dict[cst.CSTNode, Edit] = {}
        needed: set[str] = set()
        for node in find(kernel.node.body, cst.If, cst.While, cst.For):
            test = node.iter if isinstance(node, cst.For) else node.test
            new = parts.whole(test)
            if new is not test:
                tests[test] = new
        small = {node: lines for node in _statements(kernel.node.body) if (lines := parts.lines(node)) is not None}
        for new in tests.values():
            needed |= {n.value for n in find(new, cst.Name)}
        live = _live(small.values(), needed)
        edits = tests | self._edits(small, live)
        asserts = self._asserts(kernel, cut, values)
        first = _after_docstring(kernel)
        if asserts and first is not None:
            edits[first] = cst.FlattenSentinel([*asserts, *_several(edits.get(first, first))])
        names = [f"`{name}`" for name in parts.separators]
        lengths = ", ".join(dict.fromkeys(f"{_name(a)} in {n} parts of {PART}" for a, n in cut.items()))
        self.together(edits, f"{lengths}: {', '.join(names)}", at=kernel.node)

    def _edits(self, small: dict[cst.BaseSmallStatement, list[Line]], live: set[str]) -> dict[cst.CSTNode, Edit]:
        edits: dict[cst.CSTNode, Edit] = {}
        tree = self.source.tree
        for node, lines in small.items():
            holder = tree.parent(node)
            kept = [line.node for line in lines if line.keep or line.sets & live]
            if not isinstance(holder, cst.SimpleStatementLine):
                edits[node] = cst.FlattenSentinel(kept) if kept else cst.RemoveFromParent()
            elif holder not in edits:
                new: list[cst.BaseSmallStatement] = []
                for one in holder.body:
                    lines = small.get(one, [Line(one)])
                    new += [line.node for line in lines if line.keep or line.sets & live]
                edits[holder] = self._lines(holder, new)
        return edits

    def _lines(self, old: cst.SimpleStatementLine, new: list[cst.BaseSmallStatement]) -> Edit:
        """A line for each statement; the comments stand with the first."""
        if not new:
            return removed(old)
        tree = self.source.tree
        newline = tree.module.default_newline
        indent = " " * (tree.span(old.body[0])[1] - 1)
        long = any(len(row) + len(indent) * (i == 0) > WIDTH for i, row in enumerate(_text(old).splitlines()))
        out: list[cst.CSTNode] = []
        for small in new:
            bare = small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            text = code(cst.SimpleStatementLine([bare])).rstrip()
            fitted = text if long else fit(text, indent, newline)
            line = cst.SimpleStatementLine([bare]) if fitted == text else statement(fitted, tree.module)
            out.append(line)
        out[0] = out[0].with_changes(leading_lines=old.leading_lines, trailing_whitespace=old.trailing_whitespace)
        return cst.FlattenSentinel(out)

    def _asserts(self, kernel: Kernel, cut: dict[Axis, int], values: dict[str, Literal]) -> list[cst.CSTNode]:
        """The parts are right for one value of a parameter: whoever passes another must hear of it."""
        params = {p for axis in cut for length in axis.lengths for p in length.number.params}
        return [statement(f"{self.source.language}.static_assert({p} == {values[p]!r})", self.source.tree.module)
                for p in kernel.params if p in params]


def _is(word: str, length: Length) -> bool:
    """Whether a request means this length."""
    if word.isdigit():
        return length.number.value == int(word) and not isinstance(length.number.value, bool)
    return word in length.number.names


def _knows(kernel: Kernel, word: str) -> bool:
    return any(n.value == word for n in find(kernel.node, cst.Name))


def _in_parts(found: Axes) -> bool:
    """Whether some axis is 64 long: the kernel is already written in parts."""
    return any(length.number.value == PART for axis in found.all() for length in axis.lengths)


def _name(axis: Axis) -> str:
    """How long an axis is, in the kernel's own words."""
    names = [min(length.number.names) for length in axis.lengths if length.number.names]
    return names[0] if names else next((str(length.number.value) for length in axis.lengths), "the axis")


def _lengths(found: Axes) -> str:
    names = sorted({_name(axis) for axis in found.all() if axis.lengths and not axis.one})
    return f"it has {', '.join(names)}" if names else "it has no tiles"


def _statements(body: cst.CSTNode) -> Iterable[cst.BaseSmallStatement]:
    return find(body, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Expr, cst.Return, cst.Assert)


def _live(statements: Iterable[list[Line]], needed: set[str]) -> set[str]:
    """Parts that something reads in the end."""
    lines = [line for lines in statements for line in lines]
    live = needed | {name for line in lines if line.keep for name in line.reads}
    while True:
        more = {name for line in lines if line.sets & live for name in line.reads} - live
        if not more:
            return live
        live |= more


def _after_docstring(kernel: Kernel) -> cst.CSTNode | None:
    body = list(kernel.node.body.body) if isinstance(kernel.node.body, cst.IndentedBlock) else []
    if body and isinstance(body[0], cst.SimpleStatementLine) and kernel.node.get_docstring() is not None:
        body.pop(0)
    return body[0] if body else None


def _several(edit: Edit) -> list[cst.CSTNode]:
    if isinstance(edit, cst.RemovalSentinel):
        return []
    return list(edit) if isinstance(edit, cst.FlattenSentinel) else [edit]


def _text(line: cst.SimpleStatementLine) -> str:
    return code(line.with_changes(leading_lines=[], trailing_whitespace=cst.TrailingWhitespace())).rstrip()


__all__ = ["SAME", "Example", "Ref", "SplitTile"]
