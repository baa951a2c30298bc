"""Host code written to mislead the rules: ports must compute what the original computes, to the bit.

Each case of tests/tricky/*.txt is a module (`#### name`, source) and a check (`#=== check`, code that gives `out`).
Most use inputs that are not contiguous, names that change their meaning, or tensors with two names.
"""
from __future__ import annotations

import ast
import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from migrate import engine
from migrate.source import Source

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("ported_kernels.runtime")

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
RULES = [r for r in engine.load() if r.name != "ported-imports"]


def cases() -> list[Any]:
    found = []
    for file in sorted((Path(__file__).parent / "tricky").glob("*.txt")):
        for block in re.split(r"^#### ", file.read_text(), flags=re.MULTILINE)[1:]:
            name, _, body = block.partition("\n")
            source, _, check = body.partition("#=== check\n")
            found.append(pytest.param(HEAD + source.strip("\n") + "\n", check, id=f"{file.stem}-{name.strip()}"))
    return found


def outputs(path: Path, text: str, check: str) -> list[Any]:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    torch.manual_seed(0)
    with runtime.on("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
        names = dict(vars(module))
        exec(check, names)
    return list(names["out"])


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one.nan_to_num(), two.nan_to_num())
    return type(one) is type(two) and one == two


@pytest.mark.parametrize(("text", "check"), cases())
def test_the_port_computes_the_same(text: str, check: str, tmp_path: Path) -> None:
    port = engine.apply(Source.parse(text), RULES).final.text
    ast.parse(port)
    before, after = outputs(tmp_path / "before.py", text, check), outputs(tmp_path / "after.py", port, check)
    assert len(before) == len(after)
    assert all(same(one, two) for one, two in zip(before, after, strict=True))
    assert engine.apply(Source.parse(port), RULES).final.text == port
