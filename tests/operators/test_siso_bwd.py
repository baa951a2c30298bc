"""The generated port of mamba3_siso_bwd.py: its references are right, it agrees with them, and a fault is seen."""
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from migrate.errors import MigrateError
from migrate.verify import Verdict, assert_close, target
from migrate.verify.trial import try_case
from ported_kernels import catalog
from ported_kernels.mamba3 import siso_recurrence as siso

STEPS = ("compute_dzdo", "compute_dqkv", "compute_dqktheta", "compute_ddt_dtrap_dinput_states")
OPERATORS = [catalog.get(name) for name in STEPS]


@pytest.fixture(scope="module")
def ported():
    """The port, made now if it is not there."""
    try:
        target.prepare(OPERATORS)
    except MigrateError as error:
        pytest.skip(f"{OPERATORS[0].upstream.release} cannot be had here: {error}")
    return OPERATORS[0].port


# --- the references, chained as mamba_ssm chains the functions, against the rule of the recurrence itself -----------


def trapezoid(q, k, v, adt, dt, trap, D, z, state, last_k, last_v):
    """One sequence, written as the trapezoidal rule has it: a token's k v^T enters with its own weight now and with
    the next token's at the next step."""
    out = []
    for t in range(q.shape[1]):
        decay, mix, step = adt[:, :, t].exp(), torch.sigmoid(trap[:, :, t]), dt[:, :, t]
        before = (1 - mix) * step * decay
        state = (decay[..., None, None] * state + before[..., None, None] * last_v[..., None] * last_k[..., None, :]
                 + (mix * step)[..., None, None] * v[:, t, ..., None] * k[:, t, ..., None, :])
        last_k, last_v = k[:, t], v[:, t]
        out.append((state * q[:, t, :, None]).sum(-1) + D[:, None] * v[:, t])
    out = torch.stack(out, 1)
    return out * torch.nn.functional.silu(z), state, last_k, last_v, out


