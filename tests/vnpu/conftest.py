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
def npu(cache_folder: Path) -> Iterator[device.Device]:
    """The device, entered; a skip where the toolchain is not there."""
    if reason := device.unusable():
        pytest.skip(reason)
    before = device.settings
    device.configure(device.Settings(strict=False))
    try:
        with device.entered() as found:
            found.take()
            yield found
    finally:
        device.configure(before)
