"""Lines for a window: folded between words, never within one; commands not at all, so that they can be copied."""
from __future__ import annotations

import os
import re

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

WIDE = 200      # columns of a table that nobody looks at through a window


class Page:
    """stdout. Where it is no terminal and COLUMNS is not set, nothing is folded: one finding is one line."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)   # honours NO_COLOR
        columns = os.environ.get("COLUMNS", "")
        self.width: int | None = None
        if self.console.is_terminal or columns.isdecimal():
            self.width = self.console.width
        else:
            self.console = Console(highlight=False, width=WIDE)

    def say(self, text: str | Text = "", indent: int = 0, style: str = "", hang: int = 2) -> None:
        """A line; what does not fit goes on below it, `hang` columns further in."""
        text = Text(text, style) if isinstance(text, str) else text
        first, *others = [text] if self.width is None else _folded(text, self.width - indent, hang)
        self._print(first, indent)
        for line in others:
            self._print(line, indent + hang)

    def command(self, label: str, command: str, indent: int = 0, style: str = "") -> None:
        """A command to copy: behind its label where both fit, else whole on a line of its own."""
        line = f"{label} {command}"
        if self.width is None or indent + len(line) <= self.width:
            self._print(Text(line, style), indent)
        else:
            self._print(Text(label, style), indent)
            self._print(Text(command, style), 0)

    def show(self, renderable: RenderableType) -> None:
        self.console.print(renderable)

    def _print(self, text: Text, indent: int) -> None:
        text.rstrip()
        self.console.print(Text(" " * indent) + text, soft_wrap=True)


def _folded(text: Text, width: int, hang: int) -> list[Text]:
    """Lines of at most `width` columns, those behind the first of `hang` columns less; a longer word is one line."""
    breaks: list[int] = []
    column = 0
    for word in re.finditer(r"\s*\S+", text.plain):
        if column and column + cell_len(word[0]) > width - (hang if breaks else 0):
            breaks.append(word.start() + len(word[0]) - len(word[0].lstrip()))
            column = 0
        column += cell_len(word[0].lstrip() if breaks and not column else word[0])
    return list(text.divide(breaks))
