"""The verbs port, scan, explain and rules: options to calls, results to stdout."""
from __future__ import annotations

import contextlib
import enum
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from migrate import asked, config, engine, lock
from migrate.command import AlreadyPorted, default_output
from migrate.command import port as port_one
from migrate.errors import MigrateError, UsageError
from migrate.find import Ensure, upstream_of
from migrate.port import Settings
from migrate.report import effort, rule_pages
from migrate.report.diff import diff
from migrate.report.json import as_json
from migrate.report.snapshots import download_bars
from migrate.report.text import as_text
from migrate.result import Result, shown
from migrate.rule import Rule
from migrate.sweep import Row, folder, release
from migrate.write import refuse, status, write, write_all
from upstream_snapshots import sync


class Format(enum.StrEnum):
    """How `port` prints."""

    text = "text"
    diff = "diff"
    json = "json"


class TableFormat(enum.StrEnum):
    """How `scan` prints."""

    text = "text"
    json = "json"


Select = Annotated[list[str] | None, typer.Option(
    "--select", metavar="RULES", help="Only these rules, by id or name: ASC101,drop-strides.")]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", metavar="RULES", help="All rules but these.")]
Release = Annotated[str | None, typer.Option(
    "--triton-ascend", metavar="VERSION", help=f"The triton-ascend to port for. Default: {engine.TRITON_ASCEND}.")]
Target = Annotated[str | None, typer.Option("--target", metavar="SOC", help="The chip, noted in the header. "
                                            f"Default: {Settings.target}.")]


def port(
    files: Annotated[list[str] | None, typer.Argument(
        metavar="FILE...", help="A path, or a file name in the snapshots: mamba3_siso_bwd.py, ssd_chunk_state.py, "
                                "fla-core==0.5.2:cp/chunk_delta_h.py.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where ports go. "
                                                "Default: ported_kernels/generated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if something would change.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if anything is left for a person.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite ports that were edited by hand.")] = False,
    format: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.text,
    values: Annotated[list[str] | None, typer.Option(
        "--set", metavar="NAME=VALUE...", help="Fold the value of a constexpr parameter into the kernels: K=128 "
                                               "USE_G=False; KERNEL.NAME=VALUE for one kernel.")] = None,
    split: Annotated[list[str] | None, typer.Option(
        "--split", metavar="NAMES", help="Split the axes of these lengths into tiles of 64: K, or K,V.")] = None,
    set_from: Annotated[str | None, typer.Option(
        "--set-from", metavar="OPERATOR|CASES", help="--set what all launches of a kernel agree on, in the cases of an "
                                                     "operator or of a file with cases(); needs the gate.")] = None,
    copy_operands: Annotated[bool, typer.Option(
        "--copy-operands", help="Copy a tile that is read again after being a product's left operand.")] = False,
    select: Select = None,
    ignore: Ignore = None,
    target: Target = None,
    triton_ascend: Release = None,
    everything: Annotated[list[str] | None, typer.Option(
        "--all", metavar="NAME==VERSION", help="Every module with a kernel of a pinned release; repeatable.")] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE",
                                                help="With --all: write the table as Markdown.")] = None,
    write_lock: Annotated[bool, typer.Option("--lock", help="With --all: write ports.lock.")] = False,
) -> None:
    """Port FILEs, and the modules they import, to Ascend; show what was changed and why."""
    values = [*(values or []), *(name for name in files or [] if asked.is_setting(name) and not Path(name).exists())]
    files = [name for name in files or [] if name not in values]       # `--set K=128 V=128`: the second is an argument
    wishes = asked.Asked(asked.settings(values), _words(split), copy_operands)
    if any(not _words([names]) for names in split or ()):
        raise UsageError("--split: expected names of constants, as in K or K,V; got none")
    if everything and (wishes or set_from):
        raise UsageError("--set, --set-from, --split and --copy-operands go with a FILE, not with --all")
    if bool(files) == bool(everything):
        raise UsageError("name a FILE, or a release with --all (not both)")
    if (report or write_lock) and not everything:
        raise UsageError("--report and --lock go with --all")
    settings, place = _settings(select, ignore, target, triton_ascend, output, wishes)
    for option, given, acted_on in (("--set", wishes.settings, "--set"), ("--set-from", set_from, "--set"),
                                    ("--split", wishes.split, "--split"),
                                    ("--copy-operands", copy_operands, "--copy-operands")):
        if given and not any(rule.option == acted_on for rule in settings.rules):
            needed = " or ".join(rule.name for rule in engine.load() if rule.option == acted_on)
            raise UsageError(f"{option} needs the rule {needed}, which is not selected")
    if set_from:
        settings = replace(settings, asked=_with_recorded(files, set_from, settings))
    if everything:
        code = _sweep(everything, settings, place, write_files=not (dry_run or check), force=force, check=check,
                      strict=strict, report=report, write_lock=write_lock)
    else:
        code = _files(files or [], settings, place, format, dry_run=dry_run or check, force=force, check=check,
                      strict=strict)
    raise typer.Exit(code)


