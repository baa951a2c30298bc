"""Run a program that may never end, crash or eat the machine, and come back with what happened.

Time is counted in CPU seconds of the whole session, so that a busy machine does not turn a slow compile
into a verdict; a wall-clock limit catches what waits without computing. Memory is the resident size of
the session, polled from /proc: a limit on address space alone would refuse programs that reserve more
than they touch, as torch does. Standard library only: workers use this module too.
"""
from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# set while the user's Ctrl-C is answered: what other threads run ends, and they begin nothing more
interrupted = threading.Event()
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _default_memory() -> int:
    """6 GiB, or a quarter of the machine where that is less: two compiles and the user's work must fit."""
    total = _PAGE * os.sysconf("SC_PHYS_PAGES")
    return min(6 << 30, total // 4)


@dataclass(frozen=True)
class Limits:
    """What one program may use: CPU seconds, wall seconds, bytes of resident memory."""

    cpu_s: float = 60.0
    memory: int = _default_memory()

    @property
    def wall_s(self) -> float:
        return 4 * self.cpu_s + 10


@dataclass(frozen=True)
class Finished:
    """How a program ended. `killed` is "", "time" or "memory"; negative return codes are signals."""

    returncode: int
    stdout: str
    stderr: str
    cpu_s: float
    peak: int
    killed: str = ""

    @property
    def crashed(self) -> bool:
        """Died of a signal of its own making, directly or behind a shell."""
        return not self.killed and (self.returncode < 0 or self.returncode in (134, 135, 136, 139))


class Interrupted(Exception):
    """Raised in threads, when the user has interrupted the main one."""


@dataclass
class Usage:
    """What a process or a session has used so far."""

    cpu_s: float = 0.0
    peak: int = 0

    def over(self, limits: Limits, cpu_start: float, wall_start: float) -> str:
        if self.peak > limits.memory:
            return "memory"
        if self.cpu_s - cpu_start > limits.cpu_s or time.monotonic() - wall_start > limits.wall_s:
            return "time"
        return ""


def _stat(pid: int) -> tuple[int, float, int] | None:
    """(session, CPU seconds, resident bytes) of a process, or None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE


def _session(leader: int) -> dict[int, tuple[float, int]]:
    members = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))) and stat[0] == leader:
            members[int(name)] = stat[1:]
    return members


def measure(pid: int, usage: Usage) -> None:
    """Update `usage` from one process."""
    if stat := _stat(pid):
        usage.cpu_s, usage.peak = stat[1], max(usage.peak, stat[2])


def kill_session(leader: int) -> None:
    """Kill every process of a session that we started; repeated, as members may be forking meanwhile."""
    for _ in range(20):
        members = _session(leader)
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def run(argv: Sequence[str | os.PathLike[str]], limits: Limits, *, env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None, progress: Callable[[], object] | None = None) -> Finished:
    """Run `argv` in a session of its own, and leave nothing of it behind.

    `progress` is asked at every poll; whenever its answer changes, the time limit starts anew. That suits
    a worker that goes through many steps and says so.
    """
    if interrupted.is_set():
        raise Interrupted
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen([os.fspath(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                 env=env, cwd=cwd, start_new_session=True)
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(child.pid, resource.RLIMIT_CORE, (0, 0))
            if not progress:        # should we be killed ourselves, it ends by itself
                most = int(2 * limits.cpu_s) + 10
                resource.prlimit(child.pid, resource.RLIMIT_CPU, (most, most))
            # should the machine run short in between two polls, these go first
            Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
        killed = ""
        try:
            usage, seen = Usage(), progress() if progress else None
            dead: dict[int, float] = {}
            cpu_start, wall_start, pause = 0.0, time.monotonic(), 0.005
            while child.poll() is None:
                members = _session(child.pid)
                dead.update({pid: cpu for pid, (cpu, _) in members.items()})
                usage.cpu_s = sum(dead.values())
                usage.peak = max(usage.peak, sum(rss for _, rss in members.values()))
                if progress and (now := progress()) != seen:
                    seen, cpu_start, wall_start = now, usage.cpu_s, time.monotonic()
                killed = usage.over(limits, cpu_start, wall_start)
                if killed:
                    break
                if interrupted.is_set():
                    raise Interrupted
                time.sleep(pause)
                pause = min(0.1, pause * 1.5)
        finally:
            kill_session(child.pid)
            child.wait()
        out.seek(0)
        err.seek(0)
        return Finished(child.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"),
                        round(usage.cpu_s, 2), usage.peak, killed)


def run_forked(work: Callable[[], object], limits: Limits, progress: Callable[[], object]) -> Finished:
    """Run `work` in a fork of this process, under the same limits. Its output goes where ours goes.

    Forking keeps what is expensive to have (torch and triton imported, the user's module loaded) and
    loses only this piece of work when it goes wrong.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    usage, seen, killed = Usage(), progress(), ""
    cpu_start, wall_start, pause = 0.0, time.monotonic(), 0.005
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return Finished(os.waitstatus_to_exitcode(status), "", "", usage.cpu_s, usage.peak, killed)
        measure(pid, usage)
        if (now := progress()) != seen:
            seen, cpu_start, wall_start = now, usage.cpu_s, time.monotonic()
        if not killed and (killed := usage.over(limits, cpu_start, wall_start)):
            os.kill(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
