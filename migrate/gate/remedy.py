"""What to write to get a kernel through, as text to copy: a command that splits a tile, an option of a launch."""
from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from migrate import find, header

PART = 64           # what split-tile cuts axes into
MOST_PARTS = 4      # each part is written out: beyond this a smaller constant is the better way


def split(file: str, tiles: Mapping[str, Any]) -> str:
    """Names the `migrate port` that writes the longest of these tile constants in parts of 64; "" if none is for that.

    `file` holds the kernel, `tiles` are constexpr parameters of it that are axes of the buffers.
    """
    try:
        made = header.read(Path(file).read_text())
    except OSError:
        return ""
    values, done = _asked(made.tool) if made else ("", set())
    longest = max((v for v in tiles.values() if _in_parts(v)), default=0)
    names = [name for name, value in tiles.items() if value == longest and name not in done]
    if not names:
        return ""
    name, *others = names
    values = " ".join(filter(None, (values, f"{name}={longest}")))
    command = f"migrate port {_source(file, made)} --set {values} --split {','.join([*sorted(done), name])}"
    also = f" (or {', '.join(others)} in place of {name})" if others else ""
    return f"try {name} in {longest // PART} parts of {PART}: {command}{also}"


def _in_parts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in range(2 * PART, MOST_PARTS * PART + 1,
                                                                                     PART)


def _asked(tool: str) -> tuple[str, set[str]]:
    """What a port was asked for, by its header: the values set, and the names whose axes are in parts."""
    values = re.search(r"--set (.*?)(?= --|$)", tool)
    parts = re.search(r"--split (\S+)", tool)
    return values[1] if values else "", set(parts[1].split(",")) if parts else set()


def _source(file: str, made: header.Header | None) -> str:
    """What `migrate port` takes for the file that a kernel lies in, or that it was ported from."""
    if made is None:
        path = os.path.relpath(file)
        return shlex.quote(file if path.startswith("..") else path)
    if "==" not in made.upstream:
        return shlex.quote(made.path)
    short = Path(made.path).name
    return short if len(find.released(short)[2]) == 1 else f"{made.upstream}:{made.path}"


def launch(options: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """How the launch that was recorded in `facts` sets options that only Ascend's compiler knows."""
    said = ", ".join(f"{name}={value}" for name, value in options.items())
    file, line = facts.get("launched_at") or ("", 0)
    place = f" at {file if (path := os.path.relpath(file)).startswith('..') else path}:{line}" if file else ""
    tensor = _tensor(facts) or "x"
    return (f"launch it with {said}: add `**runtime.launch_options({tensor}.device, {said})` to the launch{place}; "
            "`runtime` is that of `ported_kernels`")


def _tensor(facts: Mapping[str, Any]) -> str:
    """The first tensor that the launch gives the kernel by a plain name; "" where the text does not tell."""
    file, line = facts.get("launched_at") or ("", 0)
    try:
        caller, source = (ast.parse(Path(name).read_text()) for name in (file, facts["file"]))
    except (OSError, SyntaxError, KeyError):
        return ""
    calls = [node for node in ast.walk(caller) if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
             and node.lineno <= line <= (node.end_lineno or 0)]
    kernels = [node for node in ast.walk(source) if isinstance(node, ast.FunctionDef) and node.name == facts["kernel"]]
    if len(calls) != 1 or len(kernels) != 1:
        return ""
    given = [(p.arg, a) for p, a in zip(kernels[0].args.args, calls[0].args, strict=False)]
    given += [(k.arg or "", k.value) for k in calls[0].keywords]
    return next((value.id for name, value in given if isinstance(value, ast.Name)
                 and str(facts["signature"].get(name, "")).startswith("*")), "")
