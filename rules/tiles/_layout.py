"""Blank lines and comments of a block out of which statements go."""
from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.edit import detached


class Lines:
    """A block in the making. Comments that a blank line sets apart from a statement outlive it."""

    def __init__(self) -> None:
        self.body: list[cst.BaseStatement] = []
        self._carried: list[cst.EmptyLine] = []

    def add(self, statement: cst.BaseStatement) -> None:
        if self._carried:
            above = merged(self._carried, getattr(statement, "leading_lines", ()))
            while not self.body and above and not above[0].comment:
                above.pop(0)
            statement = statement.with_changes(leading_lines=above)
            self._carried = []
        self.body.append(statement)

    def put(self, old: cst.BaseStatement, new: cst.BaseStatement | None) -> None:
        """A statement or what is left of it."""
        if new is None:
            self.drop(old)
        else:
            self.add(new)

    def drop(self, statement: cst.BaseStatement) -> None:
        lines = list(getattr(statement, "leading_lines", ()))
        kept = detached(lines)
        if kept:
            kept.append(cst.EmptyLine(indent=False))
        elif lines and not lines[0].comment:
            kept = [lines[0]]
        self.carry(kept)

    def carry(self, lines: Sequence[cst.EmptyLine]) -> None:
        """Lines for the statement that comes next."""
        self._carried = merged(self._carried, lines)

    def carried_comments(self) -> list[cst.EmptyLine]:
        """What no statement came for; without blank lines at its end."""
        lines = list(self._carried)
        while lines and not lines[-1].comment:
            lines.pop()
        return lines


def merged(above: Sequence[cst.EmptyLine], below: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Both, with no more blank lines where they meet than the longer run has."""
    first, second = list(above), list(below)
    while first and second and not first[-1].comment and not second[0].comment:
        first.pop()
    return first + second


def as_statements(body: cst.BaseSuite) -> Sequence[cst.BaseStatement]:
    """The statements of a block, or of what stands on one line after the colon; `pass` is none."""
    if isinstance(body, cst.SimpleStatementSuite):
        line = cst.SimpleStatementLine(list(body.body), trailing_whitespace=body.trailing_whitespace)
        statements: Sequence[cst.BaseStatement] = [line]
    else:
        statements = cst.ensure_type(body, cst.IndentedBlock).body
    return [s for s in statements if not (isinstance(s, cst.SimpleStatementLine)
                                          and all(isinstance(b, cst.Pass) for b in s.body))]
