"""The command line: exit codes, and results on stdout alone."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checking import HERE

from migrate.gate.toolchain import Toolchain


def migrate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "migrate.cli", *map(str, arguments)], capture_output=True, text=True,
                          cwd=HERE.parents[1], check=False)


@pytest.mark.parametrize(("file", "code"), [("flaws/tf32.py", 4), ("flaws/int64_lanes.py", 0), ("kernels/plain.py", 1),
                                            ("flaws/carried_product.py", 4)])
def test_exit_codes(chain: Toolchain, file: str, code: int) -> None:
    done = migrate("check", HERE / file, "--format", "json")
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["exit_code"] == code and done.stderr == ""


@pytest.mark.parametrize("arguments", [("check", "no_such.py"), ("check", "nothing"), ("check",),
                                       ("check", HERE / "flaws/tf32.py", "--target", "Ascend310")])
def test_usage_errors(chain: Toolchain, arguments: tuple[str | Path, ...]) -> None:
    done = migrate(*arguments)
    assert done.returncode == 2 and done.stdout == "" and done.stderr


def test_a_case_that_is_not_there_is_a_usage_error(chain: Toolchain) -> None:
    done = migrate("check", HERE / "flaws/tf32.py", "--case", "no such")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("migrate: no case matches 'no such'; there are ") and done.stderr.count("\n") == 1


def test_a_syntax_error_is_a_verdict(chain: Toolchain, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ndef f(:\n")
    done = migrate("check", file)
    assert done.returncode == 4 and "syntax-error" in done.stdout and f"{file}:2" in done.stdout


def test_a_regression_against_a_baseline_fails(chain: Toolchain, tmp_path: Path) -> None:
    file, before = tmp_path / "kernel.py", tmp_path / "before.json"
    text = (HERE / "flaws/ub_overflow.py").read_text()
    file.write_text(text.replace("BLOCK=65536", "BLOCK=1024"))
    before.write_text(migrate("check", file, "--format", "json").stdout)
    assert migrate("check", file, "--baseline", before).returncode == 0
    file.write_text(text)
    done = migrate("check", file, "--baseline", before)
    assert done.returncode == 4 and "regression kernel.py: add, fp32, Ascend910B2: passed before" in done.stdout


def test_doctor() -> None:
    done = migrate("doctor")
    assert done.returncode == 0 and "check: binary" in done.stdout
