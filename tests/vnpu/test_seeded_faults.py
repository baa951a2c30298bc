"""Faults planted in programs that the compiler made: what keeps pipes and cores in order is taken out, piece by piece,
and each time the checks notice."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import npu_kernels as kernels
import pytest
import torch

from migrate.vnpu import device
from migrate.vnpu.device import Arguments
from migrate.vnpu.machine import Machine, Options, Run
from migrate.vnpu.program import Program

FLAG = re.compile(r'(?:set|wait)_flag\(s\d+, ("\w+", "\w+", \d+)\)')
HANDSHAKE = re.compile(r'core\.(?:signal|must_wait)\(s\d+, (\d+), "\w+"\)')


def compiled(npu: device.Device, kernel: object) -> Program:
    (machine,) = (m for (fn, _), m in npu.machines.items() if fn == id(kernel))
    assert isinstance(machine, Machine)
    return machine.program


def without(program: Program, keep: Callable[[int, int, str], bool]) -> Program:
    """The program with only the lines that `keep(function, line, text)` wants; a wait loop is two lines."""
    functions = []
    for k, function in enumerate(program.functions):
        lines, drop_next = [], False
        for n, text in enumerate(function.source.splitlines()):
            if drop_next or not keep(k, n, text):
                drop_next = not drop_next and text.strip().startswith("while core.must_wait")
            else:
                lines.append(text)
        functions.append(replace(function, source="\n".join(lines) + "\n"))
    return replace(program, functions=functions)


def vector(npu: device.Device) -> tuple[Program, Callable[[Program], Run]]:
    x, y, out = torch.randn(80), torch.randn(80), torch.zeros(80)     # the last program fills up its tile
    kernels.scaled[(3,)](x, y, out, 80, 0.5, BLOCK=32)
    assert npu.take()[0].findings == []
    return compiled(npu, kernels.scaled), lambda program: Machine(program).launch(
        (3,), Arguments().of([x, y, out, 80, 0.5]), Options())


def mix(npu: device.Device) -> tuple[Program, Callable[[Program], Run]]:
    a, b, out = torch.randn(40, 48), torch.randn(48, 24), torch.zeros(40, 24)
    kernels.product[(3,)](a, b, out, 40, 24, 48, BM=16, BN=32, BK=16)
    assert npu.take()[0].errors == []
    return compiled(npu, kernels.product), lambda program: Machine(program).launch(
        (3,), Arguments().of([a, b, out, 40, 24, 48]), Options())


@pytest.mark.parametrize("kernel", [vector, mix])
def test_flags(npu: device.Device, kernel: Callable[..., tuple[Program, Callable[[Program], Run]]]) -> None:
    """Every pair of set_flag and wait_flag."""
    program, run = kernel(npu)
    pairs = {(k, found[1]) for k, function in enumerate(program.functions)
             for found in FLAG.finditer(function.source)}
    unnoticed = []
    for k, pair in sorted(pairs):
        def keep(function: int, line: int, text: str, k: int = k, pair: str = pair) -> bool:
            found = FLAG.search(text)
            return not (function == k and found and found[1] == pair)
        if not run(without(program, keep)).errors:
            unnoticed.append((program.functions[k].core, pair))
    assert len(pairs) >= 3 and unnoticed == []


@pytest.mark.parametrize("kernel", [vector, mix])
def test_barriers(npu: device.Device, kernel: Callable[..., tuple[Program, Callable[[Program], Run]]]) -> None:
    """Every barrier of the vector pipe."""
    program, run = kernel(npu)
    places = [(k, n) for k, function in enumerate(program.functions)
              for n, text in enumerate(function.source.splitlines()) if 'barrier("V")' in text]
    unnoticed = [place for place in places
                 if not run(without(program, partial(_is_not, place))).errors]
    assert len(places) >= 2 and unnoticed == []


def _is_not(place: tuple[int, int], function: int, line: int, text: str) -> bool:
    return (function, line) != place


def test_handshakes(npu: device.Device) -> None:
    """Every handshake between the cube core and the vector cores: without its signals, without its waits."""
    program, run = mix(npu)
    flags = {found[1] for function in program.functions for found in HANDSHAKE.finditer(function.source)}
    assert flags
    for flag in flags:
        for verb in ("signal", "must_wait"):
            def keep(function: int, line: int, text: str, flag: str = flag, verb: str = verb) -> bool:
                found = HANDSHAKE.search(text)
                return not (found and found[1] == flag and f"core.{verb}" in text)
            found = run(without(program, keep)).errors
            assert found, f"nobody noticed that {verb} {flag} was gone"
            assert {finding.kind for finding in found} & {"hang", "race", "flag", "never written"}


def test_a_wait_without_its_flag_hangs(npu: device.Device) -> None:
    program, run = vector(npu)
    found = run(without(program, lambda function, line, text: "set_flag(s" not in text)).errors
    assert found[0].kind == "hang" and "was not set" in found[0].message


def test_a_flag_without_its_wait_is_left_over(npu: device.Device) -> None:
    program, run = vector(npu)
    kinds = {finding.kind for finding in run(without(program, lambda k, n, text: "wait_flag(s" not in text)).errors}
    assert {"flag", "race"} <= kinds


def test_an_unknown_function_stops_with_its_name(npu: device.Device) -> None:
    program, run = vector(npu)
    functions = [replace(f, sites=[replace(s, name="vfrobnicate_1d_float") if s.name.startswith("vexp") else s
                                   for s in f.sites]) for f in program.functions]
    (finding,) = run(replace(program, functions=functions)).errors
    assert finding.kind == "unknown function" and "'vfrobnicate_1d_float'" in finding.message and finding.place


def test_an_unknown_operation_stops_with_its_name(npu: device.Device) -> None:
    program, run = vector(npu)
    source = program.functions[0].source.replace('barrier("V")', "core.unknown(s0)", 1)
    (finding,) = run(replace(program, functions=[replace(program.functions[0], source=source)])).errors
    assert finding.kind == "unknown operation" and finding.place
