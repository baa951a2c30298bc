"""Fetch, verify and unpack the pinned releases; afterwards everything works offline.

A release is unpacked beside its place and renamed into it, under a lock: whoever looks sees a whole
release or none, and what an interrupted run leaves behind is removed by the next. See pins.py for the
pins, index.py for the fetching, archive.py for what is refused.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from packaging.utils import canonicalize_name
from packaging.version import Version

from migrate.errors import MigrateError, UsageError
from upstream_snapshots import archive, metadata, pins
from upstream_snapshots.pins import Snapshot, files, find, load, parse_spec, unpacked_folder

__all__ = ["Progress", "Snapshot", "SnapshotError", "add", "ensure", "files", "find", "load", "sync_all",
           "verify"]

Progress = Callable[[str, int, int | None], None]  # spec, bytes so far, bytes in all if known

LOCK_TIMEOUT = 600.0  # seconds to wait for another run; fetching all three releases takes a few


class SnapshotError(MigrateError):
    """A release cannot be verified or put in its place."""


def ensure(snapshot: Snapshot, progress: Progress | None = None) -> Path:
    """The root folder of a release, which is fetched first if it is not unpacked.

    Every call hashes the unpacked files (10 ms for the 401 of fla-core 0.6.0): simpler than a stamp
    file, and nothing slips past it. The network is used only when the release is not unpacked.
    Raises a MigrateError: see FetchError, ArchiveError, SnapshotError.
    """
    if not snapshot.is_unpacked:
        with _work_folder() as work:
            if not snapshot.is_unpacked:  # another run may have been first
                from upstream_snapshots import index  # late: the HTTP client takes 0.2 s to import

                content = archive.read(index.fetch_pinned(snapshot, work, _of(snapshot.spec, progress)))
                _check(snapshot, content)
                _place(snapshot, content, work)
    verify(snapshot)
    return snapshot.root


def sync_all(progress: Progress | None = None) -> list[tuple[Snapshot, Path]]:
    """Bring every pinned release here; (release, root folder) of each. Stops at the first error."""
    return [(snapshot, ensure(snapshot, progress)) for snapshot in load()]


def verify(snapshot: Snapshot) -> None:
    """Raises SnapshotError when an unpacked file is missing or not as pinned. Added files are ignored."""
    for path, expected in snapshot.hashes.items():
        place = snapshot.folder / path
        try:
            got = hashlib.sha256(place.read_bytes()).hexdigest()
        except OSError as error:
            raise SnapshotError(f"{place}: {error.strerror}; {_again(snapshot)}") from error
        if got != expected:
            raise SnapshotError(f"{place} is not as released: sha256 expected {expected}, got {got}; "
                                f"{_again(snapshot)}")


def add(spec: str, progress: Progress | None = None) -> tuple[Snapshot, bool]:
    """Pin one more release, NAME==VERSION, and unpack it; (release, was it new).

    A wheel for any platform is preferred to the source archive. The hashes are those of what the index
    serves now: this is the moment of trust. Raises UsageError for a bad spec, else as `ensure` does.
    """
    name, version = parse_spec(spec)
    if version is None:
        raise UsageError(f"{spec}: say which version, as in {name}==1.0")
    if known := _pinned(load(), name, version):
        return known, False
    with _work_folder() as work:
        pinned = load()  # again, under the lock: two runs must not lose each other's entry
        if known := _pinned(pinned, name, version):
            return known, False
        from upstream_snapshots import index

        path = index.fetch_new(name, version, work, _of(f"{name}=={version}", progress))
        content = archive.read(path)
        about = metadata.read(path)
        if (canonicalize_name(about.name), Version(about.version)) != (name, version):
            raise SnapshotError(f"{path.name}: expected {name}=={version}, "
                                f"but its metadata says {about.name}=={about.version}")
        package = metadata.top_package(content, path.name)
        taken = {other.port_as for other in pinned}
        snapshot = Snapshot(
            name=name, version=about.version, file=path.name, sha256=_sha256(path.read_bytes()),
            licence=about.licence, package=package,
            port_as=metadata.port_folder(package, about.version, taken),
            hashes={file: _sha256(data) for file, data in sorted(content.items())},
        )
        with _explained(pins.HERE, "set it up as a checkout (pip install -e) to change its pins"):
            pins.append(snapshot)
        if not snapshot.is_unpacked:  # it may be, when its pin was taken back after an earlier `add`
            _place(snapshot, content, work)
    verify(snapshot)
    return snapshot, True


def _pinned(snapshots: Iterable[Snapshot], name: str, version: Version) -> Snapshot | None:
    return next((s for s in snapshots if (s.name, Version(s.version)) == (name, version)), None)


def _check(snapshot: Snapshot, content: Mapping[str, bytes]) -> None:
    """The archive holds the pinned files and no others of their kind."""
    got = {path: _sha256(data) for path, data in content.items()}
    wrong = sorted(path for path, _ in got.items() ^ snapshot.hashes.items())
    if wrong:
        expected, found = (hashes.get(wrong[0], "no such file") for hashes in (snapshot.hashes, got))
        raise SnapshotError(f"{snapshot.file}: {wrong[0]}: snapshots.sha256 expects {expected}, got {found}")


def _place(snapshot: Snapshot, content: Mapping[str, bytes], work: Path) -> None:
    """Write the files beside their place, then rename the folder into it."""
    tree = work / "tree"
    tree.mkdir()
    for path, data in content.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    tree.rename(snapshot.folder)


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    """A temporary folder beside the unpacked releases, for one run at a time; gone afterwards."""
    base = unpacked_folder()
    with _explained(base, "set MIGRATE_SNAPSHOTS to a folder that can be written"):
        base.mkdir(parents=True, exist_ok=True)
        with (base / ".lock").open("a") as lock:
            _wait_for(lock)
            for leftover in base.glob(".tmp-*"):  # of a run that was killed: we hold the lock
                shutil.rmtree(leftover)
            work = Path(tempfile.mkdtemp(prefix=".tmp-", dir=base))
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)


def _wait_for(lock: IO[str]) -> None:
    """Take the lock. The kernel lets go of it when a process ends, however it ends: none goes stale."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SnapshotError(f"{lock.name}: another run has held this lock "
                                    f"for {LOCK_TIMEOUT:.0f} s") from None
            time.sleep(0.05)


@contextlib.contextmanager
def _explained(folder: Path, remedy: str) -> Iterator[None]:
    """The operating system's errors as one line that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SnapshotError(f"{folder}: disk full ({error.strerror}); nothing was kept") from error
        at = f" ({error.filename})" if error.filename and str(error.filename) != str(folder) else ""
        raise SnapshotError(f"{folder} cannot be used: {error.strerror or error}{at}; {remedy}") from error


def _of(spec: str, progress: Progress | None) -> Callable[[int, int | None], None] | None:
    return (lambda done, total: progress(spec, done, total)) if progress else None


def _again(snapshot: Snapshot) -> str:
    return f"delete {snapshot.folder} and run `migrate snapshot sync`"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
