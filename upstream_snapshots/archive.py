"""Read a release archive that nobody vouches for: nothing in it is run, and no path leaves the folder.

An archive with one bad member is refused whole; the releases worth porting have none.
"""
from __future__ import annotations

import gzip
import re
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from migrate.errors import MigrateError

MAX_BYTES = 64 << 20  # of all members together; fla-core 0.6.0 has 4.3 MB
MAX_FILES = 10_000

_LICENCE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)([._-].*)?", re.IGNORECASE)


class ArchiveError(MigrateError):
    """The archive is damaged, or holds something that must not be unpacked."""


def is_kept(path: str) -> bool:
    """Is this file unpacked? Python sources are, and what says under which terms."""
    name = path.rsplit("/", 1)[-1]
    return name.endswith(".py") or ".dist-info/licenses/" in path or bool(_LICENCE.fullmatch(name))


def read(archive: Path, wanted: Callable[[str], bool] = is_kept) -> dict[str, bytes]:
    """The wanted files of a wheel, zip or tar.gz: {posix path: content}.

    The one leading folder of a source archive is stripped; a wheel has none.
    Raises ArchiveError for a damaged archive, for absolute paths, `..`, links, devices, for names with
    control characters or backslashes, for duplicates (also those that differ only by case), and for more
    than MAX_BYTES unpacked or MAX_FILES members.
    """
    members = _tar_members if archive.name.endswith((".tar.gz", ".tgz")) else _zip_members
    strip = not archive.name.endswith(".whl")
    found: dict[str, bytes] = {}
    names = _Names(archive.name)
    tops: set[str] = set()
    try:
        for name, is_folder, content in members(archive):
            path = names.checked(name, is_folder)
            if strip:
                top, _, path = path.partition("/")
                tops.add(top)
                if len(tops) > 1 or not (path or is_folder):
                    raise ArchiveError(f"{archive.name}: expected one leading folder, got {sorted(tops)}")
            if not is_folder and wanted(path):
                found[path] = content()
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError,
            NotImplementedError, RuntimeError, UnicodeError) as error:
        # zipfile raises RuntimeError for encrypted members, NotImplementedError for odd compression.
        raise ArchiveError(f"{archive.name}: damaged or not readable: {error}") from error
    return found


class _Names:
    """The members' names so far, to notice a bad one or a clash."""

    def __init__(self, archive: str) -> None:
        self.archive = archive
        self.count = 0
        self.spelling: dict[str, tuple[str, bool]] = {}  # folded path: (as written, is it a folder)
        self.files: set[str] = set()

    def checked(self, name: str, is_folder: bool) -> str:
        """`name` without `./` and the trailing slash; raises ArchiveError if it cannot be accepted."""
        self.count += 1
        if self.count > MAX_FILES:
            raise ArchiveError(f"{self.archive}: more than {MAX_FILES} members")
        if any(ord(char) < 32 or char in "\\\x7f" for char in name):
            raise ArchiveError(f"{self.archive}: {name!r}: control character or backslash in a name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or PureWindowsPath(name).drive:
            raise ArchiveError(f"{self.archive}: {name!r}: absolute path")
        if ".." in parts or not (parts or is_folder):
            raise ArchiveError(f"{self.archive}: {name!r}: path leaves the folder")
        for depth in range(1, len(parts) + 1):
            path, folder = "/".join(parts[:depth]), is_folder or depth < len(parts)
            # macOS and Windows fold case, macOS also composes accents: such names would overwrite each other.
            key = unicodedata.normalize("NFC", path).casefold()
            before = self.spelling.setdefault(key, (path, folder))
            if before[0] != path:
                raise ArchiveError(f"{self.archive}: {before[0]!r} and {path!r} differ by case only")
            if before[1] != folder:
                raise ArchiveError(f"{self.archive}: {path!r} is both a file and a folder")
        path = "/".join(parts)
        if not is_folder:
            if path in self.files:
                raise ArchiveError(f"{self.archive}: {path!r} occurs twice")
            self.files.add(path)
        return path


_Member = tuple[str, bool, Callable[[], bytes]]


def _tar_members(archive: Path) -> Iterator[_Member]:
    with gzip.open(archive) as unzipped:
        # A stream, read front to back: the limit then covers headers as well, and skipped members.
        limited = cast(IO[bytes], _Limited(unzipped, archive.name))
        with tarfile.open(fileobj=limited, mode="r|") as tar:
            total = 0
            for member in tar:
                if not (member.isreg() or member.isdir()):
                    raise _special(archive.name, member.name, member.issym() or member.islnk())
                total += member.size  # a sparse member is larger than what was read for it
                if total > MAX_BYTES:
                    raise _too_large(archive.name)

                def content(member: tarfile.TarInfo = member) -> bytes:
                    handle = tar.extractfile(member)
                    data = handle.read() if handle else b""
                    if len(data) != member.size:
                        raise EOFError(f"{member.name} ends early")
                    return data

                yield member.name, member.isdir(), content


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as zipped:
        total = 0
        for info in zipped.infolist():
            mode = stat.S_IFMT(info.external_attr >> 16)
            if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(archive.name, info.filename, mode == stat.S_IFLNK)
            total += info.file_size  # zipfile stops reading a member at the size that it declares
            if total > MAX_BYTES:
                raise _too_large(archive.name)
            # zipfile cuts a name at NUL; the original still has it, and is refused for it.
            yield info.orig_filename, info.is_dir(), partial(zipped.read, info)


class _Limited:
    """The reading side of a file that ends in an ArchiveError once more than MAX_BYTES came out of it."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, name: str) -> None:
        self.file, self.name, self.count = file, name, 0

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.count += len(data)
        if self.count > MAX_BYTES:
            raise _too_large(self.name)
        return data


def _special(archive: str, member: str, is_link: bool) -> ArchiveError:
    return ArchiveError(f"{archive}: {member!r} is {'a link' if is_link else 'a device or the like'}")


def _too_large(name: str) -> ArchiveError:
    return ArchiveError(f"{name}: more than {MAX_BYTES >> 20} MiB unpacked")
