"""`migrate check`, from options to a result."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from migrate.gate import baseline as baselines
from migrate.gate import check, process, targets, toolchain, units
from migrate.gate.result import Result


def run(names: Sequence[str], *, target_names: Sequence[str], all_targets: bool, only: str, case_files: Sequence[Path],
        root: Path | None, baseline: Path | None, time_limit: float, memory_limit: float, jobs: int,
        use_cache: bool) -> Result:
    chain = toolchain.find()
    limits = process.Limits(time_limit, int(memory_limit * 2**30) if memory_limit else process.Limits().memory)
    settings = check.Settings(_targets(target_names, all_targets), only, limits,
                              **({"jobs": jobs} if jobs else {}), use_cache=use_cache)
    chosen = units.resolve(names, chain, case_files=case_files, root=root,
                           note=lambda text: print(f"migrate: {text}", file=sys.stderr))
    with progress() as say:
        result = check.check(chosen, chain, settings, say)
    if baseline:
        result.regressions = baselines.regressions(baseline, result.verdicts)
    return result


def _targets(named: Sequence[str], all_of_them: bool) -> tuple[str, ...]:
    chosen = [targets.get(name).name for name in named]
    if all_of_them:
        chosen += [name for name in targets.ALL if name not in chosen]
    return tuple(chosen) or (targets.DEFAULT,)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line that says what is being done, on a terminal only."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update
