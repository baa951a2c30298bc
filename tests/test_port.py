"""`migrate port`: closures, output, edits by hand, bad input, exit codes."""
from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy import FILES, Toy, put

from migrate import asked, command, engine, header, ports, write
from migrate.result import Result
from migrate.rule import Rule, Safety

SCAN = "toy-kernels==1.0:toyk/ops/scan.py"


def test_port_is_a_closure(toyk: Toy) -> None:
    """scan.py, the module that defines `offsets`, and the helper kernel; not the package that re-exports it, nor
    what only a type checker reads."""
    run = toyk.port(SCAN)
    assert run.code == 0
    tree = toyk.tree()
    found = sorted(name for name, data in tree.items() if header.read(data.decode()))
    assert found == ["toyk_1_0/ops/index.py", "toyk_1_0/ops/maths.py", "toyk_1_0/ops/scan.py"]
    assert {n for n in tree if n not in found} == {"toyk_1_0/__init__.py", "toyk_1_0/ops/__init__.py"}
    text = tree["toyk_1_0/ops/scan.py"].decode()
    assert "from .index import offsets\n" in text
    assert "from .maths import twice\n" in text
    assert "    from toyk.flags import FAST\n" in text
    assert "num_warps" not in text
    ast.parse(text)


def test_port_imports_where_upstream_does_not(toyk: Toy) -> None:
    """`from __future__` and the docstring keep their places below the header."""
    toyk.port(SCAN)
    code = "import toyk_1_0.ops.scan as s; print(s.__doc__, s.offsets([3]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=toyk.generated, capture_output=True, text=True)
    assert done.stdout == "Scales. [0, 3]\n", done.stderr


def test_header_says_what_it_was_made_from(toyk: Toy) -> None:
    toyk.port(SCAN)
    text = (toyk.generated / "toyk_1_0/ops/scan.py").read_text()
    assert text.splitlines()[0] == "# Copyright of the toy authors"
    assert text.splitlines()[1] == header.BEGIN
    got = header.read(text)
    assert got is not None
    assert (got.upstream, got.path, got.licence) == ("toy-kernels==1.0", "toyk/ops/scan.py", "MIT")
    assert "triton-ascend 3.2.0" in got.tool
    assert not header.edited(text)


def test_second_run_changes_nothing(toyk: Toy) -> None:
    toyk.port(SCAN)
    before = {p: p.stat().st_mtime_ns for p in toyk.generated.rglob("*.py")}
    again = toyk.port(SCAN)
    assert again.code == 0
    assert "unchanged" in again.out
    assert {p: p.stat().st_mtime_ns for p in toyk.generated.rglob("*.py")} == before
    assert toyk.port(SCAN, "--check").code == 0


def test_port_of_a_port_says_so(toyk: Toy) -> None:
    toyk.port(SCAN)
    run = toyk.migrate("port", str(toyk.generated / "toyk_1_0/ops/scan.py"))
    assert run.code == 0
    assert "already ported, from toyk/ops/scan.py of toy-kernels==1.0" in run.err


def test_edited_port_is_kept(toyk: Toy) -> None:
    toyk.port(SCAN)
    place = toyk.generated / "toyk_1_0/ops/scan.py"
    place.write_text(place.read_text() + "# tuned by hand\n")
    for run in (toyk.port(SCAN), toyk.migrate("port", str(place))):
        assert run.code == 3
        assert "edited by hand" in run.err
    assert "# tuned by hand" in place.read_text()
    assert toyk.port(SCAN, "--force").code == 0
    assert "# tuned by hand" not in place.read_text()


def test_foreign_file_is_kept(toyk: Toy) -> None:
    put(toyk.generated, {"toyk_1_0/ops/scan.py": "mine = 1\n"})
    run = toyk.port(SCAN)
    assert run.code == 3
    assert "not written by migrate" in run.err
    assert toyk.tree() == {"toyk_1_0/ops/scan.py": b"mine = 1\n"}        # nor the rest of the closure


