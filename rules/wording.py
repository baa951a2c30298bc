"""Comments beside an edit that name what the edit removed: no false sentence next to a change.

A comment is reworded by a fixed substitution where the rule has one. A block of comments that names the mechanism
after that keeps its text, which says why upstream did what it did, under a line that says so.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst

from migrate.tree import Edit, find

UPSTREAM = "# Upstream, on a GPU:"
LINES = (cst.SimpleStatementLine, cst.If, cst.For, cst.While, cst.With, cst.Try, cst.FunctionDef)
Swap = tuple[re.Pattern[str], str]


def swap(pattern: str, new: str) -> Swap:
    return re.compile(pattern, re.IGNORECASE), new


def reworded(text: str, swaps: Sequence[Swap]) -> str:
    """The text with each substitution made; one at its beginning keeps the capital letter."""
    for pattern, new in swaps:
        text = pattern.sub(lambda m, new=new: _capital(m, m.expand(new)), text)      # type: ignore[misc]
    return text


def _capital(match: re.Match[str], new: str) -> str:
    first = not re.search(r"\w", match.string[:match.start()])
    return new[:1].upper() + new[1:] if first and match[0][:1].isupper() else new


def beside(statement: cst.CSTNode, names: re.Pattern[str], swaps: Sequence[Swap] = ()) -> cst.CSTNode | None:
    """A statement with the comments above it and at its end put right; None where nothing is to be done."""
    old = list(getattr(statement, "leading_lines", ()))
    changes: dict[str, Any] = {}
    new = [line for block in _blocks(old) for line in _block(block, names, swaps)]
    if len(new) != len(old) or any(a is not b for a, b in zip(old, new, strict=True)):
        changes["leading_lines"] = new
    trailing = getattr(statement, "trailing_whitespace", None)
    if trailing is not None and trailing.comment and names.search(trailing.comment.value):
        text = reworded(trailing.comment.value, swaps)
        if text != trailing.comment.value:
            changes["trailing_whitespace"] = trailing.with_changes(comment=cst.Comment(text))
    return statement.with_changes(**changes) if changes else None


def within(function: cst.FunctionDef, names: re.Pattern[str], swaps: Sequence[Swap] = (),
           edits: Mapping[cst.CSTNode, object] | None = None) -> dict[cst.CSTNode, Edit]:
    """The edits that put the comments of a whole function right, whose mechanism is gone, on top of `edits`."""
    out: dict[cst.CSTNode, Edit] = {}
    for statement in find(function.body, *LINES):
        now = (edits or {}).get(statement, statement)
        new = beside(now, names, swaps) if isinstance(now, cst.CSTNode) else None
        if new is not None:
            out[statement] = new
    return out


def docstring(function: cst.FunctionDef, swaps: Sequence[Swap]) -> dict[cst.CSTNode, Edit]:
    """The edit of a docstring by the substitutions alone."""
    if not isinstance(function.body, cst.IndentedBlock) or not isinstance(
            function.body.body[0], cst.SimpleStatementLine):
        return {}
    first = function.body.body[0].body[0]
    if not isinstance(first, cst.Expr) or not isinstance(first.value, cst.SimpleString):
        return {}
    text = reworded(first.value.value, swaps)
    return {first.value: first.value.with_changes(value=text)} if text != first.value.value else {}


def _blocks(lines: Sequence[cst.EmptyLine]) -> Iterator[list[cst.EmptyLine]]:
    """Runs of comment lines, and of blank lines between them."""
    block: list[cst.EmptyLine] = []
    for line in lines:
        if block and bool(block[-1].comment) != bool(line.comment):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _block(lines: list[cst.EmptyLine], names: re.Pattern[str], swaps: Sequence[Swap]) -> list[cst.EmptyLine]:
    texts = [line.comment.value if line.comment else "" for line in lines]
    if not any(names.search(t) for t in texts) or UPSTREAM in texts:
        return lines
    new = [reworded(t, swaps) for t in texts]
    out = [line if a == b else line.with_changes(comment=cst.Comment(b))
           for line, a, b in zip(lines, texts, new, strict=True)]
    if any(names.search(t) for t in new):
        out.insert(0, lines[0].with_changes(comment=cst.Comment(UPSTREAM)))
    return out
