"""What `migrate check` prints: text for people, JSON for programs, SARIF for code review."""
from __future__ import annotations

import json
import linecache
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from migrate import __version__
from migrate.gate.check import HOW_TO_REACH, NO_CASE, stages_of
from migrate.gate.cost import PIPES
from migrate.gate.result import CANNOT_TELL, Diagnosis, Outcome, Place, Result, Verdict
from migrate.report.page import Page

_STYLE = {Outcome.OK: "green", Outcome.FAILED: "red", Outcome.CRASHED: "red", Outcome.TIMED_OUT: "red",
          Outcome.NOT_TRIED: "yellow"}
_TABLE_NEEDS = 140    # columns
_MARK = {"error": "red", "warning": "yellow", "note": "dim"}


def text(result: Result, explain_cost: bool = False) -> None:
    """Print for people. Verdicts that read the same are told once, with the cases and targets they hold for."""
    page = Page()
    for unit, verdicts in _by_unit(result.verdicts).items():
        page.say(unit, style="bold")
        for group in _alike(verdicts):
            _verdict(group, page)
        if explain_cost:
            _costs(verdicts, page)
        page.say()
    for regression in result.regressions:
        page.say(Text.assemble(("regression ", "red"), regression))
    page.say(_summary(result))
    page.say(f"{CANNOT_TELL} binary: {result.assembler}.", style="dim", hang=0)


def _by_unit(verdicts: list[Verdict]) -> dict[str, list[Verdict]]:
    units: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        units.setdefault(verdict.unit, []).append(verdict)
    return units


def _alike(verdicts: list[Verdict]) -> list[list[Verdict]]:
    groups: dict[Any, list[Verdict]] = {}
    for verdict in verdicts:
        said = tuple((d.name, d.message, str(d.place)) for d in verdict.diagnoses if d.severity == "error")
        # what stops a file stops all of its kernels, and is told once; so are the kernels that no case reaches
        told_once = verdict.stage("imports").outcome is not Outcome.OK or verdict.outcome is Outcome.NOT_TRIED
        kernel = "" if told_once else verdict.kernel
        key = (kernel, verdict.outcome, str(verdict.needs), verdict.config, said,
               tuple(s.why for s in verdict.stages) if not said else ())
        groups.setdefault(key, []).append(verdict)
    return sorted(groups.values(), key=lambda g: (g[0].place.line if g[0].place else 0))


def _verdict(group: list[Verdict], page: Page) -> None:
    first = group[0]
    cases = list(dict.fromkeys(case for verdict in group for case in verdict.cases))
    targets = list(dict.fromkeys(verdict.target for verdict in group))
    kernels = list(dict.fromkeys(verdict.kernel for verdict in group if verdict.kernel))
    needs = f", needs {_options(first.needs)}" if first.needs else ""
    page.say(Text.assemble((first.outcome + needs, _STYLE[first.outcome] if not needs else "yellow"),
                           "  " + (", ".join(kernels) or "before any launch"),
                           (f"  {first.config}" if first.config else "", "dim"),
                           (f"  {_few(cases, 'case')}  {_few(targets, 'target')}", "dim")), 2)
    for diagnosis in _merged(group):
        page.say(Text.assemble((diagnosis.severity, _MARK[diagnosis.severity]),
                               f" {diagnosis.name}: {diagnosis.message}"), 4)
        if diagnosis.place:
            source = linecache.getline(diagnosis.place.file, diagnosis.place.line).strip()
            page.say(f"{_short(diagnosis.place)}  {source}".rstrip(), 6, "dim")
        if diagnosis.hint:
            page.say(diagnosis.hint, 6, "cyan")
    page.say(_stage_line(first), 4, "dim")
    if first.stage("launch").why == NO_CASE:
        page.say(HOW_TO_REACH, 4, "cyan", hang=0)
    if first.reproduce and (first.outcome.bad or first.needs):
        page.command("again:", first.reproduce, 4, "dim")


def _merged(group: list[Verdict]) -> Iterator[Diagnosis]:
    """One diagnosis for each name and line; with differing figures, the first stands for all."""
    seen = set()
    for verdict in group:
        for diagnosis in verdict.diagnoses:
            key = (diagnosis.name, str(diagnosis.place))
            if key not in seen:
                seen.add(key)
                yield diagnosis


def _stage_line(verdict: Verdict) -> str:
    """`parses, imports, launch ok; TTIR failed; linalg, HIVM, binary not tried`."""
    runs: list[tuple[str, list[str]]] = []
    for stage in stages_of(verdict):
        why = f" ({stage.why})" if stage.why and not stage.outcome.bad else ""
        said = f"{stage.outcome}{why}"
        if runs and runs[-1][0] == said:
            runs[-1][1].append(stage.name)
        else:
            runs.append((said, [stage.name]))
    return "; ".join(f"{', '.join(names)} {said}" for said, names in runs)


def _summary(result: Result) -> Text:
    counts = Counter(v.outcome for v in result.verdicts)
    told = Text(", ").join(Text(f"{counts[o]} {o}", style=_STYLE[o]) for o in Outcome if counts[o])
    if needing := sum(bool(v.needs) for v in result.verdicts):
        told.append(f" ({needing} only with a launch option)", style="yellow")
    kept = sum(v.cached for v in result.verdicts)
    told.append(f" of {len(result.verdicts)} compiles, {result.seconds:g} s"
                + (f", {kept} from the cache" if kept else ""))
    return told


