"""What the virtual NPU found in compilers and kernels, each in a few lines, with forms beside it that are right."""
from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import npu_kernels as kernels
import pytest
import torch

from migrate import engine
from migrate.errors import MigrateError
from migrate.source import Source
from migrate.verify import target
from migrate.vnpu import device, views
from migrate.vnpu.machine import Run
from ported_kernels import catalog, runtime

CHUNKS, B = 3, 32


def states(products: torch.Tensor, decay: float = 1.0, initial: torch.Tensor | None = None,
           after: bool = False) -> torch.Tensor:
    """The sums before (or after) each product is added."""
    state, found = torch.zeros(B, B).double() if initial is None else initial.double(), []
    for product in products:
        found.append(state)
        state = state * decay + product
        if after:
            found[-1] = state
    return torch.stack(found)


@pytest.fixture
def factors() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(CHUNKS, B, B, generator=draw), torch.randn(CHUNKS, B, B, generator=draw)


def test_dropped_product(npu: device.Device, factors: tuple[torch.Tensor, torch.Tensor]) -> None:
    """A sum that is stored before the product is added: the compiler ends well, without the product. What is stored
    was never written."""
    x, y = factors
    out = torch.full((CHUNKS, B, B), float("nan"))
    kernels.states_before[(1,)](x, y, out, CHUNKS, B=B)
    (run,) = npu.take()
    assert {finding.kind for finding in run.errors} == {"never written"}
    assert "tl.store(states + chunk * B * B + at, state)" in source_line(run)
    assert not torch.allclose(out.double(), states(x.double() @ y.double()))
    (machine,) = (m for (fn, _), m in npu.machines.items() if fn == id(kernels.states_before))
    assert isinstance(machine, device.Machine)
    assert not any(site.name.startswith("mma") for function in machine.program.functions for site in function.sites)


