"""mamba3_siso_bwd.py with the axis of q and k in parts of 64, as it fits Ascend's Unified Buffer: still right.

The catalogue's contract of `compute_dqkv`, its reference and its bounds, on a port made with
`--set HEADDIM_QK=128 --split HEADDIM_QK`, and one of 256."""
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from migrate.asked import Asked, Setting
from migrate.command import port
from migrate.errors import MigrateError
from migrate.port import Settings
from migrate.verify import Verdict
from migrate.verify.trial import try_case
from ported_kernels import catalog
from ported_kernels.mamba3.compute_dqkv_reference import _case

OPERATOR = catalog.get("compute_dqkv")
UPSTREAM = OPERATOR.upstream
CASES = {
    128: (OPERATOR.case("T70 K128 V64 C64, D, states"),
          _case("K128 V64 C32, grouped", 2, 37, 4, 2, 128, 64, 32, skip=True),
          _case("K128 V20 C16, packed, D, states", 1, 53, 2, 1, 128, 20, 16, ends=(1, 33, 53), skip=True, states=True),
          _case("K128 V128 C64, views with gaps", 1, 70, 2, 2, 128, 128, 64, states=True, apart=True)),
    256: (_case("K256 V64 C64, D, states", 1, 70, 2, 1, 256, 64, 64, skip=True, states=True),
          _case("K256 V32 C16, packed", 1, 40, 2, 1, 256, 32, 16, ends=(9, 40))),
}


@pytest.fixture(scope="module")
def ported(tmp_path_factory):
    """An operator for each length, that runs a port in parts."""
    made = {}
    root = tmp_path_factory.mktemp("ports")
    for dim in CASES:
        folder = root / f"headdim_qk_{dim}"         # a package of its own: both ports are imported
        asked = Asked(settings=(Setting("HEADDIM_QK", dim),), split=("HEADDIM_QK",))
        try:
            result = port(f"{UPSTREAM.release}:{UPSTREAM.path}", Settings.make(asked=asked), folder)
        except MigrateError as error:
            pytest.skip(f"{UPSTREAM.release} cannot be had here: {error}")
        wrapper = f"{folder / result.ports[0].target}:{UPSTREAM.function}"
        made[dim] = replace(OPERATOR, wrapper=wrapper, signature=None, root=root, cases=CASES[dim])
    return made


@pytest.mark.parametrize("dtype", OPERATOR.dtypes, ids=str)
@pytest.mark.parametrize("dim, case", [(dim, case) for dim, cases in CASES.items() for case in cases],
                         ids=lambda value: getattr(value, "name", value))
def test_the_port_in_parts_agrees_with_float64(ported, dim, case, dtype):
    found = try_case(ported[dim], case, dtype, "cpu", seed=0)
    assert found.verdict is Verdict.PASSED, found.reason
    assert len(found.outputs) >= 5


@pytest.mark.parametrize("dim", CASES)
def test_its_kernel_is_in_parts(ported, dim):
    text = Path(ported[dim].wrapper.rpartition(":")[0]).read_text()
    kernel = text[text.index("def mamba3_siso_bwd_kernel_dqkv("):]
    kernel = kernel[:kernel.index("\ndef ")]
    assert f"static_assert(HEADDIM_QK == {dim})" in kernel
    assert "[CHUNK_SIZE, 64]" in kernel and "[CHUNK_SIZE, HEADDIM_QK]" not in kernel


def test_another_length_is_refused(ported):
    inputs = OPERATOR.case("T16, one chunk").build(0, torch.float32)
    with pytest.raises(Exception, match=r"mamba3_siso_bwd_kernel_dqkv, program .*AssertionError"):
        ported[128].load("cpu")(**inputs)
