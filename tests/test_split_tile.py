"""split-tile: what stops it, names, lengths, and random kernels that must compute the same in parts."""
from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from migrate import engine
from migrate.asked import Asked, Setting
from migrate.source import Source
from rules.tiles.fit_line import fit
from rules.tiles.split_tile import SplitTile

HEAD = "import triton\nimport triton.language as tl\n\n\n"
KERNEL = HEAD + '''@triton.jit
def work(x, y, z, i, F: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, K: tl.constexpr):
    o_k = tl.arange(0, K)
    o_n = tl.arange(0, N)
    p = x + o_k[:, None] * N + o_n[None, :]
    b = tl.load(p)
    c = tl.load(y + o_k)
'''
LAST = "\ntl.store(y + o_k, c)\ntl.store(p, b)\n"
SET = {"K": 128, "N": 16}


def port(text: str, *words: str, **values: Any) -> engine.Outcome:
    asked = Asked(tuple(Setting(name, value) for name, value in values.items()), words)
    outcome = engine.apply(Source.parse(text, asked=asked), [SplitTile])
    ast.parse(outcome.final.text)
    return outcome


def lines(body: str, *words: str, **values: Any) -> list[str]:
    """What a body between KERNEL and two stores of its values becomes; there must be no finding."""
    text = KERNEL + textwrap.indent(textwrap.dedent(body).rstrip() + LAST, "    ")
    outcome = port(text, *(words or ("K",)), **(values or SET))
    assert not outcome.open, outcome.open
    got = [line.strip() for line in outcome.final.text.partition("c2 = tl.load(y + o_k2)\n")[2].splitlines()]
    assert got[-4:] == ["tl.store(y + o_k1, c1)", "tl.store(y + o_k2, c2)", "tl.store(p1, b1)", "tl.store(p2, b2)"]
    return got[:-4]


STOPS = [
    ("d = tl.cumsum(b, axis=0)", "cumsum"), ("d = tl.cumsum(c)", "cumsum"), ("d = tl.cumprod(b, 0)", "cumprod"),
    ("d = tl.associative_scan(b, 0, add)", "associative_scan"), ("d = tl.flip(c)", "flip"), ("d = tl.sort(c)", "sort"),
    ("d = tl.view(b, N, K)", "view"),
    ("d = tl.flip(tl.trans(b), 1)", "flip"), ("d = tl.reshape(b, [K * N])", "reshape"),
    ("d = b.reshape(N, K)", "reshape"), ("d = tl.ravel(b)", "ravel"), ("d = tl.gather(c, o_n, 0)", "gather"),
    ("d = tl.argmax(b, axis=0)", "argmax"), ("d = tl.max(b, axis=0, return_indices=True)", "not known"),
    ("d = tl.reduce(b, 0, add)", "reduce"), ("d = tl.softmax(c)", "not known"), ("d = tl.histogram(c, 4)", "not known"),
    ("d = tl.cat(c, c, can_reorder=True)", "not known"), ("d = tl.join(c, c)", "not known"),
    ("d = mystery(b)", "not known"), ("d = tl.sum(b, axis=i)", "not known"),
    ("tl.device_print('c', c)", "device_print"),
    ("d = [v for v in (b, c)]", "not understood"), ("d = (lambda v: v)(c)", "not understood"),
    ("d = b.shape[0]", "`.shape`"), ("d = c.numel", "`.numel`"), ("d = c[0]", "indexed"), ("d = c[0:64]", "indexed"),
    ("d = tl.load(z + tl.arange(0, BT)) + c", "not known to be equal"),
    ("d = tl.zeros([BT], tl.float32) * c", "not known to be equal"),
    ("tl.store(x + o_k + 1, tl.load(x + o_k))", "stored over"),
    ("d = tl.atomic_add(y + o_k, c) + 1.0", "cannot be doubled"),
    ("if c == 0:\n    i = 1", "cannot be in parts"), ("d = e = c * 2", "only a name"),
    ("d, e = tl.broadcast(b, c[:, None])", "not known"),
    ("d = mystery(i) + c", "meets `mystery(i)`, whose shape is not known"),
    ("shape = (K, N)\nd = tl.zeros(shape, tl.float32) + b", "shape is not known"),
    ("d = tl.arange(i, K) + o_k", "shape is not known"),
    ("if F:\n    d = b\nelse:\n    d = tl.trans(b)\ne = d + 1", "another shape"),
    ("d = b if F else c", "another shape"), ("d = (b, c)\ne = d[0]", "tuple"),
    ("L: tl.constexpr = 128\nif F:\n    L: tl.constexpr = 64\nd = tl.arange(0, L) + o_k", "another"),
    ("d = 0.0\nfor _ in range(2):\n    d += c", "another shape"),
    ("tl.store(z + i, c)", "does not fit the address"), ("d = tl.multiple_of(o_k, 128)", "multiple_of"),
    ("tl.static_assert(c.dtype == tl.float32, c)", "static_assert"),
    ("d = tl.where(*(c > 0, c, c))", "star"), ("with scope(c):\n    pass", "not known"),
]


