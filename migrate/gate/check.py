"""The check itself: units x cases x targets -> verdicts."""
from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from migrate.errors import UsageError
from migrate.gate import cache, compiler, diagnose, hivm, process, remedy, targets
from migrate.gate.cost import Cost, Line, read
from migrate.gate.record import Failed, Launch, Record, profile, record
from migrate.gate.result import STAGES, Diagnosis, Outcome, Place, Result, Stage, Verdict
from migrate.gate.targets import Target
from migrate.gate.toolchain import Toolchain, assembler
from migrate.gate.ttir import Ttir
from migrate.gate.units import Kernel, Unit, read_source

NO_CASE = "no case reaches it"
HOW_TO_REACH = ("say how it is launched: a file with a function cases() that calls the wrapper on CPU tensors, given "
                "with --cases FILE; docs/gate.md has an example to copy")
GRID_LIMIT = 65_535   # programs a launch: the block number is 16 bits wide (triton-ascend, driver.py)


def _jobs() -> int:
    return max(1, min(os.cpu_count() or 1, process.Limits().memory * 4 // (2 << 30)))


@dataclass(frozen=True)
class Settings:
    targets: tuple[str, ...] = (targets.DEFAULT,)
    only: str = ""                       # cases whose name contains this
    limits: process.Limits = field(default_factory=process.Limits)
    jobs: int = field(default_factory=_jobs)
    use_cache: bool = True


def check(units: Sequence[Unit], toolchain: Toolchain, settings: Settings,
          progress: Callable[[str], None] = lambda _: None) -> Result:
    """Compile everything that the cases of `units` launch, for every target."""
    start = time.monotonic()
    chosen = [targets.get(name) for name in settings.targets]
    records = {}
    for target in chosen:
        if profile(target) not in records:
            records[profile(target)] = record(units, target, toolchain, settings.limits, only=settings.only,
                                              use_cache=settings.use_cache, progress=progress)
    _known_case(settings.only, [found for some in records.values() for found in some])
    judge = _Judge(toolchain, settings, progress)
    process.interrupted.clear()
    with ThreadPoolExecutor(settings.jobs) as pool:
        jobs = []
        try:
            for target in chosen:
                for found in records[profile(target)]:
                    jobs += [pool.submit(job) for job in judge.jobs(found, target)]
            verdicts = [verdict for job in jobs for verdict in job.result()]
        except KeyboardInterrupt:
            process.interrupted.set()
            pool.shutdown(cancel_futures=True)
            raise
    verdicts = _settle_configs(verdicts)
    real = assembler(chosen[0].assembler)
    return Result(verdicts, [t.name for t in chosen], toolchain.versions,
                  f"real ({real})" if real else f"not tried ({chosen[0].assembler} is part of CANN)",
                  round(time.monotonic() - start, 2))


def _known_case(only: str, found: Sequence[Record]) -> None:
    """Raises UsageError where there are cases, and none of them was meant."""
    known = list(dict.fromkeys(name for record in found for name in record.known))
    if only and known and not any(record.cases or record.imports or record.failed_cases for record in found):
        raise UsageError(f"no case matches {only!r}; there are {'; '.join(known)}")


class _Judge:
    def __init__(self, toolchain: Toolchain, settings: Settings, progress: Callable[[str], None]) -> None:
        self.toolchain, self.settings, self.progress = toolchain, settings, progress
        self.compiler = compiler.Compiler(toolchain, settings.limits, settings.use_cache)
        self.costs = cache.Entries("cost")
        # the targets of one launch share its linalg: made once, by whoever comes first
        self._linalg = lru_cache(maxsize=None)(
            lambda ttir, flags: self.compiler.to_linalg(Path(ttir), flags))

    def jobs(self, found: Record, target: Target) -> list[Callable[[], list[Verdict]]]:
        """One piece of work for each launch; what never got to a launch needs none."""
        source = read_source(found.unit.file)
        start = [Stage("parses", Outcome.OK)]
        if source.error:
            stage = Stage("parses", Outcome.FAILED, str(source.error))
            place = Place(str(found.unit.file), source.error.lineno or 0)
            verdict = Verdict(found.unit.name, "", target.name, place=place, stages=[stage], diagnoses=[
                Diagnosis("syntax-error", "error", source.error.msg, "", place)])
            return [lambda: [verdict]]
        if found.imports:
            return [lambda: [self._stopped(found, target, k, [*start, _stage("imports", found.imports)], found.imports)
                             for k in source.kernels or [Kernel("", 0)]]]
        start.append(Stage("imports", Outcome.OK))
        jobs: list[Callable[[], list[Verdict]]] = [
            lambda launch=launch: [self._launch(found, launch, target, list(start))]  # type: ignore[misc]
            for launch in found.launches.values()]
        stuck = [self._stopped(found, target, Kernel("", 0), [*start, _stage("launch", failed)], failed, [case])
                 for case, failed in found.failed_cases.items()]
        reached = {launch.facts["kernel"] for launch in found.launches.values()}
        # a file answers for every kernel in it; an operator, and a choice of cases, for what they launch
        whole = not self.settings.only and found.unit.name not in found.unit.operators
        idle = [k for k in source.kernels if k.name not in reached] if whole else []
        untried = [Verdict(found.unit.name, k.name, target.name, place=Place(str(found.unit.file), k.line),
                           stages=[*start, Stage("launch", Outcome.NOT_TRIED, NO_CASE)]) for k in idle]
        if not reached and not stuck and not untried:
            untried = [Verdict(found.unit.name, "", target.name, stages=[
                *start, Stage("launch", Outcome.NOT_TRIED, "no case" + (
                    f" matches {self.settings.only!r}" if self.settings.only else " launches anything"))])]
        return [*jobs, lambda: stuck + untried]

    def _stopped(self, found: Record, target: Target, kernel: Kernel, stages: list[Stage], failed: Failed,
                 cases: Sequence[str] = ()) -> Verdict:
        place = Place(str(found.unit.file), kernel.line) if kernel.line else None
        diagnosis = diagnose.front_end(failed.error)
        if failed.outcome is not Outcome.FAILED:
            diagnosis.name = f"{stages[-1].name}-{failed.outcome.replace(' ', '-')}"
        stages[-1].why = diagnosis.message
        return Verdict(found.unit.name, kernel.name, target.name, list(cases), place=place, stages=stages,
                       diagnoses=[diagnosis], reproduce=_again(found.unit, target, cases))

    def _launch(self, found: Record, launch: Launch, target: Target, stages: list[Stage]) -> Verdict:
        facts = launch.facts
        verdict = Verdict(found.unit.name, facts["kernel"], target.name, launch.cases, facts["config"],
                          Place(facts["file"], facts["line"]), facts, stages,
                          reproduce=_again(found.unit, target, launch.cases))
        self.progress(f"{verdict.kernel} {target.name}")
        self._grid(verdict)
        if launch.failed:
            verdict.diagnoses.append(diagnose.front_end(launch.failed.error))
            if launch.failed.outcome is not Outcome.FAILED:
                verdict.diagnoses[-1].name = f"front-end-{launch.failed.outcome.replace(' ', '-')}"
                if launch.failed.error.get("killed") == "memory":
                    verdict.diagnoses[-1].name = "compiler-memory"
            stages.append(Stage("TTIR", launch.failed.outcome, verdict.diagnoses[-1].message))
            return verdict
        assert launch.ttir
        stages.append(Stage("TTIR", Outcome.OK))
        ttir = Ttir(launch.ttir.read_text())
        step = self._linalg(str(launch.ttir), tuple(launch.adapter))
        if step.outcome is not Outcome.OK:
            verdict.diagnoses.append(self._failure(step, ttir, verdict))
            verdict.reproduce = step.command
            stages.append(Stage("linalg", step.outcome, verdict.diagnoses[-1].message))
            return verdict
        stages.append(Stage("linalg", Outcome.OK))
        self._compile(verdict, launch, Path(step.text), ttir, target)
        return verdict

    def _grid(self, verdict: Verdict) -> None:
        stage = Stage("launch", Outcome.OK)
        for grid in verdict.launch["grids"]:
            programs = 1
            for extent in grid:
                programs *= extent
            if programs > GRID_LIMIT:
                at = verdict.launch["launched_at"]
                verdict.diagnoses.append(Diagnosis(
                    "grid-too-large", "error", f"the grid {tuple(grid)} has {programs:,} programs, the launcher takes "
                    f"{GRID_LIMIT:,}", "a grid of the physical cores, and a loop over the work in the kernel",
                    Place(at[0], at[1])))
                stage = Stage("launch", Outcome.FAILED, verdict.diagnoses[-1].message)
        verdict.stages.append(stage)

    def _compile(self, verdict: Verdict, launch: Launch, linalg: Path, ttir: Ttir, target: Target) -> None:
        steps = self.compiler.to_hivm(linalg, launch.compiler, target)
        first, last = steps[0], steps[-1]
        verdict.cached = all(step.cached for step in steps)
        if last.outcome is not Outcome.OK:
            verdict.diagnoses.append(self._failure(first, ttir, verdict))
            if len(steps) > 1:
                verdict.diagnoses[-1].hint += "; tried in vain: " + "; ".join(
                    _options(step.options) for step in steps[1:])
            verdict.stages.append(Stage("HIVM", first.outcome, verdict.diagnoses[-1].message))
            verdict.reproduce = first.command
            return
        why = ""
        if last is not first:
            failure = self._failure(first, ttir, verdict)
            failure.severity = "warning"
            verdict.needs = last.options
            failure.hint = remedy.launch(last.options, launch.facts)
            verdict.diagnoses.append(failure)
            verdict.reproduce = first.command
            why = f"with {_options(last.options)}; as launched: {first.outcome}, {first.why}"
        else:
            verdict.reproduce = ""
        verdict.stages.append(Stage("HIVM", Outcome.OK, why))
        verdict.hivm = last.text
        verdict.stages.append(self._binary(last, target))
        cost = self._cost(Path(last.text), launch, target)
        verdict.cost = cost.as_dict() if isinstance(cost, Cost) else {"unread": cost}
        verdict.diagnoses += diagnose.compiled(last, cost if isinstance(cost, Cost) else None, ttir)

    def _failure(self, step: compiler.Step, ttir: Ttir, verdict: Verdict) -> Diagnosis:
        found = diagnose.compile_step(step, ttir, verdict.launch["constants"])
        if found.buffer and not found.padded and verdict.place:
            found.hint = "; ".join(filter(None, (found.hint, remedy.split(verdict.place.file, found.tiles))))
        found.place = found.place or verdict.place   # the kernel itself, where no line is to blame
        return found

    def _binary(self, step: compiler.Step, target: Target) -> Stage:
        if not step.binary:
            return Stage("binary", Outcome.NOT_TRIED, f"{target.assembler} is part of CANN")
        ok = step.binary == "ok"
        return Stage("binary", Outcome.OK if ok else Outcome.FAILED, "" if ok else step.binary)

    def _cost(self, path: Path, launch: Launch, target: Target) -> Cost | str:
        """What the kernel does, or why that could not be read."""
        if target.family == "A5":
            return "reading the HIVM of the 950 family is not supported"
        facts = launch.facts
        names = [name for name in facts["signature"] if name not in facts["constants"]]
        grid = [*facts["grids"][0], 1, 1] if facts["grids"] else [1, 1, 1]
        known = {**facts["scalars"], "grid_x": grid[0], "grid_y": grid[1], "grid_z": grid[2]}
        text = re.sub(r'"Ascend[\w-]+"|"\w+_CORE_COUNT", \d+', "", path.read_text())   # all a target changes in it
        key = cache.key(text, names, known, _COST_VERSION)
        if self.settings.use_cache and (found := self.costs.find(key)):
            return _cost_from(found[1])
        try:
            generic = hivm.generic(path, self.toolchain, target, self.settings.limits)
            cost = read(hivm.parse(generic), names, known, self.toolchain.links)
        except hivm.Unreadable as error:
            return str(error)
        self.costs.put(key, cost.as_dict(), {})
        return cost


_COST_VERSION = 4   # raise it when cost.py counts differently


def _cost_from(stored: dict[str, Any]) -> Cost:
    return Cost(**{**stored, "lines": [Line(**line) for line in stored["lines"]]})


def _stage(name: str, failed: Failed) -> Stage:
    return Stage(name, failed.outcome, failed.error["message"])


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _again(unit: Unit, target: Target, cases: Sequence[str]) -> str:
    asked = unit.name if unit.name in unit.operators else str(unit.file)
    case = ["--case", cases[0]] if len(cases) == 1 else []
    return shlex.join(["migrate", "check", asked, *unit.options, "--target", target.name, *case])


def _settle_configs(verdicts: list[Verdict]) -> list[Verdict]:
    """Autotuning skips configurations that do not compile, so one that does is enough; the others become notes."""
    groups: dict[tuple[Any, ...], list[Verdict]] = {}
    for verdict in verdicts:
        key = (verdict.unit, verdict.kernel, verdict.target, tuple(verdict.cases)) if verdict.config else (id(verdict),)
        groups.setdefault(key, []).append(verdict)
    kept = []
    for group in groups.values():
        good = [v for v in group if v.outcome is Outcome.OK]
        if not good:
            kept += group
            continue
        kept += good
        good[0].diagnoses += [Diagnosis("config-rejected", "note", f"{v.config}: {v.line}") for v in group
                              if v not in good]
    return kept


def stages_of(verdict: Verdict) -> list[Stage]:
    """All seven stages of a verdict, the ones never reached included."""
    return [verdict.stage(name) for name in STAGES]
