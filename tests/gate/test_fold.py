"""Text in a window of 80 columns: folded between words; commands whole."""
from __future__ import annotations

import pytest

from migrate.gate.doctor import Ability
from migrate.gate.result import Diagnosis, Outcome, Result, Stage, Verdict
from migrate.report import doctor, gate

COMMAND = "PATH=/root/.cache/x:$PATH bishengir-compile " + " ".join(f"--option-{n}=true" for n in range(12))
MESSAGE = "UB overflow, 1,970,432 of 1,572,864 bits, " + ", ".join(f"TILE_{n}=128" for n in range(30))
COST = {"core": "mix", "ub_bits": 8192, "multi_buffered": True, "complete": True, "lines": [
    {"line": 7, "file": __file__, "cycles": 300, "moved": {"MTE2": "4,096 * ceil(blocks / grid_x)"},
     "kinds": ["strided"], "vector_calls": {"vadd": 3}, "cube_calls": {}, "scalar": "1,024", "syncs": 2}]}


def _result() -> Result:
    failed = Verdict("file.py", "kernel", "Ascend910B2", ["case"], reproduce=COMMAND, cost=COST,
                     stages=[Stage("HIVM", Outcome.FAILED)],
                     diagnoses=[Diagnosis("ub-overflow", "error", MESSAGE, "halve one of these axes")])
    return Result([failed], ["Ascend910B2"], {}, "not tried (hivmc is part of CANN)")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_report(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    gate.text(_result(), explain_cost=True)
    lines = capsys.readouterr().out.splitlines()
    assert COMMAND in lines and lines[lines.index(COMMAND) - 1].strip() == "again:"
    assert all(len(line.rstrip()) <= columns for line in lines if line != COMMAND)
    told = " ".join(" ".join(lines).split())
    assert MESSAGE in told and "blocks / grid_x" in told


def test_one_finding_is_one_line_where_nobody_looks(monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    gate.text(_result())
    out = capsys.readouterr().out
    assert f"error ub-overflow: {MESSAGE}\n" in out and f"again: {COMMAND}\n" in out


def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    doctor.text([Ability("this environment", False, MESSAGE, "migrate doctor --install-gate")])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines) and len(lines) > 3
    assert " ".join(" ".join(lines).split()) == f"no this environment: {MESSAGE} migrate doctor --install-gate"
