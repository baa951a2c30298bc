"""Print the operators of the catalogue as one line of JSON: name, the file of the wrapper, its import root, and the
port that must have been made with options of its own, if there is one.

Those that run a plain port are left out: the gate checks ports as files, at the shapes of a model.
"""
from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any


def wrapper_file(operator: Any) -> Path:
    place = operator.wrapper.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).resolve()
    spec = importlib.util.find_spec(place)
    assert spec and spec.origin
    return Path(spec.origin).resolve()


def main() -> None:
    catalog = importlib.import_module("ported_kernels.catalog")

    print(json.dumps({name: {"file": str(wrapper_file(operator)), "root": str(operator.import_root or ""),
                             "port": port(operator)}
                      for name, operator in catalog.operators().items()
                      if not operator.port or operator.upstream.asked}))


def port(operator: Any) -> dict[str, str] | None:
    """As `migrate.ports.Wanted` has it."""
    upstream = operator.upstream
    return {"place": str(operator.port), "release": upstream.release, "path": upstream.path,
            "asked": upstream.asked} if operator.port else None


if __name__ == "__main__":
    main()
