"""One case on one device: build, run, compare, and see that nothing else was touched."""
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from migrate.gate.cache import Unwritable
from migrate.verify.compare import compare
from migrate.verify.result import CaseResult, OutputResult, Verdict
from migrate.vnpu.device import Device, NotCompiled
from migrate.vnpu.device import current as device_of_launches
from migrate.vnpu.machine import Run
from ported_kernels import runtime
from ported_kernels.arguments import short
from ported_kernels.catalog import Case, Inputs, Operator, spread

MOST_NOTES = 3


def try_case(operator: Operator, case: Case, dtype: torch.dtype, device: str, seed: int,
             wrapper: Any = None) -> CaseResult:
    """`wrapper` stands in for the operator's own, for tests that plant a fault."""
    inputs = case.build(seed, dtype)
    shapes = {name: list(value.shape) for name, value in inputs.items() if isinstance(value, torch.Tensor)}

    def result(verdict: Verdict, reason: str | None, outputs: list[OutputResult],
               seconds: float | None) -> CaseResult:
        return CaseResult(operator.name, case.name, short(dtype), device, seed, operator.oracle, operator.origin,
                          verdict, reason, shapes, outputs, seconds, len(launches),
                          sum(run.programs for run in launches))

    launches: list[Run] = []
    want = spread(operator.load_reference()(**inputs))
    run = wrapper or operator.trial(device)
    there = {name: _there(value, device) for name, value in inputs.items()}
    before = {name: storage_bytes(value) for name, value in _tensors(there)}
    started = time.perf_counter()
    virtual = device_of_launches() if device == "vnpu" else None
    if virtual:
        virtual.take()      # what was launched before is another case's
    try:
        with EmptyIsNan():
            got = operator.results(run(**there), there)
        runtime.wait(device)
    except (NotCompiled, Unwritable) as error:
        return result(Verdict.NOT_TRIED, str(error), [], None)
    except Exception as error:
        return result(Verdict.FAILED, f"{type(error).__name__}: {error}", [], None)
    seconds = time.perf_counter() - started
    launches = virtual.take() if virtual else []
    if virtual and (none := _idle(virtual, launches)) and not any(run.errors for run in launches):
        return result(Verdict.NOT_TRIED, none, [], seconds)

    if len(got) != len(want):
        return result(Verdict.FAILED, f"{len(got)} outputs, {len(want)} expected", [], seconds)
    sampled = virtual if virtual and virtual.settings.options.programs is not None else None
    unknown: list[str] = []
    outputs, reasons = [], [str(finding) for launch in launches for finding in launch.errors]
    for name, ref, out in zip(operator.outputs, want, got, strict=False):     # options leave the last ones out
        bound = operator.tolerance(name, dtype)
        if ref is None:
            if out is not None:
                reasons.append(f"{name}: expected None, got {type(out).__name__}")
            continue
        if sampled:
            ref, out = _computed(ref, out, sampled, launches)
            if not out.numel():
                unknown.append(name)
                continue
        found = compare(name, ref, out, bound.ratio, rtol=bound.rtol, atol=bound.atol,
                        dtype=operator.output_dtype(name, inputs))
        outputs.append(OutputResult(name, found.ratio, found.largest, bound.ratio, found.objection))
        if found.objection:
            reasons.append(f"{name}: {found.objection}")
    if reasons:     # harmless by themselves, but likely causes of what is wrong
        reasons += [f"note: {finding}" for launch in launches for finding in launch.findings
                    if finding not in launch.errors][:MOST_NOTES]
    reasons += _touched(operator, there, before)
    reasons += [f"{name}: documented as changed in place, but another tensor was returned"
                for name, out in zip(operator.outputs, got, strict=False)
                if name in operator.mutates and out is not there.get(name, out)]
    if unknown and not reasons:
        return result(Verdict.NOT_TRIED, f"{', '.join(unknown)}: depends on programs that were not run, and was not "
                      "compared; the checks found nothing in those that were", outputs, seconds)
    return result(Verdict.FAILED if reasons else Verdict.PASSED, "; ".join(reasons) or None, outputs, seconds)