def test_changed_upstream_is_ported_again(toyk: Toy) -> None:
    work = put(toyk.folder / "src", FILES)
    assert toyk.port(str(work / "toyk/ops/scan.py")).code == 0
    (work / "toyk/ops/maths.py").write_text(FILES["toyk/ops/maths.py"].replace("x + x", "2 * x"))
    assert toyk.port(str(work / "toyk/ops/scan.py"), "--check").code == 1
    run = toyk.port(str(work / "toyk/ops/scan.py"))
    assert run.code == 0
    assert "maths.py  changed" in run.out
    assert "2 * x" in (toyk.generated / "toyk/ops/maths.py").read_text()


def test_real_init_is_not_replaced_by_an_empty_one(toyk: Toy) -> None:
    toyk.port("toy-kernels==2.0:toyk/ops/__init__.py")
    kept = (toyk.generated / "toyk/ops/__init__.py").read_text()
    assert header.read(kept)
    toyk.port("toy-kernels==2.0:toyk/ops/scan.py")
    assert (toyk.generated / "toyk/ops/__init__.py").read_text() == kept


def test_dry_run_and_check_write_nothing(toyk: Toy) -> None:
    assert toyk.port(SCAN, "--dry-run").code == 0
    assert toyk.port(SCAN, "--check").code == 1
    assert not toyk.generated.exists()


def test_default_output_is_importable(toyk: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    home = put(toyk.folder / "lib", {"ported_kernels/__init__.py": ""})
    monkeypatch.setattr("migrate.command.importlib.util.find_spec",
                        lambda name: type("Spec", (), {"submodule_search_locations": [str(home / name)]}))
    assert toyk.migrate("port", SCAN).code == 0
    assert (home / "ported_kernels/generated/toyk_1_0/ops/scan.py").is_file()


# ---------------------------------------------------------------- findings, ignore comments, selection

def test_finding_leaves_a_comment_at_the_place(toyk: Toy) -> None:
    run = toyk.port(SCAN)
    text = (toyk.generated / "toyk_1_0/ops/scan.py").read_text()
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "# migrate: ASC101 gpu-launch-hint" in line)
    assert lines[at].startswith("    # migrate:")
    below = next(line for line in lines[at:] if not line.lstrip().startswith("#"))
    assert "num_stages=1" in below
    assert f"scan.py:{lines.index(below) + 1}" in run.out
    assert toyk.port(SCAN, "--strict").code == 1
    assert toyk.port("toy-kernels==1.0:toyk/ops/maths.py", "--strict").code == 0


def hunk_lines(run_out: str) -> list[str]:
    """Changed lines of code in a diff."""
    lines = [line for line in run_out.splitlines() if line[:1] in ("+", "-")]
    return [line for line in lines if not line[1:].lstrip().startswith(("#", "++", "--"))]


def test_ignore_option_keeps_that_hunk_and_no_other(toyk: Toy) -> None:
    everything = hunk_lines(toyk.port(SCAN, "--format", "diff", "--dry-run").out)
    for key in ("ASC101", "gpu-launch-hint"):
        rest = hunk_lines(toyk.port(SCAN, "--format", "diff", "--dry-run", "--ignore", key).out)
        assert [line for line in everything if line not in rest and "num_" in line]
        assert [line for line in everything if "num_" not in line and "BLOCK" not in line] == rest
    only = hunk_lines(toyk.port(SCAN, "--format", "diff", "--dry-run", "--select", "ASC101,ASC009").out)
    assert only == [line for line in everything if "import" not in line]


def test_ignore_comment_keeps_that_hunk_and_no_other(toyk: Toy) -> None:
    put(toyk.folder / "src", {**FILES, "toyk/ops/scan.py": FILES["toyk/ops/scan.py"].replace(
        "num_warps=4)", "num_warps=4)  # migrate: ignore[gpu-launch-hint] measured")})
    without = hunk_lines(toyk.port(SCAN, "--format", "diff", "--dry-run").out)
    run = toyk.port(str(toyk.folder / "src/toyk/ops/scan.py"), "--format", "diff", "--dry-run")
    assert [line for line in without if "num_warps=4" not in line and "BLOCK=64)" not in line] == hunk_lines(run.out)