@pytest.fixture(scope="session")
def ported(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The small kernels, as the two rules for sums in loops write them."""
    rules = [rule for rule in engine.load() if rule.name in ("carried-accumulator", "sum-from-choice")]
    path = tmp_path_factory.mktemp("ported") / "ported_npu_kernels.py"
    path.write_text(engine.apply(Source.parse(Path(kernels.__file__).read_text()), rules).final.text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_product_stays_where_the_zero_is_hidden(npu: device.Device, ported: ModuleType,
                                                    factors: tuple[torch.Tensor, torch.Tensor]) -> None:
    """What rule carried-accumulator makes of the kernel of test_dropped_product."""
    x, y = factors
    out = torch.full((CHUNKS, B, B), float("nan"))
    ported.states_before[(1,)](x, y, out, CHUNKS, B=B)
    (run,) = npu.take()
    assert run.errors == []
    assert torch.allclose(out.double(), states(x.double() @ y.double()), rtol=1e-5, atol=1e-5)


def test_a_sum_that_is_a_factor(npu: device.Device, ported: ModuleType,
                                factors: tuple[torch.Tensor, torch.Tensor]) -> None:
    """As the delta rule has it: the compiler dies, and does not where the zero is hidden."""
    x, y = factors
    out = torch.full((CHUNKS, B, B), float("nan"))
    with pytest.raises(device.NotCompiled):
        kernels.delta_states[(1,)](x, y, out, CHUNKS, B=B)
    ported.delta_states[(1,)](x, y, out, CHUNKS, B=B)
    (run,) = npu.take()
    state, want = torch.zeros(B, B).double(), []
    for left, right in zip(x.double(), y.double(), strict=True):
        want.append(state)
        state = state + left @ (right - 0.01 * left @ state)
    assert run.errors == []
    assert torch.allclose(out.double(), torch.stack(want), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", ["if", "mask", "multibuffer"])
def test_a_state_that_is_stored_now_and_then(npu: device.Device, form: str) -> None:
    """A store under a run-time `if`: the loop is cut in two, for four rounds at a time, and the store of all four comes
    before their sums. Without multibuffer, or with the condition in the mask, it is right."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(10, B, B, generator=draw), torch.randn(10, B, B, generator=draw)
    out = torch.full((5, B, B), float("nan"))
    options = {"multibuffer": False} if form == "multibuffer" else {}
    kernels.states_now_and_then[(1,)](x, y, out, 10, 2, 0.5, B=B, MASKED=form == "mask", **options)
    (run,) = npu.take()
    want = states(x.double() @ y.double(), decay=0.5)
    assert run.errors == []
    want = want[[0, 0, 4, 4, 8]] if form == "if" else want[::2]
    assert torch.allclose(out.double(), want, rtol=1e-5, atol=1e-5)


def source_line(run: Run) -> str:
    file, _, line = run.errors[0].place.rpartition(":")
    with open(file) as text:
        return text.read().splitlines()[int(line) - 1]


@pytest.mark.parametrize("form", ["decayed", "scaled", "from", "after"])
def test_the_product_stays_in_other_forms(npu: device.Device, factors: tuple[torch.Tensor, torch.Tensor],
                                          form: str) -> None:
    x, y = factors
    products, out = x.double() @ y.double(), torch.full((CHUNKS, B, B), float("nan"))
    initial = torch.randn(B, B)
    if form == "decayed":
        kernels.states_decayed[(1,)](x, y, out, CHUNKS, B=B)
        want = states(products, decay=0.5)
    elif form == "scaled":
        kernels.states_scaled[(1,)](x, y, out, CHUNKS, 1.0, B=B)
        want = states(products)
    elif form == "from":
        kernels.states_from[(1,)](x, y, out, initial, CHUNKS, B=B)
        want = states(products, initial=initial)
    else:
        kernels.states_after[(1,)](x, y, out, CHUNKS, B=B)
        want = states(products, after=True)
    (run,) = npu.take()
    assert run.errors == []
    assert torch.allclose(out.double(), want, rtol=1e-5, atol=1e-5)


def test_ragged_product(npu: device.Device) -> None:
    """A product of a tile of which M rows and M columns were loaded. The library computes all rows of it, but only
    the columns that it is asked for: those past the last fractal of 16 are whatever L0C held, and are stored."""
    a, out = torch.randn(20, 32), torch.full((64, 64), float("nan"))
    kernels.ragged_product[(1,)](a, out, 20, B=64)
    (run,) = npu.take()
    assert [finding.kind for finding in run.errors] == ["never written"] and "L0C" in run.errors[0].message
    want = a.double() @ a.double().T
    assert torch.allclose(out[:20, :20].double(), want, rtol=1e-5, atol=1e-5)
    assert bool((out[20:, :32] == 0).all()) and bool(out[:, 32:].isnan().all())


def test_ragged_product_that_fills_its_fractals(npu: device.Device) -> None:
    a, out = torch.randn(60, 32), torch.full((64, 64), float("nan"))
    kernels.ragged_product[(1,)](a, out, 60, B=64)
    (run,) = npu.take()
    assert run.errors == []
    assert bool((out[60:] == 0).all()) and bool((out[:, 60:] == 0).all())


def test_an_atomic_after_a_product_is_added_twice(npu: device.Device) -> None:
    """Where the vector cores do not share the rows of a tile, both do all the work. The compiler lets only one of them
    store, but both add."""
    a, b, out = torch.randn(32, 32), torch.randn(32, 32), torch.zeros(32)
    kernels.added_sums[(1,)](a, b, out, B=32)
    (run,) = npu.take()
    assert [finding.kind for finding in run.errors] == ["added twice"] and run.errors[0].core == "AIV1"
    once = (a.double() @ b.double()).sum(1) * 0.5
    assert torch.allclose(out.double(), 2 * once, rtol=1e-4, atol=1e-4)


def test_the_same_sums_are_stored_once_and_added_twice(npu: device.Device) -> None:
    """The compiler knows that both vector cores are at work: it lets one of them store."""
    a, b, stored, added = torch.randn(32, 32), torch.randn(32, 32), torch.zeros(32), torch.zeros(32)
    kernels.stored_and_added_sums[(1,)](a, b, stored, added, B=32)
    (run,) = npu.take()
    assert [finding.kind for finding in run.errors] == ["added twice"]
    assert bool(stored.abs().sum() > 0) and torch.equal(added, 2 * stored)


def test_padded_columns_of_a_product(npu: device.Device) -> None:
    """A product of N columns in a wider tile: the columns past N were never written, and a sum over them is poison,
    although they are multiplied by zeros."""
    a, b, weights, out = torch.randn(64, 32), torch.randn(32, 20), torch.randn(20), torch.zeros(64)
    kernels.padded_sums[(1,)](a, b, weights, out, 32, 20, B=64)
    (run,) = npu.take()
    assert "never written" in {finding.kind for finding in run.findings} and bool(out.isnan().all())


def test_a_product_without_padded_columns(npu: device.Device) -> None:
    a, b, weights, out = torch.randn(64, 20), torch.randn(20, 64), torch.randn(64), torch.zeros(64)
    kernels.padded_sums[(1,)](a, b, weights, out, 20, 64, B=64)
    (run,) = npu.take()
    assert run.errors == []
    assert torch.allclose(out.double(), ((a.double() @ b.double()) * weights).sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["dropped", "added"])
def test_padded_columns_that_are_dropped(npu: device.Device, form: str) -> None:
    """The forms that rule ASC216 writes."""
    a, b, weights, out = torch.randn(64, 32), torch.randn(32, 20), torch.randn(20), torch.zeros(64)
    kernel = kernels.padded_sums_dropped if form == "dropped" else kernels.padded_sums_added
    kernel[(1,)](a, b, weights, out, 32, 20, B=64)
    (run,) = npu.take()
    assert run.errors == []
    assert torch.allclose(out.double(), ((a.double() @ b.double()) * weights).sum(1), rtol=1e-4, atol=1e-4)


def summed(npu: device.Device, chosen: int, masked: bool,
           apart: bool = False) -> tuple[Run, torch.Tensor, torch.Tensor]:
    """The run of sum_from_a_choice, what it gives, and the terms (x first) of which it should be the sum."""
    x, y, out = torch.randn(32), torch.randn(8, 32), torch.full((32,), float("nan"))
    kernels.sum_from_a_choice[(1,)](x, y, out, 8, chosen, D=32, MASKED=masked, APART=apart)
    (run,) = npu.take()
    terms = torch.where(torch.arange(32) <= torch.arange(8)[:, None], y, 0.0) if masked else 2 * y
    return run, out, torch.cat([x[None] * (chosen > 0), terms])


@pytest.mark.parametrize("chosen", [0, 3])
def test_a_sum_that_begins_with_a_choice(npu: device.Device, monkeypatch: pytest.MonkeyPatch, chosen: int) -> None:
    """A sum in a loop whose first value an `if` chose: it lies where each round puts its masked term, before that is
    added. Twice the last term is left."""
    run, out, _ = summed(npu, chosen, masked=True)
    assert {finding.kind for finding in run.errors} == {"never written"} and bool(out.isnan().all())
    assert any(f.message.endswith("another buffer was written there since") and f.call == "vadd_1d_float"
               for f in run.findings)

    whole = views.at_address      # as the bytes lie on a card, where nobody knows which buffer they belong to
    monkeypatch.setattr(views, "at_address", lambda memory, at, sizes, dtype, buffer: whole(memory, at, sizes, dtype))
    npu.machines.clear()
    run, out, terms = summed(npu, chosen, masked=True)
    assert run.errors == [] and torch.equal(out, 2 * terms[-1])


def test_a_sum_that_begins_with_a_choice_and_is_copied(npu: device.Device) -> None:
    """Where the term is no buffer of its own, the sum is copied back to its place in each round, after the flag that
    lets the next load overwrite it, and with no barrier between."""
    run, out, terms = summed(npu, 3, masked=False)
    assert [finding.kind for finding in run.errors] == ["race", "race"]
    assert run.errors[0].call.startswith("copy_ubuf_to_ubuf") and "no barrier between" in run.errors[0].message
    assert run.errors[1].call.startswith("load_gm_to_ubuf") and "no flag between" in run.errors[1].message
    assert torch.allclose(out, terms.sum(0), rtol=1e-5, atol=1e-5)         # right, where pipes wait


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("chosen", [0, 3])
def test_a_choice_that_is_added_after_the_loop(npu: device.Device, chosen: int, masked: bool) -> None:
    run, out, terms = summed(npu, chosen, masked, apart=True)
    assert run.findings == [] and torch.allclose(out, terms.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("chosen", [0, 3])
def test_a_choice_that_is_hidden(npu: device.Device, ported: ModuleType, chosen: int, masked: bool) -> None:
    """What rule sum-from-choice makes of it, beside what it was made of."""
    x, y = torch.randn(32), torch.randn(8, 32)
    terms = torch.where(torch.arange(32) <= torch.arange(8)[:, None], y, 0.0) if masked else 2 * y
    want = torch.cat([x[None] * (chosen > 0), terms]).sum(0)
    for module in (kernels, ported):
        out = torch.full((32,), float("nan"))
        module.sum_from_an_if[(1,)](x, y, out, 8, chosen, D=32, MASKED=masked)
        (run,) = npu.take()
        assert bool(run.errors) == (module is kernels)
        assert torch.allclose(out, want, rtol=1e-5, atol=1e-5) == (module is ported or not masked)


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["all", "without sum-from-choice"])
def test_an_accumulator_planned_onto_a_temporary(cache_folder: Path, tmp_path: Path, rules: str) -> None:
    """FLA's chunk_gla_bwd_kernel_intra: dk is such a sum that begins with a choice. The forward pass, dq and dv of the
    same chain are right; dk, and dg which is made of it, are not, unless the rule hides the choice."""
    if reason := device.unusable():
        pytest.skip(reason)
    ignored = ["--ignore", "sum-from-choice"] if rules != "all" else []
    port = subprocess.run([sys.executable, "-m", "migrate", "port", "fla-core==0.5.2:gla/chunk.py", "-o", tmp_path,
                           *ignored], capture_output=True, text=True)
    assert port.returncode == 0, port.stderr
    done = subprocess.run([sys.executable, Path(__file__).parent / "gla_chain.py", tmp_path], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    if rules == "all":
        assert max(errors for told_of in (told["told"], told["as it lies"]) for errors in told_of.values()) < 1e-6
        assert {finding["severity"] for finding in told["found"]} <= {"note"}
        return
    for errors in (told["told"], told["as it lies"]):
        assert max(errors[name] for name in ("o", "dq", "dv")) < 1e-6
    assert all(math.isnan(told["told"][name]) for name in ("dk", "dg"))
    assert min(told["as it lies"][name] for name in ("dk", "dg")) > 0.1
    assert {finding["kernel"] for finding in told["found"] if finding["severity"] == "error"} == {
        "chunk_gla_bwd_kernel_intra"}
    (lost,) = {finding["place"] for finding in told["found"] if "another buffer was written" in finding["message"]}
    assert Path(lost.rpartition(":")[0]).name == "chunk.py"


def test_pairs_of_a_tile_before_a_product(npu: device.Device) -> None:
    """A tile that is cut into pairs, as for a rotary embedding, and then multiplied: the compiler lays it out anew, and
    copies it before it is loaded. Mamba-3's forward kernel does this. Without the product all is well."""
    x, bias = torch.randn(16, 16), torch.randn(16)
    tile = (x + bias).double()
    differences, sums = tile[:, 0::2] - tile[:, 1::2], tile[:, 0::2] + tile[:, 1::2]
    turned = torch.stack([differences, sums], -1).reshape(16, 16)

    out = torch.full((16, 8), float("nan"))
    kernels.differences[(1,)](x, bias, out, 16, R=16, D=16)
    (run,) = npu.take()
    assert run.findings == [] and torch.allclose(out.double(), differences, rtol=1e-6, atol=1e-6)

    out = torch.full((16, 16), float("nan"))
    kernels.turned_product[(1,)](x, bias, out, 16, R=16, D=16)
    (run,) = npu.take()
    assert not torch.allclose(out.double(), turned @ turned.T, rtol=1e-3, atol=1e-3)
    assert any(finding.kind == "never written" and finding.call.startswith("copy_ubuf_to_ubuf")
               for finding in run.findings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "R", "D"), [(16, 16, 16), (21, 32, 32), (64, 64, 64)])
def test_pairs_by_gathers(npu: device.Device, rows: int, R: int, D: int, dtype: torch.dtype) -> None:
    """The same with gathers, as rule ASC215 writes it: right, and small enough for a chunk of 64."""
    x, bias = torch.randn(rows, D).to(dtype), torch.randn(D).to(dtype)
    tile = torch.zeros(R, D).double()
    tile[:rows] = x
    tile += bias
    first, second = tile[:, 0::2], tile[:, 1::2]
    turned = torch.stack([first - second, first + second], -1).reshape(R, D)
    turned = turned.to(dtype).double()      # the compiler rounds bfloat16 before the product alone
    out = torch.full((R, R), float("nan"))
    kernels.gathered_product[(1,)](x, bias, out, rows, R=R, D=D)
    (run,) = npu.take()
    assert run.findings == []
    assert torch.allclose(out.double(), turned @ turned.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dim", [32, 48])
def test_a_head_masked_by_its_padded_width(npu: device.Device, dim: int) -> None:
    """Mamba-3's dzdo kernel, upstream: it masks the columns of a head with the next power of two. With head dimension
    48 a row runs into the next head, and at the end of the tensor out of it."""
    operator = catalog.get("compute_dzdo")
    try:
        target.prepare([operator])
    except MigrateError as error:
        pytest.skip(f"{operator.upstream.release} cannot be had here: {error}")
    do, z, o = (torch.randn(1, 5, 2, dim) for _ in range(3))
    module = runtime.load(operator.port, "vnpu", operator.import_root)     # past the check, which refuses 48
    with runtime.on("vnpu"):
        module.compute_dzdo(do, z, o)
    (run,) = npu.take()
    if dim == 32:
        assert run.errors == []
    else:
        assert {"out of bounds", "overlap"} & {finding.kind for finding in run.errors}, run.findings
        assert any(f"{1 * 5 * 2 * dim * 4}" in finding.message for finding in run.errors)


def test_a_masked_load_is_made_all_the_same(npu: device.Device) -> None:
    """A mask that is no prefix of the tile: all of the tile is read, and what is not wanted thrown away. Results are
    right; what lies before and behind the tensor has been read."""
    x, out = torch.randn(48), torch.full((48,), float("nan"))
    kernels.one_before[(2,)](x, out, 48, BLOCK=32)
    (run,) = npu.take()
    assert {finding.kind for finding in run.errors} == {"out of bounds"}
    assert "MTE2 reads bytes -4 to" in run.errors[0].message
    assert torch.equal(out, torch.cat([torch.zeros(1), x[:-1]]))


@pytest.mark.parametrize("form", ["compared", "shifted"])
def test_a_mask_that_bounds_the_load(npu: device.Device, form: str) -> None:
    """`>=` in place of `>`, and a sum in place of a difference: what rule ASC217 writes."""
    x, out = torch.randn(48), torch.full((48,), float("nan"))
    kernels.one_before_bounded[(2,)](x, out, 48, BLOCK=32, FORM=form)
    (run,) = npu.take()
    assert run.errors == []
    assert torch.equal(out, torch.cat([torch.zeros(1), x[:-1]]))


def test_a_masked_scalar_is_loaded_all_the_same(npu: device.Device) -> None:
    x = torch.randn(5, 2)
    want = torch.cat([torch.zeros(1), x[:-1, 0]])
    out = torch.full((5,), float("nan"))
    kernels.scalar_before[(5,)](x, out, 2)
    (run,) = npu.take()
    assert {finding.kind for finding in run.errors} == {"out of bounds"} and torch.equal(out, want)
    out = torch.full((5,), float("nan"))
    kernels.scalar_before_clamped[(5,)](x, out, 2)
    (run,) = npu.take()
    assert run.errors == [] and torch.equal(out, want)


def test_a_product_carried_into_itself(npu: device.Device) -> None:
    """Its last value is to be moved out of L0C once more, where it no longer is. The compiler's library has no function
    for that; it has the one that the loop calls. The gate says so without running it (tests/gate/test_static.py)."""
    kernels.product_of_all[(1,)](torch.randn(3, 32, 32), torch.zeros(32, 32), 3, B=32)
    (run,) = npu.take()
    name = "fixpipe_nz2nd_float_to_float_2d_to_2d"
    assert [(finding.kind, finding.call) for finding in run.errors] == [("unknown function", name)]
    assert npu.toolchain.links(name.replace("float_2d", "float_4d")) and not npu.toolchain.links(name)
