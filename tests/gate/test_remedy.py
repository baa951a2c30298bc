"""What a verdict says to write: the command that splits a tile, and the option of a launch."""
from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest
from checking import only, run

from migrate import header
from migrate.asked import Asked, settings
from migrate.command import port
from migrate.gate import remedy
from migrate.gate.result import Outcome
from migrate.gate.toolchain import Toolchain
from migrate.port import Settings

TALL = """
    import torch
    import triton
    import triton.language as tl


    @triton.jit
    def tall(x, y, z, K: tl.constexpr, N: tl.constexpr):
        at = tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :]
        tl.store(z + at, tl.exp(tl.load(x + at)) * tl.load(y + at))


    def gate_cases():
        x = torch.zeros(128, 256)
        yield "case", lambda module: module.tall[(1,)](x, x.clone(), x.clone(), K=128, N=256)
    """


def test_the_command_splits_what_overflows(chain: Toolchain, tmp_path: Path) -> None:
    """The hint's command, run: what it makes compiles."""
    file = tmp_path / "tall.py"
    file.write_text(textwrap.dedent(TALL))
    whole = only(run(chain, [file]), kernel="tall")
    assert whole.outcome is Outcome.FAILED
    [overflow] = [d for d in whole.diagnoses if d.buffer == "UB"]
    assert overflow.tiles == {"K": 128, "N": 256}
    command = re.search(r"try N in 4 parts of 64: (migrate port .*)$", overflow.hint)
    assert command, overflow.hint
    words = shlex.split(command[1])
    assert words == ["migrate", "port", str(file), "--set", "N=256", "--split", "N"]
    asked = Asked(settings(words[4:5]), tuple(words[6].split(",")))
    made = port(words[2], Settings.make(asked=asked), tmp_path / "out")
    parts = only(run(chain, [tmp_path / "out" / made.ports[0].target]), kernel="tall")
    assert parts.outcome is Outcome.OK, parts.line


@pytest.mark.parametrize("tiles, said", [
    ({"K": 128}, "try K in 2 parts of 64: migrate port FILE --set K=128 --split K"),
    ({"K": 128, "V": 64}, "try K in 2 parts of 64: migrate port FILE --set K=128 --split K"),
    ({"K": 128, "V": 128}, "try K in 2 parts of 64: migrate port FILE --set K=128 --split K (or V in place of K)"),
    ({"K": 128, "V": 256}, "try V in 4 parts of 64: migrate port FILE --set V=256 --split V"),
    ({"K": 192}, "try K in 3 parts of 64: migrate port FILE --set K=192 --split K"),
    ({"K": 64}, ""), ({"K": 160}, ""), ({"BLOCK": 65536}, ""), ({}, "")])
def test_which_constant(tiles: dict[str, int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("")
    assert remedy.split(str(tmp_path / "FILE"), tiles) == said


@pytest.mark.parametrize("asked, tiles, said", [
    ("", {"K": 128}, "migrate port mamba3_siso_bwd.py --set K=128 --split K"),
    (", --set K=64 USE_G=False", {"V": 128}, "migrate port mamba3_siso_bwd.py --set K=64 USE_G=False V=128 --split V"),
    (", --set K=128 --split K --copy-operands", {"K": 128, "V": 128},
     "migrate port mamba3_siso_bwd.py --set K=128 V=128 --split K,V"),
    (", --set K=128 --split K", {"K": 128}, "")])
def test_a_port_is_made_again_from_its_source(asked: str, tiles: dict[str, int], said: str, tmp_path: Path) -> None:
    """With what was asked for before; what is in parts already is not named again."""
    path = "mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py"
    made = header.Header("mamba-ssm==2.3.2.post1", path, "0", "MIT", f"migrate 0.1.0, 21 rules 0, Ascend910B2{asked}")
    port = tmp_path / "port.py"
    port.write_text(header.add("import torch\n", made))
    found = remedy.split(str(port), tiles)
    assert found.partition(": ")[2] == said


LAUNCH = """
    def run(x, y, n):
        kernel[(n,)](
            n, x, None, y, BLOCK=64)
    """
FACTS = {"kernel": "kernel", "signature": {"n": "i32", "x": "*fp32", "y": "*fp32"}, "constants": {"BLOCK": 64}}


def test_the_launch_and_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kernel, host = tmp_path / "kernel.py", tmp_path / "host.py"
    kernel.write_text("def kernel(n, x, z, y, BLOCK): ...\n")
    host.write_text(textwrap.dedent(LAUNCH))
    facts = {**FACTS, "file": str(kernel), "launched_at": [str(host), 3]}
    assert remedy.launch({"multibuffer": False}, facts) == (
        "launch it with multibuffer=False: add `**runtime.launch_options(x.device, multibuffer=False)` to the launch "
        "at host.py:3; `runtime` is that of `ported_kernels`")
    elsewhere = {**facts, "launched_at": ["", 0]}
    assert "launch_options(x.device, multibuffer=False)` to the launch; " in remedy.launch({"multibuffer": False},
                                                                                           elsewhere)


def test_a_kernel_that_needs_an_option_says_how(chain: Toolchain) -> None:
    from checking import HERE

    file = HERE / "flaws/carried_product.py"
    verdict = only(run(chain, [file]), kernel="transition")
    assert verdict.needs == {"multibuffer": False}
    [warning] = [d for d in verdict.diagnoses if d.name == "carried-product"]
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "m.transition[" in text)
    assert "`**runtime.launch_options(x.device, multibuffer=False)` to the launch at " in warning.hint
    assert f"carried_product.py:{line};" in warning.hint
