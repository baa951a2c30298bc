"""benchmarks/gpu_parity.py without a GPU: that cases are the same values in every layout, and that faults show."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
gpu_parity = pytest.importorskip("gpu_parity")
import parity_rows  # noqa: E402
import parity_tiles  # noqa: E402
from parity_cases import CASES  # noqa: E402

from ported_kernels.cases.mamba import SIZES, Draw  # noqa: E402

BOUNDS = gpu_parity.BOUNDS


def _tensors(case, layout):
    draw = Draw(SIZES["small"], "cpu", torch.float32, layout)
    return [value for value in gpu_parity.flattened(tuple(case.arguments(draw).values()))
            if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layouts_differ_in_strides_only(case):
    plain, strided = _tensors(case, "contiguous"), _tensors(case, "strided")
    assert all(torch.equal(a, b) for a, b in zip(plain, strided, strict=True))
    assert any(a.stride() != b.stride() for a, b in zip(plain, strided, strict=True))


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_layout_turns_with_the_dtype():
    rows = gpu_parity.plan(None, None, both_layouts=False)
    strided = sum(row.layout == "strided" for row in rows)
    assert abs(2 * strided - len(rows)) <= len(CASES) / 4


def test_a_copy_keeps_strides():
    view = torch.arange(24.0).reshape(4, 6)[:, 1:4].t()
    tied = torch.ones(3)[:, None].expand(3, 5)
    for tensor in (view, tied):
        copy = gpu_parity.cloned(tensor)
        assert copy.stride() == tensor.stride() and torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("got, fault", [
    (lambda x: x.clone(), ""),
    (lambda x: x * (1 + 1e-3), "relative L2"),
    (lambda x: x.bfloat16(), "bfloat16"),
    (lambda x: x[:2], "upstream's is (3, 4)"),
    (lambda x: x.index_fill(0, torch.tensor([0]), float("nan")), "NaN at 4 places"),
    (lambda x: x.index_fill(0, torch.tensor([0]), float("inf")), "inf at other places")])
def test_compare(got, fault):
    x = torch.arange(1.0, 13.0).reshape(3, 4)
    found = gpu_parity.compare([[False], x], [[False], got(x)], "float32", BOUNDS).fault
    assert fault in found and bool(found) == bool(fault)


def test_nothing_finite_is_no_agreement():
    x = torch.full((3,), float("nan"))
    assert "not one finite" in gpu_parity.compare([[False], x], [[False], x], "float32", BOUNDS).fault


def test_unwritten_outputs_are_nan():
    x = torch.ones(2)
    with gpu_parity.unwritten_is_nan():
        assert all(made.isnan().all() for made in (torch.empty(3), torch.empty_like(x), x.new_empty(3)))
        assert torch.empty(3, dtype=torch.int32).dtype == torch.int32


def test_few_configurations_prefers_the_common_ones(monkeypatch):
    triton = parity_tiles.triton
    monkeypatch.setattr(triton, "autotune", lambda configs, key: configs)
    configs = [triton.Config({}, num_warps=warps, num_stages=stages) for warps in (8, 4) for stages in (4, 2)]
    assert [(config.num_warps, config.num_stages) for config in parity_tiles.few(2)(configs, key=[])] \
        == [(4, 2), (4, 4)]


def test_writing_to_an_input_is_a_fault():
    case = next(case for case in CASES if case.function == "compute_dzdo")
    arguments = {"x": torch.zeros(3)}
    with pytest.raises(AssertionError, match="the argument x was written to"):
        gpu_parity.outputs_of(lambda x: x.add_(1), case, arguments)


def test_a_row_that_kills_or_hangs_its_process_costs_itself_only(monkeypatch):
    rows = gpu_parity.plan("compute_dzdo", None, True)[:3]
    script = """import json, sys, time
for index in map(int, sys.argv[-1].split(",")):
    print(json.dumps({"begins": index}), flush=True)
    index == FIRST and sys.exit(7)
    index == SECOND and time.sleep(60)
    print(json.dumps({"index": index, "verdict": "ok"}), flush=True)
