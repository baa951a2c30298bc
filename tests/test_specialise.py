"""`specialise`: kernels made to trip it, each also run before and after under the interpreter."""
from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, strategies
from hypothesis import settings as hypothesis_settings
from typer.testing import CliRunner

from migrate import engine
from migrate.asked import Asked, settings
from migrate.cli import app
from migrate.errors import MigrateError, UsageError
from migrate.source import Source
from rules.tiles.specialise import Specialise

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("ported_kernels.runtime")

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
RUN_TIME = {"n": 5, "stride_g": 1, "BLOCK": 64, "h": 1}


def specialised(text: str, words: str, split: tuple[str, ...] = ()) -> engine.Outcome:
    return engine.apply(Source.parse(text, asked=Asked(settings(shlex.split(words)), split)), [Specialise])


def cases() -> list[Any]:
    found = []
    for file in sorted((Path(__file__).parent / "specialise").glob("*.txt")):
        for block in re.split(r"^#### ", file.read_text(), flags=re.MULTILINE)[1:]:
            name, words, body = block.split("\n", 2)
            before, _, after = body.partition("#=== after\n")
            found.append(pytest.param(HEAD + before, HEAD + after, words.removeprefix("#set "), id=name))
    return found


def results(path: Path, text: str, words: str, **more: Any) -> list[Any]:
    """What the kernel writes: launched by `run(x, y, g)` of the module, or as two programs with the given values."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    values = {s.name: s.value for s in settings(shlex.split(words))}
    tensors = dict(zip("xyg", inputs(), strict=True))
    arguments = {**RUN_TIME, **tensors, **values, **more}
    with runtime.on("cpu"):
        spec.loader.exec_module(module)
        if hasattr(module, "run"):
            module.run(*tensors.values())
        else:
            module.kernel[(2,)](**{name: arguments[name] for name in module.kernel.arg_names})
    return list(tensors.values())


def inputs() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1024, generator=generator) for _ in range(3)]


@pytest.mark.parametrize(("before", "after", "words"), cases())
def test_kernel(before: str, after: str, words: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    got = specialised(before, words)
    assert got.final.text == after
    ast.parse(after)
    assert not specialised(after, words).steps
    if "interpreter has not" in request.node.name:
        return
    was, now = results(tmp_path / "before.py", before, words), results(tmp_path / "after.py", after, words)
    assert all(torch.equal(one, two) for one, two in zip(was, now, strict=True))
    assert any(not torch.equal(one, two) for one, two in zip(was, inputs(), strict=True))


@pytest.mark.parametrize(("before", "after", "words"), cases())
def test_windows_line_endings(before: str, after: str, words: str) -> None:
    assert specialised(before.replace("\n", "\r\n"), words).final.text == after.replace("\n", "\r\n")


FLAGS = HEAD + """@triton.jit
def kernel(x, y, n, K: tl.constexpr, USE: tl.constexpr):
    tl.static_assert(K <= 64)
    at = tl.arange(0, K)
    v = tl.load(x + at)
    if USE and K > 32:
        v = v + n
    tl.store(y + at, v)


@triton.jit
def helper(x, SIZE: tl.constexpr):
    return x + SIZE
"""


def test_an_assertion_that_fails_is_an_error() -> None:
    with pytest.raises(MigrateError, match=r"kernel kernel, line 6: `tl.static_assert\(K <= 64\)` does not hold"):
        specialised(FLAGS, "K=128")


def test_a_constant_to_split_decides_but_keeps_its_name() -> None:
    outcome = specialised(FLAGS, "K=64 USE=True", split=("K",))
    assert "tl.static_assert(K == 64)\n" in outcome.final.text
    assert "at = tl.arange(0, K)" in outcome.final.text
    assert "    v = v + n\n" in outcome.final.text
    assert "USE" not in outcome.final.text
    assert not outcome.open
    assert not engine.apply(outcome.final, [Specialise]).steps


LAUNCHED = HEAD + """from ported_kernels import runtime

