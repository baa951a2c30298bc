"""Whose bytes a buffer holds where two are planned onto the same ones, and what becomes of bytes that nobody wrote in
vector instructions. The programs are written here, as program.py would write them."""
from __future__ import annotations

from textwrap import dedent, indent

import npu_kernels as kernels
import pytest
import torch

from migrate.vnpu import device
from migrate.vnpu.device import Arguments
from migrate.vnpu.findings import ERROR
from migrate.vnpu.machine import Machine, Options
from migrate.vnpu.program import Function, Program

HEAD = """
def make(core):
    def u(buffer, address, n, dtype):
        return at_address(core.memory("ub"), address, (n,), dtype, buffer)
    def do(name, *given):
        core.call(Site(name, ""), given)
        core.barrier("ALL")
    def load(view, k):
        return core.load(Site("memref.load", ""), view, (k,))
    def store(value, view, k):
        core.store(Site("memref.store", ""), value, view, (k,))
    def run(out, *grid):
        if False:
            yield
        none = u(99, 0, 0, "f32")
"""


def errors(body: str, out: torch.Tensor) -> list[str]:
    """The errors of a program on one vector core, whose text may use what HEAD has, and `out`."""
    source = f"from migrate.vnpu.program import Site\n{HEAD}{indent(dedent(body), ' ' * 8)}\n    return run\n"
    program = Program("written", [Function("written", "AIV", False, ["*f32", "i32", "i32", "i32"], source, [])],
                      {"ub": 4096, "cbuf": 0, "cc": 0}, "def workspace():\n    return 0\n")
    run = Machine(program).launch((1,), Arguments().of([out]), Options())
    return [f"{finding.kind}: {finding.message}" for finding in run.findings if finding.severity == ERROR]


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8"])
def test_a_loop_in_place(dtype: str) -> None:
    """Results go, one at a time, where the operands came from: as large, or smaller. Of an element that was not read
    yet, nothing may be lost."""
    body = f"""
        x, y = u(1, 64, 16, "i64"), u(2, 64, 16, "{dtype}")
        do("arange_1d_int64_t", x, 0, 1)
        for k in range(16):
            store(load(x, k) + 1, y, k)
        assert [load(y, k) for k in range(16)] == list(range(1, 17))
    """
    assert errors(body, torch.zeros(1)) == []


@pytest.mark.parametrize("body", ["""
    do("arange_1d_int64_t", x, 0, 1)
    store(7, y, 0)
    load(x, 1)                                      # still there
    load(x, 0)
    """, """
    do("arange_1d_int8_t", z, 0, 1)
    for k in range(2):                              # as large as eight of those that are read
        store(load(z, k), x, k)
    """])
def test_a_read_of_bytes_that_another_buffer_took(body: str) -> None:
    buffers = 'x, y, z = u(1, 64, 16, "i64"), u(2, 64, 16, "i64"), u(3, 64, 16, "i8")\n'
    (found,) = errors(buffers + dedent(body), torch.zeros(1))
    assert found.startswith("never written: S reads") and found.endswith("another buffer was written there since")


def test_what_replaces_a_buffer_that_is_read() -> None:
    """An instruction reads one buffer, lost to another one, and writes that: what it writes stays, and is rubbish."""
    out = torch.zeros(16)
    (found,) = errors("""
        x, y = u(1, 64, 16, "f32"), u(2, 64, 16, "f32")
        do("broadcast_scalar_float_to_1d", 1.0, x)
        do("vadd_1d_float", x, x, y, none)
        do("vadd_1d_float", x, x, y, none)
        do("store_ubuf_to_gm_1d_float", y, out, 0)
    """, out)
    assert found.startswith("never written: 16 elements") and bool(out.isnan().all())


CHOICE = """
    at, half, same, x, y = u(1, 0, 16, "i32"), u(2, 64, 16, "i32"), u(3, 128, 16, "i1"), u(4, 192, 16, "f32"), \\
        u(5, 256, 16, "f32")
    do("arange_1d_int32_t", at, 0, 1)
    do("broadcast_scalar_float_to_1d", 1.0, x)
"""


@pytest.mark.parametrize("stored", [8, 16])
def test_what_nobody_wrote_passes_through_integers_and_masks(stored: int) -> None:
    """Half of the numbers were written; a comparison is made of all, and a choice by the comparison."""
    out = torch.zeros(16)
    found = errors(dedent(CHOICE) + dedent(f"""
        do("arange_1d_int32_t", subview(half, (0,), (8,), (1,), (0,)), 0, 1)
        do("vadds_vs_1d_int32_t", half, 0, half, u(9, 0, 0, "i32"))
        do("vcmp_eq_1d_int32_t", at, half, same)
        do("vsel_vs_1d_float", same, x, 0.0, y, none)
        do("store_ubuf_to_gm_1d_float", subview(y, (0,), ({stored},), (1,), (0,)),
           subview(out, (0,), ({stored},), (1,), (0,)), 0)
    """), out)
    assert bool((out[:8] == 1).all())
    if stored == 8:
        assert found == []
    else:
        assert len(found) == 1 and found[0].startswith("never written: 8 elements") and bool(out[8:].isnan().all())


def test_what_is_not_chosen_does_not_pass() -> None:
    """A choice by a mask that was written takes zeros where nobody wrote: nothing of that is left."""
    out = torch.full((16,), 7.0)
    assert errors(dedent(CHOICE) + dedent("""
        do("vcmps_lt_1d_int32_t", at, 8, same)
        do("broadcast_scalar_float_to_1d", 2.0, subview(y, (0,), (8,), (1,), (0,)))
        do("vsel_vs_1d_float", same, y, 0.0, x, none)
        do("store_ubuf_to_gm_1d_float", x, out, 0)
    """), out) == []
    assert out.tolist() == [2.0] * 8 + [0.0] * 8


def test_a_compiled_loop_in_place(npu: device.Device) -> None:
    """Sums of 64 bits are made element by element; the compiler plans the sum onto its operand."""
    out = torch.zeros(40)
    kernels.places[(2,)](out, 40, 1, BLOCK=32)
    (run,) = npu.take()
    (machine,) = (m for (fn, _), m in npu.machines.items() if fn == id(kernels.places))
    assert isinstance(machine, Machine)
    assert any(site.name == "memref.store" for site in machine.program.functions[0].sites)
    assert run.findings == [] and out.tolist() == [float(k < 39) for k in range(40)]
