"""Runs upstream's function and its port on the same inputs, on one GPU, in one process: differences and times.

    python benchmarks/gpu_parity.py --warm 12 --out parity.md        on the GPU machine, in the repository root
    python benchmarks/gpu_parity.py --device cpu                      with Triton's interpreter, small sizes, no times

Needs torch, triton, einops and packaging, the unpacked release (`migrate snapshot sync`) and the ports
(`migrate port --all mamba-ssm`); it imports nothing of `migrate`.

How it compares:
- upstream's modules are loaded under their own names, without the `__init__` files that want compiled extensions;
- `torch.empty` and its kin are filled with NaN meanwhile, so that what a kernel leaves unwritten shows;
- all outputs and all arguments that the function writes to are compared, one by one; the worst one counts;
- both are also compared with the float64 reference of the catalogue, where it has one: the port may not be further
  from it than 1.1 times upstream's own distance (below float32's noise, 2^-22, the two count as equal);
- float32 dots are computed in float32 on both sides (TRITON_F32_DEFAULT=ieee), not in tf32 as by default;
- an output that is bfloat16 whatever the input (mamba3's stored states) has bfloat16's bound;
- autotuning tries a few configurations only (--configs), for both sides; times are therefore not the best that
  either can do.

A child process does the work; one that dies (an illegal memory access spoils the CUDA context) or hangs costs its
row only. `--warm N` first compiles with N processes into Triton's cache, then measures with one.
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import queue
import shlex
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(ROOT))
os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")     # before triton: it may be read at import

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from parity_cases import CASES, port_function, upstream_function  # noqa: E402
from parity_oracle import error_ratio, errors, reference  # noqa: E402
from parity_rows import SLOW, Row, number, slow_rows, summary  # noqa: E402
from parity_tiles import as_ported, few  # noqa: E402

from ported_kernels.cases.mamba import LAYOUTS, SIZES, Case, Draw  # noqa: E402

RELEASE = "mamba-ssm-2.3.2.post1"
PORTS = "ported_kernels.generated.mamba_ssm"
BOUNDS = {"float32": 1e-5, "bfloat16": 1e-2}
TF32_BOUND = 2e-3
WORSE = 1.1             # the port's error against float64, over upstream's own
FAR = 3e-2              # an error against float64 that no rounding explains: another formula, or another input
WARM_UP, REPEATS = 5, 20
ROW_LIMIT_S = 120       # compiling two configurations of a large kernel takes some 20 s


# ----------------------------------------------------------------------------------------------------- loading

def bare_packages(name: str, folder: Path) -> None:
    """`name` and every package below it, as empty modules: their `__init__` files are not executed."""
    for path in (folder, *sorted(p for p in folder.rglob("*") if p.is_dir() and any(p.glob("*.py")))):
        dotted = ".".join((name, *path.relative_to(folder).parts))
        package = types.ModuleType(dotted)
        package.__path__ = [str(path)]
        sys.modules[dotted] = package


@contextlib.contextmanager
def one_stage() -> Iterator[None]:
    """Launches that do not say otherwise are not pipelined: ports name no `num_stages`, and three may not fit."""
    run = triton.runtime.jit.JITFunction.run

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self, *args, **({"num_stages": 1} | kwargs))

    with mock.patch.object(triton.runtime.jit.JITFunction, "run", launch):
        yield


def find_release(given: str | None) -> Path:
    places = [Path(given)] if given else [ROOT / "upstream_snapshots/unpacked" / RELEASE]
    for place in places:
        for folder in (place, place / "mamba_ssm"):
            if (folder / "ops/triton").is_dir():
                return folder
    raise SystemExit(f"no unpacked {RELEASE} at {places[0]}: run `migrate snapshot sync`, or give --upstream")


# --------------------------------------------------------------------------------------------------- comparing

@contextlib.contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """Inside, new tensors that nothing was written to hold NaN."""
    def filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(*args: Any, **kwargs: Any) -> torch.Tensor:
            made = make(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made
        return call

    with contextlib.ExitStack() as stack:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"),
                            (torch.Tensor, "new_empty")):
            stack.enter_context(mock.patch.object(owner, name, filled(getattr(owner, name))))
        yield


def cloned(value: Any) -> Any:
    """A copy with the same strides; views with strides of 0 or gaps stay such."""
    if isinstance(value, tuple):
        return tuple(cloned(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(
        storage, value.storage_offset(), value.shape, value.stride())


def flattened(result: Any) -> list[torch.Tensor | None]:
    if isinstance(result, (tuple, list)):
        return list(itertools.chain.from_iterable(map(flattened, result)))
    return [result]


def outputs_of(function: Callable[..., Any], case: Case, arguments: dict[str, Any]) -> list[Any]:
    """Outputs, then mutated arguments, of a call on copies; and that nothing else was written to."""
    given = {name: cloned(value) for name, value in arguments.items()}
    with unwritten_is_nan():
        returned = flattened(function(**given))
    for name, value in arguments.items():
        if name not in case.mutated:
            for before, after in zip(flattened(value), flattened(given[name]), strict=True):
                if isinstance(before, torch.Tensor) and not torch.equal(before, after):
                    raise AssertionError(f"the argument {name} was written to")
    tensors = [value for value in returned if isinstance(value, torch.Tensor)]
    missing = [value is None for value in returned]
    return [missing, *case.defined(tensors), *(given[name] for name in case.mutated)]


@dataclass
class Difference:
    relative: float = 0.0     # L2 norm of the difference, over upstream's
    largest: float = 0.0
    fault: str = ""           # what no number says
    over: float = 0.0         # relative, over the output's bound


def compare(upstream: list[Any], port: list[Any], dtype: str, bounds: dict[str, float]) -> Difference:
    """The worst of all outputs. Shapes, dtypes and the places of NaN and inf must be the same."""
    worst = Difference()
    if upstream[0] != port[0] or len(upstream) != len(port):
        return Difference(fault=f"returns differ: None at {port[0]}, upstream's at {upstream[0]}")
    for index, (expected, got) in enumerate(zip(upstream[1:], port[1:], strict=True)):
        where = f"output {index}"
        if expected.shape != got.shape or expected.dtype != got.dtype:
            return Difference(fault=f"{where}: {tuple(got.shape)} {got.dtype}, upstream's is "
                                    f"{tuple(expected.shape)} {expected.dtype}")
        a, b = expected.double(), got.double()
        if not torch.equal(a.isnan(), b.isnan()):
            worst.fault = worst.fault or (f"{where}: NaN at {int(b.isnan().sum())} places, upstream's at "
                                          f"{int(a.isnan().sum())}, of {a.numel()}")
        elif not torch.equal(a.isinf(), b.isinf()):
            worst.fault = worst.fault or f"{where}: inf at other places than upstream's"
        known = a.isfinite() & b.isfinite()
        if a.numel() and not known.any():
            worst.fault = worst.fault or f"{where}: not one finite value to compare"
        a, b = torch.where(known, a, 0.0), torch.where(known, b, 0.0)
        largest, norm = float((a - b).abs().max()) if a.numel() else 0.0, float(a.norm())
        relative = float((a - b).norm()) / norm if norm else (0.0 if largest == 0 else float("inf"))
        bound = bounds["bfloat16" if expected.dtype == torch.bfloat16 else dtype]
        worst.relative, worst.largest = max(worst.relative, relative), max(worst.largest, largest)
        if relative > bound and relative / bound > worst.over:
            worst.over = relative / bound
            worst.fault = worst.fault or f"{where}: relative L2 {relative:.1e} above {bound:.0e}"
    return worst


def milliseconds(function: Callable[..., Any], arguments: dict[str, Any]) -> float:
    """The median over repeats, by CUDA events. Arguments that the function writes to are reused."""
    given = {name: cloned(value) for name, value in arguments.items()}
    for _ in range(WARM_UP):
        function(**given)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for start, end in events:
        start.record()
        function(**given)
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in events)[REPEATS // 2]


# --------------------------------------------------------------------------------------------------------- rows

@dataclass(frozen=True)
class Planned:
    """One row of the table, before it has run."""

    index: int
    case: Case
    dtype: str
    layout: str

    @property
    def title(self) -> str:
        return f"{self.case.name} {self.dtype} {self.layout}"


def plan(only: str | None, dtype: str | None, both_layouts: bool) -> list[Planned]:
    """Every case and dtype, in half of the rows with the strided layout; the other half turns with the dtype."""
    rows = []
    for place, case in enumerate(CASES):
        for turn, name in enumerate(case.dtypes):
            for layout in LAYOUTS if both_layouts else (LAYOUTS[(place + turn) % 2],):
                rows.append(Planned(len(rows), case, name, layout))
    return [row for row in rows if (not only or only in row.title) and (not dtype or row.dtype == dtype)]


def short(error: BaseException) -> str:
    """One line about an exception, with the place in the file that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f" at {Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames)
                  if "mamba_ssm" in frame.filename), "")
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}{place}: {lines[-1].strip() if lines else ''}"[:300].replace("|", "\\|")


