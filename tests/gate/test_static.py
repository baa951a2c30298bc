"""Faults that the compiler leaves in its final text, seen without running it."""
from __future__ import annotations

import pytest

from migrate.gate import compiler, cost, diagnose, hivm
from migrate.gate.result import Outcome
from migrate.gate.ttir import Ttir

MODULE = """"builtin.module"() ({
  "func.func"() <{function_type = () -> (), sym_name = "k"}> ({
    %0 = "memref.alloc"() <{operandSegmentSizes = array<i32: 0, 0>}> : () -> memref<64xf32, #hivm.address_space<SPACE>>
    "func.return"() : () -> ()
  }) {hacc.entry, hivm.func_core_type = #hivm.func_core_type<AIV>} : () -> ()
}) : () -> ()
"""
DOT = "%{0} = tt.dot %a, %b, %c : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32>"


def found(text: str, ttir: str = "") -> list[diagnose.Diagnosis]:
    pytest.importorskip("xdsl")
    step = compiler.Step(Outcome.OK)
    return list(diagnose.compiled(step, cost.read(hivm.parse(text), [], {}), Ttir(ttir)))


def test_a_buffer_without_an_address() -> None:
    for space in ("ub", "cbuf"):
        (warning,) = found(MODULE.replace("SPACE", space))
        assert (warning.name, warning.severity) == ("unplanned-buffer", "warning")
    assert found(MODULE.replace("SPACE", "gm")) == []


def test_fewer_products_than_the_kernel_has() -> None:
    ttir = "\n".join(DOT.format(k) for k in range(2))
    (error,) = found(MODULE.replace("SPACE", "gm"), ttir)
    assert (error.name, error.severity) == ("dropped-product", "error")
    assert "2 products in the TTIR, 0 in the HIVM" in error.message
