"""Memories and views: values, bounds, what was never written, which bytes."""
from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from calling import BITS, Space, draw, layouts

from migrate.vnpu.memory import FLOATS, STORAGE, Fault, Memory, View, float32_to_bfloat16, rounded

DTYPES = [*STORAGE, "i1"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_put_is_got(dtype: str) -> None:
    for strides in layouts((5, 13), dtype):
        view = Space().room((5, 13), dtype, strides)
        values = draw(1, (5, 13), dtype if dtype != "index" else "i64")
        view.put(values)
        np.testing.assert_array_equal(view.get(), values)


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_poison_is_not_a_number(dtype: str) -> None:
    assert np.isnan(Space().room((4,), dtype).get()).all()


def test_bfloat16_rounds_as_torch_does() -> None:
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32) * 2.0**40
    ties = np.arange(2000, dtype=np.uint32) << 15 | 0x3F800000      # every other one halfway
    values = np.concatenate([values, ties.view(np.float32), [0, -0.0, np.inf, -np.inf, 3.4e38, 1e-45]])
    values = values.astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(float32_to_bfloat16(values), expected)
    assert np.isnan(rounded(np.array([np.nan], np.float32), "bf16")).all()
    assert rounded(1.003, "bf16") == 1.0   # a scalar


def test_integers_wrap() -> None:
    view = Space().room((3,), "i8")
    view.put(np.array([127, 128, -129]))
    assert view.get().tolist() == [127, -128, 127]
    view.put(300)
    assert view.get().tolist() == [44] * 3


def test_a_view_shows_the_storage() -> None:
    view = Space().hold([1.0, 2.0, 3.0], "f32")
    view.get()[1] = 5
    assert view.get().tolist() == [1, 5, 3]
    tensor = torch.zeros(4)
    data = np.frombuffer(memoryview(tensor.numpy()).cast("B"), np.uint8)
    View(Memory("x", 16, data=data), 0, 1, (2,), (2,), "f32").put(np.array([7.0, 8.0]))
    assert tensor.tolist() == [0, 7, 0, 8]


@pytest.mark.parametrize("view, covers", [
    (lambda m: View(m, 0, 0, (65,), (1,), "f32"), "0 to 260"),
    (lambda m: View(m, 32, -9, (1,), (1,), "f32"), "-4 to 0"),
    (lambda m: View(m, 0, 0, (3, 4), (128, 1), "bf16"), "0 to 520"),
    (lambda m: View(m, 240, 0, (17,), (8,), "i1"), "240 to 257"),
    (lambda m: View(m, 240, 0, (129,), (1,), "i1"), "240 to 257"),
])
def test_out_of_bounds(view, covers: str) -> None:
    outside = view(Memory("UB", 256))
    for action in (outside.get, lambda: outside.put(1), outside.unwritten, outside.mark_written, outside.clobber):
        with pytest.raises(Fault, match=f"out of bounds: UB.* covers bytes {covers} of 256") as fault:
            action()
        assert fault.value.kind == "out of bounds"


def test_a_view_of_nothing_is_never_out_of_bounds() -> None:
    for dtype in DTYPES:
        nothing = View(Memory("UB", 64), 1 << 20, 0, (0, 4), (4, 1), dtype)
        assert nothing.get().shape == (0, 4)
        nothing.put(1)
        nothing.mark_written()
        assert nothing.unwritten() == 0 and nothing.region().intervals() == []


def test_unknown_element_types() -> None:
    with pytest.raises(Fault, match="UB: no elements of type 'f8E4M3FN' are known"):
        View(Memory("UB", 64), 0, 0, (1,), (1,), "f8E4M3FN")
    with pytest.raises(Fault, match="no elements that lie in whole bytes"):
        View(Memory("UB", 64), 0, 0, (1,), (1,), "i1").raw()
    with pytest.raises(Fault, match="cannot be read as i16"):
        View(Memory("UB", 64), 0, 0, (1,), (1,), "f32").typed("i16")
    minus_one = View(Memory("UB", 64), 0, 0, (1,), (1,), "i8")
    assert minus_one.get() == -1 and minus_one.typed("ui8").get() == 255


def test_bits_beside_a_view_stay() -> None:
    """i1 is packed; an odd number of elements, and a beginning within a byte, leave the neighbours alone."""
    memory = Memory("UB", 64)
    for offset, n in ((0, 5), (3, 9), (8, 8), (1, 1)):
        for value in (0, 1):
            memory.data[:] = 0xA5
            before = np.unpackbits(memory.data, bitorder="little")
            View(memory, 2, offset, (n,), (1,), "i1").put(value)
            after = np.unpackbits(memory.data, bitorder="little")
            assert (after[16 + offset:16 + offset + n] == value).all()
            before[16 + offset:16 + offset + n] = after[16 + offset:16 + offset + n]
            assert (before == after).all()


def test_rows_of_bits_lie_as_strides_say() -> None:
    view = Space().room((3, 10), "i1", (256, 1))
    view.put(np.ones((3, 10)))
    rows = view.memory.data[view.base:view.base + 96].reshape(3, 32)
    assert (rows[:, 0] == 0xFF).all() and (rows[:, 1] & 3 == 3).all() and (rows[:, 2:] == 0xFF).all()
    view.put(np.zeros((3, 10)))
    assert (rows[:, 0] == 0).all() and (rows[:, 1] == 0xFC).all()   # six bits of poison are left
    assert view.region().intervals() == [(view.base + 32 * row, view.base + 32 * row + 2) for row in range(3)]


