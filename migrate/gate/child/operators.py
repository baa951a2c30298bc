"""Print the operators of the catalogue as one line of JSON: name, the file of the wrapper, its import root, the port
that must have been made, if there is one, and whether it is the port that is checked.

It is where an operator runs a plain port: the gate checks that as a file, at the shapes of a model.
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
                             "port": port(operator),
                             "checked_as_file": bool(operator.port and not operator.upstream.asked)}
                      for name, operator in catalog.operators().items()}))


def port(operator: Any) -> dict[str, str] | None:
    """As `migrate.ports.Wanted` has it."""
    upstream = operator.upstream
    return {"place": str(operator.port), "release": upstream.release, "path": upstream.path,
            "asked": upstream.asked} if operator.port else None


if __name__ == "__main__":
    main()
