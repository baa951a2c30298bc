"""The pinned releases as a table, and bars while they are fetched."""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Table

from upstream_snapshots import sync

_HEADINGS = ("release", "licence", "unpacked", "files", "ports go to")


def print_snapshots(snapshots: Sequence[sync.Snapshot]) -> None:
    """A table on a terminal, else the same as aligned text that cut and awk can read; on stdout."""
    rows = [(s.spec, s.licence, "yes" if s.is_unpacked else "no", str(len(sync.files(s))), f"{s.port_as}/")
            for s in snapshots]
    console = Console()  # honours NO_COLOR
    if console.is_terminal:
        table = Table()
        for heading in _HEADINGS:
            table.add_column(heading, justify="right" if heading == "files" else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    for row in (_HEADINGS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextlib.contextmanager
def download_bars() -> Iterator[sync.Progress | None]:
    """A progress callback that draws one bar a release on stderr; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    tasks: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        def advance(spec: str, done: int, total: int | None) -> None:
            if spec not in tasks:
                tasks[spec] = bars.add_task(spec, total=total)
            bars.update(tasks[spec], completed=done)

        yield advance
