"""What splitting an axis into tiles of 64 does to the memories of a core, for each kernel that it was done to.

    python benchmarks/split_tile.py [--out docs/evidence/split_tile.md] [--only SUBJECT] [--target Ascend910B2]

Ports each file twice, with the same values set, without and with `--split`, compiles both by the gate for the cases
of split_tile_cases.py, and writes a table. Needs the gate's toolchain (`migrate doctor`) and the pinned releases.
Nothing runs. A first run takes ten minutes and more on two cores, a second one reads the cache.
"""
from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.asked import Asked, settings
from migrate.command import port
from migrate.gate import cache, check, targets, toolchain
from migrate.gate.result import Outcome, Verdict
from migrate.gate.units import Unit
from migrate.port import Settings

ROOT = Path(__file__).resolve().parent.parent
CASES = Path(__file__).with_name("split_tile_cases.py")
KDA = ROOT / "ported_kernels/kda/plain"
MEMORIES = {"UB": "ub_bits", "L1": "l1_bits", "L0C": "l0c_bits"}


@dataclass(frozen=True)
class Subject:
    """A file, what is set in it, and the axes that are split in the second of its two ports. `name` is what its cases
    begin with, in brackets, in split_tile_cases.py; of another file of cases, all are taken."""

    name: str
    file: str
    values: str
    split: str
    heading: str
    cases: Path = CASES

    @property
    def command(self) -> str:
        return f"migrate port {self.file.removeprefix(f'{ROOT}/')} --set {self.values} --split {self.split}"

    @property
    def asked(self) -> Asked:
        return Asked(settings(self.values.split()))


SUBJECTS = (
    *(Subject(f"dqkv {dim}", "mamba3_siso_bwd.py", f"HEADDIM_QK={dim}", "HEADDIM_QK",
              f"mamba3_siso_bwd_kernel_dqkv, headdim_qk {dim}: {dim // 64} parts") for dim in (128, 256)),
    *(Subject(name, str(KDA / file), "K=128", "K", f"The KDA state trio: {name}, K = V = 128, chunk 64")
      for name, file in (("summary", "state_summary.py"), ("transition", "state_transition.py"),
                         ("gradient", "state_grad_ext.py"))),
    Subject("chunk_h", "fla-core==0.6.0:fla/ops/common/chunk_h.py", "BK=128 STATE_V_FIRST=False", "BK",
            "fla-core 0.6.0, common/chunk_h.py, tiles of 128 rows, K = V = 128, chunk 64"),
    Subject("cp", "fla-core==0.5.2:fla/ops/cp/chunk_delta_h.py", "BK1=128 BK=128 STATE_V_FIRST=False", "BK1,BK",
            "fla-core 0.5.2, cp/chunk_delta_h.py, tiles of 128 rows, K = V = 128, chunk 64",
            ROOT / "ported_kernels/cases/fla_0_5_2/ops/cp/chunk_delta_h.py"),
)


@dataclass(frozen=True)
class Row:
    """One launch, compiled whole and in parts."""

    kernel: str
    case: str
    whole: Verdict
    parts: Verdict


