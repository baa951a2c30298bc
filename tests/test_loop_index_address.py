"""ASC218: where a pointer is read after a loop that has no closed form, and only there, the reason is reported."""
from __future__ import annotations

import textwrap

import pytest

from migrate import engine
from migrate.source import Source

RULE = engine.select(engine.load(), only=["ASC218"])
HEAD = """\
import triton
import triton.language as tl


@triton.jit
def kernel(p, y, keep, n, d, S: tl.constexpr, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    ps = p + at
"""
LOOPS = {
    "the rounds of a `while` are not known": """
        i = 0
        while i < n:
            ps += d
            i += 1
        """,
    "the loop may be left early": """
        for i in range(n):
            ps += d
            if i == d:
                break
        """,
    "its range is more than arithmetic": """
        for i in range(tl.load(keep)):
            ps += d
        """,
    "its range may count down": """
        for i in range(0, n, S):
            ps += d
        """,
    "it gets its value in another way": """
        for i in range(n):
            ps = p + i * d + at
        """,
    "it is advanced under a condition": """
        for i in range(n):
            if i > d:
                ps += d
        """,
    "it is advanced under different conditions": """
        for i in range(n):
            if FLAG:
                ps += d
            ps += 1
        """,
    "it is advanced in a loop inside the loop": """
        for i in range(n):
            for j in tl.static_range(S):
                ps += d
        """,
    "its step changes in the loop": """
        for i in range(n):
            ps += i * d
        """,
    "its step is more than arithmetic": """
        for i in range(n):
            ps += tl.load(keep)
        """,
    "its step is a tile": """
        for i in range(n):
            ps += at
        """,
}


def findings(loop: str, after: str) -> list[str]:
    text = HEAD + textwrap.indent(textwrap.dedent(loop).strip("\n"), "    ") + "\n    " + after + "\n"
    outcome = engine.apply(Source.parse(text), RULE)
    assert outcome.final.text == text
    return [finding.message for finding in outcome.open]


@pytest.mark.parametrize("reason", LOOPS)
def test_no_closed_form(reason: str) -> None:
    [message] = findings(LOOPS[reason], "tl.store(y + at, tl.load(ps))")
    assert message.startswith("`ps` is read after the loop") and reason in message
    assert not findings(LOOPS[reason], "tl.store(y + at, tl.load(p + at))")
    assert not findings(LOOPS[reason], "ps = p + at; tl.store(y + at, tl.load(ps))")


@pytest.mark.parametrize("loop, rounds", [
    ("range(n)", "tl.maximum(n, 0)"),
    ("range(1, n)", "tl.maximum(n - 1, 0)"),
    ("range(0, n + d, 2)", "tl.maximum(tl.cdiv(n + d, 2), 0)"),
    ("range(d + 1, n, BLOCK)", "tl.maximum(tl.cdiv(n - (d + 1), BLOCK), 0)"),
    ("tl.range(n, 0, -1, num_stages=2)", "tl.maximum(n, 0)"),
    ("range(n - 1, d, -3)", "tl.maximum(tl.cdiv((n - 1) - d, 3), 0)"),
    ("range(0, n, d)", "tl.maximum(tl.cdiv(n, d), 0)"),
])
def test_rounds(loop: str, rounds: str) -> None:
    text = f"{HEAD}    for i in {loop}:\n        ps += 1\n    tl.store(y + at, tl.load(ps))\n"
    assert f"    rounds = tl.cast({rounds}, tl.int64)\n" in engine.apply(Source.parse(text), RULE).final.text
