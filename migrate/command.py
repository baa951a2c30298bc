"""`migrate port`: find, port, check what lies there, write."""
from __future__ import annotations

import importlib.util
from pathlib import Path

from migrate import header
from migrate.errors import MigrateError, UsageError
from migrate.find import Ensure, find
from migrate.port import Settings, closure
from migrate.result import Result, shown
from migrate.write import refuse, status, write
from upstream_snapshots import sync


class AlreadyPorted(Exception):
    """The file is a port as it was written: there is nothing to do."""

    def __init__(self, path: Path, made_by: header.Header) -> None:
        super().__init__(f"{shown(path)}: already ported, from {made_by.path} of {made_by.upstream}; nothing to do")


def default_output() -> Path:
    """`generated/` of the package `ported_kernels` that Python would import, so that ports import as its modules."""
    spec = importlib.util.find_spec("ported_kernels")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise UsageError("the package ported_kernels is not installed here; -o DIR says where ports go")
    return Path(places[0]) / "generated"


def port(name: str, settings: Settings, output: Path, *, dry_run: bool = False, force: bool = False,
         ensure: Ensure = sync.ensure) -> Result:
    """Port a FILE and what it needs. Raises MigrateError, and AlreadyPorted for a port as it was written."""
    project, path = find(name, ensure)
    made_by = header.read(project.file(path).text)
    if made_by is not None:
        place = project.upstream.root / path
        if header.edited(project.file(path).text):
            raise MigrateError(f"{place}: was ported from {made_by.path} and then edited by hand; port that file "
                               "with --force to lose the edit, or move this one away to keep it")
        raise AlreadyPorted(place, made_by)
    ports = list(closure(project, path, settings))
    statuses = [status(p.data, output / p.target) for p in ports]
    for ported, found in zip(ports, statuses, strict=True):
        if not force:
            refuse(found, output / ported.target)
    if not dry_run:
        write({p.target: p.data for p in ports}, output)
    return Result(ports, statuses, output, settings, written=not dry_run)
