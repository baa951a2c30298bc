"""Lines that have grown too long."""
from __future__ import annotations

import itertools

WIDTH = 120
OPENING, CLOSING = "([{", ")]}"


def fit(text: str, indent: str, newline: str) -> str:
    """A statement of one line, broken inside brackets where it is longer than 120 columns with its indentation.

    Text that has line breaks or comments of its own stays as it is, and so does what has no brackets.
    """
    if len(indent) + len(text) <= WIDTH or any(c in text for c in "\n\r#\\"):
        return text
    equals = _equals(text)
    top = _breaks(text, equals)
    if top:                                     # a sum: brackets around it, and a line for each term
        inner = indent + "    "
        pieces = [text[a:b].strip() for a, b in zip([equals, *top], [*top, len(text)], strict=True)]
        lines = [fit_inside(piece, inner, newline) for piece in pieces]
        return f"{text[:equals].rstrip()} ({newline}{inner}{(newline + inner).join(lines)}{newline}{indent})"
    return fit_inside(text, indent, newline)


def fit_inside(text: str, indent: str, newline: str) -> str:
    """Breaks the longest bracket of the outermost level after its commas."""
    if len(indent) + len(text) <= WIDTH:
        return text
    groups = _groups(text)
    if not groups:
        return text
    start, end = max(groups, key=lambda g: g[1] - g[0])
    inner = indent + "    "
    items = _items(text[start + 1:end])
    lines, line = [], ""
    for item in items:
        if line and len(inner) + len(line) + 1 + len(item) > WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {item}" if line else item
    lines.append(line)
    broken = [fit_inside(part, inner, newline) for part in lines]
    return f"{text[:start + 1]}{newline}{inner}{(newline + inner).join(broken)}{newline}{indent}{text[end:]}"


def _depths(text: str) -> list[int]:
    """How many brackets are open around each character; what is in quotes counts as inside."""
    depth, out, quote = 0, [], ""
    for c in text:
        depth -= not quote and c in CLOSING
        out.append(depth + bool(quote))
        depth += not quote and c in OPENING
        if c in "\"'" and quote in ("", c):
            quote = "" if quote else c
    return out


def _equals(text: str) -> int:
    """Where the value begins: behind the first `=` outside brackets; 0 if there is none."""
    for i, (c, depth) in enumerate(zip(text, _depths(text), strict=True)):
        if depth == 0 and c == "=" and text[i + 1:i + 2] != "=" and text[i - 1] not in "=!<>":
            return i + 1
    return 0


def _breaks(text: str, start: int) -> list[int]:
    """The `+` and `-` between terms, and behind commas: outside brackets, after `start`."""
    if not start:
        return []
    depths = _depths(text)
    commas = [i + 1 for i in range(start, len(text)) if depths[i] == 0 and text[i] == ","]
    if commas:
        return commas
    return [i for i in range(start + 2, len(text) - 1)
            if depths[i] == 0 and text[i] in "+-" and text[i - 1] == text[i + 1] == " "]


def _groups(text: str) -> list[tuple[int, int]]:
    depths, out, start = _depths(text), [], 0
    for i, c in enumerate(text):
        if c in OPENING and depths[i] == 0:
            start = i
        elif c in CLOSING and depths[i] == 0:
            out.append((start, i))
    return out


def _items(text: str) -> list[str]:
    depths = _depths(text)
    cuts = [0, *(i + 1 for i, c in enumerate(text) if c == "," and depths[i] == 0), len(text)]
    return [item for a, b in itertools.pairwise(cuts) if (item := text[a:b].strip())]