def test_unused_and_unknown_ignores_are_findings(toyk: Toy) -> None:
    file = toyk.folder / "k.py"
    file.write_text("x = 1  # migrate: ignore[ASC101]\ny = 2  # migrate: ignore[ASC999, gpu-launch-hint]\n")
    found = json.loads(toyk.port(str(file), "--format", "json").out)["files"][0]["open"]
    assert [(f["rule"], f["line"] > 0) for f in found] == [("MIG002", True), ("MIG001", True), ("MIG002", True)]
    found = json.loads(toyk.port(str(file), "--format", "json", "--ignore", "ASC101", "--force").out)["files"][0]
    assert [f["rule"] for f in found["open"]] == ["MIG001"]             # a rule that did not run is not judged


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_unknown_rule(toyk: Toy, option: str) -> None:
    run = toyk.port(SCAN, option, "ASC777")
    assert run.code == 2
    assert "no rule is called 'ASC777'" in run.err


# ---------------------------------------------------------------- naming a file

def test_ambiguous_name_lists_commands_to_copy(toyk: Toy) -> None:
    run = toyk.port("scan.py")
    assert run.code == 2
    assert "  migrate port toy-kernels==1.0:toyk/ops/scan.py\n  migrate port toy-kernels==2.0:" in run.err
    assert toyk.port("toy-kernels==1.0:scan.py").code == 0


def test_unique_name_and_suffix(toyk: Toy) -> None:
    assert toyk.port("only_new.py").code == 0
    assert toyk.port("ops/only_new.py").code == 0
    assert (toyk.generated / "toyk/ops/only_new.py").is_file()


def test_path_into_a_snapshot_is_that_release(toyk: Toy, tmp_path: Path) -> None:
    toyk.port(str(tmp_path / "unpacked/toy-kernels-1.0/toyk/ops/scan.py"))
    got = header.read((toyk.generated / "toyk_1_0/ops/scan.py").read_text())
    assert got is not None
    assert got.upstream == "toy-kernels==1.0"


def test_no_such_file(toyk: Toy) -> None:
    run = toyk.port("scann.py")
    assert run.code == 2
    assert "like it: scan.py" in run.err
    assert toyk.port("toy-kernels==3.0:scan.py").code == 2
    assert toyk.migrate("port").code == 2


def test_one_bad_file_does_not_stop_the_others(toyk: Toy) -> None:
    bad = toyk.folder / "bad.py"
    bad.write_text("def f(:\n")
    run = toyk.port(str(bad), SCAN, "nothing.py")
    assert run.code == 3                                                 # the worst of 3, 0 and 2
    assert (toyk.generated / "toyk_1_0/ops/scan.py").is_file()


# ---------------------------------------------------------------- input that is odd or bad

KERNEL = FILES["toyk/ops/scan.py"].replace("from toyk.ops import offsets\n", "").replace(
    "from toyk.ops.maths import twice\n", "")


