"""ASC219 carried-accumulator."""
from __future__ import annotations

import libcst as cst

from migrate import edit
from migrate.analysis.control import bindings
from migrate.analysis.kernels import Kernel
from migrate.analysis.tiles import accumulator, calls, without_casts
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.tiles import _start as starts

COMMENT = "# from zeros that the compiler knows, what this loop reads of the sum would be lost (ASC219)"


class CarriedAccumulator(Rule):
    """Hide from the compiler that a sum of products begins with zeros, where the loop reads the sum on the way.

    ## Why
    Ascend's compiler keeps `acc` of `acc += tl.dot(a, b)` in the cube's own memory (L0C) where it knows that the sum
    begins with zeros. Whatever else the loop reads of it before the addition, such as the state before each chunk
    that `tl.store(p, acc)` writes, comes from a buffer that nothing writes. Nothing is said: the exit code is 0, and
    linear attention without gates is NaN. Where the loop multiplies by the sum, or reads it between two additions, the
    compiler dies. All of these come out right where the first value is not known while compiling, for then the vector
    cores add.

    The rule subtracts `tl.program_id(0) * 0.0` from the zeros. That is zero on every core, so that the sum begins with
    0.0 as before; no compiler may fold it, as it does not know that the factor is finite. `acc + 0.0` and `acc * 1.0`
    in the loop, the product in a tile of its own, a barrier after it, and `tl.where` do not help.

    A sum that decays does not need this. Where a flag (`if DECAY:`) decides about the decay alone, the rule acts.

    ## What it leaves alone
    * sums that the loop does not read, and those that it reads after its only addition.
    * sums that something else changes (`acc *= decay`), also under a run-time condition, and those that begin with
      what is loaded, or with a number that is not zero.
    * `while` and `tl.static_range`, which compile right.
    * sums that are not known to be float32. Reported.
    """

    id = "ASC219"
    name = "carried-accumulator"
    summary = "a sum of products that a loop reads must not begin with zeros that the compiler knows"
    safety = Safety.SAFE
    phase = 3
    triggers = ("dot(",)
    references = (
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "Ascend910B2, 32 x 32, run on the virtual NPU: `store(acc); acc += tl.dot(a, b)` from zeros stores what "
            "was never written. So it does with acc + 0.0, acc * 1.0, tl.maximum(acc, acc), tl.where, a barrier, and "
            "the product in a name of its own; right are a first value of zeros plus or minus tl.program_id(0) * 0.0, "
            "a masked load that loads nothing, a multiplier known at run time, and acc - tl.dot(-a, b)", "compiled"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "the same: a sum that is read by tl.exp or tl.sum, under another name, before an inner loop that adds, or "
            "after it, is lost; tl.dot(a, acc), and a store between two additions, end in a crash; all are right from "
            "a zero that is not known. Reads after the only addition, acc += tl.dot(a, b) * 0.5, a decay or a reset "
            "under a run-time condition, tl.static_range and while are right as they are", "compiled"),
        Ref("https://triton-lang.org/main/python-api/generated/triton.language.program_id.html",
            "on an H200 with triton 3.6.0: states of float32 and bfloat16 products stored before each addition; "
            "with the zero subtracted they have the same bits", "ran"),
    )
    examples = (
        Example("the state before each chunk",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def states(k, v, h, last, chunks, N: tl.constexpr, DECAY: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_h = tl.zeros([N, N], dtype=tl.float32)

                    # chunk by chunk
                    for c in range(chunks):
                        tl.store(h + c * N * N + at, b_h)
                        if DECAY:
                            b_h *= 0.5
                        b_h = tl.dot(tl.load(k + c * N * N + at), tl.load(v + c * N * N + at), b_h)
                    tl.store(last + at, b_h)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def states(k, v, h, last, chunks, N: tl.constexpr, DECAY: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_h = tl.zeros([N, N], dtype=tl.float32) - tl.program_id(0) * 0.0

                    # chunk by chunk
                    # from zeros that the compiler knows, what this loop reads of the sum would be lost (ASC219)
                    for c in range(chunks):
                        tl.store(h + c * N * N + at, b_h)
                        if DECAY:
                            b_h *= 0.5
                        b_h = tl.dot(tl.load(k + c * N * N + at), tl.load(v + c * N * N + at), b_h)
                    tl.store(last + at, b_h)
                """,
            run="exact",
            inputs={"k": "float32[3, 16, 16]", "v": "float32[3, 16, 16]", "h": "float32[3, 16, 16]",
                    "last": "float32[16, 16]", "chunks": 3, "N": 16, "DECAY": False}),
        Example("an initial state that may be given, products through a name, an inner loop, two sums",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def states(k, v, h0, h, s, chunks, N: tl.constexpr, GIVEN: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_h = tl.full([N, N], 0, tl.float32)
                    b_s = tl.zeros([N, N], dtype=tl.float32)
                    if GIVEN:
                        b_h += tl.load(h0 + at).to(tl.float32)
                    for c in range(chunks):
                        b_k = tl.load(k + c * N * N + at)
                        b_kv = tl.dot(b_k, tl.load(v + c * N * N + at) - tl.dot(b_k, b_h) * 0.1)
                        b_h = b_kv + b_h
                        for i in range(2):
                            b_s += tl.dot(b_k, tl.load(v + i * N * N + at))
                        tl.store(h + c * N * N + at, b_h)
                        tl.store(s + c * N * N + at, b_s)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def states(k, v, h0, h, s, chunks, N: tl.constexpr, GIVEN: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_h = tl.full([N, N], 0, tl.float32) - tl.program_id(0) * 0.0
                    b_s = tl.zeros([N, N], dtype=tl.float32) - tl.program_id(0) * 0.0
                    if GIVEN:
                        b_h += tl.load(h0 + at).to(tl.float32)
                    # from zeros that the compiler knows, what this loop reads of the sum would be lost (ASC219)
                    for c in range(chunks):
                        b_k = tl.load(k + c * N * N + at)
                        b_kv = tl.dot(b_k, tl.load(v + c * N * N + at) - tl.dot(b_k, b_h) * 0.1)
                        b_h = b_kv + b_h
                        for i in range(2):
                            b_s += tl.dot(b_k, tl.load(v + i * N * N + at))
                        tl.store(h + c * N * N + at, b_h)
                        tl.store(s + c * N * N + at, b_s)
                """,
            run="exact",
            inputs={"k": "float32[3, 16, 16]", "v": "float32[3, 16, 16]", "h0": "float32[16, 16]",
                    "h": "float32[3, 16, 16]", "s": "float32[3, 16, 16]", "chunks": 3, "N": 16, "GIVEN": True}),
        Example("leaves sums that are read after the addition, decay, begin otherwise, or begin anew in each round",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def sums(k, v, g, out, chunks, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_after = tl.zeros([N, N], dtype=tl.float32)
                    b_decays = tl.zeros([N, N], dtype=tl.float32)
                    b_given = tl.load(out + at).to(tl.float32)
                    b_one = tl.zeros([N, N], dtype=tl.float32)
                    b_one += 1.0
                    for c in range(chunks):
                        b_kv = tl.dot(tl.load(k + c * N * N + at), tl.load(v + c * N * N + at))
                        b_after += b_kv
                        tl.store(out + at, b_after + b_decays + b_given + b_one)
                        b_decays = b_decays * tl.load(g + c) + b_kv
                        b_given += b_kv
                        b_one += b_kv
                        b_inner = tl.zeros([N, N], dtype=tl.float32)
                        for i in range(c):
                            b_inner += tl.dot(tl.load(k + i * N * N + at), tl.load(v + i * N * N + at))
                        tl.store(out + at, b_inner)
                    b_unrolled = tl.zeros([N, N], dtype=tl.float32)
                    for i in tl.static_range(2):
                        tl.store(out + at, b_unrolled)
                        b_unrolled += tl.dot(tl.load(k + i * N * N + at), tl.load(v + i * N * N + at))
                """,
            after=SAME),
        Example("reports a sum of another dtype",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def states(k, v, h, chunks, N: tl.constexpr, DTYPE: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_h = tl.zeros([N, N], dtype=DTYPE)
                    for c in range(chunks):
                        tl.store(h + c * N * N + at, b_h)
                        b_h += tl.dot(tl.load(k + c * N * N + at), tl.load(v + c * N * N + at)).to(DTYPE)
                """,
            after=SAME,
            reports=1),
    )

    def finish(self) -> None:
        for kernel in self.source.kernels.values():
            for loop, names in starts.carried(kernel):
                if not any(calls(self.source, call, "dot") for call in find(loop.body, cst.Call)):
                    continue
                events = starts.events(kernel, loop)
                edits: dict[cst.CSTNode, Edit] = {}
                lost = []
                for name in names:
                    if not self._loses(kernel, events, name):
                        continue
                    begins = starts.start(self.source.tree, loop, name)
                    zeros = [v for v in begins.values(name) if self._zero(v)] if begins is not None else []
                    known = starts.is_float32(kernel, begins, name) if begins is not None and zeros else None
                    if known:
                        lost.append(name)
                        edits |= {v: cst.BinaryOperation(v, cst.Subtract(), edit.expression(starts.zero(self.source)))
                                  for v in zeros}
                    elif known is not None:
                        self.report(loop, f"`{name}` begins with zeros, and the loop reads it before a product is "
                                    "added: Ascend's compiler may lose the product. It is not known to be float32")
                if lost:
                    edits[loop] = starts.with_comment(loop, COMMENT)
                    self.together(edits, _told(lost), at=loop)

    def _zero(self, value: cst.BaseExpression) -> bool:
        """`tl.zeros(...)`, `tl.zeros_like(...)`, `tl.full(shape, 0)`"""
        if not isinstance(value, cst.Call):
            return False
        if calls(self.source, value, "full"):
            filled = next((a.value for i, a in enumerate(value.args)
                           if (a.keyword.value == "value" if a.keyword else i == 1)), None)
            return isinstance(filled, (cst.Integer, cst.Float)) and filled.evaluated_value == 0
        return calls(self.source, value, "zeros") or calls(self.source, value, "zeros_like")

    def _loses(self, kernel: Kernel, events: list[starts.Event], name: str) -> bool:
        """Whether a loop sums products, does nothing else with the sum for certain, and reads it on the way."""
        adds: dict[int, starts.Event] = {}
        changes, reads = [], []
        for i, event in enumerate(events):
            if name not in event.names or not starts.mentions(event.node, name):
                continue
            if starts.changed(event.node) == name:
                used = self._adds(kernel, event.node, name)
                if used is None:
                    changes.append(event)
                else:
                    adds[i] = event
                if used:
                    reads.append(i)
            elif isinstance(event.node, (cst.Assign, cst.AnnAssign)) and any(
                    n == name for n, _, _ in bindings(event.node)):
                return False
            else:
                reads.append(i)
        # a change that the compiler sees whenever it sees a product that is added
        if not adds or any(all(change.flags <= add.flags for add in adds.values()) for change in changes):
            return False
        return any(any(add.inner for add in adds.values()) or read <= max(adds) for read in reads)

    def _adds(self, kernel: Kernel, node: cst.CSTNode, name: str) -> bool | None:
        """Of a statement that adds one product to the sum, whether a factor is the sum; None of other statements."""
        if isinstance(node, cst.AugAssign):
            product = self._product(kernel, node.value) if isinstance(node.operator, cst.AddAssign) else None
            return None if product is None else bool(starts.mentions(node.value, name))
        assert isinstance(node, cst.Assign)
        value = node.value
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            for own, other in ((value.left, value.right), (value.right, value.left)):
                if isinstance(own, cst.Name) and own.value == name and self._product(kernel, other) is not None:
                    return bool(starts.mentions(other, name))
        elif isinstance(value, cst.Call) and calls(self.source, value, "dot"):
            added = without_casts(self.source, accumulator(value))
            if isinstance(added, cst.Name) and added.value == name:
                return starts.mentions(value, name) > 1
        return None

    def _product(self, kernel: Kernel, value: cst.BaseExpression) -> cst.Call | None:
        """`tl.dot(a, b)`, through a cast, or a name that is nothing else and read nowhere else."""
        if isinstance(value, cst.Name):
            made = [v for n, _, v in bindings(kernel.node.body) if n == value.value]
            if len(made) != 1 or made[0] is None or starts.mentions(kernel.node.body, value.value) != 2:
                return None
            value = made[0]
        while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "to":
            value = value.func.value
        return value if isinstance(value, cst.Call) and calls(self.source, value, "dot") else None


def _told(names: list[str]) -> str:
    several = ", ".join(f"`{name}`" for name in names)
    begin, read = ("begins", "it") if len(names) == 1 else ("begin", "them")
    return (f"{several} {begin} with zeros, and the loop reads {read} before a product is added: from zeros that it "
            "knows, Ascend's compiler sums in L0C, and what the loop reads was never written")
