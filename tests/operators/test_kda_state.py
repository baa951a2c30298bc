"""The KDA state trio beyond its fixed cases: parts put together, the recurrence it stands for, bad arguments, and the
Ascend forms, which the rules make of the plain sources again."""
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from migrate import header
from migrate.asked import Asked, Setting
from migrate.command import port
from migrate.port import Settings
from migrate.verify.compare import assert_close
from ported_kernels import catalog, kda_split_state_summary, kda_state_grad_ext, kda_state_transition
from ported_kernels.kda import state_reference as reference

KDA = Path(catalog.PACKAGE, "kda")
HALVES = Asked(settings=(Setting("K", 128),), split=("K",))


@pytest.mark.parametrize("name", ["state_summary", "state_transition", "state_grad_ext"])
def test_the_rules_make_the_ascend_form(name, tmp_path):
    """To the byte, but for the line that names the version of the tool and its rules."""
    made = port(str(KDA / "plain" / f"{name}.py"), Settings.make(asked=HALVES), tmp_path).ports
    assert [p.target for p in made] == [f"{name}.py"] and not made[0].open
    assert made[0].outcome.steps, "the rules had something to do"
    kept = (KDA / f"{name}.py").read_text()
    ours, theirs = header.read(kept), header.read(made[0].text)
    assert not header.edited(kept), "edited by hand"
    assert (ours.path, ours.sha256, ours.body) == (theirs.path, theirs.sha256, theirs.body)
    assert header.remove(kept) == header.remove(made[0].text)
    assert kept.count("tl.static_assert(K == 128)") == 1


def test_the_summary_is_two_halves_and_nothing_else():
    """Each line of the plain kernel that holds no axis of K stands in the port, in the same order."""
    def body(path):
        text = path.read_text()
        return text[text.index("    i_h, i_b ="):text.index("\n\ndef ")].splitlines()

    halves = body(KDA / "state_summary.py")
    undone = []
    for line in halves:
        if re.search(r"\b(?:o_k|b_s|b_k|b_w|b_g|p_k|p_w)2\b", line):
            continue
        whole = re.sub(r"\b(o_k|b_s|b_k|b_w|b_g|p_k|p_w)1\b", r"\1", line)
        undone.append(whole.replace("arange(0, 64)", "arange(0, K)"))
    assert undone == body(KDA / "plain" / "state_summary.py")


# Parts of a sequence

def inputs_of(seed, T, dtype, chunk=64, V=64, heads=2):
    decay, key, beta, value = reference.tokens(seed, 1, T, heads, 128, V)
    gate, key, w, u = reference.in_chunks(decay, key, beta, value, chunk)
    return gate.float(), key.to(dtype), w.to(dtype), u.to(dtype)


@pytest.mark.parametrize("w_head_first", [False, True])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("cuts", [(64, 128), (64, 256, 320), (448,)])
def test_parts_compose_to_the_whole(cuts, dtype, bound, w_head_first):
    """S_out = S_ext + M @ S_in, part after part, is the whole sequence at once, in float64 on the same inputs."""
    T = 500
    tensors = inputs_of(0, T, dtype)
    start = reference.seeded(9)(1, 2, 128, 64)
    whole, through = reference.kda_split_state_summary_reference(*tensors)
    want = whole + through @ start

    def one(first, last):
        gate, key, w, u = (x[:, first:last] for x in tensors)
        return gate, key, w.transpose(1, 2) if w_head_first else w, u

    state, composed = start, start
    for first, last in zip((0, *cuts), (*cuts, T), strict=True):
        gate, key, w, u = one(first, last)
        S_ext, M = kda_split_state_summary(gate, key, w, u, w_head_first=w_head_first)
        state = S_ext.double() + M.double() @ state
        # the same from the two modes by themselves
        S_ext, nothing = kda_split_state_summary(gate, key, w, u, w_head_first=w_head_first, mode="state")
        none, M = kda_split_state_summary(gate, key, w, w_head_first=w_head_first, mode="transfer")
        assert nothing is None and none is None
        composed = S_ext.double() + M.double() @ composed
    assert_close("S_out", want, state, bound)
    assert_close("S_out", want, composed, bound)


