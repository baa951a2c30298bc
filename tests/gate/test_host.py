"""What host code finds: torch.npu at import, the line that fails, the cases that docs/gate.md shows how to write."""
from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from checking import HERE, only, run

from migrate.gate import check, units
from migrate.gate.result import Outcome, Result
from migrate.gate.toolchain import Toolchain
from migrate.report import gate as report

NPU = """
import torch
import triton
import triton.language as tl

device = triton.runtime.driver.active.get_current_target().backend
library = getattr(torch, device)
forward = torch.amp.custom_fwd(device_type=device)
assert library.is_available() and library.device_count() == 1 and library.current_device() == 0
cores = library.get_device_properties(0).multi_processor_count

@triton.jit
def zero(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32))

def gate_cases():
    def call(module):
        with library.device(0), library.stream(library.current_stream()):
            zero[(cores,)](torch.zeros(128), BLOCK=128)

    yield "zero", call
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    (folder / "package").mkdir()
    (folder / "package/__init__.py").write_text("")
    (folder / "package/helper.py").write_text(
        "import torch\n\n\ndef look():\n    return torch.no_such_device\n\n\nlook()\n")
    (folder / "package/fails.py").write_text("import torch\nimport triton\nfrom .helper import look\n\n\n@triton.jit\n"
                                             "def kernel(x):\n    pass\n")
    (folder / "asks_npu.py").write_text(NPU)
    [add, cases] = _documented()
    (folder / "add.py").write_text(add)
    (folder / "add_cases.py").write_text(cases)
    return folder


def _documented() -> list[str]:
    """add.py and add_cases.py of docs/gate.md."""
    docs = (HERE.parents[1] / "docs/gate.md").read_text()
    blocks = re.findall(r"\n\n((?:    .*\n|\n)+)", docs[docs.index("### Writing a cases file"):])
    return [textwrap.dedent(block).partition("migrate check")[0] for block in blocks[:2]]


@pytest.fixture(scope="module")
def result(chain: Toolchain, folder: Path) -> Result:
    return run(chain, [folder / "asks_npu.py", folder / "package/fails.py", folder / "add.py"])


def test_torch_npu_is_there_for_host_code(result: Result) -> None:
    verdict = only(result, kernel="zero")
    assert verdict.outcome is Outcome.OK and verdict.launch["grids"] == [[24]]


def test_an_import_that_fails_names_the_line_that_failed(result: Result, folder: Path) -> None:
    verdict = only(result, unit="fails.py")
    assert verdict.stage("imports").outcome is Outcome.FAILED
    assert str(verdict.diagnoses[0].place) == f"{folder}/package/helper.py:5"
    assert "no_such_device" in verdict.line


def test_without_cases_the_report_says_how_to_write_them(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert only(result, kernel="add_kernel").outcome is Outcome.NOT_TRIED
    report.text(result)
    out = capsys.readouterr().out
    assert check.NO_CASE in out and out.count("--cases FILE") == 1 and "docs/gate.md" in out


def test_the_example_of_the_documentation_works(chain: Toolchain, folder: Path) -> None:
    chosen = units.resolve([str(folder / "add.py")], chain, case_files=[folder / "add_cases.py"])
    done = check.check(chosen, chain, check.Settings())
    assert {v.kernel for v in done.verdicts} == {"add_kernel"} and done.exit_code == 0
    assert {case for v in done.verdicts for case in v.cases} == {"add torch.float32", "add torch.bfloat16"}
