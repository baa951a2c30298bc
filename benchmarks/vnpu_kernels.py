"""What runs on the virtual NPU, and how exactly: a table of our operators and of whole chains of upstream's ports.

    migrate port mamba3_siso_bwd.py mamba3_siso_fwd.py
    python benchmarks/vnpu_kernels.py --out docs/evidence/vnpu_kernels.md [--only NAME ...] [--ports DIR] [--json FILE]

Each row is a process of its own. Operators of the catalogue run all cases of their contracts; the chains those of
vnpu_chains.py, on ports that are made first, unless --ports has them. Every program of every launch is run. Exit code 1
when a row fails that `EXPLAINED` does not name, or one that it names does not fail; else 0.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
import vnpu_chains as chains

from migrate.verify import Verdict
from migrate.verify.trial import try_case
from migrate.vnpu import device
from ported_kernels import catalog

OPERATORS = ("bwd_segsum_dadt", "mamba3_siso_bwd_dzdo", "kda_split_state_summary", "kda_state_transition",
             "kda_state_grad_ext", "compute_dzdo", "compute_dqkv", "compute_dqktheta", "apply_dk_state_post",
             "compute_ddt_dtrap_dinput_states", "mamba3_siso_fwd")
DTYPES = ("float32", "bfloat16")
Rows = dict[tuple[str, str], dict[str, Any]]      # by name and dtype

# Rows that fail, and the finding of docs/vnpu.md that they fail of. Each was looked up in the HIVM.
EXPLAINED = {
    "ssd, forward and backward":
        "finding 4, an atomic after a product: sums of `_chunk_scan_chunk_state_bwd_dx`, `_chunk_state_bwd_db` and "
        "`_chunk_scan_bwd_dc` are added by both vector cores; and finding 3, padded columns: of a tile of 32 the "
        "product computes the 16 that the heads have, and the sum over all of them, times zero, is NaN. This is `ddt`, "
        "and with it `dA` and `ddt_bias`; the other seven outputs agree.",
}


def operator_row(name: str, dtype: str) -> dict[str, Any]:
    """All cases of an operator's contract."""
    torch.set_num_threads(1)
    device.configure(device.Settings(strict=False))
    operator = catalog.get(name)
    started, runs, results = time.perf_counter(), [], []
    try:
        trial = operator.trial("vnpu")
    except catalog.NotPorted as missing:
        return {"refused": str(missing)}

    def counted(**inputs: Any) -> Any:
        try:
            return trial(**inputs)
        finally:
            runs.extend(device.current().runs)      # those of this case: try_case takes them before and after

    for case in operator.cases:
        results.append(try_case(operator, case, getattr(torch, dtype), "vnpu", 0, counted))
    count = Counter(result.verdict for result in results)
    outputs: dict[str, float] = {}
    bound = 0.0
    for result in results:
        for out in result.outputs:
            outputs[out.name] = max(outputs.get(out.name, 0.0), float("inf") if out.ratio is None else out.ratio)
            bound = max(bound, out.bound)
    bad = [f"{r.case}: {r.reason}" for r in results if r.verdict is not Verdict.PASSED]
    found = {"bound": bound, "outputs": outputs, "cases": len(results), "passed": count[Verdict.PASSED],
             "not tried": count[Verdict.NOT_TRIED], "reasons": bad, **chains.told(runs)}
    return found | {"seconds": time.perf_counter() - started}


def in_a_process(command: list[str], limit: float) -> dict[str, Any]:
    """The line of JSON that a command prints last."""
    try:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"refused": f"not done after {limit:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"raised": f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def verdict(row: dict[str, Any]) -> str:
    if "refused" in row:
        return "not tried"
    if "raised" in row:
        return "failed"
    if "cases" in row:
        failed = row["cases"] - row["passed"] - row["not tried"]
        return "failed" if failed else "not tried" if row["not tried"] else "ok"
    return "ok" if not row["errors"] and max(row["outputs"].values()) <= row["bound"] else "failed"


def why(row: dict[str, Any]) -> str:
    """The first thing that is wrong with a row."""
    said = row.get("refused") or row.get("raised") or row.get("first") or next(iter(row.get("reasons", [])), "")
    if not said:
        said = "; ".join(f"{name}: {value:.1e}" for name, value in row["outputs"].items() if value > row["bound"])
    return " ".join(said.replace(str(Path.cwd()) + "/", "").replace("|", "/").split())[:400]


def line(name: str, dtype: str, row: dict[str, Any]) -> str:
    errors = ", ".join(f"{n} {kind}" for kind, n in row.get("errors", {}).items()) or "-"
    notes = ", ".join(f"{n} {kind}" for kind, n in row.get("notes", {}).items()) or "-"
    outputs = row.get("outputs") or {}
    worst = max(outputs, key=outputs.__getitem__) if outputs else None
    tried = f"{row['passed']} of {row['cases']} cases" if "cases" in row else "one case"
    ms = row.get("ms")
    return (f"| {name} | {dtype} | {tried} | {row.get('launches', 0)} / {row.get('programs', 0)} | "
            f"{f'{outputs[worst]:.1e} ({worst})' if worst else '-'} | {errors} | {notes} | "
            f"{'-' if ms is None else f'{ms:.1f}'} | {row.get('seconds', 0):.0f} | {verdict(row)} |")