@triton.jit
def kernel(x, K: tl.constexpr, num_stages: tl.constexpr = 2):
    tl.store(x, K // 2)

def run(x, k):
    kernel[(1,)](x, K=k, LAST)
"""


@pytest.mark.parametrize("last", [
    "**more", "**runtime.launch_options(x.device, multibuffer=False)", "**runtime.launch_options(x.device, **more)",
    "**other.launch_options(x.device)"])
def test_what_else_may_be_in_a_launch(last: str) -> None:
    """Here num_stages is a parameter."""
    found = specialised(LAUNCHED.replace("LAST", last), "K=64").open
    assert "a launch of the kernel could not be matched to its parameters" in found[0].message
    options = LAUNCHED.replace("LAST", last).replace("num_stages: tl.constexpr = 2", "multi=1")
    assert bool(specialised(options, "K=64").open) is ("more" in last or "other" in last)
    taken = options.replace("multi=1", "multibuffer=True")
    assert specialised(taken, "K=64").open


TYPED = HEAD + """@triton.jit
def kernel(x, n, K: tl.constexpr):
    tl.store(x + n // K, K)

def run(x, n, k, m):
    kernel[(1,)](x, n, K=PASSED)
"""


@pytest.mark.parametrize(("words", "passed", "asserted"), [
    ("K=1", "True", None), ("K=True", "1", None), ("K=2.0", "2", None), ("K=2", "2.0", None), ("K=0.0", "-0.0", None),
    ("K=None", "0", None),
    ("K=1", "1", ""), ("K=True", "True", ""), ("K=2.0", "2.0", ""),
    ("K=2", "k", "k == 2"), ("K=2.0", "k", "k == 2.0 and isinstance(k, float)"),
    ("K=True", "k", "k and isinstance(k, bool)"), ("K=False", "k", "not k and isinstance(k, bool)"),
    ("K=True", "k > 1", "k > 1"), ("K=2", "k / m", "k / m == 2 and isinstance(k / m, int)"),
    ("K=2", "k // m", "k // m == 2"),
])
def test_a_value_of_another_type_is_another_value(words: str, passed: str, asserted: str | None) -> None:
    outcome = specialised(TYPED.replace("PASSED", passed), words)
    if asserted is None:
        assert outcome.final.text == TYPED.replace("PASSED", passed)
        assert f"the launch at line 10 passes {passed}" in outcome.open[0].message
        return
    assert not outcome.open
    assert "(x, n)\n" in outcome.final.text
    assert re.findall(r"assert (.*), \"", outcome.final.text) == ([asserted] if asserted else [])


def test_a_flag_that_is_only_asked_may_be_anything() -> None:
    text = TYPED.replace("PASSED", "k").replace("n // K, K", "(1 if K and n else 2), not K or 1")
    assert 'assert k, "the' in specialised(text, "K=True").final.text
    text = text.replace("not K or 1", "K or 1")
    assert 'assert k and isinstance(k, bool), "the' in specialised(text, "K=True").final.text


def test_a_static_assertion_does_not_tell_a_float_from_an_integer() -> None:
    text = TYPED.replace("K=PASSED", "**m")
    outcome = specialised(text, "K=2.0")
    assert outcome.final.text == text
    assert "a static assertion holds for an integer as well, and a launch of" in outcome.open[0].message
    assert "tl.static_assert(K == 2)" in specialised(text, "K=2").final.text


CALLING = HEAD + """@triton.jit
def helper(x, K: tl.constexpr = 3):
    return x * K

@triton.jit
def kernel(x, n, N: tl.constexpr):
    tl.store(x, CALL)
"""


@pytest.mark.parametrize(("call", "words", "passes"), [
    ("helper(n)", "helper.K=8", "3"), ("helper(n, 5)", "helper.K=8", "5"), ("helper(n, K=4 + 1)", "helper.K=8", "5"),
    ("helper(n, N)", "helper.K=8 N=4", "4"), ("helper(n, 1)", "helper.K=True", "1"),
    ("helper(n, 8) + helper(n)", "helper.K=8", "3"),
    ("helper(n)", "helper.K=3", ""), ("helper(n, 8)", "helper.K=8", ""), ("helper(n, N)", "helper.K=8", ""),
    ("helper(n, N)", "helper.K=8 N=8", ""), ("helper(*n)", "helper.K=8", ""),
])
def test_a_call_of_a_helper_may_contradict(call: str, words: str, passes: str) -> None:
    outcome = specialised(CALLING.replace("CALL", call), words)
    helper = outcome.final.text.partition("def helper")[2].partition("@")[0]
    said = [f.message for f in outcome.open if "is not folded into `helper`" in f.message]
    if passes:
        assert "return x * K\n" in helper and "static_assert" not in helper
        assert [f"the call at line 11 passes {passes}" in message for message in said] == [True]
    else:
        assert "tl.static_assert(K ==" in helper and "x * K" not in helper and not said


@pytest.mark.parametrize(("words", "message"), [
    ("Q=1", "no kernel of kernel.py has a tl.constexpr parameter Q; there are K, USE"),
    ("n=1", "n of kernel is a run-time argument, not tl.constexpr"),
    ("other.K=1", "kernel.py has no kernel other; it has kernel, helper"),
    ("kernel.SIZE=1", "kernel has no tl.constexpr parameter SIZE; there are K, USE"),
    ("SIZE=1", "no kernel of kernel.py has a tl.constexpr parameter SIZE; there are K, USE"),
])
def test_what_cannot_be_set_is_an_error_before_anything_is_written(words: str, message: str, tmp_path: Path) -> None:
    done = port(tmp_path, words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("words", "message"), [
    ("--set K=1e400", "--set K=1e400: expected a finite number, True"),
    ("--set K=-1e400", "--set K=-1e400: expected a finite number, True"),
    ("--set K=64 --ignore ASC211", "--set needs the rule specialise, which is not selected"),
    ("--set K=64 --select drop-strides", "--set needs the rule specialise, which is not selected"),
    ("--split K --ignore split-tile", "--split needs the rule split-tile, which is not selected"),
    ("--copy-operands --select ASC211", "--copy-operands needs the rule guard-dot-operand, which is not selected"),
    ("--set-from kda --ignore specialise", "--set-from needs the rule specialise, which is not selected"),
    ("--split ''", "--split: expected names of constants"),
    ("--split ,", "--split: expected names of constants"),
])
def test_options_that_would_do_nothing_are_errors(words: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(FLAGS)
    done = CliRunner().invoke(app, ["port", str(tmp_path / "kernel.py"), "-o", str(tmp_path / "out"),
                                    *shlex.split(words)])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert not (tmp_path / "out").exists()


def port(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.py").write_text(FLAGS)
    command = ["port", str(folder / "kernel.py"), "-o", str(folder / "out"), "--set", *words]
    return subprocess.run([sys.executable, "-m", "migrate", *command], capture_output=True, text=True, timeout=120)


def test_the_port_says_what_was_set(tmp_path: Path) -> None:
    done = port(tmp_path, "K=64", "USE=True", "helper.SIZE=4")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "kernel.py").read_text()
    assert "--set K=64 USE=True helper.SIZE=4\n" in text
    assert "def kernel(x, y, n):" in text
    assert "return x + 4" in text


def test_each_change_has_its_reason() -> None:
    found = specialised(FLAGS, "K=64 USE=True").steps[0].findings
    said = {f.message: f.line for f in found}
    assert said["`kernel` is specialised for K = 64, USE = True"] == 6
    assert said["`K` is 64"] == 8
    assert said["`USE and K > 32` is True: its branch stays, without the test"] == 10
    assert said["an assertion that holds for the given values goes"] == 7
    assert said["`kernel` and its launches lose 2 parameters"] == 6


# Kernels made at random from constants, run-time values and the statements that fold

CONSTANTS: dict[str, list[Any]] = {"A": [True, False], "B": [True, False], "K": [16, 64, 128], "N": [0, 1, 2],
                                   "MODE": [0, 1, 2]}
CONDITIONS = ["A", "not A", "B", "A and B", "A or B", "K > 32", "K // 16 == 4", "N == 0", "MODE == 1", "n > 3", "n > 9",
              "A and n > 3", "n > 3 or B", "n > 9 and not A", "(A or n > 9) and K > 16", "half > 16", "wide",
              "parts > 1", "A and B or n > 3"]
NUMBERS = ["1", "2", "n", "K", "(K // 16)", "N", "(N + 1)", "half", "parts", "MODE * 2", "min(K, 64)", "tl.cdiv(K, 64)",
           "(3 if A else 5)", "(K if B else n)", "(n if n > 3 else MODE)", "s", "s * N", "(0 * s + K)", "(N * 1 + s)"]
LOOPS = ["range(N)", "tl.static_range(N)", "range(K // 64)", "tl.static_range(0, parts)", "range(MODE, 2)", "range(n)"]


@strategies.composite
def statements(draw: Any, depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(strategies.integers(1, 3))):
        kinds = ["tile", "number", "comment", "load"] + (["if", "if", "if", "loop"] if depth else [])
        kind = draw(strategies.sampled_from(kinds))
        number, other = draw(strategies.sampled_from(NUMBERS)), draw(strategies.sampled_from(NUMBERS))
        if kind == "tile":
            lines.append(draw(strategies.sampled_from(
                [f"v = v + {number}", f"v = v * {number} - w", f"w = w + {number} * ({other} + 1)", f"v += {number}"])))
        elif kind == "number":
            lines.append(f"s = {number} + {other} % 7")
        elif kind == "comment":
            lines += ["", f"# about {number}"]
            lines.append(f"w = v - {other}")
        elif kind == "load":
            lines += [f"p = x + {number} % 100 * 2 + at", "w = tl.load(p)"]
        elif kind == "if":
            condition = draw(strategies.sampled_from(CONDITIONS))
            lines += [f"if {condition}:", *indented(draw(statements(depth - 1)))]
            if draw(strategies.booleans()):
                other_condition = draw(strategies.sampled_from(CONDITIONS))
                lines += [f"elif {other_condition}:", *indented(draw(statements(depth - 1)))]
            if draw(strategies.booleans()):
                lines += ["else:", *indented(draw(statements(depth - 1)))]
        else:
            index = f"i{depth}"
            lines.append(f"for {index} in {draw(strategies.sampled_from(LOOPS))}:")
            lines += indented([f"v = v * 2 + {index} * 3", *draw(statements(depth - 1))])
    return lines


def indented(lines: list[str]) -> list[str]:
    return ["    " + line if line else "" for line in lines]


@strategies.composite
def kernels(draw: Any) -> tuple[str, dict[str, Any], list[str]]:
    """The text, a value for each constant, and the constants to set."""
    body = ["at = tl.arange(0, 16)", "half: tl.constexpr = K // 2", "wide = K > 32", "parts = tl.cdiv(K, 64)",
            "s = n + 1", "v = tl.load(x + at)", "w = v * 2", *draw(statements(2)), "tl.store(y + at, v + w * s)"]
    text = "\n".join(["@triton.jit", "def kernel(x, y, n, " + ", ".join(f"{c}: tl.constexpr" for c in CONSTANTS) + "):",
                      *indented(body), ""])
    values = {name: draw(strategies.sampled_from(options)) for name, options in CONSTANTS.items()}
    values["n"] = draw(strategies.sampled_from([1, 5, 12]))
    chosen = draw(strategies.lists(strategies.sampled_from(list(CONSTANTS)), min_size=1, unique=True))
    return HEAD + text, values, chosen


@given(kernels())
@hypothesis_settings(max_examples=100, deadline=None,
                     suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_random_kernels_compute_the_same(tmp_path: Path, made: tuple[str, dict[str, Any], list[str]]) -> None:
    text, values, chosen = made
    words = " ".join(f"{name}={values[name]}" for name in chosen)
    outcome = specialised(text, words)
    after = outcome.final.text
    ast.parse(after)
    assert not specialised(after, words).steps
    assert not outcome.open
    assert not set(chosen) & {n.id for n in ast.walk(ast.parse(after)) if isinstance(n, ast.Name)}
    assert after.count("pass\n") == 0
    assert "\n\n\n    " not in after
    was = results(tmp_path / "before.py", text, words, **values)
    now = results(tmp_path / "after.py", after, words, **values)
    assert all(torch.equal(one.nan_to_num(), two.nan_to_num()) for one, two in zip(was, now, strict=True))
