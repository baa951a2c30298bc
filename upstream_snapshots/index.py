"""Ask package indexes for the files of a release, as pip on this machine would.

`unearth` speaks the simple API (HTML and JSON, file:// too) but reads none of pip's settings; pip_settings.py
has them. Why not `pip download`: for a source release it runs setup.py.
"""
from __future__ import annotations

import hashlib
import logging
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
from packaging.version import Version
from unearth import Link, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import PyPIClient

from migrate.errors import MigrateError, UsageError
from upstream_snapshots.pins import Snapshot
from upstream_snapshots.pip_settings import PipSettings
from upstream_snapshots.pip_settings import load as load_pip_settings

MAX_DOWNLOAD = 64 << 20  # bytes; mamba-ssm's archive has 0.2 MB, fla-core's 1.1 MB

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if the server says so


class FetchError(MigrateError):
    """The release cannot be had: no network, not on the index, the download broke off."""


class Index:
    """The find-links folders and indexes of pip's settings, asked one by one in that order.

    One that cannot be reached does not stop the next, as in pip; what went wrong collects in `problems`.
    """

    def __init__(self, settings: PipSettings | None = None) -> None:
        self.settings = settings or load_pip_settings()
        self.problems: list[str] = []
        self.session = _session(self.settings)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exc: object) -> None:
        self.session.close()

    def offers(self, name: str, version: Version) -> Iterator[list[Link]]:
        """The files that each source has of this release, yanked ones too: the pin decides."""
        sources: list[dict[str, list[str]]] = [{"find_links": [place]} for place in self.settings.find_links]
        sources += [{"index_urls": [url]} for url in self.settings.index_urls]
        for source in sources:
            place, = next(iter(source.values()))
            finder = PackageFinder(self.session, ignore_compatibility=True, **source)  # type: ignore[arg-type]
            try:
                with _Warnings(self.problems):
                    packages = list(finder.find_all_packages(name, allow_yanked=True))
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OSError) as error:
                self.problems.append(f"{redacted(place)}: {_text(error)}")
                continue
            yield [p.link for p in packages if p.version and Version(p.version) == version]

    def download(self, link: Link, target: Path, progress: Progress | None = None) -> str:
        """Stream a file to `target`; returns its sha256 in hex. Raises FetchError."""
        digest = hashlib.sha256()
        done = 0
        # Raw and "identity": the hash is of the file as released, not of what a proxy makes of it.
        headers = {"Accept-Encoding": "identity"}
        try:
            with (self.session.stream("GET", link.normalized, headers=headers) as answer,
                  target.open("xb") as out):
                if answer.is_error:
                    raise FetchError(f"{link.redacted}: download failed: HTTP {answer.status_code}")
                length = answer.headers.get("Content-Length", "")
                total = int(length) if length.isdecimal() else None
                for chunk in answer.iter_raw():
                    done += len(chunk)
                    if done > MAX_DOWNLOAD:
                        raise FetchError(f"{link.redacted}: larger than {MAX_DOWNLOAD >> 20} MiB")
                    out.write(chunk)
                    digest.update(chunk)
                    if progress:
                        progress(done, total)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise FetchError(f"{link.redacted}: broke off at {done} bytes: {_text(error)}") from error
        return digest.hexdigest()

    def missing(self, what: str) -> FetchError:
        """The error for a file that no source had, with what kept each of them from answering."""
        asked = [*self.settings.find_links, *self.settings.index_urls]
        where = ", ".join(map(redacted, asked)) or "nothing: PIP_NO_INDEX is set and PIP_FIND_LINKS is not"
        if not self.problems:
            return FetchError(f"{what} was not found; asked {where}")
        return FetchError(f"{what} was not found; asked {where}; {'; '.join(self.problems)}; "
                          f"without a network, PIP_FIND_LINKS=FOLDER takes the archive from a folder")


def fetch_pinned(snapshot: Snapshot, folder: Path, progress: Progress | None = None) -> Path:
    """Download the archive of a pinned release into `folder`; its sha256 is as pinned.

    Raises FetchError, which names the sources asked and what each answered.
    """
    others: list[str] = []
    with Index() as index:
        for offer in index.offers(snapshot.name, Version(snapshot.version)):
            for link in offer:
                if link.filename == snapshot.file:
                    stated = stated_sha256(link)
                    if stated in (None, snapshot.sha256):
                        return _fetch(index, link, folder, snapshot.sha256, progress)
                    others.append(f"{link.redacted}: sha256 expected {snapshot.sha256}, stated {stated}")
        if others:
            raise FetchError(f"{snapshot.spec}: {'; '.join(others)}")
        raise index.missing(f"{snapshot.spec} ({snapshot.file})")


def fetch_new(name: str, version: Version, folder: Path, progress: Progress | None = None) -> Path:
    """Download a release that is not pinned: a pure wheel, else the source archive, of the first source
    that has either. Its sha256 is as the index states it, if it does. Raises FetchError."""
    seen: set[str] = set()
    with Index() as index:
        for offer in index.offers(name, version):
            seen |= {link.filename for link in offer}
            for ending in ("-none-any.whl", ".tar.gz", ".zip"):
                for link in offer:
                    if link.filename.endswith(ending):
                        return _fetch(index, link, folder, stated_sha256(link), progress)
        if seen:
            raise FetchError(f"{name}=={version} has neither a wheel for any platform nor a source archive, "
                             f"only {len(seen)} files like {min(seen)}")
        raise index.missing(f"{name}=={version}")


def _fetch(index: Index, link: Link, folder: Path, expected: str | None, progress: Progress | None) -> Path:
    path = folder / link.filename
    got = index.download(link, path, progress)
    if expected and got != expected:
        raise FetchError(f"{link.redacted}: sha256 expected {expected}, got {got}")
    return path


def stated_sha256(link: Link) -> str | None:
    """The sha256 that the index states for a file, if it does."""
    return next(iter((link.hash_option or {}).get("sha256", ())), None)


def redacted(url: str) -> str:
    """A URL without the user name and password that an index URL may carry."""
    return Link(url).redacted if "://" in url else url


def _session(settings: PipSettings) -> PyPIClient:
    verify: ssl.SSLContext | bool = True
    try:
        if settings.cert or settings.client_cert:
            place = settings.cert
            folder = place if place and os.path.isdir(place) else None
            verify = ssl.create_default_context(cafile=None if folder else place, capath=folder)
            if settings.client_cert:
                verify.load_cert_chain(settings.client_cert)
        session = PyPIClient(trusted_hosts=settings.trusted_hosts, verify=verify, proxy=settings.proxy,
                             timeout=settings.timeout, follow_redirects=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"pip's cert, client-cert, proxy or trusted-host cannot be used: {error}") from error
    session.auth = MultiDomainBasicAuth(prompting=False, index_urls=settings.index_urls)
    return session


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__  # one line


class _Warnings(logging.Handler):
    """Collects what unearth logs: it reports a source's 404 or 503 there only, and goes on."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.problems = problems
        self.logger = logging.getLogger("unearth")

    def emit(self, record: logging.LogRecord) -> None:
        self.problems.append(record.getMessage())

    def __enter__(self) -> None:
        self.before = self.logger.propagate
        self.logger.propagate = False
        self.logger.addHandler(self)

    def __exit__(self, *exc: object) -> None:
        self.logger.removeHandler(self)
        self.logger.propagate = self.before
