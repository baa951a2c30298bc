"""The command line: verbs, options, exit codes. What a verb does lives in the module it calls."""
from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import typer

from migrate import __version__, cli_port
from migrate.errors import MigrateError
from migrate.report.snapshots import download_bars, print_snapshots
from upstream_snapshots import sync

app = typer.Typer(
    help="Port Triton kernels to Ascend NPUs, rule by rule, and check the result without a card.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for verb in cli_port.VERBS:
    app.command()(verb)

snapshot_app = typer.Typer(help="The upstream releases that ports are made from.", no_args_is_help=True)
app.add_typer(snapshot_app, name="snapshot")


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        print(f"migrate {__version__}")
        raise typer.Exit


@snapshot_app.command("sync")
def snapshot_sync() -> None:
    """Fetch, verify and unpack every pinned release; afterwards no network is needed."""
    with download_bars() as progress:
        unpacked = sync.sync_all(progress)
    for snapshot, root in unpacked:
        print(f"{snapshot.spec}  {root}")


@snapshot_app.command("list")
def snapshot_list() -> None:
    """Show the pinned releases."""
    print_snapshots(sync.load())


@snapshot_app.command("add")
def snapshot_add(spec: str = typer.Argument(metavar="NAME==VERSION")) -> None:
    """Pin one more release by its sha256 and unpack it."""
    with download_bars() as progress:
        snapshot, new = sync.add(spec, progress)
    print(f"{snapshot.spec}: {'pinned' if new else 'already pinned'}, {snapshot.licence}, "
          f"ports go to {snapshot.port_as}/")


class CheckFormat(StrEnum):
    text = "text"
    json = "json"
    sarif = "sarif"


@app.command()
def check(
    names: list[str] = typer.Argument(metavar="FILE|OPERATOR|all..."),
    target: list[str] = typer.Option([], "--target", help="SoC to compile for; may be repeated. [Ascend910B2]"),
    all_targets: bool = typer.Option(False, "--all-targets", help="Every Ascend 910B and 910_93."),
    case: str = typer.Option("", "--case", help="Only cases whose name contains this."),
    cases: list[Path] = typer.Option([], "--cases", help="A file that holds `cases()` for a FILE.", exists=True),
    root: Path = typer.Option(None, "--root", help="The folder that FILE's package begins in.", exists=True),
    format: CheckFormat = typer.Option(CheckFormat.text, "--format"),
    explain_cost: bool = typer.Option(False, "--explain-cost", help="What each line costs, heaviest first."),
    baseline: Path = typer.Option(None, "--baseline", help="A result in JSON; getting worse than it fails."),
    time_limit: float = typer.Option(60, "--time-limit", help="CPU seconds for one compile.", min=1),
    memory_limit: float = typer.Option(0, "--memory-limit", help="GiB for one compile. [6, or a quarter of all]"),
    jobs: int = typer.Option(0, "--jobs", "-j", help="Compiles at a time. [one a core]"),
    no_cache: bool = typer.Option(False, "--no-cache", help="Compile again."),
) -> None:
    """The real Ascend compiler's verdict, with no NPU.

    Exit code 0: all passed. 1: something was not tried, or needs a launch option. 4: something failed.
    """
    from migrate.gate import command
    from migrate.report import gate

    result = command.run(names, target_names=target, all_targets=all_targets, only=case, case_files=cases, root=root,
                         baseline=baseline, time_limit=time_limit, memory_limit=memory_limit, jobs=jobs,
                         use_cache=not no_cache)
    if format is CheckFormat.text:
        gate.text(result, explain_cost)
    else:
        print(gate.as_json(result) if format is CheckFormat.json else gate.sarif(result))
    raise typer.Exit(result.exit_code)


@app.command()
def doctor(
    install_gate: bool = typer.Option(False, "--install-gate", help="Make the gate an environment of its own."),
) -> None:
    """What this machine can do, and the command that adds the rest."""
    from migrate.gate import toolchain
    from migrate.gate.doctor import abilities
    from migrate.report import doctor as report

    if install_gate:
        print(f"made {toolchain.install().python}", file=sys.stderr)
    report.text(abilities())


def main() -> None:
    """Results go to stdout, the rest to stderr; a MigrateError is one line and its exit code."""
    try:
        app()
    except MigrateError as error:
        print(f"migrate: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("migrate: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
