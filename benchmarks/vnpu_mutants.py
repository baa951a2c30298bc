"""The mutation run of the virtual NPU: seeded faults in five compiled kernels, and how many it notices.

    python benchmarks/vnpu_mutants.py --out docs/evidence/vnpu_mutants.md

The kernels are two operators of this package and three of tests/vnpu/small_kernels.py, two of them mixes of cube and
vector work. One program of each is run. Exit code 1 when less than 95 % of the mutants that matter are noticed.
"""
from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch

from migrate.vnpu import device, mutate
from migrate.vnpu.mutate import KINDS, Outcome, Report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "vnpu"))
ENOUGH = 0.95




def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _dzdo() -> None:
    """Five rounds of the loop over blocks, the last one ragged."""
    from ported_kernels.mamba3.dzdo import mamba3_siso_bwd_dzdo_kernel

    do, z, o = _random(3, 4500)
    mamba3_siso_bwd_dzdo_kernel[(1,)](do, z, o, torch.empty_like(do), torch.empty_like(do), do.numel(), BLOCK=1024)


def _segsum() -> None:
    """Four chunks of 64, one after another."""
    from ported_kernels.mamba3.segsum_dadt import bwd_segsum_dadt_kernel

    gradient, sums = _random(2, 4, 64, 64)
    bwd_segsum_dadt_kernel[(1,)](gradient, sums, _random(4, 64), 4, C=64, J=64, G=1)


def _rms_norm() -> None:
    import small_kernels as small

    small.rms_norm(_random(2, 100), _random(100))


def _matmul_silu() -> None:
    import small_kernels as small

    small.matmul_silu(_random(32, 96), _random(96, 32), _random(32))


def _decayed_state() -> None:
    import small_kernels as small

    small.decayed_state(_random(1, 160, 32), _random(1, 160, 32), -_random(1, 160).abs())


# called inside the device: kernels are made for the driver that is active
SUBJECTS = {"dzdo": _dzdo, "segsum": _segsum, "rms_norm": _rms_norm, "matmul_silu": _matmul_silu,
            "decayed_state": _decayed_state}


def table(reports: list[Report], seconds: float, command: str) -> str:
    """The report as Markdown."""
    everything = [outcome for report in reports for outcome in report.outcomes]
    matter = [o for o in everything if o.matters]
    noticed = [o for o in matter if o.noticed]
    lines = [
        "# Seeded faults in compiled kernels, and what the virtual NPU notices", "",
        f"    {command}", "",
        f"{len(everything)} mutants of {len(reports)} kernels in {seconds:.0f} s; {len(matter)} matter, and "
        f"{len(noticed)} of those are noticed ({len(noticed) / max(len(matter), 1):.1%}).", "",
        "A mutant *matters* when its result differs from the kernel's, when another order of its instructions that",
        "the flags allow gives another result (each pipe in turn ahead of or behind all others, and some at",
        "random), or when two instructions touch the same byte with nothing between them (every pair looked at).",
        "The last two use none of the checks (`migrate/vnpu/orders.py` says how they work); in the results that are",
        "compared, the poison of what nobody wrote counts as a difference. *Noticed* means that the checks report an",
        "error. The last column counts mutants that are reported though none of the three saw",
        "harm: one side of a pair of flags, which leaves a flag behind.", "",
        "| kernel | fault | mutants | change the result | other order does | unordered pair | matter | noticed | "
        "missed | noticed besides |", "|---|---|---|---|---|---|---|---|---|---|"]
    for report in reports:
        for kind in KINDS:
            some = [o for o in report.outcomes if o.mutant.kind == kind]
            if some:
                lines.append(_row(report.subject.name, kind, some))
    for kind in KINDS:
        some = [o for o in everything if o.mutant.kind == kind]
        if some:
            lines.append(_row("all", kind, some))
    lines += [_row("**all**", "**all**", everything), "", "## The kernels themselves", "",
              "Unchanged, each must give no error, no other result in another order, and no unordered pair.", ""]
    for report in reports:
        one = report.itself
        said = [*one.errors, one.other_order, one.unordered]
        lines.append(f"- {report.subject.name}: {'; '.join(filter(None, said)) or 'nothing'}")
    missed = [(report, o) for report in reports for o in report.outcomes if o.matters and not o.noticed]
    lines += ["", "## Missed", ""]
    lines += [f"- {report.subject.name}, {o.mutant.kind}: {o.mutant.what}. "
              + "; ".join(filter(None, ["changes the result" if o.changed else "", o.other_order and
                                        f"other order: {o.other_order}", o.unordered and f"unordered: {o.unordered}"]))
              for report, o in missed] or ["None."]
    return "\n".join(lines) + "\n"


def _row(kernel: str, kind: str, some: list[Outcome]) -> str:
    matter = [o for o in some if o.matters]
    counts = (len(some), sum(o.changed for o in some), sum(bool(o.other_order) for o in some),
              sum(bool(o.unordered) for o in some), len(matter), sum(o.noticed for o in matter),
              sum(not o.noticed for o in matter), sum(o.noticed and not o.matters for o in some))
    return f"| {kernel} | {kind} | {' | '.join(map(str, counts))} |"


def _say(name: str, outcome: Outcome) -> None:
    print(f"{name}: {outcome.mutant.kind}: {outcome.mutant.what}: {'matters' if outcome.matters else 'no harm'}, "
          f"{'noticed' if outcome.noticed else 'not noticed'}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--limit", type=int, default=0, help="at most so many of a kind and kernel; 0: all")
    parser.add_argument("--out", type=Path, help="write the table there")
    options = parser.parse_args()
    started = time.monotonic()
    reports = []
    for name in options.kernels:
        subject = mutate.subjects(SUBJECTS[name])[0]
        subject.name = name
        reports.append(mutate.examine(subject, device.current(), options.limit, progress=partial(_say, name)))
    text = table(reports, time.monotonic() - started, f"python {' '.join(sys.argv)}")
    if options.out:
        options.out.write_text(text)
    print(text)
    matter = [o for report in reports for o in report.outcomes if o.matters]
    return 0 if sum(o.noticed for o in matter) >= ENOUGH * len(matter) else 1


if __name__ == "__main__":
    sys.exit(main())