def _with_recorded(files: Sequence[str], origin: str, settings: Settings) -> asked.Asked:
    """What was asked, and after it what launches agree on and nobody set by hand."""
    if len(files) != 1:
        raise UsageError(f"--set-from goes with one FILE, not with {len(files)}")
    from migrate import set_from  # the gate is for who asks

    with _snapshots() as ensure:
        found = set_from.settings_of(files[0], origin, settings, ensure)
    wishes = settings.asked
    by_hand = {(setting.kernel, setting.name) for setting in wishes.settings}
    new = tuple(s for s in found.settings if not by_hand & {("", s.name), (s.kernel, s.name)})
    _note(f"--set-from {origin}: {found.launches} launches: " + (
        "--set " + shlex.join(map(str, new)) if new else "nothing that they agree on"))
    for note in found.notes:
        _note(f"  {note}")
    return replace(wishes, settings=(*wishes.settings, *new))


def _files(names: Sequence[str], settings: Settings, output: Path, format: Format, *, dry_run: bool, force: bool,
           check: bool, strict: bool) -> int:
    results: list[Result] = []
    code = 0
    with _snapshots() as ensure:
        for name in names:
            try:
                results.append(port_one(name, settings, output, dry_run=dry_run, force=force, ensure=ensure))
            except AlreadyPorted as done:
                _note(str(done))
            except MigrateError as error:
                _note(f"migrate: {error}")
                code = max(code, error.exit_code)
    for result in results:
        if not result.ports[0].kernels:
            _note(f"{result.ports[0].path}: no Triton kernel in it; the rules for host code still apply")
    names_of = {r.id: r.name for r in settings.rules}
    if format is Format.json:
        sys.stdout.write(as_json(results))
    elif format is Format.diff:
        # As bytes: the diff of a file with other line endings or another encoding must come out as it is.
        seen: set[str] = set()
        for ported in (p for r in results for p in r.ports):
            if ported.target not in seen:
                seen.add(ported.target)
                sys.stdout.flush()
                sys.stdout.buffer.write(diff([ported], names_of).encode(ported.file.encoding))
    elif results:
        sys.stdout.write(as_text(results, width=_width(), colour=_colour()))
    if (check and any(r.would_change for r in results)) or (strict and any(r.has_open for r in results)):
        code = max(code, 1)
    return code


def _sweep(specs: Sequence[str], settings: Settings, output: Path, *, write_files: bool, force: bool, check: bool,
           strict: bool, report: Path | None, write_lock: bool) -> int:
    snapshots = [sync.find(spec) for spec in dict.fromkeys(specs)]
    rows: list[Row] = []
    with _snapshots() as ensure, _bar("porting") as advance:
        for snapshot in snapshots:
            rows += release(upstream_of(snapshot, ensure), sync.files(snapshot), settings, done=advance)
    statuses = {}
    for i, row in enumerate(rows):
        if not row.error:
            try:
                found = status(row.data, output / row.target)
                if not force:
                    refuse(found, output / row.target)
                statuses[row.target] = found
            except MigrateError as error:
                rows[i] = replace(row, error=str(error))
    if write_files:
        write({r.target: r.data for r in rows if not r.error}, output)
    rules = {r.id: r for r in settings.rules}
    sys.stdout.write(effort.summary(rows, rules, width=_width(), colour=_colour()))
    if report is not None:
        command = "migrate port " + " ".join(f"--all {s.spec}" for s in snapshots) + f" --report {report}"
        write_all({report: effort.markdown(rows, rules, command, settings.tool).encode()})
    if write_lock:
        place = default_output().parent / "ports.lock"
        write_all({place: lock.render(rows).encode()})
        _note(f"wrote {shown(place)}")
    if any(r.error for r in rows):
        return 3
    changed = check and any(s.would_write for s in statuses.values())
    return 1 if changed or (strict and any(r.open for r in rows)) else 0


