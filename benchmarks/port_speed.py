"""How much porting costs, in units of parsing a file with LibCST and writing it back.

    python benchmarks/port_speed.py [--repeats 5] [--release mamba-ssm] [--under mamba_ssm/ops/triton]

Porting is everything but the writing to disk: reading, parsing, all rules, header, comments, the ported text. Both
are timed in turn, file by file, in one process; the medians over the repeats are printed. Exits 1 above --at-most.
"""
from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import libcst as cst

from migrate.find import upstream_of
from migrate.port import Settings, port_file
from migrate.project import PackageProject
from upstream_snapshots import sync


def timed(action: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--release", default="mamba-ssm")
    options.add_argument("--under", default="mamba_ssm/ops/triton/")
    options.add_argument("--at-most", type=float, default=8.0)
    chosen = options.parse_args()

    snapshot = sync.find(chosen.release)
    upstream, settings = upstream_of(snapshot), Settings.make()
    files = [f for f in sync.files(snapshot) if f.startswith(chosen.under) and not f.endswith("__init__.py")]
    texts = {f: (upstream.root / f).read_text(encoding="utf-8") for f in files}
    plain: dict[str, list[float]] = {f: [] for f in files}
    port: dict[str, list[float]] = {f: [] for f in files}
    assert settings.tool                            # hashing the rules is not part of any file
    for _ in range(chosen.repeats):
        project = PackageProject(upstream)          # a fresh one: nothing is parsed yet
        for file in files:
            plain[file].append(timed(lambda file=file: cst.parse_module(texts[file]).code))         # type: ignore[misc]
            port[file].append(timed(lambda file=file, project=project: port_file(project, file, settings).text))  # type: ignore[misc]

    print(f"{'file':44} {'lines':>6} {'parse+write':>12} {'port':>9} {'ratio':>6}")
    for file in files:
        one, two = statistics.median(plain[file]), statistics.median(port[file])
        print(f"{Path(file).name:44} {texts[file].count(chr(10)):6} {one * 1e3:9.0f} ms {two * 1e3:6.0f} ms "
              f"{two / one:6.2f}")
    ratios = [sum(port[f][n] for f in files) / sum(plain[f][n] for f in files) for n in range(chosen.repeats)]
    whole = statistics.median(ratios)
    print(f"{chosen.release}, {chosen.under}: {len(files)} files, {len(settings.rules)} rules: "
          f"ratio {whole:.2f} (of {', '.join(f'{r:.2f}' for r in ratios)}); at most {chosen.at_most:g} wanted")
    return int(whole > chosen.at_most)


if __name__ == "__main__":
    sys.exit(main())
