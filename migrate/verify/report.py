"""A verification report as text or JSON."""
from __future__ import annotations

import json
from itertools import groupby

from migrate.verify.pool import Report
from migrate.verify.result import CaseResult, Verdict


def as_json(report: Report) -> str:
    return json.dumps({
        "device": report.device,
        "target": report.virtual and report.virtual.target,
        "seed": report.seed,
        "exit_code": report.exit_code,
        "counts": {str(verdict): report.count(verdict) for verdict in Verdict},
        "results": [result.as_json() for result in report.results],
    }, indent=2)


def as_text(report: Report) -> str:
    lines = []
    device = f"{report.device} ({report.virtual.target})" if report.virtual else report.device
    for (operator, origin, oracle), group in groupby(
            report.results, lambda result: (result.operator, result.origin, result.oracle)):
        lines.append(f"{operator} on {device}, seed {report.seed}; oracle: {oracle}")
        lines.append(f"  {origin}")
        lines += [_line(result, report.missing) for result in group]
        lines.append("")
    counts = ", ".join(f"{count} {verdict}" for verdict in Verdict if (count := report.count(verdict)))
    lines.append((counts or "nothing to verify") + (f": {report.missing}" if report.missing else _ran(report)))
    return "\n".join(lines)


def _ran(report: Report) -> str:
    if not report.virtual:
        return ""
    launches, programs = sum(r.launches for r in report.results), sum(r.programs for r in report.results)
    return f"; launches compiled for {report.virtual.target} and run: {launches:,}, programs: {programs:,}"


def _line(result: CaseResult, missing: str | None) -> str:
    head = f"  {result.verdict:<9}  {result.dtype:<8}  {result.case:<36}"
    numbers = "  ".join(f"{output.name}: rel L2 {_number(output.ratio)} (bound {output.bound:.1e}), "
                        f"largest {_number(output.largest)}" for output in result.outputs)
    reason = f"  {result.reason}" if result.reason and result.reason != missing else ""
    shapes = f"  {_shapes(result)}" if result.verdict == Verdict.FAILED and result.shapes else ""
    return f"{head}  {numbers}{reason}{shapes}".rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"


def _shapes(result: CaseResult) -> str:
    return " ".join(f"{name}{shape}" for name, shape in result.shapes.items())
