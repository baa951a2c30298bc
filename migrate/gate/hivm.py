"""Reading the compiler's final text: HIVM as xdsl operations, with the Python line that each came from.

`bishengir-opt --lower-affine --mlir-print-op-generic` turns the text into the generic form, in which only the
dialects loaded below need to be known; hivm's own operations stay unregistered, their attributes readable.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from migrate.errors import MigrateError
from migrate.gate import process
from migrate.gate.result import Place
from migrate.gate.symbolic import Expr, const, make, symbol
from migrate.gate.targets import Target
from migrate.gate.toolchain import Toolchain

_LOC = re.compile(r'"([^"]+)":(\d+):(\d+)')
_SPACE = re.compile(r"address_space<(\w+)>")
_BITS = re.compile(r"(\d+)$")
DYNAMIC = -1


class Unreadable(MigrateError):
    """The text could not be parsed; the cost of the kernel is then not known, its verdict stands."""


def generic(path: Path, toolchain: Toolchain, target: Target, limits: process.Limits) -> str:
    """The generic form of a HIVM file, with locations in place."""
    end = process.run([toolchain.program(target.optimizer), "--lower-affine", "--mlir-print-op-generic",
                       "--mlir-print-debuginfo", "--mlir-print-local-scope", path], limits)
    if end.returncode or end.killed:
        raise Unreadable(f"{target.optimizer} could not read {path}: {(end.stderr or end.killed)[:200]}")
    return end.stdout


def parse(text: str) -> Any:
    """An xdsl module of HIVM in generic form."""
    try:
        from xdsl.context import Context
        from xdsl.dialects import arith, builtin, cf, func, math, memref, scf
        from xdsl.parser import Parser
        from xdsl.utils.exceptions import ParseError, VerifyException
    except ImportError:
        raise Unreadable("reading HIVM needs xdsl: pip install 'triton-ascend-migrate[cpu]'") from None
    context = Context(allow_unregistered=True)
    for dialect in (builtin.Builtin, arith.Arith, scf.Scf, memref.MemRef, func.Func, cf.Cf, math.Math):
        context.load_dialect(dialect)
    try:
        return Parser(context, text).parse_module()
    except (ParseError, VerifyException) as error:
        raise Unreadable(f"xdsl cannot parse the HIVM: {str(error).splitlines()[0][:200]}") from None


def place_of(op: Any) -> Place | None:
    """The Python line an operation comes from; inside a call of triton's own library, the line of the call."""
    places = [Place(file, int(line)) for file, line, _ in _LOC.findall(str(getattr(op, "location", "")))]
    mine = [p for p in places if "/triton/language/" not in p.file and p.line and p.file.endswith(".py")]
    return mine[0] if mine else None


def name_of(op: Any) -> str:
    """`hivm.hir.set_flag`, `scf.for`: the name also where the dialect is not registered."""
    return op.op_name.data if op.name == "builtin.unregistered" else op.name


def attributes(op: Any) -> dict[str, Any]:
    return {**op.attributes, **op.properties}


def callee(op: Any) -> str:
    return str(attributes(op).get("callee", "")).lstrip("@").strip('"')


def space(type_: Any) -> str:
    """"gm", "ub", "cbuf" (L1), "cc" (L0C), ... of a memref type; "" for what is no memref."""
    found = _SPACE.search(str(type_))
    return found[1] if found else ("gm" if type_.name == "memref" else "")


def shape(type_: Any) -> list[int]:
    """Static sizes; DYNAMIC where a size is only known at run time."""
    return [d.data if d.data >= 0 else DYNAMIC for d in type_.shape]


def element_bits(type_: Any) -> int:
    text = str(type_.element_type)
    found = _BITS.search(text)
    return int(found[1]) if found else {"index": 64}.get(text, 8)


@dataclass
class Function:
    """One device function: the whole kernel, or its cube or vector half."""

    name: str
    core: str                       # "AIV", "AIC" or "MIX"
    op: Any
    arguments: dict[Any, Expr] = field(default_factory=dict)


def functions(module: Any, argument_names: list[str]) -> Iterator[Function]:
    """The device functions of a kernel; `argument_names` are those of the Python kernel that reach the device.

    The compiler puts its own in front (FFTS address, lock, workspace), and the grid behind.
    """
    for op in module.ops:
        found = attributes(op)
        if op.name != "func.func" or "hacc.entry" not in found or not op.body.blocks:
            continue
        core = re.search(r"func_core_type<(\w+)>", str(found.get("hivm.func_core_type", "")))
        kinds = [str(a) for a in getattr(op, "arg_attrs", None) or []]
        own = sum("hacc.arg_type" in kind for kind in kinds) if kinds else 3
        names = [""] * own + argument_names + ["grid_x", "grid_y", "grid_z"]
        block = op.body.blocks[0]
        arguments = {arg: symbol(name) for arg, name in zip(block.args, names, strict=False) if name}
        yield Function(str(found["sym_name"]).strip('"'), core[1] if core else "?", op, arguments)


