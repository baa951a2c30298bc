"""What one program of a kernel does, line by line, as read from its final HIVM.

Counts are facts of the text: bytes each DMA pipe moves, calls of vector and cube functions, rounds of scalar
loops, handshakes between cube and vector cores. `cycles` is a model, for ranking lines within a kernel and
nothing more, with the constants of migrate/vnpu/cost_model.py, and one element a cycle where elements are moved one
by one. It does not know which functions take several passes over their data: `check --trace` does, and where the two
rank lines otherwise, that is the better one. Pipes run side by side on a core; their sum is no time.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from migrate.gate import hivm
from migrate.gate.result import Place
from migrate.gate.symbolic import Expr, const, make
from migrate.vnpu import cost_model

PIPES = ("MTE2", "MTE1", "MTE3", "FIXP")   # GM->UB/L1, L1->L0, UB->GM, L0C->GM


@dataclass
class Line:
    """What comes from one line of Python, for one program."""

    file: str
    line: int
    moved: dict[str, str] = field(default_factory=dict)     # pipe -> bytes, symbolic where loops are dynamic
    bytes: dict[str, int] = field(default_factory=dict)     # pipe -> bytes of this launch, as far as known
    transfers: int = 0
    kinds: list[str] = field(default_factory=list)          # "strided", "row by row", "element by element"
    vector_calls: dict[str, int] = field(default_factory=dict)
    cube_calls: dict[str, int] = field(default_factory=dict)
    scalar: str = ""                                        # rounds of scalar loops, symbolic
    scalar_rounds: int = 0
    scalar_types: list[str] = field(default_factory=list)   # element types that scalar loops touch
    scalar_ops: list[str] = field(default_factory=list)     # arithmetic in them
    address_ops: list[str] = field(default_factory=list)    # "remsi", ... in addresses computed for each transfer
    syncs: int = 0
    locks: int = 0
    unplanned: int = 0                                      # buffers of a core that were given no address
    unlinked: list[str] = field(default_factory=list)       # functions that the compiler's own library lacks
    cycles: int = 0


@dataclass
class Cost:
    core: str                       # "vector", "cube" or "mix"
    ub_bits: int                    # highest address in use, of one vector core
    l1_bits: int                    # the same of a cube core's memories
    l0c_bits: int
    multi_buffered: bool            # at least one buffer alternates between two
    lines: list[Line]
    products: int                   # cube calls in the text, whatever the trip counts
    inline_asm: bool = False
    complete: bool = True           # False: some trip count is not known for this launch and counts as one

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read(module: Any, argument_names: list[str], known: Mapping[str, int], links: Callable[[str], bool]) -> Cost:
    """Walk the device functions; `known` has the values of scalar arguments and of the grid, `links` says whether
    the compiler's library has a function."""
    reader = _Reader(known, links)
    for function in hivm.functions(module, argument_names):
        reader.function(function)
    return reader.result()


