"""The worker: import files, record what their cases launch, lower that to TTIR.

    python -m migrate.gate.child REQUEST.json

Importing torch and triton takes seconds, so one worker serves many files, and forks: once for each file, which
is imported in the fork, and there again for its cases. When a case or a launch crashes or hangs, a new fork goes
on behind it, so that it costs itself only. What happens is appended to `events.jsonl` in the folder that the
request names, before and after every step that could go wrong, so that the reader knows where a fork died.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from migrate.gate import process
from migrate.gate.child.journal import Journal

Case = tuple[str, Callable[[], Any]]


def main(request_path: str) -> None:
    request = json.loads(Path(request_path).read_text())
    out = Path(request["out"])
    journal = Journal(out / "events.jsonl")
    journal.write("begin", what="start")
    os.environ["TRITON_DISABLE_LINE_INFO"] = "false"   # carries Python lines through to the final HIVM
    import torch  # here, so that the forks have it

    torch.set_num_threads(1)   # a fork has no worker threads, and would wait for them
    from migrate.gate.child import driver, npu, recorder

    driver.install(request["arch"], request["cube_cores"], request["vector_cores"])
    npu.install(request["arch"], request["cube_cores"])
    book = recorder.Recorder()
    book.install()
    limits = process.Limits(request["limits"]["cpu_s"], request["limits"]["memory"])
    # the fork of a unit watches over the fork of its cases; it must not lose patience first
    patient = process.Limits(2 * limits.cpu_s, limits.memory)
    for unit in request["units"]:
        journal.about(unit["name"])
        at = journal.size()
        work = _Unit(unit, request["a5"], out, journal, book, limits)
        end = process.run_forked(work.run, patient, journal.size)
        if end.returncode != 0:
            begun = [e for e in journal.since(at) if e["event"] == "begin"]
            known = {k: v for k, v in begun[-1].items() if k in ("case", "key", "source")} if begun else {}
            journal.write(begun[-1]["what"] if begun else "imports", **known, **_death(end, patient))
        journal.write("end")


def _death(end: process.Finished, limits: process.Limits) -> dict[str, Any]:
    if end.killed == "time":
        outcome, why = "timed out", f"no end after {limits.cpu_s:g} s"
    elif end.killed == "memory":
        outcome, why = "crashed", f"needed more than {limits.memory / 2**30:.1f} GiB of memory"
    else:
        outcome = "crashed"
        why = f"died of signal {-end.returncode}" if end.returncode < 0 else "died"
    return {"outcome": outcome, "error": {"type": "", "message": why, "file": "", "line": 0, "killed": end.killed}}


class _Unit:
    """One file under test, in a fork of its own."""

    def __init__(self, unit: dict[str, Any], a5: bool, out: Path, journal: Journal, book: Any,
                 limits: process.Limits) -> None:
        self.unit, self.a5, self.out, self.journal, self.book, self.limits = unit, a5, out, journal, book, limits
        self.settled: set[str] = set()   # launches that were lowered, or at which a fork died

    def run(self) -> None:
        from migrate.gate.child import cases, load, recorder

        path = Path(self.unit["file"])
        self.journal.write("begin", what="imports")
        start = time.monotonic()
        try:
            module = load.load(path, Path(self.unit["root"]) if self.unit["root"] else None)
        except BaseException as error:
            self.journal.write("imports", outcome="failed", error=load.explain(error, str(path)))
            return
        self.book.take()   # what an import launches is nobody's case
        self.journal.write("imports", outcome="ok", seconds=round(time.monotonic() - start, 2),
                           kernels=[f.fn.__name__ for f in recorder.jit_functions(module)])
        sources: list[tuple[str, Callable[[], Iterator[Case]]]] = [
            *((file, partial(cases.of_file, Path(file), module)) for file in self.unit["case_files"]),
            *((name, partial(cases.of_operator, name)) for name in self.unit["operators"])]
        for source, provide in sources:
            self.journal.write("begin", what="cases", source=source)
            try:
                found = list(provide())
            except BaseException as error:
                self.journal.write("cases", source=source, outcome="failed", error=load.explain(error, source))
                continue
            self.journal.write("cases", source=source, names=[name for name, _ in found])
            self._run_cases([(name, call) for name, call in found if self.unit["only"] in name])
        self.journal.write("sources", sources=_sources())

    def _run_cases(self, todo: list[Case]) -> None:
        """Run cases in a fork; where it dies, note that and go on behind it in another."""
        while todo:
            at = self.journal.size()
            end = process.run_forked(partial(self._in_turn, todo), self.limits, self.journal.size)
            if end.returncode == 0:
                return
            events = self.journal.since(at)
            self.settled |= {e["key"] for e in events if e["event"] == "ttir"}
            last = [e for e in events if e["event"] == "begin"][-1]
            at_case = [name for name, _ in todo].index(last["case"])
            if last["what"] == "case":
                self.journal.write("case", case=last["case"], **_death(end, self.limits))
                todo = todo[at_case + 1:]
            else:
                self.journal.write("ttir", key=last["key"], **_death(end, self.limits))
                self.settled.add(last["key"])
                todo = todo[at_case:]   # its other launches may not be lowered yet

    def _in_turn(self, todo: list[Case]) -> None:
        for name, call in todo:
            self._case(name, call)

    def _case(self, name: str, call: Callable[[], Any]) -> None:
        from migrate.gate.child import load
        from migrate.gate.child.lower import lower

        file = self.unit["file"]
        self.journal.write("begin", what="case", case=name)
        error = None
        try:
            call()
        except BaseException as caught:
            error = load.explain(caught, file)
        launches = self.book.take()
        for launch in launches:
            self.journal.write("launch", case=name, key=launch.key, **launch.describe())
        self.journal.write("case", case=name, outcome="failed" if error else "ok", error=error)
        for launch in launches:
            if launch.key in self.settled:
                continue
            self.settled.add(launch.key)
            self.journal.write("begin", what="ttir", case=name, key=launch.key)
            said = self.out / f"{launch.key}.messages"
            try:
                with _stderr_to(said):
                    ttir, adapter, compiler = lower(launch, self.a5)
            except BaseException as caught:
                self.journal.write("ttir", key=launch.key, outcome="failed",
                                   error=load.explain(caught, file) | {"said": said.read_text(errors="replace")})
                continue
            path = self.out / f"{launch.key}.ttir.mlir"
            path.write_text(ttir)
            self.journal.write("ttir", key=launch.key, outcome="ok", adapter=adapter, compiler=compiler)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """MLIR writes its diagnostics to the file descriptor, past sys.stderr."""
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _sources() -> dict[str, str]:
    """Every file of this process that a user may edit, with its hash: what a record of launches depends on."""
    found = {}
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "")
        if file.is_absolute() and file.suffix == ".py" and "site-packages" not in file.parts \
                and not file.is_relative_to(sys.base_prefix):
            found[str(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


if __name__ == "__main__":
    os.dup2(2, 1)   # triton-ascend and user code print; that is not a result
    main(sys.argv[1])
