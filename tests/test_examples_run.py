"""Examples that say how are executed before and after under Triton's interpreter, on the same random inputs."""
from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from migrate import engine
from migrate.rule import Example

RUNNABLE = {f"{r.id} {e.title}": e for r in engine.load() for e in r.examples if e.run}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the [cpu] extra")

CHILD = Path(__file__).parent / "run_examples.py"


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One child process for all, which ends with the modules that it made."""
    folder = tmp_path_factory.mktemp("examples")
    jobs = []
    for name, example in RUNNABLE.items():
        for side in ("before", "after"):
            path = folder / f"{len(jobs)}.py"
            path.write_text(textwrap.dedent(getattr(example, side)))
            jobs.append({"name": name, "side": side, "path": str(path), "inputs": dict(example.inputs)})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run([sys.executable, str(CHILD), str(folder / "jobs.json")], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("name", RUNNABLE)
def test_before_and_after_agree(results: dict[str, Any], name: str) -> None:
    example: Example = RUNNABLE[name]
    error, same = results[name]["error"], results[name]["same"]
    assert results[name]["wrote"], "the kernel changed none of its inputs: the comparison would be empty"
    assert same if example.run == "exact" else error < 1e-5, f"relative error {error}"
