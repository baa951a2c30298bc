"""[tool.migrate] in the pyproject.toml of the working directory, or of the nearest folder above it."""
from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrate.errors import UsageError


@dataclass(frozen=True)
class Config:
    """Defaults for the options of the same names. `output` is relative to the folder of pyproject.toml."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    output: Path | None = None
    target: str | None = None
    triton_ascend: str | None = None


def load(folder: Path) -> Config:
    """Raises UsageError for a file that does not parse, an unknown key, or a value of the wrong type."""
    file = next((d / "pyproject.toml" for d in (folder, *folder.parents) if (d / "pyproject.toml").is_file()), None)
    if file is None:
        return Config()
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("migrate", {})
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from error
    return _check(table, file)


def _check(table: Any, file: Path) -> Config:
    kinds = {"select": list, "ignore": list, "output": str, "target": str, "triton-ascend": str}
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [tool.migrate] is not a table")
    for key, value in table.items():
        if key not in kinds:
            raise UsageError(f"{file}: [tool.migrate] has no key {key!r}; it has {', '.join(kinds)}")
        strings = not isinstance(value, list) or all(isinstance(v, str) for v in value)
        if not isinstance(value, kinds[key]) or not strings:
            raise UsageError(f"{file}: [tool.migrate] {key}: expected "
                             f"{'a list of strings' if kinds[key] is list else 'a string'}")
    output = table.get("output")
    return Config(tuple(table.get("select", ())), tuple(table.get("ignore", ())),
                  file.parent / output if output is not None else None,
                  table.get("target"), table.get("triton-ascend"))
