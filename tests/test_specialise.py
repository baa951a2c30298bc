"""`specialise`: kernels made to trip it, each also run before and after under the interpreter."""
from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from migrate import engine
from migrate.asked import Asked, settings
from migrate.source import Source
from rules.tiles.specialise import Specialise

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("ported_kernels.runtime")

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
RUN_TIME = {"n": 5, "stride_g": 1, "BLOCK": 64, "h": 1}


def specialised(text: str, words: str, split: tuple[str, ...] = ()) -> engine.Outcome:
    return engine.apply(Source.parse(text, asked=Asked(settings(shlex.split(words)), split)), [Specialise])


def cases() -> list[Any]:
    found = []
    for file in sorted((Path(__file__).parent / "specialise").glob("*.txt")):
        for block in re.split(r"^#### ", file.read_text(), flags=re.MULTILINE)[1:]:
            name, words, body = block.split("\n", 2)
            before, _, after = body.partition("#=== after\n")
            found.append(pytest.param(HEAD + before, HEAD + after, words.removeprefix("#set "), id=name))
    return found


def results(path: Path, text: str, words: str) -> list[Any]:
    """What the kernel writes: launched by `run(x, y, g)` of the module, or as two programs with the given values."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    generator = torch.Generator().manual_seed(0)
    values = {s.name: s.value for s in settings(shlex.split(words))}
    tensors = {name: torch.randn(1024, generator=generator) for name in "xyg"}
    arguments = {**RUN_TIME, **tensors, **values}
    with runtime.on("cpu"):
        spec.loader.exec_module(module)
        if hasattr(module, "run"):
            module.run(*tensors.values())
        else:
            module.kernel[(2,)](**{name: arguments[name] for name in module.kernel.arg_names})
    return list(tensors.values())


@pytest.mark.parametrize(("before", "after", "words"), cases())
def test_kernel(before: str, after: str, words: str, tmp_path: Path) -> None:
    got = specialised(before, words)
    assert got.final.text == after
    ast.parse(after)
    assert not specialised(after, words).steps
    was, now = results(tmp_path / "before.py", before, words), results(tmp_path / "after.py", after, words)
    assert all(torch.equal(one, two) for one, two in zip(was, now, strict=True))
    assert not torch.equal(was[1], torch.zeros(1024))


@pytest.mark.parametrize(("before", "after", "words"), cases())
def test_windows_line_endings(before: str, after: str, words: str) -> None:
    assert specialised(before.replace("\n", "\r\n"), words).final.text == after.replace("\n", "\r\n")
