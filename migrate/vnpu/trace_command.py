"""`migrate check X --trace FILE`: run one launch of what is asked for on the virtual NPU, and write its trace."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from migrate.errors import UsageError
from migrate.gate import targets, units
from migrate.gate.toolchain import Toolchain
from migrate.gate.units import Unit
from migrate.vnpu import device, trace
from migrate.vnpu.machine import Options, Run


def run(names: Sequence[str], out: Path, toolchain: Toolchain, *, target: str = "", only: str = "",
        case_files: Sequence[Path] = (), root: Path | None = None) -> Iterator[str]:
    """Write the trace of program 0 of one launch, and yield what to tell. Of the cases whose name contains `only` the
    first is taken; of its launches, the one whose program takes the most model cycles. Raises UsageError when nothing
    can be run, NotCompiled when a kernel of the case does not compile."""
    if reason := device.unusable():
        raise UsageError(f"--trace runs the kernel on the virtual NPU: {reason}")
    if len(names) != 1 or names[0] == "all":
        raise UsageError(f"--trace takes one file or operator, got {' '.join(names)}")
    [unit] = units.resolve(names, toolchain, case_files=case_files, root=root)
    case, runs = launches(unit, target, only)
    longest = max(runs, key=lambda run: max(run.cycles, default=0.0))
    made = trace.timeline(longest.events)
    title = f"{longest.kernel}, grid {'x'.join(map(str, longest.grid))}, program 0, case {case!r} of {unit.name}"
    out.write_text(json.dumps(trace.chrome(made, title)))
    if len(runs) > 1:
        others = ", ".join(dict.fromkeys(run.kernel for run in runs if run is not longest))
        yield f"{len(runs)} launches in this case; the longest is shown, not {others or 'the others of this kernel'}"
    yield from trace.report(made, title)
    for finding in longest.errors:
        yield f"error: {finding}"
    yield f"wrote {out}; open it in https://ui.perfetto.dev"


def launches(unit: Unit, target: str, only: str) -> tuple[str, list[Run]]:
    """The first case whose name contains `only`, and its launches, program 0 of each run and logged."""
    chosen = device.Device(device.Settings(target or targets.DEFAULT, Options(programs=(0,), trace=True), strict=False))
    if chosen.target.family == "A5":
        raise UsageError(f"{chosen.target.name}: the virtual NPU does not read the HIVM of the 950 family")
    names = []
    with device.entered(chosen):
        for name, call in cases_of(unit, chosen):
            names.append(name)
            if only in name:
                call()
                runs = [run for run in chosen.take() if run.events]
                if not runs:
                    raise UsageError(f"{unit.name}: case {name!r} launches nothing")
                return name, runs
    raise UsageError(f"{unit.name}: no case matches {only!r}; there are {', '.join(names) or 'none'}")


def cases_of(unit: Unit, chosen: device.Device) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The unit's cases, as `migrate check` names them."""
    from migrate.gate.child import cases, npu
    from migrate.gate.child.load import load

    npu.install(chosen.target.name, chosen.target.cube_cores)
    for operator in unit.operators:
        yield from cases.of_operator(operator, "vnpu")
    if unit.case_files:
        module = load(unit.file, unit.root)
        for file in unit.case_files:
            yield from cases.of_file(file, module)
