"""Every kernel in flaws/ has one known flaw, named by its file: the gate must name it, at the line marked `# flaw`."""
from __future__ import annotations

from pathlib import Path

import pytest
from checking import HERE, run

from migrate.gate.result import Outcome, Result
from migrate.gate.toolchain import Toolchain

FILES = sorted((HERE / "flaws").glob("*.py"))
# these compile, and are slow or fragile on the device
WARNINGS = {"atomic-result-used", "carried-product", "flat-index", "int64-lanes", "last-axis-scan", "modulo-wrap",
            "scan-combine", "strided-access"}


# with the option that makes it compile, its last copy is one that the compiler's library does not have
ALSO = {"carried-product": ["unlinkable-call"]}


@pytest.fixture(scope="module")
def result(chain: Toolchain) -> Result:
    return run(chain, FILES)


def test_there_are_twenty_and_more() -> None:
    assert len(FILES) >= 20


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_is_diagnosed_by_name(result: Result, file: Path) -> None:
    name = file.stem.replace("_", "-")
    verdicts = [v for v in result.verdicts if v.unit == file.name]
    found = [d for v in verdicts for d in v.diagnoses if d.severity != "note"]
    assert {d.name for d in found} == {name, *ALSO.get(name, ())}
    marked = [n for n, line in enumerate(file.read_text().splitlines(), 1) if "# flaw" in line]
    if marked:
        assert sorted({d.place.line for d in found if d.place}) == marked
        assert all(d.place and Path(d.place.file) == file for d in found)
    outcomes = {v.outcome for v in verdicts}
    if name in WARNINGS and name not in ALSO:
        assert outcomes == {Outcome.OK}
    else:
        assert any(o.bad for o in outcomes) and Outcome.OK not in outcomes
    assert all(d.message for d in found)


def test_a_flaw_says_what_to_do(result: Result) -> None:
    assert all(d.hint for v in result.verdicts for d in v.diagnoses if d.severity == "error")
