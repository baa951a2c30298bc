"""Ported files to disk: all of a closure or none, and never over an edit by hand."""
from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from migrate import encoding, header
from migrate.errors import MigrateError
from migrate.port import Ported


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

    @property
    def refused(self) -> bool:
        return self in (Status.EDITED, Status.FOREIGN)


def status(ported: Ported, output: Path) -> Status:
    place = output / ported.target
    try:
        old = place.read_bytes()
    except FileNotFoundError:
        return Status.NEW
    except OSError as error:
        raise MigrateError(f"{place}: {error.strerror}") from error
    if old == ported.file.encode(ported.text):
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


def refuse_edited(ports: Iterable[Ported], output: Path) -> None:
    """Raises MigrateError for the first port whose place holds something that must not be lost."""
    for ported in ports:
        found = status(ported, output)
        if found.refused:
            raise MigrateError(f"{output / ported.target}: {found.value}; --force overwrites it")


def write(ports: Sequence[Ported], output: Path) -> None:
    """Write each port beside its place, then rename all of them into it.

    Raises MigrateError, and leaves what was there, when anything cannot be written.
    """
    contents = {output / p.target: p.file.encode(p.text) for p in ports if status(p, output).would_write}
    for ported in ports:
        folder = (output / ported.target).parent
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