def scan(
    what: Annotated[str, typer.Argument(metavar="PATH|SNAPSHOT", help="A file, a folder, or a pinned release: "
                                        "mamba-ssm, fla-core==0.6.0.")],
    format: Annotated[TableFormat, typer.Option("--format", help="How to print the table.")] = TableFormat.text,
    select: Select = None,
    ignore: Ignore = None,
    triton_ascend: Release = None,
) -> None:
    """Show what is there and what each kernel file needs: changes by safety, and what is left for a person."""
    settings, _ = _settings(select, ignore, None, triton_ascend, Path())
    path = Path(what)
    with _bar("scanning") as advance:
        if path.exists():
            rows = folder(path, settings, done=advance)
        else:
            try:
                snapshot = sync.find(what)
            except UsageError as error:
                raise UsageError(f"{what}: no such file or folder, and no release: {error}") from error
            with _snapshots() as ensure:
                rows = release(upstream_of(snapshot, ensure), sync.files(snapshot), settings, again=False, done=advance)
    rules = {r.id: r for r in settings.rules}
    if format is TableFormat.json:
        sys.stdout.write(effort.as_json(rows))
    else:
        if rows:
            sys.stdout.write(effort.by_file(rows, rules, width=_width(), colour=_colour()))
        sys.stdout.write(effort.totals(rows) + "\n")
    raise typer.Exit(3 if any(r.error for r in rows) else 0)


def explain(
    what: Annotated[str, typer.Argument(metavar="ID|NAME|SYMBOL", help="ASC101, drop-strides, tl.dot.")],
) -> None:
    """Print the page of a rule, or the rules that mention a symbol."""
    text = rule_pages.explain(what, engine.load())
    if sys.stdout.isatty():
        Console().print(Markdown(text, code_theme="ansi_dark"))
    else:
        sys.stdout.write(text)


def rules() -> None:
    """List the rules."""
    found = engine.load()
    if sys.stdout.isatty():
        Console().print(_catalogue(found))
    else:
        for rule in found:
            print("\t".join((rule.id, rule.name, rule.safety.value, rule.summary)))


def _catalogue(found: Sequence[type[Rule]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in ("id", "name", "safety"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is about", overflow="fold")
    for rule in found:
        table.add_row(rule.id, rule.name, rule.safety.value, Text(rule.summary))
    return table


VERBS: tuple[Callable[..., None], ...] = (port, scan, explain, rules)


def _settings(select: list[str] | None, ignore: list[str] | None, target: str | None, triton_ascend: str | None,
              output: Path | None, wishes: asked.Asked = asked.NOTHING) -> tuple[Settings, Path]:
    """Options, else [tool.migrate], else the defaults."""
    known = config.load(Path.cwd())
    settings = Settings.make(
        only=_words(select) or known.select, ignore=_words(ignore) or known.ignore,
        target=target or known.target or Settings.target,
        triton_ascend=triton_ascend or known.triton_ascend or Settings.triton_ascend, asked=wishes)
    if engine.unknown_release(settings.triton_ascend):
        _note(f"triton-ascend {settings.triton_ascend}: the rules were checked with {engine.TRITON_ASCEND} only")
    if output is None:
        output = known.output or default_output()
    return settings, output.absolute()


def _words(values: list[str] | None) -> tuple[str, ...]:
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


@contextlib.contextmanager
def _snapshots() -> Iterator[Ensure]:
    with download_bars() as progress:
        yield functools.partial(sync.ensure, progress=progress)


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[Row, int], None]]:
    """A bar on a terminal's stderr, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda row, left: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        done = 0

        def advance(row: Row, left: int) -> None:
            nonlocal done
            done += 1
            bars.update(task, completed=done, total=done + left)

        yield advance


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _note(text: str) -> None:
    print(text, file=sys.stderr)
