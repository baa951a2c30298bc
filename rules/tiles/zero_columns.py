"""ASC216 zero-columns."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from migrate import edit
from migrate.analysis.kernels import Kernel
from migrate.analysis.tiles import accumulator, calls, tiles
from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.tiles._ragged import LOOPS, Bound, Ragged

FRACTAL = 16                                    # columns that the cube core computes at once
UNKNOWN = "columns of this product that were not loaded are never computed"
ZERO = "0"                                      # not 0.0, which makes floats of a product of integers


@dataclass(frozen=True)
class Sum:
    """A name to which products are added in a loop (or in one statement), and where it may be masked after that."""

    name: str
    after: cst.CSTNode
    bound: Bound


class ZeroColumns(Rule):
    """Set the columns of a product to zero that were not loaded, where something reads them.

    ## Why
    `tl.dot(x, y)`, with `y` loaded under a mask over its columns (or with a boundary check, or `tl.trans` of a tile
    whose rows are masked), is compiled into a product of the loaded columns. In Triton the others are zero. On Ascend
    those past the last 16 loaded ones are never written: they are what the core's memory held before. A store under
    the same mask does not show it. A sum over the columns, or a second product, does, and a NaN among them stays a NaN
    when it is multiplied by the zeros of a mask. `tl.where` drops it: it takes the product where the column was
    loaded and 0 elsewhere, right behind the product. (0 and not 0.0, so that a product of integers
    stays one.) Of a sum of products in a loop, the sum is masked after the loop, so that it stays where the cube core
    adds. Being a factor of another product counts as being read: rows that hold anything give rows that hold anything.

    That gives the same values, as long as what is multiplied by the zeros of masked columns is finite. The selection
    is vector work of one tile. To make the whole tile of `y` defined (`tl.where(mask, y, 0.0)` before the product)
    costs more: it sends the tile through the vector core and back.

    Loads themselves need no `other=0` or `padding_option="zero"` for a product or a sum: what a mask leaves out is
    filled with zeros in either case.

    ## What it leaves alone
    * products whose unknown columns reach nothing but stores that leave them out, also through casts, arithmetic,
      transposes and sums over rows.
    * those that a `tl.where` drops already. A selection of the lower triangle moves the unknown part to rows past the
      last loaded one.
    * right factors that are computed: `tl.dot(x, y * scale)`. A cast counts as the load, since it may be none.
    * tiles of 16 columns or less, and masks against a tile's own size.
    * a product that is added to a state which the loop carries and reads (`state = state * decay + tl.dot(x, y)`). A
      selection in each round needs room for the mask and the product; mamba's backward kernel, in halves of 64, no
      longer fits the Unified Buffer with it. Such columns are those of a head, which are missing only where its
      dimension is 16 or more short of the tile: 40 of 64. Reported.
    * right factors that are padded with something else than zeros.
    * a product where the mask of the load is no longer to be had (a name in it was bound anew), is not always the
      same, holds a call that may give something else the next time (`tl.load`, an atomic, a helper), is made of very
      many names, or comes from a block pointer that moves; an accumulator (`tl.dot(x, y, acc)`) that is not known to
      begin as zeros, or is read in the loop. Reported.
    """

    id = "ASC216"
    name = "zero-columns"
    summary = "columns of a product that were not loaded are set to zero where something reads them"
    safety = Safety.REVIEW
    phase = 3
    triggers = ("dot(",)
    references = (
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "mma_tile gets the number of columns that were loaded; with tl.where behind the product, kernels that gave "
            "NaN give what Triton's interpreter gives", "compiled"),
    )
    examples = (
        Example("scores that are multiplied by a mask and used again",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(q, k, out, n, B: tl.constexpr, D: tl.constexpr):
                    row, col = tl.arange(0, B), tl.arange(0, D)
                    p_k = tl.make_block_ptr(k, (n, D), (D, 1), (0, 0), (B, D), (1, 0))
                    b_k = tl.load(p_k, boundary_check=(0, 1), padding_option="zero")
                    b_q = tl.load(q + row[:, None] * D + col[None, :], mask=row[:, None] < n, other=0.0)
                    b_s = tl.dot(b_q, tl.trans(b_k))
                    b_s *= tl.where(row[None, :] > row[:, None], 1.0, 0.0)
                    tl.store(out + row[:, None] * D + col[None, :], tl.dot(b_s, b_k), mask=row[:, None] < n)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(q, k, out, n, B: tl.constexpr, D: tl.constexpr):
                    row, col = tl.arange(0, B), tl.arange(0, D)
                    p_k = tl.make_block_ptr(k, (n, D), (D, 1), (0, 0), (B, D), (1, 0))
                    b_k = tl.load(p_k, boundary_check=(0, 1), padding_option="zero")
                    b_q = tl.load(q + row[:, None] * D + col[None, :], mask=row[:, None] < n, other=0.0)
                    b_s = tl.where(tl.arange(0, B)[None, :] < n, tl.dot(b_q, tl.trans(b_k)), 0)
                    b_s *= tl.where(row[None, :] > row[:, None], 1.0, 0.0)
                    tl.store(out + row[:, None] * D + col[None, :], tl.dot(b_s, b_k), mask=row[:, None] < n)
                """,
            run="exact",
            inputs={"q": "float32[10, 16]", "k": "float32[10, 16]", "out": "float32[10, 16]", "n": 10, "B": 32,
                    "D": 16}),
        Example("a sum of products in a loop",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, w, out, K, N, B: tl.constexpr):
                    row, col = tl.arange(0, B), tl.arange(0, B)
                    inside = col < N
                    acc = tl.zeros([B, B], dtype=tl.float32)
                    for k in range(0, K, B):
                        b_x = tl.load(x + row[:, None] * K + (k + col)[None, :], mask=(k + col)[None, :] < K, other=0.0)
                        b_y = tl.load(y + (k + row)[:, None] * N + col[None, :],
                                      mask=((k + row)[:, None] < K) & inside[None, :], other=0.0)
                        acc += tl.dot(b_x, b_y)
                    b_w = tl.load(w + col, mask=inside, other=0.0)
                    tl.store(out + row, tl.sum(acc * b_w[None, :], axis=1))
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, w, out, K, N, B: tl.constexpr):
                    row, col = tl.arange(0, B), tl.arange(0, B)
                    inside = col < N
                    acc = tl.zeros([B, B], dtype=tl.float32)
                    for k in range(0, K, B):
                        b_x = tl.load(x + row[:, None] * K + (k + col)[None, :], mask=(k + col)[None, :] < K, other=0.0)
                        b_y = tl.load(y + (k + row)[:, None] * N + col[None, :],
                                      mask=((k + row)[:, None] < K) & inside[None, :], other=0.0)
                        acc += tl.dot(b_x, b_y)
                    acc = tl.where(inside[None, :], acc, 0)
                    b_w = tl.load(w + col, mask=inside, other=0.0)
                    tl.store(out + row, tl.sum(acc * b_w[None, :], axis=1))
                """,
            run="exact",
            inputs={"x": "float32[32, 40]", "y": "float32[40, 20]", "w": "float32[20]", "out": "float32[32]", "K": 40,
                    "N": 20, "B": 32}),
        Example("leaves products that are stored as they were loaded, masked already, or a lower triangle",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(q, k, v, h, a, out, n, V, B: tl.constexpr, D: tl.constexpr):
                    row, col = tl.arange(0, B), tl.arange(0, D)
                    m_row, m_col = row < n, col < V
                    b_q = tl.load(q + row[:, None] * D + col[None, :], mask=m_row[:, None], other=0.0)
                    b_k = tl.load(k + row[:, None] * D + col[None, :], mask=m_row[:, None], other=0.0)
                    b_v = tl.load(v + row[:, None] * V + col[None, :], mask=m_row[:, None] & m_col[None, :], other=0.0)
                    b_h = tl.load(h + col[:, None] * V + col[None, :], mask=m_col[None, :], other=0.0)
                    b_a = tl.where(row[:, None] >= row[None, :], tl.dot(b_q, tl.trans(b_k)), 0.0)
                    tl.store(a + row[:, None] * B + row[None, :], b_a, mask=m_row[:, None])
                    b_c = tl.where(m_row[None, :], tl.dot(b_k, tl.trans(b_q)), 0.0)
                    b_o = tl.dot(b_q, b_h) + tl.dot(b_c, b_v) * 0.5
                    tl.store(out + row[:, None] * V + col[None, :], b_o, mask=m_row[:, None] & m_col[None, :])
                """,
            after=SAME),
        Example("reports what it cannot mask",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, start, n, steps, B: tl.constexpr):
                    row, col = tl.arange(0, B), tl.arange(0, B)
                    at = row[:, None] * B + col[None, :]
                    acc = tl.load(start + at)
                    p_y = tl.make_block_ptr(y, (B, n), (n, 1), (0, 0), (B, B), (1, 0))
                    for i in range(steps):
                        b_x = tl.load(x + at)
                        b_y = tl.load(y + at, mask=col[None, :] < n, other=0.0)
                        acc = tl.dot(b_x, b_y, acc)
                        b_z = tl.load(p_y, boundary_check=(1,), padding_option="zero")
                        tl.store(out + i * B + row, tl.sum(tl.dot(b_x, b_z), axis=1))
                        p_y = tl.advance(p_y, (0, B))
                    tl.store(out + at, acc)
                """,
            after=SAME,
            reports=2),
    )

    def finish(self) -> None:
        for kernel in self.source.kernels.values():
            if any(calls(self.source, call, "dot") for call in find(kernel.node.body, cst.Call)):
                _Products(self, kernel).run()


class _Products:
    """The products of one Triton function."""

    def __init__(self, rule: ZeroColumns, kernel: Kernel) -> None:
        self.rule, self.source, self.kernel, self.tree = rule, rule.source, kernel, rule.source.tree
        self.ragged = Ragged(kernel)
        self.made = self.ragged.bindings

    def run(self) -> None:
        sums: dict[cst.CSTNode, list[tuple[Sum, cst.Call]]] = {}
        for product, readers in sorted(self.ragged.readers.items(), key=lambda found: self.tree.span(found[0])):
            shape = tiles(self.kernel).of(product).shape
            bound, by = self.ragged.bound[product], next(iter(readers.values()))
            if (shape and shape[-1].isdigit() and int(shape[-1]) <= FRACTAL) or self._masked(product, bound):
                continue
            if isinstance(bound, str):
                self._left(product, by, bound)
            elif not self.ragged.holds(bound.names, product):
                self._left(product, by, f"`{bound.mask}` may have changed since the load")
            else:
                self._mask(product, bound, by, sums)
        for after, found in sums.items():
            self._after(after, found)

    def _mask(self, product: cst.Call, bound: Bound, by: str,
              sums: dict[cst.CSTNode, list[tuple[Sum, cst.Call]]]) -> None:
        total = self._sum(product, bound)
        if total is not None:
            sums.setdefault(total.after, []).append((total, product))
        elif accumulator(product) is not None:
            self._left(product, by, "its accumulator is not known to begin as zeros and to be read after the loop only")
        elif name := self._carried(product):
            self._left(product, by, f"`{name}` is carried round the loop, and a selection in each round may cost more "
                       "memory than the core has: no columns are missing where the tile is less than 16 wider than "
                       f"what is loaded; else `tl.where({bound.mask}, ..., {ZERO})`")
        else:
            whole: cst.BaseExpression = product
            while isinstance(up := self.tree.parent(whole), cst.BinaryOperation) and self._products(up, bound):
                whole = up
            where = cst.Call(edit.expression(f"{self.source.language}.where"), [
                cst.Arg(edit.expression(bound.mask)), cst.Arg(whole.with_changes(lpar=[], rpar=[])),
                cst.Arg(edit.expression(ZERO))])
            if whole not in self.rule.edits:
                self.rule.replace(whole, where, f"{UNKNOWN}, and {by} reads them: they become zero")

    def _left(self, product: cst.Call, by: str, why: str) -> None:
        self.rule.report(product, f"{UNKNOWN}, and {by} reads them: set them to zero. Not done, since {why}")

    def _carried(self, product: cst.Call) -> str:
        """The name that a loop carries round, and to which the statement of a product adds it."""
        loop = next((up for up in self.tree.ancestors(product) if isinstance(up, LOOPS)), None)
        for small in self.tree.ancestors(product):
            if isinstance(small, (cst.Assign, cst.AugAssign)) and loop is not None:
                target = small.targets[0].target if isinstance(small, cst.Assign) else small.target
                if isinstance(target, cst.Name) and all(
                        isinstance(node, cst.AugAssign) or _reads(getattr(node, "value", None), target.value)
                        for node in self.made.get(target.value, ()) if self.ragged.inside(node, loop)):
                    return target.value
        return ""

    def _masked(self, product: cst.BaseExpression, bound: Bound | str) -> bool:
        """Whether a product, or a sum of them, is what `tl.where` already takes under the mask of its bound."""
        up = self.tree.parent(product)
        while isinstance(up, cst.BinaryOperation):
            product, up = up, self.tree.parent(up)
        call = self.tree.parent(up) if isinstance(up, cst.Arg) else None
        return isinstance(bound, Bound) and isinstance(call, cst.Call) and calls(self.source, call, "where") and len(
            call.args) == 3 and call.args[1] is up and _squeezed(call.args[0].value) == _squeezed(
            cst.parse_expression(bound.mask))

    def _after(self, after: cst.CSTNode, found: Sequence[tuple[Sum, cst.Call]]) -> None:
        new = {f"{s.name} = {self.source.language}.where({s.bound.mask}, {s.name}, {ZERO})": product
               for s, product in found}
        names = ", ".join(dict.fromkeys(f"`{s.name}`" for s, _ in found))
        edits: dict[cst.CSTNode, Edit] = {after: cst.FlattenSentinel([
            after, *(edit.statement(text, self.tree.module) for text in new)])}     # type: ignore[list-item]
        self.rule.together(edits, f"columns of {names} that were not loaded are never computed, and are read later: "
                           "they become zero", at=found[0][1])

    # Sums of products

    def _sum(self, product: cst.Call, bound: Bound) -> Sum | None:
        """The sum that a product is added to, where that can be masked once: after the loop, or the statement."""
        line = self.tree.statement(product)
        if (run := self._run(line, bound)) is not None:
            return run
        name = self._added(product)
        if not name:
            return None
        loops = [up for up in self.tree.ancestors(line) if isinstance(up, LOOPS)]
        for loop in reversed(loops):            # the outermost first
            if all(self._adds(node, bound, loop) for node in self.made[name] if self.ragged.inside(node, loop)):
                return self._masked_after(name, loop, product, bound)
        plain = isinstance(line, cst.SimpleStatementLine) and len(product.args) > 2 and not loops
        return self._masked_after(name, line, product, bound) if plain else None

    def _run(self, line: cst.CSTNode, bound: Bound) -> Sum | None:
        """`s = tl.dot(a, b)`, and behind it `s += tl.dot(c, d)`: masked after the last of them."""
        block = self.tree.parent(line)
        lines = list(block.body) if isinstance(block, cst.IndentedBlock) else []
        if not any(each is line for each in lines):
            return None
        first = last = next(i for i, each in enumerate(lines) if each is line)
        while first and self._adding(lines[first], bound):
            first -= 1
        name = self._adding(lines[first], bound, begins=True)
        while last + 1 < len(lines) and self._adding(lines[last + 1], bound) == name:
            last += 1
        if not name or first == last or any(self._adding(each, bound) != name for each in lines[first + 1:last + 1]):
            return None
        return Sum(name, lines[last], bound)

    def _adding(self, line: cst.CSTNode, bound: Bound, begins: bool = False) -> str:
        """The name that a statement gives a product, or adds one to."""
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        target: cst.CSTNode | None = None
        if begins and isinstance(small, cst.Assign) and len(small.targets) == 1:
            target = small.targets[0].target
        elif not begins and isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
            target = small.target
        found = isinstance(target, cst.Name) and isinstance(small, (cst.Assign, cst.AugAssign)) and self._products(
            small.value, bound) and (begins or not _reads(small.value, target.value))
        return target.value if found and isinstance(target, cst.Name) else ""

    def _products(self, node: cst.BaseExpression, bound: Bound) -> bool:
        """Whether an expression is a product with the same columns, or a sum of such products."""
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            return self._products(node.left, bound) and self._products(node.right, bound)
        other = self.ragged.bound.get(node) if isinstance(node, cst.Call) and len(node.args) == 2 else None
        return isinstance(other, Bound) and (other.key, other.mask) == (bound.key, bound.mask) and self.ragged.holds(
            other.names, node)

    def _masked_after(self, name: str, after: cst.CSTNode, product: cst.Call, bound: Bound) -> Sum | None:
        if not self._zeros_before(name, after, bound) or not self.ragged.holds(bound.names, product, after):
            return None
        if any(self.ragged.inside(reader, after) for reader in self.ragged.readers[product]):
            return None
        return Sum(name, after, bound)

    def _added(self, product: cst.Call) -> str:
        """The name in `name += product` or `name = tl.dot(x, y, name)`."""
        node = self.tree.parent(product)
        if isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.AddAssign) and isinstance(
                node.target, cst.Name):
            return node.target.value
        if isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            name = node.targets[0].target.value
            added = accumulator(product)
            return name if added is not None and code(added) == name else ""
        return ""

    def _adds(self, node: cst.CSTNode, bound: Bound, after: cst.CSTNode) -> bool:
        """Whether a statement adds a product to what it binds that has the same columns behind another statement."""
        value = getattr(node, "value", None)
        if not isinstance(value, cst.Call) or not self._added(value):
            return False
        other = self.ragged.bound.get(value)
        return isinstance(other, Bound) and (other.key, other.mask) == (bound.key, bound.mask) and self.ragged.holds(
            other.names, value, after)

    def _zeros_before(self, name: str, after: cst.CSTNode, bound: Bound) -> bool:
        """Whether a name holds zeros in the columns, when a loop begins: made as zeros on every way to it."""
        if name in self.kernel.params:
            return False
        place = self.tree.span(after)[:2]
        blocks = [after, *self.tree.ancestors(after)]
        for i, up in enumerate(blocks):
            if isinstance(up, LOOPS) and i:
                blocks = blocks[:i + 1]
                break
        before = sorted((node for node in self.made.get(name, ()) if self.tree.span(node)[:2] < place
                         and not self.ragged.inside(node, after)), key=lambda node: self.tree.span(node)[:2])
        for node in reversed(before):
            if self._is_zeros(node):
                if self.tree.parent(self.tree.statement(node)) in blocks:
                    return True
            elif not self._adds(node, bound, after):
                return False
        return False

    def _is_zeros(self, node: cst.CSTNode) -> bool:
        value = getattr(node, "value", None)
        return isinstance(node, (cst.Assign, cst.AnnAssign)) and isinstance(value, cst.Call) and calls(
            self.source, value, "zeros")


def _reads(value: cst.CSTNode | None, name: str) -> bool:
    return value is not None and any(n.value == name for n in find(value, cst.Name))


def _squeezed(node: cst.BaseExpression) -> str:
    return "".join(code(node.with_changes(lpar=[], rpar=[])).split())
