"""From a file of final HIVM to a program, once: the generated source is kept in the user's cache."""
from __future__ import annotations

from pathlib import Path

from migrate.gate import cache, hivm, process
from migrate.gate.targets import Target
from migrate.gate.toolchain import Toolchain
from migrate.vnpu import program
from migrate.vnpu.program import Program


def load(path: Path, toolchain: Toolchain, target: Target, limits: process.Limits) -> Program:
    """The program of a HIVM file that the gate kept (`Verdict.hivm`). Raises hivm.Unreadable when the toolchain or
    xdsl cannot read it."""
    entries = cache.Entries("vnpu")
    key = cache.key(path.read_text(), toolchain.versions, program.VERSION)
    if found := entries.find(key):
        return Program.from_dict(found[1])
    made = program.translate(hivm.parse(hivm.generic(path, toolchain, target, limits)))
    entries.put(key, made.as_dict(), {})
    return made
