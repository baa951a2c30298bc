"""What the user means by FILE: a path, or the name of a file in a pinned release."""
from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from migrate.errors import UsageError
from migrate.project import PackageProject, Upstream, of_path
from upstream_snapshots import sync
from upstream_snapshots.sync import Snapshot

Ensure = Callable[[Snapshot], Path]     # sync.ensure, with progress bars or without


def upstream_of(snapshot: Snapshot, ensure: Ensure = sync.ensure) -> Upstream:
    """A pinned release, fetched if it is not here yet."""
    return Upstream(ensure(snapshot), snapshot.port_as, snapshot.package, snapshot.name, snapshot.version,
                    snapshot.licence)


def find(name: str, ensure: Ensure = sync.ensure) -> tuple[PackageProject, str]:
    """The package and the file in it.

    `name` is a path, or the end of a path in the pinned releases (`mamba3_siso_bwd.py`, `cp/chunk_delta_h.py`), or
    that after `fla-core==0.5.2:`. Raises UsageError for a folder, for nothing of that name, and for several.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return _on_disk(path.resolve(), ensure)
    if path.is_dir():
        raise UsageError(f"{name} is a folder: name a file (`migrate scan {name}` looks at all that is in it)")
    snapshots, wanted, hits = released(name)
    if len(hits) == 1:
        snapshot, file = hits[0]
        return PackageProject(upstream_of(snapshot, ensure)), file
    if hits:
        shown = "\n".join(f"  migrate port {s.spec}:{f}" for s, f in hits)
        raise UsageError(f"{name} names {len(hits)} files; say which:\n{shown}")
    known = {Path(f).name for s in snapshots for f in sync.files(s)}
    near = difflib.get_close_matches(Path(wanted).name, known, n=3)
    hint = f"; like it: {', '.join(near)}" if near else ""
    raise UsageError(f"{name}: no such file here, and none in {', '.join(s.spec for s in snapshots)}{hint}")


def released(name: str) -> tuple[list[Snapshot], str, list[tuple[Snapshot, str]]]:
    """The pinned releases that `name` speaks of, the end of a path in it, and the files that end like that."""
    spec, colon, suffix = name.partition(":")
    snapshots = [sync.find(spec)] if colon else sync.load()
    wanted = (suffix if colon else name).removeprefix("./")
    hits = [(s, f) for s in snapshots for f in sync.files(s) if wanted and (f == wanted or f.endswith("/" + wanted))]
    return snapshots, wanted, hits


def _on_disk(path: Path, ensure: Ensure) -> tuple[PackageProject, str]:
    for snapshot in sync.load():
        if snapshot.is_unpacked and path.is_relative_to(snapshot.root.resolve()):
            upstream = upstream_of(snapshot, ensure)
            return PackageProject(upstream), path.relative_to(snapshot.root.resolve()).as_posix()
    upstream = of_path(path)
    return PackageProject(upstream), path.relative_to(upstream.root).as_posix()