"""
    first, second, last = (row.index for row in rows)
    script = script.replace("FIRST", str(first)).replace("SECOND", str(second))
    original = gpu_parity.subprocess.Popen
    monkeypatch.setattr(gpu_parity.subprocess, "Popen",
                        lambda command, **options: original([sys.executable, "-c", script, *command[2:]], **options))
    found = gpu_parity.measure([], rows, gpu_parity.time.monotonic() + 60, row_limit=2)
    assert "exit code 7" in found[first].verdict
    assert "stopped after 2 s" in found[second].verdict
    assert found[last].verdict == "ok"


def test_what_did_not_run_is_not_ok():
    options = gpu_parity.parse(["--device", "cpu"])
    rows = gpu_parity.plan("compute_dzdo", "float32", True)
    row = gpu_parity.Row(upstream_ms=1.0, port_ms=2.0, verdict="ok")
    text = gpu_parity.report(options, rows, {rows[0].index: row}, 1.0)
    assert "rows: 2, ok 1, not run 1" in text and "| 2.00 | ok |" in text and "| not run |" in text


@pytest.mark.parametrize("port, verdict", [(1.05, "ok"), (1.3, "further from float64 than upstream")])
def test_a_port_further_from_float64_than_upstream_is_not_ok(monkeypatch, port, verdict):
    planned = next(row for row in gpu_parity.plan("compute_dzdo", "float32", False) if not row.case.operator)
    exact = torch.arange(1.0, 9.0, dtype=torch.float64)
    # 1e-6: above the noise of float32, below the bound on the difference of the two sides
    sides = {"upstream": (exact * (1 + 1e-6)).float(), "port": (exact * (1 + port * 1e-6)).float()}
    monkeypatch.setattr(gpu_parity, "function_of", lambda side, case: side)
    monkeypatch.setattr(gpu_parity, "outputs_of", lambda side, case, arguments: [[False], sides[side]])
    monkeypatch.setattr(gpu_parity, "reference", lambda case, arguments, device: [exact])
    row = gpu_parity.run_row(planned, gpu_parity.parse(["--device", "cpu"]))
    assert row.verdict == verdict and row.error_ratio == pytest.approx(port, abs=0.1)


def test_both_far_from_float64_is_not_ok(monkeypatch):
    planned = gpu_parity.plan("compute_dzdo", "float32", False)[0]
    monkeypatch.setattr(gpu_parity, "function_of", lambda side, case: side)
    monkeypatch.setattr(gpu_parity, "outputs_of", lambda side, case, arguments: [[False], torch.ones(4)])
    monkeypatch.setattr(gpu_parity, "reference", lambda case, arguments, device: [torch.full((4,), 2.0).double()])
    row = gpu_parity.run_row(planned, gpu_parity.parse(["--device", "cpu"]))
    assert row.verdict == "upstream and port are both far from float64"


def test_resuming_runs_only_what_is_missing(tmp_path, monkeypatch):
    kept = tmp_path / "rows.json"
    ran = []

    def measure(arguments, rows, deadline, row_limit):
        ran.append(len(rows))
        return {rows[0].index: gpu_parity.Row(verdict="ok")} if rows else {}

    monkeypatch.setattr(gpu_parity, "measure", measure)
    monkeypatch.setattr(gpu_parity, "find_release", lambda given: tmp_path)
    call = ["--device", "cpu", "--only", "compute_dzdo", "--dtype", "float32", "--both-layouts", "--resume", str(kept)]
    assert [gpu_parity.main(call) for _ in range(3)] == [1, 0, 0]
    assert ran[::2] == [2, 1, 0]      # each time followed by the search for why rows are slow


@pytest.mark.parametrize("times, why", [
    ((1.0, 2.0, 0.8, 1.0), "packing"), ((1.0, 2.0, 0.1, 1.9), "frozen configuration"),
    ((1.0, 2.0, 0.5, 1.2), "packing and frozen configuration"), ((1.0, 2.0, 0.1, 1.0), "not explained"),
    ((1.0, 2.0, None, None), "not explained")])
def test_why_a_row_is_slow(times, why):
    row = gpu_parity.Row(upstream_ms=times[0], port_ms=times[1], pack_ms=times[2], pinned_ms=times[3])
    assert parity_rows.cause(row) == why
    assert any(why in line for line in parity_rows.slow_rows([("a row", row)]))


def test_upstream_takes_the_ports_constants(tmp_path, monkeypatch):
    """Of a module written for the test, and its port."""
    text = """
import triton
import triton.language as tl

@triton.heuristics({"EVEN": lambda args: True})
@triton.heuristics({"BLOCK": lambda args: 64})
@triton.jit
def fill(x, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)
"""
    (tmp_path / "ports_of_mamba").mkdir()
    (tmp_path / "ports_of_mamba" / "__init__.py").write_text("")
    (tmp_path / "ports_of_mamba" / "filling.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def fill():
        pass

    fill.__module__ = "mamba_ssm.filling"
    assert parity_tiles.frozen_constants(fill, "ports_of_mamba", {"BLOCK"}) == {"BLOCK": 64}
    with pytest.raises(RuntimeError, match="sets no WIDTH"):
        parity_tiles.frozen_constants(fill, "ports_of_mamba", {"BLOCK", "WIDTH"})
