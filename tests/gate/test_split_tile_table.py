"""The parts of benchmarks/split_tile.py, on one small kernel: the table itself is not made again."""
from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from migrate.gate.result import Diagnosis, Stage, Verdict
from migrate.gate.result import Outcome as O
from migrate.gate.toolchain import Toolchain

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import split_tile

KERNEL = """
    import triton
    import triton.language as tl


    @triton.jit
    def product(x, y, z, K: tl.constexpr, N: tl.constexpr):
        o_k, o_n = tl.arange(0, K), tl.arange(0, N)
        b_x = tl.load(x + o_n[:, None] * K + o_k[None, :])
        b_y = tl.load(y + o_k[:, None] * N + o_n[None, :])
        tl.store(z + o_n[:, None] * N + o_n[None, :], tl.dot(b_x, b_y))


    def run(x, y, z):
        product[(1,)](x, y, z, K=128, N=32)
    """
CASES = """
    import torch


    def cases():
        yield "one case", lambda module: module.run(torch.zeros(32, 128), torch.zeros(128, 32), torch.zeros(32, 32))
    """


def test_a_kernel_whole_and_in_parts(chain: Toolchain, tmp_path: Path) -> None:
    file, cases = tmp_path / "product.py", tmp_path / "its_cases.py"
    file.write_text(textwrap.dedent(KERNEL))
    cases.write_text(textwrap.dedent(CASES))
    subject = split_tile.Subject("small", str(file), "K=128", "K", "A product", cases)
    [row] = split_tile.compare(subject, "Ascend910B2", chain)
    assert (row.kernel, row.case) == ("product", "one case")
    assert row.whole.cost and row.parts.cost
    # two operands of 32 x 128 float32 in L1, one result of 32 x 32 in L0C
    assert row.whole.cost["l1_bits"] >= 2 * 32 * 128 * 32 and row.whole.cost["l0c_bits"] >= 32 * 32 * 32
    assert row.whole.cost["products"] == 1 and row.parts.cost["products"] == 2
    text = split_tile.page({subject: [row]}, "Ascend910B2", chain.versions)
    assert f"| one case | {split_tile.memory(row.whole, 'UB')}" in text
    assert f"    migrate port {file} --set K=128 --split K\n" in text
    assert "1 launches: " in text


def verdict(outcome: O, needed: int = 0, ub: int = 0, **cost: object) -> Verdict:
    overflow = [Diagnosis("ub-overflow", "error", "", buffer="UB", needed_bits=needed)] if needed else []
    made = {"ub_bits": ub, "l1_bits": 1024, "l0c_bits": 0, "multi_buffered": True, **cost} if ub else None
    return Verdict("unit", "kernel", "Ascend910B2", ["case"], stages=[Stage("HIVM", outcome)], diagnoses=overflow,
                   cost=made, launch={"options": {}})


GIVEN_UP = verdict(O.OK, ub=500, multi_buffered=False)
GIVEN_UP.diagnoses.append(Diagnosis("multi-buffering-off", "note", ""))
NEEDS = verdict(O.OK, ub=500)
NEEDS.needs = {"multibuffer": False}


@pytest.mark.parametrize("whole, parts, said", [
    (verdict(O.FAILED, 2_000_000), verdict(O.OK, ub=1000), ("**compiles only in parts**", "")),
    (verdict(O.OK, ub=1000), verdict(O.FAILED, 2_000_000), ("**harm: compiles only whole**", "")),
    (verdict(O.FAILED, 2_000_000), verdict(O.FAILED, 1_600_000), ("no help: neither compiles", "")),
    (verdict(O.OK, ub=1000), verdict(O.OK, ub=900), ("both compile, less UB", "-10.0 %")),
    (verdict(O.OK, ub=1000), verdict(O.OK, ub=1000), ("no help: both compile", "UB as before")),
    (verdict(O.OK, ub=1000), verdict(O.OK, ub=1010), ("no help: both compile", "UB +1.0 %")),
    (GIVEN_UP, verdict(O.OK, ub=900), ("both compile, not alike", "multi-buffering given up → on")),
    (NEEDS, verdict(O.OK, ub=900), ("spares a launch option", "")),
    (verdict(O.OK, ub=900), NEEDS, ("harm: wants a launch option", ""))])
def test_what_the_split_did(whole: Verdict, parts: Verdict, said: tuple[str, str]) -> None:
    assert split_tile.verdict_of(split_tile.Row("kernel", "case", whole, parts)) == said


def test_what_a_figure_is() -> None:
    """Bold from a message; a question mark for a memory that the message does not speak of."""
    failed = verdict(O.FAILED, 2_000_000)
    assert [split_tile.memory(failed, name) for name in ("UB", "L1", "L0C")] == ["**2,000,000**", "?", "?"]
    assert [split_tile.memory(verdict(O.OK, ub=1000), name) for name in ("UB", "L1", "L0C")] == ["1,000", "1,024", "0"]
