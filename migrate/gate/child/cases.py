"""Where launches come from: cases files, and the operators of `ported_kernels.catalog`.

A cases file is plain Python with a function `cases()` that yields `(name, call)`. `call` gets the module
under test and calls its public functions with CPU tensors of its own making. A file under test may carry
its own, as `gate_cases()`.
"""
from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from migrate.gate.child.load import load

Case = tuple[str, Callable[[], Any]]


def of_file(path: Path, module: ModuleType) -> Iterator[Case]:
    own = Path(module.__file__ or "").resolve() == path.resolve()
    cases = module.gate_cases if own else load(path, None).cases
    for name, call in cases():
        yield name, partial(call, module)


def of_operator(name: str, device: str = "cpu") -> Iterator[Case]:
    """Every case of an operator, in every dtype it takes."""
    operator = importlib.import_module("ported_kernels.catalog").get(name)
    for case in operator.cases:
        for dtype in operator.dtypes:
            yield f"{case.name} {str(dtype).removeprefix('torch.')}", partial(_call, operator, case, dtype, device)


def _call(operator: Any, case: Any, dtype: Any, device: str) -> None:
    operator.load(device)(**case.build(0, dtype))
