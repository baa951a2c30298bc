"""Kernels and cases that hang, crash or eat memory cost only themselves."""
from __future__ import annotations

import time

import pytest
from checking import HERE, only, run

from migrate.gate import process
from migrate.gate.result import Outcome, Result
from migrate.gate.toolchain import Toolchain

# enough to import torch and compile what is fine, and no more, so that the test is short
LIMITS = process.Limits(cpu_s=6, memory=700 << 20)


@pytest.fixture(scope="module")
def result(chain: Toolchain) -> Result:
    return run(chain, [HERE / "kernels/troublemakers.py"], limits=LIMITS)


@pytest.mark.parametrize("kernel", ["first", "last"])
def test_the_others_are_unharmed(result: Result, kernel: str) -> None:
    assert only(result, kernel=kernel).outcome is Outcome.OK


@pytest.mark.parametrize(("case", "stage", "outcome", "name"), [
    ("hangs before launching", "launch", Outcome.TIMED_OUT, "launch-timed-out"),
    ("dies before launching", "launch", Outcome.CRASHED, "launch-crashed"),
    ("crashes the compiler", "HIVM", Outcome.CRASHED, "unsupported-dtype"),
    ("needs all the memory", "TTIR", Outcome.CRASHED, "compiler-memory"),
])
def test_each_is_reported_as_what_it_did(result: Result, case: str, stage: str, outcome: Outcome, name: str) -> None:
    verdict = only(result, case=case)
    assert verdict.outcome is outcome and verdict.stage(stage).outcome is outcome
    assert [d.name for d in verdict.diagnoses] == [name]
    assert verdict.reproduce


def test_what_never_compiles_passes_without_multi_buffering(result: Result) -> None:
    verdict = only(result, case="never compiles")
    assert verdict.needs == {"multibuffer": False} and verdict.diagnoses[0].name == "compiler-time-out"


def test_the_second_run_comes_from_the_cache(chain: Toolchain, result: Result) -> None:
    start = time.monotonic()
    again = run(chain, [HERE / "kernels/troublemakers.py"], limits=LIMITS)
    assert time.monotonic() - start < 5
    assert [(v.kernel, v.outcome, v.line) for v in again.verdicts] == \
        [(v.kernel, v.outcome, v.line) for v in result.verdicts]
