"""Programs of one launch against each other, where a program's own access comes after, and hides, another program's."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from migrate.vnpu import device
from migrate.vnpu.machine import Run

B = 32


def launched(npu: device.Device, kernel: Any, programs: int, *arguments: Any) -> Run:
    kernel[(programs,)](*arguments, B=B)
    (run,) = npu.take()
    return run


def overlap(run: Run, message: str, text: str) -> None:
    """The one error is an overlap with that message, in the line of this file that begins with `text`."""
    (error,) = run.errors
    (line,) = [k for k, found in enumerate(Path(__file__).read_text().splitlines(), 1)
               if found.strip().startswith(text)]
    assert error.kind == "overlap" and message in error.message and error.place == f"{__file__}:{line}"


@triton.jit
def adds_the_next(x, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at) + tl.load(x + at + 1)
    tl.store(out + at, value)  # in place or not


def test_a_write_of_what_another_and_itself_have_read(npu: device.Device) -> None:
    """A block in place, the first element of which the program before has read."""
    x = torch.randn(3 * B + 1)
    overlap(launched(npu, adds_the_next, 3, x, x), "program 1 writes bytes of a float32 tensor [97] that program 0 "
            "has read", "tl.store(out + at, value)  # in place or not")


def test_reading_what_others_read_is_right(npu: device.Device) -> None:
    x, out = torch.randn(3 * B + 1), torch.zeros(3 * B)
    run = launched(npu, adds_the_next, 3, x, out)
    assert run.findings == [] and torch.equal(out, x[:-1] + x[1:])


@triton.jit
def last_doubles(x, out, end, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + at)
    tl.store(out + tl.program_id(0) * B + at, value)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(end + at, value * 2)  # by the last


def test_a_write_by_the_last_of_what_all_read(npu: device.Device) -> None:
    x, out = torch.randn(B), torch.zeros(3 * B)
    overlap(launched(npu, last_doubles, 3, x, out, x), "program 2 writes bytes of a float32 tensor [32] that program 0 "
            "has read", "tl.store(end + at, value * 2)  # by the last")
    end = torch.zeros(B)
    assert launched(npu, last_doubles, 3, x, out, end).findings == [] and bool(end.any())


@triton.jit
def last_squares(x, out, end, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    value = tl.load(x + at)
    square = tl.dot(value, value)
    tl.store(out + tl.program_id(0) * B * B + at, square)
    if tl.program_id(0) == 1:
        tl.store(end + at, square)  # from the vector cores


def test_a_write_by_the_last_of_what_a_cube_core_reads(npu: device.Device) -> None:
    x, out = torch.randn(B, B), torch.zeros(2, B, B)
    run = launched(npu, last_squares, 2, x, out, x)
    assert any(error.kind == "overlap" and "program 1 writes" in error.message and "program 0 has read" in error.message
               for error in run.errors), run.findings
    assert launched(npu, last_squares, 2, x, out, torch.zeros(B, B)).errors == []


@triton.jit
def first_clears(x, out, clears, B: tl.constexpr):
    at = tl.arange(0, B)
    if tl.program_id(0) == clears:
        tl.store(out + at, tl.zeros([B], tl.float32))  # once
    tl.atomic_add(out + at, tl.load(x + tl.program_id(0) * B + at))  # by all


def test_one_clears_what_all_add_to(npu: device.Device) -> None:
    x = torch.randn(3, B)
    overlap(launched(npu, first_clears, 3, x, torch.full((B,), 7.0), 0), "program 1 writes bytes of a float32 tensor "
            "[32] that program 0 has written", "tl.atomic_add(out + at, tl.load(x + tl.program_id(0) * B + at))  # by")
    overlap(launched(npu, first_clears, 3, x, torch.full((B,), 7.0), 2), "program 2 writes bytes of a float32 tensor "
            "[32] that program 1 has written", "tl.store(out + at, tl.zeros([B], tl.float32))  # once")
    out = torch.zeros(B)
    assert launched(npu, first_clears, 3, x, out, -1).findings == []
    assert torch.allclose(out, x.sum(0), atol=1e-6)


@triton.jit
def last_reads_the_sum(x, out, end, reads, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.atomic_add(out + at, tl.load(x + tl.program_id(0) * B + at))
    if tl.program_id(0) == reads:
        total = tl.load(out + at)
        tl.store(end + at, total)


def test_one_reads_what_all_add_to(npu: device.Device) -> None:
    x, end = torch.randn(3, B), torch.zeros(B)
    overlap(launched(npu, last_reads_the_sum, 3, x, torch.zeros(B), end, 2), "program 2 reads bytes of a float32 "
            "tensor [32] that program 0 has written", "total = tl.load(out + at)")
    assert launched(npu, last_reads_the_sum, 3, x, torch.zeros(B), end, -1).findings == []
    one = torch.zeros(B)      # a program alone has no others
    assert launched(npu, last_reads_the_sum, 1, x, one, end, 0).findings == [] and torch.equal(end, one)


@triton.jit
def adds_and_largest(x, out, largest, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + tl.program_id(0) * B + at)
    tl.atomic_add(out + at, value)
    tl.atomic_max(largest + at, value)


def test_atomic_updates_of_two_kinds(npu: device.Device) -> None:
    """Sums and maxima in one place depend on who comes first."""
    x, out = torch.rand(3, B) + 1, torch.zeros(B)
    run = launched(npu, adds_and_largest, 3, x, out, out)
    assert {error.kind for error in run.errors} == {"overlap"}
    out, largest = torch.zeros(B), torch.zeros(B)
    assert launched(npu, adds_and_largest, 3, x, out, largest).findings == []
    assert torch.equal(largest, x.amax(0))


@triton.jit
def same_for_all(x, out, end, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + at))
    tl.store(end + tl.program_id(0) * B + at, tl.load(out + at) + 1.0)


def test_reading_back_what_all_write_alike_is_no_error(npu: device.Device) -> None:
    x, end = torch.randn(B), torch.zeros(3, B)
    run = launched(npu, same_for_all, 3, x, torch.zeros(B), end)
    assert run.errors == [] and {finding.kind for finding in run.findings} <= {"same bytes"}
    assert torch.equal(end, (x + 1).expand(3, B))


@pytest.mark.parametrize("programs", [1, 3])
def test_reading_twice_before_writing_in_place_is_right(npu: device.Device, programs: int) -> None:
    """Each its own block: what a program reads itself is no other's."""
    x = torch.randn(programs * B)
    want = x * 3
    run = launched(npu, twice_in_place, programs, x)
    assert run.findings == [] and torch.allclose(x, want)


@triton.jit
def twice_in_place(x, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at) * 2)
    tl.store(x + at, tl.load(x + at) * 1.5)
