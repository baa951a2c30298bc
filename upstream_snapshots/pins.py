"""Which upstream releases are pinned, and where each one lies once unpacked.

Two files hold the pins. snapshots.toml has one short table a release, for people to review.
snapshots.sha256 has the hashes of the unpacked files, as `sha256sum` writes them: the table stays
readable, tomllib (pure Python) need not chew 100 kB at every start, and
`cd unpacked && sha256sum -c --ignore-missing ../snapshots.sha256` checks a tree without this tool.
"""
from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from migrate.errors import UsageError

HERE = Path(__file__).resolve().parent
KEYS = ("name", "version", "file", "sha256", "licence", "package", "port_as")


def unpacked_folder() -> Path:
    """Where releases are unpacked: $MIGRATE_SNAPSHOTS, else `unpacked/` beside this module."""
    chosen = os.environ.get("MIGRATE_SNAPSHOTS")
    return Path(chosen).expanduser().absolute() if chosen else HERE / "unpacked"


@dataclass(frozen=True)
class Snapshot:
    """One pinned release.

    `file` and `sha256` are the archive on the package index, `licence` is the SPDX id that the release
    states, `package` the import name, `port_as` the folder its ports take under ported_kernels/generated.
    `hashes` maps each unpacked file (posix path below `folder`) to its sha256.
    """

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    package: str
    port_as: str
    hashes: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def spec(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def folder(self) -> Path:
        return unpacked_folder() / f"{self.name}-{self.version}"

    @property
    def root(self) -> Path:
        """The folder that would be on sys.path: `root / "mamba_ssm/ops"`."""
        return self.folder / self._prefix if self._prefix else self.folder

    @property
    def is_unpacked(self) -> bool:
        """Is it there? It arrives by one rename, so it is there whole or not at all; see sync.ensure."""
        return self.folder.is_dir()

    @property
    def _prefix(self) -> str:
        return "src/" if f"src/{self.package}/__init__.py" in self.hashes else ""


def files(snapshot: Snapshot) -> list[str]:
    """The .py files of a release, as sorted posix paths relative to its root; no disk is touched."""
    prefix = snapshot._prefix
    return sorted(path.removeprefix(prefix) for path in snapshot.hashes
                  if path.endswith(".py") and path.startswith(prefix))


def load() -> list[Snapshot]:
    """All pinned releases, in the order of snapshots.toml.

    Raises UsageError when the pins do not parse, lack a key or hashes, or two share a port folder.
    """
    pins = HERE / "snapshots.toml"
    hashes = _load_hashes()
    try:
        tables = tomllib.loads(pins.read_text(encoding="utf-8")).get("snapshot", [])
    except OSError as error:
        raise UsageError(f"{pins}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{pins}: {error}") from error
    snapshots: list[Snapshot] = []
    for table in tables:
        wrong = [key for key in KEYS if not isinstance(table.get(key), str)] + sorted(set(table) - set(KEYS))
        if wrong:
            name = table.get("name", "a snapshot")
            raise UsageError(f"{pins}: {name}: missing or unknown: {', '.join(wrong)}")
        if parse_spec(f"{table['name']}=={table['version']}")[0] != table["name"]:
            raise UsageError(f"{pins}: write {canonicalize_name(table['name'])!r}, not {table['name']!r}")
        folder = f"{table['name']}-{table['version']}"
        if folder not in hashes:
            raise UsageError(f"{pins}: {folder} has no file hashes in snapshots.sha256")
        snapshot = Snapshot(**table, hashes=hashes[folder])
        for other in snapshots:
            if other.port_as == snapshot.port_as:
                raise UsageError(f"{pins}: {other.spec} and {snapshot.spec} port as {snapshot.port_as!r}")
        snapshots.append(snapshot)
    return snapshots


def parse_spec(spec: str) -> tuple[str, Version | None]:
    """`fla-core==0.5.2` or `fla-core` as (name as PEP 503 spells it, version or None).

    Raises UsageError for anything else.
    """
    name, equals, version = (part.strip() for part in spec.partition("=="))
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise UsageError(f"{spec!r} is not NAME or NAME==VERSION")
    try:
        return canonicalize_name(name), Version(version) if equals else None
    except InvalidVersion:
        raise UsageError(f"{spec!r}: {version!r} is not a version") from None


def find(spec: str) -> Snapshot:
    """The pinned release that `spec` means, as in "mamba-ssm" or "fla-core==0.5.2".

    Raises UsageError when none is pinned or when a bare name has several versions; it lists them.
    """
    name, version = parse_spec(spec)
    pinned = load()
    found = [s for s in pinned if s.name == name and version in (None, Version(s.version))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{spec}: several versions are pinned, name one: {', '.join(s.spec for s in found)}")
    raise UsageError(f"{spec} is not pinned (migrate snapshot add NAME==VERSION); "
                     f"pinned: {', '.join(s.spec for s in pinned) or 'nothing'}")


def append(snapshot: Snapshot) -> None:
    """Add a release to the pins. The table is written last: hashes without a table count for nothing."""
    folder = f"{snapshot.name}-{snapshot.version}"
    sidecar = HERE / "snapshots.sha256"
    old = sidecar.read_text(encoding="utf-8").splitlines() if sidecar.exists() else []
    lines = [line for line in old if not line[66:].startswith(f"{folder}/")]
    lines += [f"{sha256}  {folder}/{path}" for path, sha256 in sorted(snapshot.hashes.items())]
    _replace(sidecar, "".join(f"{line}\n" for line in lines))
    pins = HERE / "snapshots.toml"
    # A JSON string is a TOML basic string.
    table = "".join(f"{key} = {json.dumps(getattr(snapshot, key))}\n" for key in KEYS)
    text = pins.read_text(encoding="utf-8").rstrip() if pins.exists() else ""
    _replace(pins, f"{text}\n\n[[snapshot]]\n{table}".lstrip())


def _load_hashes() -> dict[str, dict[str, str]]:
    """snapshots.sha256 as {folder: {path below it: sha256}}."""
    sidecar = HERE / "snapshots.sha256"
    hashes: dict[str, dict[str, str]] = {}
    try:
        lines = sidecar.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{sidecar}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9a-f]{64})  ([^/]+)/(.+)", line)
        if not match:
            raise UsageError(f"{sidecar}:{number}: expected `sha256  folder/path`, got {line[:80]!r}")
        hashes.setdefault(match[2], {})[match[3]] = match[1]
    return hashes


def _replace(path: Path, text: str) -> None:
    """Write beside and rename: a reader sees the old text or the new one, never a part."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
