"""Results that need not be computed twice, under a user folder: `MIGRATE_CACHE`, or ~/.cache/migrate.

An entry is a folder named by the hash of everything its content depends on. It appears by a rename, so two
runs beside each other never see half of one; losing that race is no loss, as both computed the same.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from migrate.errors import MigrateError

FORMAT = "1"   # part of every key; raise it when the meaning of an entry changes


def folder() -> Path:
    base = os.environ.get("MIGRATE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "migrate")
    return Path(base)


def key(*parts: Any) -> str:
    digest = hashlib.sha256(FORMAT.encode())
    for part in parts:
        text = part if isinstance(part, str) else json.dumps(part, sort_keys=True, default=str)
        digest.update(f"{len(text)}:".encode() + text.encode())
    return digest.hexdigest()


class Unwritable(MigrateError):
    """The folder of the cache is full, or not ours to write."""


class Entries:
    """One kind of entry: `linalg`, `hivm`, `record`."""

    def __init__(self, kind: str, use: bool = True) -> None:
        self.root = folder() / "gate" / kind
        self.use = use

    def path(self, name: str) -> Path:
        return self.root / name[:2] / name

    def find(self, name: str) -> tuple[Path, dict[str, Any]] | None:
        path = self.path(name)
        try:
            return path, json.loads((path / "result.json").read_text())
        except (OSError, ValueError):
            return None

    def put(self, name: str, result: dict[str, Any], files: dict[str, Path | str]) -> Path:
        """Store an entry; `files` are texts, or files to copy. Raises Unwritable."""
        try:
            return self._put(self.path(name), result, files)
        except OSError as error:
            raise Unwritable(f"{error.filename or self.root}: cannot write the cache: {error.strerror}; MIGRATE_CACHE "
                             "names another folder") from error

    def _put(self, path: Path, result: dict[str, Any], files: dict[str, Path | str]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
        try:
            for file, content in files.items():
                if isinstance(content, Path):
                    shutil.copyfile(content, made / file)
                else:
                    (made / file).write_text(content)
            (made / "result.json").write_text(json.dumps(result))
            if path.exists():
                shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):   # someone else was first
                made.rename(path)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return path
