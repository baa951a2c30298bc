"""Rule pages, catalogue, sweep, scan, lock, configuration."""
from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import libcst as cst
import pytest
from toy import FILES, Toy, put

from migrate import blame, config, engine, lock
from migrate.edit import edited_items
from migrate.errors import UsageError
from migrate.find import upstream_of
from migrate.port import Ported, Settings, kernels_of, port_file, with_comments
from migrate.project import PackageProject, Upstream
from migrate.report import rule_pages
from migrate.report.diff import diff
from migrate.report.table import table
from migrate.rule import Finding, Rule, Safety
from migrate.sweep import Row, _Pool, release
from upstream_snapshots import sync

ROOT = Path(__file__).parents[1]
RELEASE = "toy-kernels==1.0"


# ---------------------------------------------------------------- which rule changed which line

TWO_KERNELS = """\
import torch
import triton
import triton.language as tl


@triton.jit
def first_kernel(
    x, y,
    stride_x_row, stride_x_col,
    stride_y_row, stride_y_col,
    cols, BLOCK: tl.constexpr,
):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * stride_x_row + at * stride_x_col, mask=at < cols)
    tl.store(y + tl.program_id(0) * stride_y_row + at * stride_y_col, value, mask=at < cols)


@triton.jit
def second_kernel(
    x, y,
    stride_x_row, stride_x_col,
    stride_y_row, stride_y_col,
    cols, BLOCK: tl.constexpr,
):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * stride_x_row + at * stride_x_col, mask=at < cols)
    tl.store(y + tl.program_id(0) * stride_y_row + at * stride_y_col, 2 * value, mask=at < cols)


def both(x):
    rows, cols = x.shape
    x = x.contiguous()
    y = torch.empty_like(x)
    with torch.cuda.device(x.device.index):
        first_kernel[(rows,)](
            x, y,
            x.stride(0), x.stride(1),
            y.stride(0), y.stride(1),
            cols, BLOCK=64, num_warps=4,
        )
        second_kernel[(rows,)](
            x, y,
            x.stride(0), x.stride(1),
            y.stride(0), y.stride(1),
            cols, BLOCK=64,
        )
    return y
"""


def ported(folder: Path, text: str, name: str = "k.py") -> Ported:
    put(folder, {name: text})
    return port_file(PackageProject(Upstream(folder, "", "")), name, Settings.make())


def foreign_sentences(port: Ported, rule: str) -> list[str]:
    """Removed lines of a kernel or launch whose sentence names another kernel."""
    source = port.outcome.first
    places = [(k.node, k.name) for k in source.kernels.values()]
    places += [(launch.call, launch.kernel.name) for launch in source.launches]
    spans = [(*source.tree.span(node)[::2], name) for node, name in places]
    wrong = []
    for hunk in blame.hunks(port, with_header=False):
        line = hunk.old_start
        for change in hunk.lines:
            names = {name for first, last, name in spans if first <= line <= last}
            if change.sign == "-" and names:
                wrong += [f"{line}: {n.message}" for n in change.notes
                          if n.rule == rule and not any(f"`{name}`" in n.message for name in names)]
            line += change.sign != "+"
    return wrong


def test_each_hunk_names_its_own_kernel(tmp_path: Path) -> None:
    port = ported(tmp_path, TWO_KERNELS)
    assert port.fired["ASC201"] >= 2
    assert foreign_sentences(port, "ASC201") == []
    said = [n.message.partition(" loses 4 stride")[0] for h in blame.hunks(port, 0) for n in h.notes
            if n.rule == "ASC201"]
    assert said == ["`first_kernel`"] * 2 + ["`second_kernel`"] * 2 + ["`first_kernel`", "`second_kernel`"]


@pytest.mark.parametrize("name", ["ssd_chunk_state.py", "ssd_chunk_scan.py"])
def test_each_hunk_of_a_real_file_names_its_own_kernel(name: str) -> None:
    snapshot = sync.find("mamba-ssm")
    if not snapshot.is_unpacked:
        pytest.skip("mamba-ssm is not here: migrate snapshot sync")
    port = port_file(PackageProject(upstream_of(snapshot)), f"mamba_ssm/ops/triton/{name}", Settings.make())
    assert port.fired["ASC201"]
    assert foreign_sentences(port, "ASC201") == []


class Unwrap(Rule):
    """Moves the body of a `with` left."""

    id, name, summary, safety = "ASC997", "unwrap", "", Safety.SAFE

    def visit_With(self, node: cst.With) -> None:
        self.replace(node, cst.FlattenSentinel(node.body.body), "the guard goes")


class DropSecond(Rule):
    """Takes the second argument away, and what stands on its line."""

    id, name, summary, safety = "ASC998", "drop-second", "", Safety.SAFE

    def visit_Call(self, node: cst.Call) -> None:
        if len(node.args) > 1:
            self.replace(node, node.with_changes(args=edited_items(node.args, node.args[1:2])), "the second goes")