class _Reader:
    def __init__(self, known: Mapping[str, int], links: Callable[[str], bool]) -> None:
        self.known, self.links = known, links
        self.lines: dict[Place | None, Line] = {}
        self.symbolic: dict[tuple[Place | None, str], Counter[str]] = {}
        self.cores: set[str] = set()
        self.bits = {"ub": 0, "cbuf": 0, "cc": 0}
        self.multi_buffered = False
        self.products = 0
        self.inline_asm = False
        self.complete = True

    def function(self, function: hivm.Function) -> None:
        self.cores.add(function.core)
        self.values = hivm.Values(function)
        for block in function.op.body.blocks:
            self._block(block.ops, const(1), 1)

    def result(self) -> Cost:
        core = {frozenset({"AIV"}): "vector", frozenset({"AIC"}): "cube"}.get(frozenset(self.cores), "mix")
        for (place, what), amounts in self.symbolic.items():
            text = " + ".join(f"{n:,}" + (f" * {factor}" if factor else "") for factor, n in amounts.items() if n)
            line = self._line(place)
            if what == "scalar":
                line.scalar = text
            else:
                line.moved[what] = text
        lines = sorted(self.lines.values(), key=lambda line: -line.cycles)
        return Cost(core, self.bits["ub"], self.bits["cbuf"], self.bits["cc"], self.multi_buffered, lines,
                    self.products, self.inline_asm, self.complete)

    def _line(self, place: Place | None) -> Line:
        if place not in self.lines:
            self.lines[place] = Line(place.file if place else "", place.line if place else 0)
        return self.lines[place]

    def _add(self, place: Place | None, what: str, amount: int, times: Expr) -> None:
        factor, plain = _split(times)
        self.symbolic.setdefault((place, what), Counter())[factor] += amount * plain

    def _block(self, ops: Iterable[Any], times: Expr, rounds: int, extracted: bool = False) -> None:
        for op in ops:
            name, place = hivm.name_of(op), hivm.place_of(op)
            if name == "scf.for":
                trips = self.values.trips(op)
                now = trips.evaluate(self.known)
                if now is None:
                    self.complete, now = False, 1
                now = max(0, now)
                if _is_scalar_loop(op):
                    self._scalar_loop(op, place, make("*", times, trips), rounds * now)
                self._block(op.body.blocks[0].ops, make("*", times, trips), rounds * now,
                            "ExtractedLoadOrStore" in op.attributes)
            elif extracted and name in ("arith.remsi", "arith.divsi", "memref.load"):
                _note(self._line(place).address_ops, name.rpartition(".")[2])
            elif name == "func.call":
                self._call(op, place, times, rounds, extracted)
            elif name == "hivm.hir.pointer_cast":
                self._buffer(op)
            elif name == "memref.alloc":
                self._line(place).unplanned += hivm.space(op.results[0].type) in ("ub", "cbuf", "cc")
            elif name == "arith.select" and op.results[0].type.name == "memref":
                self.multi_buffered |= hivm.space(op.results[0].type) in ("ub", "cbuf", "cc")
            elif name in ("hivm.hir.sync_block_set", "hivm.hir.sync_block_wait", "hivm.hir.sync_block"):
                self._line(place).syncs += rounds
            elif "inline_asm" in name:
                self.inline_asm = True
                self._line(place).scalar_rounds += rounds
            elif op.regions:
                for region in op.regions:
                    for block in region.blocks:
                        self._block(block.ops, times, rounds, extracted)

    def _buffer(self, op: Any) -> None:
        type_ = op.results[0].type
        memory = hivm.space(type_)
        if memory not in self.bits:
            return
        for address in op.operands:
            start = self.values.expr(address).value
            sizes = hivm.shape(type_)
            if start is not None and hivm.DYNAMIC not in sizes:
                bits = hivm.element_bits(type_)
                for size in sizes:
                    bits *= size
                self.bits[memory] = max(self.bits[memory], 8 * start + bits)

    def _call(self, op: Any, place: Place | None, times: Expr, rounds: int, extracted: bool) -> None:
        name, line = hivm.callee(op), self._line(place)
        views = [v for v in op.operands if v.type.name == "memref"]
        spaces = [hivm.space(v.type) for v in views]
        if name.startswith("sync_block_"):
            line.locks += name.endswith("_lock")
            return
        if not self.links(name):
            _note(line.unlinked, name)
        if name.startswith("mma"):
            self.products += 1
            line.cube_calls[name] = line.cube_calls.get(name, 0) + rounds
            self._product(op, place, line, name, times, rounds)
            return
        pipe = _pipe(name, spaces)
        if not pipe:
            line.vector_calls[name] = line.vector_calls.get(name, 0) + rounds
            widest = max((self._bytes(v) for v in views), default=0)
            line.cycles += rounds * (cost_model.VECTOR_START + widest // cost_model.VECTOR_BYTES)
            return
        amount = min((n for n in (self._bytes(v) for v in views[:2]) if n), default=0)
        outside = next((v for v, where in zip(views, spaces, strict=True) if where == "gm"), None)
        line.transfers += rounds
        line.bytes[pipe] = line.bytes.get(pipe, 0) + rounds * amount
        self._add(place, pipe, amount, times)
        stride = self.values.last_stride(outside) if outside is not None else 1
        if stride != 1:
            _note(line.kinds, "strided" if stride != "run-time" else "strided (run-time stride)")
            line.cycles += rounds * (cost_model.MOVE_START + amount // max(1, hivm.element_bits(views[0].type) // 8))
        else:
            line.cycles += rounds * (cost_model.MOVE_START + amount // cost_model.MOVE_BYTES)
        if extracted:
            _note(line.kinds, "row by row")

    def _bytes(self, view: Any) -> int:
        return self.values.elements(view)[0] * hivm.element_bits(view.type) // 8

    def _product(self, op: Any, place: Place | None, line: Line, name: str, times: Expr, rounds: int) -> None:
        views = [v for v in op.operands if v.type.name == "memref"]
        left, right = self._bytes(views[0]), self._bytes(views[1])
        self._add(place, "MTE1", left + right, times)
        line.bytes["MTE1"] = line.bytes.get("MTE1", 0) + rounds * (left + right)
        m, k, n = 1, 1, 1
        sizes = [self.values.expr(v).evaluate(self.known) for v in op.operands if str(v.type) == "index"][:3]
        if len(sizes) == 3 and None not in sizes:
            m, k, n = sizes  # type: ignore[assignment]
        line.cycles += rounds * int(cost_model.product(m, k, n, hivm.element_bits(views[0].type)))

    def _scalar_loop(self, op: Any, place: Place | None, times: Expr, rounds: int) -> None:
        body = list(op.body.blocks[0].ops)
        place = next((p for p in map(hivm.place_of, body) if p), None) or place
        line = self._line(place)
        accesses = [o for o in body if o.name in ("memref.load", "memref.store")]
        line.scalar_rounds += rounds
        self._add(place, "scalar", 1, times)
        for access in accesses:
            memory = access.operands[1 if access.name == "memref.store" else 0]
            _note(line.scalar_types, str(memory.type.element_type))
            outside = hivm.space(memory.type) == "gm"
            if outside:
                _note(line.kinds, "element by element")
            line.cycles += rounds * (cost_model.SCALAR_GLOBAL if outside else cost_model.SCALAR)
        for other in body:
            if other.name.startswith("arith.") and other.name not in ("arith.constant", "arith.index_cast"):
                _note(line.scalar_ops, other.name.removeprefix("arith."))
        line.cycles += rounds * len(body)


def _is_scalar_loop(op: Any) -> bool:
    return any(o.name in ("memref.load", "memref.store") for o in op.body.blocks[0].ops)


def _note(items: list[str], item: str) -> None:
    if item not in items:
        items.append(item)


def _pipe(name: str, spaces: list[str]) -> str:
    """The DMA pipe a library function runs on, by where it reads and writes; "" for vector work."""
    if "gm" not in spaces:
        return "FIXP" if name.startswith("fixpipe") else ""
    if "cc" in spaces:
        return "FIXP"
    if re.match(r"store|copy_ub\w*_to_gm", name) or spaces.index("gm") > 0:
        return "MTE3"
    return "MTE2"


def _split(times: Expr) -> tuple[str, int]:
    """A trip count as (symbolic factor, plain factor)."""
    if times.value is not None:
        return "", times.value
    if times.op == "*":
        (a, m), (b, n) = _split(times.args[0]), _split(times.args[1])
        return " * ".join(filter(None, (a, b))), m * n
    return str(times), 1