def function_of(side: str, case: Case) -> Callable[..., Any]:
    return upstream_function(case) if side == "upstream" else port_function(case, PORTS)


def against_float64(case: Case, arguments: dict[str, Any], device: str,
                    results: dict[str, list[Any]]) -> tuple[float, float] | None:
    """Upstream's error and the port's, of the output where the port is worst beside upstream; None: no reference."""
    exact = reference(case, {name: cloned(value) for name, value in arguments.items()}, device)
    if exact is None:
        return None
    pairs = list(zip(errors(exact, results["upstream"]), errors(exact, results["port"]), strict=True))
    return max(pairs, key=lambda pair: (error_ratio(*pair), pair[1]))


def unspecified(outputs: list[Any]) -> str:
    """Which outputs hold NaN on both sides: parts that upstream leaves unwritten."""
    found = [f"output {index}: {int(out.isnan().sum())} of {out.numel()} NaN"
             for index, out in enumerate(outputs[1:]) if out.isnan().any()]
    return f" ({', '.join(found)})" if found else ""


def pack(**arguments: Any) -> None:
    for value in flattened(tuple(arguments.values())):
        if isinstance(value, torch.Tensor):
            value.contiguous()


def run_pinned(planned: Planned, options: argparse.Namespace) -> Row:
    draw = Draw(SIZES[options.size], options.device, getattr(torch, planned.dtype), planned.layout, options.seed)
    try:
        return Row(pinned_ms=milliseconds(upstream_function(planned.case), planned.case.arguments(draw)))
    except Exception as error:
        return Row(verdict=short(error))