class Rename(Rule):
    id, name, summary, safety = "ASC999", "rename", "", Safety.SAFE

    def visit_Name(self, node: cst.Name) -> None:
        if node.value == "first":
            self.replace(node, cst.Name("one"), "`one` is its name")


def test_the_last_rule_owns_a_line(tmp_path: Path) -> None:
    """A line that moved left and was then removed belongs to the rule that removed it."""
    port = ported(tmp_path, "with guard:\n    call(\n        first,\n        second,\n    )\n    last()\n")
    outcome = engine.apply(port.outcome.first, [Unwrap, DropSecond, Rename])
    changes = blame.difference(replace(port, outcome=outcome, text=outcome.final.text))
    assert [(c.owner, c.sign + c.text.rstrip("\n")) for c in changes] == [
        ("ASC997", "-with guard:"), ("ASC997", "-    call("), ("ASC999", "-        first,"),
        ("ASC998", "-        second,"), ("ASC997", "-    )"), ("ASC997", "-    last()"),
        ("ASC997", "+call("), ("ASC999", "+    one,"), ("ASC997", "+)"), ("ASC997", "+last()")]
    assert [n.message for c in changes if "second" in c.text for n in c.notes] == ["the second goes"]


def test_frozen_autotune_owns_its_heuristics(tmp_path: Path) -> None:
    port = ported(tmp_path, """\
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["cols"])
@triton.jit
def fill_kernel(x, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 0.0, mask=at < cols)


def fill(x):
    fill_kernel[(1,)](x, x.numel())
""")
    lines = {c.text: c.owner for c in blame.difference(port) if c.sign == "+"}
    assert [owner for text, owner in lines.items() if "BLOCK" in text and "64" in text] == ["ASC102"]


def test_an_import_of_which_nothing_is_left(tmp_path: Path) -> None:
    """ASC002 made it relative, then ASC009 removed it: the first sentence would be false."""
    put(tmp_path, {"fla/__init__.py": "", "fla/backends.py": "def dispatch(name): ...\n",
                   "fla/utils.py": "def guard(f): ...\n", "fla/k.py":
                   "from fla.backends import dispatch\nfrom fla.utils import guard\n\n\n"
                   "@dispatch('k')\n@guard\ndef chunk(q):\n    return q\n"})
    port = port_file(PackageProject(Upstream(tmp_path, "fla", "fla")), "fla/k.py", Settings.make())
    said = [n.message for h in blame.hunks(port) for n in h.notes if n.rule == "ASC002"]
    assert said == ["`fla.utils` is ported too: imported from the ported copy"]


def test_a_heading_gives_the_reasons(tmp_path: Path) -> None:
    port = ported(tmp_path, TWO_KERNELS)
    headings = [line for line in diff([port], {"ASC201": "drop-strides"}).splitlines() if line.startswith("@@")]
    assert "@@ port: header" in headings[0]
    assert "; ASC201 drop-strides: `first_kernel` loses 4 stride parameters, all is contiguous: " in " ".join(headings)
    assert all(heading.split("@@")[2].strip() for heading in headings)


def test_a_comment_keeps_lines_that_repeat() -> None:
    """Two findings may wrap into lines of the same text."""
    words = " ".join(f"word{i}" for i in range(40))
    made = with_comments("x = 1\n", [Finding("ASC101", 1, 1, f"{a}{words}", False) for a in "abb"], [])
    assert made.count("a" + words.split()[0]) == made.count("b" + words.split()[0]) == 1
    assert made.count(words.split()[-1]) == 2


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_sample_in_the_readme_is_what_is_printed(toyk: Toy, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Stale? Copy it from `migrate port docs/example/double_rows.py`"""
    monkeypatch.chdir(ROOT)
    printed = toyk.migrate("port", "docs/example/double_rows.py", "--dry-run").out
    blocks = (ROOT / name).read_text(encoding="utf-8").split("```\n")
    block = next(part for part in blocks if part.startswith("docs/example/double_rows.py  1 kernel\n"))
    first = "rule                     safety"
    assert block.partition(first)[2].strip() == printed.partition(first)[2].partition("The rules left")[0].strip()


# ---------------------------------------------------------------- tables

@pytest.mark.parametrize("width", [60, 80, None])
def test_a_table_loses_nothing(width: int | None) -> None:
    path = "mamba_ssm/ops/triton/mamba3/a_file_with_a_name_that_is_long.py"
    rows = [["mamba-ssm==2.3.2.post1", path, "12", "ASC201 ×3, ASC302 ×14, ASC401 ×5, ASC501 ×2"]]
    lines = "\n".join(table(("release", "file", "n", "left"), rows, right={2}, paths=1, width=width)).splitlines()
    assert width is None or max(map(len, lines)) <= max(width, 80)
    together = "".join("".join(lines).split())
    assert "…" not in together
    for part in (*path.split("/"), "ASC401", "×14", "12"):
        assert part[:8] in together


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
    assert "3 files, 2 kernels and helpers: 4 changes, 1 finding left for a person, 0 failed" in run.out
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
