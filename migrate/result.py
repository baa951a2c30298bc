"""What one run of `migrate port` did, for the reports."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.port import Ported, Settings
from migrate.rule import Safety
from migrate.write import Status


@dataclass(frozen=True)
class Result:
    """The closure of one FILE: that file first. `written` is False for --dry-run and --check."""

    ports: Sequence[Ported]
    statuses: Sequence[Status]
    output: Path
    settings: Settings
    written: bool

    @property
    def fired(self) -> Counter[str]:
        return sum((p.fired for p in self.ports), Counter())

    @property
    def names(self) -> dict[str, str]:
        return {r.id: r.name for r in self.settings.rules}

    @property
    def safety(self) -> dict[str, Safety]:
        return {r.id: r.safety for r in self.settings.rules}

    @property
    def would_change(self) -> bool:
        return any(s.would_write for s in self.statuses)

    @property
    def has_open(self) -> bool:
        return any(p.open for p in self.ports)


def shown(path: Path) -> str:
    """A path as the user would type it: relative to where they are, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
