"""What gpu_parity.py found out about a row, and what it says of all rows."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parity_oracle import error_ratio

SLOW = 1.3              # times over upstream's that want an explanation


@dataclass
class Row:
    relative: float | None = None
    largest: float | None = None
    # against float64: of the output where the port is worst beside upstream
    upstream_error: float | None = None
    port_error: float | None = None
    upstream_ms: float | None = None
    port_ms: float | None = None
    pack_ms: float | None = None        # to copy the inputs that are not contiguous, as the port does
    pinned_ms: float | None = None      # upstream with the port's constants, warps and stages
    verdict: str = "not run"

    @property
    def error_ratio(self) -> float | None:
        if self.upstream_error is None or self.port_error is None:
            return None
        return error_ratio(self.upstream_error, self.port_error)

    @property
    def time_ratio(self) -> float | None:
        return self.port_ms / self.upstream_ms if self.port_ms and self.upstream_ms else None


def number(value: float | None, pattern: str) -> str:
    return "" if value is None else format(value, pattern)


def summary(rows: list[Row]) -> Iterator[str]:
    measured = sorted(row.error_ratio for row in rows if row.error_ratio is not None)
    if measured:
        yield (f"- float64: {len(measured)} rows have a reference; the port's error over upstream's is at most "
               f"{measured[-1]:.2f}, in the median {measured[len(measured) // 2]:.2f}")
    timed = sorted(row.time_ratio for row in rows if row.time_ratio is not None)
    if timed:
        yield (f"- times, port over upstream: median {timed[len(timed) // 2]:.2f}; "
               f"{sum(ratio > SLOW for ratio in timed)} rows of {len(timed)} above {SLOW}")


def slow_rows(rows: list[tuple[str, Row]]) -> list[str]:
    """What the time of the rows above SLOW goes into, each measured."""
    slow = [(title, row) for title, row in rows if (row.time_ratio or 0) > SLOW]
    if not slow:
        return []
    lines = ["", f"Rows where the port takes more than {SLOW} times upstream's time. \"packing\": to copy the inputs "
             "that are not contiguous, which the port does first; \"upstream pinned\": upstream's own kernel with the "
             "port's constants, four warps and three stages, in place of what its autotuner picked.", "",
             "| row | ms upstream | ms port | ms packing | ms upstream pinned | ratio | explained by |",
             "|---|---|---|---|---|---|---|"]
    for title, row in slow:
        cells = (title, number(row.upstream_ms, ".3f"), number(row.port_ms, ".3f"), number(row.pack_ms, ".3f"),
                 number(row.pinned_ms, ".3f"), number(row.time_ratio, ".2f"), cause(row))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def cause(row: Row) -> str:
    assert row.upstream_ms is not None and row.port_ms is not None
    packed = row.port_ms - (row.pack_ms or 0.0)
    if packed <= SLOW * row.upstream_ms:
        return "packing"
    if row.pinned_ms is not None and row.port_ms <= SLOW * row.pinned_ms:
        return "frozen configuration"
    if row.pinned_ms is not None and packed <= SLOW * row.pinned_ms:
        return "packing and frozen configuration"
    return "not explained"
