"""What the gate's tests share: a toolchain, or a skip that says why, and a cache of the session's own."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from migrate.errors import UsageError
from migrate.gate import check, process, toolchain, units
from migrate.gate.result import Result, Verdict

HERE = Path(__file__).parent
LIMITS = process.Limits(cpu_s=20, memory=3 << 30)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("MIGRATE_CACHE", str(folder))
        patch.delenv("COLUMNS", raising=False)   # pytest-xdist sets it, and reports fold to it
        yield folder


@pytest.fixture(scope="session")
def chain() -> toolchain.Toolchain:
    try:
        return toolchain.find()
    except UsageError as error:
        pytest.skip(str(error))


def run(chain: toolchain.Toolchain, files: Sequence[Path], **settings: object) -> Result:
    settings = {"limits": LIMITS, **settings}
    return check.check(units.resolve([str(f) for f in files], chain), chain, check.Settings(**settings))  # type: ignore[arg-type]


def only(result: Result, **wanted: str) -> Verdict:
    """The one verdict with these attributes; `case` is one of its cases."""
    case = wanted.pop("case", None)
    found = [v for v in result.verdicts if all(getattr(v, k) == w for k, w in wanted.items())
             and (case is None or case in v.cases)]
    assert len(found) == 1, [(v.unit, v.kernel, v.cases, v.target) for v in result.verdicts]
    return found[0]
