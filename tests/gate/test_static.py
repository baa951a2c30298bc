"""Faults that the compiler leaves in its final text, seen without running it."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from migrate.gate import compiler, cost, diagnose, hivm, toolchain
from migrate.gate.result import Outcome
from migrate.gate.ttir import Ttir

MODULE = """"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "k"}> ({
    %0 = "memref.alloc"() <{operandSegmentSizes = array<i32: 0, 0>}> : () -> memref<64xf32, #hivm.address_space<SPACE>>
    "func.return"() : () -> ()
  }) {hacc.entry, hivm.func_core_type = #hivm.func_core_type<AIV>} : () -> ()
}) : () -> ()
"""
CALL = """"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "k"}> ({
    "func.call"() <{callee = @fixpipe_nz2nd_float_to_float_2d_to_2d}> : () -> ()
    "func.return"() : () -> ()
  }) {hacc.entry, hivm.func_core_type = #hivm.func_core_type<AIC>} : () -> ()
}) : () -> ()
"""
DOT = "%{0} = tt.dot %a, %b, %c : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32>"


def found(text: str, ttir: str = "", links: Callable[[str], bool] = lambda name: True) -> list[diagnose.Diagnosis]:
    pytest.importorskip("xdsl")
    step = compiler.Step(Outcome.OK)
    return list(diagnose.compiled(step, cost.read(hivm.parse(text), [], {}, links), Ttir(ttir)))


def test_a_buffer_without_an_address() -> None:
    for space in ("ub", "cbuf"):
        (warning,) = found(MODULE.replace("SPACE", space))
        assert (warning.name, warning.severity) == ("unplanned-buffer", "warning")
    assert found(MODULE.replace("SPACE", "gm")) == []


def test_fewer_products_than_the_kernel_has() -> None:
    ttir = "\n".join(DOT.format(k) for k in range(2))
    (error,) = found(MODULE.replace("SPACE", "gm"), ttir)
    assert (error.name, error.severity) == ("dropped-product", "error")
    assert "products in the TTIR: 2, in the HIVM: 0" in error.message


def test_a_call_that_nothing_can_link() -> None:
    current = toolchain.current()
    if not current.sound:
        pytest.skip("; ".join(current.problems))
    (error,) = found(CALL, links=current.links)
    assert (error.name, error.severity) == ("unlinkable-call", "error")
    assert "fixpipe_nz2nd_float_to_float_2d_to_2d" in error.message
    assert found(CALL.replace("float_2d", "float_4d"), links=current.links) == []


def test_a_library_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert toolchain.Toolchain(tmp_path / "python", tmp_path, {}).links("no_such_function")