@pytest.mark.parametrize(("body", "says"), STOPS)
def test_what_cannot_be_shown_stops_it(body: str, says: str) -> None:
    text = KERNEL + textwrap.indent(body, "    ") + "\n    tl.store(p, b)\n"
    outcome = port(text, "K", **SET)
    assert outcome.final.text == text                   # whole, not in pieces
    assert len(outcome.open) == 1
    finding = outcome.open[0]
    assert says in finding.message
    first = KERNEL.count("\n") + 1
    assert first <= finding.line < first + body.count("\n") + 1, finding


LOADING = HEAD + '''@triton.jit
def helper(p, o):
    return tl.load(p + o)


@triton.jit
def deeper(p, o):
    return helper(p, o) * 2


@triton.jit
def bump(p):
    return tl.atomic_add(p, 1.0)


@triton.jit
def work(x, y, z, T, K: tl.constexpr):
    o = tl.arange(0, K)
    q = o % 64
    b = tl.load(z + o)
    p = x + o[:, None] * K + o[None, :]
    a = tl.load(z + o[:, None] * K + o[None, :])
    t = tl.make_block_ptr(x, (K, K), (K, 1), (0, 0), (K, K), (1, 0))
    u = y
    HERE
'''


@pytest.mark.parametrize("line", [
    "tl.store(x + o, tl.load(x + o) / tl.sum(tl.load(x + o), 0))",
    "tl.store(p, tl.trans(tl.load(p)))", "tl.store(t, tl.trans(tl.load(t)))", "tl.store(p, tl.load(p).T)",
    "tl.store(p, tl.permute(tl.load(p), 1, 0))", "tl.store(p, tl.dot(a, tl.load(p)))",
    "tl.store(y + o, tl.load(x + o) + tl.sum(tl.load(y + o), 0))",
    "tl.store(y + o, tl.load(x + o) + tl.load(y + o).sum(0))",
    "tl.store(pointer=y + o, value=b + tl.sum(tl.load(pointer=y + o), 0))",
    "tl.store(y + o + 1, helper(y, o))", "tl.store(y + o + 1, deeper(y, o))", "tl.store(y + o, helper(y, o))",
    "tl.store(y + o + 1, b + deeper(u, o))",
    "tl.store(y + o + 1, b, mask=helper(y, o) > 0)", "tl.store(y + o + 1, b, mask=tl.load(y + o) > 0)",
    "tl.atomic_xchg(y + o + 1, helper(y, o))", "tl.atomic_add(y + o + 1, helper(y, o))",
    "tl.atomic_add(y + o + 1, b, mask=deeper(y, o) > 0)", "tl.atomic_add(y + o + 1, tl.load(y + o))",
    "tl.store(y + q, tl.load(y + q) + b)", "tl.store(y + o // 2, tl.load(y + o // 2) + b)",
    "tl.store(y + o * T, tl.load(y + o * T) + b)",
    "tl.store(T + y + o + 1, tl.load(y + o))", "tl.store(u + o + 1, tl.load(y + o))",
    "b += bump(x)", "b += tl.atomic_add(x, 1.0)", "b = tl.full([K], bump(x), tl.float32)",
    "while tl.sum(b * bump(x)) > 0: pass"])
def test_a_statement_that_stores_what_it_loads_is_left(line: str) -> None:
    text = LOADING.replace("HERE", line)
    outcome = port(text, "K", K=128)
    assert outcome.final.text == text
    assert [text.splitlines()[f.line - 1].strip() for f in outcome.open] == [line], outcome.open


@pytest.mark.parametrize("line", [
    "tl.store(y + o, tl.load(x + o) / tl.sum(tl.load(x + o), 0))", "tl.store(y + o, helper(x, o))",
    "tl.store(y + o, deeper(x, o + T * 2), mask=helper(z, o) > 0)", "tl.atomic_add(y + o, helper(x, o))",
    "tl.store(y + T * K + o, (tl.load(y + T * K + o) * b).to(tl.float32) + tl.exp(b))",
    "tl.store(p, tl.trans(tl.load(z + o[:, None] * K + o[None, :])))", "tl.store(t, tl.trans(a))",
    "tl.atomic_add(y, tl.sum(tl.load(y + o), 0))"])
def test_a_statement_that_loads_something_else_is_split(line: str) -> None:
    outcome = port(LOADING.replace("HERE", line), "K", K=128)
    assert not outcome.open, outcome.open
    assert line not in outcome.final.text