_PASS_THROUGH = {"arith.index_cast", "arith.extsi", "arith.extui", "arith.trunci", "arith.index_castui"}
_BINARY = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.divsi": "/", "arith.floordivsi": "/",
           "arith.remsi": "%", "arith.minsi": "min", "arith.maxsi": "max", "arith.ceildivsi": "ceil",
           "arith.divui": "/", "arith.remui": "%", "arith.minui": "min", "arith.maxui": "max"}


class Values:
    """What is known about SSA values: integers as expressions, memrefs as views of a buffer."""

    def __init__(self, function: Function) -> None:
        self._known: dict[Any, Expr] = dict(function.arguments)

    def expr(self, value: Any) -> Expr:
        if value not in self._known:
            self._known[value] = symbol("?")   # cuts cycles through loop-carried values
            self._known[value] = self._compute(value)
        return self._known[value]

    def _compute(self, value: Any) -> Expr:
        op = value.owner
        if not hasattr(op, "operands"):        # a block argument: an induction variable, or carried round a loop
            parent = op.parent_op()
            if parent is not None and parent.name == "scf.for" and value.index == 0:
                return self.expr(parent.operands[0])   # as in the first round
            return symbol("?")
        name = name_of(op)
        if name == "arith.constant":
            literal = attributes(op)["value"]
            data = getattr(getattr(literal, "value", None), "data", None)
            return const(int(data)) if isinstance(data, int) else symbol("?")
        if name in _PASS_THROUGH:
            return self.expr(op.operands[0])
        if name in _BINARY:
            return make(_BINARY[name], self.expr(op.operands[0]), self.expr(op.operands[1]))
        if name in ("hivm.hir.get_block_idx", "hivm.hir.get_sub_block_idx"):
            return const(0)   # everything here is said of the first program, first half
        if name == "memref.load":
            place = place_of(op)
            return symbol(f"value loaded at line {place.line}" if place else "a loaded value")
        return symbol("?")

    def trips(self, loop: Any) -> Expr:
        """How often an scf.for runs, for the first program."""
        low, high, step = (self.expr(operand) for operand in loop.operands[:3])
        return make("ceil", make("-", high, low), step)

    def buffer(self, value: Any) -> Any:
        """The allocation or argument that a view looks into."""
        while hasattr(value.owner, "operands"):
            name = name_of(value.owner)
            if name == "arith.select":
                value = value.owner.operands[1]
            elif name.startswith("memref.") and name not in ("memref.alloc", "memref.load"):
                value = value.owner.operands[0]
            else:
                break
        return value

    def elements(self, value: Any) -> tuple[int, bool]:
        """(how many elements a view holds, whether that is exact). Where a size is dynamic, the size of the
        nearest static view round it bounds it."""
        while hasattr(value.owner, "operands"):
            sizes = shape(value.type)
            if DYNAMIC not in sizes:
                return prod(sizes), True
            name = name_of(value.owner)
            if name == "memref.cast":
                value = value.owner.operands[0]
            elif name.startswith("memref.") or name == "arith.select":
                outer = value.owner.operands[1 if name == "arith.select" else 0]
                inside, _ = self.elements(outer)
                return inside, False
            else:
                break
        sizes = shape(value.type)
        return (prod(sizes), True) if DYNAMIC not in sizes else (0, False)

    def last_stride(self, value: Any) -> int | str:
        """The distance in elements between neighbours of the innermost axis longer than one; "run-time" when
        it is only known on the device."""
        while hasattr(value.owner, "operands") and name_of(value.owner) in ("memref.cast", "memref.collapse_shape"):
            value = value.owner.operands[0]
        layout = str(getattr(value.type, "layout", ""))
        found = re.search(r"strided<\[([^\]]*)\]", layout)
        if not found:
            return 1
        strides = [s.strip() for s in found[1].split(",")] if found[1].strip() else []
        for size, stride in reversed(list(zip(shape(value.type), strides, strict=False))):
            if size != 1:
                return "run-time" if stride == "?" else int(stride)
        return 1
