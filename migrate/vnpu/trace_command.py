"""`migrate check X --trace FILE`: run one launch of what is asked for on the virtual NPU, and write its trace."""
from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from migrate.errors import DoesNotCompile, MigrateError, UsageError, Wrong
from migrate.gate import targets, units
from migrate.gate.check import HOW_TO_REACH, NO_CASE
from migrate.gate.toolchain import Toolchain
from migrate.gate.units import Unit
from migrate.vnpu import device, trace
from migrate.vnpu.machine import Options, Run


def run(names: Sequence[str], out: Path, toolchain: Toolchain, *, target: str = "", only: str = "",
        case_files: Sequence[Path] = (), root: Path | None = None) -> Iterator[str]:
    """Write the trace of program 0 of one launch, and yield what to tell. Of the cases whose name contains `only` the
    first is taken; of its launches, the one whose program takes the most model cycles. Raises UsageError when nothing
    can be run, DoesNotCompile when a kernel of the case does not compile, MigrateError when the file or the case ends
    otherwise; and Wrong, after all is told, when the checks found errors in the program."""
    if reason := device.unusable():
        raise UsageError(f"--trace runs the kernel on the virtual NPU: {reason}")
    if len(names) != 1 or names[0] == "all":
        raise UsageError(f"--trace takes one file or operator, got {' '.join(names)}")
    [unit] = units.resolve(names, toolchain, case_files=case_files, root=root)
    reachable(unit)
    case, runs = launches(unit, target, only)
    longest = max(runs, key=lambda run: max(run.cycles, default=0.0))
    made = trace.timeline(longest.events)
    title = f"{longest.kernel}, grid {'x'.join(map(str, longest.grid))}, program 0, case {case!r} of {unit.name}"
    try:
        out.write_text(json.dumps(trace.chrome(made, title)))
    except OSError as error:
        raise MigrateError(f"{out}: cannot write the trace: {error.strerror}") from error
    if prod(longest.grid) > 1:
        yield "the other programs of the grid were not run, and not checked: --reduce FOLDER runs all of them"
    if len(runs) > 1:
        others = ", ".join(dict.fromkeys(run.kernel for run in runs if run is not longest))
        yield f"{len(runs)} launches in this case; the longest is shown, not {others or 'the others of this kernel'}"
    yield from trace.report(made, title)
    for finding in longest.errors:
        yield f"error: {finding}"
    yield f"wrote {out}; open it in https://ui.perfetto.dev"
    if longest.errors:
        raise Wrong(f"{longest.kernel}, case {case!r} of {unit.name}: the program is wrong, see the errors above")


def launches(unit: Unit, target: str, only: str) -> tuple[str, list[Run]]:
    """The first case whose name contains `only`, and its launches, program 0 of each run and logged."""
    chosen = device.Device(device.Settings(target or targets.DEFAULT, Options(programs=(0,), trace=True), strict=False))
    if chosen.target.family == "A5":
        raise UsageError(f"{chosen.target.name}: the virtual NPU does not read the HIVM of the 950 family")
    names = []
    with device.entered(chosen), explained(unit):
        for name, call in cases_of(unit, chosen):
            names.append(name)
            if only in name:
                with explained(unit, f"case {name!r} of "):
                    call()
                runs = [run for run in chosen.take() if run.events]
                if not runs:
                    raise UsageError(f"{unit.name}: case {name!r} launches nothing")
                return name, runs
    raise no_case_matches(unit, only, names)


def no_case_matches(unit: Unit, only: str, names: Sequence[str]) -> UsageError:
    return UsageError(f"{unit.name}: no case matches {only!r}; there are {'; '.join(names) or 'none'}")


def reachable(unit: Unit) -> None:
    """Raises MigrateError for a file that does not parse, UsageError where nothing says how it is launched."""
    if error := units.read_source(unit.file).error:
        raise MigrateError(f"{unit.file}:{error.lineno or 0}: does not parse: {error.msg}")
    if not unit.operators and not unit.case_files:
        raise UsageError(f"{unit.name}: {NO_CASE}; {HOW_TO_REACH}")


@contextlib.contextmanager
def explained(unit: Unit, where: str = "") -> Iterator[None]:
    """What ends the user's code, as one line: DoesNotCompile, or MigrateError with the line that it comes from."""
    try:
        yield
    except MigrateError:
        raise
    except device.NotCompiled as error:
        raise DoesNotCompile(f"{where}{unit.name}: {' '.join(str(error).split())}") from error
    except Exception as error:
        from migrate.gate.child.load import explain

        found = explain(error, str(unit.file))
        raise MigrateError(f"{where}{unit.name}: {found['type']}: {' '.join(found['message'].split())}, at "
                           f"{found['file']}:{found['line']}") from error


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