def test_the_other_axis_may_be_scanned_and_sorted() -> None:
    assert lines("d = tl.cumsum(b, axis=1)\ntl.store(p, d)") == [
        "d1 = tl.cumsum(b1, axis=1)", "d2 = tl.cumsum(b2, axis=1)", "tl.store(p1, d1)", "tl.store(p2, d2)"]
    assert lines("tl.store(p, tl.sort(b, 1))") == ["tl.store(p1, tl.sort(b1, 1))", "tl.store(p2, tl.sort(b2, 1))"]
    assert lines("tl.store(y + o_k, tl.argmax(b, 1))")[1] == "tl.store(y + o_k2, tl.argmax(b2, 1))"


@pytest.mark.parametrize(("body", "expected"), [
    ("i += tl.sum(c)", ["i += tl.sum(c1)", "i += tl.sum(c2)"]),
    ("i = tl.sum(b, axis=None) * 2", ["i = (tl.sum(b1, axis=None) + tl.sum(b2, axis=None)) * 2"]),
    ("i = tl.min(c)", ["i = tl.minimum(tl.min(c1), tl.min(c2))"]),
    ("d = c.max(0) - tl.max(b, 0, keep_dims=True)",
     ["d = tl.maximum(c1.max(0), c2.max(0)) "
      "- tl.maximum(tl.max(b1, 0, keep_dims=True), tl.max(b2, 0, keep_dims=True))"]),
    ("d = tl.zeros([N, N], tl.float32)\ne = tl.dot(tl.trans(b), b, d, 'ieee')",
     ["d = tl.zeros([N, N], tl.float32)", "e = tl.dot(tl.trans(b1), b1, d, 'ieee')",
      "e += tl.dot(tl.trans(b2), b2, None, 'ieee')"]),
    ("d = tl.zeros([N, N], tl.float32)\nd = tl.dot(b.T, b, acc=d)",
     ["d = tl.zeros([N, N], tl.float32)", "d = tl.dot(b1.T, b1, acc=d) + tl.dot(b2.T, b2)"]),
    ("if tl.max(c) > 0:\n    i = 1", ["if tl.maximum(tl.max(c1), tl.max(c2)) > 0:", "i = 1"]),
    ("while tl.sum(c) > i:\n    i += 1", ["while tl.sum(c1) + tl.sum(c2) > i:", "i += 1"]),
    ("for j in range(tl.sum(c)):\n    i += j", ["for j in range(tl.sum(c1) + tl.sum(c2)):", "i += j"]),
    ("d = mystery(i) + tl.sum(c)", ["d = mystery(i) + (tl.sum(c1) + tl.sum(c2))"]),
    ("d = mystery(tl.sum(c), (i, tl.max(c)))",
     ["d = mystery(tl.sum(c1) + tl.sum(c2), (i, tl.maximum(tl.max(c1), tl.max(c2))))"]),
    ("d = tl.full([N], tl.sum(c), tl.float32)", ["d = tl.full([N], tl.sum(c1) + tl.sum(c2), tl.float32)"]),
    ("d = tl.cumsum(tl.sum(b, 0), 0)", ["d = tl.cumsum(tl.sum(b1, 0) + tl.sum(b2, 0), 0)"]),
    ("for j in range(2):\n    i = tl.sum(c) + q\n    q = o_n if F else i",
     ["for j in range(2):", "i = tl.sum(c1) + tl.sum(c2) + q", "q = o_n if F else i"]),
    ("tl.atomic_add(z, tl.sum(c))", ["tl.atomic_add(z, tl.sum(c1) + tl.sum(c2))"]),
    ("tl.atomic_add(y + o_k, c)", ["tl.atomic_add(y + o_k1, c1)", "tl.atomic_add(y + o_k2, c2)"]),
    ("tl.store(y + o_k, c.to(y.dtype.element_ty), mask=o_k < i)",
     ["tl.store(y + o_k1, c1.to(y.dtype.element_ty), mask=o_k1 < i)",
      "tl.store(y + o_k2, c2.to(y.dtype.element_ty), mask=o_k2 < i)"]),
    ("d = tl.load(z + o_n).to(b.dtype)", ["d = tl.load(z + o_n).to(b1.dtype)"]),
    ("tl.store(y + i * K + tl.arange(0, K), c)",
     ["tl.store(y + i * K + tl.arange(0, 64), c1)", "tl.store(y + i * K + 64 + tl.arange(0, 64), c2)"]),
    ("tl.store(y + (o_k - tl.arange(0, K)), c)",
     ["tl.store(y + (o_k1 - tl.arange(0, 64)), c1)", "tl.store(y + (o_k2 - (64 + tl.arange(0, 64))), c2)"]),
    ("tl.store(p, tl.broadcast_to(c[:, None], [K, N]))",
     ["tl.store(p1, tl.broadcast_to(c1[:, None], [64, N]))", "tl.store(p2, tl.broadcast_to(c2[:, None], [64, N]))"]),
    ("tl.store(p, tl.expand_dims(c, 1) + tl.full((K, 1), i, tl.float32))",
     ["tl.store(p1, tl.expand_dims(c1, 1) + tl.full((64, 1), i, tl.float32))",
      "tl.store(p2, tl.expand_dims(c2, 1) + tl.full((64, 1), i, tl.float32))"]),
    ("if F: c = c * 2; tl.store(y + o_k, c)",
     ["if F: c1 = c1 * 2; c2 = c2 * 2; tl.store(y + o_k1, c1); tl.store(y + o_k2, c2)"]),
    ("c = c + 1; i = 3; tl.store(y + o_k, c)",
     ["c1 = c1 + 1", "c2 = c2 + 1", "i = 3", "tl.store(y + o_k1, c1)", "tl.store(y + o_k2, c2)"]),
    ("d = 1.0\nd = d * c\ntl.store(y + o_k, d)",
     ["d = 1.0", "d1 = d * c1", "d2 = d * c2", "tl.store(y + o_k1, d1)", "tl.store(y + o_k2, d2)"]),
    ("d = i\nd *= c\ntl.store(y + o_k, d)",
     ["d = i", "d1, d2 = d * c1, d * c2", "tl.store(y + o_k1, d1)", "tl.store(y + o_k2, d2)"]),
    ("d, i = c, tl.sum(c)\ntl.store(y + o_k, d)",
     ["d1, d2, i = c1, c2, tl.sum(c1) + tl.sum(c2)", "tl.store(y + o_k1, d1)", "tl.store(y + o_k2, d2)"]),
    ("a = tl.where(o_k[:, None] <= o_k[None, :], c[None, :], 0.0)\na = a + tl.trans(a)\n"
     "tl.store(y + o_k, tl.sum(a, 1))",
     ["a11 = tl.where(o_k1[:, None] <= o_k1[None, :], c1[None, :], 0.0)",
      "a12 = tl.where(o_k1[:, None] <= o_k2[None, :], c2[None, :], 0.0)",
      "a21 = tl.where(o_k2[:, None] <= o_k1[None, :], c1[None, :], 0.0)",
      "a22 = tl.where(o_k2[:, None] <= o_k2[None, :], c2[None, :], 0.0)",
      "a11, a12, a21, a22 = a11 + tl.trans(a11), a12 + tl.trans(a21), a21 + tl.trans(a12), a22 + tl.trans(a22)",
      "tl.store(y + o_k1, tl.sum(a11, 1) + tl.sum(a12, 1))", "tl.store(y + o_k2, tl.sum(a21, 1) + tl.sum(a22, 1))"]),
    ("b -= tl.dot(tl.zeros([K, K], tl.float32), b)",
     ["b1, b2 = (",
      "b1 - (tl.dot(tl.zeros([64, 64], tl.float32), b1) + tl.dot(tl.zeros([64, 64], tl.float32), b2)),",
      "b2 - (tl.dot(tl.zeros([64, 64], tl.float32), b1) + tl.dot(tl.zeros([64, 64], tl.float32), b2)),",
      ")"]),
])
def test_text(body: str, expected: list[str]) -> None:
    assert lines(body) == expected


