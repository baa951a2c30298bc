"""Rule pages, catalogue, sweep, scan, lock, configuration."""
from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from toy import FILES, Toy, put

from migrate import config, engine, lock
from migrate.errors import UsageError
from migrate.port import Settings, kernels_of
from migrate.project import PackageProject, Upstream
from migrate.report import rule_pages
from migrate.sweep import Row, _Pool, release

ROOT = Path(__file__).parents[1]
RELEASE = "toy-kernels==1.0"


# ---------------------------------------------------------------- pages about rules

def test_docs_are_as_the_rules_say() -> None:
    """Stale? `python -m migrate.report.rule_pages docs/rules`"""
    made = rule_pages.pages(engine.load())
    kept = {p.name: p.read_text(encoding="utf-8") for p in (ROOT / "docs/rules").glob("*.md")}
    assert kept == made


@pytest.mark.parametrize("name", ["ASC101", "asc101", "gpu-launch-hint"])
def test_explain(toyk: Toy, name: str) -> None:
    run = toyk.migrate("explain", name)
    assert run.code == 0
    assert run.out.startswith("# ASC101 gpu-launch-hint\n")
    assert "```diff\n" in run.out and "## Why" in run.out and "https://" in run.out


def test_explain_a_symbol(toyk: Toy) -> None:
    assert "ASC101 `gpu-launch-hint`" in toyk.migrate("explain", "triton.Config").out
    assert "No rule mentions `tl.nothing`" in toyk.migrate("explain", "tl.nothing").out
    unknown = toyk.migrate("explain", "gpu-lunch-hint")
    assert unknown.code == 2
    assert "like it: gpu-launch-hint" in unknown.err


def test_rules(toyk: Toy) -> None:
    out = toyk.migrate("rules").out
    assert [line.split("\t")[0] for line in out.splitlines()] == [r.id for r in engine.load()]


# ---------------------------------------------------------------- many files

def test_all(toyk: Toy) -> None:
    run = toyk.port("--all", RELEASE, "--report", "sweep.md")
    assert run.code == 0, run.out + run.err
    assert "3 files, 2 kernels and helpers: 4 changes, 1 findings left for a person, 0 failed" in run.out
    assert {"toyk_1_0/ops/scan.py", "toyk_1_0/ops/maths.py", "toyk_1_0/ops/index.py"} <= toyk.tree().keys()
    report = (toyk.folder / "sweep.md").read_text()
    assert "| ASC101 | gpu-launch-hint |" in report
    assert "`migrate port --all toy-kernels==1.0 --report sweep.md`" in report
    assert toyk.port("--all", RELEASE, "--check").code == 0
    assert toyk.port("--all", RELEASE, "--strict").code == 1
    assert toyk.port("toy-kernels==1.0:scan.py", "--check").code == 0    # the same, ported one by one


def test_one_bad_file_harms_no_other(toyk: Toy, tmp_path: Path) -> None:
    bad = {**FILES, "toyk/bad.py": "import triton\n@triton.jit\ndef k(:\n", "toyk/worse.py": "@triton.jit\n\0"}
    upstream = Upstream(put(tmp_path / "src", bad), "toyk", "toyk", "toy", "1", "MIT")
    rows = {r.path: r for r in release(upstream, sorted(bad), Settings.make(), jobs=2)}
    assert "bad.py:3: does not parse" in rows["toyk/bad.py"].error
    assert "NUL" in rows["toyk/worse.py"].error
    assert not rows["toyk/ops/scan.py"].error
    assert rows["toyk/ops/scan.py"].fired == Counter(ASC002=2, ASC101=2)


def test_edited_file_in_a_sweep(toyk: Toy) -> None:
    toyk.port("--all", RELEASE)
    place = toyk.generated / "toyk_1_0/ops/maths.py"
    place.write_text(place.read_text() + "# mine\n")
    run = toyk.port("--all", RELEASE)
    assert run.code == 3
    assert "edited by hand" in run.out
    assert place.read_text().endswith("# mine\n")


def test_options_of_a_sweep(toyk: Toy) -> None:
    assert toyk.port("scan.py", "--all", RELEASE).code == 2
    assert toyk.port("scan.py", "--lock").code == 2
    assert toyk.port("--all", "toy-kernels").code == 2                   # two versions