def test_never_written() -> None:
    view = Space().room((4, 6), "f32", (8, 1))
    assert view.unwritten() == 4 * 6 * 4
    view.reshaped(0, (2, 6), (8, 1)).mark_written()
    assert view.unwritten() == 2 * 6 * 4
    assert view.reshaped(8, (6,), (1,)).unwritten() == 0
    assert view.reshaped(6, (2,), (1,)).unwritten() == 8            # between two rows
    view.mark_written()
    assert view.unwritten() == 0
    view.reshaped(0, (1,), (1,)).clobber()
    assert view.unwritten() == 4 and np.isnan(view.get()[0, 0])
    view.memory.forget()
    assert view.unwritten() == 96 and np.isnan(view.get()).all()


def test_elements_that_nobody_wrote() -> None:
    view = Space().hold(np.zeros((3, 4)), "bf16", (8, 2))
    assert not view.missing().any()
    where = np.eye(3, 4, dtype=bool)
    view.clobber(where)
    assert (view.missing() == where).all() and (np.isnan(view.get()) == where).all() and view.unwritten() == 6
    view.memory.written[view.base + 4] = False      # half of an element
    where[0, 1] = True
    assert (view.missing() == where).all()


def test_bits_that_nobody_wrote() -> None:
    """A byte counts where nothing else is in it: the last one of 20 bits has four."""
    view = Space().hold(np.zeros(20), "i1")
    where = np.arange(20) >= 12
    view.clobber(where)
    lost = np.arange(20) >= 16
    assert (view.missing() == lost).all() and (view.get() == lost).all()
    bits = np.unpackbits(view.memory.data[view.base:view.base + 3], bitorder="little")
    assert (bits[20:] == 1).all()                   # as they were
    view.put(np.zeros(20))
    view.mark_written()
    view.reshaped(0, (16,), (1,)).clobber(np.arange(16) < 8)
    assert view.missing().tolist() == [k < 8 for k in range(20)]


def test_a_tensor_counts_as_written_until_it_is_forgotten() -> None:
    memory = Memory("x", 64, data=np.zeros(64, np.uint8), shared=True)
    view = View(memory, 0, 0, (16,), (1,), "f32")
    view.mark_written()
    assert view.unwritten() == 0 and memory.shared
    memory.forget()
    assert view.unwritten() == 64
    with pytest.raises(ValueError, match="x: expected 64 bytes as uint8, got float32 of shape"):
        Memory("x", 64, data=np.zeros(16, np.float32))


def test_without_poison() -> None:
    assert (View(Memory("UB", 64, poison=False), 0, 0, (16,), (1,), "f32").get() == 0).all()


@pytest.mark.parametrize("sizes, strides, intervals", [
    ((4, 8), (8, 1), [(64, 192)]),
    ((2, 3, 4), (12, 4, 1), [(64, 160)]),
    ((2, 4), (8, 1), [(64, 80), (96, 112)]),
    ((3,), (2,), [(64, 68), (72, 76), (80, 84)]),
    ((1, 3), (99, 1), [(64, 76)]),
    ((4, 2), (0, 1), [(64, 72)]),
    ((2, 3), (1, 2), [(64, 88)]),                       # columns first: touching runs are one
    ((), (), [(64, 68)]),
])
def test_which_bytes(sizes, strides, intervals) -> None:
    memory = Memory("UB", 256)
    region = View(memory, 64, 0, sizes, strides, "f32").region()
    assert region.intervals() == intervals
    assert region.start == intervals[0][0] and region.stop == intervals[-1][1]
    cells = np.zeros(256, bool)
    region.over(cells)[...] = True
    assert np.flatnonzero(cells).tolist() == [i for a, b in intervals for i in range(a, b)]
    for cell in (2, 4, 32):
        coarse = np.zeros(256 // cell, np.int32)
        region.over(coarse, cell)[...] = 1
        touched = {i // cell for a, b in intervals for i in range(a, b)}
        assert touched <= set(np.flatnonzero(coarse)) <= set(range(64 // cell, -(-region.stop // cell)))


def test_overlap() -> None:
    memory = Memory("UB", 1024)
    left, right = View(memory, 0, 0, (8, 4), (8, 1), "f32"), View(memory, 16, 0, (8, 4), (8, 1), "f32")
    assert not left.region().overlaps(right.region())              # two halves of rows
    assert left.region().overlaps(View(memory, 12, 0, (1,), (1,), "f32").region())
    assert not left.region().overlaps(View(memory, 16, 0, (1,), (1,), "f32").region())
    assert right.region().overlaps(right.region())
    assert not left.region().overlaps(View(Memory("L1", 1024), 0, 0, (8, 4), (8, 1), "f32").region())
    dense = View(memory, 0, 0, (4,), (1,), "f32").region()
    assert dense.overlaps(View(memory, 12, 0, (4,), (1,), "f32").region())
    assert not dense.overlaps(View(memory, 16, 0, (4,), (1,), "f32").region())


def test_checks_are_cheap() -> None:
    """A program of a vector kernel makes some hundred calls of three views and may take 4 ms: what a view costs, its
    checks included, must be small beside that. Ten times what it takes here."""
    view = Space().hold(np.zeros((64, 64)), "f32")
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(200):
            fresh = view.reshaped(0, view.sizes, view.strides)
            fresh.get()
            fresh.unwritten()
            fresh.mark_written()
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 150e-6


def test_sizes_of_elements() -> None:
    view = Space().room((3, 10), "i1", (256, 1))
    assert (view.count, view.bits, view.nbytes) == (30, 1, 4)
    assert Space().room((3, 10), "bf16").nbytes == 60
    assert BITS["bf16"] == 16