def test_comments_stay_where_they_are_once() -> None:
    got = lines("""
        # about d
        d = c * 2  # [K]

        # about the store
        tl.store(y + o_k, d)
        """)
    assert got == ["", "# about d", "d1 = c1 * 2  # [K]", "d2 = c2 * 2", "", "# about the store",
                   "tl.store(y + o_k1, d1)", "tl.store(y + o_k2, d2)"]


def test_parts_that_nothing_reads_are_left_out() -> None:
    """Of the matrix only the two blocks on the diagonal are read."""
    text = HEAD + textwrap.dedent("""
        @triton.jit
        def work(x, K: tl.constexpr):
            o_k = tl.arange(0, K)
            spare = o_k * 2
            tl.store(x + o_k, o_k)
        """)
    assert "spare" not in port(text, "K", K=128).final.text


def test_names_that_are_taken_are_not_taken_again() -> None:
    got = lines("e1 = i\nb_h1 = c * 2\nb_h12 = 3\ne = c\ntl.store(y + o_k, b_h1 + e + e1)")
    assert got == ["e1 = i", "b_h1_1 = c1 * 2", "b_h1_2 = c2 * 2", "b_h12 = 3", "e_1 = c1", "e_2 = c2",
                   "tl.store(y + o_k1, b_h1_1 + e_1 + e1)", "tl.store(y + o_k2, b_h1_2 + e_2 + e1)"]


@pytest.mark.parametrize("values", [{"K": 64}, {"K": 32}, {"K": 100}, {"K": 96}, {"K": True}, {}])
def test_lengths_that_are_not_split(values: dict[str, Any]) -> None:
    text = KERNEL + "    tl.store(p, b)\n"
    outcome = port(text, "K", **values)
    assert outcome.final.text == text
    assert len(outcome.open) == 1
    message = outcome.open[0].message
    assert "--set K=128" in message if values.get("K", True) is True else str(values["K"]) in message