def test_pool_of_one_starts_no_process() -> None:
    with _Pool(1) as pool:
        assert list(pool.map([])) == []
        assert pool._executor is None


def test_only_triton_kernels_count(tmp_path: Path) -> None:
    put(tmp_path, {"p/__init__.py": "", "p/a.py": "# triton\n@tilelang.jit\ndef f(): ...\n",
                   "p/b.py": "# triton\n@jit\ndef f(): ...\n", "p/c.py": "import triton\n# @triton.jit\n"})
    project = PackageProject(Upstream(tmp_path, "p", "p"))
    assert kernels_of(project, ["p/a.py", "p/b.py", "p/c.py"]) == ["p/b.py"]


def test_scan(toyk: Toy) -> None:
    put(toyk.folder / "src", FILES)
    run = toyk.migrate("scan", "src")
    assert run.code == 0
    assert [line.split()[:5] for line in run.out.splitlines()[1:3]] == [
        ["toyk/ops/maths.py", "1", "0", "0"], ["toyk/ops/scan.py", "1", "4", "0", "ASC101"]]
    rows = json.loads(toyk.migrate("scan", RELEASE, "--format", "json").out)["files"]
    assert {r["path"]: r["changes"] for r in rows}["toyk/ops/scan.py"] == {"ASC002": 2, "ASC101": 2}
    assert toyk.migrate("scan", "no-such-thing").code == 2
    assert toyk.migrate("scan", "src/toyk/ops/scan.py").code == 0


# ---------------------------------------------------------------- ports.lock

def test_lock_is_sorted_and_read_back(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path, "toyk", "toyk", "toy", "1")
    one = Row(upstream, "a.py", fired=Counter(B=2, A=1), open=Counter(C=1), sha256="s", body="b")
    two = Row(upstream, "b.py", error="broken")
    text = lock.render([two, one])
    assert text == lock.render([one, two])
    (tmp_path / "ports.lock").write_text(text)
    assert lock.read(tmp_path / "ports.lock") == {"toy==1": {
        "a.py": {"upstream": "s", "port": "b", "changes": {"A": 1, "B": 2}, "open": {"C": 1}},
        "b.py": {"port": "failed"}}}
    (tmp_path / "ports.lock").write_text("= nonsense")
    with pytest.raises(UsageError):
        lock.read(tmp_path / "ports.lock")


# ---------------------------------------------------------------- [tool.migrate]

def test_config_is_the_default_of_options(toyk: Toy) -> None:
    put(toyk.folder, {"pyproject.toml": '[tool.migrate]\noutput = "here"\nignore = ["ASC101"]\n'})
    assert toyk.migrate("port", "toy-kernels==1.0:scan.py").code == 0
    assert "num_warps" in (toyk.folder / "here/toyk_1_0/ops/scan.py").read_text()
    assert toyk.migrate("port", "toy-kernels==1.0:scan.py", "--ignore", "ASC009").code == 0
    assert "num_warps" not in (toyk.folder / "here/toyk_1_0/ops/scan.py").read_text()


@pytest.mark.parametrize(("text", "says"), [
    ("[tool.migrate]\nselct = []\n", "has no key 'selct'; it has select, ignore, output, target, triton-ascend"),
    ("[tool.migrate]\nselect = 'ASC101'\n", "select: expected a list of strings"),
    ("[tool.migrate]\nignore = [1]\n", "ignore: expected a list of strings"),
    ("[tool]\nmigrate = 1\n", "[tool.migrate] is not a table"),
    ("[tool.migrate\n", "pyproject.toml: Expected"),
])
def test_bad_config(toyk: Toy, text: str, says: str) -> None:
    put(toyk.folder, {"pyproject.toml": text})
    run = toyk.migrate("port", "toy-kernels==1.0:scan.py")
    assert run.code == 2
    assert says in run.err


def test_config_of_a_folder_above(tmp_path: Path) -> None:
    put(tmp_path, {"pyproject.toml": '[tool.migrate]\ntriton-ascend = "3.2.2"\n', "a/b/c.txt": ""})
    assert config.load(tmp_path / "a/b").triton_ascend == "3.2.2"
