"""`migrate port FILE --set-from`: what recorded launches agree on becomes settings, and nothing else does."""
from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from checking import HERE
from toy import Run

from migrate import cli, header
from migrate.gate.toolchain import Toolchain
from migrate.port import Settings
from migrate.set_from import Found, settings_of

KERNELS = HERE / "kernels/constants.py"
AGREED = "--set scale_kernel.FACTOR=0.5 scale_kernel.BLOCK=64 scale_kernel.KIND='double' clear_kernel.BLOCK=64"


@pytest.fixture
def port(chain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`migrate port ...` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Run:
        monkeypatch.setattr(sys, "argv", ["migrate", "port", *map(str, arguments), "-o", str(tmp_path / "out")])
        with pytest.raises(SystemExit) as left:
            cli.main()
        code = left.value.code or 0
        assert isinstance(code, int)
        return Run(code, *capsys.readouterr())
    return run


def test_what_the_launches_agree_on_is_set(port, tmp_path: Path) -> None:
    run = port(KERNELS, "--set-from", KERNELS)
    assert run.code == 0
    said = run.err.splitlines()
    front, _, words = said[0].partition(" launches: ")
    assert front == f"--set-from {KERNELS}: 3" and shlex.split(words) == AGREED.split(), "to be pasted into a shell"
    assert set(said[1:]) == {
        "  scale_kernel.EVEN: False and True in the launches; left",
        "  scale_kernel.DTYPE: not in every launch as a number, True, False, None or text; left",
        "  unreached_kernel: no case launches it"}
    text = (tmp_path / "out/constants.py").read_text()
    assert header.read(text).tool.endswith(f", {AGREED}")          # type: ignore[union-attr]
    assert "value * 0.5" in text and "if EVEN:" in text and "SIZE: tl.constexpr" in text
    # the header says how to make it again, without recording
    again = port(KERNELS, *shlex.split(words), "--check")
    assert again.code == 0 and again.err == ""
    assert port(KERNELS, "--set-from", KERNELS, "--check").code == 0


def test_what_is_set_by_hand_wins(port, tmp_path: Path) -> None:
    run = port(KERNELS, "--set-from", KERNELS, "--set", "BLOCK=64", "--set", "scale_kernel.FACTOR=0.5")
    assert run.code == 0 and "launches: --set " in run.err and "BLOCK" not in run.err.splitlines()[0]
    made = header.read((tmp_path / "out/constants.py").read_text())
    assert made and made.tool.endswith(", --set BLOCK=64 scale_kernel.FACTOR=0.5 scale_kernel.KIND='double'")


def test_cases_in_a_file_of_their_own(port, tmp_path: Path) -> None:
    """Only one value of EVEN, now."""
    cases = tmp_path / "even_cases.py"
    cases.write_text("import torch\n\n\ndef cases():\n"
                     "    yield 'even', lambda module: module.scale(torch.zeros(9), True)\n")
    run = port(KERNELS, "--set-from", cases)
    assert run.code == 0 and "scale_kernel.EVEN=True" in run.err
    assert "if EVEN:" not in (tmp_path / "out/constants.py").read_text()


def test_cases_of_an_operator(chain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trio's kernel, recorded from its Ascend form, for its plain one: K is 128 in every case, V is not."""
    plain = HERE.parents[1] / "ported_kernels/kda/plain/state_transition.py"
    found: Found = settings_of(str(plain), "kda_state_transition", Settings.make())
    assert {s.name: s.value for s in found.settings} == {"K": 128}
    assert {s.kernel for s in found.settings} == {"kda_state_transition_kernel"}
    assert "kda_state_transition_kernel.BT: 16 and 64 in the launches; left" in found.notes


@pytest.mark.parametrize("text, code, message", [
    ("def other():\n    pass\n", 2, "expected a function cases() in it"),
    ("def cases(:\n", 2, "line 1: "),
    ("def cases():\n    return ()\n", 2, "it has no cases"),
    ("def cases():\n    yield 'idle', lambda module: None\n", 2, "no case launches a kernel of constants.py"),
    ("def cases():\n    yield 'bad', lambda module: module.nope()\n", 3,
     "recording failed: bad: AttributeError: module"),
    ("def cases():\n    raise ValueError('x y')\n    yield\n", 3,
     "recording failed: the cases of odd.py: ValueError: x y"),
])
def test_cases_that_say_nothing(port, tmp_path: Path, text: str, code: int, message: str) -> None:
    cases = tmp_path / "odd.py"
    cases.write_text(text)
    run = port(KERNELS, "--set-from", cases)
    assert run.code == code and message in run.err and run.err.startswith(f"migrate: --set-from {cases}: ")
    assert run.err.count("\n") == 1 and run.out == "" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments, message", [
    ([KERNELS, "--set-from", "no_such_operator"], "'no_such_operator' is neither a file nor an operator; operators: "),
    ([KERNELS, "--set-from", "gone.py"], "--set-from gone.py: no such file; expected an operator or a Python file"),
    ([KERNELS, KERNELS, "--set-from", "x"], "--set-from goes with one FILE, not with 2"),
    (["--all", "fla-core==0.5.2", "--set-from", "x"], "go with a FILE, not with --all"),
])
def test_usage(port, arguments: list[str], message: str) -> None:
    run = port(*arguments)
    assert run.code == 2 and message in run.err and run.err.count("\n") == 1


def test_nothing_of_the_file_is_imported_here(chain: Toolchain, tmp_path: Path) -> None:
    """Recording is the business of a child process: the command itself runs where torch and triton cannot."""
    without = "import sys; sys.modules |= {'torch': None, 'triton': None}\nfrom migrate.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", without, "port", KERNELS, "--set-from", KERNELS, "-o", tmp_path],
                          capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "clear_kernel.BLOCK=64" in done.stderr
