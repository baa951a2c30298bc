"""Soundness is judged by the files, not by version numbers."""
from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from migrate.errors import UsageError
from migrate.gate import doctor, toolchain

FILES = {"triton/__init__.py": "__version__ = '3.2.0'\n", "triton/backends/ascend/compiler.py": "ascend\n",
         "triton/backends/ascend/triton-adapter-opt": "program"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    def wheel(name: str, version: str, files: dict[str, str]) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        rows = []
        for path, text in files.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text)}")
        (info / "RECORD").write_text("\n".join(rows) + "\n")

    wheel("torch", "2.13.0", {})
    wheel("triton-ascend", "3.2.0", FILES)
    wheel("ascendnpu-ir", "1.2.0", {"ascendnpuir/bin/bishengir-compile": "program"})
    (tmp_path / "ascendnpuir/bin/bishengir-compile").chmod(0o755)
    return tmp_path


def problems(site: Path) -> str:
    return "; ".join(toolchain.inspect(Path("python"), site).problems)


def test_a_sound_one(site: Path) -> None:
    assert problems(site) == ""


def test_an_overwritten_file_of_the_same_length(site: Path) -> None:
    (site / "triton/backends/ascend/compiler.py").write_text("nvidia\n")
    assert "1 files differ" in problems(site) and "backends/ascend/compiler.py" in problems(site)


def test_a_cuda_triton_on_top(site: Path) -> None:
    info = site / "triton-3.7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 3.7.0\n")
    (site / "triton/__init__.py").write_text("__version__ = '3.7.0'  # and longer\n")
    (site / "triton/backends/nvidia").mkdir()
    found = problems(site)
    assert "overwrote" in found and "holds nvidia" in found
    assert toolchain.inspect(Path("python"), site).versions["triton-ascend"] == "3.2.0", "the metadata still says so"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path) == "torch is not installed; triton-ascend is not installed; ascendnpu-ir is not installed"


def test_without_a_toolchain_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toolchain.find.cache_clear()
    monkeypatch.setattr(toolchain, "current", lambda: toolchain.inspect(Path("python"), tmp_path))
    with pytest.raises(UsageError, match="doctor --install-gate"):
        toolchain.find()
    told = {ability.name: ability for ability in doctor.abilities()}
    assert not told["this environment"].there and told["this environment"].remedy == "migrate doctor --install-gate"
    assert not told["check: front end, linalg, HIVM"].there
    toolchain.find.cache_clear()


def test_doctor_on_this_machine(chain: toolchain.Toolchain) -> None:
    told = {ability.name: ability for ability in doctor.abilities()}
    assert told["check: front end, linalg, HIVM"].there and "triton-ascend 3.2.0" in str(told["this environment"].found)


def test_the_stand_in_hands_over_to_a_real_assembler(chain: toolchain.Toolchain, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from checking import HERE, only, run

    from migrate.gate.result import Outcome

    real = tmp_path / "hivmc"
    real.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "hivmc version 1.2.0" && exit 0\n'
                    'echo "error: no such intrinsic" >&2\nexit 7\n')
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = run(chain, [HERE / "flaws/int64_lanes.py"])
    verdict = only(result, kernel="shift")
    assert result.assembler == f"real ({real})"
    assert verdict.stage("HIVM").outcome is Outcome.OK
    assert verdict.stage("binary").outcome is Outcome.FAILED and result.exit_code == 4
    real.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "hivmc version 1.2.0" && exit 0\n'
                    'while [ "$1" != -o ]; do shift; done\ntouch "$2"\n')
    verdict = only(run(chain, [HERE / "flaws/int64_lanes.py"], use_cache=False), kernel="shift")
    assert verdict.stage("binary").outcome is Outcome.OK
