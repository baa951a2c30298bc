"""Compiled kernels, run: right results, and every check on a kernel that deserves it."""
from __future__ import annotations

from pathlib import Path

import npu_kernels as kernels
import pytest
import torch

from migrate.errors import UsageError
from migrate.vnpu import device
from migrate.vnpu.findings import Finding
from migrate.vnpu.log import Issued
from migrate.vnpu.machine import Options, Run, parse_programs

HERE = Path(__file__).parent
NAN = float("nan")


def only(npu: device.Device) -> Run:
    (run,) = npu.take()
    return run


def close(out: torch.Tensor, want: torch.Tensor, bound: float) -> bool:
    return float((out.detach().double() - want).norm() / want.norm()) < bound


def line_of(text: str) -> str:
    """FILE:LINE of the one line of the kernels that holds `text`."""
    path = HERE / "npu_kernels.py"
    (line,) = [k for k, found in enumerate(path.read_text().splitlines(), 1) if text in found]
    return f"{path}:{line}"


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.bfloat16, 3e-3), (torch.float16, 1e-3)])
@pytest.mark.parametrize("n", [96, 100, 1])
def test_a_vector_kernel(npu: device.Device, dtype: torch.dtype, bound: float, n: int) -> None:
    x, y, out = torch.randn(n).to(dtype), torch.randn(n).to(dtype), torch.full((n,), NAN, dtype=dtype)
    kernels.scaled[((n + 31) // 32,)](x, y, out, n, 0.5, BLOCK=32)
    run = only(npu)
    assert close(out, torch.exp(x.double() * 0.5) + y.double(), bound)
    assert run.findings == [] and run.programs == (n + 31) // 32 and all(cycles > 0 for cycles in run.cycles)


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)])
def test_a_mix_kernel(npu: device.Device, dtype: torch.dtype, bound: float) -> None:
    """Ragged rows, products summed over a loop, cube and vector cores with handshakes between them."""
    a, b, out = torch.randn(40, 48).to(dtype), torch.randn(48, 24).to(dtype), torch.full((40, 24), NAN)
    kernels.product[(3,)](a, b, out, 40, 24, 48, BM=16, BN=32, BK=16)
    want = a.double() @ b.double()
    assert close(out, want / (1 + torch.exp(-want)), bound)
    assert only(npu).errors == []


def test_views_and_shared_storage(npu: device.Device) -> None:
    """Arguments that are parts of one tensor, neither of them at its beginning."""
    home = torch.randn(3, 32)
    want = torch.exp(home[1].double()) + home[2].double()
    kernels.scaled[(1,)](home[1], home[2], home[2], 32, 1.0, BLOCK=32)
    assert close(home[2], want, 1e-6) and only(npu).findings == []


def expect(run: Run, kind: str, place: str) -> Finding:
    (finding,) = run.errors
    assert finding.kind == kind and finding.place == place
    assert finding.kernel == run.kernel and finding.place in str(finding) and finding.call in str(finding)
    return finding


def test_programs_that_store_to_one_place(npu: device.Device) -> None:
    kernels.same_place[(4,)](torch.randn(4, 32), torch.zeros(32), BLOCK=32)
    finding = expect(only(npu), "overlap", line_of("tl.store(out + at, tl.load(x + tl.program_id(0) * BLOCK + at))"))
    assert "program 1 writes" in finding.message and "program 0 has written" in finding.message
    assert finding.count == 3 and finding.core == "AIV0" and finding.call.startswith("store_ubuf_to_gm")


def test_the_same_content_twice_is_a_note(npu: device.Device) -> None:
    kernels.same_place[(4,)](torch.ones(4, 32), torch.zeros(32), BLOCK=32)
    run = only(npu)
    assert run.errors == [] and {finding.kind for finding in run.findings} == {"same bytes"}


def test_a_program_that_reads_what_another_writes(npu: device.Device) -> None:
    kernels.neighbour[(4,)](torch.randn(5, 32), BLOCK=32)
    assert "reads" in expect(only(npu), "overlap", line_of("tl.load(x + at) + 1.0")).message


def test_atomics_of_several_programs_are_no_overlap(npu: device.Device) -> None:
    x, out = torch.randn(4, 32), torch.zeros(32)
    kernels.adds_up[(4,)](x, out, BLOCK=32)
    assert close(out, x.double().sum(0), 1e-6) and only(npu).findings == []


def test_out_of_bounds(npu: device.Device) -> None:
    x, out = torch.randn(100), torch.zeros(128)
    kernels.past_the_end[(4,)](x, out, BLOCK=32)
    run = only(npu)
    finding = expect(run, "out of bounds", line_of("tl.load(x + here)"))
    assert finding.program == 3 and "MTE2 reads bytes 384 to 512" in finding.message
    assert finding.message.endswith("of a float32 tensor [100], which has 400")
    assert bool((out[:100] == x).all()) and bool(out[100:].isnan().all())


