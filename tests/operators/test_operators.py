"""The operators: bad arguments, and properties that fixed cases do not cover. The cases themselves run under
`migrate verify all`, in test_verify.py."""
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from migrate.verify.compare import assert_close
from ported_kernels import bwd_segsum_dadt, catalog, mamba3_siso_bwd_dzdo
from ported_kernels.mamba3 import segsum_dadt_reference
from ported_kernels.mamba3.dzdo_reference import mamba3_siso_bwd_dzdo_reference
from ported_kernels.mamba3.segsum_dadt_reference import bwd_segsum_dadt_reference


def segsum(**changes):
    inputs = {"dSSdA": torch.zeros(1, 2, 3, 16, 16), "SSdA": torch.zeros(1, 2, 3, 16, 16),
              "ddt_out": torch.zeros(1, 2, 48), "chunk_size": 16}
    return bwd_segsum_dadt(**{**inputs, **changes})


def dzdo(**changes):
    inputs = {name: torch.zeros(2, 5, 3, 40) for name in ("do", "z", "o")}
    return mamba3_siso_bwd_dzdo(**{**inputs, **changes})


SQUARE = torch.zeros(1, 2, 3, 16, 16)
TOKENS = torch.zeros(2, 5, 3, 40)


@pytest.mark.parametrize("call, changes, message", [
    (segsum, {"dSSdA": [1.0]}, "dSSdA: expected a tensor of shape [B, H, N, C, C], got list"),
    (segsum, {"dSSdA": SQUARE[0]}, "dSSdA: expected 5 dimensions [B, H, N, C, C], got shape (2, 3, 16, 16)"),
    (segsum, {"dSSdA": SQUARE[:0]},
     "dSSdA: expected a tensor [B, H, N, C, C] with elements, got the empty shape (0, 2, 3, 16, 16)"),
    (segsum, {"dSSdA": SQUARE.double()}, "dSSdA: expected float32 or bfloat16 or float16, got float64"),
    (segsum, {"dSSdA": SQUARE.to("meta")}, "dSSdA: expected a tensor on npu, cuda, cpu, got device 'meta'"),
    (segsum, {"SSdA": SQUARE[:, :1]},
     "SSdA: expected the shape of dSSdA, (1, 2, 3, 16, 16), got (1, 1, 3, 16, 16)"),
    (segsum, {"SSdA": SQUARE.half()}, "SSdA: expected the dtype of dSSdA, float32, got float16"),
    (segsum, {"SSdA": None}, "SSdA: expected a tensor of shape [B, H, N, C, C], got NoneType"),
    (segsum, {"dSSdA": SQUARE[..., :8], "SSdA": SQUARE[..., :8]},
     "dSSdA: expected square chunks [B, H, N, C, C], got (1, 2, 3, 16, 8)"),
    (segsum, {"chunk_size": 32}, "chunk_size: expected the chunk length of dSSdA, 16, got 32"),
    (segsum, {"dSSdA": SQUARE[..., :12, :12], "SSdA": SQUARE[..., :12, :12], "ddt_out": torch.zeros(1, 2, 36),
              "chunk_size": 12}, "chunk_size: expected one of 8, 16, 32, 64, 128, got 12"),
    (segsum, {"ddt_out": torch.zeros(1, 2, 47)}, "ddt_out: expected shape [B, H, N*C] = (1, 2, 48), got (1, 2, 47)"),
    (segsum, {"ddt_out": torch.zeros(1, 2, 48).half()}, "ddt_out: expected float32, got float16"),
    (segsum, {"ddt_out": torch.zeros(1, 1, 48).expand(1, 2, 48)},
     "ddt_out: expected memory of its own for every element, got strides (48, 0, 1)"),
    (dzdo, {"do": TOKENS[0]}, "do: expected 4 dimensions [B, T, H, D], got shape (5, 3, 40)"),
    (dzdo, {"do": TOKENS[:, :0]},
     "do: expected a tensor [B, T, H, D] with elements, got the empty shape (2, 0, 3, 40)"),
    (dzdo, {"do": TOKENS.int()}, "do: expected float32 or bfloat16 or float16, got int32"),
    (dzdo, {"z": TOKENS[:, :4]}, "z: expected the shape of do, (2, 5, 3, 40), got (2, 4, 3, 40)"),
    (dzdo, {"o": TOKENS.bfloat16()}, "o: expected the dtype of do, float32, got bfloat16"),
    (dzdo, {"z": 1.0}, "z: expected a tensor of shape [B, T, H, D], got float"),
])
def test_bad_arguments(call, changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(**changes)


def test_devices_that_differ(monkeypatch):
    """There is one device here, so another is made up: meta, let through as if it had kernels."""
    monkeypatch.setattr("ported_kernels.arguments.DEVICES", ("cpu", "meta"))
    with pytest.raises(ValueError, match=r"^z: expected the device of do, cpu, got meta$"):
        dzdo(z=TOKENS.to("meta"))
    with pytest.raises(ValueError, match=r"^ddt_out: expected the device of dSSdA, cpu, got meta$"):
        segsum(ddt_out=torch.zeros(1, 2, 48, device="meta"))


def test_in_place():
    out = torch.zeros(1, 2, 48)
    assert segsum(dSSdA=SQUARE + 1, ddt_out=out) is out
    assert out[0, 0, 1] == 15, "row 1 of a chunk: 15 later rows, one earlier column"
    view = torch.zeros(1, 2, 96)[..., ::2]
    assert segsum(dSSdA=SQUARE + 1, ddt_out=view) is view
    assert torch.equal(view, out)


@settings(max_examples=25, deadline=None)
@given(B=st.integers(1, 3), H=st.integers(1, 4), N=st.integers(1, 5), C=st.sampled_from([8, 16, 32]),
       seed=st.integers(0, 2**31))
def test_segsum_any_number_of_chunks(B, H, N, C, seed):
    inputs = segsum_dadt_reference._case("", (B, H, N, C)).build(seed, torch.float32)
    want = bwd_segsum_dadt_reference(**inputs)
    assert_close("ddt_out", want, bwd_segsum_dadt(**inputs), 1e-5, dtype=torch.float32)


@settings(max_examples=25, deadline=None)
@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 5), st.integers(1, 130)),
       seed=st.integers(0, 2**31))
