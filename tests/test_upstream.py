"""The real files: what a person who ports one of them must find in the result."""
from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import libcst as cst
import pytest

from migrate.analysis.kernels import Kernel
from migrate.analysis.tiles import called, tiles
from migrate.source import Source
from upstream_snapshots import sync

FILES = {
    "mamba3_siso_bwd.py": "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py",
    "mamba3_mimo_utils.py": "mamba_ssm/ops/triton/mamba3/mamba3_mimo_utils.py",
    "mamba3_siso_fwd.py": "mamba_ssm/ops/triton/mamba3/mamba3_siso_fwd.py",
    "ssd_chunk_state.py": "mamba_ssm/ops/triton/ssd_chunk_state.py",
    "ssd_chunk_scan.py": "mamba_ssm/ops/triton/ssd_chunk_scan.py",
    "selective_state_update.py": "mamba_ssm/ops/triton/selective_state_update.py",
    "fla-core==0.5.2:fla/ops/cp/chunk_delta_h.py": "fla_0_5_2/ops/cp/chunk_delta_h.py",
    "fla-core==0.6.0:fla/ops/kda/wy_fast.py": "fla/ops/kda/wy_fast.py",
}
GONE = {"make_tensor_descriptor", "inline_asm_elementwise", "set_allocator", "maxnreg", "num_warps", "is_cuda",
        "volatile"}
KERNELS = {"mamba3_siso_bwd.py": 5, "mamba3_mimo_utils.py": 7}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them ported, into one folder."""
    for snapshot in sync.load():
        try:
            sync.ensure(snapshot)
        except sync.MigrateError as error:      # no network, and never fetched before
            pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("ports")
    done = migrate("port", *FILES, "-o", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def migrate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "migrate.cli", *arguments], capture_output=True, text=True, cwd=cwd,
                          timeout=300)


def names_in(path: Path) -> set[str]:
    """Names and keywords of the code; comments and docstrings may speak of what is gone."""
    with path.open("rb") as file:
        return {t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.NAME}


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_the_gpu_is_left(output: Path, name: str) -> None:
    path = output / FILES[name]
    ast.parse(path.read_text())
    assert not GONE & names_in(path)


def test_the_words_are_gone_from_comments_too(output: Path) -> None:
    text = (output / FILES["mamba3_siso_bwd.py"]).read_text()
    assert not [word for word in (*GONE, "inline_asm", "stride_do", ".stride(") if word in text]


@pytest.mark.parametrize("name", FILES)
def test_strides_are_gone_or_constants_with_a_finding(output: Path, name: str) -> None:
    text = (output / FILES[name]).read_text()
    source = Source.parse(text)
    launched = {launch.kernel.name for launch in source.launches}
    assert len(launched) >= KERNELS.get(name, 1)
    for kernel in source.kernels.values():
        for param, info in kernel.params.items():
            if param.startswith("stride_"):
                assert info.constexpr, f"{kernel.name}: {param}"
                assert f"`{param}`" in " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    if name in KERNELS:
        assert not any(p.startswith("stride_") for k in source.kernels.values() for p in k.params)
        for launch in source.launches:
            assert ".stride(" not in cst.Module([]).code_for_node(launch.call)


@pytest.mark.parametrize("name", FILES)
def test_every_exp2_is_taken_in_float32(output: Path, name: str) -> None:
    source = Source.parse((output / FILES[name]).read_text())
    seen = 0
    for node in source.tree.all(cst.FunctionDef):
        if not node.decorators or node.name.value not in source.kernels:
            continue
        found = tiles(Kernel(source, node))
        for call in (c for c in source.tree.all(cst.Call) if source.tree.enclosing(c, cst.FunctionDef) is node):
            if re.fullmatch(r"triton\.language\.(math\.)?exp2", called(source, call.func)):
                seen += 1
                assert found.of(call.args[0].value).dtype == "float32", cst.Module([]).code_for_node(call)
    assert seen or name not in ("mamba3_siso_bwd.py", "mamba3_siso_fwd.py")


def test_they_import_without_a_device(output: Path) -> None:
    pytest.importorskip("triton")
    modules = [path.removesuffix(".py").replace("/", ".") for path in FILES.values()]
    code = "import importlib\n" + "\n".join(f"importlib.import_module({m!r})" for m in modules)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=output, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_second_run_changes_nothing(output: Path) -> None:
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in output.rglob("*.py")}
    done = migrate("port", *FILES, "-o", str(output), "--check")
    assert done.returncode == 0
    assert migrate("port", *FILES, "-o", str(output)).returncode == 0
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in output.rglob("*.py")}


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "-s", "-i"]], ids=["git apply", "patch"])
@pytest.mark.parametrize("name", ["mamba3_siso_bwd.py", "fla-core==0.5.2:fla/ops/cp/chunk_delta_h.py"])
def test_the_diff_makes_the_port_of_the_upstream_file(output: Path, tmp_path: Path, name: str, tool: list[str]) -> None:
    spec = "mamba-ssm" if ":" not in name else name.partition(":")[0]
    root = sync.ensure(sync.find(spec))
    diff = migrate("port", name, "-o", str(tmp_path / "elsewhere"), "--dry-run", "--format", "diff")
    assert diff.returncode == 0
    (tmp_path / "port.diff").write_text(diff.stdout)
    upstream = name.partition(":")[2] or FILES[name]
    for line in diff.stdout.splitlines():
        if line.startswith("--- a/"):
            copy = tmp_path / line.removeprefix("--- a/").partition("\t")[0]
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((root / line.removeprefix("--- a/").partition("\t")[0]).read_bytes())
    subprocess.run([*tool, "port.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / upstream).read_text() == (output / FILES[name]).read_text()
