"""Ask package indexes for the files of a release, as pip on this machine would.

`unearth` speaks the simple API (HTML and JSON, file:// too) but reads none of pip's settings; they are
read here and handed to it. Why not `pip download`: for a source release it runs setup.py.
"""
from __future__ import annotations

import ast
import hashlib
import importlib.util
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
from packaging.version import Version
from unearth import Link, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import PyPIClient

from migrate.errors import MigrateError, UsageError

PYPI = "https://pypi.org/simple/"
MAX_DOWNLOAD = 64 << 20  # bytes; mamba-ssm's archive has 0.2 MB, fla-core's 1.1 MB

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if the server says so


class FetchError(MigrateError):
    """The release cannot be had: no network, not on the index, the download broke off."""


@dataclass(frozen=True)
class PipSettings:
    """What of pip's configuration bears on fetching a file; `timeout` in seconds."""

    index_urls: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = 15.0


def pip_settings() -> PipSettings:
    """pip's settings from its files and PIP_* variables; without pip, from the variables alone.

    As in pip a variable wins over a file and replaces it; of the files, the sections [global], [install]
    and [download] are read, because mirrors' instructions name any of the three.
    Raises UsageError when pip cannot read its own configuration or a value makes no sense.
    """
    values: dict[str, str] = {}
    if importlib.util.find_spec("pip"):
        # pip itself knows where its files are on this system; -P: no `pip` folder of the current directory.
        command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "config", "list"]
        listed = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if listed.returncode:
            lines = listed.stderr.strip().splitlines() or [f"exit status {listed.returncode}"]
            raise UsageError(f"pip's configuration cannot be read: {lines[-1]}")
        sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, "download": {}}
        for line in listed.stdout.splitlines():
            key, _, value = line.partition("=")
            section, _, option = key.rpartition(".")
            if section in sections:
                sections[section][option] = ast.literal_eval(value)
        for settings in sections.values():
            values |= settings
    for variable, value in os.environ.items():
        if variable.startswith("PIP_") and value:
            values[variable[4:].lower().replace("_", "-")] = value

    def words(option: str) -> tuple[str, ...]:
        return tuple(values.get(option, "").split())

    timeout = values.get("timeout", values.get("default-timeout", "15"))
    try:
        seconds = float(timeout)
    except ValueError:
        raise UsageError(f"pip's timeout is {timeout!r}: not a number of seconds") from None
    no_index = values.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t")
    main = values.get("index-url") or values.get("pypi-url") or PYPI
    return PipSettings(
        index_urls=() if no_index else (main, *words("extra-index-url")),
        find_links=words("find-links"), trusted_hosts=words("trusted-host"),
        cert=values.get("cert"), client_cert=values.get("client-cert"),
        proxy=values.get("proxy"), timeout=seconds,
    )


class Index:
    """The find-links folders and indexes of pip's settings, asked one by one in that order.

    One that cannot be reached does not stop the next, as in pip; what went wrong collects in `problems`.
    """

    def __init__(self, settings: PipSettings | None = None) -> None:
        self.settings = settings or pip_settings()
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
        problems = f"; {'; '.join(self.problems)}" if self.problems else ""
        return FetchError(f"{what} was not found (asked {where}){problems}")


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
    return str(error) or type(error).__name__


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