def run_row(planned: Planned, options: argparse.Namespace) -> Row:
    case, row = planned.case, Row()
    draw = Draw(SIZES[options.size], options.device, getattr(torch, planned.dtype), planned.layout, options.seed)
    results: dict[str, list[Any]] = {}
    functions: dict[str, Callable[..., Any]] = {}
    faults = []
    arguments = case.arguments(draw)
    stages = contextlib.ExitStack()

    def attempt(side: str) -> None:
        functions[side] = function_of(side, case)
        results[side] = outputs_of(functions[side], case, arguments)
        if options.device == "cuda":
            torch.cuda.synchronize()

    for side in ("upstream", "port"):
        try:
            try:
                attempt(side)
            except triton.runtime.errors.OutOfResources:
                if side == "upstream":
                    raise
                stages.enter_context(one_stage())
                attempt(side)
        except Exception as error:
            if options.trace:
                traceback.print_exc()
            faults.append(f"{side}: {short(error)}")
    if faults:
        stages.close()
        row.verdict = "; ".join(faults)
        return row
    difference = compare(results["upstream"], results["port"], planned.dtype, bounds(options.device))
    row.relative, row.largest = difference.relative, difference.largest
    row.verdict = difference.fault or "ok"
    if options.float64 and (measured := against_float64(case, arguments, options.device, results)):
        row.upstream_error, row.port_error = measured
        if not error_ratio(*measured) <= WORSE and row.verdict == "ok":
            row.verdict = "further from float64 than upstream"
        if max(measured) > FAR and row.verdict == "ok":
            row.verdict = "upstream and port are both far from float64"
    row.verdict += unspecified(results["upstream"]) if options.trace else ""
    if options.time:
        try:
            row.port_ms = milliseconds(functions["port"], arguments)
            stages.close()
            row.upstream_ms = milliseconds(functions["upstream"], arguments)
            row.pack_ms = milliseconds(pack, arguments)
        except Exception as error:
            row.verdict = f"{row.verdict}; when timed: {short(error)}"
    stages.close()
    return row


@triton.jit
def _product(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at)))


@cache
def ieee_dots(device: str) -> bool:
    """Are float32 dots computed in float32 here? Measured, as Triton's versions take the wish in different ways."""
    if device == "cpu":
        return True
    generator = torch.Generator(device).manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator, device=device) for _ in range(2))
    out = torch.empty_like(x)
    _product[(1,)](x, y, out, 64)
    exact = x.double() @ y.double()
    return float((out - exact).norm() / exact.norm()) < 1e-5     # tf32: 3e-4


def bounds(device: str) -> dict[str, float]:
    return BOUNDS if ieee_dots(device) else BOUNDS | {"float32": TF32_BOUND}


# ------------------------------------------------------------------------------------------------------ worker

