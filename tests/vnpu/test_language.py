"""Functions of triton.language, one in a kernel: compiled, run with all checks on, compared with torch in float64.

The library's handlers are tested by themselves elsewhere, with arguments that the tests make up; here the compiler
makes the calls. float32 and int32 run always, the other types where slow tests do (`-m slow`).
"""
from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from migrate.vnpu import device

Meaning = Callable[..., torch.Tensor]
FLOATS, INTS = (torch.float32, torch.float16, torch.bfloat16), (torch.int32, torch.int16, torch.int8, torch.int64)
ROUNDING = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}     # relative, of the L2 norm
R, C = 16, 32
ALWAYS = {torch.float32, torch.int32}

# of a tile a, element by element
UNARY: dict[str, Meaning] = {
    "tl.exp(a)": torch.exp, "tl.exp2(a)": torch.exp2, "tl.sin(a)": torch.sin, "tl.cos(a)": torch.cos,
    "tl.abs(a)": torch.abs, "tl.sigmoid(a)": torch.sigmoid, "tl.floor(a)": torch.floor, "tl.ceil(a)": torch.ceil,
    "tl.erf(a)": torch.erf, "-a": torch.neg}
OF_POSITIVE: dict[str, Meaning] = {
    "tl.log(a)": torch.log, "tl.log2(a)": torch.log2, "tl.sqrt(a)": torch.sqrt, "tl.sqrt_rn(a)": torch.sqrt,
    "tl.rsqrt(a)": torch.rsqrt, "a / b": torch.div, "tl.fdiv(a, b)": torch.div, "tl.div_rn(a, b)": torch.div,
    "3 / a": lambda a: 3 / a}
BINARY: dict[str, Meaning] = {
    "a + b": torch.add, "a - b": torch.sub, "a * b": torch.mul, "tl.maximum(a, b)": torch.maximum,
    "tl.minimum(a, b)": torch.minimum, "a + 3": lambda a: a + 3, "a - 3": lambda a: a - 3, "3 - a": lambda a: 3 - a,
    "a * 3": lambda a: a * 3, "tl.maximum(a, 3)": lambda a: a.clamp(min=3),
    "tl.where(a < b, a, b)": lambda a, b: torch.where(a < b, a, b),
    "tl.where(a == b, a, 0)": lambda a, b: torch.where(a == b, a, 0),
    "tl.where(a >= 0, a, b)": lambda a, b: torch.where(a >= 0, a, b)}
OF_FLOATS: dict[str, Meaning] = {
    "a / 3": lambda a: a / 3, "tl.fma(a, b, a)": lambda a, b: a * b + a,
    "tl.clamp(a, -0.5, 0.5)": lambda a: a.clamp(-0.5, 0.5)}
OF_INTS: dict[str, Meaning] = {
    "~a": torch.bitwise_not, "a & b": torch.bitwise_and, "a | b": torch.bitwise_or, "a ^ b": torch.bitwise_xor,
    "a << 2": lambda a: a << 2, "a >> 1": lambda a: a >> 1}
OF_SMALL_POSITIVE: dict[str, Meaning] = {
    "a // b": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "a % b": torch.fmod,
    "a << b": torch.bitwise_left_shift, "a >> b": torch.bitwise_right_shift}
# of a tile a of R rows and C columns; r and c are its rows and columns
TILES: dict[str, Meaning] = {
    "tl.cumsum(a, 0)": lambda a: a.cumsum(0), "tl.cumsum(a, 1)": lambda a: a.cumsum(1),
    "tl.cumsum(a, 0, reverse=True)": lambda a: a.flip(0).cumsum(0).flip(0),
    "tl.cumsum(a, 1, reverse=True)": lambda a: a.flip(1).cumsum(1).flip(1),
    "tl.reshape(tl.trans(a), [R, C])": lambda a: a.T.reshape(R, C), "tl.flip(a, 1)": lambda a: a.flip(1),
    "tl.where(r[:, None] >= c[None, :], a, 0)": torch.tril,
    "a + tl.sum(a, 0)[None, :]": lambda a: a + a.sum(0), "a * tl.max(a, 1)[:, None]": lambda a: a * a.amax(1)[:, None],
    "tl.trans(tl.cumsum(tl.trans(a), 0))": lambda a: a.cumsum(1)}
