"""ports.lock against the rules as they are now: a few files of each release, to be quick."""
from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from migrate import lock
from migrate.errors import MigrateError
from migrate.find import upstream_of
from migrate.port import Settings
from migrate.sweep import Row, Task, _Pool
from upstream_snapshots import sync

PLACE = Path(__file__).parents[1] / "ported_kernels/ports.lock"
ALWAYS = {"mamba3_siso_bwd.py", "mamba3_mimo_utils.py", "ssd_chunk_state.py", "selective_state_update.py"}
EVERY = 12          # one file in so many: about 20 seconds on two cores


def sample(names: list[str]) -> list[str]:
    return [n for i, n in enumerate(names) if i % EVERY == 0 or Path(n).name in ALWAYS]


@pytest.mark.skipif(not PLACE.exists(), reason="no ports.lock yet")
def test_ports_are_as_locked() -> None:
    """A rule changed on purpose? `migrate port --all mamba-ssm==2.3.2.post1 --all ... --dry-run --lock`"""
    locked = lock.read(PLACE)
    settings = Settings.make()
    tasks = []
    for spec, files in locked.items():
        try:
            upstream = upstream_of(sync.find(spec))
        except MigrateError as error:
            pytest.skip(f"{spec} cannot be had here: {error}")
        tasks += [Task(upstream, path, settings, False) for path in sample(list(files))]
    with _Pool(None) as pool:
        rows: list[Row] = list(pool.map(tasks))
    now = tomllib.loads(lock.render(rows))
    assert now == {spec: {p: e for p, e in files.items() if p in now[spec]} for spec, files in locked.items()}


def test_every_release_is_locked() -> None:
    if not PLACE.exists():
        pytest.skip("no ports.lock yet")
    assert sorted(lock.read(PLACE)) == sorted(s.spec for s in sync.load())
