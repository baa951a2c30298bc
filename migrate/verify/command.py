"""What the verb `verify` does: find the operators, run them with a progress bar, print the report."""
from __future__ import annotations

import sys
from collections.abc import Sequence

from migrate.errors import UsageError
from migrate.gate import targets
from migrate.verify import report as reports
from migrate.verify import target
from migrate.verify.pool import Virtual, verify
from migrate.verify.result import CaseResult
from migrate.vnpu.machine import parse_programs
from ported_kernels import runtime
from ported_kernels.arguments import short


def run(targets: Sequence[str], device: str, seed: int, format: str, dtypes: Sequence[str],
        cases: Sequence[str], time_limit: float, npu: str = "", programs: str = "") -> int:
    """Prints the report on stdout and returns the exit code. `npu` and `programs` are for the virtual NPU: which card
    it stands in for, and which programs of each launch are run."""
    from rich.console import Console
    from rich.progress import Progress

    virtual = _virtual(device, npu, programs)
    operators = list({found.name: found for name in targets for found in target.find(name)}.values())
    _known_dtypes(dtypes, {short(dtype) for operator in operators for dtype in operator.dtypes})
    cases = _named(cases, {case.name for operator in operators for case in operator.cases})
    console = Console(file=sys.stderr)
    if runtime.why_not(device) is None:
        target.prepare(operators, lambda text: print(f"migrate: {text}", file=sys.stderr))
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        total = sum((len(cases) or len(operator.cases)) * (len(dtypes) or len(operator.dtypes))
                    for operator in operators)
        bar = progress.add_task(f"verifying on {device}", total=total)

        def advance(result: CaseResult) -> None:
            progress.update(bar, advance=1, description=f"{result.operator} {result.dtype}")

        report = verify(operators, device, seed, dtypes=dtypes, cases=cases, time_limit=time_limit,
                        virtual=virtual, on_result=advance)
    print(reports.as_json(report) if format == "json" else reports.as_text(report))
    return report.exit_code


def _virtual(device: str, npu: str, programs: str) -> Virtual | None:
    if device != "vnpu":
        if npu or programs:
            raise UsageError(f"--target and --programs are for --device vnpu, not for {device}")
        return None
    found = targets.get(npu or targets.DEFAULT)
    if found.family == "A5":
        raise UsageError(f"{found.name}: the virtual NPU does not read the HIVM of the 950 family")
    return Virtual(found.name, parse_programs(programs) if programs else None)


def _named(asked: Sequence[str], known: set[str]) -> list[str]:
    """The cases of these names, else those whose names contain them, as `migrate check --case` takes it."""
    found = [name for word in asked for name in ([word] if word in known else sorted(k for k in known if word in k))]
    for word in asked:
        if not any(word in name for name in found):
            raise UsageError(f"no case matches {word!r}; there are {'; '.join(sorted(known))}")
    return found


def _known_dtypes(asked: Sequence[str], known: set[str]) -> None:
    for name in asked:
        if name not in known:
            raise UsageError(f"no dtype {name!r}; there are {'; '.join(sorted(known))}")
