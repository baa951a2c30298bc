"""Aligned columns that fold in a narrow window: nothing is left out."""
from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

GAP = 2
NARROWEST = 24      # of a column that folds


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = (),
          paths: int | None = None, width: int | None = None) -> list[str]:
    """A text for the headings and each row, of several lines where a cell folds.

    `width` None: none does; else the last column gives way first, then the column `paths`.
    """
    widths = [max([len(headings[i]), *(len(row[i]) for row in rows)]) for i in range(len(headings))]
    if width is not None:
        for i in (len(widths) - 1, *((paths,) if paths is not None else ())):
            over = sum(widths) + GAP * (len(widths) - 1) - width
            widths[i] = max(min(widths[i], NARROWEST), widths[i] - max(0, over))
    out = []
    for row in (headings, *rows):
        cells = [_folded(cell, widths[i], path=i == paths) for i, cell in enumerate(row)]
        lines = []
        for at in range(max(map(len, cells))):
            parts = [cell[at] if at < len(cell) else "" for cell in cells]
            lines.append((" " * GAP).join(part.rjust(widths[i]) if i in right else part.ljust(widths[i])
                                          for i, part in enumerate(parts)).rstrip())
        out.append("\n".join(lines))
    return out


def _folded(cell: str, width: int, *, path: bool) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return folded_path(cell, width) if path else textwrap.wrap(cell, width, break_on_hyphens=False)


def folded_path(path: str, width: int) -> list[str]:
    """Lines of a path, broken behind a slash if it can be."""
    if len(path) <= width:
        return [path]
    lines = [""]
    for part in path.replace("/", "/\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > width - 1:
            lines.append(" ")
        lines[-1] += part
        while len(lines[-1]) > width:
            lines[-1:] = [lines[-1][:width], " " + lines[-1][width:]]
    return lines


def count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
