"""Fixtures that several test files share."""
from __future__ import annotations

from pathlib import Path

import pytest
import toy as toy_package


@pytest.fixture
def toyk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> toy_package.Toy:
    """Two pinned releases of a toy package, and a folder to work in."""
    return toy_package.make(tmp_path, monkeypatch, capsys)
