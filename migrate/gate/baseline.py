"""Compare a result with an earlier one, and say what got worse."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from migrate.errors import UsageError
from migrate.gate.result import Outcome, Verdict

Key = tuple[str, str, str, str, str]


def regressions(path: Path, verdicts: list[Verdict]) -> list[str]:
    """What passed in the result stored at `path` and does not pass now, or passes only with a launch option."""
    before = _read(path)
    now = {key: (verdict.outcome, bool(verdict.needs), verdict.line)
           for verdict in verdicts for key in _keys(verdict.unit, verdict.kernel, verdict.target, verdict.config,
                                                    verdict.cases)}
    targets = {verdict.target for verdict in verdicts}
    worse = []
    for key, (outcome, needed) in before.items():
        unit, kernel, target, _, case = key
        if outcome != Outcome.OK or target not in targets:
            continue
        name = f"{unit}: {kernel}, {case or 'no case'}, {target}"
        if key not in now:
            worse.append(f"{name}: passed before, not tried now")
        elif now[key][0] is not Outcome.OK:
            worse.append(f"{name}: passed before, {now[key][0]} now: {now[key][2]}")
        elif now[key][1] and not needed:
            worse.append(f"{name}: passed as launched before, needs a launch option now")
    return worse


def _keys(unit: str, kernel: str, target: str, config: str, cases: list[str]) -> list[Key]:
    return [(unit, kernel, target, config, case) for case in cases or [""]]


def _read(path: Path) -> dict[Key, tuple[str, bool]]:
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        return {key: (v["outcome"], bool(v["needs"])) for v in stored["verdicts"]
                for key in _keys(v["unit"], v["kernel"], v["target"], v["config"], v["cases"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--baseline {path} is no result of `migrate check --format json`: {error}") from None
