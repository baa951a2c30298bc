"""What the tests of the virtual NPU share: launches that keep their findings instead of raising them."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from migrate.vnpu import device


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("MIGRATE_CACHE", str(folder))
        yield folder


@pytest.fixture
def npu(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[device.Device]:
    """A new device, entered; a skip where the toolchain is not there."""
    if reason := device.unusable():
        pytest.skip(reason)
    monkeypatch.setattr(device, "_device", None)
    monkeypatch.setattr(device, "settings", device.Settings(strict=False))
    with device.entered() as found:
        yield found
