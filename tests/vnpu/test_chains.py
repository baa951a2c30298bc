"""Chains of upstream's ports on the virtual NPU: made by the rules, compiled, run, and compared with float64. All of
benchmarks/vnpu_chains.py with `-m slow`, the shortest ones always."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from migrate.vnpu import device
from upstream_snapshots import sync

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import vnpu_chains  # noqa: E402
import vnpu_kernels  # noqa: E402
import vnpu_recurrences as exact  # noqa: E402

QUICK = ("ssd, forward", "l2norm, forward and backward", "simple_gla, forward and backward, T40",
         "linear attention, forward and backward, T136")
REFUSED = ("ssd, forward, P64 N128 C64", "gated delta rule, forward",      # a kernel of them does not compile
           "ssd, forward and backward")                                    # see vnpu_kernels.EXPLAINED
Row = dict[str, Any]
Chain = Callable[[str, str], Row]


@pytest.fixture(scope="session")
def chain(cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Runs a chain of CHAINS in a process of its own; what it needs is ported first."""
    if reason := device.unusable():
        pytest.skip(reason)
    ports, ported = tmp_path_factory.mktemp("ports"), set()

    def run(name: str, dtype: str) -> Row:
        one = vnpu_chains.CHAINS[name]
        if not sync.find(one.release).is_unpacked:
            pytest.skip(f"{one.release} is not here: migrate snapshot sync")
        if one.module not in ported:
            port = subprocess.run([sys.executable, "-m", "migrate", "port", one.file, "-o", ports],
                                  capture_output=True, text=True)
            assert port.returncode == 0, port.stderr
            ported.add(one.module)
        done = subprocess.run([sys.executable, BENCHMARKS / "vnpu_chains.py", ports, name, dtype],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: Row = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def exactly(row: Row) -> None:
    assert vnpu_kernels.verdict(row) == "ok", vnpu_kernels.why(row)
    assert row["launches"] and row["programs"] and row["outputs"]


@pytest.mark.parametrize("name", QUICK)
def test_quick_chain(chain: Chain, name: str) -> None:
    exactly(chain(name, "float32"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, one in vnpu_chains.CHAINS.items()
                                             if name not in REFUSED for dtype in one.dtypes])
def test_chain(chain: Chain, name: str, dtype: str) -> None:
    if (name, dtype) in ((quick, "float32") for quick in QUICK):
        pytest.skip("tried by test_quick_chain")
    exactly(chain(name, dtype))


def test_verdicts() -> None:
    good: Row = {"outputs": {"o": 1e-7, "dq": 2e-7}, "bound": 1e-6, "errors": {}}
    assert vnpu_kernels.verdict(good) == "ok"
    assert vnpu_kernels.verdict(good | {"bound": 1e-7}) == "failed"
    assert vnpu_kernels.verdict(good | {"errors": {"race": 1}}) == "failed"
    assert vnpu_kernels.verdict({"refused": "k does not compile"}) == "not tried"
    assert vnpu_kernels.verdict(good | {"cases": 3, "passed": 2, "not tried": 1}) == "not tried"
    assert vnpu_kernels.verdict(good | {"cases": 3, "passed": 1, "not tried": 1}) == "failed"


def test_an_error_is_never_small_for_what_is_no_number() -> None:
    want = torch.ones(3).double()
    assert vnpu_chains.error(torch.tensor([1.0, float("nan"), 1.0]), want) == float("inf")
    assert vnpu_chains.error(torch.ones(2), want) == float("inf")
    assert vnpu_chains.error(torch.tensor([1.0, 1.0, 1.3]), want) == pytest.approx(0.3 / 3**0.5)


def test_recurrences_agree_with_closed_forms() -> None:
    """Without decay, linear attention is a masked product; with beta = 1 and orthonormal keys the delta rule is it."""
    draw = torch.Generator().manual_seed(1)
    q, v = (torch.randn(1, 4, 1, 4, generator=draw).double() for _ in range(2))
    k, none, one = torch.eye(4).double()[None, :, None], torch.zeros(1, 4, 1).double(), torch.ones(1, 4, 1).double()
    want = (q[0, :, 0] @ k[0, :, 0].T).tril() @ v[0, :, 0] / 2
    for got, _ in (exact.simple_gla(q, k, v, none), exact.gated_delta_rule(q, k, v, none, one)):
        assert torch.allclose(got[0, :, 0], want)
