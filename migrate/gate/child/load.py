"""Import the user's file, and say in the user's terms what went wrong."""
from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from triton.compiler.errors import CompilationError
from triton.runtime.jit import JITFunction, get_jit_fn_file_line


def load(path: Path, root: Path | None) -> ModuleType:
    """Import a file under its dotted name below `root`, so that its relative imports work; else on its own."""
    if root and path.is_relative_to(root):
        parts = path.relative_to(root).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def explain(error: BaseException, user_file: str) -> dict[str, Any]:
    """An exception as data: its type and message, and the line of the user's files that it comes from:
    the innermost one, which may be in a module that the file under test imports."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    if any(isinstance(link, CompilationError) for link in chain):
        return _explain_compilation(chain)
    here = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    file, line = (here[-1].filename, here[-1].lineno) if here else (user_file, 0)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno or 0
    return {"type": type(error).__name__, "message": str(error), "file": file, "line": line}


def _is_users(file: str) -> bool:
    """Neither an installed package, nor Python's own library, nor this gate."""
    path = Path(file)
    return not (file.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts)
                or path.is_relative_to(_STDLIB) or path.is_relative_to(_GATE))


_STDLIB = sysconfig.get_paths()["stdlib"]
_GATE = Path(__file__).parents[1]


def _explain_compilation(chain: list[BaseException]) -> dict[str, Any]:
    """Triton wraps an error once for every helper on the way; the innermost names the line to change.

    An error raised inside triton's own library points at the call in the user's kernel instead.
    """
    # by type: isinstance() would wake up every lazy object in the process
    functions = [f for f in gc.get_objects() if type(f) is JITFunction]
    places = []
    for error in chain:
        if isinstance(error, CompilationError) and hasattr(error.node, "lineno"):
            owner = next((f for f in functions if f.src == error.src), None)
            if owner:
                file, begin = get_jit_fn_file_line(owner)
                places.append((file, begin + error.node.lineno - 1))
    inside_triton = f"{os.sep}triton{os.sep}language{os.sep}"
    places = [p for p in places if inside_triton not in p[0]] or places or [("", 0)]
    root = chain[-1]
    message = root.error_message if isinstance(root, CompilationError) else f"{type(root).__name__}: {root}"
    return {"type": type(root).__name__, "message": message or str(root), "file": places[-1][0], "line": places[-1][1]}
