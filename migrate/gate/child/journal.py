"""What a worker tells the command: one JSON object a line, appended in a single write so that forks may share."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._unit = ""

    def about(self, unit: str) -> None:
        """Name the unit that the next events belong to."""
        self._unit = unit

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "unit": self._unit, **fields}, default=repr)
        os.write(self._fd, line.encode() + b"\n")

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def since(self, offset: int) -> list[dict[str, Any]]:
        """The events written after the journal had this size."""
        with self._path.open("rb") as file:
            file.seek(offset)
            return [json.loads(line) for line in file.read().splitlines()]