HEAD = """# What runs on the virtual NPU

Made by `python benchmarks/vnpu_kernels.py --out docs/evidence/vnpu_kernels.md` (with `migrate port mamba3_siso_bwd.py`
before it), for {target}, on {cores} busy cores. Operators run every case of their contracts, with NaN in what
`torch.empty` returns; chains run upstream's public functions as `migrate port` makes them, from {fla} and
{mamba}, beside recurrences in float64 (benchmarks/vnpu_recurrences.py). All programs of all
launches were run, all checks on.

The error is the relative L2 error of the worst output over the cases; the bound of a chain is {f32:.0e} in float32 and
{bf16:.0e} in bfloat16. Errors and notes are findings ([vnpu.md](../vnpu.md)), the time of a program is the median,
seconds are those of the row, compiling included. *Not tried* is never passed.

| what | dtype | | launches / programs | rel. L2 error | errors | notes | ms a program | s | verdict |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--only", nargs="*", default=[], metavar="NAME")
    options.add_argument("--ports", type=Path, help="where the ports of the chains are")
    options.add_argument("--time-limit", type=float, default=1200.0, help="seconds for one row")
    options.add_argument("--jobs", type=int, default=1, help="rows at a time")
    options.add_argument("--json", type=Path, help="rows as JSON, with all reasons; what is there is not run again")
    options.add_argument("--row", nargs=2, metavar=("NAME", "DTYPE"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.row:
        print(json.dumps(operator_row(*chosen.row)))
        return 0
    if reason := device.unusable():
        print(f"vnpu_kernels: {reason}", file=sys.stderr)
        return 2
    names = [*OPERATORS, *chains.CHAINS]
    if unknown := [name for name in chosen.only if name not in names]:
        options.error(f"--only: no row {unknown[0]!r}; there are {'; '.join(names)}")
    rows = [(name, dtype) for name in names
            for dtype in (chains.CHAINS[name].dtypes if name in chains.CHAINS else DTYPES)]
    found: Rows = {}
    if chosen.json and chosen.json.exists():
        found = {(row["name"], row["dtype"]): row for row in json.loads(chosen.json.read_text())}
    wanted = [row for row in rows if (row[0] in chosen.only if chosen.only else row not in found)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        ports = chosen.ports or Path(folder)
        files = dict.fromkeys(chains.CHAINS[name].file for name, _ in wanted if name in chains.CHAINS)
        if chosen.ports is None and files:
            subprocess.run([sys.executable, "-m", "migrate", "port", *files, "-o", ports], check=True,
                           stdout=subprocess.DEVNULL)
        running = {pool.submit(in_a_process, command(*row, ports), chosen.time_limit): row for row in wanted}
        for done in as_completed(running):
            name, dtype = running[done]
            found[name, dtype] = {"name": name, "dtype": dtype, **done.result()}
            print(line(name, dtype, found[name, dtype]), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(list(found.values()), indent=1))
    text, surprising = page({row: found[row] for row in rows if row in found})
    if chosen.out:
        chosen.out.write_text(text)
    print("\n".join(surprising), file=sys.stderr)
    return int(bool(surprising))


def command(name: str, dtype: str, ports: Path) -> list[str]:
    here = Path(__file__)
    if name in chains.CHAINS:
        return [str(here.with_name("vnpu_chains.py")), str(ports), name, dtype]
    return [str(here), "--row", name, dtype]


def page(found: Rows) -> tuple[str, list[str]]:
    """The Markdown, and the rows whose verdict `EXPLAINED` does not expect."""
    text = HEAD.format(target=device.settings.target, cores=os.cpu_count(), fla=chains.FLA,
                       mamba=chains.MAMBA, f32=chains.BOUNDS[torch.float32],
                       bf16=chains.BOUNDS[torch.bfloat16])
    wrong, surprising = [], []
    for (name, dtype), row in found.items():
        text += line(name, dtype, row) + "\n"
        if verdict(row) != "ok":
            wrong.append(f"- {name}, {dtype}: {why(row)}")
        if (verdict(row) == "failed") != (name in EXPLAINED):
            surprising.append(f"{name}, {dtype}: {verdict(row)}, which is not what EXPLAINED says")
    explained = [f"- **{name}**: {EXPLAINED[name]}" for name in EXPLAINED if any(name == one for one, _ in found)]
    text += "\n## What is not ok\n\nWhat is said of the first case of each row:\n\n"
    text += "\n".join(wrong or ["Nothing."]) + "\n"
    if explained:
        text += "\nWhat was looked up in the HIVM:\n\n" + "\n".join(explained) + "\n"
    return text, surprising


if __name__ == "__main__":
    sys.exit(main())
