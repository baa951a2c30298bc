"""`--device vnpu`: what runtime says of it, and what verify makes of results, findings and kernels that do not
compile."""
from __future__ import annotations

from functools import partial
from typing import Any

import npu_kernels as kernels
import pytest
import torch

from migrate.errors import UsageError
from migrate.verify import Verdict, command, verify
from migrate.verify import trial as trial_module
from migrate.verify.pool import Report, Virtual
from migrate.verify.trial import try_case
from migrate.vnpu import device
from migrate.vnpu.machine import Options, parse_programs
from ported_kernels import catalog, interpreter, runtime

OPERATOR = catalog.get("mamba3_siso_bwd_dzdo")
CASE = "one token, D40"


def test_it_has_the_cores_of_the_card(npu: device.Device) -> None:
    assert runtime.properties("vnpu") == runtime.Properties("Ascend910B2", 24, 48, 192 * 1024)
    assert runtime.home("vnpu") == "cpu" and runtime.home("cuda") == "cuda"
    assert runtime.vector_programs("vnpu", 1000) == 48
    with runtime.on("vnpu"), runtime.on("cpu"):
        assert interpreter.recording()                       # a wrapper's `on` leaves it in place
        assert runtime.vector_programs("cpu", 1000) == 48


def test_default_device_is_never_the_virtual_one() -> None:
    assert runtime.default_device() != "vnpu"


@pytest.mark.parametrize("virtual", [None, Virtual("Ascend910B3", (0, -1))])
def test_verify(npu: device.Device, virtual: Virtual | None) -> None:
    report = verify([OPERATOR], "vnpu", dtypes=["float32", "bfloat16"], cases=[CASE], virtual=virtual)
    assert [result.verdict for result in report.results] == [Verdict.PASSED] * 2, report.results
    assert report.exit_code == 0 and all(result.outputs for result in report.results)


def trial(wrapper: Any) -> Any:
    def entered(**inputs: Any) -> Any:
        with runtime.on("vnpu"):
            return wrapper(**inputs)
    return try_case(OPERATOR, OPERATOR.case(CASE), torch.float32, "vnpu", 0, entered)


def right(**inputs: Any) -> Any:
    return tuple(out.float() for out in OPERATOR.load_reference()(**inputs))


def test_what_does_not_compile_is_not_tried(npu: device.Device) -> None:
    def wrapper(**inputs: Any) -> Any:
        kernels.too_large[(1,)](torch.zeros(131072), torch.zeros(131072), BLOCK=131072)
        return right(**inputs)
    result = trial(wrapper)
    assert result.verdict is Verdict.NOT_TRIED and "too_large does not compile: UB overflow" in result.reason
    assert Report("vnpu", 0, [result]).exit_code == 1
    assert Report("vnpu", 0, [result], "it is not there").exit_code == 2


def test_a_finding_fails_a_case_whose_numbers_are_right(npu: device.Device) -> None:
    def wrapper(programs: int, **inputs: Any) -> Any:
        kernels.same_place[(programs,)](torch.randn(2, 32), torch.zeros(32), BLOCK=32)
        return right(**inputs)
    result = trial(partial(wrapper, 2))
    assert result.verdict is Verdict.FAILED and result.reason.startswith("overlap: program 1 writes")
    result = trial(partial(wrapper, 1))     # findings of one case are not those of the next
    assert (result.verdict, result.launches, result.programs) == (Verdict.PASSED, 1, 1)


def test_programs_that_others_depend_on(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all programs are run, what they add up together, and what a second launch makes, is not compared."""
    monkeypatch.setattr(npu, "settings", device.Settings(options=Options(programs=(0,)), strict=False))
    monkeypatch.setattr(trial_module, "device_of_launches", lambda: npu)

    def adding(**inputs: Any) -> Any:
        dz, scaled = right(**inputs)
        kernels.adds_up[(2,)](torch.randn(2, 32), dz.flatten(), BLOCK=32)
        return dz, scaled

    def twice(**inputs: Any) -> Any:
        dz, scaled = right(**inputs)
        for out in (dz, scaled):
            kernels.same_place[(1,)](torch.randn(1, 32), out.flatten(), BLOCK=32)
        return dz, scaled

    for wrapper in (adding, twice):
        result = trial(wrapper)
        assert result.verdict is Verdict.NOT_TRIED and "depends on programs that were not run" in result.reason
        assert not result.outputs


def test_right_numbers_that_no_kernel_made(npu: device.Device) -> None:
    result = trial(right)
    assert result.verdict is Verdict.NOT_TRIED and result.reason.startswith("no kernel was launched")


def test_options_of_another_device_are_refused() -> None:
    with pytest.raises(UsageError, match="--target and --programs are for --device vnpu, not for cpu"):
        command.run([OPERATOR.name], "cpu", 0, "text", [], [], 60.0, "Ascend910B2", "")
    with pytest.raises(UsageError, match="does not read the HIVM of the 950 family"):
        command.run([OPERATOR.name], "vnpu", 0, "text", [], [], 60.0, "Ascend950PR_9579", "")


def test_programs_that_no_launch_has(npu: device.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was compared: neither passed nor failed."""
    def wrapper(**inputs: Any) -> Any:
        kernels.scaled[(2,)](torch.zeros(64), torch.zeros(64), torch.zeros(64), 64, 2.0, BLOCK=32)
        kernels.scaled[(1,)](torch.zeros(32), torch.zeros(32), torch.zeros(32), 32, 2.0, BLOCK=32)
        return right(**inputs)
    for programs, says in (((7, 9), "no launch has program 7, 9"),
                           ((1,), "the launch of scaled, grid 1, has no program 1")):
        monkeypatch.setattr(npu, "settings", device.Settings(options=Options(programs=programs), strict=False))
        monkeypatch.setattr(trial_module, "device_of_launches", lambda: npu)
        result = trial(wrapper)
        assert result.verdict is Verdict.NOT_TRIED and result.reason == says


def test_programs_are_numbers() -> None:
    assert parse_programs("0, 3,last") == (0, 3, -1)
    for text in ("-1", "0,-2", "first", ""):
        with pytest.raises(UsageError, match="expected numbers and 'last'"):
            parse_programs(text)
