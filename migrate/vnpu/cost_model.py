"""How long a call takes: a model, in cycles of the core's clock.

It serves to rank forms of one kernel, not to promise times: nothing here was fitted to a card. The widths are what
vendors publish of the 910B: a vector instruction works on 256 bytes at a time, the cube multiplies 16 x 16 x 16
fractals of two-byte elements in a cycle, and blocks of 32 bytes are what moves. The start-up costs are first guesses,
the ones with which the prototype ranked three forms of bwd_segsum_dadt at C = 64 (21,469, 5,089 and 10,527 cycles:
shared/virtual_npu.md).
"""
from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:                   # the gate uses the constants, where there is no numpy
    from migrate.vnpu.memory import View

VECTOR_START = 20       # issue and drain of one vector call
VECTOR_BYTES = 256      # bytes a vector instruction works on
MOVE_START = 600        # latency of global memory
MOVE_BYTES = 32         # bytes a cycle between global memory and one core
ROW_START = 4           # each row of a copy that is not contiguous
L1_BYTES = 256          # bytes a cycle from L1 to L0
L1_START = 30
FILL_BYTES = 128        # bytes a cycle when filling L1
CUBE_START = 20
FIX_START = 60
SCALAR = 4              # an access of the scalar unit to the core's own memory
SCALAR_GLOBAL = 100     # and to global memory
HANDSHAKE = 50          # from a signal of one core until another one has it

# passes over the data that a call takes, where it is more than one
PASSES = {"exp": 4, "ln": 4, "div": 4, "sqrt": 4, "rsqrt": 4, "rec": 2, "pow": 32, "select": 2, "reduce": 2,
          "arg_reduce": 3, "broadcast_last": 2, "transpose": 4, "transpose_rows": 2, "interleave": 2, "gather": 8,
          "mul_extended": 8, "sort": 16}


def vector(view: View, kind: str = "") -> float:
    """A vector call whose work is proportional to `view`."""
    return VECTOR_START + PASSES.get(kind, 1) * max(view.nbytes, 1) / VECTOR_BYTES


def scan(view: View, axis: int) -> float:
    """A running sum: one dependent vector call after another along the axis."""
    return VECTOR_START * max(view.sizes[axis], 1) + view.nbytes / VECTOR_BYTES


def move(view: View) -> float:
    """A copy between global memory and a core; every row that does not join the one before costs its start."""
    return MOVE_START + view.nbytes / MOVE_BYTES + ROW_START * prod(view.region().sizes)


def load_l0(left: View, right: View) -> float:
    """Both operands of a product, L1 to L0."""
    return L1_START + (left.nbytes + right.nbytes) / L1_BYTES


def product(m: int, k: int, n: int, bits: int) -> float:
    """A matrix product; four-byte elements take four times as long as two-byte ones, one-byte ones half."""
    fractals = -(-m // 16) * -(-k // 16) * -(-n // 16)
    return CUBE_START + fractals * {8: 0.5, 16: 1, 32: 4}[bits]


def fixpipe(view: View) -> float:
    """Accumulators of `view`'s size to global memory."""
    return FIX_START + view.nbytes / MOVE_BYTES + (view.sizes[0] if view.sizes else 1)


def fill_l1(view: View) -> float:
    return VECTOR_START + view.nbytes / FILL_BYTES