@pytest.mark.parametrize(("data", "says"), [
    (b"<html>not python</html>\n", "k.py:1: does not parse: invalid syntax"),
    (b"import os\n\ndef f(:\n    pass\n", "k.py:3: does not parse: invalid syntax"),
    (b"x = 1\n\n\nprint 'two'\n", "k.py:4: does not parse: Missing parentheses in call to 'print'"),
    (b"x = 1\ny = '\0'\n", "k.py:2: holds NUL bytes"),
    (b"x = 1\n\n\n# caf\xe9\n", "k.py:4: byte 0xe9 is not utf-8; save it as UTF-8 or name its encoding"),
    (b"# -*- coding: klingon -*-\n", "k.py: is not UTF-8 and names no known encoding"),
    (b"x = " + b"(" * 3000 + b")" * 3000 + b"\n", "k.py"),
])
def test_bad_input(toyk: Toy, data: bytes, says: str) -> None:
    file = toyk.folder / "k.py"
    file.write_bytes(data)
    run = toyk.port(str(file))
    assert run.code == 3
    assert run.err.count("\n") == 1
    assert says in run.err
    assert not toyk.generated.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(toyk: Toy) -> None:
    file = toyk.folder / "k.py"
    file.write_text("x = 1\n")
    file.chmod(0)
    run = toyk.port(str(file))
    assert (run.code, run.err) == (3, f"migrate: {file}: Permission denied\n")


def test_folder(toyk: Toy) -> None:
    run = toyk.port(".")
    assert run.code == 2
    assert "is a folder: name a file (`migrate scan .`" in run.err


@pytest.mark.parametrize("data", [b"", b"\n\n", b"x = 1\n", b"# only a comment", b'"""Doc."""'])
def test_no_kernel(toyk: Toy, data: bytes) -> None:
    file = toyk.folder / "k.py"
    file.write_bytes(data)
    run = toyk.port(str(file))
    assert run.code == 0
    assert "k.py: no Triton kernel in it" in run.err
    ast.parse((toyk.generated / "k.py").read_bytes())
    assert toyk.port(str(file), "--check").code == 0


