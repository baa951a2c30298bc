"""The result of a port for people: what was done, the difference with its reasons, what is left."""
from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from migrate.blame import LEFT, Change, Hunk, hunks
from migrate.port import Ported, at_lines_of
from migrate.report.table import table
from migrate.result import Result, shown
from migrate.rule import Safety

COLOURS = {Safety.SAFE: "green", Safety.REVIEW: "yellow", Safety.MANUAL: "red"}
GUTTER = 9      # room for "ASC101+2"


def as_text(results: Sequence[Result], *, width: int | None, colour: bool) -> str:
    """`width` None: nobody looks at it through a window, so no line is cut."""
    out = io.StringIO()
    console = Console(file=out, width=width or 1000, force_terminal=colour, no_color=not colour, highlight=False,
                      color_system="standard" if colour else None, legacy_windows=False)
    for result in results:
        _Page(console, result, wrap=width or 100, crop=width is not None).print()
    return out.getvalue()


class _Page:
    def __init__(self, console: Console, result: Result, *, wrap: int, crop: bool) -> None:
        self.console, self.result, self.wrap, self.crop = console, result, wrap, crop

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
        self._line(Text.assemble((first.project.upstream.spec, "bold"), "  ", (first.path, "bold"),
                                 f"  {_count(len(first.kernels), 'kernel')}"))
        for ported, status in zip(result.ports, result.statuses, strict=True):
            would = "" if result.written or not status.would_write else "would be written: "
            self._line(Text.assemble("  → ", shown(result.output / ported.target), "  ",
                                     (f"{would}{status.value}", "dim")))
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
                      width=self.console.width if self.crop else None)
        self._line(Text(lines[0], "bold"))
        for rule, line in zip(rules, lines[1:], strict=True):
            text = Text(line)
            text.highlight_words([f" {rule.safety.value} "], COLOURS[rule.safety])
            self._line(text)
        self._line(Text())

    def _difference(self, ported: Ported, found: Sequence[Hunk]) -> None:
        self._line(Text(f"── {ported.path}", "bold"))
        for hunk in found:
            self._line(Text())
            for note in hunk.notes:
                name = self.result.names.get(note.rule, "")
                if name and note.message != LEFT:           # a comment in the port says what is left
                    self._say(f"{note.rule} {name}: {note.message}", self.result.safety[note.rule])
            number = hunk.old_start
            for change in hunk.lines:
                self._changed(change, number)
                number += change.sign != "+"
        self._line(Text())

    def _changed(self, change: Change, number: int) -> None:
        style = {"-": "red", "+": "green", " ": "dim"}[change.sign]
        rules = change.rules
        gutter = rules[0] + (f"+{len(rules) - 1}" if len(rules) > 1 else "") if rules else ""
        at = "" if change.sign == "+" else str(number)
        code = change.text.rstrip("\r\n").expandtabs()
        self._line(Text.assemble((f"{gutter:<{GUTTER}}", "cyan"), (f"{at:>5} ", "dim"),
                                 (f"{change.sign} {code}", style)))

    def _left(self) -> None:
        left = [(p, f) for p in self.result.ports for f in at_lines_of(p)]
        if not left:
            self._line(Text("Nothing is left for a person.", "bold"))
            return
        self._line(Text(f"Left for a person: {_count(len(left), 'finding')}", "bold"))
        for ported, finding in left:
            self._line(Text())
            place = f"{shown(self.result.output / ported.target)}:{finding.line}"
            self._line(Text.assemble(("  " + place, "bold")))
            self._say(f"{finding.rule} {self.result.names.get(finding.rule, '')}: {finding.message}", Safety.MANUAL,
                      indent=4)

    def _say(self, message: str, safety: Safety, indent: int = 0) -> None:
        """A sentence, wrapped at the window's edge under its own beginning."""
        rule, _, rest = message.partition(" ")
        room = max(30, self.wrap - indent - len(rule) - 1)
        lines = textwrap.wrap(rest, room, break_on_hyphens=False) or [""]
        for i, line in enumerate(lines):
            head = Text(rule if i == 0 else " " * len(rule), "cyan")
            body = Text(" " + line, COLOURS[safety] if safety is not Safety.SAFE else "")
            self.console.print(Padding(Text.assemble(head, body), (0, 0, 0, indent), expand=False), soft_wrap=True)

    def _line(self, text: Text) -> None:
        if self.crop:
            text.truncate(self.console.width, overflow="ellipsis")
        self.console.print(text, soft_wrap=True)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
