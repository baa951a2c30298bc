"""`migrate verify`: the shipped operators pass, planted faults and misbehaviour do not."""
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from migrate import cli
from migrate.errors import MigrateError, UsageError
from migrate.verify import Verdict, target, verify
from migrate.verify.trial import to_device, try_case
from ported_kernels import bwd_segsum_dadt, catalog, mamba3_siso_bwd_dzdo, runtime

ROOT = Path(__file__).parents[2]
SEGSUM, DZDO = catalog.get("bwd_segsum_dadt"), catalog.get("mamba3_siso_bwd_dzdo")


@pytest.fixture
def migrate(monkeypatch, capsys):
    """`migrate verify ...` in this process: (exit code, stdout, stderr)."""
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["migrate", "verify", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code or 0, *capsys.readouterr()
    return run


BY_HAND = [name for name, operator in catalog.operators().items() if not operator.port]
PORTED = [name for name, operator in catalog.operators().items() if operator.port]


@pytest.mark.parametrize("names", [pytest.param(BY_HAND, id="by hand"),
                                   pytest.param(PORTED, id="ports", marks=pytest.mark.slow)])
def test_all_cases_pass_on_the_cpu(names):
    if names == PORTED:
        try:
            target.prepare(map(catalog.get, names))
        except MigrateError as error:
            pytest.skip(f"a release cannot be had here: {error}")
    done = subprocess.run([sys.executable, "-m", "migrate.cli", "verify", *names, "--format", "json"], cwd=ROOT,
                          text=True, capture_output=True, timeout=900,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    report = json.loads(done.stdout)
    failed = [result for result in report["results"] if result["verdict"] != "passed"]
    assert not failed
    assert done.returncode == 0 and done.stderr == "", "no progress bar where stderr is no terminal"
    cases = sum(len(op.cases) * len(op.dtypes) for op in map(catalog.get, names))
    assert report["counts"] == {"passed": cases, "failed": 0, "not tried": 0}
    worst = {}
    for result in report["results"]:
        for output in result["outputs"]:
            if output["name"] in catalog.get(result["operator"]).own_tolerances:
                continue
            key = result["operator"], result["dtype"], output["name"]
            worst[key] = max(worst.get(key, 0.0), output["ratio"])
    assert all(ratio < 1e-5 for (_, dtype, _), ratio in worst.items() if dtype == "float32"), worst


def test_text_names_seed_oracle_and_errors(migrate):
    code, out, _ = migrate("mamba3_siso_bwd_dzdo", "--dtype", "float32", "--case", "T37 D40", "--seed", "7")
    assert code == 0
    assert "seed 7; oracle: float64 torch on the CPU" in out
    assert "  written by hand, after compute_dzdo in mamba_ssm/" in out
    assert re.search(r"passed +float32 +T37 D40 +dz: rel L2 \d\.\d+e-08 \(bound 1.0e-06\), largest", out)
    assert out.endswith("1 passed\n")


@pytest.mark.parametrize("arguments, message", [
    (["nope"], "no operator 'nope'; there are "),
    (["nope.py"], "no operator runs the port of 'nope.py'; the catalogue has ports of fla/"),
    (["bwd_segsum_dadt", "--dtype", "int8"], "no dtype 'int8'"),
    (["bwd_segsum_dadt", "--case", "nope"], "no case matches 'nope'"),
])
def test_usage(arguments, message, migrate):
    code, out, errors = migrate(*arguments)
    assert code == 2
    assert message in errors and out == ""


def test_a_device_that_is_not_there_is_not_tried(migrate):
    device = next((name for name in ("npu", "cuda") if runtime.why_not(name)), None)
    if device is None:
        pytest.skip("this machine has every device")
    code, out, _ = migrate("bwd_segsum_dadt", "--device", device)
    assert code == 2
    assert "passed" not in out
    assert runtime.why_not(device) in out


def test_targets():
    assert target.find("all") == list(catalog.operators().values())
    for name in ("mamba3_siso_bwd.py", "mamba3/mamba3_mimo_utils.py"):
        found = target.find(name)
        assert found and all(operator.port and operator.port.name == Path(name).name for operator in found)
    assert target.find("bwd_segsum_dadt") == [SEGSUM]
    with pytest.raises(UsageError):
        target.find("siso_bwd.py")


# --- planted faults: one sign, one mask, one address term --------------------------------------------------------

FAULTS = {
    "sign of the exponent": (SEGSUM, "tl.exp(s)", "tl.exp(-s)"),
    "mask takes the diagonal": (SEGSUM, "i[None, :, None] > (column + j)", "i[None, :, None] >= (column + j)"),
    "mask of the last chunks": (SEGSUM, "here = g < chunks - first", "here = g <= chunks - first"),
    "second mask dropped": (SEGSUM, "tl.where(lower, r, 0.0)", "r"),
    "row of the column block": (SEGSUM, "square + column * C + by_column", "square + column + by_column"),
    "transposition dropped": (SEGSUM, "tl.trans(d, (0, 2, 1))", "tl.trans(d, (0, 1, 2))"),
    "address of the sums": (SEGSUM, "rows = ddt_out + wide * C", "rows = ddt_out + wide"),
    "sign in the derivative": (DZDO, "(1.0 - s)", "(1.0 + s)"),
    "mask of the last block": (DZDO, "here = at <", "here = at <="),
    "address of a block": (DZDO, "tl.int64) * BLOCK ", "tl.int64) * (BLOCK - 1) "),
    "a store forgotten": (DZDO, "tl.store(do_scaled", "tl.device_assert(True) or tl.load(do_scaled"),
}


def damaged(operator, old, new, folder):
    """A copy of the operator's file with one text changed, and a contract that points at it."""
    source = Path(sys.modules[operator.load("cpu").__module__].__file__).read_text()
    if new.startswith("tl.device_assert"):      # the whole statement goes
        line = next(line for line in source.splitlines() if old in line)
        old, new = line, ""
    assert source.count(old) == 1, f"{old!r} must name one place"
    copy = folder / "damaged.py"
    copy.write_text(source.replace(old, new))
    return replace(operator, wrapper=f"{copy}:{operator.name}")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault, tmp_path):
    operator, old, new = FAULTS[fault]
    broken = damaged(operator, old, new, tmp_path)
    tried = (try_case(broken, case, torch.float32, "cpu", 0) for case in broken.cases)
    failed = next((result for result in tried if result.verdict == Verdict.FAILED), None)
    assert failed, "no case noticed"
    assert failed.reason


def test_an_undamaged_copy_passes(tmp_path):
    """The faults are caught for what they are, not for being in a copy."""
    for operator in (SEGSUM, DZDO):
        copy = damaged(operator, "import triton\n", "import triton\n\n", tmp_path)
        assert try_case(copy, copy.cases[3], torch.float32, "cpu", 0).verdict == Verdict.PASSED


def test_verify_fails_on_a_damaged_kernel(tmp_path, migrate):
    broken = damaged(SEGSUM, "tl.exp(s)", "tl.exp(-s)", tmp_path)
    contract = tmp_path / "contract.py"
    contract.write_text(f"""from dataclasses import replace
from ported_kernels import catalog

OPERATOR = replace(catalog.get("bwd_segsum_dadt"), wrapper={broken.wrapper!r})
""")
    code, out, _ = migrate(str(contract), "--dtype", "float32", "--case", "B1 H2 N2 C16")
    assert code == 5
    assert "failed" in out and "relative RMS error" in out


# --- misbehaviour ---------------------------------------------------------------------------------------------


def outcome(wrapper, operator=DZDO, case="T37 D40", dtype=torch.float32):
    return try_case(operator, operator.case(case), dtype, "cpu", 0, wrapper=wrapper)


def test_an_output_never_written_is_nan():
    result = outcome(lambda do, z, o: (torch.empty_like(do), mamba3_siso_bwd_dzdo(do, z, o)[1]))
    assert result.verdict == Verdict.FAILED
    assert result.reason.startswith("dz: NaN at (0, 0, 0, 0)")


def test_an_input_that_changes_is_noticed():
    def wrapper(do, z, o):
        out = mamba3_siso_bwd_dzdo(do, z, o)
        z.view(-1)[3] += 1
        return out
    assert outcome(wrapper).reason == "z: changed, though not documented"


def test_an_input_in_a_tuple_that_changes_is_noticed():
    operator = catalog.get("mamba3_siso_fwd")
    case = operator.case("T37 K24 V20, grouped, D, Z, states")

    def wrapper(**inputs):
        inputs["Initial_States"][1][0, 0, 0] += 1
        return operator.load_reference()(**inputs)
    result = try_case(operator, case, torch.float32, "cpu", 0, wrapper=wrapper)
    assert "Initial_States[1]: changed, though not documented" in result.reason


def test_memory_between_the_elements_of_a_view_is_watched():
    def wrapper(dSSdA, SSdA, ddt_out, chunk_size):
        out = bwd_segsum_dadt(dSSdA, SSdA, ddt_out, chunk_size)
        ddt_out.as_strided((1,), (1,), 0).add_(1)
        return out
    result = outcome(wrapper, SEGSUM, "views with gaps")
    assert result.reason == "ddt_out: memory around it was changed"


def test_in_place_means_the_same_tensor():
    result = outcome(lambda **inputs: bwd_segsum_dadt(**{**inputs, "ddt_out": inputs["ddt_out"].clone()}), SEGSUM,
                     "B1 H2 N2 C16")
    assert "another tensor was returned" in result.reason


def test_wrong_dtype_shape_count_and_errors():
    assert "expected dtype torch.float32, got torch.float64" in outcome(
        lambda do, z, o: [out.double() for out in mamba3_siso_bwd_dzdo(do, z, o)]).reason
    assert "expected shape" in outcome(lambda do, z, o: [out[:1] for out in mamba3_siso_bwd_dzdo(do, z, o)]).reason
    assert outcome(lambda do, z, o: do).reason == "1 outputs, 2 expected"
    assert outcome(lambda do, z: do).reason.startswith("TypeError: ")


def test_layout_travels():
    value = catalog.with_gaps(torch.randn(3, 5))
    there = to_device(value, "cpu")
    assert there.stride() == value.stride() and there.storage_offset() == value.storage_offset()
    assert torch.equal(there, value) and there.data_ptr() != value.data_ptr()


HANGS_AND_DIES = """import os, time
from dataclasses import replace
from ported_kernels import catalog
from ported_kernels.mamba3.dzdo import mamba3_siso_bwd_dzdo

def wrapper(do, z, o):
    print("noise on stdout")
    if do.shape[-1] == 40 and do.shape[1] == 1:
        time.sleep(600)
    if do.shape[-1] == 256 and do.shape[1] == 1:
        os.abort()
    return mamba3_siso_bwd_dzdo(do, z, o)

OPERATOR = replace(catalog.get("mamba3_siso_bwd_dzdo"), wrapper=__file__ + ":wrapper")
"""


def test_a_child_that_hangs_or_dies_costs_one_case(tmp_path):
    contract = tmp_path / "contract.py"
    contract.write_text(HANGS_AND_DIES)
    seen = []
    report = verify(target.find(str(contract)), "cpu", dtypes=["float32"], time_limit=3.0, at_once=2,
                    cases=["one element", "one token, D40", "one token, D256", "T37 D40"], on_result=seen.append)
    assert [(result.case, result.verdict.value, result.reason) for result in report.results] == [
        ("one element", "passed", None),
        ("one token, D40", "failed", "no answer within 3 s"),
        ("one token, D256", "failed", "the process ended early (killed by SIGABRT): noise on stdout"),
        ("T37 D40", "passed", None)]
    assert report.exit_code == 5
    assert len(seen) == 4