def compare(subject: Subject, target: str, chain: toolchain.Toolchain,
            say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Both ports of a subject, at each of its cases."""
    forms = {"whole": subject.asked, "parts": Asked(subject.asked.settings, tuple(subject.split.split(",")))}
    units = []
    for form, asked in forms.items():
        # a place that stays: a port's path is part of what the gate's cache goes by
        place = cache.folder() / "split_tile" / cache.key(subject.file, str(asked))[:12]
        made = port(subject.file, Settings.make(asked=asked), place, force=True)
        units.append(Unit(form, place / made.ports[0].target, place, case_files=(subject.cases,)))
    only = f"[{subject.name}]" if subject.cases == CASES else ""
    result = check.check(units, chain, check.Settings((target,), only), say)
    found: dict[str, dict[tuple[str, str], Verdict]] = {form: {} for form in forms}
    for verdict in result.verdicts:
        for case in verdict.cases:
            found[verdict.unit][verdict.kernel, case] = verdict
    if missing := found["whole"].keys() ^ found["parts"].keys():
        raise SystemExit(f"{subject.name}: {sorted(missing)} was reached in one of the two ports only")
    if not found["whole"]:
        raise SystemExit(f"{subject.name}: no case reached a kernel: {[v.line for v in result.verdicts][:2]}")
    return [Row(kernel, case.removeprefix(only).strip(), whole, found["parts"][kernel, case])
            for (kernel, case), whole in found["whole"].items()]


def memory(verdict: Verdict, name: str) -> str:
    """Bits of a memory: the highest address in use, where it compiles; else what the compiler's message asks for."""
    if verdict.cost and _read(verdict):
        return f"{verdict.cost[MEMORIES[name]]:,}"
    needed = next((d.needed_bits for d in verdict.diagnoses if d.buffer == name and d.severity == "error"), 0)
    return f"**{needed:,}**" if needed else "?"


def buffering(verdict: Verdict) -> str:
    """"on", "off"; "given up" where the compiler itself turned it off for want of room."""
    if not verdict.cost or not _read(verdict):
        return "-"
    if any(d.name == "multi-buffering-off" for d in verdict.diagnoses):
        return "given up"
    return "on" if verdict.cost["multi_buffered"] else "off"


def outcome(verdict: Verdict) -> str:
    """"ok", with the options that it needs; else what is wrong, by name."""
    set_ = {k: v for k, v in verdict.launch["options"].items() if k == "multibuffer"}
    options = ", ".join(f"{k}={v}" for k, v in set_.items())
    if verdict.outcome is Outcome.OK:
        needs = ", ".join(f"{k}={v}" for k, v in verdict.needs.items())
        return "ok" + (f", needs {needs}" if needs else f", launched with {options}" if options else "")
    return next((d.name for d in verdict.diagnoses if d.severity == "error"), verdict.outcome)


def verdict_of(row: Row) -> tuple[str, str]:
    """What the split did, in words, and by how much."""
    whole, parts = row.whole, row.parts
    if Outcome.OK not in (whole.outcome, parts.outcome):
        return "no help: neither compiles", ""
    if whole.outcome is not Outcome.OK:
        return "**compiles only in parts**", ""
    if parts.outcome is not Outcome.OK:
        return "**harm: compiles only whole**", ""
    if whole.needs != parts.needs:
        return ("spares a launch option" if whole.needs else "harm: wants a launch option"), ""
    if not (_read(whole) and _read(parts)):
        return "both compile", ""
    if buffering(whole) != buffering(parts):
        return "both compile, not alike", f"multi-buffering {buffering(whole)} → {buffering(parts)}"
    before, after = (verdict.cost["ub_bits"] if verdict.cost else 0 for verdict in (whole, parts))
    change = f"{round(100 * (after / before - 1), 1):+} %" if before else ""
    if after >= before:
        return "no help: both compile", f"UB {change}" if after > before else "UB as before"
    return "both compile, less UB", change


def _read(verdict: Verdict) -> bool:
    return bool(verdict.cost) and "unread" not in (verdict.cost or {})


def table(rows: Sequence[Row]) -> list[str]:
    """A Markdown table: whole / in parts, in each cell."""
    several = len({row.kernel for row in rows}) > 1
    lines = [f"| {'kernel, ' if several else ''}case | UB | L1 | L0C | multi-buffering | compiles | the split |",
             "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row.kernel):
        both = [*((memory(row.whole, name), memory(row.parts, name)) for name in MEMORIES),
                (buffering(row.whole), buffering(row.parts)), (outcome(row.whole), outcome(row.parts))]
        cells = [one if one == other else f"{one} → {other}" for one, other in both]
        lines.append(f"| {row.kernel + ', ' if several else ''}{row.case} | {' | '.join(cells)} | "
                     f"{', '.join(filter(None, verdict_of(row)))} |")
    return lines


def page(found: dict[Subject, list[Row]], target: str, versions: dict[str, str]) -> str:
    chip = targets.get(target)
    every = [row for rows in found.values() for row in rows]
    told = Counter(verdict_of(row)[0].strip("*") for row in every)
    tools = ", ".join(f"{name} {versions[name]}" for name in ("triton-ascend", "ascendnpu-ir"))
    lines = [
        "# Tiles in parts of 64: what the compiler makes of it", "",
        "Made by `python benchmarks/split_tile.py --out docs/evidence/split_tile.md`, on "
        f"{target}, with {tools}. It compiles and runs nothing, and says nothing about time on a card.", "",
        f"Bits in one core: {chip.ub_bits:,} of Unified Buffer (UB) in a vector core, {chip.l1_bits:,} of L1 and "
        f"{chip.l0c_bits:,} of L0C in a cube core. `whole → in parts`; one figure where both are the same.", "",
        "- A plain figure is the highest address in use in the final HIVM text of a launch that compiles.",
        "- A **bold** one is from the message of a launch that does not: what that memory would need in the "
        "compiler's last attempt, in which it has given up code motion and multi-buffering by itself. It stops at the "
        "first memory that overflows; what the others would need, it does not say (`?`).",
        "- multi-buffering: `on` or `off` as the text has it; `given up` where the compiler turned it off by itself "
        "because the Unified Buffer was too small with it. A launch with it takes more memory than one without, so "
        "where it differs the two figures are not alike and no change is worked out. Code motion, which the compiler "
        "gives up in the same way, is not shown.",
        "- compiles: `needs ...` is a launch option that the gate had to add; `launched with ...` one that the port "
        "sets.",
        "- Both ports have the same values set; only `--split` differs.", "",
        f"{len(every)} launches: " + "; ".join(f"{words}, {n}" for words, n in told.most_common()) + ".", ""]
    for subject, rows in found.items():
        lines += [f"## {subject.heading}", "", f"    {subject.command}", "", *table(rows), ""]
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--only", default="", help="subjects whose name contains this")
    options.add_argument("--target", default=targets.DEFAULT)
    chosen = options.parse_args()
    if not any(chosen.only in subject.name for subject in SUBJECTS):
        options.error(f"--only {chosen.only}: no such subject; there are {', '.join(s.name for s in SUBJECTS)}")

    chain = toolchain.find()
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    found = {subject: compare(subject, chosen.target, chain, say) for subject in SUBJECTS
             if chosen.only in subject.name}
    text = page(found, chosen.target, chain.versions)
    if chosen.out:
        chosen.out.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