@pytest.mark.parametrize(("length", "parts"), [(128, 2), (192, 3), (256, 4), (640, 10)])
def test_parts(length: int, parts: int) -> None:
    text = HEAD + textwrap.dedent("""
        @triton.jit
        def work(x, y, rows, K: tl.constexpr):
            p_x = tl.make_block_ptr(base=x, shape=[rows, K], strides=[K, 1], offsets=[0, rows + 1],
                                    block_shape=[16, K], order=[1, 0])
            b_x = tl.load(p_x, boundary_check=[0, 1])
            tl.store(y + tl.arange(0, 16), tl.sum(b_x, axis=1))
        """)
    got = port(text, "K", K=length).final.text
    assert got.count("tl.make_block_ptr") == got.count("tl.load") == got.count("tl.sum") == parts
    assert got.count("block_shape=[16, 64]") == parts
    assert "offsets=[0, rows + 1]" in got and f"offsets=[0, rows + 1 + {64 * (parts - 1)}]" in got
    assert f"static_assert(K == {length})" in got


@pytest.mark.parametrize(("defines", "word", "asserts"), [
    ("", "K", True), ("    K: tl.constexpr = 128\n", "K", False), ("    BK: tl.constexpr = K\n", "BK", True),
    ("    BK: tl.constexpr = K\n", "K", True), ("    BK: tl.constexpr = K // 2\n", "BK", True), ("", "128", False)])
def test_ways_to_name_a_length(defines: str, word: str, asserts: bool) -> None:
    name = "BK" if "BK" in defines else word
    param = "" if "K: tl.constexpr = 128" in defines or word == "128" else ", K: tl.constexpr"
    text = f"{HEAD}@triton.jit\ndef work(x{param}):\n{defines}    at = tl.arange(0, {name})\n    tl.store(x + at, at)\n"
    outcome = port(text, word, K=256 if "//" in defines else 128)
    assert not outcome.open
    assert "at2 = 64 + tl.arange(0, 64)" in outcome.final.text
    assert ("static_assert(K == " in outcome.final.text) == asserts
    assert port(outcome.final.text, word, K=256 if "//" in defines else 128).final.text == outcome.final.text


def test_a_default_is_a_value_and_is_insisted_on() -> None:
    text = HEAD + "@triton.jit\ndef work(x, K: tl.constexpr = 128):\n    tl.store(x + tl.arange(0, K), 1.0)\n"
    got = port(text, "K")
    assert "tl.static_assert(K == 128)" in got.final.text
    assert "tl.store(x + 64 + tl.arange(0, 64), 1.0)" in got.final.text


def test_two_axes_that_are_asked_for() -> None:
    text = HEAD + textwrap.dedent("""
        @triton.jit
        def work(x, y, K: tl.constexpr, V: tl.constexpr):
            '''Says what it does.'''
            p = tl.arange(0, K)[:, None] * V + tl.arange(0, V)[None, :]
            tl.store(y + p, tl.load(x + p))
        """)
    got = port(text, "K", "V", K=128, V=128).final.text
    assert got.count("tl.store") == 4 and "p22 = (64 + tl.arange(0, 64))[:, None] * V + (64 + tl.arange" in got
    assert got.index("Says what") < got.index("static_assert(K == 128)") < got.index("static_assert(V == 128)")
    only = port(text, "K", K=128, V=128).final.text             # the other one is as long, but is not meant
    assert only.count("tl.store") == 2 and "static_assert(V" not in only


def test_each_kernel_on_its_own() -> None:
    """One cannot be split and one has another K; the third is, and a fourth knows no K."""
    body = "    at = tl.arange(0, K)\n    tl.store(x + at, {})\n"
    text = HEAD + "".join(f"@triton.jit\ndef {name}(x, {param}: tl.constexpr):\n{body.format(value)}\n\n".replace(
        "(0, K)", f"(0, {param})") for name, param, value in (
            ("scans", "K", "tl.cumsum(at, 0)"), ("short", "K", "at"), ("long", "K", "at"), ("other", "N", "at")))
    outcome = engine.apply(Source.parse(text, asked=Asked(
        (Setting("K", 128), Setting("K", 32, "short")), ("K",))), [SplitTile])
    assert [f.message.partition(":")[0] for f in outcome.open] == ["K stays whole", "K is 32"]
    assert outcome.final.text.count("at2 =") == 1
    assert outcome.final.text.partition("def long")[0] == text.partition("def long")[0]
    assert outcome.final.text.partition("def other")[2] == text.partition("def other")[2]


@pytest.mark.parametrize("word", ["Q", "512"])
def test_a_length_that_does_not_exist_is_said(word: str) -> None:
    outcome = port(KERNEL, word, **SET)
    assert outcome.final.text == KERNEL
    assert [word in f.message for f in outcome.open] == [True]