@contextlib.contextmanager
def entered(device: str) -> Iterator[None]:
    """On the CPU: Triton's interpreter, with what upstream needs besides."""
    if device == "cuda":
        yield
        return
    from interpreter_stand_ins import installed

    from ported_kernels.interpreter import interpreted

    with interpreted(), installed():
        yield


def work(options: argparse.Namespace, rows: list[Planned]) -> None:
    """Runs rows one after another, and says of each that it begins and what came of it, as lines of JSON."""
    wanted = {int(index) for index in options.worker.split(",")}
    with entered(options.device), mock.patch.object(
            triton, "autotune", as_ported(PORTS) if options.pinned else few(options.configs)):
        bare_packages("mamba_ssm", find_release(options.upstream))
        for planned in rows:
            if planned.index in wanted:
                print(json.dumps({"begins": planned.index}), flush=True)
                row = (run_pinned if options.pinned else run_row)(planned, options)
                print(json.dumps({"index": planned.index, **asdict(row)}), flush=True)
                if "CUDA error" in row.verdict:     # the context is lost; the next worker has a new one
                    os._exit(3)


# -------------------------------------------------------------------------------------------------- supervisor

def start(arguments: list[str], rows: list[Planned]) -> subprocess.Popen[str]:
    chosen = ",".join(str(planned.index) for planned in rows)
    return subprocess.Popen([sys.executable, __file__, *arguments, "--worker", chosen], stdout=subprocess.PIPE,
                            text=True, cwd=ROOT)


