"""Loops that advance a pointer: which of them compile, and what ASC218 makes of them. All of them with `-m slow`."""
from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import loop_pointers as loops
import pytest
import torch

from migrate import engine
from migrate.source import Source
from migrate.vnpu import device

QUICK = [loops.Form("tile", "store", "store", "nothing", masked=True),
         loops.Form("scalar", "load", "load", "pointer", masked=False),
         loops.Form("base", "store", "store", "pointer", masked=True, outer="fresh"),
         loops.Form("tile", "none", "load", "nothing", masked=True, outer="fresh")]


def module(folder: Path, forms: list[loops.Form], ported: bool) -> ModuleType:
    """A file of the kernels: as they are, or as the rule writes them."""
    text = loops.HEAD + "".join(form.text for form in forms)
    if ported:
        outcome = engine.apply(Source.parse(text), engine.select(engine.load(), only=["ASC218"]))
        assert not outcome.open
        text = outcome.final.text
    path = folder / f"forms_{'ported' if ported else 'plain'}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def outcome(npu: device.Device, kernel: object, form: loops.Form) -> str:
    """`right`; `refused` where it does not compile; or what is wrong."""
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(loops.SIZE, generator=draw) for _ in range(3)]
    want = [tensor.clone() for tensor in tensors]
    form.run(*want)
    try:
        kernel[(1,)](*tensors, loops.ROUNDS, loops.DIM, BLOCK=loops.BLOCK)      # type: ignore[index]
    except device.NotCompiled:
        return "refused"
    kinds = {finding.kind for run in npu.take() for finding in run.errors}
    same = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(tensors, want, strict=True))
    return ", ".join(sorted(kinds)) or ("right" if same else "wrong numbers")


def outcomes(npu: device.Device, folder: Path, forms: list[loops.Form], ported: bool) -> dict[loops.Form, str]:
    made = module(folder, forms, ported)
    return {form: outcome(npu, getattr(made, form.name), form) for form in forms}


@pytest.mark.parametrize("ported", [False, True])
def test_a_pointer_read_after_the_loop(npu: device.Device, tmp_path: Path, ported: bool) -> None:
    want = "right" if ported else "refused"
    assert outcomes(npu, tmp_path, QUICK[:2] + QUICK[3:], ported) == dict.fromkeys(QUICK[:2] + QUICK[3:], want)


def test_what_compiled_still_does(npu: device.Device, tmp_path: Path) -> None:
    for ported in (False, True):
        assert outcomes(npu, tmp_path, QUICK[2:3], ported) == {QUICK[2]: "right"}


@pytest.mark.slow
@pytest.mark.parametrize("outer, refused", [("", 46), ("carried", 3), ("fresh", 6)])
def test_all_loops(npu: device.Device, tmp_path: Path, outer: str, refused: int) -> None:
    """Before: as many are refused, none of which reads the pointer in the loop alone. After: all compile, and are
    right. Where nothing uses a pointer that an outer loop carries, bytes are read that another buffer has been written
    to since, before and after."""
    forms = loops.forms(outer)
    before = outcomes(npu, tmp_path, forms, ported=False)
    assert sum(found == "refused" for found in before.values()) == refused
    assert all(form.after != "no" for form, found in before.items() if found == "refused")
    after = outcomes(npu, tmp_path, forms, ported=True)
    unused = {form for form in forms if (form.inside, form.after, outer) == ("none", "no", "carried")}
    assert {found for form, found in after.items() if form not in unused} == {"right"}
    assert all(after[form] == before[form] for form in unused)
