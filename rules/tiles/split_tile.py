"""ASC212 split-tile."""
from __future__ import annotations

import functools
from collections.abc import Iterable

import libcst as cst

from migrate.analysis.axes import Axes, axes
from migrate.analysis.axis_values import Axis, Length
from migrate.analysis.kernels import Kernel
from migrate.asked import Asked, Literal, Setting
from migrate.edit import code, removed, statement
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.tiles.fit_line import fit
from rules.tiles.parts import PART, CannotSplit, Line, Parts

WIDTH = 120
Problem = tuple[cst.CSTNode, str]


class SplitTile(Rule):
    """Write an axis of a kernel's tiles in parts of 64, where that is asked for: `migrate port FILE --split K`.

    ## Why
    A tile of 128 rows often needs more of the Unified Buffer than a core has, where two tiles of 64 fit:
    `mamba3_siso_bwd_kernel_dqkv` at its model's shape (128, 64, 64) needs 1,970,432 bits (fixed length) and 2,101,504
    (bfloat16, varlen) of 1,572,864. The Ascend ports of Kimi Delta Attention hold their 128-row state in two halves.

    ## What it does
    `--split K` names a length: a `tl.constexpr` parameter, a `tl.constexpr` of the kernel's own, or a number that
    stands in the text (`--split 128`). Every axis of that length is cut. Its value has to be known, from
    `--set K=128` or from a default. Which axes of which values are the same one follows from what the kernel does
    with them: elementwise work, loads, products and loops unite axes (`migrate.analysis.axes`).

    A value with such an axis becomes `b_h1`, `b_h2`, one statement after the other; with two of them it becomes
    `b_a11`, `b_a12`, `b_a21`, `b_a22`. A product or a sum over the axis becomes the sum of two, a maximum that of
    two. Where the second part would read what the first has just assigned, both are assigned at once. Parts that
    nothing reads are left out. 192 gives three parts, 256 four. Everything else stays where it is.

    It runs after the other rules, which make descriptors, strides and switches plain; specialise (ASC211) folds a
    constant that is to be split into the switches that it decides, but leaves its name where it is a length. The
    parameter stays, since addresses need it. Its value is now assumed, and `tl.static_assert` says so.

    Elementwise work gives the same bits. Sums and products over the axis are rounded in another order.

    ## What it leaves alone
    The whole kernel, with a finding at the line that is in the way, if the axis anywhere
    * meets a scan, a sort, a flip, a reshape, a gather, an index of a maximum or a function that is not known;
    * meets a value whose shape is not known, or that has another shape on another path;
    * is as long as something whose value is not known to be the same;
    * is made, summed over or stored inside a helper function (one that works on each element is called for each part);
    * belongs to a statement that stores and may load from there, itself or in a helper. Two parameters are taken not
      to alias; `x[o] = f(x[o])`, element by element at a plain range `o`, is split, too.

    So is a kernel in which the axis is no multiple of 64, or 64 and less.
    """

    id = "ASC212"
    name = "split-tile"
    summary = "an axis that is too long for the core's buffers goes in parts of 64, where that is asked for"
    safety = Safety.REVIEW
    phase = 1                   # the other rules have made pointers and products plain by then
    option = "--split"
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/blob/main/docs/en/migration_guide/migrate_from_gpu.md",
            "tiles that overflow the Unified Buffer have to be made smaller", "doc"),
        Ref("https://github.com/state-spaces/mamba/blob/main/mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py",
            "mamba3_siso_bwd_kernel_dqkv at (128, 64, 64): 1,970,432 bits (fixed length), 2,101,504 (bfloat16, "
            "varlen) of 1,572,864; with --set HEADDIM_QK=128 --split HEADDIM_QK all four cases pass the gate",
            "compiled"),
        Ref("https://github.com/fla-org/flash-linear-attention/blob/main/fla/ops/cp/chunk_delta_h.py",
            "a state of up to 256 rows is held in tiles of 64 rows", "source"),
    )
    examples = (
        Example("the state of a recurrence: two halves, and a product over the axis is a sum of two",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def carry_state(key, value, decay, out, state, T, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr):
                    o_k = tl.arange(0, K)
                    o_v = tl.arange(0, V)
                    # the state stays in registers from chunk to chunk
                    b_h = tl.zeros([K, V], dtype=tl.float32)
                    for i_t in range(0, T, BT):
                        o_t = i_t + tl.arange(0, BT)
                        b_k = tl.load(key + o_t[:, None] * K + o_k[None, :])  # [BT, K]
                        b_v = tl.load(value + o_t[:, None] * V + o_v[None, :])
                        b_v -= tl.dot(b_k, b_h.to(b_k.dtype), input_precision="ieee")
                        b_o = tl.dot(b_k * b_k, b_h, input_precision="ieee")
                        tl.store(out + o_t[:, None] * V + o_v[None, :], b_o)
                        b_h *= tl.exp(tl.load(decay + o_k))[:, None]
                        b_h += tl.dot(tl.trans(b_k), b_v.to(b_k.dtype), input_precision="ieee")
                    tl.store(state + o_k[:, None] * V + o_v[None, :], b_h)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def carry_state(key, value, decay, out, state, T, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr):
                    tl.static_assert(K == 128)
                    o_k1 = tl.arange(0, 64)
                    o_k2 = 64 + tl.arange(0, 64)
                    o_v = tl.arange(0, V)
                    # the state stays in registers from chunk to chunk
                    b_h1 = tl.zeros([64, V], dtype=tl.float32)
                    b_h2 = tl.zeros([64, V], dtype=tl.float32)
                    for i_t in range(0, T, BT):
                        o_t = i_t + tl.arange(0, BT)
                        b_k1 = tl.load(key + o_t[:, None] * K + o_k1[None, :])  # [BT, K]
                        b_k2 = tl.load(key + o_t[:, None] * K + o_k2[None, :])
                        b_v = tl.load(value + o_t[:, None] * V + o_v[None, :])
                        b_v -= tl.dot(b_k1, b_h1.to(b_k1.dtype), input_precision="ieee")
                        b_v -= tl.dot(b_k2, b_h2.to(b_k2.dtype), input_precision="ieee")
                        b_o = tl.dot(b_k1 * b_k1, b_h1, input_precision="ieee")
                        b_o += tl.dot(b_k2 * b_k2, b_h2, input_precision="ieee")
                        tl.store(out + o_t[:, None] * V + o_v[None, :], b_o)
                        b_h1 *= tl.exp(tl.load(decay + o_k1))[:, None]
                        b_h2 *= tl.exp(tl.load(decay + o_k2))[:, None]
                        b_h1 += tl.dot(tl.trans(b_k1), b_v.to(b_k1.dtype), input_precision="ieee")
                        b_h2 += tl.dot(tl.trans(b_k2), b_v.to(b_k2.dtype), input_precision="ieee")
                    tl.store(state + o_k1[:, None] * V + o_v[None, :], b_h1)
                    tl.store(state + o_k2[:, None] * V + o_v[None, :], b_h2)
                """,
            run="close", asked=Asked(settings=(Setting("K", 128),), split=("K",)),
            inputs={"key": "float32[64, 128]", "value": "float32[64, 32]", "decay": "float32[128]",
                    "out": "float32[64, 32]", "state": "float32[128, 32]", "T": 64, "K": 128, "V": 32, "BT": 32}),
        Example("block pointers, a constant of the kernel's own, and a maximum along the axis",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def row_peak(x, y, peak, rows):
                    BK: tl.constexpr = 128
                    p_x = tl.make_block_ptr(x, (rows, BK), (BK, 1), (0, 0), (16, BK), (1, 0))
                    p_y = tl.make_block_ptr(y, (rows, BK), (BK, 1), (0, 0), (16, BK), (1, 0))
                    for _ in range(2):
                        b_x = tl.load(p_x, boundary_check=(0, 1), padding_option="zero")
                        top = tl.max(tl.abs(b_x), axis=1)
                        b_x = b_x * 2.0
                        tl.store(p_y, b_x / (top + 1.0)[:, None], boundary_check=(0, 1))
                        p_x, p_y = tl.advance(p_x, (16, 0)), tl.advance(p_y, (16, 0))
                    tl.store(peak + tl.arange(0, 16), top)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def row_peak(x, y, peak, rows):
                    BK: tl.constexpr = 128
                    p_x1 = tl.make_block_ptr(x, (rows, BK), (BK, 1), (0, 0), (16, 64), (1, 0))
                    p_x2 = tl.make_block_ptr(x, (rows, BK), (BK, 1), (0, 64), (16, 64), (1, 0))
                    p_y1 = tl.make_block_ptr(y, (rows, BK), (BK, 1), (0, 0), (16, 64), (1, 0))
                    p_y2 = tl.make_block_ptr(y, (rows, BK), (BK, 1), (0, 64), (16, 64), (1, 0))
                    for _ in range(2):
                        b_x1 = tl.load(p_x1, boundary_check=(0, 1), padding_option="zero")
                        b_x2 = tl.load(p_x2, boundary_check=(0, 1), padding_option="zero")
                        top = tl.maximum(tl.max(tl.abs(b_x1), axis=1), tl.max(tl.abs(b_x2), axis=1))
                        b_x1 = b_x1 * 2.0
                        b_x2 = b_x2 * 2.0
                        tl.store(p_y1, b_x1 / (top + 1.0)[:, None], boundary_check=(0, 1))
                        tl.store(p_y2, b_x2 / (top + 1.0)[:, None], boundary_check=(0, 1))
                        p_x1, p_y1 = tl.advance(p_x1, (16, 0)), tl.advance(p_y1, (16, 0))
                        p_x2, p_y2 = tl.advance(p_x2, (16, 0)), tl.advance(p_y2, (16, 0))
                    tl.store(peak + tl.arange(0, 16), top)
                """,
            run="exact", asked=Asked(split=("BK",)),
            inputs={"x": "float32[32, 128]", "y": "float32[32, 128]", "peak": "float32[16]", "rows": 32}),
        Example("a matrix with the axis twice goes in four parts; what is read again is assigned at once",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def powers(step, out, N):
                    o_k = tl.arange(0, 128)
                    o_c = tl.arange(0, 16)
                    b_a = tl.load(step + o_k[:, None] * 128 + o_k[None, :]) * 0.1
                    b_a += tl.where(o_k[:, None] == o_k[None, :], 1.0, 0.0)
                    b_m = tl.where(o_k[:, None] == o_c[None, :], 1.0, 0.0)
                    for _ in range(N):
                        b_m = tl.dot(b_a, b_m, input_precision="ieee")
                    tl.store(out + o_k[:, None] * 16 + o_c[None, :], b_m)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def powers(step, out, N):
                    o_k1 = tl.arange(0, 64)
                    o_k2 = 64 + tl.arange(0, 64)
                    o_c = tl.arange(0, 16)
                    b_a11 = tl.load(step + o_k1[:, None] * 128 + o_k1[None, :]) * 0.1
                    b_a12 = tl.load(step + o_k1[:, None] * 128 + o_k2[None, :]) * 0.1
                    b_a21 = tl.load(step + o_k2[:, None] * 128 + o_k1[None, :]) * 0.1
                    b_a22 = tl.load(step + o_k2[:, None] * 128 + o_k2[None, :]) * 0.1
                    b_a11 += tl.where(o_k1[:, None] == o_k1[None, :], 1.0, 0.0)
                    b_a12 += tl.where(o_k1[:, None] == o_k2[None, :], 1.0, 0.0)
                    b_a21 += tl.where(o_k2[:, None] == o_k1[None, :], 1.0, 0.0)
                    b_a22 += tl.where(o_k2[:, None] == o_k2[None, :], 1.0, 0.0)
                    b_m1 = tl.where(o_k1[:, None] == o_c[None, :], 1.0, 0.0)
                    b_m2 = tl.where(o_k2[:, None] == o_c[None, :], 1.0, 0.0)
                    for _ in range(N):
                        b_m1, b_m2 = (
                            tl.dot(b_a11, b_m1, input_precision="ieee") + tl.dot(b_a12, b_m2, input_precision="ieee"),
                            tl.dot(b_a21, b_m1, input_precision="ieee") + tl.dot(b_a22, b_m2, input_precision="ieee"),
                        )
                    tl.store(out + o_k1[:, None] * 16 + o_c[None, :], b_m1)
                    tl.store(out + o_k2[:, None] * 16 + o_c[None, :], b_m2)
                """,
            run="close", asked=Asked(split=("128",)),
            inputs={"step": "float32[128, 128]", "out": "float32[128, 16]", "N": 3}),
        Example("leaves a kernel that scans along the axis, and says where",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def running(x, y, K: tl.constexpr):
                    o_k = tl.arange(0, K)
                    b_x = tl.load(x + o_k)
                    b_x = b_x * 2.0
                    tl.store(y + o_k, tl.cumsum(b_x, axis=0))
                """,
            after=SAME, reports=1, asked=Asked(settings=(Setting("K", 128),), split=("K",))),
        Example("does nothing unless it is asked",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def double(x, y, K: tl.constexpr):
                    o_k = tl.arange(0, K)
                    tl.store(y + o_k, tl.load(x + o_k) * 2)
                """,
            after=SAME, asked=Asked(settings=(Setting("K", 128),))),
    )

    def finish(self) -> None:
        words = self.source.asked.split
        kernels = [k for k in self.source.kernels.values() if not self._is_helper(k)]
        if not words or not kernels:
            return
        named: set[str] = set()
        for kernel in kernels:
            named |= self._kernel(kernel, words)
        for word in words:
            if word not in named:
                self.report(kernels[0].node, f"`--split {word}`: no kernel of this file has an axis of this length"
                            if word.isdigit() else f"`--split {word}`: no kernel of this file knows a constant {word}")

    @functools.cached_property
    def _called(self) -> frozenset[str]:
        """Triton functions that others call."""
        return frozenset(name for kernel in self.source.kernels.values() for call in find(kernel.node.body, cst.Call)
                         if isinstance(call.func, cst.Name) and (name := call.func.value) in self.source.kernels)

    def _is_helper(self, kernel: Kernel) -> bool:
        return kernel.name in self._called or any(r.value for r in find(kernel.node.body, cst.Return))

    def _kernel(self, kernel: Kernel, words: Iterable[str]) -> set[str]:
        """Cuts the axes that are asked for, all or none. Returns the words that mean something here."""
        values = self._values(kernel, words)
        found = axes(kernel, values)
        named: set[str] = set()
        cut: dict[Axis, int] = {}
        problems: list[Problem] = []
        for word in words:
            hits = [axis for axis in found.all() if any(_is(word, length) for length in axis.lengths)]
            if hits or _knows(kernel, word) or (word.isdigit() and _in_parts(found)):
                named.add(word)
            if not hits and not word.isdigit() and _knows(kernel, word) and not _in_parts(found):
                problems.append((kernel.node, f"`--split {word}`: no axis of this kernel is {word} long; "
                                              f"{_lengths(found)}"))
            for axis in hits:
                total = next(length.number.value for length in axis.lengths if _is(word, length))
                trouble = _unfit(word, total)
                if trouble:
                    problems.append((kernel.node, trouble))
                elif isinstance(total, int):
                    cut[axis] = total // PART
        if not problems:
            problems = self._in_the_way(kernel, found, cut)
        if not problems and cut:
            try:
                self._rewrite(kernel, found, cut, values)
            except CannotSplit as stop:
                problems = [(stop.node, f"{', '.join(sorted({_name(a) for a in cut}))} stays whole: {stop.why}")]
        for node, message in dict.fromkeys(problems):
            self.report(node, message)
        return named

    def _values(self, kernel: Kernel, words: Iterable[str]) -> dict[str, Literal]:
        """What is set, and the defaults of what is to be split: the kernel will insist on them."""
        values = dict(self.source.asked.values(kernel.name))
        for word in words:
            default = kernel.params[word].default if word in kernel.params else None
            if word not in values and isinstance(default, cst.Integer):
                values[word] = default.evaluated_value
        return values

    def _in_the_way(self, kernel: Kernel, found: Axes, cut: dict[Axis, int]) -> list[Problem]:
        """The first place that keeps one of these axes whole."""
        blocks = [(b.node, f"{_name(b.axis.root)} stays whole: the axis {b.why}")
                  for b in found.blocks if b.axis.root in cut]
        if not blocks:
            blocks = [(length.node if length.node in self.source.tree else kernel.node,
                       f"{_name(axis)} stays whole: this is not known to be {n * PART}")
                      for axis, n in cut.items() for length in axis.lengths if length.number.value != n * PART]
        return sorted(blocks, key=lambda p: self.source.tree.span(p[0]))[:1]

    def _rewrite(self, kernel: Kernel, found: Axes, cut: dict[Axis, int], values: dict[str, Literal]) -> None:
        """Raises CannotSplit."""
        parts = Parts(kernel, found, cut)
        tests: dict[cst.CSTNode, Edit] = {}
        needed: set[str] = set()
        for node in find(kernel.node.body, cst.If, cst.While, cst.For):
            test = node.iter if isinstance(node, cst.For) else node.test
            new = parts.test(test)
            if new is not test:
                tests[test] = new
        small = {node: lines for node in _statements(kernel.node.body) if (lines := parts.lines(node)) is not None}
        for new in tests.values():
            needed |= {n.value for n in find(new, cst.Name)}
        live = _live(small.values(), needed)
        edits = tests | self._edits(small, live)
        asserts = self._asserts(kernel, cut, values)
        first = _after_docstring(kernel)
        if asserts and first is not None:
            edits[first] = cst.FlattenSentinel([*asserts, *_several(edits.get(first, first))])
        names = [f"`{name}`" for name in parts.separators]
        lengths = ", ".join(dict.fromkeys(f"{_name(a)} in {n} parts of {PART}" for a, n in cut.items()))
        self.together(edits, f"{lengths}: {', '.join(names)}", at=kernel.node)

    def _edits(self, small: dict[cst.BaseSmallStatement, list[Line]], live: set[str]) -> dict[cst.CSTNode, Edit]:
        edits: dict[cst.CSTNode, Edit] = {}
        tree = self.source.tree
        for node, lines in small.items():
            holder = tree.parent(node)
            kept = [line.node for line in lines if line.keep or line.sets & live]
            if not isinstance(holder, cst.SimpleStatementLine):
                edits[node] = cst.FlattenSentinel(kept) if kept else cst.RemoveFromParent()
            elif holder not in edits:
                new: list[cst.BaseSmallStatement] = []
                for one in holder.body:
                    lines = small.get(one, [Line(one)])
                    new += [line.node for line in lines if line.keep or line.sets & live]
                edits[holder] = self._lines(holder, new)
        return edits

    def _lines(self, old: cst.SimpleStatementLine, new: list[cst.BaseSmallStatement]) -> Edit:
        """A line for each statement; the comments stand with the first."""
        if not new:
            return removed(old)
        module = self.source.tree.module
        width = WIDTH + 1 - self.source.tree.span(old.body[0])[1]
        long = any(len(row) > width for row in _text(old).splitlines())
        out: list[cst.SimpleStatementLine] = []
        for small in new:
            line = cst.SimpleStatementLine([small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
            text = _text(line)
            fitted = text if long else fit(text, width, module.default_newline)
            if fitted != text:
                line = cst.ensure_type(statement(fitted, module), cst.SimpleStatementLine)
            out.append(line)
        out[0] = out[0].with_changes(leading_lines=old.leading_lines, trailing_whitespace=old.trailing_whitespace)
        return cst.FlattenSentinel(out)

    def _asserts(self, kernel: Kernel, cut: dict[Axis, int], values: dict[str, Literal]) -> list[cst.CSTNode]:
        """The parts are right for one value of a parameter: whoever passes another must hear of it."""
        params = {p for axis in cut for length in axis.lengths for p in length.number.params}
        said = {code(e.value) for e in find(kernel.node.body, cst.Expr)}
        wanted = [f"{self.source.language}.static_assert({p} == {values[p]!r})" for p in kernel.params if p in params]
        return [statement(text, self.source.tree.module) for text in wanted if text not in said]



def _is(word: str, length: Length) -> bool:
    """Whether a request means this length."""
    if word.isdigit():
        return length.number.value == int(word) and not isinstance(length.number.value, bool)
    return word in length.number.names


def _unfit(word: str, total: Literal) -> str:
    """What is wrong with the length of an axis; "" if nothing is."""
    if total is not None and (not isinstance(total, int) or isinstance(total, bool)):
        return f"`--split {word}`: {total!r} is no integer; a length is one, as in `--set {word}=128`"
    if total is None:
        return f"`--split {word}` needs the value: add `--set {word}=128`"
    if total <= PART:
        return f"{word} is {total}: an axis of up to {PART} is not split"
    return f"{word} is {total}: only a multiple of {PART} is split" if total % PART else ""


def _knows(kernel: Kernel, word: str) -> bool:
    return any(n.value == word for n in find(kernel.node, cst.Name))


def _in_parts(found: Axes) -> bool:
    """Whether some axis is 64 long: the kernel is already written in parts."""
    return any(length.number.value == PART for axis in found.all() for length in axis.lengths)


def _name(axis: Axis) -> str:
    """How long an axis is, in the kernel's own words."""
    names = [min(length.number.names) for length in axis.lengths if length.number.names]
    names += [str(length.number.value) for length in axis.lengths if length.number.value is not None]
    return names[0] if names else "the axis"


def _lengths(found: Axes) -> str:
    names = sorted({_name(axis) for axis in found.all() if not axis.one and any(
        length.number.names or length.number.value is not None for length in axis.lengths)})
    return f"it has {', '.join(names)}" if names else "it has no tiles"


def _statements(body: cst.CSTNode) -> Iterable[cst.BaseSmallStatement]:
    return find(body, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Expr, cst.Return, cst.Assert)


def _live(statements: Iterable[list[Line]], needed: set[str]) -> set[str]:
    """Parts that something reads in the end."""
    lines = [line for lines in statements for line in lines]
    live = needed | {name for line in lines if line.keep for name in line.reads}
    while True:
        more = {name for line in lines if line.sets & live for name in line.reads} - live
        if not more:
            return live
        live |= more


def _after_docstring(kernel: Kernel) -> cst.CSTNode | None:
    body = list(kernel.node.body.body) if isinstance(kernel.node.body, cst.IndentedBlock) else []
    if body and isinstance(body[0], cst.SimpleStatementLine) and kernel.node.get_docstring() is not None:
        body.pop(0)
    return body[0] if body else None


def _several(edit: Edit) -> list[cst.CSTNode]:
    if isinstance(edit, cst.RemovalSentinel):
        return []
    return list(edit) if isinstance(edit, cst.FlattenSentinel) else [edit]


def _text(line: cst.SimpleStatementLine) -> str:
    return code(line.with_changes(leading_lines=[], trailing_whitespace=cst.TrailingWhitespace())).rstrip()

