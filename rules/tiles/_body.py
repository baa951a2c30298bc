"""The body of a kernel with given values folded in, and without what nothing reads after that."""
from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from migrate.analysis.control import bindings
from migrate.analysis.known import Known, locals_of
from migrate.asked import Literal
from migrate.edit import code, statement
from migrate.tree import find
from rules.tiles._dead import unread
from rules.tiles._fold import Event, Fold, Types, literal
from rules.tiles._outside import SPLIT, Outside

ROUNDS = 40         # each removes something


class Body:
    """The body of a kernel with the values folded in. `values` are those that were; `rebound` the names that it
    assigns, so that they could not be."""

    def __init__(self, found: Outside) -> None:
        self.found = found
        self.kernel = found.kernel
        self.types = Types(self.kernel)
        self.events: list[Event] = []
        self.replaced: list[cst.Name] = []
        self.rebound: set[str] = set()
        self.values = dict(found.values)
        # A name that the kernel assigns only where it is not what was given is never assigned: so assume, and look.
        while True:
            self.new = self._folded()
            again = self.values.keys() & _bound(self.new)
            if not again:
                break
            self.rebound |= again
            for name in again:
                del self.values[name]
        self.new = self._alive(self.new)

    @property
    def stated(self) -> dict[str, str]:
        """The static assertions for parameters that stay, by parameter."""
        tl = self.kernel.source.language
        return {name: f"{tl}.static_assert({_fact(name, value)})" for name, value in self.found.asked.items()
                if name in self.values}

    @property
    def bare(self) -> cst.BaseSuite:
        """The body without those assertions."""
        return self._without(self.stated.values())

    def _without(self, texts: Collection[str]) -> cst.BaseSuite:
        left = [s for s in self.new.body if code(s.with_changes(leading_lines=[])).strip() not in texts] \
            if isinstance(self.new, cst.IndentedBlock) else []
        return self.new.with_changes(body=left) if left and len(left) < len(self.new.body) else self.new

    def with_assertions(self, gone: list[str]) -> cst.BaseSuite:
        """What a parameter that stays has to be is checked when the kernel is compiled."""
        new = self._without([text for name, text in self.stated.items() if name in gone])
        have = {code(s).strip() for s in find(new, cst.Expr)}
        module = self.kernel.source.tree.module
        lines = [statement(text, module) for name, text in self.stated.items() if name not in gone and text not in have]
        if not lines or not isinstance(new, cst.IndentedBlock):
            return new
        body = list(new.body)
        at = 1 if self.kernel.node.get_docstring() is not None and len(body) > 1 else 0
        return new.with_changes(body=[*body[:at], *lines, *body[at:]])

    def _folded(self) -> cst.BaseSuite:
        body = self.kernel.node.body
        params = frozenset(self.kernel.params)
        constants = {n: v for n, v in self.values.items() if self.kernel.params[n].constexpr
                     and self.found.stay.get(n) != SPLIT}
        decided = {n: v for n, v in self.values.items() if n not in constants}
        before = locals_of(body, Known(self.kernel.source), params)
        self.events, self.replaced = [], []
        for _ in range(ROUNDS):
            present = frozenset(self.found.present) - _set_plainly(body)
            known = Known(self.kernel.source, constants, decided, present)
            held = _derived(body, known, params, before)
            known = Known(self.kernel.source, constants, {**held, **decided}, present)
            fold = Fold(known, self.types, body, keep=frozenset(self.stated.values()))
            new = fold.suite(body) or _empty()
            self.events += fold.events
            self.replaced += fold.replaced
            if new is body:
                break
            body = new
        return _without_last_return(body, self.kernel.node.body)

    def _alive(self, body: cst.BaseSuite) -> cst.BaseSuite:
        """Without assignments of names that something read before, and nothing does now."""
        was = unread(self.kernel.node.body)
        for _ in range(ROUNDS):
            fold = Fold(Known(self.kernel.source), self.types, body, dead=unread(body) - was)
            new = fold.suite(body) or _empty()
            self.events += fold.events
            if new is body:
                break
            body = new
        return body


def _derived(body: cst.CSTNode, known: Known, params: frozenset[str],
             before: dict[str, Literal]) -> dict[str, Literal]:
    """Local names whose one value is known now and was not before."""
    held: dict[str, Literal] = {}
    while True:
        now = Known(known.source, known.text, {**held, **known.held}, known.present)
        more = {n: v for n, v in locals_of(body, now, params).items() if n not in before}
        if more == held:
            return held
        held = more


def _bound(body: cst.CSTNode) -> set[str]:
    return {name for name, _, _ in bindings(body)}


def _set_plainly(body: cst.CSTNode) -> set[str]:
    """Names that get another value; `p += offset` leaves a pointer a pointer."""
    return {name for name, node, _ in bindings(body) if not isinstance(node, cst.AugAssign)}


def _fact(name: str, value: Literal) -> str:
    if value is None:
        return f"{name} is None"
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} == {code(literal(value))}"


def _without_last_return(body: cst.BaseSuite, was: cst.BaseSuite) -> cst.BaseSuite:
    """A bare `return` that has become the last statement of a function says nothing."""
    last = body.body[-1]
    if (last is not was.body[-1] and isinstance(body, cst.IndentedBlock) and len(body.body) > 1
            and isinstance(last, cst.SimpleStatementLine) and len(last.body) == 1
            and isinstance(last.body[0], cst.Return) and last.body[0].value is None):
        return body.with_changes(body=body.body[:-1])
    return body


def _empty() -> cst.IndentedBlock:
    return cst.IndentedBlock([cst.SimpleStatementLine([cst.Pass()])])
