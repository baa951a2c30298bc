"""Child processes: one for each operator and dtype, a few at once, each case under a time limit.

A child that dies or hangs costs the case it was at; the rest of its cases go to a new child.
"""
from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from migrate.verify.result import CaseResult, Verdict
from ported_kernels import runtime
from ported_kernels.catalog import Operator

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT = 120.0     # seconds for importing torch and triton on a busy machine


@dataclass
class Report:
    device: str
    seed: int
    results: list[CaseResult] = field(default_factory=list)

    def count(self, verdict: Verdict) -> int:
        return sum(result.verdict == verdict for result in self.results)

    @property
    def exit_code(self) -> int:
        """5 when something failed, 2 when something was not tried (the environment is off), else 0."""
        if self.count(Verdict.FAILED):
            return 5
        return 2 if self.count(Verdict.NOT_TRIED) or not self.results else 0


@dataclass(frozen=True)
class _Job:
    operator: Operator
    dtype: str
    cases: tuple[str, ...]


def verify(operators: Sequence[Operator], device: str, seed: int = 0, *, dtypes: Sequence[str] = (),
           cases: Sequence[str] = (), time_limit: float = 60.0, at_once: int | None = None,
           on_result: Callable[[CaseResult], None] = lambda result: None) -> Report:
    """Tries every case and dtype of `operators` on `device`; `time_limit` is seconds for one case.

    `dtypes` and `cases` (exact names) narrow it. Where the device is not there, each case is reported as not
    tried, with the reason, and no child is started.
    """
    report = Report(device, seed)
    missing = runtime.why_not(device)
    jobs = [_Job(operator, name, chosen)
            for operator in operators
            for dtype in operator.dtypes if (name := str(dtype).removeprefix("torch.")) in (dtypes or [name])
            if (chosen := tuple(case.name for case in operator.cases if case.name in (cases or [case.name])))]
    found: dict[tuple[str, str, str], CaseResult] = {}

    def note(result: CaseResult) -> None:
        found[result.operator, result.dtype, result.case] = result
        on_result(result)

    if missing:
        for job in jobs:
            for case in job.cases:
                note(_without_run(job, case, device, seed, Verdict.NOT_TRIED, missing))
    else:
        # Devices other than the CPU are shared: one child at a time keeps times and memory honest.
        workers = at_once or (min(4, os.cpu_count() or 1) if device == "cpu" else 1)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda job: _run(job, device, seed, time_limit, note), jobs))
    report.results = [found[job.operator.name, job.dtype, case] for job in jobs for case in job.cases]
    return report


def _run(job: _Job, device: str, seed: int, time_limit: float, note: Callable[[CaseResult], None]) -> None:
    left = list(job.cases)
    while left:
        done, at_fault, reason = _child(job, left, device, seed, time_limit, note)
        left = [case for case in left if case not in done]
        if left:
            case = at_fault or left[0]
            left.remove(case)
            note(_without_run(job, case, device, seed, Verdict.FAILED, reason))


def _child(job: _Job, cases: list[str], device: str, seed: int, time_limit: float,
           note: Callable[[CaseResult], None]) -> tuple[set[str], str | None, str]:
    """-> the cases that were answered, the one that was under way when the child ended, how it ended."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    child = subprocess.Popen([sys.executable, "-m", "migrate.verify.worker"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": path}, start_new_session=True)
    assert child.stdin and child.stdout and child.stderr
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    stdout, stderr = child.stdout, child.stderr

    def read() -> None:
        for line in stdout:
            lines.put(line)
        lines.put(None)

    readers = [threading.Thread(target=read, daemon=True),
               threading.Thread(target=lambda: errors.extend(stderr), daemon=True)]
    for reader in readers:
        reader.start()
    done: set[str] = set()
    at: str | None = None
    deadline = time.monotonic() + START_LIMIT
    try:
        try:
            child.stdin.write(json.dumps({"operator": job.operator.name, "dtype": job.dtype, "cases": cases,
                                          "device": device, "seed": seed}))
            child.stdin.close()
        except BrokenPipeError:
            pass     # it died at once; its last words are on stderr
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                limit = START_LIMIT if at is None else time_limit
                return done, at, f"no answer within {limit:g} s"
            if line is None:
                break
            message = json.loads(line)
            if "start" in message:
                at = message["start"]
            else:
                at = None
                result = CaseResult.from_json(message["done"])
                done.add(result.case)
                note(result)
            deadline = time.monotonic() + time_limit
        child.wait()
        readers[1].join(1)
        return done, at, _ended(child.returncode, errors)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)     # its own session: the child and what it started
            child.wait()


def _ended(code: int, errors: list[str]) -> str:
    last = next((line.strip() for line in reversed(errors) if line.strip()), "")
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
    return f"the process ended early ({how}){': ' + last if last else ''}"


def _without_run(job: _Job, case: str, device: str, seed: int, verdict: Verdict, reason: str) -> CaseResult:
    return CaseResult(job.operator.name, case, job.dtype, device, seed, job.operator.oracle, verdict, reason)
