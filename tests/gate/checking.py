"""What the gate's tests call: check some files under limits, and pick one verdict."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from migrate.gate import check, process, toolchain, units
from migrate.gate.result import Result, Verdict

HERE = Path(__file__).parent
LIMITS = process.Limits(cpu_s=20, memory=3 << 30)


def run(chain: toolchain.Toolchain, files: Sequence[Path], **settings: object) -> Result:
    settings = {"limits": LIMITS, **settings}
    return check.check(units.resolve([str(f) for f in files], chain), chain, check.Settings(**settings))  # type: ignore[arg-type]


def only(result: Result, **wanted: str) -> Verdict:
    """The one verdict with these attributes; `case` is one of its cases."""
    case = wanted.pop("case", None)
    found = [v for v in result.verdicts if all(getattr(v, k) == w for k, w in wanted.items())
             and (case is None or case in v.cases)]
    assert len(found) == 1, [(v.unit, v.kernel, v.cases, v.target) for v in result.verdicts]
    return found[0]
