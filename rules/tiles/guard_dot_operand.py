"""ASC214 guard-dot-operand."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from migrate import edit
from migrate.analysis.control import bindings, kernel_of
from migrate.analysis.kernels import Kernel
from migrate.analysis.tiles import FLOATS, calls, tiles, without_casts
from migrate.asked import Asked
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find


@dataclass(frozen=True)
class Use:
    """A tile as the left operand of a product, which is read again afterwards."""

    product: cst.Call
    read: cst.Name
    line: cst.SimpleStatementLine
    block: cst.CSTNode

    @property
    def name(self) -> str:
        return self.read.value


class GuardDotOperand(Rule):
    """Give a product a copy of its left operand where that tile is read again afterwards.

    ## Why
    On Ascend, `tl.dot(x, y)` has been reported to overwrite `x`: kernels with two products of one tile drifted, with
    no error. Nothing in the compiled code shows when, and not every port guards against it, so this rule acts only
    when asked (`migrate port --copy-operands`). A tile is copied by `x_copy = x + 0.0` before the product, which takes
    the copy; whatever reads the tile later finds it untouched. The copy costs vector work and, for a tile that came
    straight from memory, a way through the Unified Buffer.

    `x + 0.0` is `x` for every value but -0.0, which becomes 0.0. A product is the same for both, unless its
    accumulator is -0.0 as well; then its zero has the other sign.

    Several products of one tile get a chain of copies, all taken before the first of them, since the compiler makes
    one value of two equal expressions. What counts as read again is any read that may follow: in the same statement,
    after it, in either branch of an `if`, in the next round of a loop, under another name.

    ## What it leaves alone
    * everything, unless copies are asked for.
    * a left operand that is made for the product (`tl.dot(x * scale, y)`): nothing else reads it. A cast or a transpose
      counts as the tile itself, since the compiler may fold it into the product.
    * a tile that a loop does not change and whose product stands in the loop. Reported: the compiler moves the copy out
      of the loop, where it protects the first round alone. Load the tile again in each round.
    * products of one tile in different blocks, where it would make one value of the copies as well. Reported.
    * tiles of integers, for which `x + 0.0` is another dtype, arguments of helpers, and products in a condition.
      Reported. Elements of whatever dtype the caller hands in count as floats.
    """

    id = "ASC214"
    name = "guard-dot-operand"
    summary = "on request, a product's left operand that is read again is copied for it"
    safety = Safety.SAFE
    phase = 3
    option = "--copy-operands"
    triggers = ("dot(",)
    references = (
        Ref("https://github.com/fla-org/flash-linear-attention/pull/1113",
            "results drift after tl.dot; a copy of the left operand, taken before it, mends that", "issue"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "in the TTIR, two copies `x + 0.0` of one tile are one value, and one in a loop that does not change x "
            "stands before the loop; a copy of a copy stays", "compiled"),
    )
    examples = (
        Example("two products of one tile, and a third use",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(q, h, k, out, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_q = tl.load(q + at).to(tl.float32)
                    # what the state gives
                    b_o = tl.dot(b_q, tl.load(h + at))
                    b_a = tl.dot(b_q, tl.load(k + at))
                    tl.store(out + at, b_o + b_a * b_q)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(q, h, k, out, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_q = tl.load(q + at).to(tl.float32)
                    b_q_copy = b_q + 0.0
                    b_q_copy2 = b_q_copy + 0.0
                    # what the state gives
                    b_o = tl.dot(b_q_copy, tl.load(h + at))
                    b_a = tl.dot(b_q_copy2, tl.load(k + at))
                    tl.store(out + at, b_o + b_a * b_q)
                """,
            run="exact",
            inputs={"q": "float32[16, 16]", "h": "float32[16, 16]", "k": "float32[16, 16]", "out": "float32[16, 16]",
                    "N": 16},
            asked=Asked(copy_operands=True)),
        Example("the last product of a tile needs no copy; one that a branch or the same statement reads does",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, steps, TWICE: tl.constexpr, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_y = tl.load(y + at)
                    for i in range(steps):
                        b_x = tl.load(x + i * N * N + at)
                        b_a = tl.dot(tl.trans(b_x), b_y)
                        if TWICE:
                            b_a += tl.dot(b_x, b_y)
                        b_a = b_a + tl.dot(b_a, b_y)
                        tl.store(out + i * N * N + at, b_a)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, steps, TWICE: tl.constexpr, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_y = tl.load(y + at)
                    for i in range(steps):
                        b_x = tl.load(x + i * N * N + at)
                        b_x_copy = b_x + 0.0
                        b_a = tl.dot(tl.trans(b_x_copy), b_y)
                        if TWICE:
                            b_a += tl.dot(b_x, b_y)
                        b_a_copy = b_a + 0.0
                        b_a = b_a + tl.dot(b_a_copy, b_y)
                        tl.store(out + i * N * N + at, b_a)
                """,
            run="exact",
            inputs={"x": "float32[3, 16, 16]", "y": "float32[16, 16]", "out": "float32[3, 16, 16]", "steps": 3,
                    "TWICE": True, "N": 16},
            asked=Asked(copy_operands=True)),
        Example("round a loop, and under another name",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, steps, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_s = tl.load(x + at).to(tl.float32)
                    first = b_s
                    for i in range(steps):
                        b_v = tl.dot(b_s, tl.load(y + i * N * N + at))
                        b_s = b_s * 0.5 + b_v
                    tl.store(out + at, b_s + first)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, steps, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_s = tl.load(x + at).to(tl.float32)
                    first = b_s
                    for i in range(steps):
                        b_s_copy = b_s + 0.0
                        b_v = tl.dot(b_s_copy, tl.load(y + i * N * N + at))
                        b_s = b_s * 0.5 + b_v
                    tl.store(out + at, b_s + first)
                """,
            run="exact",
            inputs={"x": "float32[16, 16]", "y": "float32[3, 16, 16]", "out": "float32[16, 16]", "steps": 3, "N": 16},
            asked=Asked(copy_operands=True)),
        Example("leaves tiles that nothing reads again, and operands made for the product",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, steps, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_y = tl.load(y + at)
                    for i in range(steps):
                        b_x = tl.load(x + i * N * N + at)
                        b_v = tl.dot(b_x * 2.0, b_y)
                        b_w = tl.dot(b_x, b_y)
                        b_x = tl.dot(b_v + b_w, b_y)
                        tl.store(out + i * N * N + at, b_x)
                """,
            after=SAME,
            asked=Asked(copy_operands=True)),
        Example("leaves everything unless copies are asked for",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_x = tl.load(x + at)
                    tl.store(out + at, tl.dot(b_x, tl.load(y + at)) + b_x)
                """,
            after=SAME),
        Example("reports what a copy would not help, or would change",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def square(x):
                    return tl.dot(x, x)


                @triton.jit
                def kernel(x, y, out, n, steps, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    b_x = tl.load(x + at).to(tl.float32)
                    b_n = tl.load(n + at).to(tl.int8)
                    tl.store(n + at, tl.dot(b_n, b_n))
                    for i in range(steps):
                        b_y = tl.load(y + i * N * N + at)
                        b_s = square(b_y) + tl.dot(b_x, b_y)
                        tl.store(out + i * N * N + at, b_s)
                """,
            after=SAME,
            reports=3,
            asked=Asked(copy_operands=True)),
    )

    def finish(self) -> None:
        if not self.source.asked.copy_operands:
            return
        self._given: dict[cst.CSTNode, set[str]] = {}       # names of copies, by kernel
        uses: dict[tuple[cst.CSTNode, str], list[Use]] = {}
        for product in self.source.tree.all(cst.Call):
            kernel = kernel_of(self.source, product) if calls(self.source, product, "dot") else None
            use = self._use(kernel, product) if kernel is not None else None
            if kernel is not None and use is not None:
                uses.setdefault((kernel.node, use.name), []).append(use)
        for (function, _), found in uses.items():
            kernel = kernel_of(self.source, found[0].product)
            assert kernel is not None and kernel.node is function
            for group in self._groups(kernel, found):
                self._guard(kernel, group)

    def _use(self, kernel: Kernel, product: cst.Call) -> Use | None:
        """The left operand, where it is a tile that may be read again; what cannot be copied is reported."""
        read = self._tile(product)
        if read is None:
            return None
        name, line = read.value, self.source.tree.statement(product)
        if not isinstance(line, cst.SimpleStatementLine):
            self.report(product, f"`{name}` is the left operand of a product in a condition: take the product first")
            return None
        if name not in kernel.params and not self._read_again(line, read, self._aliases(kernel, name)):
            return None
        dtype = tiles(kernel).of(read).dtype
        if name in kernel.params:
            why = "a helper's argument, which its callers may read again: copy it there, one copy for each call"
        elif not (dtype in FLOATS or dtype.startswith(("elem:", "dtype:"))):
            why = f"read again, and it is not known to be a tile of floats ({dtype or 'unknown dtype'})"
        elif _unchanged_in_loop(self.source.tree.ancestors(line), name):
            why = ("read again in the next round, unchanged: a copy would be taken out of the loop by the compiler; "
                   "load the tile again in each round")
        else:
            block = self.source.tree.parent(line)
            assert block is not None
            return Use(product, read, line, block)
        self.report(product, f"`{name}`, the left operand of this product, is {why}")
        return None

    def _tile(self, product: cst.Call) -> cst.Name | None:
        for i, arg in enumerate(product.args):
            if arg.star:
                return None
            if arg.keyword.value == "input" if arg.keyword else i == 0:
                bare = without_casts(self.source, arg.value)
                return bare if isinstance(bare, cst.Name) else None
        return None

    def _groups(self, kernel: Kernel, uses: list[Use]) -> list[list[Use]]:
        """The uses of a name, in groups that take one value in one block; what cannot be told apart is reported."""
        at = {node: i for i, node in enumerate(find(kernel.node, *STATEMENTS))}
        changes = [at[self.source.tree.statement(node)] for name, node, _ in bindings(kernel.node.body)
                   if name == uses[0].name]
        groups: list[list[Use]] = []
        for use in uses:
            same = [g for g in groups if not any(at[g[0].line] <= i < at[use.line] for i in changes)]
            mine = next((g for g in same if g[0].block is use.block), None)
            around = set(self.source.tree.ancestors(use.line))
            if mine is not None:
                mine.append(use)
            elif any(g[0].block in around for g in same):
                self.report(use.product, f"`{use.name}`, the left operand of this product, is read again, and is that "
                            "of a product before it in an outer block, too: the compiler would make one value of two "
                            "copies; copy it by hand")
            else:
                groups.append([use])
        return groups

    def _guard(self, kernel: Kernel, group: list[Use]) -> None:
        taken = {n.value for n in find(kernel.node, cst.Name)} | self._given.setdefault(kernel.node, set())
        name, before = group[0].name, group[0].name
        new: list[cst.CSTNode] = []
        edits: dict[cst.CSTNode, Edit] = {}
        for use in group:
            copy = next(c for c in (f"{name}_copy{i if i > 1 else ''}" for i in range(1, 1000)) if c not in taken)
            taken.add(copy)
            self._given[kernel.node].add(copy)
            new.append(edit.statement(f"{copy} = {before} + 0.0", self.source.tree.module))
            edits[use.read] = use.read.with_changes(value=copy)
            before = copy
        line = group[0].line
        edits[line] = cst.FlattenSentinel([*new, line])
        several = "these products get copies" if len(group) > 1 else "this product gets a copy"
        self.together(edits, f"`{name}` is read again after being a left operand, which a product on Ascend may "
                      f"overwrite: {several}", at=line)

    def _aliases(self, kernel: Kernel, name: str) -> set[str]:
        """The names that may stand for the same tile: those it was given to, or taken from, as it is."""
        pairs = [(made, bare.value) for made, _, value in bindings(kernel.node.body)
                 if value is not None and isinstance(bare := without_casts(self.source, value), cst.Name)]
        names = {name}
        while more := {n for pair in pairs if names & set(pair) for n in pair} - names:
            names |= more
        return names

    # What may be read after a statement

    def _read_again(self, line: cst.SimpleStatementLine, read: cst.Name, names: set[str]) -> bool:
        own, over = _scan(line, names, without=read)
        if own or over:
            return own
        tree = self.source.tree
        node: cst.CSTNode = line
        way: list[cst.CSTNode] = []         # what runs in a round of the loop before the statement
        while True:
            block = tree.parent(node)
            if isinstance(block, cst.IndentedBlock):
                at = list(block.body).index(node)       # type: ignore[arg-type]
                way[:0] = block.body[:at]
                found, over = _scan_all(block.body[at + 1:], names)
                if found or over:
                    return found
            owner = tree.parent(block) if block is not None else None
            if isinstance(owner, cst.Else):
                owner = tree.parent(owner)
                while isinstance(owner, cst.If) and isinstance(up := tree.parent(owner), cst.If) and up.orelse is owner:
                    owner = up
            if owner is None or isinstance(owner, cst.FunctionDef):
                return False
            if isinstance(owner, (cst.For, cst.While)):
                test = isinstance(owner, cst.While) and _reads(owner.test, names)
                found, over = _scan_all(way, names)
                if test or found or not over:       # not over: the product itself reads it, in the next round
                    return True
            node = owner


STATEMENTS = (cst.SimpleStatementLine, cst.For, cst.While, cst.If, cst.With)


def _reads(node: cst.CSTNode, names: set[str], without: cst.Name | None = None) -> bool:
    return any(n.value in names and n is not without for n in find(node, cst.Name))


def _scan_all(statements: Sequence[cst.CSTNode], names: set[str]) -> tuple[bool, bool]:
    """Whether statements read one of the names; whether, not reading it, they give the only name a new value."""
    for statement in statements:
        found, over = _scan(statement, names)
        if found or over:
            return found, over
    return False, False


def _scan(node: cst.CSTNode, names: set[str], without: cst.Name | None = None) -> tuple[bool, bool]:
    if isinstance(node, cst.SimpleStatementLine):
        for small in node.body:
            if not isinstance(small, cst.Assign):
                if _reads(small, names, without):
                    return True, False
                continue
            plain = [t.target for t in small.targets if isinstance(t.target, cst.Name)]
            other = [t.target for t in small.targets if not isinstance(t.target, cst.Name)]
            if _reads(small.value, names, without) or any(
                    _reads(t, names) for t in other if not isinstance(t, (cst.Tuple, cst.List))):
                return True, False
            made = {n.value for t in (*plain, *other) for n in find(t, cst.Name)}
            if names <= made:
                return False, True
        return False, False
    if isinstance(node, cst.If):
        if _reads(node.test, names):
            return True, False
        found, over = _scan_all(node.body.body, names)
        orelse = node.orelse.body.body if isinstance(node.orelse, cst.Else) else [node.orelse] if node.orelse else []
        found_else, over_else = _scan_all(orelse, names)
        return found or found_else, over and over_else
    return _reads(node, names), False


def _unchanged_in_loop(around: Iterable[cst.CSTNode], name: str) -> bool:
    """Whether a loop around a statement gives the name no new value."""
    return any(all(made != name for made, _, _ in bindings(loop.body)) for loop in around
               if isinstance(loop, (cst.For, cst.While)))
