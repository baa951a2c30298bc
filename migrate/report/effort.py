"""Tables over many files: what `migrate scan` and `migrate port --all` print, and docs/evidence/sweep.md."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from migrate.report.table import count, table
from migrate.rule import Rule, Safety
from migrate.sweep import Row

Rules = dict[str, type[Rule]]


def by_file(rows: Sequence[Row], rules: Rules, *, width: int | None, colour: bool) -> str:
    """One line a file: kernels, changes by safety, what is left for a person. A single release is named above."""
    specs = {row.upstream.spec for row in rows if row.upstream.name}
    title = f"{specs.pop()}\n\n" if len(specs) == 1 else ""
    cells = [("" if title or not row.upstream.name else row.upstream.spec, row.path,
              str(len(row.kernels)), *(str(n) for n in _by_safety(row, rules)),
              row.error or ", ".join(f"{rule} ×{n}" for rule, n in sorted(row.open.items())))
             for row in rows]
    return title + _table(("release", "file", "kernels", "safe", "review", "left for a person"), cells,
                          right={2, 3, 4}, width=width, colour=colour)


def summary(rows: Sequence[Row], rules: Rules, *, width: int | None, colour: bool) -> str:
    """Two tables: changes by rule, findings by rule."""
    out = []
    for title, cells in _tallies(rows, rules):
        out.append(f"{title}\n" + _table(("rule", "", "times", "files"), cells, right={2, 3}, width=width,
                                         colour=colour))
    failed = [f"{r.upstream.spec} {r.path}: {r.error}" for r in rows if r.error]
    out.append(totals(rows) + "\n" + "".join(f"  failed: {line}\n" for line in failed))
    return "\n".join(out)


def totals(rows: Sequence[Row]) -> str:
    failed = sum(bool(r.error) for r in rows)
    return (f"{count(len(rows), 'file')}, {sum(len(r.kernels) for r in rows)} kernels and helpers: "
            f"{count(sum(sum(r.fired.values()) for r in rows), 'change')}, "
            f"{count(sum(sum(r.open.values()) for r in rows), 'finding')} left for a person, {failed} failed")


def markdown(rows: Sequence[Row], rules: Rules, command: str, tool: str) -> str:
    """The report that is kept in the repository."""
    out = [f"# Sweep over the pinned releases\n\nWritten by `{command}`.\n\nTool: {tool}.\n\n"
           "Every module with a kernel was ported, with the modules it needs; each port was parsed, and put through "
           "the rules a second time, which must change nothing.\n"]
    specs = list(dict.fromkeys(r.upstream.spec for r in rows))
    for spec in specs:
        out.append(f"\n- {spec}: {totals([r for r in rows if r.upstream.spec == spec])}")
    out.append(f"\n- together: {totals(rows)}\n")
    for title, cells in _tallies(rows, rules):
        out.append(f"\n## {title}\n\n| rule | name | times | files |\n|---|---|---:|---:|\n")
        out += [f"| {' | '.join(line)} |\n" for line in cells]
    failed = [r for r in rows if r.error]
    if failed:
        out.append("\n## Failed\n\n" + "".join(f"- `{r.upstream.spec}` `{r.path}`: {r.error}\n" for r in failed))
    out.append("\n## Files\n\n| release | file | kernels | safe | review | left for a person |\n"
               "|---|---|---:|---:|---:|---|\n")
    for row in rows:
        left = "failed" if row.error else ", ".join(f"{rule} ×{n}" for rule, n in sorted(row.open.items()))
        safe, review = _by_safety(row, rules)
        out.append(f"| {row.upstream.spec} | `{row.path}` | {len(row.kernels)} | {safe} | {review} | {left} |\n")
    return "".join(out)


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps({"files": [
        {"release": row.upstream.spec, "path": row.path, "kernels": list(row.kernels),
         "changes": dict(sorted(row.fired.items())), "open": dict(sorted(row.open.items())),
         "error": row.error or None}
        for row in rows]}, indent=2) + "\n"


def _by_safety(row: Row, rules: Rules) -> tuple[int, int]:
    safe = sum(n for rule, n in row.fired.items() if rules[rule].safety is Safety.SAFE)
    return safe, sum(row.fired.values()) - safe


def _tallies(rows: Sequence[Row], rules: Rules) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    out = []
    counted: list[tuple[str, Callable[[Row], Counter[str]]]] = [
        ("Changes by rule", lambda r: r.fired), ("Findings left for a person", lambda r: r.open)]
    for title, counts in counted:
        times: Counter[str] = sum((counts(r) for r in rows), Counter())
        files = Counter(rule for r in rows for rule in counts(r))
        out.append((title, [(rule, rules[rule].name if rule in rules else "", str(times[rule]), str(files[rule]))
                            for rule in sorted(times)]))
    return out


def _table(headings: Sequence[str], cells: Sequence[Sequence[str]], *, right: set[int], width: int | None,
           colour: bool) -> str:
    """Without the column of releases where all is from one folder."""
    keep = [i for i, h in enumerate(headings) if h != "release" or any(row[i] for row in cells)]
    shown = [headings[i] for i in keep]
    lines = table(shown, [[row[i] for i in keep] for row in cells], right={keep.index(i) for i in right}, width=width,
                  paths=shown.index("file") if "file" in shown else None)
    if colour:
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    return "\n".join(lines) + "\n"