FLOAT_TILES: dict[str, Meaning] = {
    "tl.gather(a, tl.broadcast_to((C - 1 - c)[None, :], [R, C]), 1)": lambda a: a.flip(1),
    "tl.gather(a, tl.broadcast_to((R - 1 - r)[:, None], [R, C]), 0)": lambda a: a.flip(0),
    "tl.sort(a)": lambda a: a.sort(1).values}
REDUCTIONS: dict[str, Meaning] = {
    "sum": torch.sum, "max": torch.amax, "min": torch.amin, "argmax": torch.argmax, "argmin": torch.argmin}
ATOMICS: dict[str, tuple[int, Meaning]] = {
    "add": (0, torch.sum), "max": (-50, torch.amax), "min": (50, torch.amin)}

ONE = """
@triton.jit
def {name}(x, y, out, B: tl.constexpr):
    at = tl.arange(0, B)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, {expression})
"""
TILE = """
@triton.jit
def {name}(x, out, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    at = r[:, None] * C + c[None, :]
    a = tl.load(x + at)
    tl.store(out + at, {expression})
"""
REDUCE = """
@triton.jit
def {name}(x, out, AXIS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    a = tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    tl.store(out + tl.arange(0, C if AXIS == 0 else R), tl.{expression}(a, AXIS))
"""
ATOMIC = """
@triton.jit
def {name}(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.atomic_{expression}(out + at, tl.load(x + tl.program_id(0) * B + at))
"""
OTHERS = """
@triton.jit
def cast(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def product(x, y, out, LEFT: tl.constexpr, RIGHT: tl.constexpr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    if LEFT:
        a = tl.trans(tl.load(x + k[:, None] * M + m[None, :]))
    else:
        a = tl.load(x + m[:, None] * K + k[None, :])
    if RIGHT:
        b = tl.trans(tl.load(y + n[:, None] * K + k[None, :]))
    else:
        b = tl.load(y + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(a, b))
"""


def names(prefix: str, *tables: dict[str, Any]) -> dict[str, str]:
    return {expression: f"{prefix}{k}" for k, expression in enumerate(itertools.chain(*tables))}


