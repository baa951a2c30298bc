"""The facts that were measured before the gate existed."""
from __future__ import annotations

import subprocess

import pytest
from checking import HERE, only, run

from migrate.gate import process
from migrate.gate.result import Outcome, Result
from migrate.gate.toolchain import Toolchain


@pytest.fixture(scope="module")
def result(chain: Toolchain) -> Result:
    # every known good compile takes well under a second; the one without end is to cost no more than it must
    return run(chain, [HERE / "kernels/facts.py"], limits=process.Limits(cpu_s=5, memory=3 << 30))


def test_an_add_of_1024_fits(result: Result) -> None:
    verdict = only(result, kernel="add", case="add 1024")
    assert verdict.outcome is Outcome.OK and not verdict.diagnoses and not verdict.needs
    assert verdict.stage("binary").outcome is Outcome.NOT_TRIED and "CANN" in verdict.stage("binary").why


def test_an_add_of_65536_overflows_by_the_known_figures(result: Result) -> None:
    verdict = only(result, kernel="add", case="add 65536")
    [diagnosis] = verdict.diagnoses
    assert (diagnosis.name, diagnosis.buffer) == ("ub-overflow", "UB")
    assert (diagnosis.needed_bits, diagnosis.available_bits) == (4_194_304, 1_572_864)
    assert diagnosis.tiles == {"BLOCK": 65536}
    assert verdict.outcome is Outcome.FAILED and verdict.stage("HIVM").outcome is Outcome.FAILED
    assert "bishengir-compile" in verdict.reproduce and "--target=Ascend910B2" in verdict.reproduce


def test_the_command_shows_it_again_in_a_fresh_shell(result: Result) -> None:
    command = only(result, kernel="add", case="add 65536").reproduce
    done = subprocess.run(["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", command], cwd="/", capture_output=True,
                          text=True, check=False)
    assert done.returncode and "requires 4194304 bits while 1572864 bits available" in done.stderr + done.stdout


def test_strides_overflow_segsum_and_contiguous_chunks_do_not(result: Result) -> None:
    strided = only(result, kernel="segsum_strided")
    assert strided.diagnoses[0].name == "ub-overflow" and strided.diagnoses[0].needed_bits > 3_000_000
    assert "padding, 8 times" in strided.diagnoses[0].hint
    assert only(result, kernel="segsum_contiguous").outcome is Outcome.OK


def test_the_transition_kernel_needs_multi_buffering_off(result: Result) -> None:
    verdict = only(result, kernel="transition")
    assert verdict.outcome is Outcome.OK and verdict.needs == {"multibuffer": False}
    assert verdict.diagnoses[0].name == "compiler-time-out"
    assert "timed out" in verdict.stage("HIVM").why
    assert verdict.cost and verdict.cost["core"] == "mix" and verdict.cost["products"] == 2


def test_needing_an_option_is_work_that_remains(result: Result) -> None:
    result = Result([only(result, kernel="transition")], result.targets, result.versions, result.assembler)
    assert result.exit_code == 1
