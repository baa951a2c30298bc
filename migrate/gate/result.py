"""What a check found, as data. Reports render these; nothing here decides anything."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

STAGES = ("parses", "imports", "launch", "TTIR", "linalg", "HIVM", "binary")

CANNOT_TELL = ("The gate compiles; it runs nothing. It cannot tell run-time faults, hangs on the device, wrong numbers "
               "or time.")


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    NOT_TRIED = "not tried"

    @property
    def bad(self) -> bool:
        return self in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED)


@dataclass
class Stage:
    name: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True)
class Place:
    """A line of a Python file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Diagnosis:
    """One finding, by name. `error` means that the kernel does not work as it is; `warning`, that it is slow or
    fragile; `note`, that the compiler did something worth knowing."""

    name: str
    severity: str
    message: str
    hint: str = ""
    place: Place | None = None
    buffer: str = ""                 # UB, L1, L0C: which memory overflowed
    needed_bits: int = 0
    available_bits: int = 0
    tiles: dict[str, Any] = field(default_factory=dict)   # tile constants that sized the buffer
    padded: bool = False             # most of the buffer is padding, which other tiles do not help


@dataclass
class Verdict:
    """One launch of one kernel, for one target; or a kernel that no case reached."""

    unit: str                        # the file or operator asked for
    kernel: str
    target: str
    cases: list[str] = field(default_factory=list)
    config: str = ""                 # which autotune configuration
    place: Place | None = None       # where the kernel is defined
    launch: dict[str, Any] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    needs: dict[str, Any] = field(default_factory=dict)   # launch options without which it does not compile
    reproduce: str = ""              # a command that shows the failure again
    hivm: str = ""                   # path of the final HIVM text, in the cache
    cost: dict[str, Any] | None = None
    cached: bool = False

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        return Stage(name, Outcome.NOT_TRIED, "an earlier stage did not pass" if self.stages else "")

    @property
    def outcome(self) -> Outcome:
        """Passed means every stage up to HIVM was tried and is ok, and nothing found is an error."""
        for stage in self.stages:
            if stage.outcome.bad:
                return stage.outcome
        if any(d.severity == "error" for d in self.diagnoses):
            return Outcome.FAILED
        return self.stage("HIVM").outcome

    @property
    def line(self) -> str:
        """Why it did not pass, in one line; empty when it did."""
        if self.outcome is Outcome.OK:
            return ""
        for diagnosis in sorted(self.diagnoses, key=lambda d: d.severity != "error"):
            if diagnosis.severity == "error":
                return f"{diagnosis.name}: {diagnosis.message}"
        for stage in self.stages:
            if stage.outcome is not Outcome.OK and stage.why:
                return stage.why
        return ""


@dataclass
class Result:
    verdicts: list[Verdict]
    targets: list[str]
    versions: dict[str, str]
    assembler: str                   # what the last step is here: "real" hivmc of CANN, or why it was not tried
    seconds: float = 0.0
    regressions: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """4: something failed, or got worse than the baseline. 1: nothing failed, but something was not tried or
        needs a launch option that the code does not set. 0: every kernel passed as it is."""
        if self.regressions or any(v.outcome.bad for v in self.verdicts):
            return 4
        if any(v.outcome is not Outcome.OK or v.needs for v in self.verdicts) or not self.verdicts:
            return 1
        return 0

    def as_dict(self) -> dict[str, Any]:
        verdicts = [asdict(v) | {"outcome": v.outcome, "line": v.line} for v in self.verdicts]
        return {"schema": 1, "targets": self.targets, "versions": self.versions, "assembler": self.assembler,
                "cannot_tell": CANNOT_TELL, "seconds": self.seconds, "exit_code": self.exit_code,
                "regressions": self.regressions, "verdicts": verdicts}
