"""The first lines of a ported file: what it was made from, by what, and a hash that shows edits by hand."""
from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields

BEGIN = "# --- ported by migrate: do not edit; change the rules, then run `migrate port` again ---"
END = "# --- end of the header of migrate ---"
EMPTY = "# Made by `migrate port`: upstream's __init__.py imports more than a port needs.\n"

_BLOCK = re.compile(rf"^{re.escape(BEGIN)}\r?\n(?P<lines>(?:#.*\n)*?){re.escape(END)}\r?\n", re.MULTILINE)
_COMMENT = re.compile(r"[ \t]*#[^\n]*\n|[ \t\r\f]*\n")
_FIELD = re.compile(r"# (?P<key>[a-z-]+): (?P<value>.*?)\r?$", re.MULTILINE)


@dataclass(frozen=True)
class Header:
    """`upstream` is NAME==VERSION, or a folder; `body` is the hash of all that is not the header."""

    upstream: str
    path: str
    sha256: str
    licence: str
    tool: str
    body: str = ""


def add(text: str, header: Header) -> str:
    """The text with a header after the comments it begins with (a `#!` line, an encoding, a copyright)."""
    newline = "\r\n" if "\r\n" in text.partition("\n")[0] + "\n" else "\n"
    at = _end_of_comments(text)
    if at and not text[:at].endswith("\n"):
        text, at = text + newline, at + len(newline)
    values = {**{f.name: getattr(header, f.name) for f in fields(header)}, "body": body_hash(text)}
    lines = [BEGIN, *(f"# {key}: {value}" for key, value in values.items()), END]
    return text[:at] + "".join(line + newline for line in lines) + text[at:]


def read(text: str) -> Header | None:
    """The header of a ported file; None for any other file."""
    block = _BLOCK.search(text)
    if block is None:
        return None
    found = {m["key"]: m["value"] for m in _FIELD.finditer(block["lines"])}
    return Header(**{f.name: found.get(f.name, "") for f in fields(Header)})


def remove(text: str) -> str:
    return _BLOCK.sub("", text, count=1)


def edited(text: str) -> bool:
    """Whether a ported file is no longer as it was written."""
    header = read(text)
    return header is None or header.body != body_hash(remove(text))


def body_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _end_of_comments(text: str) -> int:
    """After the first run of comment lines, where there is one: blank lines below it stay below the header."""
    at = end = 0
    while (line := _COMMENT.match(text, at)) is not None and line.end() > at:
        if line.group().lstrip().startswith("#"):
            end = line.end()
        elif end:
            break                   # a blank line ends the first run
        at = line.end()
    return end
