"""TTIR -> linalg -> HIVM, by the two programs of the toolchain, under limits, cached.

The last step, `hivmc`, ships with CANN alone. bishengir-compile looks for it on PATH, asks its version and hands
it the final HIVM. A stand-in of two lines keeps that text, which makes every open pass run, memory planning
included; where the real `hivmc` is on PATH, the stand-in hands over to it.
"""
from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from migrate.gate import cache, process
from migrate.gate.result import Outcome
from migrate.gate.targets import Target
from migrate.gate.toolchain import Toolchain, assembler

_OVERFLOW = re.compile(r"error: (\w+) overflow, requires (\d+) bits while (\d+) bits available")
_MIX_MODE = re.compile(r', mix_mode\s*=\s*"([^"]*)"')
_CRASH = re.compile(r"PLEASE submit a bug report|Stack dump:|Assertion .* failed|LLVM ERROR")
_DUMP = re.compile(r"^// -----// IR Dump After (\w+) Failed", re.MULTILINE)

BUFFERS = {"ub": "UB", "cbuf": "L1", "cc": "L0C", "ca": "L0A", "cb": "L0B"}


@dataclass(frozen=True)
class Rung:
    """Launch options to try when the launch as written does not compile, and the failures they may help with."""

    options: dict[str, Any]
    helps: tuple[str, ...]
    mix_only: bool = False


# A short ladder: each rung costs a compile, or a time limit. On an overflow bishengir-compile itself goes on without
# code motion and without multi-buffering, so that rung is for compilers that crash or never return; the other two
# cut the vector or the cube half of a mix kernel into more pieces (their default is 2).
LADDER = (
    Rung({"multibuffer": False}, ("time", "crash")),
    Rung({"tile_mix_vector_loop": 4}, ("ub",), mix_only=True),
    Rung({"tile_mix_cube_loop": 4}, ("cbuf", "cc"), mix_only=True),
)

# how triton-ascend 3.2.0 spells these launch options for the compiler (compiler.py, linalg_to_bin_*)
_FLAG = {"multibuffer": "--enable-auto-multi-buffer", "tile_mix_vector_loop": "--tile-mix-vector-loop",
         "tile_mix_cube_loop": "--tile-mix-cube-loop"}


@dataclass
class Step:
    """One program run on one input: how it ended, and what it left."""

    outcome: Outcome
    why: str = ""
    messages: str = ""
    text: str = ""                # path of the output, when there is one
    command: str = ""             # to run the step again
    cpu_s: float = 0.0
    peak: int = 0
    overflow: tuple[str, int, int] | None = None   # buffer ("ub", "cbuf", "cc"), bits needed, bits there
    failed_pass: str = ""         # the compiler pass that gave up
    failed_ir: str = ""           # path of the IR it gave up on
    options: dict[str, Any] = field(default_factory=dict)
    binary: str = ""              # what the last step said, where CANN has it
    cached: bool = False

    @property
    def kind(self) -> str:
        """What a rung of the ladder is chosen by."""
        if self.overflow:
            return self.overflow[0]
        return {Outcome.TIMED_OUT: "time", Outcome.CRASHED: "crash"}.get(self.outcome, "")


