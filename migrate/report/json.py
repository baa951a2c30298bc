"""The result of a port for programs."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from migrate.port import Ported, at_lines_of
from migrate.report.diff import diff
from migrate.result import Result
from migrate.rule import Finding
from migrate.write import Status


def as_json(results: Sequence[Result]) -> str:
    return json.dumps({"files": [_file(r, i) for r in results for i in range(len(r.ports))]}, indent=2) + "\n"


def _file(result: Result, at: int) -> dict[str, Any]:
    ported: Ported = result.ports[at]
    status: Status = result.statuses[at]
    upstream = ported.project.upstream
    return {
        "upstream": {"package": upstream.name or None, "version": upstream.version or None, "path": ported.path,
                     "sha256": ported.file.sha256, "licence": upstream.licence or None},
        "output": str(result.output / ported.target),
        "status": status.value,
        "written": result.written and status.would_write,
        "asked_for": at == 0,
        "kernels": ported.kernels,
        "changes": [{**_finding(f, result.names), "safety": result.safety[f.rule].value}
                    for step in ported.outcome.steps for f in step.findings],
        "open": [_finding(f, result.names) for f in at_lines_of(ported)],
        "diff": diff([ported], result.names),
    }


def _finding(finding: Finding, names: dict[str, str]) -> dict[str, Any]:
    """An open finding's line is of the ported file; a change's is of the version that its rule saw."""
    return {"rule": finding.rule, "name": names.get(finding.rule), "line": finding.line, "column": finding.col,
            "message": finding.message}
