"""Finding files, kernels and cases without importing anything."""
from __future__ import annotations

from pathlib import Path

import pytest
from conftest import HERE

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