class Compiler:
    """Runs the programs of one toolchain."""

    def __init__(self, toolchain: Toolchain, limits: process.Limits, use_cache: bool = True) -> None:
        self.toolchain, self.limits = toolchain, limits
        self._entries = {kind: cache.Entries(kind, use_cache) for kind in ("linalg", "hivm")}
        self._versions = {k: v for k, v in toolchain.versions.items() if k in ("triton-ascend", "ascendnpu-ir")}
        self._use_cache = use_cache

    # -- linalg ----------------------------------------------------------------------------------------------

    def to_linalg(self, ttir: Path, flags: Sequence[str]) -> Step:
        text = ttir.read_text()
        # a file's name is in its locations; where the TTIR lies is not
        key = cache.key(text, list(flags), self._versions, asdict(self.limits))
        return self._cached("linalg", key, lambda: self._attempt(lambda work: self._adapt(ttir, flags, work), 2))

    def _adapt(self, ttir: Path, flags: Sequence[str], work: Path) -> tuple[Step, dict[str, Path | str]]:
        made = work / "linalg.mlir"
        argv: list[str | Path] = [self.toolchain.adapter, ttir, *flags, "-o", made]
        step = self._run(argv, work)
        step.command = shlex.join([str(self.toolchain.adapter), "{entry}/ttir.mlir", *flags])
        files: dict[str, Path | str] = {"ttir.mlir": ttir}
        if step.outcome is Outcome.OK:
            files["linalg.mlir"] = made
        return step, files

    # -- HIVM ------------------------------------------------------------------------------------------------

    def to_hivm(self, linalg: Path, flags: Sequence[str], target: Target) -> list[Step]:
        """The launch as written, then down the ladder until something compiles. The last step tells."""
        first = self._hivm(linalg, flags, target, {}, attempts=2)
        steps = [first]
        mixed = mix_mode(linalg) == "mix"
        for rung in LADDER if first.outcome is not Outcome.OK else ():
            changed = _with(flags, rung.options)
            if first.kind in rung.helps and changed != list(flags) and (mixed or not rung.mix_only):
                steps.append(self._hivm(linalg, changed, target, rung.options, attempts=1))
                if steps[-1].outcome is Outcome.OK:
                    break
        return steps

    def _hivm(self, linalg: Path, flags: Sequence[str], target: Target, options: dict[str, Any],
              attempts: int) -> Step:
        real = assembler(target.assembler)
        text = _MIX_MODE.sub("", linalg.read_text())   # triton-ascend takes it out, too
        key = cache.key(text, list(flags), target.name, self._versions, asdict(self.limits), str(real or "stand-in"))
        step = self._cached("hivm", key, lambda: self._attempt(
            lambda work: self._compile(text, flags, target, real, work), attempts))
        step.options = options
        return step

    def _compile(self, linalg: str, flags: Sequence[str], target: Target, real: Path | None,
                 work: Path) -> tuple[Step, dict[str, Path | str]]:
        source, final = work / "linalg.mlir", work / "hivm.mlir"
        source.write_text(linalg)
        stand_in = _stand_in(self.toolchain.versions["ascendnpu-ir"], target, real)
        # locations in the final text, and the IR of a pass that fails; neither changes what the passes do
        argv: list[str | Path] = [
            self.toolchain.program(target.compiler), source, f"--target={target.name}", *flags,
                *([] if any("debug-info" in flag for flag in flags) else ["--enable-debug-info=true"]),
                "--mlir-print-debuginfo", "--mlir-print-ir-after-failure", "-o", work / "kernel"]
        step = self._run(argv, work, {"PATH": f"{stand_in.parent}{os.pathsep}{os.environ.get('PATH', '')}",
                                      "MIGRATE_HIVM": str(final)})
        step.command = (f"PATH={shlex.quote(str(stand_in.parent))}:$PATH MIGRATE_HIVM=/tmp/hivm.mlir "
                        + shlex.join([str(argv[0]), "{entry}/linalg.mlir", *map(str, argv[2:-2])]) + " -o /tmp/kernel")
        files: dict[str, Path | str] = {"linalg.mlir": source}
        dumps = list(_DUMP.finditer(step.messages))
        if dumps:
            step.failed_pass = dumps[-1][1]
            files["failed.mlir"] = step.messages[dumps[-1].end():]
            step.messages = step.messages[:dumps[0].start()] + _after_dump(step.messages[dumps[-1].end():])
        if found := _OVERFLOW.search(step.messages):
            step.overflow = (found[1].lower(), int(found[2]), int(found[3]))
        if final.exists():
            files["hivm.mlir"] = final
            if real:
                step.binary = "ok" if step.outcome is Outcome.OK else f"failed: {_last_error(step.messages)}"
                step.outcome = Outcome.OK   # HIVM was reached; the binary is a stage of its own
        elif step.outcome is Outcome.OK:
            step.outcome, step.why = Outcome.FAILED, "the compiler ended well but made no HIVM"
        return step, files

    # -- both ------------------------------------------------------------------------------------------------

    def _run(self, argv: Sequence[str | Path], work: Path, environment: dict[str, str] | None = None) -> Step:
        # TMPDIR: what a killed compiler leaves behind goes with the work folder
        end = process.run(argv, self.limits, cwd=work,
                          env={**os.environ, "TMPDIR": str(work), **(environment or {})})
        step = Step(Outcome.OK, messages=(end.stderr + end.stdout)[-2_000_000:], cpu_s=end.cpu_s, peak=end.peak)
        if end.killed == "time":
            step.outcome, step.why = Outcome.TIMED_OUT, f"no end after {self.limits.cpu_s:g} s"
        elif end.killed == "memory":
            step.outcome = Outcome.CRASHED
            step.why = f"needed more than {self.limits.memory / 2**30:.1f} GiB of memory"
        elif end.crashed or (end.returncode and _CRASH.search(step.messages)):
            step.outcome = Outcome.CRASHED
            step.why = ((f"died of signal {-end.returncode}" if end.returncode < 0 else "died")
                        + _where(step.messages))
        elif end.returncode:
            step.outcome, step.why = Outcome.FAILED, _last_error(step.messages)
        return step

    def _attempt(self, attempt: Any, times: int) -> tuple[Step, dict[str, str]]:
        """The compiler is slightly nondeterministic: a failure is believed when it comes again."""
        for _ in range(times):
            with tempfile.TemporaryDirectory(prefix="migrate-gate-") as folder:
                step, files = attempt(Path(folder))
                held = {name: content.read_text(errors="replace") if isinstance(content, Path) else content
                        for name, content in files.items()}
            if step.outcome is Outcome.OK:
                break
        return step, held

    def _cached(self, kind: str, key: str, compute: Any) -> Step:
        entries = self._entries[kind]
        found = entries.find(key) if self._use_cache else None
        if found:
            path, stored = found
            step = Step(**{**stored, "outcome": Outcome(stored["outcome"]), "cached": True,
                           "overflow": tuple(stored["overflow"]) if stored["overflow"] else None})
        else:
            step, files = compute()
            step.messages = step.messages[-100_000:]
            path = entries.put(key, asdict(step), files)
        output = path / f"{kind}.mlir"
        step.text = str(output) if step.outcome is Outcome.OK and output.exists() else ""
        step.failed_ir = str(path / "failed.mlir") if (path / "failed.mlir").exists() else ""
        step.command = step.command.replace("{entry}", str(path))
        return step


