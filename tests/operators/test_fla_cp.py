"""FLA's context-parallel kernels from their specialised and split port: how it is made, and what it computes."""
import pytest
import torch

from migrate import header
from migrate.asked import Asked, parse, settings
from migrate.errors import MigrateError, UsageError
from migrate.ports import Wanted, make
from migrate.verify import target
from migrate.verify.compare import assert_close
from ported_kernels import catalog, kda_split_state_summary
from ported_kernels.kda import fla_cp

SUMMARY, GRAD_EXT = catalog.get("fla_cp_state_summary"), catalog.get("fla_cp_state_grad_ext")


@pytest.fixture(scope="module")
def port():
    try:
        target.prepare([SUMMARY, GRAD_EXT])
    except MigrateError as error:
        pytest.skip(f"a release cannot be had here: {error}")
    return SUMMARY.port


def test_the_port_is_made_with_the_options_of_the_catalogue(port):
    """And lies apart from the plain one, which has none."""
    text = port.read_text()
    made = header.read(text)
    assert made.tool.endswith(f", {parse(fla_cp.ASKED)}") and "--split BK1,BK" in made.tool
    assert (made.upstream, made.path) == (SUMMARY.upstream.release, SUMMARY.upstream.path)
    assert not header.edited(text)
    assert GRAD_EXT.port == port != catalog.GENERATED / "fla_0_5_2/ops/cp/chunk_delta_h.py"
    for folded in ("tl.static_assert(K == 128)", "row1 = tl.arange(0, 64)", "b_m_i22"):
        assert folded in text
    said = []
    target.prepare([SUMMARY, GRAD_EXT], said.append)
    assert not said, "made once"


@pytest.mark.parametrize("case", ["T100", "T64, blocks of 64", "T130, two heads to a key"])
@pytest.mark.parametrize("operator", [SUMMARY, GRAD_EXT], ids=lambda operator: operator.name)
def test_the_port_agrees_with_the_reference(operator, case, port):
    for dtype in operator.dtypes:
        inputs = operator.case(case).build(0, dtype)
        expected = operator.load_reference()(**inputs)
        for name, came, wanted in zip(operator.outputs, operator.load("cpu")(**inputs), expected, strict=True):
            assert_close(name, wanted, came, operator.tolerance(name, dtype).ratio, dtype=torch.float32)


def test_two_kernels_of_one_formula_agree(port):
    """Upstream's and that of the trio, which were written apart; M backward is M transposed."""
    inputs = SUMMARY.case("T100").build(0, torch.float32)
    ours = kda_split_state_summary(inputs["gate"], inputs["key"], inputs["w"], inputs["u"])
    upstreams = SUMMARY.load("cpu")(**inputs)
    for one, other in zip(ours, upstreams, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    _, dM = GRAD_EXT.load("cpu")(**GRAD_EXT.case("T100").build(0, torch.float32))
    torch.testing.assert_close(dM.mT, upstreams[1], rtol=1e-5, atol=1e-5)


def test_a_wrong_value_does_not_launch(port):
    """A launch with another K than the kernel was folded for is refused by the kernel itself."""
    from ported_kernels import runtime

    z = torch.zeros(1, 64, 1, 64)
    with runtime.on("cpu"):
        module = runtime.load(port, "cpu", catalog.PACKAGE.parent)
        with pytest.raises(Exception, match=r"static_assert|Assertion"):
            module.pre_process_fwd_kernel_merged[(1, 1)](
                k=z, v=z, w=z, g=None, gk=z, bg=None, u=z, hm=torch.zeros(1, 64, 128), cu_seqlens=None, T=64, H=1,
                HV=1, K=64, V=64, BT=64, BLOCK_SIZE=32, BK1=64, MULTI_SEQS=False)


def test_without_a_port_the_message_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "GENERATED", tmp_path)
    inputs = SUMMARY.case("one token").build(0, torch.float32)
    catalog._imported.cache_clear()
    with pytest.raises(catalog.NotPorted, match="run: migrate verify fla_cp_state_summary"):
        SUMMARY.load("cpu")(**inputs)


# Ports with options, of a small package

RELEASE, PATH = "toy-kernels==1.0", "toyk/ops/scan.py"


def test_a_port_is_made_when_missing_or_stale_and_left_when_edited(toyk, tmp_path):
    place = tmp_path / "generated/specialised/scan64/toyk_1_0/ops/scan.py"
    wanted = Wanted(place, RELEASE, PATH, "--set BLOCK=64")
    said = []
    make([wanted, wanted], said.append)
    assert said == [f"ported {PATH} of {RELEASE}, --set BLOCK=64"]
    first = place.read_text()
    assert header.read(first).tool.endswith(", --set BLOCK=64")
    make([wanted], said.append)
    assert len(said) == 1, "nothing to do"
    make([Wanted(place, RELEASE, PATH)], said.append)
    assert said[1:] == [f"ported {PATH} of {RELEASE}"] and place.read_text() != first
    make([wanted], said.append)
    assert place.read_text() == first and len(said) == 3, "made with other options: stale"
    place.write_text(first + "# mine\n")
    make([wanted], said.append)
    assert "edited by hand" in said[3] and place.read_text().endswith("# mine\n")


@pytest.mark.parametrize("asked", [
    Asked(), Asked(settings(["K=128", "f.USE_G=False", "P='ieee'", "X=None"]), ("K", "V"), True),
    Asked(split=("BK1",)), Asked(copy_operands=True)], ids=str)
def test_options_are_read_as_they_are_written(asked):
    assert parse(str(asked)) == asked


@pytest.mark.parametrize("text", ["K=128", "--set K", "--split", "--select ASC101", "--copy-operands yes", "-o x"])
def test_other_options_are_refused(text):
    with pytest.raises(UsageError, match="expected"):
        parse(text)
