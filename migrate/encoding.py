"""Bytes to text and back, so that what the rules leave alone comes out byte for byte."""
from __future__ import annotations

import ast
import codecs
import hashlib
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

from migrate.errors import MigrateError

MAX_NESTED = 200


@dataclass(frozen=True)
class PythonFile:
    """A file's text (line endings as they are, no byte order mark), and what it takes to write it the same way."""

    text: str
    sha256: str
    encoding: str = "utf-8"
    bom: bool = False

    def encode(self, text: str) -> bytes:
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)


def read(path: Path) -> PythonFile:
    """Raises MigrateError, one line with the reason, for what cannot be Python source."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MigrateError(f"{path}: {error.strerror}") from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> PythonFile:
    bom = data.startswith(codecs.BOM_UTF8)
    if b"\0" in data:
        line = data[:data.index(b"\0")].count(b"\n") + 1
        raise MigrateError(f"{name}:{line}: holds NUL bytes, so it is not Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        text = data.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except (SyntaxError, LookupError) as error:       # an unknown cookie, or bytes that are no UTF-8 on line 1 or 2
        raise MigrateError(f"{name}: is not UTF-8 and names no known encoding ({error})") from error
    except UnicodeDecodeError as error:
        line = data[:error.start].count(b"\n") + 1
        raise MigrateError(f"{name}:{line}: byte 0x{data[error.start]:02x} is not {error.encoding}; "
                           "save it as UTF-8 or name its encoding (# -*- coding: ... -*-)") from error
    if (deep := _too_deep(text)) is not None:
        raise MigrateError(f"{name}:{deep}: does not parse: too many nested parentheses")
    return PythonFile(text, hashlib.sha256(data).hexdigest(), encoding, bom)


def _too_deep(text: str) -> int | None:
    """The line with more open brackets than Python itself accepts: LibCST's parser would overflow its stack."""
    depth = 0
    for bracket in re.finditer(r"[()\[\]{}]", text):
        depth = depth + 1 if bracket[0] in "([{" else max(0, depth - 1)
        if depth > MAX_NESTED:
            start = bracket.start()
            try:
                ast.parse(text)             # brackets in strings and comments do not count
                return None
            except (SyntaxError, RecursionError, MemoryError, ValueError):
                return text.count("\n", 0, start) + 1
    return None


def syntax_error(text: str, name: str, otherwise: str) -> MigrateError:
    """The error for a text that LibCST refused; Python's own message is the clearer one where it refuses too."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return MigrateError(f"{name}:{error.lineno or 1}: does not parse: {error.msg}")
    except (RecursionError, MemoryError, ValueError) as error:
        return MigrateError(f"{name}: does not parse: {error or type(error).__name__}")
    return MigrateError(f"{name}: does not parse: {otherwise.splitlines()[0]}")
