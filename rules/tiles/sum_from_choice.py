"""ASC220 sum-from-choice."""
from __future__ import annotations

import contextlib

import libcst as cst

from migrate import edit
from migrate.analysis.control import bindings, constness, operands
from migrate.analysis.kernels import Kernel
from migrate.analysis.static import Evaluator, NotStatic
from migrate.analysis.tiles import accumulator, calls, without_casts
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import find
from rules.ascend import FACTS
from rules.tiles import _start as starts

COMMENT = "# x - 0 is x, but the compiler must not know what the loop begins with (ASC220)"


class SumFromChoice(Rule):
    """Take a sum out of the hands of the `if` that chose what it begins with, before a loop adds to it.

    ## Why
    Of `total = zeros; if chosen: total = load(...)`, and a loop that adds to `total`, Ascend's compiler plans the sum
    of a round and the term of the next one onto the same bytes where the term is masked, so that twice the last term is
    left. Where the term is not masked, the sum is copied with no barrier before it, and where it is a product, the
    compiler dies. Nothing but the last is said. If the sum is made anew between the `if` and the loop, all is right.

    The rule subtracts `tl.program_id(0) * 0.0` from the sum there. That is zero on every core, and x - 0.0 is x for
    every x, -0.0 as well; no compiler may fold it, as it does not know that the factor is finite. `total + 0.0` does
    not help.

    ## What it leaves alone
    * a choice that the compiler makes (`if FLAG:`, or `if FLAG or run_time:` with a flag that all launches in the file
      give as True), and one that is made by `tl.where`.
    * tiles that the loop changes otherwise: twice a round (`x *= decay; x += term`), by a function (`tl.maximum`), or
      by an expression of more than one operation on the tile.
    * `while` and `tl.static_range`, and sums in a loop inside the loop.
    * sums that are not known to be float32. Reported.
    """

    id = "ASC220"
    name = "sum-from-choice"
    summary = "a sum in a loop must not begin with what a run-time `if` chose"
    safety = Safety.SAFE
    phase = 3
    triggers = ("if ",)
    references = (
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "Ascend910B2, 32 elements, run on the virtual NPU: `+=`, `-=` and `*=` of a masked term after such a "
            "choice leave what was never written, `+=` of a plain term has two races, and of a product the compiler "
            "dies of signal 11. All are right with a tl.program_id(0) * 0.0 subtracted or added between, with a "
            "multiplier known at run time, and with tl.where as the choice or after it; not with + 0.0, nor where the "
            "zeros before the choice are such as ASC219 makes", "compiled"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "the same: total * 0.5 + term, tl.maximum, tl.where(mask, term, total), while and tl.static_range are "
            "right as they are", "compiled"),
        Ref("https://triton-lang.org/main/python-api/generated/triton.language.program_id.html",
            "on an H200 with triton 3.6.0: sums of masked and plain terms, with -0.0 among them; with the zero "
            "subtracted they have the same bits", "ran"),
    )
    examples = (
        Example("what earlier blocks gave, if there are any",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def sums(x, y, out, rows, chosen, D: tl.constexpr):
                    at = tl.arange(0, D)
                    total = tl.zeros([D], dtype=tl.float32)
                    if chosen > 0:
                        total = tl.load(x + at)
                    for row in range(rows):
                        total += tl.where(at <= row, tl.load(y + row * D + at), 0.0)
                    tl.store(out + at, total)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def sums(x, y, out, rows, chosen, D: tl.constexpr):
                    at = tl.arange(0, D)
                    total = tl.zeros([D], dtype=tl.float32)
                    if chosen > 0:
                        total = tl.load(x + at)
                    # x - 0 is x, but the compiler must not know what the loop begins with (ASC220)
                    total = total - tl.program_id(0) * 0.0
                    for row in range(rows):
                        total += tl.where(at <= row, tl.load(y + row * D + at), 0.0)
                    tl.store(out + at, total)
                """,
            run="exact",
            inputs={"x": "float32[16]", "y": "float32[5, 16]", "out": "float32[16]", "rows": 5, "chosen": 3, "D": 16}),
        Example("a choice of two, and products",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def sums(x, out, chosen, N: tl.constexpr, HALF: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    if chosen == 0:
                        first = tl.zeros([N, N], dtype=tl.float32)
                    else:
                        first = tl.load(out + at).to(tl.float32)
                    found = tl.zeros([N, N], dtype=tl.float32)
                    if HALF:
                        if chosen > 0:
                            for i in range(chosen):
                                found += tl.dot(tl.load(x + i * N * N + at), tl.load(x + at))
                            found *= 0.5

                    for i in range(3):
                        b_x = tl.load(x + i * N * N + at)
                        first = first - b_x
                        found = tl.dot(b_x, b_x, acc=found)
                    tl.store(out + at, first + found)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def sums(x, out, chosen, N: tl.constexpr, HALF: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    if chosen == 0:
                        first = tl.zeros([N, N], dtype=tl.float32)
                    else:
                        first = tl.load(out + at).to(tl.float32)
                    found = tl.zeros([N, N], dtype=tl.float32)
                    if HALF:
                        if chosen > 0:
                            for i in range(chosen):
                                found += tl.dot(tl.load(x + i * N * N + at), tl.load(x + at))
                            found *= 0.5

                    # x - 0 is x, but the compiler must not know what the loop begins with (ASC220)
                    first = first - tl.program_id(0) * 0.0
                    found = found - tl.program_id(0) * 0.0
                    for i in range(3):
                        b_x = tl.load(x + i * N * N + at)
                        first = first - b_x
                        found = tl.dot(b_x, b_x, acc=found)
                    tl.store(out + at, first + found)
                """,
            run="exact",
            inputs={"x": "float32[3, 16, 16]", "out": "float32[16, 16]", "chosen": 2, "N": 16, "HALF": True}),
        Example("leaves choices of the compiler and of tl.where, and what is changed otherwise",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def sums(x, y, out, rows, chosen, D: tl.constexpr, GIVEN: tl.constexpr):
                    at = tl.arange(0, D)
                    given = tl.zeros([D], dtype=tl.float32)
                    if GIVEN:
                        given = tl.load(x + at)
                    where = tl.where(chosen > 0, tl.load(x + at), 0.0)
                    most = tl.zeros([D], dtype=tl.float32)
                    state = tl.zeros([D], dtype=tl.float32)
                    over = tl.zeros([D], dtype=tl.float32)
                    if chosen > 0:
                        most = tl.load(x + at)
                        state = tl.load(x + at)
                        over = tl.load(x + at)
                    over = tl.load(y + at)
                    for row in range(rows):
                        term = tl.where(at <= row, tl.load(y + row * D + at), 0.0)
                        given += term
                        where += term
                        over += term
                        most = tl.maximum(most, term)
                        state *= 0.5
                        state += term
                    tl.store(out + at, given + where + most + state + over)
                """,
            after=SAME),
        Example("reports a sum of another dtype",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def sums(x, y, out, rows, chosen, D: tl.constexpr, DTYPE: tl.constexpr):
                    at = tl.arange(0, D)
                    total = tl.zeros([D], dtype=DTYPE)
                    if chosen > 0:
                        total = tl.load(x + at).to(DTYPE)
                    for row in range(rows):
                        total += tl.load(y + row * D + at).to(DTYPE)
                    tl.store(out + at, total)
                """,
            after=SAME,
            reports=1),
    )

    def finish(self) -> None:
        for kernel in self.source.kernels.values():
            for loop, names in starts.carried(kernel):
                events = starts.events(kernel, loop)
                chosen = []
                for name in names:
                    if not self._sums(events, name):
                        continue
                    begins = starts.start(self.source.tree, loop, name)
                    if begins is None or not any(self._decides(kernel, choice, name) for choice in begins.choices):
                        continue
                    known = starts.is_float32(kernel, begins, name)
                    if known and begins.bound:
                        chosen.append(name)
                    elif known is not None:
                        self.report(loop, f"`{name}` begins with what an `if` chose, and the loop adds to it: Ascend's "
                                    "compiler may lose the sum. It is not known to be float32, or to have a value "
                                    "wherever the loop begins")
                if chosen:
                    self._hide(loop, chosen)

    def _hide(self, loop: cst.For, names: list[str]) -> None:
        lines: list[cst.CSTNode] = [edit.statement(f"{name} = {name} - {starts.zero(self.source)}",
                                                   self.source.tree.module) for name in names]
        blank = next((i for i, line in enumerate(loop.leading_lines) if line.comment), len(loop.leading_lines))
        lines[0] = starts.with_comment(lines[0].with_changes(leading_lines=loop.leading_lines[:blank]), COMMENT)
        new = cst.FlattenSentinel([*lines, loop.with_changes(leading_lines=loop.leading_lines[blank:])])
        several = ", ".join(f"`{name}`" for name in names)
        self.replace(loop, new, f"{several} {'begins' if len(names) == 1 else 'begin'} with what an `if` chose, which "
                     "Ascend's compiler plans onto the term that the loop adds")

    def _decides(self, kernel: Kernel, choice: cst.If, name: str) -> bool:
        """Whether the name depends on a condition that is not known while compiling."""
        constants = constness(kernel)
        return any(not constants.folds(test.test) and not self._holds(kernel, test.test)
                   and any(n == name for n, _, _ in bindings(test)) for test in find(choice, cst.If))

    def _holds(self, kernel: Kernel, test: cst.BaseExpression) -> bool:
        """`FLAG or ...`, with a `tl.constexpr` that every launch in the file gives as True."""
        launches = [launch for launch in self.source.launches if launch.kernel.node is kernel.node]
        for operand in operands(test, cst.Or):
            name = operand.value if isinstance(operand, cst.Name) else ""
            if name not in kernel.params or not kernel.params[name].constexpr or not launches:
                continue
            with contextlib.suppress(NotStatic):
                evaluator = Evaluator(FACTS)
                if all((given := launch.args.get(name)) is not None
                       and evaluator.value(self.source, given.value) is True for launch in launches):
                    return True
        return False

    def _sums(self, events: list[starts.Event], name: str) -> bool:
        """Whether each round adds to, subtracts from or multiplies the value once, and changes it in no other way,
        unless an `if` says so."""
        once = False
        for event in events:
            if name not in event.names or not any(n == name for n, _, _ in bindings(event.node)):
                continue
            certain = not event.conditions
            if event.inner or (certain and (once or not self._step(event.node, name))):
                return False
            once = once or certain
        return once

    def _step(self, node: cst.CSTNode, name: str) -> bool:
        if starts.changed(node) != name:
            return False
        if isinstance(node, cst.AugAssign):
            return isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign)) and (
                not starts.mentions(node.value, name))
        assert isinstance(node, cst.Assign)
        value = node.value
        if isinstance(value, cst.BinaryOperation):
            own = [isinstance(side, cst.Name) and side.value == name for side in (value.left, value.right)]
            return isinstance(value.operator, (cst.Add, cst.Subtract, cst.Multiply)) and any(own) and (
                starts.mentions(value, name) == 1)
        if isinstance(value, cst.Call) and calls(self.source, value, "dot"):
            added = without_casts(self.source, accumulator(value))
            return isinstance(added, cst.Name) and added.value == name and starts.mentions(value, name) == 1
        return False
