"""References of ported operators against what the pinned release ships as references of its own, loaded from the
unpacked snapshot; a quick pass of every ported operator; faults planted in some ports."""
import importlib
import math
import shutil
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from migrate.errors import MigrateError
from migrate.verify import Verdict, assert_close, target
from migrate.verify.trial import try_case
from ported_kernels import catalog, runtime
from ported_kernels.mamba3 import mimo_utils_reference as mimo
from ported_kernels.ssd import chunk_scan_reference as scan
from ported_kernels.ssd.formula import Sizes, chunk_states

SISO_BWD = {"compute_dzdo", "compute_dqkv", "compute_dqktheta", "compute_ddt_dtrap_dinput_states"}   # test_siso_bwd.py
PORTS = [operator for operator in catalog.operators().values() if operator.port and operator.name not in SISO_BWD]


@pytest.fixture(scope="module")
def ported():
    try:
        target.prepare(PORTS)
    except MigrateError as error:
        pytest.skip(f"a release cannot be had here: {error}")


@pytest.fixture(scope="module")
def upstream():
    """A module of the release by its name. The package's own __init__ imports what is not here: it is not run."""
    from upstream_snapshots import sync

    try:
        root = sync.ensure(sync.find("mamba-ssm==2.3.2.post1"))
    except (MigrateError, OSError) as error:
        pytest.skip(f"the release cannot be had here: {error}")

    package = ModuleType("mamba_ssm")
    package.__path__ = [str(root / "mamba_ssm")]
    sys.modules["mamba_ssm"] = package

    def module(name):
        with runtime.on("cpu"):
            return importlib.import_module("mamba_ssm.ops.triton." + name.replace("/", "."))
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]


LOG2E = math.log2(math.e)
ENDS = torch.tensor([0, 9, 10, 10, 37], dtype=torch.int32)


def double(inputs):
    return {name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for name, value in inputs.items()}


def test_mimo_sums(upstream):
    theirs = upstream("mamba3/mamba3_mimo_utils")
    da = -catalog.seeded(0)(2, 3, 48).abs()
    for name, want, got in zip("csr", theirs.compute_dacs_segsum_ref(da, 16), mimo.dacs_segsum_reference(da, 16),
                               strict=True):
        assert_close(name, want, got, 1e-13)
    da = da[:1, :, :37]
    for name, want, got in zip("csr", theirs.compute_dacs_segsum_ref_varlen(da, 16, ENDS, 4),
                               mimo.dacs_segsum_reference(da, 16, ENDS), strict=True):
        assert_close(name, want, got, 1e-13)


def test_mimo_dadt(upstream):
    """Theirs takes exp(seg) from the sums, counts in log2, and adds to float32."""
    theirs = upstream("mamba3/mamba3_mimo_utils")
    normal = catalog.seeded(0)
    da = -normal(1, 2, 37).abs()
    cs, rest, seg = mimo.dacs_segsum_reference(da, 16, ENDS)
    dseg, dcs, drest = normal(*seg.shape), normal(*cs.shape), normal(*cs.shape)
    for slot, start, end in mimo._pieces(37, ENDS, 16):
        dseg[:, :, slot, end - start:] = dseg[:, :, slot, :, end - start:] = 0      # theirs takes the sums there for 0
    want = theirs.bwd_dadt_fused_varlen_ref(dseg, dcs, drest, cs, rest, 16, ENDS) / -LOG2E
    got = mimo.dadt_reference(dseg, seg, dcs, drest, cs, rest, 16, ENDS)
    assert_close("dadt", want.double(), got, 1e-6)


def test_mimo_dtrap(upstream):
    theirs = upstream("mamba3/mamba3_mimo_utils")
    normal = catalog.seeded(0)
    trap, dt, dfactor, dgamma = (normal(1, 2, 37) for _ in range(4))
    for want, got in (
            (theirs.compute_dtrap_ddt_ref(dfactor, dgamma, trap, dt),
             mimo.dtrap_ddt_reference(trap, dt, dfactor, dgamma, 16)),
            (theirs.compute_dtrap_ddt_varlen_ref(dfactor, dgamma, trap, dt, 16, ENDS),
             mimo.dtrap_ddt_reference(trap, dt, dfactor, dgamma, 16, ENDS))):
        for name, one, other in zip(("ddt", "dtrap"), want, got, strict=True):
            assert_close(name, one, other, 1e-13)


def sizes(length):
    return Sizes(0, torch.float64, 2, length, 4, 2, 5, 7, 16)


def test_ssd_chunk_state(upstream):
    draw = sizes(37)
    B, x, decays = draw.b(), draw.x(), double(draw.decays())
    assert_close("states", upstream("ssd_chunk_state").chunk_state_ref(B, x, **decays),
                 chunk_states(B, x, decays["dt"], decays["dA_cumsum"]), 1e-13)