def test_modes_agree_and_so_do_the_two_ways_to_m():
    gate, key, w, u = inputs_of(1, 192, torch.float32)
    S_ext, M = kda_split_state_summary(gate, key, w, u)
    assert torch.equal(S_ext, kda_split_state_summary(gate, key, w, u, mode="state")[0])
    assert torch.equal(M, kda_split_state_summary(gate, key, w, mode="transfer")[1])
    assert_close("M", M, kda_state_transition(gate, key, w), 2e-6)


@settings(max_examples=15, deadline=None)
@given(T=st.integers(1, 200), heads=st.integers(1, 3), chunk=st.sampled_from([16, 32, 64]),
       block=st.sampled_from([32, 64]), seed=st.integers(0, 2**31), data=st.data())
def test_any_length_and_heads(T, heads, chunk, block, seed, data):
    gate, key, w, u = inputs_of(seed, T, torch.float32, chunk, heads=heads)
    offset = data.draw(st.integers(0, heads - 1))
    options = {"chunk_size": chunk, "heads": data.draw(st.integers(1, heads - offset)), "head_offset": offset,
               "block_columns": block}
    for name, want, got in zip(("S_ext", "M"), reference.kda_split_state_summary_reference(gate, key, w, u, **options),
                               kda_split_state_summary(gate, key, w, u, **options), strict=True):
        assert_close(name, want, got, 1e-5, dtype=torch.float32)
    d_out, d_value = torch.randn(2, *u.shape, generator=torch.Generator().manual_seed(seed))
    arguments = (key, key, w, gate, d_out, d_value, 0.5)
    assert_close("dS_ext", reference.kda_state_grad_ext_reference(*arguments, **options),
                 kda_state_grad_ext(*arguments, **options), 1e-5, dtype=torch.float32)


# The references, against what shares nothing with them

def test_the_reference_is_the_recurrence_token_by_token():
    decay, key, beta, value = reference.tokens(3, 1, 50, 1, 128, 32)
    start = reference.seeded(4)(128, 32)
    state = start
    for g, k, b, v in zip(decay[0, :, 0], key[0, :, 0], beta[0, :, 0], value[0, :, 0], strict=True):
        state = 2 ** g[:, None] * state
        state = state + b * torch.outer(k, v - k @ state)
    S_ext, M = reference.kda_split_state_summary_reference(
        *reference.in_chunks(decay, key, beta, value, 16), chunk_size=16)
    torch.testing.assert_close(S_ext[0, 0] + M[0, 0] @ start, state)
    product = reference.kda_state_transition_reference(
        *reference.in_chunks(decay, key, beta, value, 16)[:3], chunk_size=16)
    torch.testing.assert_close(product, M)


def test_the_gradient_reference_is_what_autograd_finds():
    """With o = scale * Q S of the chunk's first state, v' = U - W S: the gradient in S_in, that of S_out being 0."""
    decay, key, beta, value = reference.tokens(5, 1, 50, 1, 128, 32)
    gate, k, w, u = reference.in_chunks(decay, key, beta, value, 16)
    query, d_out, d_value = (reference.seeded(6 + i)(*shape) for i, shape in enumerate((k.shape, u.shape, u.shape)))
    start = torch.zeros(1, 1, 128, 32, dtype=torch.float64, requires_grad=True)
    state, loss = start, torch.zeros((), dtype=torch.float64)
    for q, kc, wc, g, do, dv, uc in reference._chunks((query, k, w, gate, d_out, d_value, u), 16, None, 0):
        new = uc - wc @ state
        loss = loss + (do * 0.3 * (q @ state)).sum() + (dv * new).sum()
        state = 2 ** g[:, :, -1, :, None] * state + kc.mT @ new
    (want,) = torch.autograd.grad(loss, start)
    # upstream's sign: G is the gradient of the new values, which reach S_in through -W
    got = reference.kda_state_grad_ext_reference(query, k, w, gate, d_out, d_value, 0.3, chunk_size=16)
    torch.testing.assert_close(got, want)


# Bad arguments

TOKENS = torch.zeros(1, 64, 3, 128)
VALUES = torch.zeros(1, 64, 3, 64)


def summary(**changes):
    return kda_split_state_summary(**{"gate": TOKENS, "key": TOKENS, "w": TOKENS, "u": VALUES, **changes})


def transition(**changes):
    return kda_state_transition(**{"gate": TOKENS, "key": TOKENS, "w": TOKENS, **changes})


