"""The trace of one program: its file, its figures, and how the cost model ranks."""
from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import segsum_forms
import small_kernels as small
import torch
from typer.testing import CliRunner

from migrate import cli
from migrate.cli import app
from migrate.vnpu import device, trace
from migrate.vnpu.machine import Options, Run

HERE = Path(__file__).parent


def run_of(npu: device.Device, monkeypatch: pytest.MonkeyPatch, call: Any) -> Run:
    monkeypatch.setattr(npu, "settings", device.Settings(options=Options(programs=(0,), trace=True), strict=False))
    call()
    [run] = npu.take()
    assert run.errors == []
    return run


def mix(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> Run:
    return run_of(npu, monkeypatch, lambda: small.decayed_state(torch.randn(1, 96, 32), torch.randn(1, 96, 32),
                                                                -torch.rand(1, 96)))


def test_the_file_keeps_the_rules_of_the_format(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the Trace Event Format: phases, required fields, names of rows, nothing overlapping within a row, arrows from
    within one slice to the begin of another."""
    run = mix(npu, monkeypatch)
    made = json.loads(json.dumps(trace.chrome(trace.timeline(run.events), "a title"), allow_nan=False))
    events = made["traceEvents"]
    assert made["otherData"]["title"] == "a title" and "a model, not a measurement" in made["otherData"]["times"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    rows: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        assert event["pid"] > 0 and event["tid"] > 0
        if event["ph"] != "M":
            assert isinstance(event["ts"], int) and event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], int) and event["dur"] > 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in rows.values():
        slices.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(slices))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == set(rows)
    cores = {event["args"]["name"][:4].strip(",") for event in events if event["name"] == "process_name"}
    assert cores == {"AIC", "AIV0", "AIV1"}
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts and starts.keys() == ends.keys()
    for event in starts.values():
        assert any(begin <= event["ts"] < end for begin, end in rows[event["pid"], event["tid"]])
    for event in ends.values():
        assert event["bp"] == "e" and event["ts"] >= starts[event["id"]]["ts"]
        assert any(begin <= event["ts"] < end for begin, end in rows[event["pid"], event["tid"]])


def test_calls_name_their_line_bytes_and_addresses(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(npu, monkeypatch, lambda: small.rms_norm(torch.randn(1, 100), torch.randn(100)))
    events = trace.chrome(trace.timeline(run.events), "")["traceEvents"]
    calls = [event for event in events if event.get("cat") == "call"]
    load = next(call for call in calls if call["name"].startswith("load_gm_to_ubuf"))
    assert load["args"]["bytes read"] == 400 and load["args"]["line"].rpartition(":")[0].endswith("small_kernels.py")
    assert load["args"]["reads"] == ["a float32 tensor [1, 100], byte 0: 100xf32"]
    assert load["args"]["writes"][0].startswith("UB, byte ")


@pytest.mark.parametrize("kernel", [mix])
def test_times_and_the_critical_path(npu: device.Device, monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    run = kernel(npu, monkeypatch)
    made = trace.timeline(run.events)
    assert made.cycles == run.cycles[0]
    path = made.critical_path()
    assert path[0].start % 50 == 0 and path[-1].end == made.cycles
    for one, other in itertools.pairwise(path):
        gap = other.start - one.end
        assert gap >= 0 and gap % 50 == 0        # the latency of handshakes
    for pipe, busy in made.busy().items():
        waited = sum(wait.end - wait.start for wait in made.waits if wait.pipe == pipe)
        assert 0 < busy <= busy + waited <= made.cycles
    assert {wait.pipe[0] for wait in made.waits} == {"AIC", "AIV0", "AIV1"}


def test_the_model_ranks_three_forms_of_one_sum(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transposed read goes element by element; a product costs handshakes; vectors are best."""
    d, s = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))
    cycles = {}
    for form in segsum_forms.FORMS:
        got: list[torch.Tensor] = []
        run = run_of(npu, monkeypatch, lambda form=form, got=got: got.append(segsum_forms.run(form, d, s)))
        torch.testing.assert_close(got[0].double(), segsum_forms.expected(d, s), rtol=1e-4, atol=1e-4)
        cycles[form] = run.cycles[0]
    assert cycles["vector"] < cycles["products"] < cycles["transposed read"] / 2


def test_on_the_command_line(npu: device.Device, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    asked = ["check", str(HERE / "segsum_forms.py"), "--case", "vector", "--trace", str(out)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "program 0, case 'vector' of segsum_forms.py" in done.output
    assert "a model, not a measurement" in done.output and "critical path:" in done.output
    assert json.loads(out.read_text())["traceEvents"]


def test_a_case_that_is_not_there(npu: device.Device, tmp_path: Path) -> None:
    asked = ["check", str(HERE / "segsum_forms.py"), "--case", "no such", "--trace", str(tmp_path / "t.json")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code != 0
    assert "no case matches 'no such'; there are transposed read; vector; products" in str(done.exception)


KERNELS = """import sys
import torch
sys.path.insert(0, {here!r})
import npu_kernels as kernels


def too_large(module):
    kernels.too_large[(1,)](torch.zeros(131072), torch.zeros(131072), BLOCK=131072)


def past_the_end(module):
    kernels.past_the_end[(1,)](torch.zeros(32), torch.zeros(24), BLOCK=32)


def gate_cases():
    yield "too large", too_large
    yield "past the end", past_the_end
    yield "refused", lambda module: int("no number")
"""


def migrate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and stderr."""
    monkeypatch.setattr(sys, "argv", ["migrate", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(("case", "code", "says"), [
    ("too large", 4, "case 'too large' of {file}: too_large does not compile: UB overflow"),
    ("past the end", 5, "past_the_end, case 'past the end' of {file}: the program is wrong, see the errors above"),
    ("refused", 3, "case 'refused' of {file}: ValueError: invalid literal for int() with base 10: 'no number', at "),
    ("none", 2, "{file}: no case matches 'none'; there are too large; past the end; refused"),
])
def test_what_ends_a_trace_is_one_line(npu: device.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str], case: str, code: int, says: str) -> None:
    file, out = tmp_path / f"{case.replace(' ', '_')}.py", tmp_path / "t.json"     # a module is imported once
    file.write_text(KERNELS.format(here=str(HERE)))
    got, error = migrate(monkeypatch, capsys, "check", file, "--case", case, "--trace", out)
    assert (got, error.count("\n")) == (code, 1) and error.startswith("migrate: " + says.format(file=file.name)), error
    assert out.exists() == (code == 5)


@pytest.mark.parametrize("option", ["--trace", "--reduce"])
@pytest.mark.parametrize(("text", "code", "says"), [
    ("def f(:", 3, "some.py:1: does not parse: "),
    ("x = 1", 2, "some.py: no case reaches it; say how it is launched: "),
])
def test_files_that_cannot_be_launched(npu: device.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str], option: str, text: str, code: int,
                                       says: str) -> None:
    file = tmp_path / "some.py"
    file.write_text(text)
    got, error = migrate(monkeypatch, capsys, "check", file, option, tmp_path / "out")
    assert got == code and says in error and error.count("\n") == 1, error


def test_where_the_trace_cannot_go(npu: device.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "no" / "t.json"
    asked = ("check", HERE / "segsum_forms.py", "--case", "vector", "--trace", out)
    assert migrate(monkeypatch, capsys, *asked) == (
        3, f"migrate: {out}: cannot write the trace: No such file or directory\n")
    assert migrate(monkeypatch, capsys, *asked, "--reduce", tmp_path / "kit") == (
        2, "migrate: --trace and --reduce: one at a time\n")