@pytest.mark.parametrize(("encode", "wanted"), [
    (lambda t: t.replace("\n", "\r\n").encode(), "crlf"),
    (lambda t: b"\xef\xbb\xbf" + t.encode(), "bom"),
    (lambda t: ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + t).encode("latin-1"), "latin-1"),
    (lambda t: t.rstrip("\n").encode(), "no newline at the end"),
    (lambda t: t.replace("    y = torch", "\ty = torch").replace("    scale", "\tscale").replace(
        "    return y", "\treturn y").encode(), "tabs"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_bytes_that_no_rule_touches_survive(toyk: Toy, encode, wanted: str) -> None:
    file = toyk.folder / "k.py"
    file.write_bytes(encode(KERNEL))
    assert toyk.port(str(file)).code == 0
    got = (toyk.generated / "k.py").read_bytes()
    compile(got, "k.py", "exec")
    assert b"num_warps" not in got
    if wanted == "crlf":
        assert got.count(b"\n") == got.count(b"\r\n")
    assert got.startswith(b"\xef\xbb\xbf") == (wanted == "bom")
    if wanted == "latin-1":
        assert got.startswith(b"# -*- coding: latin-1 -*-\n# caf\xe9\n")
    assert got.endswith(b"\n") == (wanted != "no newline at the end")
    assert toyk.port(str(file), "--check").code == 0


def test_twenty_thousand_lines(toyk: Toy) -> None:
    file = toyk.folder / "long.py"
    file.write_text(KERNEL + "\n".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(6660)))
    assert file.read_text().count("\n") > 20_000
    run = toyk.port(str(file))
    assert run.code == 0
    assert "num_warps" not in (toyk.generated / "long.py").read_text()


# ---------------------------------------------------------------- things that go wrong while writing

def test_read_only_output(toyk: Toy) -> None:
    run = toyk.migrate("port", SCAN, "-o", "/proc/nowhere")
    assert run.code == 3
    assert "nothing was written, -o DIR writes elsewhere" in run.err


def test_failure_while_writing_leaves_nothing(toyk: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of the closure's files cannot be written: none of them appears, and no temporary file stays."""
    real, count = Path.write_bytes, 0

    def fails(self: Path, data: bytes) -> int:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device", str(self))
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", fails)
    run = toyk.port(SCAN)
    assert run.code == 3
    assert "No space left on device" in run.err
    assert toyk.tree() == {}


def test_interrupted_while_writing(toyk: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Path, data: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    run = toyk.port(SCAN)
    assert run.code == 130
    assert toyk.tree() == {}


def test_a_rule_that_crashes_is_named(toyk: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad(Rule):
        id, name, summary, safety = "ASC999", "bad", "crashes", Safety.SAFE

        def visit_Module(self, node: object) -> None: ...

        def finish(self) -> None:
            raise ZeroDivisionError("oops")

    monkeypatch.setattr(engine, "load", lambda: [Bad])
    run = toyk.port(SCAN)
    assert run.code == 3
    assert "toyk/ops/scan.py: ASC999 bad crashed at" in run.err
    assert "test_port.py:" in run.err
    assert not toyk.generated.exists()


def test_write_all_replaces_every_file_or_none(tmp_path: Path) -> None:
    old = put(tmp_path, {"a.py": "old\n"})
    (old / "b.py").mkdir()                                               # cannot be replaced by a file
    with pytest.raises(write.MigrateError):
        write.write_all({old / "c/d.py": b"new", old / "b.py/x/../../b.py": b"new"} | {Path("/proc/x"): b""})
    assert (old / "a.py").read_text() == "old\n"
    assert not list(old.glob("**/.*.tmp"))


# ---------------------------------------------------------------- formats

def test_text_has_a_rule_beside_each_changed_line(toyk: Toy) -> None:
    out = toyk.port(SCAN).out
    assert "toy-kernels==1.0  toyk/ops/scan.py  1 kernel\n" in out
    assert "ASC101 gpu-launch-hint: removed `num_warps`: does not steer an NPU\n" in out
    lines = [line for line in out.splitlines() if line[13:15] in ("+ ", "- ")]
    assert lines
    assert all(line.startswith("ASC") for line in lines)
    assert "\x1b" not in out
    assert "# --- ported by migrate" not in out                          # the header explains nothing


@pytest.mark.parametrize("width", [80, 200])
def test_text_fits_the_terminal(toyk: Toy, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("migrate.cli_port._width", lambda: width)
    out = toyk.port(SCAN).out
    assert max(map(len, out.splitlines())) <= width
    assert "gpu-launch-hint" in out and "…" not in out
    code = "    tl.store(Y + at, twice(tl.load(X + at, mask=at < N)), mask=at < N)"
    wide = put(toyk.folder / "src", FILES) / "toyk/ops/scan.py"
    wide.write_text(wide.read_text().replace("BLOCK=64, num_warps=4)", "BLOCK=64 + 0 * (1 + 2 + 3), num_warps=4)"))
    out = toyk.migrate("port", str(wide), "--dry-run").out
    assert max(map(len, out.splitlines())) <= width
    assert "num_warps=4)" in out and " ".join(code.split()) not in out       # folded, not cut


def test_a_reason_is_given_once(toyk: Toy) -> None:
    put(toyk.folder / "src", {"k.py": FILES["toyk/ops/maths.py"] + """

@triton.jit
def k(X):
    tl.store(X, 0.0)


def one(x):
    k[(1,)](x, num_warps=4)
    x += 1
    x += 2
    x += 3
    x += 4


def two(x):
    k[(1,)](x, num_warps=4)
"""})
    out = toyk.migrate("port", str(toyk.folder / "src/k.py"), "--dry-run").out
    assert out.count("removed `num_warps`: does not steer an NPU") == 1
    assert out.count("ASC101 gpu-launch-hint: as above, removed `num_warps`\n") == 1


def test_the_end_says_what_comes_next(toyk: Toy) -> None:
    out = toyk.port("toy-kernels==1.0:toyk/ops/maths.py").out
    assert "The rules left nothing for a person.\nThe port was neither compiled nor run." in out
    assert out.endswith("  migrate check out/toyk_1_0/ops/maths.py\n"), "no operator runs it"


def test_verify_is_offered_where_an_operator_runs_the_port(tmp_path: Path) -> None:
    """Of that release, in its place, with no constants folded."""
    catalog = pytest.importorskip("ported_kernels.catalog")
    run = {(operator.upstream.release, operator.upstream.path) for operator in catalog.operators().values()
           if operator.port and not operator.upstream.asked}
    assert run == ports.RUN
    release, path = "mamba-ssm==2.3.2.post1", "mamba_ssm/ops/triton/ssd_bmm.py"

    def result(release: str, path: str, output: Path, wishes: asked.Asked = asked.NOTHING) -> bool:
        upstream = SimpleNamespace(spec=release)
        ported = SimpleNamespace(path=path, project=SimpleNamespace(upstream=upstream))
        return ports.verifiable(Result([ported], [], output, SimpleNamespace(asked=wishes), written=True))

    place = command.default_output()
    assert result(release, path, place)
    assert not result(release, path, tmp_path)
    assert not result("fla-core==0.6.0", path, place)
    assert not result(release, path, place, asked.parse("--set K=128"))


@pytest.mark.parametrize(("options", "code", "says"), [
    (("--target", "FOO"), 2, "unknown target 'FOO'; known: Ascend910B1, "),
    (("--target", "Ascend910B4"), 0, ""),
    (("--triton-ascend", "newest"), 2, "'newest' is no version of triton-ascend"),
    (("--triton-ascend", "9.9"), 0, "triton-ascend 9.9: the rules were checked with 3.2.0 only\n"),
    (("--triton-ascend", "3.2.2"), 0, ""),
])
def test_targets_and_releases(toyk: Toy, options: tuple[str, ...], code: int, says: str) -> None:
    run = toyk.port(SCAN, "--dry-run", *options)
    assert run.code == code
    assert says in run.err if says else not run.err


def test_colour_only_where_wanted(toyk: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    from migrate import cli_port
    assert cli_port._colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cli_port._colour()


def test_json(toyk: Toy) -> None:
    files = json.loads(toyk.port(SCAN, "--format", "json").out)["files"]
    assert [f["upstream"]["path"] for f in files] == [
        "toyk/ops/scan.py", "toyk/ops/index.py", "toyk/ops/maths.py"]
    first = files[0]
    assert first["asked_for"] and first["written"] and first["status"] == "new"
    assert {(c["rule"], c["safety"]) for c in first["changes"]} == {("ASC002", "safe"), ("ASC101", "safe")}
    assert first["kernels"] == ["scale_kernel"]
    text = Path(first["output"]).read_text().splitlines()
    assert "num_stages=1" in text[first["open"][0]["line"] - 1]
    assert first["diff"].startswith("--- a/toyk/ops/scan.py\n+++ b/toyk/ops/scan.py\n")


TOOLS = [["git", "apply", "-"], ["patch", "-p1", "-s"]]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda t: t[0])
@pytest.mark.parametrize("newline", ["\n", "\r\n", ""], ids=["lf", "crlf", "none-at-the-end"])
def test_diff_applies(toyk: Toy, tool: list[str], newline: str) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    files = {n: t.rstrip("\n") if not newline else t.replace("\n", newline) for n, t in FILES.items()}
    put(toyk.folder / "src", files)
    command = ["port", str(toyk.folder / "src/toyk/ops/scan.py"), "-o", str(toyk.generated), "--format", "diff"]
    main = "import sys; from migrate.cli import main; main()"
    patch = subprocess.run([sys.executable, "-c", main, *command], capture_output=True, check=True).stdout
    assert b"@@ ASC101 gpu-launch-hint" in patch
    copy = put(toyk.folder / "copy", files)
    tool = [*tool, "--binary"] if tool[0] == "patch" else tool
    done = subprocess.run(tool, input=patch, cwd=copy, capture_output=True,
                          env={**os.environ, "GIT_CEILING_DIRECTORIES": str(toyk.folder)})
    assert done.returncode == 0, done.stdout + done.stderr
    for name, data in toyk.tree().items():
        if header.read(data.decode()):
            assert (copy / name).read_bytes() == data