def test_far_out_of_bounds_ends_the_launch(npu: device.Device) -> None:
    x, out = torch.randn(32), torch.zeros(1 << 16)
    kernels.past_the_end[(2,)](x, out, BLOCK=32768)
    run = only(npu)
    assert "out of bounds" in {finding.kind for finding in run.errors} and run.programs == 1


def test_strict_raises_the_findings(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu, "settings", device.Settings(strict=True))
    with pytest.raises(device.Found, match="overlap: program 1 writes"):
        kernels.same_place[(2,)](torch.randn(2, 32), torch.zeros(32), BLOCK=32)


def test_what_does_not_compile_says_why(npu: device.Device) -> None:
    out = torch.full((131072,), 7.0)
    with pytest.raises(device.NotCompiled, match=r"too_large does not compile: UB overflow, [\d,]+ of 1,572,864 bits"):
        kernels.too_large[(1,)](torch.randn(131072), out, BLOCK=131072)
    assert npu.take() == [] and bool((out == 7).all())


def test_a_sample_of_programs(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(programs=(0, -1, 99))
    assert list(options.chosen(4)) == [0, 3]
    monkeypatch.setattr(npu, "settings", device.Settings(options=options, strict=False))
    out = torch.full((128,), NAN)
    kernels.past_the_end[(4,)](torch.randn(128), out, BLOCK=32)
    assert only(npu).programs == 2
    assert npu.written(out).nonzero().flatten().tolist() == [*range(32), *range(96, 128)]


@pytest.mark.parametrize("text, programs", [("0,1,last", (0, 1, -1)), ("7", (7,))])
def test_programs_on_the_command_line(text: str, programs: tuple[int, ...]) -> None:
    assert parse_programs(text) == programs


def test_programs_that_are_no_numbers() -> None:
    with pytest.raises(UsageError, match="expected numbers and 'last', as in 0,1,last, got '0,first'"):
        parse_programs("0,first")


def test_a_trace_puts_every_call_on_its_pipe(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu, "settings", device.Settings(options=Options(trace=True), strict=False))
    kernels.scaled[(2,)](torch.randn(64), torch.randn(64), torch.zeros(64), 64, 0.5, BLOCK=32)
    run = only(npu)
    assert {event.program for event in run.events} == {0, 1} and {event.core for event in run.events} == {"AIV0"}
    calls = [event for event in run.events if isinstance(event, Issued)]
    assert {"MTE2", "V", "MTE3"} <= {call.pipe for call in calls}
    for k in (0, 1):
        assert max(call.end for call in calls if call.program == k) == run.cycles[k]
    assert any(call.name == "vexp_1d_float" and call.place == line_of("tl.exp(value)") for call in calls)
    assert all(call.start < call.end for call in calls)


def test_leaving_takes_the_patches_back() -> None:
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    if reason := device.unusable():
        pytest.skip(reason)
    owners = (JITFunction, Autotuner, driver)
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(ZeroDivisionError), device.entered(), device.entered():
        assert JITFunction.run is not before[0]["run"]
        raise ZeroDivisionError
    assert [dict(vars(owner)) for owner in owners] == before


class Scaled(torch.autograd.Function):
    """exp(x / 2) + y; the gradient of x is exp(x / 2) * gradient / 2, made by the same kernel and torch."""

    @staticmethod
    def forward(context, x, y):     # type: ignore[no-untyped-def]
        out = torch.empty_like(x)
        kernels.scaled[(1,)](x, y, out, x.numel(), 0.5, BLOCK=32)
        context.save_for_backward(x)
        return out

    @staticmethod
    def backward(context, gradient):     # type: ignore[no-untyped-def]
        (x,) = context.saved_tensors
        grown = torch.empty_like(x)
        kernels.scaled[(1,)](x, torch.zeros_like(x), grown, x.numel(), 0.5, BLOCK=32)
        return grown * gradient / 2, gradient


def test_autograd(npu: device.Device) -> None:
    x, y = torch.randn(20, requires_grad=True), torch.randn(20, requires_grad=True)
    out = Scaled.apply(x, y)
    out.sum().backward()
    assert close(out, torch.exp(x.detach().double() / 2) + y.detach().double(), 1e-6)
    assert x.grad is not None and close(x.grad, torch.exp(x.detach().double() / 2) / 2, 1e-6)
    assert [run.kernel for run in npu.take()] == ["scaled", "scaled"]
