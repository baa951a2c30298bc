"""Programs under limits."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from migrate.gate import process
from migrate.gate.process import Limits

QUICK = Limits(cpu_s=1, memory=300 << 20)


def python(code: str, limits: Limits = QUICK) -> process.Finished:
    return process.run([sys.executable, "-c", code], limits)


def test_output_and_exit_code() -> None:
    end = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (end.returncode, end.stdout, end.stderr, end.killed, end.crashed) == (3, "out\n", "err\n", "", False)


def test_a_busy_program_is_stopped_by_cpu_seconds() -> None:
    end = python("while True: pass")
    assert end.killed == "time" and not end.crashed and 1 <= end.cpu_s < 3


def test_a_waiting_program_is_stopped_by_the_clock() -> None:
    limits = Limits(cpu_s=0.01)
    object.__setattr__(limits, "cpu_s", -2.25)   # the clock runs out after one second, without any CPU time
    assert limits.wall_s == 1
    end = python("import time; time.sleep(60)", limits)
    assert end.killed == "time"


def test_memory() -> None:
    end = python("x = bytearray(10**9); import time; time.sleep(60)")
    assert end.killed == "memory" and end.peak > 300 << 20


def test_memory_of_children_counts_and_they_die_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); x = bytearray(10**9); time.sleep(60)"
    assert python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])").killed == "memory"
    assert gone(note.read_text()), "the child of a killed program lives on"


def gone(pid: str) -> bool:
    """Whether a process ends, within five seconds; one that nobody has waited for is gone, too."""
    state = Path(f"/proc/{pid}/stat")
    for _ in range(50):
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_a_signal_is_a_crash() -> None:
    end = python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert end.crashed and end.returncode == -11


def test_progress_starts_the_limit_anew() -> None:
    code = "import time\nstart = time.process_time()\nwhile time.process_time() - start < 2: pass"
    ticks = iter(range(10**9))
    assert process.run([sys.executable, "-c", code], QUICK, progress=lambda: next(ticks)).returncode == 0


def test_a_fork_that_dies_says_so() -> None:
    assert process.run_forked(lambda: os.kill(os.getpid(), signal.SIGKILL), QUICK, lambda: 0).crashed
    assert process.run_forked(lambda: None, QUICK, lambda: 0).returncode == 0

    def hang() -> None:
        while True:
            pass

    assert process.run_forked(hang, QUICK, lambda: 0).killed == "time"


def test_a_program_ends_by_itself_when_we_are_killed() -> None:
    code = "import resource, time; time.sleep(0.3); print(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    assert python(code, Limits(cpu_s=3)).stdout.strip() == "16"


def test_a_terminated_command_leaves_nothing_running(tmp_path: Path) -> None:
    """As by `timeout`: the command line takes SIGTERM as an interrupt, and what it started dies with it."""
    pid = tmp_path / "pid"
    worker = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    script = tmp_path / "migrate_cli.py"
    script.write_text(
        "import sys, types, migrate\n"
        "from migrate.gate.process import Limits, run\n"
        f"def main(): run([sys.executable, '-c', {worker!r}], Limits(cpu_s=30))\n"
        "sys.modules['migrate.cli'] = types.SimpleNamespace(main=main)\n"
        "from migrate.__main__ import main\n"
        "main()\n")
    command = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.02)
    command.terminate()
    assert command.wait(30) != 0
    assert gone(pid.read_text())
