"""Child processes: a few at work at once, each case under a time limit.

A child that dies or hangs costs the case it was at; a new one goes on with the rest.
"""
from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from migrate.gate import targets
from migrate.verify.result import CaseResult, Verdict
from ported_kernels import runtime
from ported_kernels.arguments import short
from ported_kernels.catalog import Operator

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT = 120.0     # seconds for importing torch on a busy machine


@dataclass
class Report:
    device: str
    seed: int
    results: list[CaseResult] = field(default_factory=list)
    missing: str | None = None       # why the device is not there
    virtual: Virtual | None = None   # which card the virtual NPU stood in for

    def count(self, verdict: Verdict) -> int:
        return sum(result.verdict == verdict for result in self.results)

    @property
    def exit_code(self) -> int:
        """5 when something failed, 2 when the device is not there, 1 when something could not be tried, else 0."""
        if self.count(Verdict.FAILED):
            return 5
        if self.missing or not self.results:
            return 2
        return 1 if self.count(Verdict.NOT_TRIED) else 0


@dataclass(frozen=True)
class Virtual:
    """The virtual NPU of a run: which card it stands in for, and which programs of a launch are run (None: all)."""

    target: str
    programs: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)      # one object, one job: hashable by identity
class _Job:
    operator: Operator
    case: str
    dtype: str
    device: str
    seed: int
    virtual: Virtual | None = None

    def line(self) -> str:
        return json.dumps({"operator": self.operator.name, "case": self.case, "dtype": self.dtype,
                           "device": self.device, "seed": self.seed,
                           "contract": self.operator.contract and str(self.operator.contract),
                           "virtual": asdict(self.virtual) if self.virtual else None}) + "\n"

    def without_run(self, verdict: Verdict, reason: str) -> CaseResult:
        return CaseResult(self.operator.name, self.case, self.dtype, self.device, self.seed,
                          self.operator.oracle, self.operator.origin, verdict, reason)


def verify(operators: Sequence[Operator], device: str, seed: int = 0, *, dtypes: Sequence[str] = (),
           cases: Sequence[str] = (), time_limit: float = 60.0, at_once: int | None = None,
           virtual: Virtual | None = None,
           on_result: Callable[[CaseResult], None] = lambda result: None) -> Report:
    """Tries every case and dtype of `operators` on `device`; `time_limit` is seconds for one case.

    `dtypes` and `cases` (exact names) narrow it. Where the device is not there, each case is reported as not
    tried, with the reason, and no child is started.
    """
    if device == "vnpu" and virtual is None:
        virtual = Virtual(targets.DEFAULT)
    jobs = [_Job(operator, case.name, dtype, device, seed, virtual)
            for operator in operators
            for dtype in map(short, operator.dtypes) if not dtypes or dtype in dtypes
            for case in operator.cases if not cases or case.name in cases]
    found: dict[_Job, CaseResult] = {}

    def note(job: _Job, result: CaseResult) -> None:
        found[job] = result
        on_result(result)

    if missing := runtime.why_not(device):
        for job in jobs:
            note(job, job.without_run(Verdict.NOT_TRIED, missing))
    else:
        # A card is not shared: one child at a time keeps times and memory honest.
        count = at_once or (min(4, os.cpu_count() or 1) if runtime.home(device) == "cpu" else 1)
        waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        stop = threading.Event()
        threads = [threading.Thread(target=_work, args=(waiting, time_limit, note, stop), daemon=True)
                   for _ in range(min(count, len(jobs)))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stop.set()      # interrupted: the threads see to their children
            for thread in threads:
                thread.join()
    return Report(device, seed, [found[job] for job in jobs], missing, virtual)


def _work(waiting: queue.SimpleQueue[_Job], time_limit: float, note: Callable[[_Job, CaseResult], None],
          stop: threading.Event) -> None:
    child: _Child | None = None
    try:
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            if child is None:
                child = _Child(stop)
            try:
                result = child.ask(job, time_limit)
            except _ChildEnded as error:
                result = job.without_run(Verdict.FAILED, str(error))
            # After a fault the process is not to be trusted: a device error outlives the launch behind it.
            if result.verdict == Verdict.FAILED and (runtime.home(job.device) != "cpu" or not result.outputs):
                child.end()
                child = None
            note(job, result)
    finally:
        if child is not None:
            child.end()


class _ChildEnded(Exception):
    """The child died, hung, or was stopped; says how."""


class _Child:
    def __init__(self, stop: threading.Event) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "migrate.verify.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}, start_new_session=True)
        self.stop = stop
        self.ready = False
        self.answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.errors: list[str] = []
        self.readers = [threading.Thread(target=self._read_answers, daemon=True),
                        threading.Thread(target=self._read_errors, daemon=True)]
        for reader in self.readers:
            reader.start()

    def _read_answers(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line]

    def ask(self, job: _Job, time_limit: float) -> CaseResult:
        assert self.process.stdin
        if not self.ready:
            self._answer(START_LIMIT)
            self.ready = True
        with contextlib.suppress(BrokenPipeError):      # it died; the answer below says how
            self.process.stdin.write(job.line())
            self.process.stdin.flush()
        return CaseResult.from_json(json.loads(self._answer(time_limit)))

    def _answer(self, limit: float) -> str:
        waited = 0.0
        while waited < limit and not self.stop.is_set():
            with contextlib.suppress(queue.Empty):
                line = self.answers.get(timeout=min(0.2, limit - waited))
                if line is not None:
                    return line
                self.process.wait()
                self.readers[1].join(1)
                raise _ChildEnded(self._last_words())
            waited += 0.2
        raise _ChildEnded("interrupted" if self.stop.is_set() else f"no answer within {limit:g} s")

    def _last_words(self) -> str:
        code = self.process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        last = next((line.strip() for line in reversed(self.errors) if line.strip()), "")
        return f"the process ended early ({how}){': ' + last if last else ''}"

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)     # its own session: the child and what it started
            self.process.wait()
