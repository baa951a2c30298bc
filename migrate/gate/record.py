"""What files launch: run a worker on them, read its journal, remember it while no source has changed."""
from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from migrate.gate import cache, process
from migrate.gate.result import Outcome
from migrate.gate.targets import Target
from migrate.gate.toolchain import Toolchain
from migrate.gate.units import Unit


@dataclass
class Failed:
    """A step of a worker that did not end well."""

    outcome: Outcome
    error: dict[str, Any]


@dataclass
class Launch:
    """One specialisation of a kernel, and its TTIR if the front end could make it."""

    key: str
    facts: dict[str, Any]                # kernel, file, line, signature, constants, grids, options, ...
    cases: list[str] = field(default_factory=list)
    ttir: Path | None = None
    failed: Failed | None = None
    adapter: list[str] = field(default_factory=list)
    compiler: list[str] = field(default_factory=list)


@dataclass
class Record:
    """All that a worker found out about one unit."""

    unit: Unit
    imports: Failed | None = None        # None: it imports
    imported: bool = False
    launches: dict[str, Launch] = field(default_factory=dict)
    failed_cases: dict[str, Failed] = field(default_factory=dict)
    cases: list[str] = field(default_factory=list)     # those that were run
    known: list[str] = field(default_factory=list)     # all that there are
    cached: bool = False


def profile(target: Target) -> tuple[int, int, str]:
    """Targets that a wrapper cannot tell apart by what it may ask the driver: they launch the same."""
    return target.cube_cores, target.vector_cores, target.family


def record(units: Sequence[Unit], target: Target, toolchain: Toolchain, limits: process.Limits, *, only: str = "",
           use_cache: bool = True, progress: Callable[[str], None] = lambda _: None) -> list[Record]:
    """The launches of `units` on a device like `target`."""
    entries = cache.Entries("record")
    keys = {unit.name: cache.key(unit.as_request(only), profile(target), toolchain.versions, asdict(limits))
            for unit in units}
    found: dict[str, Record] = {}
    for unit in units if use_cache else ():
        if (entry := entries.find(keys[unit.name])) and _unchanged(entry[1]["sources"]):
            found[unit.name] = _read(unit, entry[1]["events"], entry[0])
            found[unit.name].cached = True
    missing = [unit for unit in units if unit.name not in found]
    if missing:
        with tempfile.TemporaryDirectory(prefix="migrate-gate-") as folder:
            events = _run_worker(missing, target, toolchain, limits, only, Path(folder), progress)
            for unit in missing:
                mine = [e for e in events if e["unit"] == unit.name]
                sources: dict[str, str] = next((e["sources"] for e in mine if e["event"] == "sources"), {})
                texts = {e["key"] + ".ttir.mlir": Path(folder) / (e["key"] + ".ttir.mlir")
                         for e in mine if e["event"] == "ttir" and e["outcome"] == "ok"}
                # stored even when it may not be reused, because the TTIR must outlive the worker's folder
                entry_path = entries.put(keys[unit.name], {"events": mine, "sources": sources}, texts)
                found[unit.name] = _read(unit, mine, entry_path)
    return [found[unit.name] for unit in units]


def _unchanged(sources: dict[str, str]) -> bool:
    try:
        return bool(sources) and all(hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest
                                     for path, digest in sources.items())
    except OSError:
        return False


def _run_worker(units: Sequence[Unit], target: Target, toolchain: Toolchain, limits: process.Limits, only: str,
                folder: Path, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    request = {"out": str(folder), "arch": target.name, "cube_cores": target.cube_cores,
               "vector_cores": target.vector_cores, "a5": target.family == "A5", "limits": asdict(limits),
               "units": [unit.as_request(only) for unit in units]}
    (folder / "request.json").write_text(json.dumps(request))
    journal = folder / "events.jsonl"

    def size() -> int:
        return journal.stat().st_size if journal.exists() else 0

    # the worker keeps the limits of its forks itself; this one is for the worker, should it fail at that
    outer = process.Limits(cpu_s=3 * limits.cpu_s + 30, memory=2 * limits.memory)
    progress(f"recording launches of {', '.join(unit.name for unit in units)[:60]}")
    end = process.run([toolchain.python, "-m", "migrate.gate.child", folder / "request.json"], outer,
                      env=toolchain.environment, progress=size)
    events = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    ended = {e["unit"] for e in events if e["event"] == "end"}
    for unit in units:
        if unit.name not in ended:
            said = end.stderr.strip().splitlines()
            why = f"the worker was stopped ({end.killed})" if end.killed else (said[-1] if said else "the worker died")
            events.append({"event": "imports", "unit": unit.name, "outcome": "crashed", "error": {
                "type": "", "message": why, "file": str(unit.file), "line": 0}})
    return events


def _read(unit: Unit, events: Sequence[dict[str, Any]], folder: Path) -> Record:
    record = Record(unit)
    for event in events:
        kind, outcome = event["event"], Outcome(event.get("outcome", "ok"))
        failed = Failed(outcome, event["error"]) if outcome.bad else None
        if kind == "imports":
            record.imported, record.imports = failed is None, failed
        elif kind == "cases" and failed:
            record.failed_cases[f"the cases of {Path(event['source']).name}"] = failed
        elif kind == "cases":
            record.known += event["names"]
        elif kind == "case":
            if event["case"] not in record.cases:
                record.cases.append(event["case"])
            if failed:
                record.failed_cases[event["case"]] = failed
        elif kind == "launch":
            facts = {k: v for k, v in event.items() if k not in ("event", "unit", "case", "key")}
            launch = record.launches.setdefault(event["key"], Launch(event["key"], facts))
            launch.facts["grids"] += [g for g in facts["grids"] if g not in launch.facts["grids"]]
            if event["case"] not in launch.cases:
                launch.cases.append(event["case"])
        elif kind == "ttir":
            launch = record.launches[event["key"]]
            launch.failed = failed
            if not failed:
                launch.ttir = folder / f"{event['key']}.ttir.mlir"
                launch.adapter, launch.compiler = event["adapter"], event["compiler"]
    return record
