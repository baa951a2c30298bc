"""The command line: verbs, options, exit codes. What a verb does lives in the module it calls."""
from __future__ import annotations

import sys
from enum import StrEnum

import typer

from migrate import __version__
from migrate.errors import MigrateError

app = typer.Typer(
    help="Port Triton kernels to Ascend NPUs, rule by rule, and check the result without a card.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        print(f"migrate {__version__}")
        raise typer.Exit


class VerifyFormat(StrEnum):
    text = "text"
    json = "json"


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"
    npu = "npu"


@app.command()
def verify(
    targets: list[str] = typer.Argument(..., metavar="OPERATOR|FILE|all", help="What to verify."),
    device: Device = typer.Option(Device.cpu, help="Where the kernels run; cpu is Triton's interpreter."),
    seed: int = typer.Option(0, help="Seed of the random inputs."),
    format: VerifyFormat = typer.Option(VerifyFormat.text, help="Form of the report on stdout."),
    dtype: list[str] = typer.Option([], help="Only this dtype; may be repeated."),
    case: list[str] = typer.Option([], help="Only this case, by its name; may be repeated."),
    time_limit: float = typer.Option(60.0, min=1.0, help="Seconds for one case."),
) -> None:
    """Run operators on a device and compare them with their float64 references.

    Exit code 0: every case passed. 5: one failed. 2: the device is not there, and nothing was tried.
    """
    from migrate.verify.command import run

    raise typer.Exit(run(targets, device.value, seed, format.value, dtype, case, time_limit))


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
