"""Records, costs and reports of kernels that are known to the byte."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from checking import HERE, only, run

from migrate.errors import UsageError
from migrate.gate import baseline, units
from migrate.gate.result import CANNOT_TELL, Outcome, Result
from migrate.gate.toolchain import Toolchain
from migrate.report import gate as report

PLAIN = HERE / "kernels/plain.py"


@pytest.fixture(scope="module")
def result(chain: Toolchain) -> Result:
    return run(chain, [PLAIN])


def line(result: Result, kernel: str, source: str) -> dict:
    cost = only(result, kernel=kernel).cost
    assert cost
    text = PLAIN.read_text().splitlines()
    return next(entry for entry in cost["lines"] if source in text[entry["line"] - 1])


# -- what is recorded

def test_signature_constants_and_grid(result: Result) -> None:
    launch = only(result, kernel="copy").launch
    assert launch["signature"] == {"x": "*fp32", "y": "*fp32"}
    assert launch["constants"] == {"BLOCK": 1024}
    assert launch["divisible_by_16"] == ["x", "y"]
    assert launch["grids"] == [[4]] and launch["options"] == {}
    assert PLAIN.read_text().splitlines()[launch["launched_at"][1] - 1].lstrip().startswith('yield "copy"')


def test_every_autotune_configuration_is_tried_and_one_is_enough(result: Result) -> None:
    verdict = only(result, kernel="tuned")
    assert verdict.outcome is Outcome.OK and verdict.config == "BLOCK=1024"
    assert verdict.launch["grids"] == [[128]]
    [note] = verdict.diagnoses
    assert note.name == "config-rejected" and "BLOCK=65536: ub-overflow" in note.message


def test_a_kernel_that_no_case_reaches_is_not_passed(result: Result) -> None:
    verdict = only(result, kernel="unreached")
    assert verdict.outcome is Outcome.NOT_TRIED and verdict.line == "no case reaches it"
    assert result.exit_code == 1
    assert not [v for v in result.verdicts if v.kernel == "double"], "a helper is no kernel"


# -- what it costs

def test_bytes_of_a_copy(result: Result) -> None:
    cost = only(result, kernel="copy").cost
    assert cost and cost["core"] == "vector" and cost["ub_bits"] == 1024 * 32 and not cost["multi_buffered"]
    assert line(result, "copy", "tl.load")["bytes"] == {"MTE2": 4096, "MTE3": 4096}


def test_a_dynamic_loop_has_a_symbolic_trip_count(result: Result) -> None:
    entry = line(result, "stream", "tl.exp")
    assert entry["moved"] == {"MTE2": "8,192 * ceil(blocks / grid_x)", "MTE3": "8,192 * ceil(blocks / grid_x)"}
    assert entry["bytes"]["MTE2"] == 5 * 8192, "20 blocks on 4 programs"
    cost = only(result, kernel="stream").cost
    assert cost and cost["multi_buffered"] and cost["complete"]


def test_a_product_is_seen_on_the_cube(result: Result) -> None:
    cost = only(result, kernel="matmul").cost
    assert cost and cost["core"] == "mix" and cost["products"] == 1
    entry = line(result, "matmul", "tl.dot")
    assert sum(entry["cube_calls"].values()) == 1 and entry["syncs"] > 0
    assert entry["bytes"]["MTE1"] == 2 * 64 * 64 * 4 and entry["bytes"]["FIXP"] == 64 * 64 * 4


# -- how it is told

def test_text(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    report.text(result, explain_cost=True)
    out = capsys.readouterr().out
    assert "ok  copy" in out and "not tried  unreached" in out and CANNOT_TELL in out
    assert "hivmc is part of CANN" in out and "MTE2" in out and "\x1b" not in out


def test_json_holds_everything(result: Result) -> None:
    told = json.loads(report.as_json(result))
    assert told["cannot_tell"] == CANNOT_TELL and told["exit_code"] == 1
    assert {v["kernel"] for v in told["verdicts"]} == {"copy", "stream", "matmul", "tuned", "unreached"}
    assert all(Path(v["hivm"]).read_text().startswith("#") or "module" in Path(v["hivm"]).read_text()
               for v in told["verdicts"] if v["outcome"] == "ok")


def test_sarif(result: Result, chain: Toolchain) -> None:
    flawed = run(chain, [HERE / "flaws/tf32.py", HERE / "flaws/int64_lanes.py"])
    [told] = json.loads(report.sarif(flawed))["runs"]
    assert {r["ruleId"]: r["level"] for r in told["results"]} == {"tf32": "error", "int64-lanes": "warning"}
    place = told["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("flaws/tf32.py") and place["region"]["startLine"] == 12
    assert {r["id"] for r in told["tool"]["driver"]["rules"]} == {"tf32", "int64-lanes"}


def test_baseline(result: Result, tmp_path: Path) -> None:
    stored = tmp_path / "before.json"
    stored.write_text(report.as_json(result))
    assert baseline.regressions(stored, result.verdicts) == []
    told = json.loads(stored.read_text())
    next(v for v in told["verdicts"] if v["kernel"] == "unreached")["outcome"] = "ok"
    stored.write_text(json.dumps(told))
    [worse] = baseline.regressions(stored, result.verdicts)
    assert "unreached" in worse and "not tried now" in worse
    without = [v for v in result.verdicts if v.kernel != "copy"]
    assert any("copy" in line for line in baseline.regressions(stored, without))
    stored.write_text("{}")
    with pytest.raises(UsageError, match="baseline"):
        baseline.regressions(stored, result.verdicts)


# -- the cache

def test_an_edit_is_noticed(chain: Toolchain, tmp_path: Path) -> None:
    file = tmp_path / "edited.py"
    text = (HERE / "flaws/ub_overflow.py").read_text()
    file.write_text(text)
    assert run(chain, [file]).exit_code == 4
    file.write_text(text.replace("BLOCK=65536", "BLOCK=1024"))
    assert run(chain, [file]).exit_code == 0
    assert all(v.cached for v in run(chain, [file]).verdicts)
    assert not any(v.cached for v in run(chain, [file], use_cache=False).verdicts)


def test_cases_of_another_file_and_a_choice_of_cases(chain: Toolchain, tmp_path: Path) -> None:
    cases = tmp_path / "cases_of_plain.py"
    cases.write_text("import torch\n\ndef cases():\n    x = torch.zeros(4096)\n"
                     "    yield 'small', lambda m: m.unreached[(1,)](x, x, 256)\n"
                     "    yield 'large', lambda m: m.unreached[(1,)](x, x, 4096)\n")
    from migrate.gate import check
    found = check.check(units.resolve([str(PLAIN)], chain, case_files=[cases]), chain, check.Settings(only="small"))
    [verdict] = found.verdicts
    assert verdict.cases == ["small"] and verdict.launch["constants"] == {"BLOCK": 256}
