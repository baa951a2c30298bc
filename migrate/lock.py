"""ports.lock: what the rules make of each upstream file, so that a change of a rule shows in review."""
from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from migrate.errors import UsageError
from migrate.sweep import Row

FIRST = """\
# Written by `migrate port --all NAME==VERSION ... --lock`; tests/test_lock.py compares.
# upstream: sha256 of the upstream file. port: sha256 of the ported file without its header.
# changes, open: how often each rule changed something, and left something to a person.
"""


def render(rows: Iterable[Row]) -> str:
    """The same text for the same rows, in whatever order they come."""
    out = [FIRST]
    for row in sorted(rows, key=lambda r: (r.upstream.spec, r.path)):
        out.append(f'\n["{row.upstream.spec}"."{row.path}"]\n')
        if row.error:
            out.append('port = "failed"\n')
            continue
        out.append(f'upstream = "{row.sha256}"\nport = "{row.body}"\n')
        for name, counts in (("changes", row.fired), ("open", row.open)):
            if counts:
                out.append(f"{name} = {{ {_counts(counts)} }}\n")
    return "".join(out)


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{rule} = {counts[rule]}" for rule in sorted(counts))


def read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Release -> file -> entry."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
