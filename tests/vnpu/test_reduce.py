"""Shrinking a disagreement: the edits by themselves, with a stand-in for the judge; and the judge by itself."""
from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import chunk_states
import pytest
import torch

from migrate.gate import process, targets
from migrate.vnpu import device, reduce, reduce_command
from migrate.vnpu.reduce import DIFFERS, DROPPED, Judgement
from migrate.vnpu.specimen import Drawn, Specimen

LIMITS = process.Limits()


@pytest.fixture
def specimen(npu: device.Device) -> Specimen:
    noting = reduce_command._Noting(device.Settings(strict=False))
    with device.entered(noting):
        chunk_states.chunk_states(torch.randn(2, 96, 32), torch.randn(2, 96, 32))
    [found] = noting.specimens
    return found


@pytest.fixture
def usable(cache_folder: Path) -> None:
    """A skip where the toolchain is not there; launches go nowhere yet."""
    if reason := device.unusable():
        pytest.skip(reason)


def test_a_launch_as_a_file_of_its_own(specimen: Specimen) -> None:
    tree = ast.parse(specimen.text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [f.name for f in functions] == ["normed", "chunk_states_kernel", "arguments", "launch", "gate_cases"]
    assert all(ast.unparse(f.decorator_list[0]) == "triton.jit" for f in functions[:2])
    assert specimen.grid == (2,) and specimen.arguments["T"] == 96 and specimen.arguments["NORMED"] is True
    assert specimen.arguments["states"] == Drawn((2, 3, 32, 32), (3072, 1024, 32, 1), "float32")


def test_a_view_keeps_its_strides() -> None:
    made = eval(Drawn((2, 3), (1, 2), "float16").text())
    assert made.shape == (2, 3) and made.stride() == (1, 2) and made.dtype == torch.float16
    kept = eval(Drawn((2,), (1,), "int32", (7, 9)).text())
    assert kept.tolist() == [7, 9] and kept.dtype == torch.int32


def test_it_goes_on_while_the_disagreement_stays(specimen: Specimen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in finds the product dropped while a sum is stored before a product is added to it, in a loop."""
    def judge(some: Specimen, target: str, limits: process.Limits) -> Judgement:
        loops = [node for node in ast.walk(ast.parse(some.functions)) if isinstance(node, ast.For)]
        text = ast.unparse(loops[0]) if loops else ""
        here = "tl.store" in text and "+= tl.dot" in text and text.index("tl.store") < text.index("+= tl.dot")
        return Judgement(frozenset({DROPPED}) if here else frozenset())

    monkeypatch.setattr(reduce, "judge", judge)
    smallest, said, attempts = reduce.reduce(specimen, targets.DEFAULT, LIMITS, 60)
    assert said.kinds == {DROPPED} and attempts > 20
    assert len(smallest.functions.splitlines()) <= 8 and smallest.functions.count("def ") == 1
    assert smallest.grid == (1,) and len(smallest.arguments) < len(specimen.arguments)
    assert set(smallest.arguments) == {a.arg for node in ast.parse(smallest.functions).body
                                       if isinstance(node, ast.FunctionDef) for a in node.args.args}


def test_nothing_else_may_go_wrong(specimen: Specimen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that brings a disagreement of another kind is not kept: here, every one without the first helper."""
    def judge(some: Specimen, target: str, limits: process.Limits) -> Judgement:
        return Judgement(frozenset({DROPPED} if "normed" in some.functions else {DROPPED, "race"}))

    monkeypatch.setattr(reduce, "judge", judge)
    smallest, said, _ = reduce.reduce(specimen, targets.DEFAULT, LIMITS, 60)
    assert said.kinds == {DROPPED} and "normed" in smallest.functions
    assert len(smallest.functions) < len(specimen.functions)


def test_a_name_that_nothing_gives_is_not_tried(specimen: Specimen) -> None:
    assert reduce._complete(specimen)
    broken = Specimen(specimen.kernel, specimen.imports, specimen.functions.replace("chunks =", "chunk_count ="),
                      specimen.grid, specimen.arguments)
    assert not reduce._complete(broken)


KERNEL = '''
@triton.jit
def kernel(x, y, out, T, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    state = tl.zeros([B, B], dtype=tl.float32)
    for t in range(T):
        {body}
'''
STORE = "tl.store(out + t * B * B + at, state)"
ADD = "state += tl.dot(tl.load(x + t * B * B + at), tl.load(y + t * B * B + at))"
TILES = Drawn((3, 32, 32), (1024, 32, 1), "float32")


def product(*body: str) -> Specimen:
    return Specimen("kernel", ("import torch", "import triton", "import triton.language as tl"),
                    KERNEL.format(body="\n        ".join(body)), (1,),
                    {"x": TILES, "y": TILES, "out": TILES, "T": 3, "B": 32})


RUN = """
import sys
from pathlib import Path
from migrate.gate import toolchain
from migrate.vnpu import reduce_command
print(*reduce_command.run([sys.argv[1]], Path(sys.argv[2]), toolchain.find(), seconds=0), sep="\\n")
"""


def run(file: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as on the command line: attempts are forks, which start from one that did little."""
    return subprocess.run([sys.executable, "-c", RUN, file, out], capture_output=True, text=True, timeout=120)


def test_the_folder_shows_it_without_this_toolkit(usable: None, tmp_path: Path) -> None:
    """No time to shrink: the kit is that of the kernel as it was."""
    file, out = tmp_path / "states.py", tmp_path / "kit"
    file.write_text(product(STORE, ADD).text())
    said = run(file, out)
    assert DROPPED in said.stdout, said.stderr
    assert DIFFERS in said.stdout and "never written" in said.stdout
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "kernel.py", "linalg.mlir", "show.py"]
    done = subprocess.run([sys.executable, out / "show.py"], capture_output=True, text=True)
    assert "ended with 0; products in linalg.mlir: 1, in the final HIVM (hivm.mlir): 0" in done.stdout, done.stderr


def test_nothing_to_reduce(usable: None, tmp_path: Path) -> None:
    file = tmp_path / "states.py"
    file.write_text(product(ADD, STORE).text())
    assert "nothing to reduce: compiler and interpreter agree on all of 1" in run(file, tmp_path / "kit").stderr
    assert reduce_command.Agreement.exit_code == 1
    assert "expected a folder that is empty" in run(file, tmp_path).stderr
