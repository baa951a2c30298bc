"""Many files through the rules, over all cores; whatever goes wrong with one is a row of the table."""
from __future__ import annotations

import ast
import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from migrate import engine, header
from migrate.errors import MigrateError
from migrate.port import Ported, Settings, kernels_of, new_paths, port_file
from migrate.project import PackageProject, Upstream, of_path
from migrate.source import Source

SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


@dataclass(frozen=True)
class Row:
    """What became of one file. Without the trees of a Ported: it travels between processes."""

    upstream: Upstream
    path: str
    kernels: tuple[str, ...] = ()
    fired: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)
    needs: tuple[str, ...] = ()
    target: str = ""
    data: bytes = b""
    sha256: str = ""
    body: str = ""
    seconds: float = 0.0
    error: str = ""             # why there is no port, or what is wrong with it


@dataclass(frozen=True)
class Task:
    """`again`: also prove that the port parses and that the rules have nothing more to change in it."""

    upstream: Upstream
    path: str
    settings: Settings
    again: bool


def run(task: Task) -> Row:
    began = time.perf_counter()
    try:
        ported = port_file(_project(task.upstream), task.path, task.settings)
        error = _second_run(ported, task.settings) if task.again else ""
    except Exception as problem:            # one file must not end a sweep
        text = str(problem) if isinstance(problem, MigrateError) else f"{type(problem).__name__}: {problem}"
        return Row(task.upstream, task.path, error=text.splitlines()[0], seconds=time.perf_counter() - began)
    return Row(
        task.upstream, task.path, tuple(ported.kernels), ported.fired, Counter(f.rule for f in ported.open),
        ported.needs, ported.target, ported.data, ported.file.sha256, ported.body,
        time.perf_counter() - began, error)


@functools.lru_cache(maxsize=4)
def _project(upstream: Upstream) -> PackageProject:
    return PackageProject(upstream)


def _second_run(ported: Ported, settings: Settings) -> str:
    first = ported.outcome.first
    try:
        ast.parse(ported.text)
    except SyntaxError as error:
        return f"{ported.target}:{error.lineno}: the port does not parse: {error.msg}"
    again = engine.apply(Source.parse(ported.text, module=first.module, is_package=first.is_package,
                                      project=first.project), settings.rules)
    if again.steps:
        rules = sorted({step.rule.id for step in again.steps})
        return f"{ported.target}: a second run changes it again: {', '.join(rules)}"
    return ""


def release(upstream: Upstream, files: Sequence[str], settings: Settings, *, jobs: int | None = None,
            again: bool = True, done: Callable[[Row, int], None] = lambda row, left: None) -> list[Row]:
    """Every file with a kernel of one release, and the modules they need. `done` hears of each."""
    project = PackageProject(upstream)
    todo = kernels_of(project, files)
    seen = set(todo)
    rows: list[Row] = []
    with _Pool(jobs) as pool:
        while todo:
            tasks = [Task(upstream, path, settings, again) for path in todo]
            fresh = []
            for row in pool.map(tasks):
                fresh.append(row)
                done(row, len(todo) - len(fresh))
            rows += fresh
            todo = new_paths(project, sorted({m for row in fresh for m in row.needs}), seen)
    return sorted(rows, key=lambda r: r.path)


def folder(path: Path, settings: Settings, *, jobs: int | None = None,
           done: Callable[[Row, int], None] = lambda row, left: None) -> list[Row]:
    """Every file with a kernel below a folder (or that file), dry. Ported files are left out."""
    tasks = []
    for file in [path] if path.is_file() else sorted(_python_files(path)):
        upstream = of_path(file.resolve())
        relative = file.resolve().relative_to(upstream.root).as_posix()
        if path.is_file() or (kernels_of(PackageProject(upstream), [relative]) and not _is_port(file)):
            tasks.append(Task(upstream, relative, settings, False))
    rows = []
    with _Pool(jobs) as pool:
        for row in pool.map(tasks):
            rows.append(row)
            done(row, len(tasks) - len(rows))
    return sorted(rows, key=lambda r: (r.upstream.spec, r.path))


def _python_files(top: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(top):
        folders[:] = [f for f in folders if f not in SKIPPED and not f.startswith(".")]
        yield from (Path(root) / f for f in files if f.endswith(".py"))


def _is_port(file: Path) -> bool:
    return header.BEGIN.encode() in file.read_bytes()


class _Pool:
    """Processes that a crashed one does not take down: its file is tried once more, alone."""

    def __init__(self, jobs: int | None) -> None:
        self.jobs = jobs or len(os.sched_getaffinity(0))
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._executor is not None:
            if kind is not None:                    # do not wait for files that are under way
                for process in list((self._executor._processes or {}).values()):
                    process.terminate()
            self._executor.shutdown(cancel_futures=True)

    def map(self, tasks: Sequence[Task]) -> Iterator[Row]:
        if self.jobs == 1 or len(tasks) < 3:        # starting a process takes longer
            yield from map(run, tasks)
            return
        if self._executor is None:
            self._executor = _executor(self.jobs)
        with _sigint_ignored():                     # the processes inherit it: Ctrl-C is for the parent
            futures = {self._executor.submit(run, task): task for task in tasks}
        lost: list[Task] = []
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                self._executor = None
                lost.append(futures[future])
        yield from _alone(lost)


def _alone(tasks: Iterable[Task]) -> Iterator[Row]:
    died = 0
    for task in tasks:
        if died == 3:               # not the files' fault: processes cannot be started here
            yield run(task)
            continue
        with _executor(1) as executor:
            try:
                yield executor.submit(run, task).result()
                died = 0
            except BrokenProcessPool:
                died += 1
                yield Row(task.upstream, task.path, error="the process that ported it died")


def _executor(jobs: int) -> ProcessPoolExecutor:
    # Not forked: progress bars have a thread.
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


@contextlib.contextmanager
def _sigint_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
