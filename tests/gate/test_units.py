"""Finding files, kernels and cases without importing anything."""
from __future__ import annotations

from pathlib import Path

import pytest
from checking import HERE

from migrate.errors import UsageError
from migrate.gate import units
from migrate.gate.toolchain import Toolchain


def test_kernels_and_helpers(tmp_path: Path) -> None:
    source = units.read_source(HERE / "kernels/plain.py")
    assert [k.name for k in source.kernels] == ["copy", "stream", "matmul", "tuned", "unreached"]
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert units.read_source(broken).error is not None


def test_a_port_is_found_by_name(chain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "package_folder", lambda: tmp_path)
    for package in ("a", "b"):
        (tmp_path / "generated" / package).mkdir(parents=True)
    (tmp_path / "generated/a/port.py").write_text("")
    [unit] = units.resolve(["port.py"], chain)
    assert unit.file == tmp_path / "generated/a/port.py" and unit.root == tmp_path / "generated"
    (tmp_path / "generated/b/port.py").write_text("")
    with pytest.raises(UsageError, match="ambiguous"):
        units.resolve(["port.py"], chain)
    assert len(units.resolve(["a/port.py"], chain)) == 1
    with pytest.raises(UsageError, match="migrate port"):
        units.resolve(["other.py"], chain)


def test_an_unknown_operator_lists_the_known(chain: Toolchain) -> None:
    with pytest.raises(UsageError, match="neither a file nor an operator"):
        units.resolve(["no_such_operator"], chain)


@pytest.mark.parametrize("name", ["fla-core==0.6.0:fla/ops/kda/wy_fast.py", "mamba3_siso_bwd.py"])
def test_the_names_that_port_takes(chain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str,
                                   ) -> None:
    monkeypatch.setattr(units, "package_folder", lambda: tmp_path)
    with pytest.raises(UsageError, match=r"not ported yet; first: migrate port [\w-]+==[\w.]+:\w+/ops/"):
        units.resolve([name], chain)
    port = tmp_path / "generated" / ("fla/ops/kda/wy_fast.py" if ":" in name else
                                     "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py")
    port.parent.mkdir(parents=True)
    port.write_text("")
    [unit] = units.resolve([name], chain)
    assert unit.file == port


def test_a_name_that_is_ambiguous_for_port_is_for_check(chain: Toolchain, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "package_folder", lambda: tmp_path)
    port = tmp_path / "generated/fla/ops/cp/chunk_delta_h.py"
    port.parent.mkdir(parents=True)
    port.write_text("")
    with pytest.raises(UsageError, match=r"names \d+ files; say which:\n  migrate check fla-core==0\.5\.2:fla/ops/"):
        units.resolve(["chunk_delta_h.py"], chain)


def test_cases_are_found_by_the_path_of_a_port(chain: Toolchain, tmp_path: Path) -> None:
    for folder in ("fla/ops/kda", "other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "wy_fast.py").write_text("")
    right, wrong = units.resolve([str(tmp_path / f / "wy_fast.py") for f in ("fla/ops/kda", "other")], chain)
    assert [f.name for f in right.case_files] == ["wy_fast.py"] and not wrong.case_files
    assert right.name == "wy_fast.py" and wrong.name == str(wrong.file)