ONES = names("one", UNARY, OF_POSITIVE, BINARY, OF_FLOATS, OF_INTS, OF_SMALL_POSITIVE)
WHOLE = names("tile", TILES, FLOAT_TILES)
REDUCED, ADDED = names("reduce", REDUCTIONS), names("atomic", ATOMICS)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module with a kernel for each expression."""
    text = "import triton\nimport triton.language as tl\n" + OTHERS
    for form, expressions in ((ONE, ONES), (TILE, WHOLE), (REDUCE, REDUCED), (ATOMIC, ADDED)):
        text += "".join(form.format(name=name, expression=expression) for expression, name in expressions.items())
    file = tmp_path_factory.mktemp("language") / "language_kernels.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def each(dtypes: tuple[torch.dtype, ...], *tables: dict[str, Any]) -> list[Any]:
    found = []
    for expression, meaning in itertools.chain.from_iterable(table.items() for table in tables):
        for dtype in dtypes:
            marks = () if dtype in ALWAYS else pytest.mark.slow
            found.append(pytest.param(expression, meaning, dtype, id=f"{expression} {str(dtype)[6:]}", marks=marks))
    return found


def draw(dtype: torch.dtype, *sizes: int, positive: bool = False) -> torch.Tensor:
    """Without equal values along an axis where they are floats; integers whose products and sums fit."""
    if dtype.is_floating_point:
        x = torch.randn(sizes)
        return (x.abs() + 0.1 if positive else x).to(dtype)
    return torch.randint(1 if positive else -5, 3 if positive else 5, sizes).to(dtype)


def exact(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def agree(npu: device.Device, out: torch.Tensor, want: torch.Tensor) -> None:
    assert [str(finding) for run in npu.take() for finding in run.errors] == []
    if out.is_floating_point():
        assert float((out.double() - want).norm()) <= ROUNDING[out.dtype] * float(want.norm())
    else:
        assert torch.equal(out, want.to(out.dtype))


@pytest.mark.parametrize("expression, meaning, dtype", [
    *each(FLOATS, UNARY, OF_POSITIVE, BINARY, OF_FLOATS), *each(INTS, BINARY, OF_INTS, OF_SMALL_POSITIVE)])
def test_element_by_element(npu: device.Device, kernels: Any, expression: str, meaning: Meaning,
                            dtype: torch.dtype) -> None:
    positive = expression in OF_POSITIVE or expression in OF_SMALL_POSITIVE
    x, y, out = (draw(dtype, 64, positive=positive) for _ in range(3))
    getattr(kernels, ONES[expression])[(1,)](x, y, out, B=64)
    operands = (exact(x), exact(y)) if re.search(r"\bb\b", expression) else (exact(x),)
    agree(npu, out, meaning(*operands))


@pytest.mark.parametrize("expression, meaning, dtype", [
    *each((*FLOATS, torch.int32), TILES), *each(FLOATS, FLOAT_TILES)])
def test_tiles(npu: device.Device, kernels: Any, expression: str, meaning: Meaning, dtype: torch.dtype) -> None:
    x, out = draw(dtype, R, C), torch.zeros(R, C, dtype=dtype)
    getattr(kernels, WHOLE[expression])[(1,)](x, out, R=R, C=C)
    agree(npu, out, meaning(exact(x)))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("expression, meaning, dtype", each((*FLOATS, torch.int32, torch.int64), REDUCTIONS))
def test_reductions(npu: device.Device, kernels: Any, expression: str, meaning: Meaning, dtype: torch.dtype,
                    axis: int) -> None:
    x = draw(dtype, R, C) if dtype.is_floating_point else torch.randperm(R * C).reshape(R, C).to(dtype)
    out = torch.zeros(C if axis == 0 else R, dtype=torch.int32 if expression.startswith("arg") else dtype)
    getattr(kernels, REDUCED[expression])[(1,)](x, out, AXIS=axis, R=R, C=C)
    agree(npu, out, meaning(exact(x), axis))


@pytest.mark.parametrize("kind, meaning, dtype", each((*FLOATS, *INTS[:3]), ATOMICS))
def test_atomics(npu: device.Device, kernels: Any, kind: str, meaning: tuple[int, Meaning], dtype: torch.dtype) -> None:
    start, combined = meaning
    x, out = draw(dtype, 3, 64), torch.full((64,), start, dtype=dtype)
    getattr(kernels, ADDED[kind])[(3,)](x, out, B=64)
    agree(npu, out, combined(exact(x), 0))


CASTS = [(source, target) for source in (*FLOATS, *INTS, torch.bool) for target in (*FLOATS, *INTS)
         if source is not target]


@pytest.mark.parametrize("source, target", [
    pytest.param(*pair, id=f"{str(pair[0])[6:]} to {str(pair[1])[6:]}",
                 marks=() if set(pair) <= {*FLOATS, torch.int32, torch.bool} else pytest.mark.slow) for pair in CASTS])
def test_casts(npu: device.Device, kernels: Any, source: torch.dtype, target: torch.dtype) -> None:
    x = draw(torch.float32, 64).mul(5).to(source) if source is not torch.bool else torch.rand(64) > 0.5
    out = torch.zeros(64, dtype=target)
    kernels.cast[(1,)](x, out, B=64)
    agree(npu, out, exact(x.to(target)))


@pytest.mark.parametrize("left, right", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8], ids=lambda dtype: str(dtype)[6:])
def test_products(npu: device.Device, kernels: Any, dtype: torch.dtype, left: bool, right: bool) -> None:
    """Either factor as it lies, or transposed."""
    a, b = draw(dtype, 32, 64), draw(dtype, 64, 16)
    out = torch.zeros(32, 16, dtype=torch.int32 if dtype is torch.int8 else torch.float32)
    kernels.product[(1,)](a.T.contiguous() if left else a, b.T.contiguous() if right else b, out, LEFT=left,
                          RIGHT=right, M=32, K=64, N=16)
    agree(npu, out, a.double() @ b.double())
