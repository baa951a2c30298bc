"""What is known after a case was tried; travels as JSON from the child process."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"      # never counts as passed


@dataclass(frozen=True)
class OutputResult:
    name: str
    ratio: float | None          # relative L2 error; None: not comparable
    largest: float | None        # largest absolute error
    bound: float                 # what `ratio` may be
    objection: str | None = None


@dataclass(frozen=True)
class CaseResult:
    operator: str
    case: str
    dtype: str
    device: str
    seed: int
    oracle: str
    origin: str                  # what ran: a generated port, or code written by hand
    verdict: Verdict
    reason: str | None = None    # why it failed or was not tried
    shapes: dict[str, list[int]] = field(default_factory=dict)
    outputs: list[OutputResult] = field(default_factory=list)
    seconds: float | None = None
    launches: int = 0            # on the virtual NPU
    programs: int = 0            # that were run there, of all launches

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> CaseResult:
        outputs = [OutputResult(**output) for output in data["outputs"]]
        return CaseResult(**{**data, "verdict": Verdict(data["verdict"]), "outputs": outputs})
