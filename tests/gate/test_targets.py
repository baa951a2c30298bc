"""The target table against what the compilers write into the final HIVM."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from checking import HERE, LIMITS, only, run

from migrate.gate.result import Outcome, Result
from migrate.gate.targets import ALL, TARGETS
from migrate.gate.toolchain import Toolchain


@pytest.fixture(scope="module")
def result(chain: Toolchain) -> Result:
    return run(chain, [HERE / "flaws/int64_lanes.py"], targets=tuple(TARGETS), limits=LIMITS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_table_says_what_the_compiler_says(result: Result, name: str) -> None:
    verdict = only(result, target=name)
    assert verdict.outcome is Outcome.OK
    spec = {key: int(value) for key, value in re.findall(r'"(\w+)", (\d+)', Path(verdict.hivm).read_text())}
    target = TARGETS[name]
    assert (spec["CUBE_CORE_COUNT"], spec["VECTOR_CORE_COUNT"]) == (target.cube_cores, target.vector_cores)
    assert (spec["UB_SIZE"], spec["L1_SIZE"], spec["L0A_SIZE"], spec["L0B_SIZE"], spec["L0C_SIZE"]) == (
        target.ub_bits, target.l1_bits, target.l0a_bits, target.l0b_bits, target.l0c_bits)


def test_all_means_every_910b_and_910_93() -> None:
    assert len(ALL) == 12 and not any("950" in name for name in ALL)