def _few(names: list[str], what: str) -> str:
    if not names:
        return ""
    return ", ".join(names) if len(names) <= 2 else f"{len(names)} {what}s"


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _short(place: Place) -> str:
    file = os.path.relpath(place.file)
    return f"{place.file if file.startswith('..') else file}:{place.line}"


# -- cost ----------------------------------------------------------------------------------------------------

def _costs(verdicts: list[Verdict], page: Page) -> None:
    shown = set()
    for verdict in verdicts:
        if not (cost := verdict.cost):
            continue
        identity = (verdict.kernel, json.dumps(cost, sort_keys=True))
        if identity in shown:
            continue
        shown.add(identity)
        page.say()
        if "unread" in cost:
            page.say(f"{verdict.kernel}: cost not read: {cost['unread']}")
            continue
        buffering = "on" if cost["multi_buffered"] else "off"
        page.say(f"{verdict.kernel}, {', '.join(verdict.cases[:2])}, {verdict.target}: {cost['core']} kernel, "
                 f"Unified Buffer {cost['ub_bits'] // 8:,} bytes in use, multi-buffering {buffering}; one program, "
                 "heaviest line first", style="bold", hang=0)
        columns = _cost_columns(verdict, cost)
        if page.width is None or page.width >= _TABLE_NEEDS:
            page.show(_cost_table(columns))
        else:
            _cost_list(columns, page)
        if not cost["complete"]:
            page.say("a trip count is not known for this launch; such loops count as one round in the model's cycles",
                     style="dim", hang=0)


def _cost_columns(verdict: Verdict, cost: dict[str, Any]) -> dict[str, list[str]]:
    """Heading to cells, those that are all empty left out."""
    lines = [line for line in cost["lines"] if line["cycles"] or line["syncs"]]
    own = verdict.place.file if verdict.place else ""
    columns: dict[str, list[str]] = {
        "line": [_cost_place(line, own) for line in lines],
        "model cycles": [f"{line['cycles']:,}" for line in lines],
        **{f"{pipe} bytes": [line["moved"].get(pipe, "") for line in lines] for pipe in PIPES},
        "DMA": [", ".join(line["kinds"]) for line in lines],
        "vector calls": [_number(sum(line["vector_calls"].values())) for line in lines],
        "cube calls": [_number(sum(line["cube_calls"].values())) for line in lines],
        "scalar rounds": [line["scalar"] for line in lines],
        "cube-vector syncs": [_number(line["syncs"]) for line in lines],
        "source": [linecache.getline(line["file"], line["line"]).strip() if line["file"] else "" for line in lines],
    }
    return {heading: cells for heading, cells in columns.items() if any(cells)}


def _cost_place(line: dict[str, Any], own: str) -> str:
    """The line's number; with its file's name where that is another one (a helper of triton, or of a port)."""
    if not line["line"]:
        return "-"
    return str(line["line"]) if line["file"] == own else f"{Path(line['file']).name}:{line['line']}"


def _cost_table(columns: dict[str, list[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in columns:
        table.add_column(heading, justify="left" if heading in ("source", "DMA") else "right",
                         no_wrap=heading in ("line", "source", "model cycles"), overflow="ellipsis")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(escape, row))
    return table


def _cost_list(columns: dict[str, list[str]], page: Page) -> None:
    """The same where the window is too narrow for a table: a paragraph for each line."""
    for row in zip(*columns.values(), strict=True):
        cells = dict(zip(columns, row, strict=True))
        place, source = cells.pop("line"), cells.pop("source", "")
        page.say(f"{place}: " + "; ".join(f"{heading} {cell}" for heading, cell in cells.items() if cell), 2)
        if source:
            page.say(source, 6, "dim")


def _number(n: int) -> str:
    return f"{n:,}" if n else ""


# -- for programs --------------------------------------------------------------------------------------------

def as_json(result: Result) -> str:
    """The whole result; `--baseline` reads this."""
    return json.dumps(result.as_dict(), indent=1, default=str)


_LEVEL = {"error": "error", "warning": "warning", "note": "note"}


def sarif(result: Result) -> str:
    """SARIF 2.1.0: one result for each diagnosis and line, whatever the number of cases and targets."""
    rules: dict[str, dict[str, Any]] = {}
    results: dict[tuple[Any, ...], dict[str, Any]] = {}
    for verdict in result.verdicts:
        for diagnosis in verdict.diagnoses:
            rules.setdefault(diagnosis.name, {"id": diagnosis.name, "shortDescription": {
                "text": diagnosis.name.replace("-", " ")}, "help": {"text": diagnosis.hint or diagnosis.message}})
            place = diagnosis.place or verdict.place
            key = (diagnosis.name, str(place), verdict.kernel)
            entry = results.setdefault(key, {
                "ruleId": diagnosis.name, "level": _LEVEL[diagnosis.severity],
                "message": {"text": f"{verdict.kernel}: {diagnosis.message}"},
                "locations": [_location(place)] if place else [],
                "properties": {"cases": [], "targets": []}})
            for name, values in (("cases", verdict.cases), ("targets", [verdict.target])):
                entry["properties"][name] += [v for v in values if v not in entry["properties"][name]]
    run = {"tool": {"driver": {"name": "migrate check", "version": __version__, "rules": list(rules.values())}},
           "results": list(results.values()), "properties": {"cannot_tell": CANNOT_TELL}}
    return json.dumps({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]},
                      indent=1)


def _location(place: Place) -> dict[str, Any]:
    path = Path(place.file)
    here = Path.cwd()
    uri = path.relative_to(here).as_posix() if path.is_relative_to(here) else path.as_uri()
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": max(1, place.line)}}}
