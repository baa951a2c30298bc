"""Ported files to disk: all of a closure or none, and never over an edit by hand."""
from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Mapping
from pathlib import Path

from migrate import encoding, header
from migrate.errors import MigrateError


class Status(enum.Enum):
    """What a port is to the file that lies in its place."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "unchanged"
    EDITED = "edited by hand"
    FOREIGN = "not written by migrate"

    @property
    def would_write(self) -> bool:
        return self is not Status.SAME


def status(data: bytes, place: Path) -> Status:
    try:
        old = place.read_bytes()
    except FileNotFoundError:
        return Status.NEW
    except OSError as error:
        raise MigrateError(f"{place}: {error.strerror}") from error
    if old == data:
        return Status.SAME
    if old == header.EMPTY.encode():
        return Status.CHANGED
    try:
        text = encoding.decode(old, str(place)).text
    except MigrateError:
        return Status.FOREIGN
    if header.read(text) is None:
        return Status.FOREIGN
    return Status.EDITED if header.edited(text) else Status.CHANGED


def refuse(found: Status, place: Path) -> None:
    """Raises MigrateError where something lies that must not be lost."""
    if found in (Status.EDITED, Status.FOREIGN):
        raise MigrateError(f"{place}: {found.value}; --force overwrites it")


def write(files: Mapping[str, bytes], output: Path) -> None:
    """Write each file (by its path below `output`) beside its place, then rename all of them into it.

    Folders become packages. Raises MigrateError, and leaves what was there, when anything cannot be written.
    """
    contents = {output / path: data for path, data in files.items()
                if status(data, output / path) is not Status.SAME}
    for path in files:
        folder = (output / path).parent
        while folder != output:
            marker = folder / "__init__.py"
            if marker not in contents and not marker.exists():
                contents[marker] = header.EMPTY.encode()
            folder = folder.parent
    write_all(contents)


def write_all(contents: dict[Path, bytes]) -> None:
    """Several files at once, as far as a file system can: whoever is interrupted leaves no half-written file."""
    beside: dict[Path, Path] = {}
    try:
        for place, data in contents.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
            beside[temporary] = place
            temporary.write_bytes(data)
        for temporary, place in beside.items():
            temporary.replace(place)
    except OSError as error:
        where = error.filename or next(iter(contents), "")
        raise MigrateError(f"{where}: {error.strerror}; nothing was written, -o DIR writes elsewhere") from error
    finally:
        for temporary in beside:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
