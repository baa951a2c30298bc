"""The command line: verbs, options, exit codes. What a verb does lives in the module it calls."""
from __future__ import annotations

import io
import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

from migrate import __version__, cli_gate, cli_port
from migrate.errors import MigrateError, UsageError
from migrate.report.snapshots import download_bars, print_snapshots
from upstream_snapshots import sync

NEEDED_TO_RUN = ("torch", "triton", "numpy", "xdsl", "einops", "packaging")
RECURSION = 3000        # LibCST writes code by recursion: a sum of 500 terms needs more than Python's 1000

app = typer.Typer(
    help="Port Triton kernels to Ascend NPUs, rule by rule, and check the result without a card.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for verb in (*cli_port.VERBS, *cli_gate.VERBS):
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


class VerifyFormat(StrEnum):
    text = "text"
    json = "json"


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"
    npu = "npu"
    vnpu = "vnpu"


@app.command()
def verify(
    targets: Annotated[list[str], typer.Argument(metavar="OPERATOR|FILE|all")],
    device: Annotated[Device, typer.Option(
        help="Where kernels run; cpu: Triton's interpreter; vnpu: compiled for Ascend, and run without a card.",
    )] = Device.cpu,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    format: Annotated[VerifyFormat, typer.Option(help="Form of the report.")] = VerifyFormat.text,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; repeatable.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only this case, by name; repeatable.")] = None,
    time_limit: Annotated[float, typer.Option(min=1.0, help="Seconds for one case.")] = 60.0,
    target: Annotated[str, typer.Option(help="vnpu: the card it stands in for; Ascend910B2 if not given.")] = "",
    programs: Annotated[str, typer.Option(
        metavar="0,1,last", help="vnpu: only these programs of each launch; what they wrote is compared.")] = "",
) -> None:
    """Run operators on a device and compare them with their float64 references.

    FILE is a file of a pinned release: its port runs, and is made first where it is missing or out of date.
    Exit codes:
    0  every case passed
    1  a case was not tried: on vnpu, a kernel does not compile, or a launch has none of the programs
    2  wrong usage, or the device is not there and nothing was tried
    5  a case failed
    """
    from migrate.verify.command import run

    raise typer.Exit(run(targets, device.value, seed, format.value, dtype or (), case or (), time_limit,
                         target, programs))


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def run(context: typer.Context) -> None:
    """Run one operator on a case's random input; print shapes, norms and the time."""
    from migrate.verify import target
    from ported_kernels import __main__ as runner

    raise typer.Exit(runner.main(context.args, "migrate run", "migrate", lambda operator: target.prepare(
        [operator], lambda text: print(f"migrate: {text}", file=sys.stderr))))


def main() -> None:
    """Results go to stdout, the rest to stderr; a MigrateError is one line and its exit code."""
    sys.setrecursionlimit(RECURSION)
    _usable_streams()
    try:
        app()
    except MigrateError as error:
        print(f"migrate: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in NEEDED_TO_RUN:
            raise
        print(f"migrate: this runs kernels, and needs {error.name}, which is not installed here: pip install "
              "'triton-ascend-migrate[cpu]', or pip install -e '.[cpu]' in a clone", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    except RecursionError:
        print("migrate: an expression is nested too deeply", file=sys.stderr)
        sys.exit(MigrateError.exit_code)
    except BrokenPipeError:             # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        what = f"{error.filename}" if error.filename else "cannot write the result"
        print(f"migrate: {what}: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(MigrateError.exit_code)
    except KeyboardInterrupt:
        print("migrate: interrupted", file=sys.stderr)
        sys.exit(130)


def _usable_streams() -> None:
    """A closed stream swallows what is written; one that cannot spell a character escapes it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))           # noqa: SIM115  open as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