def grad_ext(**changes):
    inputs = dict.fromkeys(("query", "key", "w", "gate"), TOKENS) | dict.fromkeys(("grad_output", "grad_value"), VALUES)
    return kda_state_grad_ext(**{**inputs, "scale": 1.0, **changes})


@pytest.mark.parametrize("call, changes, message", [
    (summary, {"mode": "all"}, "mode: expected one of both, state, transfer, got 'all'"),
    (summary, {"chunk_size": 48}, "chunk_size: expected one of 16, 32, 64, got 48"),
    (summary, {"block_columns": 128}, "block_columns: expected one of 32, 64, got 128"),
    (summary, {"key": TOKENS[..., :64]}, "key: expected K = 128 in [B, T, H_TOTAL, K], got (1, 64, 3, 64)"),
    (summary, {"key": TOKENS.half()}, "key: expected float32 or bfloat16, got float16"),
    (summary, {"key": TOKENS[:, :0]},
     "key: expected a tensor [B, T, H_TOTAL, K] with elements, got the empty shape (1, 0, 3, 128)"),
    (summary, {"gate": TOKENS.bfloat16()}, "gate: expected float32, got bfloat16"),
    (summary, {"gate": TOKENS[:, :9]}, "gate: expected the shape of key, (1, 64, 3, 128), got (1, 9, 3, 128)"),
    (summary, {"w": TOKENS.transpose(1, 2)}, "w: expected the shape of key, (1, 64, 3, 128), got (1, 3, 64, 128)"),
    (summary, {"w_head_first": True}, "w: expected shape [B, H_TOTAL, T, K] = (1, 3, 64, 128), w_head_first being "
     "set, got (1, 64, 3, 128)"),
    (summary, {"u": None}, "u: expected a tensor of shape [B, T, H_TOTAL, V], got NoneType"),
    (summary, {"u": VALUES.bfloat16()}, "u: expected float32, got bfloat16"),
    (summary, {"u": VALUES[:, :9]}, "u: expected [B, T, H_TOTAL] of key, (1, 64, 3), before V, got (1, 9, 3, 64)"),
    (summary, {"u": VALUES[..., :40]}, "u: expected V a multiple of block_columns, 64, got 40"),
    (summary, {"head_offset": 3}, "head_offset: expected a head of key, 0 to 2, got 3"),
    (summary, {"head_offset": 1, "heads": 3},
     "heads: expected 1 to 2, as key has 3 heads and head_offset is 1, got 3"),
    (transition, {"heads": 0}, "heads: expected 1 to 3, as key has 3 heads and head_offset is 0, got 0"),
    (transition, {"chunk_size": True}, "chunk_size: expected one of 16, 32, 64, got True"),
    (transition, {"gate": TOKENS[:, :40], "key": TOKENS[:, :40], "w": TOKENS[:, :40]},
     "key: expected T a multiple of chunk_size, 64, got 40"),
    (grad_ext, {"query": TOKENS.bfloat16()}, "query: expected the dtype of key, float32, got bfloat16"),
    (grad_ext, {"grad_value": VALUES[..., :32]},
     "grad_value: expected the shape of grad_output, (1, 64, 3, 64), got (1, 64, 3, 32)"),
    (grad_ext, {"scale": "1"}, "scale: expected a number, got str"),
])
def test_bad_arguments(call, changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(**changes)


def test_more_programs_than_the_launcher_takes():
    many = torch.zeros(1, 1, 1, 128).expand(22_000, 1, 1, 128)
    with pytest.raises(ValueError, match=r"^heads: expected at most 0 with a batch of 22000, for the launcher takes"):
        kda_split_state_summary(many, many, many, many)


def test_the_transition_asks_for_no_multi_buffering():
    """An option of Ascend's compiler alone: it reaches a launch there, and no launch on a GPU."""
    from ported_kernels import runtime

    assert runtime.launch_options("npu", multibuffer=False) == {"multibuffer": False}
    assert runtime.launch_options("cpu", multibuffer=False) == {"multibuffer": False}
    assert runtime.launch_options("cuda:1", multibuffer=False) == {"num_stages": 1}
    assert runtime.launch_options("cuda", multibuffer=True, num_warps=8) == {"num_warps": 8}
    assert runtime.launch_options("npu", multibuffer=True, num_warps=8) == {"multibuffer": True}
    assert "**runtime.launch_options(M.device, multibuffer=False))" in (KDA / "state_transition.py").read_text()
