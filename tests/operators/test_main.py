"""`python -m ported_kernels`: lists, runs, refuses."""
import sys

import pytest

from migrate import cli
from migrate.verify import target
from ported_kernels import catalog, runtime
from ported_kernels.__main__ import main


def test_list(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    for name, operator in catalog.operators().items():
        assert name in out and operator.summary in out


def test_run(capsys):
    assert main(["bwd_segsum_dadt", "--device", "cpu", "--dtype", "bfloat16", "--case", "B1 H2 N2 C16",
                 "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "bwd_segsum_dadt, case 'B1 H2 N2 C16', bfloat16, seed 3, on cpu (interpreter)" in out
    assert "in   SSdA         [1, 2, 2, 16, 16] bfloat16, norm " in out
    assert "out  ddt_out      [1, 2, 32] float32, norm " in out
    assert out.endswith(" ms\n")


def test_default_device_and_case(capsys):
    assert main(["mamba3_siso_bwd_dzdo"]) == 0
    assert f"on {runtime.default_device()} " in capsys.readouterr().out
    assert main(["mamba3_siso_bwd_dzdo", "--case", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "one element"


def test_migrate_run_is_the_same(capsys, monkeypatch):
    """With the port made first."""
    made = []
    monkeypatch.setattr(target, "prepare", lambda operators, note: made.extend(operators))
    assert migrate("run", "bwd_segsum_dadt", "--device", "cpu", "--case", "B1 H2 N2 C16") == 0
    ours = capsys.readouterr().out
    assert main(["bwd_segsum_dadt", "--device", "cpu", "--case", "B1 H2 N2 C16"]) == 0
    assert ours.splitlines()[:-1] == capsys.readouterr().out.splitlines()[:-1], "all but the time"
    assert made == [catalog.get("bwd_segsum_dadt")]


def migrate(*arguments):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", ["migrate", *arguments])
        cli.main()
    return left.value.code or 0


@pytest.mark.parametrize("arguments, message", [
    (["nope"], "no operator 'nope'; there are "),
    (["bwd_segsum_dadt", "--case", "nope"], "has no case 'nope'"),
    (["bwd_segsum_dadt", "--dtype", "int8"], "has no dtype 'int8'; it has float32, bfloat16, float16"),
    (["bwd_segsum_dadt", "--device", "tpu"], "device: expected one of npu, cuda, cpu, vnpu, got 'tpu'"),
])
def test_refusals(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert migrate("run", *arguments) == 2
    assert capsys.readouterr().err == error.replace("ported_kernels: ", "migrate: ", 1)


def test_a_missing_device_is_named(capsys):
    device = next((name for name in ("npu", "cuda") if runtime.why_not(name)), None)
    if device is None:
        pytest.skip("this machine has every device")
    assert main(["bwd_segsum_dadt", "--device", device]) == 2
    assert f"device {device!r}: {runtime.why_not(device)}" in capsys.readouterr().err