@pytest.mark.parametrize("ends", [None, (5, 6, 19)], ids=["fixed length", "packed"])
def test_references_chained_are_the_gradient_of_the_trapezoidal_rule(ends):
    batch, length, heads, groups, dim, width, turned, chunk = (1 if ends else 2), 19, 4, 2, 8, 5, 3, 8
    normal, packed = catalog.seeded(1), None if ends is None else torch.tensor((0, *ends), dtype=torch.int32)
    count = len(ends) if ends else batch
    x = {"q": normal(batch, length, groups, dim), "k": normal(batch, length, groups, dim),
         "v": normal(batch, length, heads, width), "adt": -normal(batch, heads, length).abs(),
         "dt": normal(batch, heads, length).abs(), "trap": normal(batch, heads, length),
         "q_bias": normal(heads, dim), "k_bias": normal(heads, dim), "angles": normal(batch, length, heads, turned),
         "D": normal(heads), "z": normal(batch, length, heads, width), "state": normal(count, heads, width, dim),
         "last_k": normal(count, heads, dim), "last_v": normal(count, heads, width)}
    leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
    query = siso.rotate(siso.per_head(leaves["q"], heads) + leaves["q_bias"], leaves["angles"])
    key = siso.rotate(siso.per_head(leaves["k"], heads) + leaves["k_bias"], leaves["angles"])
    given = {name: normal(*shape) for name, shape in (
        ("do", x["v"].shape), ("d_state", x["state"].shape), ("d_k", x["last_k"].shape), ("d_v", x["last_v"].shape))}
    loss, plain = 0.0, []
    spans = siso.spans(length, packed)
    for number, (start, end) in enumerate(spans):
        here = slice(number, number + 1) if ends else slice(None)
        at = slice(start, end)
        out, state, last_k, last_v, before_gate = trapezoid(
            query[:, at], key[:, at], leaves["v"][:, at], leaves["adt"][..., at], leaves["dt"][..., at],
            leaves["trap"][..., at], leaves["D"], leaves["z"][:, at],
            *(leaves[name][here] for name in ("state", "last_k", "last_v")))
        plain.append(before_gate.detach())
        # The final state keeps the last token with gamma alone: its second weight belongs to a token not seen yet.
        loss = (loss + (out * given["do"][:, at]).sum() + (state * given["d_state"][here]).sum()
                + (last_k * given["d_k"][here]).sum() + (last_v * given["d_v"][here]).sum())
    loss.backward()

    # What the forward kernel stores.
    with torch.no_grad():
        scale, gamma = torch.empty_like(x["dt"]), torch.empty_like(x["dt"])
        da_cs = torch.empty_like(x["dt"])
        total = siso.slots(length, packed, chunk)
        da_cs_sum = torch.full((batch, heads, total), torch.nan, dtype=torch.float64)
        stored = torch.full((batch, heads, width, total, dim), torch.nan, dtype=torch.float64)
        for (number, pieces), (start, end) in zip(siso.chunks(length, packed, chunk), spans, strict=True):
            here = slice(number, number + 1) if ends else slice(None)
            scale[..., start:end], gamma[..., start:end] = siso.weights(x["dt"][..., start:end],
                                                                        x["trap"][..., start:end])
            late = x["dt"][..., start] * (1 - torch.sigmoid(x["trap"][..., start]))
            outer = x["last_v"][here][..., None] * x["last_k"][here][..., None, :]
            state = x["state"][here] + late[..., None, None] * outer
            for slot, at, stop in pieces:
                da_cs[..., at:stop] = (x["adt"][..., at:stop] * siso.LOG2E).cumsum(-1)
                da_cs_sum[..., slot], stored[..., slot, :] = da_cs[..., stop - 1], state
                k_mid = key[:, at:stop] * scale[..., at:stop].transpose(1, 2)[..., None]
                state = siso.run(query[:, at:stop], k_mid, x["v"][:, at:stop], x["adt"][..., at:stop],
                                 torch.zeros_like(x["adt"][..., at:stop]), state)[1][-1]
        k_mid = key.detach() * scale.transpose(1, 2)[..., None]
        qk_dot = gamma * (query * key).sum(-1).detach().transpose(1, 2)

    dzdo, dqkv, dqktheta, ddt = (operator.load_reference() for operator in OPERATORS)
    dz, do_scaled = dzdo(given["do"], x["z"], torch.cat(plain, 1))
    dq_mid, dk_mid, dv, dadt, dqk, dD, d_initial = dqkv(
        query.detach(), k_mid, x["v"], da_cs, da_cs_sum, qk_dot, stored.flatten(-2), do_scaled, given["d_state"],
        given["d_v"], x["D"], chunk, True, packed)
    dq, dk, dq_bias, dk_bias, dangles, dscale, dgamma = dqktheta(
        x["q"], x["k"], scale, gamma, x["q_bias"], x["k_bias"], x["angles"], dq_mid, dk_mid, dqk, given["d_k"], chunk,
        packed)
    d_dt, d_trap, d_state, d_last_k, d_last_v = ddt(dscale, dgamma, x["dt"], x["trap"], d_initial, x["last_k"],
                                                    x["last_v"], packed)
    got = {"q": dq, "k": dk, "v": dv, "adt": dadt, "dt": d_dt, "trap": d_trap, "q_bias": dq_bias, "k_bias": dk_bias,
           "angles": dangles, "D": dD, "z": dz, "state": d_state, "last_k": d_last_k, "last_v": d_last_v}
    for name, leaf in leaves.items():
        assert_close(name, leaf.grad, got[name], 1e-12)


# --- the port ---------------------------------------------------------------------------------------------------------

QUICK = {"compute_dzdo": ("T37 D32", "each input laid out differently"),
         "compute_dqkv": ("T37 K24 V20, grouped, D, states", "packed, D, states", "packed"),
         "compute_dqktheta": ("T37 K24 A8, grouped, K state", "packed, K state"),
         "compute_ddt_dtrap_dinput_states": ("T37 K24 V20, input states", "packed, input states", "packed, one empty")}
TRIALS = [(name, case, dtype) for name, cases in QUICK.items() for case in cases for dtype in catalog.get(name).dtypes]


@pytest.mark.parametrize("name, case, dtype", TRIALS)
def test_the_port_agrees_with_float64(name, case, dtype, ported):
    operator = catalog.get(name)
    result = try_case(operator, operator.case(case), dtype, "cpu", 1)
    assert result.verdict == Verdict.PASSED, result.reason