def test_dzdo_any_shape(shape, seed):
    do, z, o = torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed))
    for name, want, out in zip(("dz", "do_scaled"), mamba3_siso_bwd_dzdo_reference(do, z, o),
                               mamba3_siso_bwd_dzdo(do, z, o), strict=True):
        assert_close(name, want, out, 1e-5, dtype=torch.float32)


def test_dzdo_is_the_gradient_of_the_gate():
    """Against autograd, which shares nothing with the reference."""
    do, z, o = torch.randn(3, 2, 7, 3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    o.requires_grad_()
    dz, dout = torch.autograd.grad(o * torch.nn.functional.silu(z), (z, o), do)
    got = mamba3_siso_bwd_dzdo_reference(do, z.detach(), o.detach())
    torch.testing.assert_close(got, (dz, dout))


def test_segsum_is_the_gradient_of_the_segment_sums():
    """exp(S) with S built from increments a; the gradient of a is what the operator adds up."""
    generator = torch.Generator().manual_seed(0)
    a = -torch.rand(1, 2, 3, 16, generator=generator, dtype=torch.float64)
    a.requires_grad_()
    total = a.cumsum(-1)
    S = total[..., :, None] - total[..., None, :]
    D = torch.randn(1, 2, 3, 16, 16, generator=generator, dtype=torch.float64)      # [j, i]
    below = torch.ones(16, 16, dtype=torch.bool).tril(-1)
    loss = (D.mT * torch.where(below, S.exp(), 0.0)).sum()
    (grad,) = torch.autograd.grad(loss, a)
    out = bwd_segsum_dadt_reference(D, S.detach(), torch.zeros(1, 2, 48), 16)
    torch.testing.assert_close(out.reshape(grad.shape), grad)


def test_launches_stay_small(launches):
    """The grid is counted in cores, not in chunks or tokens, so no length leads past 65,535 programs."""
    x = torch.zeros(1, 70_000, 2, 64, dtype=torch.float16)
    mamba3_siso_bwd_dzdo(x, x, x)
    x = torch.zeros(4, 32, 600, 8, 8, dtype=torch.float16)
    bwd_segsum_dadt(x, x, torch.zeros(4, 32, 4800), 8)
    assert [grid for _, grid in launches] == [(48,), (48,)]


def test_catalogue():
    operators = catalog.operators()
    by_hand = {name: operator for name, operator in operators.items() if not operator.port}
    assert list(by_hand) == ["bwd_segsum_dadt", "kda_split_state_summary", "kda_state_grad_ext",
                             "kda_state_transition", "mamba3_siso_bwd_dzdo"]
    for name, operator in by_hand.items():
        how = f"the rules' form of our own {operator.plain}" if name.startswith("kda_") else "written by hand"
        assert operator.origin.startswith(f"{how}, after ")
    assert all((catalog.PACKAGE.parent / operator.plain).is_file() for operator in operators.values() if operator.plain)
    assert len(operators["mamba3_siso_bwd_dzdo"].cases) >= 20
    for operator in operators.values():
        names = [case.name for case in operator.cases]
        assert len(set(names)) == len(names)
        for case in operator.cases:
            first, second = (case.build(3, torch.float32) for _ in range(2))
            assert all(torch.equal(first[name], second[name]) or first[name].isnan().any()
                       for name in first if isinstance(first[name], torch.Tensor)), "a seed gives one input"
        if operator.name == "chunk_state_varlen":
            continue
        laid_out = [value.is_contiguous() for case in operator.cases
                    for value in case.build(0, torch.float32).values() if isinstance(value, torch.Tensor)]
        assert not all(laid_out), "some inputs are not contiguous"
    with pytest.raises(KeyError, match=r"no operator 'nope'; there are .*bwd_segsum_dadt, "):
        catalog.get("nope")
    with pytest.raises(KeyError, match="has no case 'nope'; it has one element"):
        operators["mamba3_siso_bwd_dzdo"].case("nope")
