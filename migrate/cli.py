"""The command line: verbs, options, exit codes. What a verb does lives in the module it calls."""
from __future__ import annotations

import sys

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
