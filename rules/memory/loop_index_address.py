"""ASC218 loop-index-address."""
from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from migrate.analysis.control import RANGES, bindings, constness, is_arithmetic, kernel_of
from migrate.analysis.kernels import Kernel
from migrate.analysis.liveness import read_after, reads_first
from migrate.analysis.pointers import Pointers
from migrate.analysis.tiles import calls, tiles
from migrate.edit import code, detached, is_atom, parenthesised, statement, terms
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.source import Source
from migrate.tree import find

HINTS = frozenset({"num_stages", "loop_unroll_factor", "disallow_acc_multi_buffer", "flatten", "warp_specialize"})


@dataclass(frozen=True)
class Advance:
    """What one round adds to a pointer, each step with its sign, and the constants under which it does."""

    name: str
    steps: tuple[tuple[str, cst.BaseExpression], ...]
    guard: tuple[str, ...]


class NoClosedForm(Exception):
    """Why not, as the end of a sentence."""


class LoopIndexAddress(Rule):
    """Work out where a pointer stands after a loop that advances it, from the number of rounds.

    ## Why
    triton-ascend's adapter carries pointers round a loop as offsets. It does so for a scalar pointer, for a tile of
    them, for any step. But where a pointer that the loop has advanced is read behind the loop, it mostly has no value
    for it: `failed to apply Conversion Patterns`, `operand #0 does not dominate this use`, or shapes that differ. Of
    135 small loops (a scalar pointer, a tile of pointers, or a tile made from a scalar pointer; loaded from, stored to,
    or neither; alone, beside a carried tile, beside a second pointer; with masks and without) 46 fail, all among the 90
    that read the pointer after the loop; inside another loop, 9 of 270. Which of them fail follows no simple law, so
    all that read it are written anew.

    After the loop the pointer is where it stood before, and as many steps further as the loop has rounds:

        rounds = tl.cast(tl.maximum(n - 1, 0), tl.int64)
        out_start = out
        for c in range(n - 1):
            ...                     # as it was
            out -= step
        out = out_start - rounds * step

    The loop itself stays as it is, and goes on carrying the pointer. The product is 64 bits wide, as the additions to
    the pointer were: in 32 bits it could wrap where they did not. It is a scalar, once behind the loop. A range that is
    empty has no rounds.

    ## What it leaves alone
    * pointers that are not read after the loop, or get a new value first. They compile, as tiles of a product do.
    * block pointers, which compile, and `tl.static_range`, which is no loop on the device.

    Reported instead, where the pointer is read after the loop:
    * a `while`, a loop that may be left early, a `range` that is more than arithmetic or whose step may be negative (a
      step that is no number has to be the width of a `tl.arange`, or a value on the device);
    * a pointer that gets its value in another way than by `+=`, `-=` or `p = p + step`, under a condition of the
      device, or in a loop inside the loop;
    * a step that changes in the loop, that reads memory, or that is a tile.

    And wherever it is read: a tile of pointers that a loop gives the value of another one (`a, b = b, a`). It crashes
    the adapter; carry an offset, and add it to one pointer.
    """

    id = "ASC218"
    name = "loop-index-address"
    summary = "a pointer read after the loop that advances it is computed from the number of rounds"
    safety = Safety.SAFE
    triggers = ("jit",)
    references = (
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "triton-adapter-opt refuses 46 of 135 small loops that advance a pointer, all among the 90 that read it "
            "after the loop, and 9 of 270 inside another loop; written anew all 405 compile "
            "(tests/vnpu/test_loop_pointers.py)", "compiled"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "399 of what is made of the 405 run right on the virtual NPU, with no finding; of 6, whose pointer nothing "
            "uses, it says before and after that bytes are read which another buffer was written to since", "ran"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "triton-adapter-opt dies (signal 6) of `xs = ys` for tiles of pointers carried round a loop", "compiled"),
    )
    examples = (
        Example("down the chunks, and what is left for the first one",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def down(x, y, sums, chunks, dim, SUMS: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    xs = x + (chunks - 1) * dim + at
                    y += (chunks - 1) * dim
                    if SUMS:
                        sums += chunks - 1
                    state = tl.zeros((BLOCK,), dtype=tl.float32)

                    # all but the first
                    for c in range(chunks - 1):
                        state = 0.5 * state + tl.load(xs, mask=at < dim, other=0.0)
                        tl.store(y + at, state, mask=at < dim)
                        xs -= dim
                        y -= dim
                        if SUMS:
                            tl.store(sums, tl.sum(state))
                            sums -= 1
                    tl.store(y + at, tl.load(xs, mask=at < dim, other=0.0), mask=at < dim)
                    if SUMS:
                        tl.store(sums, 0.0)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def down(x, y, sums, chunks, dim, SUMS: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    xs = x + (chunks - 1) * dim + at
                    y += (chunks - 1) * dim
                    if SUMS:
                        sums += chunks - 1
                    state = tl.zeros((BLOCK,), dtype=tl.float32)

                    rounds = tl.cast(tl.maximum(chunks - 1, 0), tl.int64)
                    xs_start = xs
                    y_start = y
                    if SUMS:
                        sums_start = sums
                    # all but the first
                    for c in range(chunks - 1):
                        state = 0.5 * state + tl.load(xs, mask=at < dim, other=0.0)
                        tl.store(y + at, state, mask=at < dim)
                        xs -= dim
                        y -= dim
                        if SUMS:
                            tl.store(sums, tl.sum(state))
                            sums -= 1
                    xs = xs_start - rounds * dim
                    y = y_start - rounds * dim
                    if SUMS:
                        sums = sums_start - rounds
                    tl.store(y + at, tl.load(xs, mask=at < dim, other=0.0), mask=at < dim)
                    if SUMS:
                        tl.store(sums, 0.0)
                """,
            run="exact",
            inputs={"x": "float32[5, 13]", "y": "float32[5, 13]", "sums": "float32[5]", "chunks": 5, "dim": 13,
                    "SUMS": True, "BLOCK": 16}),
        Example("one loop goes on where another one stopped; a range with a start and a step, two steps in a round",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill(x, y, first, middle, n, row, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    ys = y + at
                    for i in range(first, middle, BLOCK):
                        tl.store(ys, tl.load(x + i + at))
                        ys = ys + BLOCK
                        tl.store(ys, tl.load(x + i + at) * 2)
                        ys += row - BLOCK
                    for i in range(middle, n, BLOCK):
                        tl.store(ys, tl.zeros((BLOCK,), dtype=tl.float32))
                        ys += row
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill(x, y, first, middle, n, row, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    ys = y + at
                    rounds = tl.cast(tl.maximum(tl.cdiv(middle - first, BLOCK), 0), tl.int64)
                    ys_start = ys
                    for i in range(first, middle, BLOCK):
                        tl.store(ys, tl.load(x + i + at))
                        ys = ys + BLOCK
                        tl.store(ys, tl.load(x + i + at) * 2)
                        ys += row - BLOCK
                    ys = ys_start + rounds * BLOCK + rounds * (row - BLOCK)
                    for i in range(middle, n, BLOCK):
                        tl.store(ys, tl.zeros((BLOCK,), dtype=tl.float32))
                        ys += row
                """,
            run="exact",
            inputs={"x": "float32[160]", "y": "float32[8, 40]", "first": 5, "middle": 70, "n": 100, "row": 40,
                    "BLOCK": 16}),
        Example("leaves alone what is not read after the loop, or gets a new value first, and block pointers",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def product(a, b, c, rows, k, row, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    cs = c + at[:, None] * BLOCK + at[None, :]
                    for r in range(rows):
                        acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
                        block = tl.make_block_ptr(a, (BLOCK, k), (k, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
                        bs = b + at[:, None] * BLOCK + at[None, :]
                        for i in range(0, k, BLOCK):
                            acc += tl.dot(tl.load(block), tl.load(bs))
                            block = tl.advance(block, (0, BLOCK))
                            bs += BLOCK * BLOCK
                        tl.store(cs, acc)
                        cs += row
                    cs = c + rows * row + at[:, None] * BLOCK + at[None, :]
                    tl.store(cs, tl.zeros((BLOCK, BLOCK), dtype=tl.float32))
                """,
            after=SAME),
        Example("reports a pointer that a `while` advances, and one that is advanced now and then",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def pack(x, y, keep, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    xs = x + at
                    ys = y + at
                    i = 0
                    while i < n:
                        tl.store(ys, tl.load(xs))
                        ys += BLOCK
                        i += 1
                    tl.store(ys, tl.load(xs))
                    for j in range(n):
                        tl.store(y + j, 1.0)
                        if tl.load(keep + j) > 0:
                            xs += BLOCK
                    tl.store(y + at, tl.load(xs))
                """,
            after=SAME, reports=2),
        Example("reports tiles of pointers that change places, read later or not",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def turns(x, y, z, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    one = x + at
                    two = y + at
                    for i in range(n):
                        tl.store(z + i * BLOCK + at, tl.load(one))
                        kept = one
                        one = two
                        two = kept
                """,
            after=SAME, reports=2),
    )

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.names: dict[Kernel, set[str]] = {}         # those taken, with what this pass adds

    def visit_For(self, node: cst.For) -> None:
        self._loop(node)

    def visit_While(self, node: cst.While) -> None:
        self._loop(node)

    def _loop(self, loop: cst.For | cst.While) -> None:
        kernel = kernel_of(self.source, loop)
        if kernel is None or self._unrolled(loop):
            return
        found, rounds = [], ""
        for name, nodes in self._advanced(kernel, loop).items():
            try:
                advance = self._advance(kernel, loop, name, nodes)
                if not read_after(self.source, loop, name, advance.guard):
                    continue
                rounds = self._rounds(kernel, loop)
                found.append(advance)
            except NoClosedForm as why:
                if read_after(self.source, loop, name):
                    self.report(loop, f"`{name}` is read after the loop that advances it, which the adapter mostly "
                                      f"refuses, and {why}: carry an offset, and add it to the pointer that stays")
        if found:
            self._rewrite(kernel, loop, found, rounds)

    def _unrolled(self, loop: cst.CSTNode) -> bool:
        return (isinstance(loop, cst.For) and isinstance(loop.iter, cst.Call)
                and calls(self.source, loop.iter, "static_range"))

    # What a loop does to its pointers

    def _advanced(self, kernel: Kernel, loop: cst.For | cst.While) -> dict[str, list[cst.CSTNode]]:
        """Pointers that come into the loop with a value and get others there, with the statements that give them."""
        pointers = self._pointers(kernel)
        first = self.source.tree.span(loop)[0]
        before = set(kernel.params) | {name for name, node, _ in bindings(kernel.node.body)
                                       if self.source.tree.span(node)[0] < first}
        found: dict[str, list[cst.CSTNode]] = {}
        for name, node, value in bindings(loop.body):
            if name in before and not isinstance(node, cst.For) and pointers.is_pointer(cst.Name(name)) and not any(
                    self._is_block(v) for v in pointers.values.get(name, ())):
                found.setdefault(name, []).append(node)
                self._rotated(kernel, loop, node, name, value)
        return found

    def _pointers(self, kernel: Kernel) -> Pointers:
        memo = self.source.tree.unit(kernel.node).memo
        key = ("pointers", kernel.node)
        if key not in memo:
            memo[key] = Pointers(kernel)
        found: Pointers = memo[key]
        return found

    def _is_block(self, value: cst.BaseExpression) -> bool:
        return any(calls(self.source, call, name) for call in find(value, cst.Call)
                   for name in ("make_block_ptr", "advance"))

    def _rotated(self, kernel: Kernel, loop: cst.For | cst.While, node: cst.CSTNode, name: str,
                 value: cst.BaseExpression | None) -> None:
        """Tiles of pointers that take each other's place crash the adapter, whether they are read later or not."""
        if isinstance(value, cst.Name) and tiles(kernel).of(value).shape and reads_first(
                loop.body.body, name) and self._pointers(kernel).is_pointer(value):
            self.report(node, f"`{name}`, a tile of pointers that the loop carries, becomes another one: this crashes "
                              "the adapter; carry an offset, and add it to one pointer")

    def _advance(self, kernel: Kernel, loop: cst.For | cst.While, name: str, nodes: list[cst.CSTNode]) -> Advance:
        changed = {n for n, _, _ in bindings(loop)}
        steps: list[tuple[str, cst.BaseExpression]] = []
        guards = set()
        for node in nodes:
            guards.add(self._guard(kernel, loop, node))
            for sign, step in _steps(node, name):
                if changed & {n.value for n in find(step, cst.Name)}:
                    raise NoClosedForm("its step changes in the loop")
                if not is_arithmetic(self.source, step):
                    raise NoClosedForm("its step is more than arithmetic")
                if tiles(kernel).of(step).shape:
                    raise NoClosedForm("its step is a tile")
                steps.append((sign, step))
        if len(guards) > 1:
            raise NoClosedForm("it is advanced under different conditions")
        return Advance(name, tuple(steps), guards.pop())

    def _guard(self, kernel: Kernel, loop: cst.CSTNode, node: cst.CSTNode) -> tuple[str, ...]:
        """The tests around a statement of the loop, outermost first; all are constants."""
        constants = constness(kernel)
        guard: list[str] = []
        child = node
        for up in self.source.tree.ancestors(node):
            if up is loop:
                break
            if isinstance(up, (cst.For, cst.While)):
                raise NoClosedForm("it is advanced in a loop inside the loop")
            if isinstance(up, cst.Else) or (isinstance(up, cst.If) and (
                    child is not up.body or not constants.folds(up.test))):
                raise NoClosedForm("it is advanced under a condition")
            if isinstance(up, cst.If):
                if {n for n, _, _ in bindings(loop)} & {n.value for n in find(up.test, cst.Name)}:
                    raise NoClosedForm("the condition that it is advanced under is made in the loop")
                guard.insert(0, code(up.test))
            child = up
        return tuple(guard)

    def _rounds(self, kernel: Kernel, loop: cst.For | cst.While) -> str:
        """How many rounds a loop over a range has."""
        if not isinstance(loop, cst.For):
            raise NoClosedForm("the rounds of a `while` are not known")
        if loop.orelse is not None or any(
                isinstance(e, cst.Return) or self._loop_of(e) is loop
                for e in find(loop.body, cst.Break, cst.Continue, cst.Return)):
            raise NoClosedForm("the loop may be left early")
        call = loop.iter
        if not isinstance(call, cst.Call) or self.source.qualified(call.func) not in RANGES:
            raise NoClosedForm("the loop goes over no range")
        args = [a.value for a in call.args if a.keyword is None]
        if not 1 <= len(args) <= 3 or any(a.star for a in call.args) or any(
                a.keyword is not None and a.keyword.value not in HINTS for a in call.args):
            raise NoClosedForm("its range is not understood")
        if not all(is_arithmetic(self.source, a) for a in args):
            raise NoClosedForm("its range is more than arithmetic")
        start, stop = (args[0], args[1]) if len(args) > 1 else (cst.Integer("0"), args[0])
        step = code(args[2]) if len(args) > 2 else "1"
        if step.startswith("-"):
            start, stop, step = stop, start, step[1:]
        if not self._positive(kernel, step):
            raise NoClosedForm("its range may count down")
        tl = self.source.language
        length = code(stop) if code(start) == "0" else f"{_atom(stop)} - {_atom(start)}"
        return f"{tl}.maximum({length if step == '1' else f'{tl}.cdiv({length}, {step})'}, 0)"

    def _positive(self, kernel: Kernel, step: str) -> bool:
        """A literal, the width of a tile, or a value on the device, which triton takes for positive."""
        if step.isdecimal():
            return int(step) > 0
        param = kernel.params.get(step)
        if param is not None and not param.constexpr and step not in kernel.rebound:
            return True
        return any(len(call.args) == 2 and code(call.args[1].value) == step and code(call.args[0].value) == "0"
                   for call in find(kernel.node.body, cst.Call) if calls(self.source, call, "arange"))

    def _loop_of(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return next((a for a in self.source.tree.ancestors(node) if isinstance(a, (cst.For, cst.While))), None)

    # The rewrite

    def _rewrite(self, kernel: Kernel, loop: cst.For | cst.While, found: list[Advance], rounds: str) -> None:
        used = self.names.setdefault(kernel, {n.value for n in find(kernel.node, cst.Name)})
        tl = self.source.language
        count = _fresh("rounds", used)
        before = [f"{count} = {tl}.cast({rounds}, {tl}.int64)"]
        after = []
        for guard in dict.fromkeys(a.guard for a in found):
            saved, moved = [], []
            for advance in (a for a in found if a.guard == guard):
                start = _fresh(f"{advance.name}_start", used)
                saved.append(f"{start} = {advance.name}")
                moved.append(f"{advance.name} = {start}" + "".join(
                    f" {sign} {count}" + ("" if code(step) == "1" else f" * {_atom(step)}")
                    for sign, step in advance.steps))
            before += _under(guard, saved)
            after += _under(guard, moved)
        new = [statement(text, self.source.tree.module) for text in before]
        above = detached(loop.leading_lines) or [e for e in loop.leading_lines if not e.comment]
        rest = [line for line in loop.leading_lines if line not in above]
        new[0] = new[0].with_changes(leading_lines=above)
        names = " and ".join(f"`{a.name}`" for a in found) if len(found) < 3 else f"{len(found)} pointers"
        self.replace(loop, cst.FlattenSentinel([
            *new, loop.with_changes(leading_lines=rest), *(statement(t, self.source.tree.module) for t in after)]),
            f"{names} {'is' if len(found) == 1 else 'are'} read after the loop that advances "
            f"{'it' if len(found) == 1 else 'them'}, which the adapter does not follow: computed from the rounds")


def _steps(node: cst.CSTNode, name: str) -> list[tuple[str, cst.BaseExpression]]:
    """What a statement adds to a pointer."""
    if isinstance(node, cst.AugAssign) and isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign)):
        return [("+" if isinstance(node.operator, cst.AddAssign) else "-", node.value)]
    if isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
        own = [(sign, step) for sign, step in terms(node.value) if code(step) == name]
        rest = [(sign, step) for sign, step in terms(node.value) if code(step) != name]
        if [sign for sign, _ in own] == ["+"] and rest:
            return rest
    raise NoClosedForm("it gets its value in another way")


def _atom(node: cst.BaseExpression) -> str:
    return code(node if is_atom(node) else parenthesised(node))


def _under(guard: tuple[str, ...], lines: list[str]) -> list[str]:
    """Lines, or one `if` of constants with the lines in it."""
    if not guard:
        return lines
    head = "".join("    " * i + f"if {test}:\n" for i, test in enumerate(guard))
    return [head + "\n".join("    " * len(guard) + line for line in lines)]


def _fresh(name: str, used: set[str]) -> str:
    new, n = name, 1
    while new in used:
        n += 1
        new = f"{name}{n}"
    used.add(new)
    return new