@pytest.mark.parametrize("word", ["NOSUCH", "o_k", "i", "0", "512", "9999999999"])
def test_a_length_that_no_kernel_has_is_an_error_before_anything_is_written(word: str, tmp_path: Path) -> None:
    done = command(tmp_path, "--set", "K=128", "--split", f"K,{word}")
    assert done.returncode == 2, done.stderr
    assert f"--split {word}: no kernel of " in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("word", "value", "says"), [
    ("K", "128", ""), ("128", "128", ""), ("F", "128", "no axis of this kernel is F long; it has 128, N"),
    ("K", "True", "`--split K`: True is no integer"), ("K", "128.0", "`--split K`: 128.0 is no integer")])
def test_the_command_says_what_it_did(word: str, value: str, says: str, tmp_path: Path) -> None:
    done = command(tmp_path, "--set", f"K={value}", "--split", word)
    assert done.returncode == 0, done.stderr
    got = (tmp_path / "out" / "kernel.py").read_text()
    assert ("o_k2 = 64 + tl.arange(0, 64)" in got) == (not says)
    assert says in " ".join((done.stdout + done.stderr).split())
    if not says:                                        # the port is ported again
        (tmp_path / "again").mkdir()
        again = command(tmp_path / "again", "--set", f"K={value}", "--split", word, text=got)
        assert again.returncode == 0, again.stderr


def command(folder: Path, *words: str, text: str = KERNEL + LAST.replace("\n", "\n    ").rstrip() + "\n",
            ) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.py").write_text(text)
    return subprocess.run([sys.executable, "-m", "migrate", "port", str(folder / "kernel.py"), "-o",
                           str(folder / "out"), *words], capture_output=True, text=True, timeout=120)


def test_lengths_that_have_no_name_are_not_listed() -> None:
    text = KERNEL + "    tl.store(z + tl.arange(0, i), 1.0)\n    tl.store(z + tl.arange(16, K), 1.0)\n"
    outcome = port(text, "F", N=16)
    assert [f.message for f in outcome.open] == ["`--split F`: no axis of this kernel is F long; it has K, N"]


def test_a_constant_that_is_no_axis_is_said() -> None:
    outcome = port(KERNEL, "F", **SET)
    assert [f.message for f in outcome.open] == ["`--split F`: no axis of this kernel is F long; it has K, N"]


def test_an_ignore_comment_keeps_the_kernel() -> None:
    text = KERNEL.replace("@triton.jit", "# migrate: ignore[split-tile] on purpose\n@triton.jit") + LAST[1:]
    text = text.replace("\ntl.", "\n    tl.")
    outcome = port(text, "K", **SET)
    assert outcome.final.text == text and not outcome.open


HELPERS = HEAD + '''@triton.jit
def soft(v, w):
    u = tl.where(v > 20.0, v, tl.log(1.0 + tl.exp(v)))
    return u * w


@triton.jit
def total(v):
    return tl.sum(v, axis=0)


@triton.jit
def ramp(v, L: tl.constexpr):
    return v + tl.arange(0, L)


@triton.jit
def save(p, v):
    tl.store(p, v)


@triton.jit
def both(v):
    return v, v * 2


@triton.jit
def place(width, more=None):
    i = tl.program_id(0)
    if more is None:
        return i % width, i // width
    else:
        return i % width, i // width % more, i // width // more


@triton.jit
def work(x, y, K: tl.constexpr, N: tl.constexpr):
    o_k = tl.arange(0, K)
    c = tl.load(x + o_k)
    HERE
    tl.store(y + o_k, c)
'''


@pytest.mark.parametrize(("line", "says"), [
    ("c = total(c) + c", "summed over inside a helper"), ("c = ramp(c, K)", "made inside a helper"),
    ("save(y + o_k, c)", "stores"), ("c, d = both(c)", "result is not understood"),
    ("c = soft(c[:, None] + c[None, :], 2.0)", "does not fit")])
def test_helpers_that_stop_it(line: str, says: str) -> None:
    text = HELPERS.replace("HERE", line)
    outcome = port(text, "K", K=128, N=16)
    assert outcome.final.text == text
    assert [says in f.message for f in outcome.open] == [True], outcome.open
    if says != "does not fit":
        assert text.splitlines()[outcome.open[0].line - 1].strip() == line


def test_a_helper_that_works_on_each_element_is_called_on_each_part() -> None:
    got = port(HELPERS.replace("HERE", "c = soft(c, 0.5)"), "K", K=128)
    assert not got.open
    assert "    c1 = soft(c1, 0.5)\n    c2 = soft(c2, 0.5)\n" in got.final.text


def test_a_helper_without_an_argument_takes_the_path_for_none() -> None:
    got = port(HELPERS.replace("HERE", "i, j = place(4)\n    c = c + i * N + j"), "K", K=128)
    assert not got.open
    assert "    i, j = place(4)\n    c1 = c1 + i * N + j\n    c2 = c2 + i * N + j\n" in got.final.text
    assert port(HELPERS.replace("HERE", "i, j = place(4, 2)\n    c = c + i"), "K", K=128).open


