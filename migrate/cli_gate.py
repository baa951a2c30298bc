"""The verbs check and doctor: options to calls, results to stdout, exit codes."""
from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from migrate.errors import UsageError
from migrate.gate import command, process, toolchain
from migrate.gate.doctor import abilities
from migrate.report import doctor as doctor_report
from migrate.report import gate as report


class Format(StrEnum):
    text = "text"
    json = "json"
    sarif = "sarif"


_NAMES = "A file with kernels, a port by its name, an operator, or all; see above."


def check(
    names: Annotated[list[str], typer.Argument(metavar="FILE|OPERATOR|all...", show_default=False, help=_NAMES)],
    target: Annotated[list[str] | None, typer.Option(help="SoC to compile for; may be repeated. [Ascend910B2]")] = None,
    all_targets: Annotated[bool, typer.Option("--all-targets", help="Every Ascend 910B and 910_93.")] = False,
    case: Annotated[str, typer.Option(help="Only cases whose name contains this.")] = "",
    cases: Annotated[list[Path] | None, typer.Option(help="How FILE is launched; docs/gate.md.", exists=True)] = None,
    root: Annotated[Path | None, typer.Option(help="The folder in which FILE's package begins.", exists=True)] = None,
    format: Annotated[Format, typer.Option()] = Format.text,
    explain_cost: Annotated[bool, typer.Option("--explain-cost", help="The cost of each line.")] = False,
    baseline: Annotated[Path | None, typer.Option(help="A result in JSON; getting worse than it fails.")] = None,
    time_limit: Annotated[float, typer.Option(help="CPU seconds for one compile.", min=1)] = 60,
    memory_limit: Annotated[float, typer.Option(help="GiB for one compile. [6, or a quarter of all]",
                                                 show_default=False)] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Compiles at a time. [one a core]", show_default=False)] = 0,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compile again.")] = False,
    trace: Annotated[Path | None, typer.Option(metavar="OUT.json", help="Run one program of the first case (choose by "
                                               "--case) on the virtual NPU: a trace of it, for Perfetto.")] = None,
    reduce: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the program and Triton's interpreter "
                                                "disagree: shrink the kernel, into an empty folder.")] = None,
) -> None:
    """The real Ascend compiler's verdict, with no NPU.

    FILE is a Python file with kernels, or the name of what `migrate port` ported:
    mamba3_siso_bwd.py, or fla-core==0.6.0:fla/ops/kda/wy_fast.py.

    OPERATOR is a name that `python -m ported_kernels` lists.

    all: every operator, and every port that has cases.

    Exit codes:
    0  all passed
    1  something was not tried, or passes only with a launch option; --reduce: nothing to reduce
    2  wrong usage, or no compiler here
    3  --trace, --reduce: the file does not parse, or a case ends with an error
    4  something failed, or got worse than the baseline; --trace, --reduce: a kernel does not compile
    5  --trace: the virtual NPU finds errors in the program
    """
    if trace and reduce:
        raise UsageError("--trace and --reduce: one at a time")
    for name, given in (("--format", format is not Format.text), ("--all-targets", all_targets),
                        ("--explain-cost", explain_cost), ("--baseline", baseline)):
        if given and (trace or reduce):
            raise UsageError(f"{name} is for the compiler's verdict, not for {'--trace' if trace else '--reduce'}")
    if trace:
        from migrate.vnpu import trace_command  # needs numpy, which a person who only ports may not have

        for line in trace_command.run(names, trace, toolchain.find(), target=(target or [""])[0], only=case,
                                      case_files=cases or (), root=root):
            print(line)
        return
    if reduce:
        from migrate.vnpu import reduce_command

        limits = process.Limits(time_limit, int(memory_limit * 2**30) if memory_limit else process.Limits().memory)
        with command.progress() as say:
            for line in reduce_command.run(names, reduce, toolchain.find(), target=(target or [""])[0], only=case,
                                           case_files=cases or (), root=root, limits=limits, progress=say):
                print(line)
        return
    result = command.run(names, target_names=target or (), all_targets=all_targets, only=case, case_files=cases or (),
                         root=root, baseline=baseline, time_limit=time_limit, memory_limit=memory_limit, jobs=jobs,
                         use_cache=not no_cache)
    if format is Format.text:
        report.text(result, explain_cost)
    else:
        print(report.as_json(result) if format is Format.json else report.sarif(result))
    raise typer.Exit(result.exit_code)


def doctor(
    install_gate: Annotated[bool, typer.Option("--install-gate", help="Make the gate its own environment.")] = False,
) -> None:
    """What this machine can do, and the command that adds the rest."""
    if install_gate:
        print(f"made {toolchain.install().python}", file=sys.stderr)
    doctor_report.text(abilities())


VERBS: tuple[Callable[..., None], ...] = (check, doctor)
