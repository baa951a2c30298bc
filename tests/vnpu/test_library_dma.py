"""Copies between global memory and the core, block padding and atomics included."""
from __future__ import annotations

from math import prod

import numpy as np
import pytest
from calling import BITS, C_TYPES, Space, call, draw, exact, layouts, row_major

from migrate.vnpu.library import find
from migrate.vnpu.memory import FLOATS, Fault, Memory, View, rounded

DTYPES = ("f32", "f16", "bf16", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64")
SIZES = {1: (37,), 2: (5, 13), 3: (2, 3, 13)}
LOAD = [(f"load_gm_to_ubuf_{rank}d_{C_TYPES[dtype]}", rank, dtype.removeprefix("u"))
        for rank in SIZES for dtype in DTYPES]
STORE = [(f"store_ubuf_to_gm_{rank}d_{C_TYPES[dtype]}", rank, dtype.removeprefix("u"))
         for rank in SIZES for dtype in DTYPES]
LOAD_L1 = [(f"load_gm_to_cbuf_{rank}d_{C_TYPES[dtype]}", rank, dtype.removeprefix("u"))
           for rank in SIZES for dtype in DTYPES]
COVERED = [case[0] for case in LOAD + STORE + LOAD_L1]


def padded(sizes: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """Strides with which rows begin at blocks of 32 bytes."""
    block = 256 // BITS[dtype]
    return row_major((*sizes[:-1], -(-sizes[-1] // block) * block))


@pytest.mark.parametrize("name, rank, dtype", LOAD)
def test_load(name: str, rank: int, dtype: str) -> None:
    sizes, block = SIZES[rank], 256 // BITS[dtype]
    for strides in list(layouts(sizes, dtype))[:2]:
        for mode, value in ((0, 0), (2, 5), (2, -1)):
            tensor, core = Space("x", shared=True), Space()
            x, out = tensor.hold(draw(1, sizes, dtype), dtype, strides), core.room(sizes, dtype, padded(sizes, dtype))
            call(name, x, out, mode, value, 0)
            np.testing.assert_array_equal(out.raw(), x.raw())
            # to the end of the last block of each row
            rest = -sizes[-1] % block
            beyond = out.reshaped(out.offset + sizes[-1], (*sizes[:-1], rest), out.strides)
            np.testing.assert_array_equal(beyond.get(), np.full(beyond.sizes, value if mode == 2 else 0))
            assert beyond.unwritten() == 0
            after = out.reshaped(prod(sizes[:-1]) * (sizes[-1] + rest), (1,), (1,))
            assert after.unwritten() == after.nbytes


def test_padding_on_the_left() -> None:
    tensor, core = Space("x", shared=True), Space()
    x = tensor.hold(np.arange(1, 11).reshape(2, 5), "f32")
    whole = core.room((2, 16), "f32")
    out = whole.reshaped(3, (2, 5), (16, 1))
    call("load_gm_to_ubuf_2d_float", x, out, 2, 9.0, 3)
    np.testing.assert_array_equal(whole.get()[:, :8], np.pad(x.get(), ((0, 0), (3, 0)), constant_values=9))
    assert whole.reshaped(8, (2, 8), (16, 1)).unwritten() == 64   # whole blocks, but no more


def test_infinity_as_a_pad_value() -> None:
    tensor, core = Space("x", shared=True), Space()
    for dtype in sorted(FLOATS - {"f64"}):
        whole = core.room((16,), dtype)
        call(f"load_gm_to_ubuf_1d_{C_TYPES[dtype]}", tensor.hold([1.0, 2.0], dtype), whole.reshaped(0, (2,), (1,)), 2,
             float("-inf"), 0)
        assert whole.get()[:8].tolist() == [1, 2, *[-np.inf] * 6]


def test_elements_apart_are_rows_of_their_own() -> None:
    """A column into every eighth element: each brings a block."""
    tensor, core = Space("x", shared=True), Space()
    x, whole = tensor.hold(np.arange(4), "f32", (10,)), core.room((4, 8), "f32")
    call("load_gm_to_ubuf_1d_float", x, whole.reshaped(0, (4,), (8,)), 2, 7.0, 0)
    assert whole.get().tolist() == [[n, *[7.0] * 7] for n in range(4)]


def test_loads_that_cannot_be() -> None:
    tensor, core = Space("x", shared=True), Space()
    x, name = tensor.hold(np.zeros((2, 5)), "f32"), "load_gm_to_ubuf_2d_float"
    free = core.room((64,), "f32")
    with pytest.raises(Fault, match=r"begins at byte 68, which is no multiple of 32") as fault:
        find(name)(x, free.reshaped(1, (2, 5), (8, 1)), 0, 0, 0)
    assert fault.value.kind == "alignment"
    with pytest.raises(Fault, match="its rows do not begin at multiples of 32 bytes"):
        find(name)(x, free.reshaped(0, (2, 5), (5, 1)), 0, 0, 0)
    with pytest.raises(Fault, match="sizes differ"):
        find(name)(x, free.reshaped(0, (2, 4), (8, 1)), 0, 0, 0)
    with pytest.raises(Fault, match="pad mode 1 is not understood"):
        find(name)(x, free.reshaped(0, (2, 5), (8, 1)), 1, 0, 0)
    beyond = View(Memory("x", 64, shared=True), 0, 0, (17,), (1,), "f32")
    with pytest.raises(Fault, match="out of bounds: x"):
        find("load_gm_to_ubuf_1d_float")(beyond, core.room((17,), "f32"), 0, 0, 0).run()


def test_nothing_to_move() -> None:
    """A mask that leaves nothing: sizes of 0, addresses that mean nothing."""
    far = View(Memory("x", 64, shared=True), 0, 1 << 30, (0, 4), (4, 1), "f32")
    near = View(Memory("UB", 64), 4, 0, (0, 4), (4, 1), "f32")
    load, store = find("load_gm_to_ubuf_2d_float"), find("store_ubuf_to_gm_2d_float")
    for effect in (load(far, near, 0, 0, 0), store(near, far, 0)):
        effect.run()
        assert not effect.reads and not effect.writes


@pytest.mark.parametrize("name, rank, dtype", STORE)
def test_store(name: str, rank: int, dtype: str) -> None:
    for strides in layouts(SIZES[rank], dtype):
        tensor, core = Space("x", shared=True), Space()
        x, out = core.hold(draw(1, SIZES[rank], dtype), dtype), tensor.room(SIZES[rank], dtype, strides)
        call(name, x, out, 0)
        np.testing.assert_array_equal(out.raw(), x.raw())


@pytest.mark.parametrize("name, rank, dtype", STORE)
@pytest.mark.parametrize("kind, meaning", [(1, np.add), (2, np.maximum), (3, np.minimum)])
def test_atomic_stores(name: str, rank: int, dtype: str, kind: int, meaning) -> None:
    tensor, core = Space("x", shared=True), Space()
    x, out = core.hold(draw(1, SIZES[rank], dtype), dtype), tensor.hold(draw(2, SIZES[rank], dtype), dtype)
    before = exact(out.get()).copy()
    [effect] = call(name, x, out, kind)
    np.testing.assert_array_equal(out.get(), rounded(meaning(before, exact(x.get())), dtype))
    assert effect.atomic and out in effect.reads


def test_stores_that_are_not_understood() -> None:
    tensor, core = Space("x", shared=True), Space()
    x, out = core.hold([1.0], "f32"), tensor.hold([1.0], "f32")
    with pytest.raises(Fault, match="atomic kind 4 is not understood"):
        find("store_ubuf_to_gm_1d_float")(x, out, 4)
    with pytest.raises(Fault, match="sizes differ"):
        find("store_ubuf_to_gm_1d_float")(x, tensor.hold([1.0, 2.0], "f32"), 0)


@pytest.mark.parametrize("name, rank, dtype", LOAD_L1)
def test_load_into_l1(name: str, rank: int, dtype: str) -> None:
    sizes = SIZES[rank]
    for mode in (0, 2):          # which the library ignores
        tensor, l1 = Space("x", shared=True), Space("L1")
        x, out = tensor.hold(draw(1, sizes, dtype), dtype), l1.room(sizes, dtype, padded(sizes, dtype))
        [effect] = call(name, x, out, mode)
        np.testing.assert_array_equal(out.raw(), x.raw())
        # the rest of the last block of each row is not to be relied on
        [beyond] = effect.scratch
        assert beyond.sizes == (*sizes[:-1], -sizes[-1] % (256 // BITS[dtype]))
        assert (beyond.offset, beyond.strides) == (out.offset + sizes[-1], out.strides)


def test_loads_into_l1_that_cannot_be() -> None:
    tensor, l1 = Space("x", shared=True), Space("L1")
    x, name = tensor.hold(np.zeros((2, 5)), "f32"), "load_gm_to_cbuf_2d_float"
    with pytest.raises(Fault, match="its rows do not begin at multiples of 32 bytes"):
        find(name)(x, l1.room((2, 5), "f32"), 0)
    assert not find("load_gm_to_cbuf_1d_float")(tensor.hold(np.zeros(16), "f32"), l1.room((16,), "f32"), 0).scratch


@pytest.mark.parametrize("name, pipe", [("load_gm_to_ubuf_1d_float", "MTE2"), ("store_ubuf_to_gm_1d_float", "MTE3"),
                                        ("load_gm_to_cbuf_1d_float", "MTE2")])
def test_pipes(name: str, pipe: str) -> None:
    tensor, core = Space("x", shared=True), Space()
    x, y = tensor.hold(np.zeros(8), "f32"), core.hold(np.zeros(8), "f32")
    args = {"load_gm_to_ubuf_1d_float": (x, y, 0, 0, 0), "store_ubuf_to_gm_1d_float": (y, x, 0),
            "load_gm_to_cbuf_1d_float": (x, y, 0)}[name]
    assert find(name)(*args).pipe == pipe
