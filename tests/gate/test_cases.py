"""The cases that we ship, on ports made for the test: every kernel is reached, and every call is a right one."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checking import HERE, run

from migrate.gate import process, record, targets, units
from migrate.gate.result import Outcome, Result
from migrate.gate.toolchain import Toolchain

CASES = HERE.parents[1] / "ported_kernels/cases"
FILES = sorted(p.relative_to(CASES).as_posix() for p in CASES.glob("*/**/*.py"))
SPECS = {"mamba_ssm": "mamba-ssm==2.3.2.post1", "fla": "fla-core==0.6.0", "fla_0_5_2": "fla-core==0.5.2"}
DTYPES, LENGTHS = ("bfloat16", "float32"), ("fixed length", "varlen")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ports")
    for file in FILES:
        first, _, rest = file.partition("/")
        spec = f"{SPECS[first]}:{first.removesuffix('_0_5_2')}/{rest}"
        done = subprocess.run([sys.executable, "-m", "migrate.cli", "port", spec, "-o", folder, "--format", "json"],
                              capture_output=True, text=True, check=False)
        if "migrate snapshot sync" in done.stderr or "network" in done.stderr:
            pytest.skip(done.stderr)
        assert (folder / file).exists(), done.stderr
    return folder


@pytest.fixture(scope="module")
def records(chain: Toolchain, ports: Path) -> dict[str, record.Record]:
    chosen = units.resolve([str(ports / file) for file in FILES], chain)
    limits = process.Limits(cpu_s=120, memory=3 << 30)
    found = record.record(chosen, targets.get(targets.DEFAULT), chain, limits, only="float32")
    return {str(r.unit.file.relative_to(ports)): r for r in found}


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_is_reached(records: dict[str, record.Record], ports: Path, file: str) -> None:
    found = records[file]
    assert found.imports is None, found.imports
    assert not found.failed_cases
    assert {k.name for k in units.read_source(ports / file).kernels} \
        <= {launch.facts["kernel"] for launch in found.launches.values()}


@pytest.fixture(scope="module")
def siso(chain: Toolchain, ports: Path) -> Result:
    return run(chain, [ports / "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py"])


def test_a_verdict_for_all_five_kernels_in_both_dtypes_and_lengths(siso: Result) -> None:
    seen = {(v.kernel, dtype, length) for v in siso.verdicts for case in v.cases
            for dtype in DTYPES for length in LENGTHS if case.endswith(f"{dtype} {length}")}
    kernels = {kernel for kernel, _, _ in seen}
    assert len(kernels) == 5 and seen == {(k, d, n) for k in kernels for d in DTYPES for n in LENGTHS}
    assert all(v.outcome is not Outcome.NOT_TRIED for v in siso.verdicts)
    assert all(v.line and v.diagnoses[0].hint for v in siso.verdicts if v.outcome.bad)


def test_its_costs_begin_with_the_heaviest_line(siso: Result) -> None:
    [cost, *_] = [v.cost for v in siso.verdicts if v.kernel.endswith("dzdo")]
    assert cost and "unread" not in cost
    cycles = [line["cycles"] for line in cost["lines"]]
    assert len(cycles) > 3 and cycles == sorted(cycles, reverse=True)
