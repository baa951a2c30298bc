"""Ports that operators run: made where they are missing, or not what the rules make today.

Nothing here imports torch, so that the gate can ask for a port as well.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from migrate import command, config, encoding, header
from migrate.asked import parse
from migrate.port import Settings
from migrate.result import Result
from migrate.write import Status
from upstream_snapshots import sync

_MAMBA = "mamba_ssm/ops/triton/"
RUN = frozenset(("mamba-ssm==2.3.2.post1", _MAMBA + name) for name in (
    "layernorm_gated.py", "mamba3/mamba3_mimo_utils.py", "mamba3/mamba3_siso_bwd.py", "mamba3/mamba3_siso_fwd.py",
    "selective_state_update.py", "ssd_bmm.py", "ssd_chunk_scan.py", "ssd_chunk_state.py", "ssd_state_passing.py"))
"""Release and path of the files whose plain ports operators run; a test compares it with the catalogue,
whose import needs torch."""


@dataclass(frozen=True)
class Wanted:
    """A port, and what it is made from: `path` of `release`, with the options `asked` of `migrate port`."""

    place: Path
    release: str
    path: str
    asked: str = ""

    @property
    def output(self) -> Path:
        """The folder below which ports keep their package's paths; only the package's own name may differ there."""
        return self.place.parents[len(PurePath(self.path).parts) - 1]


def verifiable(result: Result) -> bool:
    """Whether `migrate verify` runs this port: an operator has it, it lies in its place and is made as always."""
    first = result.ports[0]
    return ((first.project.upstream.spec, first.path) in RUN and not result.settings.asked
            and result.output.resolve() == command.default_output().resolve())


def make(wanted: Iterable[Wanted], note: Callable[[str], None] = lambda text: None) -> None:
    """`note` hears of each port that is made. One that was edited by hand is left as it is.

    Raises MigrateError when a release cannot be had or a port cannot be made.
    """
    todo = list(dict.fromkeys(wanted))
    if not todo:
        return
    known = config.load(Path.cwd())
    for port in todo:
        settings = Settings.make(only=known.select, ignore=known.ignore, target=known.target or Settings.target,
                                 triton_ascend=known.triton_ascend or Settings.triton_ascend, asked=parse(port.asked))
        place = port.place
        text = encoding.decode(place.read_bytes(), str(place)).text if place.is_file() else ""
        made = header.read(text)
        if made is not None and header.edited(text):
            note(f"{place.name}: edited by hand since it was ported; running it as it is")
            continue
        expected = sync.find(port.release).hashes[port.path]
        if made is not None and (made.tool, made.sha256) == (settings.tool, expected):
            continue
        result = command.port(f"{port.release}:{port.path}", settings, port.output)
        if any(status is not Status.SAME for status in result.statuses):
            note(f"ported {port.path} of {port.release}{f', {port.asked}' if port.asked else ''}")
