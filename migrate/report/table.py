"""Aligned columns that give way in a narrow window in the order that hurts least."""
from __future__ import annotations

from collections.abc import Collection, Sequence

GAP = 2
NARROWEST = 24      # of a column of paths, which lose their beginning


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = (),
          paths: int | None = None, width: int | None = None) -> list[str]:
    """The lines. `width` None: none is cut; else the column `paths` gives way first, then the last column."""
    widths = [max([len(headings[i]), *(len(row[i]) for row in rows)]) for i in range(len(headings))]
    if width is not None and paths is not None:
        over = sum(widths) + GAP * (len(widths) - 1) - width
        widths[paths] = max(NARROWEST, widths[paths] - max(0, over))
    lines = []
    for row in (headings, *rows):
        cells = [_left_out(cell, widths[i]) if i == paths else cell for i, cell in enumerate(row)]
        line = (" " * GAP).join(cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
                                for i, cell in enumerate(cells)).rstrip()
        lines.append(line if width is None or len(line) <= width else line[:width - 1] + "…")
    return lines


def _left_out(path: str, width: int) -> str:
    return path if len(path) <= width else "…" + path[len(path) - width + 1:]
