"""`migrate check X --reduce FOLDER`: a small kernel on which compiler and interpreter disagree, and what shows it."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from migrate.errors import MigrateError, UsageError
from migrate.gate import process, targets, units
from migrate.gate.toolchain import Toolchain
from migrate.vnpu import device, specimen
from migrate.vnpu.machine import Options
from migrate.vnpu.reduce import Judgement, judge, reduce
from migrate.vnpu.specimen import Specimen
from migrate.vnpu.trace_command import cases_of, explained, no_case_matches, reachable

SECONDS = 900.0     # for the search


class Agreement(MigrateError):
    """There is nothing to reduce."""

    exit_code = 1


SHOW = '''"""Compiles linalg.mlir with `bishengir-compile` of the PyPI package ascendnpu-ir, and counts matrix products.

    pip install ascendnpu-ir=={ascendnpu_ir}
    python show.py

linalg.mlir is what triton-ascend {triton_ascend} made of kernel.py. The compiler's last step, hivmc, ships with CANN; a
script that keeps the final HIVM stands in for it.
"""
import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPILER = Path(importlib.util.find_spec("ascendnpuir").origin).parent / "bin" / "bishengir-compile"
FLAGS = {flags!r}

with tempfile.TemporaryDirectory() as folder:
    hivm, hivmc = Path(folder) / "hivm.mlir", Path(folder) / "hivmc"
    hivmc.write_text('#!/bin/sh\\n[ "$1" = --version ] && echo "hivmc version {ascendnpu_ir}" && exit 0\\n'
                     f'cp "$1" {{hivm}}\\n')
    hivmc.chmod(0o755)
    done = subprocess.run([COMPILER, HERE / "linalg.mlir", "--target={target}", *FLAGS, "-o", f"{{folder}}/kernel"],
                          env={{**os.environ, "PATH": f"{{folder}}:{{os.environ['PATH']}}"}})
    text = hivm.read_text()
    (HERE / "hivm.mlir").write_text(text)
products = len(re.findall(r"= linalg\\.(?:batch_)?matmul\\b", (HERE / "linalg.mlir").read_text()))
print(f"bishengir-compile ended with {{done.returncode}}; products in linalg.mlir: {{products}}, in the final HIVM "
      f"(hivm.mlir): {{text.count('call @mma_tile')}}")
'''

README = """# A kernel of {lines} lines on which Ascend's compiler and Triton's interpreter disagree

{said}

- `kernel.py`: the kernel, its arguments from a seed, and its launch; shrunk from {kernel}, case {case!r}
- `linalg.mlir`: what triton-ascend {triton_ascend} makes of it
- `show.py`: compiles that, keeps the final HIVM and counts the matrix products in both

The compiler alone, in any Python 3.11 on x86-64 Linux:

    pip install triton-ascend=={triton_ascend} ascendnpu-ir=={ascendnpu_ir}
    python show.py

The whole comparison, with this toolkit:

    migrate check kernel.py                     # compiles kernel.py from its Python source
    migrate check kernel.py --reduce again      # runs the program and the interpreter, and says where they differ

Target: {target}. Not confirmed on a card: it is what the compiler's output says.
"""


def run(names: Sequence[str], out: Path, toolchain: Toolchain, *, target: str = "", only: str = "",
        case_files: Sequence[Path] = (), root: Path | None = None, limits: process.Limits | None = None,
        seconds: float = SECONDS, progress: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """Find the first launch that disagrees among the cases whose name contains `only`, shrink it into the folder
    `out`, and yield what to tell. Raises UsageError when nothing can be run, DoesNotCompile for a kernel
    that does not compile, Agreement when nothing disagrees, MigrateError when a launch could not be compared."""
    if reason := device.unusable():
        raise UsageError(f"--reduce runs kernels on the virtual NPU: {reason}")
    if len(names) != 1 or names[0] == "all":
        raise UsageError(f"--reduce takes one file or operator, got {' '.join(names)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: expected a folder that is empty or not there yet")
    [unit] = units.resolve(names, toolchain, case_files=case_files, root=root)
    reachable(unit)
    target, limits = target or targets.DEFAULT, limits or process.Limits()
    case, found, before = _first(unit, target, only, limits, progress)
    yield f"{found.kernel}, case {case!r} of {unit.name}: {'; '.join(before.said)}"
    smallest, said, attempts = reduce(found, target, limits, seconds, progress)
    versions = {"triton_ascend": toolchain.versions["triton-ascend"],
                "ascendnpu_ir": toolchain.versions["ascendnpu-ir"], "target": target}
    lines = _lines(smallest)
    out.mkdir(parents=True, exist_ok=True)
    (out / "kernel.py").write_text(smallest.text())
    (out / "linalg.mlir").write_text(said.linalg)
    (out / "show.py").write_text(SHOW.format(flags=list(said.flags), **versions))
    (out / "README.md").write_text(README.format(
        lines=lines, said="\n".join(f"- {one}" for one in said.said), kernel=found.kernel, case=case, **versions))
    yield f"{_lines(found)} lines became {lines}, in {attempts} attempts: {', '.join(sorted(said.kinds))}"
    yield f"wrote {out}/kernel.py, linalg.mlir, show.py, README.md"


def _lines(some: Specimen) -> int:
    return len([line for line in some.functions.splitlines() if line.strip()])


def _first(unit: Any, target: str, only: str, limits: process.Limits,
           progress: Callable[[str], None]) -> tuple[str, Specimen, Judgement]:
    """The first launch of the cases on which both disagree, with arguments from a seed."""
    tried, failed = 0, []
    for case, launches in _launches(unit, target, only):
        for one in launches:
            progress(f"{one.kernel}, case {case!r}")
            found = judge(one, target, limits)
            tried += 1
            if found.kinds:
                return case, one, found
            if found.failed:
                failed.append(f"{one.kernel}: {found.failed}")
    if not tried:
        raise UsageError(f"{unit.name}: the cases launch nothing")
    if not failed:
        raise Agreement(f"{unit.name}: nothing to reduce: compiler and interpreter agree on all of {tried} launches, "
                        "with arguments from a seed")
    raise MigrateError(f"{unit.name}: compiler and interpreter agree on {tried - len(failed)} of {tried} launches, "
                       "with arguments from a seed" + "".join(f"; {one}" for one in failed))


class _Noting(device.Device):
    """Writes launches down before they run."""

    def __init__(self, settings: device.Settings) -> None:
        super().__init__(settings)
        self.specimens: list[Specimen] = []

    def run(self, launch: Any, values: Sequence[Any], grid: Sequence[int]) -> None:
        self.specimens.append(specimen.of_launch(launch, values, grid))
        super().run(launch, values, grid)


def _launches(unit: Any, target: str, only: str) -> Iterator[tuple[str, list[Specimen]]]:
    """By case. One that does not compile ends its case: nothing of it can be compared."""
    noting = _Noting(device.Settings(target, Options(programs=(0,)), strict=False))
    with device.entered(noting), explained(unit):
        cases = list(cases_of(unit, noting))
    if not any(only in case for case, _ in cases):
        raise no_case_matches(unit, only, [case for case, _ in cases])
    for case, call in cases:
        if only in case:
            with device.entered(noting), explained(unit, f"case {case!r} of "):
                call()
            yield case, noting.specimens      # outside the device: the interpreter's turn comes
            noting.specimens = []
