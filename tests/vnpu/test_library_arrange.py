"""Functions that place values: ranges, broadcasts, copies, transposes, interleaving, gathers, sorts."""
from __future__ import annotations

import numpy as np
import pytest
from calling import C_TYPES, Space, call, draw, layouts

from migrate.vnpu.memory import FLOATS, Fault, View, rounded

PLAIN = ("f32", "f16", "bf16", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64")
SOME = ("f32", "f16", "bf16", "i16", "i32", "ui16", "ui32")

ARANGE = [(f"arange_{rank}d_{C_TYPES[dtype]}", rank, dtype) for rank in (1, 2, 3)
          for dtype in ("f32", "f16", "i16", "i32", "i64")]
SCALAR = [(f"broadcast_scalar_{C_TYPES[dtype]}_to_{rank}d", rank, dtype) for rank in (1, 2) for dtype in (*PLAIN, "i1")]
AXES = [(f"broadcast_{axis}_axis_{how}_{rank}d_{C_TYPES[dtype]}", axis, how, rank, dtype)
        for axis, hows, ranks in (("first", ("align", "unalign", "unknown_align"), (2, 3)),
                                  ("middle", ("align",), (3,)), ("last", ("align", "unalign", "unknown_align"), (2,)))
        for how in hows for rank in ranks for dtype in (*PLAIN, "i1")]
BROADCAST = [(f"broadcast_1d_{C_TYPES[dtype]}", dtype) for dtype in (*PLAIN, "i1")]
COPY = [(f"copy_ubuf_to_ubuf_{rank}d_{C_TYPES[dtype]}", rank, dtype) for rank in (1, 2, 3) for dtype in (*PLAIN, "i1")]
TRANSPOSE = [(f"transpose_{rank}d_with_last_axis_{C_TYPES[dtype]}", rank, dtype) for rank in (2, 3) for dtype in PLAIN]
ROWS = [(f"transpose_3d_without_last_axis_{C_TYPES[dtype]}", dtype) for dtype in PLAIN]
OF_TWO = [(f"deinterleave_channel_{c}_from_2_channels_1d_{C_TYPES[dtype]}", c, dtype) for c in (0, 1) for dtype in SOME]
OF_N = [(f"deinterleave_channel_0_from_n_channels_{rank}d_{C_TYPES[dtype]}", rank, dtype) for rank in (1, 2)
        for dtype in SOME]
INTERLEAVE = [(f"interleave_1d_{C_TYPES[dtype]}", dtype) for dtype in SOME]
FLIP = [(f"flip_1d_{C_TYPES[dtype]}", dtype) for dtype in PLAIN]
GATHER = [(f"gather_1d_{C_TYPES[dtype]}", dtype) for dtype in SOME]
SORT = [(f"sort_{index}1d_{C_TYPES[dtype]}", index, dtype) for index in ("", "with_index_") for dtype in ("f32", "f16")]
COVERED = [case[0] for cases in (ARANGE, SCALAR, AXES, BROADCAST, COPY, TRANSPOSE, ROWS, OF_TWO, OF_N, INTERLEAVE, FLIP,
                                 GATHER, SORT) for case in cases]


def plain(dtype: str) -> str:
    """Memrefs are signless."""
    return dtype.removeprefix("u")


def storage(view: View) -> np.ndarray:
    """Bit patterns: what is moved must not be rounded."""
    return view.get() if view.dtype == "i1" else view.raw().view(f"u{view.bits // 8}")


def any_bits(space: Space, sizes: tuple[int, ...], dtype: str, strides=None, seed: int = 1) -> View:
    """A view of arbitrary bits, NaNs with a payload among them."""
    view = space.room(sizes, plain(dtype), strides)
    if dtype == "i1":
        view.put(draw(seed, sizes, "i1"))
    else:
        storage(view)[...] = draw(seed, sizes, f"ui{view.bits}")
    view.mark_written()
    return view


@pytest.mark.parametrize("name, rank, dtype", ARANGE)
def test_arange(name: str, rank: int, dtype: str) -> None:
    sizes, steps = ((7,), (3, 5), (2, 3, 4))[rank - 1], (2, 10, 100)[:rank]
    for strides in layouts(sizes, dtype):
        out = Space().room(sizes, dtype, strides)
        call(name, out, -3, *steps)
        expected = -3 + sum(grid * step for grid, step in zip(np.indices(sizes), steps, strict=True))
        np.testing.assert_array_equal(out.get(), expected)


@pytest.mark.parametrize("name, rank, dtype", SCALAR)
def test_broadcast_of_a_scalar(name: str, rank: int, dtype: str) -> None:
    sizes, value = ((37,), (3, 37))[rank - 1], (0.3 if dtype in FLOATS else True if dtype == "i1" else 100)
    for strides in layouts(sizes, plain(dtype)):
        out = Space().room(sizes, plain(dtype), strides)
        call(name, value, out)
        np.testing.assert_array_equal(out.get(), np.full(sizes, rounded(value, dtype)))
    if dtype in FLOATS:
        call(name, float("-inf"), out)
        assert (out.get() == -np.inf).all()


@pytest.mark.parametrize("name, axis, how, rank, dtype", AXES)
def test_broadcast_along_an_axis(name: str, axis: str, how: str, rank: int, dtype: str) -> None:
    sizes = (6, 16) if rank == 2 else (4, 3, 16)
    one = list(sizes)
    one[{"first": 0, "middle": 1, "last": -1}[axis]] = 1
    for strides in layouts(sizes, plain(dtype)):
        space = Space()
        x, out = any_bits(space, tuple(one), dtype), space.room(sizes, plain(dtype), strides)
        spare = [space.hold(np.zeros(64), "f32")] if axis == "last" or how != "align" else []
        call(name, x, out, *spare)
        np.testing.assert_array_equal(storage(out), np.broadcast_to(storage(x), sizes))


@pytest.mark.parametrize("name, dtype", BROADCAST)
def test_broadcast_of_one(name: str, dtype: str) -> None:
    space = Space()
    x, out = any_bits(space, (1,), dtype), space.room((19,), plain(dtype))
    call(name, x, out)
    np.testing.assert_array_equal(storage(out), np.broadcast_to(storage(x), (19,)))


@pytest.mark.parametrize("name, rank, dtype", COPY)
def test_copy(name: str, rank: int, dtype: str) -> None:
    sizes = ((40,), (5, 16), (2, 3, 16))[rank - 1]
    for strides in layouts(sizes, plain(dtype)):
        space = Space()
        x, out = any_bits(space, sizes, dtype, strides), space.room(sizes, plain(dtype))
        call(name, x, out, 0, 0)
        np.testing.assert_array_equal(storage(out), storage(x))
        with pytest.raises(Fault, match="pad mode 2 is not understood"):
            call(name, x, out, 2, 0)
        with pytest.raises(Fault, match="sizes differ"):
            call(name, x, space.room((3,) * rank, plain(dtype)), 0, 0)


@pytest.mark.parametrize("name, rank, dtype", TRANSPOSE)
def test_transpose(name: str, rank: int, dtype: str) -> None:
    sizes = (6, 16) if rank == 2 else (2, 5, 16)
    for strides in layouts(sizes, plain(dtype)):
        space = Space()
        x, out = any_bits(space, sizes, dtype, strides), space.room(sizes[::-1], plain(dtype))
        spare = [space.hold(np.zeros(16), "i64")] if dtype in ("i64", "ui64") else []
        call(name, x, out, *spare)
        for at in np.ndindex(sizes):
            assert storage(out)[at[::-1]] == storage(x)[at]


@pytest.mark.parametrize("name, dtype", ROWS)
def test_transpose_of_rows(name: str, dtype: str) -> None:
    space = Space()
    x, out = any_bits(space, (2, 5, 16), dtype), space.room((5, 2, 16), plain(dtype))
    call(name, x, out)
    for a, b in np.ndindex(2, 5):
        np.testing.assert_array_equal(storage(out)[b, a], storage(x)[a, b])


def test_a_transpose_cuts_padding_off_but_makes_up_nothing() -> None:
    space = Space()
    x, out = space.hold(np.arange(16 * 8).reshape(16, 8), "f32"), space.room((5, 11), "f32")
    call("transpose_2d_with_last_axis_float", x, out)
    np.testing.assert_array_equal(out.get(), x.get().T[:5, :11])
    with pytest.raises(Fault, match="does not fill"):
        call("transpose_2d_with_last_axis_float", x, space.room((9, 16), "f32"))


@pytest.mark.parametrize("name, channel, dtype", OF_TWO)
def test_one_of_two_channels(name: str, channel: int, dtype: str) -> None:
    space = Space()
    x, out = any_bits(space, (64,), dtype), space.room((32,), plain(dtype))
    call(name, x, out)
    np.testing.assert_array_equal(storage(out), storage(x)[channel::2])


@pytest.mark.parametrize("name, rank, dtype", OF_N)
def test_the_first_of_n_channels(name: str, rank: int, dtype: str) -> None:
    """The source is a view of the wanted channel, with the number of channels as its stride; or all of them."""
    space = Space()
    sizes = (20,) if rank == 1 else (3, 20)
    x, out = any_bits(space, sizes, dtype, (8,) if rank == 1 else (256, 8)), space.room(sizes, plain(dtype))
    call(name, x, out)
    np.testing.assert_array_equal(storage(out), storage(x))
    x = any_bits(space, (*sizes[:-1], 60), dtype)
    call(name, x, out)
    np.testing.assert_array_equal(storage(out), storage(x)[..., ::3])
    with pytest.raises(Fault, match="no whole number of channels"):
        call(name, any_bits(space, (*sizes[:-1], 50), dtype), out)


@pytest.mark.parametrize("name, dtype", INTERLEAVE)
def test_interleave(name: str, dtype: str) -> None:
    space = Space()
    x, y = any_bits(space, (32,), dtype), any_bits(space, (32,), dtype, seed=2)
    out, spare = space.room((64,), plain(dtype)), space.hold(np.zeros(320), "i16")
    call(name, x, y, out, spare)
    np.testing.assert_array_equal(storage(out)[0::2], storage(x))
    np.testing.assert_array_equal(storage(out)[1::2], storage(y))


@pytest.mark.parametrize("name, dtype", FLIP)
def test_flip(name: str, dtype: str) -> None:
    space = Space()
    x, out = any_bits(space, (33,), dtype), space.room((33,), plain(dtype))
    call(name, x, out)
    assert storage(out).tolist() == storage(x).tolist()[::-1]


@pytest.mark.parametrize("name, dtype", GATHER)
def test_gather(name: str, dtype: str) -> None:
    space = Space()
    x, out = any_bits(space, (50,), dtype, (2,)), space.room((30,), plain(dtype))
    at, spare = space.hold(np.arange(30) * 7 % 50, "i32"), space.hold(np.zeros(30), "i32")
    expected = [storage(x)[i * 7 % 50] for i in range(30)]
    call(name, x, at, out, spare)
    assert storage(out).tolist() == expected
    for wrong in (50, -1):
        with pytest.raises(Fault, match=r"gather takes elements .* of UB"):
            call(name, x, space.hold([0, wrong], "i32"), space.room((2,), plain(dtype)), space.none("i32"))


@pytest.mark.parametrize("name, index, dtype", SORT)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(name: str, index: str, dtype: str, descending: bool) -> None:
    space = Space()
    values = np.round(draw(1, (40,), dtype))        # some are equal
    x, out, spare = space.hold(values, dtype), space.room((40,), dtype), space.hold(np.zeros(160), dtype)
    at = [space.room((40,), "i32")] if index else []
    call(name, x, out, *at, spare, descending)
    expected = sorted(range(40), key=lambda i: (-values[i] if descending else values[i], i))
    np.testing.assert_array_equal(out.get(), values[expected])
    if at:
        assert at[0].get().tolist() == expected


def test_no_channels_of_nothing() -> None:
    """What a mask leaves may be no rows at all."""
    space = Space()
    for sizes in ((0, 32), (4, 0)):
        nothing = View(space.memory, 0, 0, sizes, (32, 1), "f32")
        [effect] = call("deinterleave_channel_0_from_n_channels_2d_float", nothing, nothing)
        assert not effect.reads and not effect.writes
