"""Kernels lose their strides only where that is sound, and give the same numbers on the same inputs.

The soundness cases are programs of ours; each says what must stay, and why.
"""
from __future__ import annotations

import re
import textwrap

import pytest

from migrate import engine
from migrate.project import TextProject
from migrate.source import Source
from rules.host.contiguous_inputs import ContiguousInputs
from rules.memory.drop_strides import DropStrides

HEAD = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, stride_x, stride_y, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    {body}
    tl.store(y + row * n + at, value, mask=at < n)


def host(x, {given}):
    rows, n = x.shape
    y = torch.empty(rows, n)
    {host}
    kernel[(rows,)](x, y, n, {stride}, y.stride(0), {flag}, BLOCK=64)
    return y
"""
LOAD = "value = tl.load(x + row * stride_x + at, mask=at < n)"


def port(stride: str, *, host: str = "pass", given: str = "z=None", body: str = LOAD,
         flag: str = "True") -> tuple[str, str]:
    text = HEAD.format(stride=stride, host=textwrap.indent(host, "    ").strip(), given=given, body=body, flag=flag)
    outcome = engine.apply(Source.parse(text), [ContiguousInputs, DropStrides])
    return outcome.final.text, "\n".join(f.message for f in outcome.open)


def kept(text: str) -> bool:
    return re.search(r"def kernel\([^)]*\bstride_x\b", text) is not None


def test_a_plain_row_stride_goes() -> None:
    text, left = port("x.stride(0)")
    assert not kept(text)
    assert "x + row * n + at" in text
    assert left == ""


@pytest.mark.parametrize(("stride", "how", "why"), [
    ("x.stride(0) if z is not None else 0", {}, "a broadcast"),
    ("0 if z is None else x.stride(0)", {}, "a broadcast"),
    ("x.stride(1)", {"host": "x = x.transpose(0, 1)"}, "view that is transposed"),
    ("x.stride(0)", {"host": "x = x.expand(rows, n)"}, "view that is expanded"),
    ("x.stride(0)", {"host": "tied = x.stride(0) == 0"}, "compares strides of `x` with 0"),
    ("w.stride(0)", {"given": "w"}, "not an argument"),
    ("step", {"given": "step=3"}, "not a stride of a tensor"),
    ("x.stride(z)", {"given": "z=0"}, "not a stride of a tensor"),
    ("s", {"host": "if rows > 2:\n    s = x.stride(0)\nelse:\n    s = 7 * n"}, "not a stride of a tensor"),
])
def test_what_must_stay(stride: str, how: dict[str, str], why: str) -> None:
    text, left = port(stride, **how)
    assert "stride_x: tl.constexpr" in text
    assert why in left


def test_a_stride_of_an_absent_tensor_goes_when_a_flag_guards_it() -> None:
    body = f"value = at * 0.0\n    if FLAG:\n        {LOAD}"
    text, left = port("x.stride(0) if z is not None else 0", body=body, flag="z is not None")
    assert not kept(text)
    assert left == ""


def test_a_flag_with_another_condition_does_not_guard() -> None:
    body = f"value = at * 0.0\n    if FLAG:\n        {LOAD}"
    text, left = port("x.stride(0) if z is not None else 0", body=body, flag="n > 3")
    assert kept(text)
    assert "a broadcast" in left


def test_an_input_that_is_not_proven_contiguous_keeps_its_strides_without_asc003() -> None:
    text = HEAD.format(stride="x.stride(0)", host="pass", given="z=None", body=LOAD, flag="True")
    outcome = engine.apply(Source.parse(text), [DropStrides])
    assert kept(outcome.final.text)
    assert "not proven contiguous" in outcome.open[0].message


def test_a_starred_tuple_goes_whole_or_stays_whole() -> None:
    text = HEAD.format(stride="*(x.stride(0), 3)", host="pass", given="z=None", body=LOAD, flag="True")
    text = text.replace("stride_x, stride_y,", "stride_x, step, stride_y,")
    outcome = engine.apply(Source.parse(text), [ContiguousInputs, DropStrides])
    assert kept(outcome.final.text)
    assert "*(x.stride(0), 3)" in outcome.final.text
    assert "stride_y" not in outcome.final.text.replace("y.stride", "")


def test_two_launches_must_agree() -> None:
    text = HEAD.format(stride="x.stride(0)", host="pass", given="z=None", body=LOAD, flag="True") + textwrap.dedent("""

        def host_of_columns(x):
            rows, cols, n = x.shape
            y = torch.empty(rows, n)
            kernel[(rows,)](x, y, n, x.stride(1), y.stride(0), True, BLOCK=64)
            return y
        """)
    outcome = engine.apply(Source.parse(text), [ContiguousInputs, DropStrides])
    assert kept(outcome.final.text)
    assert any("different rank" in f.message for f in outcome.open)


def test_an_ignore_comment_keeps_one_kernel_and_no_other() -> None:
    text = HEAD.format(stride="x.stride(0)", host="pass", given="z=None", body=LOAD, flag="True")
    second = text[text.index("@triton.jit"):].replace("kernel", "other").replace("host", "more")
    comment = "# migrate: ignore[drop-strides] for a test\n"
    both = (text + second).replace("@triton.jit\ndef kernel", comment + "@triton.jit\ndef kernel")
    outcome = engine.apply(Source.parse(both), [ContiguousInputs, DropStrides])
    assert re.search(r"def kernel\([^)]*stride_x, stride_y", outcome.final.text)
    assert re.search(r"def other\(x, y, n, FLAG", outcome.final.text)


def test_a_kernel_that_another_module_launches_keeps_its_strides() -> None:
    text = HEAD.format(stride="x.stride(0)", host="pass", given="z=None", body=LOAD, flag="True")
    user = "from pkg.one import kernel\n\n\ndef more(x, y):\n    kernel[(1,)](x, y, 3, 4, 5, True, BLOCK=64)\n"
    project = TextProject({"pkg.one": text, "pkg.two": user})
    outcome = engine.apply(Source.parse(text, module="pkg.one", project=project), [ContiguousInputs, DropStrides])
    assert kept(outcome.final.text)
    assert "another module" in outcome.open[0].message


BORROWED = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, z, n, stride_x, stride_y, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride_x + at, mask=at < n)
    tl.store(y + row * stride_y + at, value, mask=at < n)
    tl.store(z + row * stride_x + at, value, mask=at < n)


def host(x):
    rows, n = x.shape
    y = torch.empty(rows, n)
    z = torch.empty_like(x)
    assert z.stride() == x.stride()
    kernel[(rows,)](x, y, z, n, x.stride(0), y.stride(0), BLOCK=64)
    return y, z
"""


def test_a_tensor_addressed_with_the_strides_of_another_is_made_contiguous_too() -> None:
    outcome = engine.apply(Source.parse(BORROWED), [ContiguousInputs, DropStrides])
    text = outcome.final.text
    assert "z = torch.empty_like(x, memory_format=torch.contiguous_format)" in text
    assert "assert z.stride()" not in text
    assert "tl.store(z + row * n + at" in text


def test_a_borrowed_stride_stays_where_the_borrower_is_not_contiguous() -> None:
    text = BORROWED.replace("x.shape\n", "x.shape\n    x = x.contiguous()\n").replace(
        "torch.empty_like(x)", "torch.empty(n, rows).t()")
    outcome = engine.apply(Source.parse(text), [ContiguousInputs, DropStrides])
    assert re.search(r"def kernel\([^)]*stride_x: tl.constexpr", outcome.final.text)
    assert any("addressed with it too" in f.message for f in outcome.open)
