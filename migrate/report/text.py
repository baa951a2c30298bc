"""The result of a port for people: what was done, the difference with its reasons, what is left."""
from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from migrate.blame import LEFT, Change, Hunk, Note, hunks
from migrate.port import Ported, at_lines_of
from migrate.ports import verifiable
from migrate.report.table import count, folded_path, table
from migrate.result import Result, shown
from migrate.rule import Safety

COLOURS = {Safety.SAFE: "green", Safety.REVIEW: "yellow", Safety.MANUAL: "red"}
GUTTER = 7      # the rule beside a line
MARGIN = GUTTER + len("12345 + ")
PROSE = 100     # where sentences fold if there is no window
SHORT = 60      # of a sentence that was given in full before


def as_text(results: Sequence[Result], *, width: int | None, colour: bool) -> str:
    """`width` None: nobody looks at it through a window, so no line of code is folded."""
    out = io.StringIO()
    console = Console(file=out, width=width or 1000, force_terminal=colour, no_color=not colour, highlight=False,
                      color_system="standard" if colour else None, legacy_windows=False)
    for result in results:
        _Page(console, result, width).print()
    return out.getvalue()


class _Page:
    def __init__(self, console: Console, result: Result, width: int | None) -> None:
        self.console, self.result, self.width = console, result, width

    def print(self) -> None:
        self._files()
        self._rules()
        for ported in self.result.ports:
            found = hunks(ported, with_header=False)
            if found:
                self._difference(ported, found)
        self._left()

    def _files(self) -> None:
        result = self.result
        first = result.ports[0]
        upstream = first.project.upstream
        name = f"{upstream.spec}  {first.path}" if upstream.name else shown(upstream.root / first.path)
        self._pair("", name, count(len(first.kernels), "kernel"), "bold")
        for ported, status in zip(result.ports, result.statuses, strict=True):
            would = "" if result.written or not status.would_write else "would be written: "
            self._pair("  → ", shown(result.output / ported.target), f"{would}{status.value}")
        self._line(Text())

    def _rules(self) -> None:
        fired = self.result.fired
        if not fired:
            self._line(Text("No rule had anything to change."))
            self._line(Text())
            return
        rules = [r for r in self.result.settings.rules if fired[r.id]]
        rows = [(r.id, r.name, r.safety.value, str(fired[r.id]), r.summary) for r in rules]
        lines = table(("rule", "", "safety", "changes", "why"), rows, right={3},
                      width=self.width)
        self._line(Text(lines[0], "bold"))
        for rule, line in zip(rules, lines[1:], strict=True):
            text = Text(line)
            text.highlight_words([f" {rule.safety.value} "], COLOURS[rule.safety])
            self._line(text)
        self._line(Text())

    def _difference(self, ported: Ported, found: Sequence[Hunk]) -> None:
        self._line(Text(f"── {ported.path}", "bold"))
        said: set[Note] = set()
        notes = {n for h in found for n in h.notes}
        for hunk in found:
            self._line(Text())
            for note in hunk.notes:
                name = self.result.names.get(note.rule, "")
                if name and note.message != LEFT:           # a comment in the port says what is left
                    message = f"as above, {in_short(note, notes)}" if note in said else note.message
                    self._say(f"{note.rule} {name}: {message}", self.result.safety[note.rule])
                    said.add(note)
            number = hunk.old_start
            for change in hunk.lines:
                self._changed(change, number)
                number += change.sign != "+"
        self._line(Text())

    def _changed(self, change: Change, number: int) -> None:
        style = {"-": "red", "+": "green", " ": "dim"}[change.sign]
        at = "" if change.sign == "+" else str(number)
        first, *more = self._folded(change.text.rstrip("\r\n").expandtabs())
        line = Text.assemble((f"{change.owner:<{GUTTER}}", "cyan"), (f"{at:>5} ", "dim"),
                             (f"{change.sign} {first}", style))
        line.rstrip()
        self._line(line)
        for rest in more:                                   # neither a number nor a sign: still the same line
            self._line(Text(" " * MARGIN + rest, style))

    def _folded(self, code: str) -> list[str]:
        """A line of code in as many as the window needs, the later ones indented deeper; nothing is cut."""
        room = max(20, (self.width or 1000) - MARGIN)
        if self.width is None or len(code) <= room:
            return [code]
        hang = " " * min(len(code) - len(code.lstrip()) + 4, room // 2)
        return textwrap.wrap(code, room, subsequent_indent=hang, drop_whitespace=True, replace_whitespace=False,
                             break_on_hyphens=False) or [code]

    def _left(self) -> None:
        left = [(p, f) for p in self.result.ports for f in at_lines_of(p)]
        if left:
            self._line(Text(f"Left for a person: {count(len(left), 'finding')}", "bold"))
        else:
            self._line(Text("The rules left nothing for a person.", "bold"))
        for ported, finding in left:
            self._line(Text())
            place = f"{shown(self.result.output / ported.target)}:{finding.line}"
            self._pair("  ", place, "", "bold")
            self._say(f"{finding.rule} {self.result.names.get(finding.rule, '')}: {finding.message}", Safety.MANUAL,
                      indent=4)
        if left:
            self._line(Text())
        first = self.result.ports[0]
        once = "" if self.result.written else " Once it is written:"
        verify = ", `verify` runs the operators that ported_kernels has of it" if verifiable(self.result) else ""
        self._prose(f"The port was neither compiled nor run. `check` compiles it with Ascend's compiler{verify}.{once}")
        self._line(Text(f"  migrate check {shown(self.result.output / first.target)}"))
        if verify:
            self._line(Text(f"  migrate verify {first.path.rpartition('/')[2]}"))

    def _say(self, message: str, safety: Safety, indent: int = 0) -> None:
        """A sentence, wrapped at the window's edge under its own beginning."""
        rule, _, rest = message.partition(" ")
        room = max(30, (self.width or PROSE) - indent - len(rule) - 1)
        lines = textwrap.wrap(rest, room, break_on_hyphens=False) or [""]
        for i, line in enumerate(lines):
            head = Text(rule if i == 0 else " " * len(rule), "cyan")
            body = Text(" " + line, COLOURS[safety] if safety is not Safety.SAFE else "")
            self.console.print(Padding(Text.assemble(head, body), (0, 0, 0, indent), expand=False), soft_wrap=True)

    def _pair(self, mark: str, path: str, says: str, style: str = "") -> None:
        """A path and a word about it, on a line of its own where the window is too narrow for both."""
        if self.width is None or len(mark) + len(path) + 2 + len(says) <= self.width:
            self._line(Text.assemble(mark, (path, style), "  ", (says, "dim")) if says else
                       Text.assemble(mark, (path, style)))
            return
        for i, line in enumerate(folded_path(path, max(20, self.width - len(mark)))):
            self._line(Text.assemble(mark if i == 0 else " " * len(mark), (line, style)))
        if says:
            self._line(Text(" " * len(mark) + "  " + says, "dim"))

    def _prose(self, text: str) -> None:
        for line in textwrap.wrap(text, self.width or PROSE):
            self._line(Text(line))

    def _line(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


def in_short(note: Note, among: Iterable[Note]) -> str:
    """What tells a sentence from the others of its rule, once it was read: the name it begins with, or a clause."""
    name = re.match(r"`\w+`", note.message)
    if name and sum(n.rule == note.rule and n.message.startswith(name[0]) for n in among) == 1:
        return name[0]
    clause = re.split(r"[:;] ", note.message, maxsplit=1)[0]
    return clause if len(clause) <= SHORT else re.split(r", |\. ", clause, maxsplit=1)[0]
