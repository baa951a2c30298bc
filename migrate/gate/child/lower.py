"""A recorded launch -> TTIR text, and the command lines that triton-ascend would run on it.

The commands are taken from triton-ascend itself, by letting it get as far as `subprocess.run`: which
flags a launch option turns into differs between its releases, and this way the gate never guesses.
"""
from __future__ import annotations

import re
import subprocess
from typing import Any
from unittest import mock

import triton.backends.ascend.compiler as ascend
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from migrate.gate.child.recorder import Launch


class _Command(Exception):
    pass


def _command_of(step: Any, *args: Any, **kwargs: Any) -> list[str]:
    """The program that a compile step of triton-ascend is about to run."""
    run = subprocess.run

    def intercept(argv: Any, *more: Any, **options: Any) -> Any:
        if "-o" in argv:
            raise _Command(argv)
        return run(argv, *more, **options)   # `bishengir-compile --help`, asked to learn its version

    with mock.patch.object(subprocess, "run", intercept):
        try:
            step(*args, **kwargs)
        except _Command as caught:
            return [str(part) for part in caught.args[0]]
    raise RuntimeError(f"{step.__name__} ran no program")


def lower(launch: Launch, a5: bool) -> tuple[str, list[str], list[str]]:
    """(TTIR text, adapter arguments, compiler options). Input and output files are left out."""
    target: GPUTarget = driver.active.get_current_target()
    backend = ascend.AscendBackend(target)
    options = launch.options
    if a5:
        options = backend.parse_options(vars(options) | {
            "compile_on_910_95": True, "enable_auto_bind_sub_block": False, "enable_select_analysis": True,
            "multibuffer": vars(options).get("multibuffer") or None})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(launch.fn, launch.signature, launch.constants, launch.attrs)
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {"target": target, **vars(options)}
    module = ascend.make_ttir(module, metadata, options)

    adapter = _command_of(ascend.ttir_to_linalg, module, dict(metadata), options, named_ops=True)
    # what the option builder reads from the linalg text are three names; the options do not depend on them
    names = 'func.func @k() {mix_mode = "aiv", parallel_mode = "simd"}'
    to_binary = (ascend.linalg_to_bin_enable_npu_compile_910_95 if a5
                 else ascend.linalg_to_bin_enable_npu_compile_A2_A3)
    compiler = _command_of(to_binary, names, dict(metadata), options)
    return str(module), _flags(adapter), _flags(compiler)


def _flags(argv: list[str]) -> list[str]:
    """The flags alone: without the program, its input file and `-o FILE`."""
    kept = argv[2:]
    at = kept.index("-o")
    return [flag for flag in kept[:at] + kept[at + 2:] if not re.match(r"--target=", flag)]
