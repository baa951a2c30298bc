"""Lines that have grown too long."""
from __future__ import annotations

import itertools

INDENT = "    "
OPENING, CLOSING = "([{", ")]}"


def fit(text: str, width: int, newline: str) -> str:
    """A statement of one line, broken inside brackets where it is longer than `width`.

    Text that has line breaks or comments of its own stays as it is, and so does what has no brackets.
    """
    if len(text) <= width or any(c in text for c in "\n\r#\\"):
        return text
    equals = _equals(text)
    top, end = _breaks(text, equals)
    if not top:
        return _opened(text, "", width, newline)
    # a sum or a tuple: brackets around it, and a line for each term
    pieces = [text[a:b].strip() for a, b in itertools.pairwise([equals, *top, len(text)])]
    lines = [INDENT + _opened(piece, INDENT, width, newline) for piece in pieces]
    return newline.join([f"{text[:equals].rstrip()} (", *lines[:-1], lines[-1] + end, ")"])


def _opened(text: str, indent: str, width: int, newline: str) -> str:
    """Breaks the longest bracket of the outermost level after its commas; the first line is already indented."""
    groups = _groups(text)
    if len(indent) + len(text) <= width or not groups:
        return text
    start, end = max(groups, key=lambda g: g[1] - g[0])
    inner = indent + INDENT
    lines = [""]
    items = _items(text[start + 1:end])
    if len(items) == 1:
        at = _signs(items[0], 0)
        lines = [items[0][a:b].strip() for a, b in itertools.pairwise([0, *at, len(items[0])])]
        items = []
    for item in items:
        if lines[-1] and len(inner) + len(lines[-1]) + 1 + len(item) > width:
            lines.append(item)
        else:
            lines[-1] = f"{lines[-1]} {item}".strip()
    broken = [inner + _opened(line, inner, width, newline) for line in lines]
    return newline.join([text[:start + 1], *broken, indent + text[end:]])


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


def _breaks(text: str, start: int) -> tuple[list[int], str]:
    """Where a value without brackets around it can be broken, and what its last line ends with."""
    if not start:
        return [], ""
    depths = _depths(text)
    commas = [i + 1 for i in range(start, len(text)) if depths[i] == 0 and text[i] == ","]
    if commas:
        return commas, ","
    return _signs(text, start), ""


def _signs(text: str, start: int) -> list[int]:
    """The `+` and `-` between terms outside brackets."""
    depths = _depths(text)
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