def mix_mode(linalg: Path) -> str:
    """"aiv" (vector), "aic" (cube) or "mix", as the adapter decided."""
    found = _MIX_MODE.search(linalg.read_text())
    return found[1] if found else ""


def _with(flags: Sequence[str], options: dict[str, Any]) -> list[str]:
    changed = list(flags)
    for name, value in options.items():
        changed = [flag for flag in changed if not flag.startswith(_FLAG[name] + "=")] + [f"{_FLAG[name]}={value}"]
    return changed


def _stand_in(version: str, target: Target, real: Path | None) -> Path:
    """The script that takes the place of hivmc on PATH. It stays, so that `reproduce` commands work."""
    entries = cache.Entries("stand-in")
    key = cache.key(version, target.assembler, str(real))
    script = entries.path(key) / target.assembler
    if not script.exists():
        # debug info is for the gate's eyes; the binary is made as a launch would make it
        hand_over = f'exec {shlex.quote(str(real))} "$@" --enable-debug-info=false\n' if real else "exit 0\n"
        text = ("#!/bin/sh\n# stands in for the last compiler step: keeps the final HIVM\n"
                + (f'[ "$1" = --version ] && exec {shlex.quote(str(real))} --version\n' if real
                   else f'[ "$1" = --version ] && echo "hivmc version {version}" && exit 0\n')
                + '[ -n "$MIGRATE_HIVM" ] && cp "$1" "$MIGRATE_HIVM"\n' + hand_over)
        script = entries.put(key, {}, {target.assembler: text}) / target.assembler
        script.chmod(0o755)
    return script


def _last_error(messages: str) -> str:
    """The message that says most: the last `error:` that is not merely "failed to run the pipeline"."""
    errors = [m.group(1).strip() for m in re.finditer(r"error: (.*)", messages)]
    telling = [e for e in errors if not re.search(r"Failed to run|failed to run", e)]
    return (telling or errors or [line for line in messages.splitlines() if line.strip()] or ["no message"])[-1]


def _where(messages: str) -> str:
    """The innermost named compiler function of a stack dump, for people who report bugs."""
    for frame in re.finditer(r"^\s*#\d+ 0x[0-9a-f]+ (?:in )?(.+?)(?: \(|\+|$)", messages, re.MULTILINE):
        name = frame[1].strip()
        if re.search(r"mlir::|bishengir::", name) and "PrintStackTrace" not in name:
            return f" in {name[:120]}"
    return ""


def _after_dump(text: str) -> str:
    """The messages that follow a dump of IR: they begin with a location or a tag at the start of a line."""
    found = re.search(r"^(?:loc\(.*?error:|\[(?:NOTE|ERROR)\]|<unknown>|PLEASE)", text, re.MULTILINE)
    return text[found.start():] if found else ""