def test_file_selects_the_operators_that_run_its_port(ported):
    found = target.find("mamba3_siso_bwd.py")
    assert sorted(operator.name for operator in found) == sorted((*STEPS, "apply_dk_state_post"))
    assert all(operator.origin.startswith("the generated port of ") for operator in found)
    assert target.find(str(ported)) == found
    assert target.find("mamba-ssm==2.3.2.post1:mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py") == found
    assert catalog.get("mamba3_siso_bwd_dzdo").origin.startswith("written by hand, after compute_dzdo")


# operator, case, the first place with this text after the kernel's name, what comes there
FAULTS = {
    "sign, dzdo": ("compute_dzdo", "T37 D32", "1 - sigmoid_z", "1 + sigmoid_z"),
    "mask, dqkv takes the diagonal": ("compute_dqkv", "T37 K24 V20, grouped", "> tl.arange", ">= tl.arange"),
    "stride, dqkv reads rows of v": ("compute_dqkv", "T37 K24 V20, grouped", "nheads_dim * headdim_v", "headdim_v"),
    "sign, dqktheta": ("compute_dqktheta", "T37 K24 A8, grouped", "dq1 = -", "dq1 = "),
    "mask, dqktheta turns too much": ("compute_dqktheta", "T37 K24 A8, grouped", "< headdim_angles", "< headdim_qk"),
    "mask, ddt takes the sequence before": (
        "compute_ddt_dtrap_dinput_states", "packed, input states", "offs_s_prev >= 0", "offs_s_prev >= -1"),
    "sign, dtrap": ("compute_ddt_dtrap_dinput_states", "T37", "- dscale_prev", "+ dscale_prev"),
}
KERNELS = {"compute_dzdo": "_dzdo(", "compute_dqkv": "_dqkv(", "compute_dqktheta": "_rotary_bias_angles(",
           "compute_ddt_dtrap_dinput_states": "_ddt_dtrap_dinput_states("}


def copied(operator, old, new, folder):
    """The operator on a copy of the generated package with one text changed."""
    number = len(list(folder.iterdir()))
    package = f"damaged_{folder.name}_{number}".replace("-", "_")
    copy = folder / package
    shutil.copytree(catalog.GENERATED / "mamba_ssm/ops/triton/mamba3", copy)
    file = copy / operator.port.name
    text = file.read_text()
    kernel = text.index(KERNELS[operator.name])
    assert old in text[kernel:]
    file.write_text(text[:kernel] + text[kernel:].replace(old, new, 1))
    return replace(operator, wrapper=f"{file}:{operator.upstream.function}", root=folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_the_port_is_seen(fault, ported, tmp_path):
    name, case, old, new = FAULTS[fault]
    operator = catalog.get(name)
    result = try_case(copied(operator, old, new, tmp_path), operator.case(case), torch.float32, "cpu", 0)
    assert result.verdict == Verdict.FAILED
    assert result.reason


def test_an_unchanged_copy_of_the_port_passes(ported, tmp_path):
    for operator in OPERATORS:
        copy = copied(operator, "\n", "\n\n", tmp_path)
        assert try_case(copy, copy.cases[1], torch.float32, "cpu", 0).verdict == Verdict.PASSED


def test_a_missing_port_is_named_and_made_on_demand(tmp_path, monkeypatch, capsys):
    from migrate import ports
    from ported_kernels import __main__ as listing

    elsewhere = tmp_path / "generated"
    monkeypatch.setattr(catalog, "GENERATED", elsewhere)
    missing = replace(OPERATORS[0], wrapper=f"{elsewhere / 'gone.py'}:compute_dzdo")
    monkeypatch.setattr(catalog, "get", lambda name: missing)
    assert listing.main(["compute_dzdo", "--device", "cpu"]) == 2
    assert f"migrate port {missing.upstream.release}:{missing.upstream.path}" in capsys.readouterr().err
    made = []
    monkeypatch.setattr(ports.command, "port", lambda *arguments: made.append(arguments) or _Nothing)
    target.prepare([missing])
    assert [arguments[0] for arguments in made] == [f"{missing.upstream.release}:{missing.upstream.path}"]


class _Nothing:
    statuses = ()


def test_verify_port_file_path_on_disk_that_is_none(tmp_path):
    from migrate.errors import UsageError

    own = tmp_path / Path(OPERATORS[0].upstream.path).name
    own.write_text("x = 1\n")
    with pytest.raises(UsageError, match="no operator runs the port of"):
        target.find(str(own))