def test_a_value_reused_for_another_axis_is_another_value() -> None:
    got = lines("""
        for _ in range(i):
            q = y + o_k
            c += tl.load(q)
            q = z + o_n
            i += tl.sum(tl.load(q))
        tl.store(y + o_k, c)
        """)
    assert got[1:] == ["for _ in range(i):", "q1 = y + o_k1", "q2 = y + o_k2", "c1 += tl.load(q1)", "c2 += tl.load(q2)",
                       "q = z + o_n", "i += tl.sum(tl.load(q))", "tl.store(y + o_k1, c1)", "tl.store(y + o_k2, c2)"]


def test_long_lines_are_broken() -> None:
    got = fit("acc = tl.dot(first_operand, second_operand) + tl.dot(third_operand, fourth_operand)", 60, "\n")
    assert got == ("acc = (\n    tl.dot(first_operand, second_operand)\n"
                   "    + tl.dot(third_operand, fourth_operand)\n)")
    got = fit('tl.store(pointer + offsets, tl.where(mask, value, other), mask=mask, text="(,")', 60, "\n")
    assert got == ('tl.store(\n    pointer + offsets, tl.where(mask, value, other),\n    mask=mask, text="(,"\n)')
    assert fit("short = 1", 60, "\n") == "short = 1"
    assert fit("x = 'a' # long comments are left to their author " + "-" * 60, 60, "\n").count("\n") == 0


# Random kernels

BLOCK = {"K": "K", "N": "16"}
POINTERS = {"KN": "o_k[:, None] * 16 + o_n[None, :]", "NK": "o_n[:, None] * K + o_k[None, :]",
            "KK": "o_k[:, None] * K + o_k[None, :]", "NN": "o_n[:, None] * 16 + o_n[None, :]", "K": "o_k", "N": "o_n"}
UNARY = ["tl.abs({0})", "-{0}", "{0} * 0.5", "tl.exp(-tl.abs({0}))", "tl.where({0} > 0, {0}, 0.1 * {0})",
         "{0}.to(tl.float32) + 0.25", "tl.zeros_like({0}) + 1.5", "tl.minimum({0}, 1.0)",
         "({0} - 0.5 if FLAG else {0})"]
BINARY = ["{0} + {1}", "{0} - {1}", "{0} * {1} * 0.5", "tl.maximum({0}, {1})", "tl.where({0} < {1}, {0}, {1})"]


