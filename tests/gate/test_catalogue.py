"""The operators of the catalogue, through the compiler: every case for one target, and one case for every target.

Every case for every target: -m slow, some minutes.
"""
from __future__ import annotations

import time

import pytest
from checking import run

from migrate.gate import targets
from migrate.gate.result import Outcome
from migrate.gate.toolchain import Toolchain

OPERATORS = ["bwd_segsum_dadt", "mamba3_siso_bwd_dzdo"]


@pytest.mark.parametrize(("chosen", "case"), [
    pytest.param(("Ascend910B2",), "", id="Ascend910B2"),
    pytest.param(targets.ALL, "unaligned start bfloat16", id="all targets, one case"),
    pytest.param(targets.ALL, "", marks=pytest.mark.slow, id="all targets")])
def test_every_case_of_the_contract_compiles(chain: Toolchain, chosen: tuple[str, ...], case: str) -> None:
    result = run(chain, OPERATORS, targets=chosen, only=case)  # type: ignore[arg-type]
    assert {v.unit for v in result.verdicts} == set(OPERATORS)
    assert {v.target for v in result.verdicts} == set(chosen)
    bad = [(v.unit, v.target, v.cases, v.line) for v in result.verdicts if v.outcome is not Outcome.OK or v.needs]
    assert not bad and result.exit_code == 0
    start = time.monotonic()
    again = run(chain, OPERATORS, targets=chosen, only=case)  # type: ignore[arg-type]
    assert all(v.cached for v in again.verdicts) and time.monotonic() - start < 10