def lines_of(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """The process's lines as they come, then None."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def collect(process: subprocess.Popen[str], found: dict[int, Row], deadline: float, row_limit: float) -> None:
    """Takes a worker's rows until it ends, hangs or the time is over; a row it died in is noted."""
    lines, current = lines_of(process), None
    try:
        while (left := deadline - time.monotonic()) > 0:
            line = lines.get(timeout=min(row_limit, left))
            if line is None:
                if current is not None:
                    found[current] = Row(verdict=f"the process died, exit code {process.wait()}")
                return
            if line.startswith('{"begins"'):
                current = json.loads(line)["begins"]
            elif line.startswith('{"index"'):
                values = json.loads(line)
                index = values.pop("index")
                found[index] = Row(**values)
                current = None
    except queue.Empty:
        if current is not None and time.monotonic() < deadline:
            found[current] = Row(verdict=f"stopped after {row_limit:.0f} s")
    finally:
        process.kill()
        process.wait()


def warm(arguments: list[str], rows: list[Planned], workers: int, deadline: float) -> None:
    """Compiles everything into Triton's cache with several processes; what they report is thrown away."""
    threads = []
    for first in range(workers):
        if share := rows[first::workers]:
            process = start([*arguments, "--no-time", "--no-float64"], share)
            threads.append(threading.Thread(target=collect, args=(process, {}, deadline, ROW_LIMIT_S)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def measure(arguments: list[str], rows: list[Planned], deadline: float, row_limit: float) -> dict[int, Row]:
    found: dict[int, Row] = {}
    while time.monotonic() < deadline:
        left = [planned for planned in rows if planned.index not in found]
        before = len(found)
        if not left:
            break
        collect(start(arguments, left), found, deadline, row_limit)
        if len(found) == before and time.monotonic() < deadline:     # it died before its first row
            found[left[0].index] = Row(verdict="the process died before it began")
    return found


# ------------------------------------------------------------------------------------------------------ report

def load_rows(path: str | None) -> dict[str, Row]:
    """Rows by title, from an earlier run on the same card with the same options."""
    if path is None or not Path(path).exists():
        return {}
    return {title: Row(**values) for title, values in json.loads(Path(path).read_text()).items()}


def card(device: str) -> str:
    if device == "cpu":
        return f"none: Triton's interpreter on {platform.machine()}, with stand-ins for tensor descriptors and PTX"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {properties.total_memory >> 30} GiB, CUDA {torch.version.cuda}"


def report(options: argparse.Namespace, rows: list[Planned], found: dict[int, Row], seconds: float) -> str:
    verdicts = [found.get(planned.index, Row()).verdict for planned in rows]
    dots = ("by numpy on both sides" if options.device == "cpu"
            else "ieee on both sides, measured (TRITON_F32_DEFAULT)" if ieee_dots(options.device)
            else f"tf32 where the default is left, measured; float32's bound is {TF32_BOUND:.0e} for that")
    limits = ", ".join(f"{name} {bound:.0e}" for name, bound in bounds(options.device).items())
    lines = [f"- command: `python {shlex.join(sys.argv)}`",
             f"- card: {card(options.device)}",
             f"- torch {torch.__version__}, triton {triton.__version__}, Python {platform.python_version()}",
             f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {seconds:.0f} s, "
             f"seed {options.seed}, size {options.size}: {SIZES[options.size]}",
             f"- upstream: {RELEASE}; autotuning tried at most {options.configs} configurations of each kernel, on "
             "both sides",
             f"- float32 dots: {dots}; bounds on the relative L2 difference: {limits}",
             f"- times: median of {REPEATS} by CUDA events, of the whole function (host work included)",
             f"- rows: {len(rows)}, ok {verdicts.count('ok')}, not run {verdicts.count('not run')}",
             *summary([found.get(planned.index, Row()) for planned in rows]), "",
             "| case | dtype | layout | rel L2 | max diff | f64 upstream | f64 port | f64 ratio | ms upstream "
             "| ms port | ratio | verdict |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for planned in rows:
        row = found.get(planned.index, Row())
        cells = (planned.case.name, planned.dtype, planned.layout, number(row.relative, ".1e"),
                 number(row.largest, ".1e"), number(row.upstream_error, ".2e"), number(row.port_error, ".2e"),
                 number(row.error_ratio, ".2f"), number(row.upstream_ms, ".3f"), number(row.port_ms, ".3f"),
                 number(row.time_ratio, ".2f"), row.verdict)
        lines.append("| " + " | ".join(cells) + " |")
    lines += slow_rows([(planned.title, row) for planned in rows if (row := found.get(planned.index))])
    return "\n".join(lines) + "\n"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", metavar="SUBSTRING", help="rows whose case, dtype or layout contains it")
    parser.add_argument("--dtype", choices=tuple(BOUNDS))
    parser.add_argument("--both-layouts", action="store_true", help="every case in both layouts; default: in turns")
    parser.add_argument("--size", choices=tuple(SIZES), help="default: large on a GPU, small on the CPU")
    parser.add_argument("--configs", type=int, default=2, metavar="N", help="autotuning tries at most N")
    parser.add_argument("--budget", type=float, default=450, metavar="SECONDS", help="later rows are `not run`")
    parser.add_argument("--row-limit", type=float, default=ROW_LIMIT_S, metavar="SECONDS")
    parser.add_argument("--warm", type=int, default=0, metavar="N", help="compile with N processes first")
    parser.add_argument("--no-time", dest="time", action="store_false")
    parser.add_argument("--no-float64", dest="float64", action="store_false", help="no float64 references")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upstream", metavar="DIR", help=f"the unpacked {RELEASE}")
    parser.add_argument("--out", metavar="FILE", help="write the table there, too")
    parser.add_argument("--resume", metavar="FILE", help="keep rows in this JSON file, and run only those it lacks")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    parser.add_argument("--trace", action="store_true", help="tracebacks on stderr")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--pinned", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.size = options.size or ("large" if options.device == "cuda" else "small")
    options.time = options.time and options.device == "cuda"
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    rows = plan(options.only, options.dtype, options.both_layouts)
    if options.list:
        print(*(planned.title for planned in rows), sep="\n")
        return 0
    if options.worker is not None:
        work(options, rows)
        return 0
    if not rows:
        raise SystemExit("no row matches")
    find_release(options.upstream)
    began = time.monotonic()
    deadline = began + options.budget
    kept = load_rows(options.resume)
    left = [planned for planned in rows if planned.title not in kept]
    if options.warm:
        warm(arguments, left, options.warm, began + options.budget * 0.6)
    new = measure(arguments, left, deadline, options.row_limit)
    kept |= {planned.title: new[planned.index] for planned in left if planned.index in new}
    slow = [planned for planned in rows if (row := kept.get(planned.title)) and (row.time_ratio or 0) > SLOW
            and row.pinned_ms is None]
    pinned = measure([*arguments, "--pinned"], slow, deadline, options.row_limit)
    for planned in slow:
        kept[planned.title].pinned_ms = pinned.get(planned.index, Row()).pinned_ms
    if options.resume:
        Path(options.resume).write_text(json.dumps({title: asdict(row) for title, row in kept.items()}, indent=0))
    found = {planned.index: kept[planned.title] for planned in rows if planned.title in kept}
    text = report(options, rows, found, time.monotonic() - began)
    print(text, end="")
    if options.out:
        Path(options.out).write_text(text)
    return 0 if all(found.get(planned.index, Row()).verdict == "ok" for planned in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
