"""What the gate's tests share: a toolchain, or a skip that says why, and a cache of the session's own."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from migrate.errors import UsageError
from migrate.gate import toolchain


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("MIGRATE_CACHE", str(folder))
        patch.delenv("COLUMNS", raising=False)   # pytest-xdist sets it, and reports fold to it
        yield folder


@pytest.fixture(scope="session")
def chain() -> toolchain.Toolchain:
    try:
        return toolchain.find()
    except UsageError as error:
        pytest.skip(str(error))