def _idle(virtual: Device, launches: Sequence[Run]) -> str:
    """Why the virtual NPU has nothing to do with the outputs, or with some: no kernel was launched, or a launch has
    none of the programs that were asked for. Empty where all launches ran."""
    if not launches:
        return "no kernel was launched: nothing ran on the virtual NPU"
    asked = virtual.settings.options.programs
    idle = next((run for run in launches if not run.programs), None)
    if asked is None or idle is None:
        return ""
    numbers = ", ".join(map(str, asked))
    if not any(run.programs for run in launches):
        return f"no launch has program {numbers}"
    return f"the launch of {idle.kernel}, grid {'x'.join(map(str, idle.grid))}, has no program {numbers}"


def _computed(ref: torch.Tensor, out: Any, virtual: Device, launches: Sequence[Run]) -> tuple[torch.Tensor, Any]:
    """Reference and output where the programs that were run, which are not all, wrote the output by themselves; the
    rest is left out. Nothing is left of what was summed by atomics or on the host, nor after several launches, of which
    a later one may read what programs of an earlier one did not write."""
    if not isinstance(out, torch.Tensor) or out.shape != ref.shape:
        return ref, out
    where = virtual.written(out) & (len(launches) == 1)
    return ref[where], out[where]


def _touched(operator: Operator, there: Inputs, before: dict[str, torch.Tensor]) -> list[str]:
    """Inputs whose memory changed though the operator does not say so. Whole storages are compared, so that a
    write between the elements of a view shows; of an input that may change, only what is between them."""
    found = []
    for name, value in _tensors(there):
        bytes_before = before[name]
        bytes_after = storage_bytes(value)
        if name in operator.mutates:
            bytes_before = _without_elements(value, bytes_before)
            bytes_after = _without_elements(value, bytes_after)
        if not torch.equal(bytes_before, bytes_after):
            found.append(f"{name}: memory around it was changed" if name in operator.mutates
                         else f"{name}: changed, though not documented")
    return found


def _tensors(inputs: Inputs) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors by name, those of a tuple by its name and their number in it."""
    for name, value in inputs.items():
        named = [(f"{name}[{i}]", one) for i, one in enumerate(value)] if isinstance(value, tuple) else [(name, value)]
        yield from ((at, one) for at, one in named if isinstance(one, torch.Tensor))


def storage_bytes(value: torch.Tensor) -> torch.Tensor:
    """A copy, on the CPU, of all memory behind a tensor."""
    home = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
    return home.cpu().clone()


def _without_elements(value: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    data = data.clone()
    usable = data.numel() // value.element_size() * value.element_size()
    whole = data[:usable].view(value.dtype)
    whole.as_strided(value.shape, value.stride(), value.storage_offset()).zero_()
    return data


def _there(value: Any, device: str) -> Any:
    return tuple(_there(one, device) for one in value) if isinstance(value, tuple) else to_device(value, device)


def to_device(value: Any, device: str) -> Any:
    """The tensor on `device` with the same strides, offset and memory between its elements."""
    if not isinstance(value, torch.Tensor):
        return value
    count = value.untyped_storage().nbytes() // value.element_size()
    home = value.as_strided((count,), (1,), 0).clone().to(runtime.home(device))
    return home.as_strided(value.shape, value.stride(), value.storage_offset())


class EmptyIsNan(TorchFunctionMode):
    """What torch would leave uninitialised is NaN, or the largest integer: a forgotten store cannot hide."""

    makers = (torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted,
              torch.Tensor.new_empty, torch.Tensor.new_empty_strided)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in self.makers:
            if made.is_floating_point() or made.is_complex():
                made.fill_(float("nan"))
            elif made.dtype != torch.bool:
                made.fill_(torch.iinfo(made.dtype).max)
        return made