def test_ssd_chunk_scan(upstream):
    draw = sizes(48)
    B, C, x, z, decays = draw.b(), draw.b(), draw.x(), draw.x(), double(draw.decays())
    states, D = draw.states(torch.float64), draw.normal(4, 5)
    cb = catalog.get("_bmm_chunk_fwd").load_reference()(C, B, 16)
    want = upstream("ssd_chunk_scan").chunk_scan_ref(B, C, x, decays["dt"], decays["dA_cumsum"], states, D, z)
    assert_close("out", want, scan.fwd_reference(cb, x, **decays, C=C, states=states, D=D, z=z)[0], 1e-13)


def test_ssd_state_passing(upstream):
    draw = sizes(70)
    states, decay = draw.states(torch.float64).flatten(-2), -draw.normal(2, 4, 5).abs()
    initial = draw.normal(2, 4, 35)
    want = upstream("ssd_state_passing").state_passing_ref(states, decay, initial)
    got = catalog.get("_state_passing_fwd").load_reference()(states, decay, initial)
    for name, one, other in zip(("out", "final"), want, got, strict=True):
        assert_close(name, one, other, 1e-12)


def test_selective_state_update(upstream):
    operator = catalog.get("selective_state_update")
    for case in operator.cases:
        inputs = double(case.build(0, torch.float32))
        if "state_batch_indices" in inputs:
            continue
        out, after = operator.load_reference()(**inputs)
        state, theirs = inputs["state"].clone(), upstream("selective_state_update")
        assert_close("out", theirs.selective_state_update_ref(**{**inputs, "state": state}), out, 1e-12)
        assert_close("state", state, after, 1e-12)


def test_rms_norm(upstream):
    """Theirs computes with float32 weights."""
    normal = catalog.seeded(0)
    x, z, weight, bias = normal(5, 24), normal(5, 24), normal(24), normal(24)
    for first in (True, False):
        want = upstream("layernorm_gated").rms_norm_ref(x, weight, bias, z, 1e-5, 8, first, upcast=False)
        got = catalog.get("_layer_norm_fwd").load_reference()(x, weight, bias, 1e-5, z, None, 8, first, True)[0]
        assert_close("out", want, got, 1e-7)


# --- the ports ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", PORTS, ids=lambda operator: operator.name)
def test_a_case_passes(operator, ported):
    """The case with most in it; all of them are -m slow, in test_verify.py."""
    case = max((case for case in operator.cases if "C64" not in case.name), key=lambda case: len(case.name))
    dtype = torch.bfloat16 if torch.bfloat16 in operator.dtypes else torch.float32
    result = try_case(operator, case, dtype, "cpu", 1)
    assert result.verdict == Verdict.PASSED, result.reason


@pytest.mark.parametrize("name", ["chunk_scan", "rmsnorm_fn"])
def test_backward_of_an_autograd_function(name, ported):
    """As a user calls it: out.backward, with nothing entered."""
    import ported_kernels

    operator = catalog.get(name)
    inputs = operator.cases[0].build(0, torch.float32)
    held = {leaf: inputs[leaf].requires_grad_() for leaf in operator.leaves if inputs.get(leaf) is not None}
    out = getattr(ported_kernels, name)(**{key: inputs[key] for key in inputs if key != "dout"})
    out.backward(inputs["dout"])
    want = dict(zip(("out", *operator.leaves), operator.load_reference()(**inputs), strict=True))
    for leaf, value in held.items():
        assert_close(leaf, want[leaf], value.grad, 1e-5, dtype=torch.float32)


FAULTS = {     # operator, case, the first place with this text in the named kernel, what comes there
    "mask": ("_chunk_scan_fwd", "T37, grouped", "def _chunk_scan_fwd_kernel(", ">= k +", "> k +"),
    "sign": ("_chunk_state_bwd_dx", "T37, grouped", "def _chunk_state_bwd_dx_kernel(", "-(ddt", "(ddt"),
    "sequence": ("_state_passing_fwd", "Z3 D480, states, sequences", "def _state_passing_fwd_kernel(",
                 "seq_idx_new == seq_idx", "seq_idx_new >= 0"),
    "stride": ("selective_state_update", "H4 G2 P20 N24, z", "def _selective_scan_update_kernel(",
               "pid_h // nheads_ngroups_ratio", "pid_h"),
    "state": ("mamba3_siso_fwd", "T37 K24 V20, grouped", "def mamba3_siso_fwd_kernel(", "da_cs_last - da_cs",
              "da_cs_last"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault, ported, tmp_path):
    name, case, kernel, old, new = FAULTS[fault]
    operator = catalog.get(name)
    package = tmp_path / f"faulty_{fault}"
    shutil.copytree(catalog.GENERATED / "mamba_ssm", package)
    file = package / operator.port.relative_to(catalog.GENERATED / "mamba_ssm")
    text = file.read_text()
    at = text.index(kernel)
    assert old in text[at:]
    file.write_text(text[:at] + text[at:].replace(old, new, 1))
    faulty = replace(operator, wrapper=f"{file}:{name}", root=tmp_path)
    assert try_case(faulty, faulty.case(case), torch.float32, "cpu", 0).verdict == Verdict.FAILED
