from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from migrate.gate.symbolic import Expr, const, make, symbol

NAMES = ("n", "m")
leaves = st.one_of(st.integers(0, 50).map(const), st.sampled_from(NAMES).map(symbol))
trees = st.recursive(leaves, lambda inner: st.builds(
    lambda op, a, b: (op, a, b), st.sampled_from(["+", "-", "*", "/", "%", "ceil", "min", "max"]), inner, inner))


def build(tree: object) -> Expr:
    return tree if isinstance(tree, Expr) else make(tree[0], build(tree[1]), build(tree[2]))  # type: ignore[index]


def direct(tree: object, known: dict[str, int]) -> int:
    if isinstance(tree, Expr):
        return known[tree.name] if tree.name else tree.value  # type: ignore[return-value]
    op, a, b = tree[0], direct(tree[1], known), direct(tree[2], known)  # type: ignore[index]
    if op in "/%":
        quotient = int(a / b) if b else 0
        return quotient if op == "/" else (a - b * quotient if b else 0)
    if op == "ceil":
        return -(-a // b) if b else 0
    return {"+": a + b, "-": a - b, "*": a * b, "min": min(a, b), "max": max(a, b)}[op]


@given(trees, st.integers(0, 50), st.integers(0, 50))
def test_folding_changes_no_value(tree: object, n: int, m: int) -> None:
    known = {"n": n, "m": m}
    assert build(tree).evaluate(known) == direct(tree, known)


def test_text_and_the_unknown() -> None:
    trips = make("ceil", make("-", symbol("n"), const(0)), const(64))
    assert str(trips) == "ceil(n / 64)"
    assert trips.evaluate({}) is None and trips.evaluate({"n": 65}) == 2