class Program:
    """A kernel that is being written: its lines, and the shape of each name."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.shapes: dict[str, str] = {}
        self.exact = True

    def pick(self, *shapes: str) -> str:
        return str(self.draw(st.sampled_from(sorted(n for n, s in self.shapes.items() if s in shapes))))

    def expression(self, shape: str) -> str:
        """A value of this shape, made of one or two of those that exist."""
        kinds = ["unary", "binary"]
        if len(shape) == 2:
            kinds += ["trans", "dot", "outer"]
        if len(shape) == 1:
            kinds += ["reduce"]
        kind = self.draw(st.sampled_from(kinds))
        if kind == "unary":
            return str(self.draw(st.sampled_from(UNARY))).format(self.pick(shape))
        if kind == "binary":
            return str(self.draw(st.sampled_from(BINARY))).format(self.pick(shape), self.pick(shape))
        if kind == "trans":
            return f"tl.trans({self.pick(shape[::-1])})"
        if kind == "outer":
            return f"{self.pick(shape[0])}[:, None] * {self.pick(shape[1])}[None, :] * 0.5"
        other = self.draw(st.sampled_from("KN"))
        if kind == "dot":
            self.exact = False
            a, b = self.pick(shape[0] + other), self.pick(other + shape[1])
            return f"tl.dot({a}, {b}, input_precision='ieee') * 0.05"
        function = str(self.draw(st.sampled_from(["tl.sum({}, axis={}) * 0.1", "tl.max({}, axis={})",
                                                  "tl.min({}, axis={})"])))
        self.exact &= "sum" not in function
        axis = self.draw(st.integers(0, 1))
        return function.format(self.pick(other + shape if axis == 0 else shape + other), axis)

    def change(self, indent: str) -> None:
        """Gives a name another value of its shape."""
        name = self.pick(*POINTERS)
        shape = self.shapes[name]
        if len(shape) == 2 and self.draw(st.integers(0, 4)) == 0:
            self.exact = False
            other = self.draw(st.sampled_from("KN"))
            sign = self.draw(st.sampled_from("+-"))
            self.lines.append(f"{indent}{name} *= 0.5")
            self.lines.append(f"{indent}{name} {sign}= tl.dot({self.pick(shape[0] + other)} * 0.05, "
                              f"{self.pick(other + shape[1])}, input_precision='ieee')")
            return
        sign = self.draw(st.sampled_from(["=", "=", "+=", "-="]))
        self.lines.append(f"{indent}{name} {sign} {self.expression(shape)}")

    def block(self, shape: str, name: str) -> str:
        length = {"K": "K", "N": "16"}
        sizes = ", ".join(length[c] for c in shape)
        self.lines.append(f"    p_{name} = tl.make_block_ptr({name}, ({sizes}), ({length[shape[1]]}, 1), (0, 0), "
                          f"({sizes}), (1, 0))")
        return f"p_{name}"


@st.composite
def programs(draw: Callable[[Any], Any]) -> tuple[str, bool, dict[str, Any]]:
    """A kernel's text, whether both versions must agree to the bit, and its inputs."""
    way = draw(st.sampled_from(["parameter", "constant", "number"]))
    length = draw(st.sampled_from([128, 128, 128, 256]))
    program = Program(draw)
    inputs: dict[str, Any] = {}
    size = {"K": str(length), "N": "16"}
    for shape in POINTERS:
        program.shapes["b_" + shape.lower()] = shape
    for number in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from(sorted(POINTERS)))
        program.lines.append(f"    v{number}_ = {program.expression(shape)}")
        program.shapes[f"v{number}_"] = shape
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["plain", "plain", "loop", "branch"]))
        if kind == "plain":
            program.change("    ")
            continue
        program.lines.append("    for _ in range(2):" if kind == "loop" else "    if FLAG:")
        for _ in range(draw(st.integers(1, 3))):
            program.change("        ")
    body, program.lines = program.lines, []
    text = "\n".join(body)
    program.shapes = {n: s for n, s in program.shapes.items() if re.search(rf"\b{n}\b", text)}
    for b, shape in program.shapes.items():
        name, offsets = "x_" + shape.lower(), POINTERS[shape]
        if b.startswith("v"):
            continue
        inputs[name] = f"float32[{', '.join(size[c] for c in shape)}]"
        if len(shape) == 2 and draw(st.booleans()):
            pointer = program.block(shape, name)
            program.lines.append(f"    {b} = tl.load({pointer}, boundary_check=(0, 1))")
        else:
            mask = ", mask=o_n[:, None] < 11, other=0.5" if shape == "NK" and draw(st.booleans()) else ""
            program.lines.append(f"    {b} = tl.load({name} + {offsets}{mask})")
    program.lines += body
    for name, shape in program.shapes.items():
        if not re.search(rf"\b{name} [-+*]?= ", text):
            continue                                    # never changed
        out = "y_" + name
        inputs[out] = f"float32[{', '.join(size[c] for c in shape)}]"
        if len(shape) == 2 and draw(st.booleans()):
            program.lines.append(f"    tl.store({program.block(shape, out)}, {name}, boundary_check=(0, 1))")
        else:
            program.lines.append(f"    tl.store({out} + {POINTERS[shape]}, {name})")
    params = ", ".join(inputs)
    inputs["FLAG"] = draw(st.booleans())
    body = "\n".join(["    o_k = tl.arange(0, K)", "    o_n = tl.arange(0, 16)", *program.lines])
    if way == "parameter":
        inputs["K"] = length
        params += ", FLAG: tl.constexpr, K: tl.constexpr"
    else:
        params += ", FLAG: tl.constexpr"
        number = re.sub(r"\bK\b", str(length), body)
        body = f"    K: tl.constexpr = {length}\n{body}" if way == "constant" else number
    text = f"{HEAD}@triton.jit\ndef work({params}):\n{body}\n"
    return text, program.exact, inputs


@pytest.fixture(scope="module")
def child() -> Iterator[subprocess.Popen[str]]:
    """One process for all: to import triton and torch takes seconds."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs the [cpu] extra")
    with subprocess.Popen([sys.executable, str(Path(__file__).parent / "run_pairs.py")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@settings(max_examples=25, deadline=None)
@given(program=programs())
def test_random_kernels_compute_the_same_in_parts(child: subprocess.Popen[str],
                                                  program: tuple[str, bool, dict[str, Any]]) -> None:
    text, exact, inputs = program
    assume(any("128" in str(shape) or "256" in str(shape) for name, shape in inputs.items() if name != "K"))
    length = inputs.get("K") or (256 if "256" in text else 128)
    word = "K" if "K: tl.constexpr" in text else str(length)
    outcome = port(text, word, K=length)
    assert not outcome.open, outcome.open
    after = outcome.final.text
    assert not re.search(rf"tl\.arange\(0, {word}\)|, {word}\), \(1, 0\)\)", after)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps({"before": text, "after": after, "inputs": inputs}) + "\n")
    child.stdin.flush()
    answer = json.loads(child.stdout.readline())
    assert answer["finite"] and {n for n in inputs if n.startswith("y_")} <= set(answer["wrote"])
    assert answer["same"] if exact else answer["error"] < 1e-5, f"{answer}\n{text}\n{after}"
