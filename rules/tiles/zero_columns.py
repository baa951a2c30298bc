"""ASC216 zero-columns."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from migrate import edit
from migrate.analysis.control import bindings
from migrate.analysis.kernels import Kernel
from migrate.analysis.tiles import calls, tiles
from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.tiles._ragged import Bound, Ragged

FRACTAL = 16                                    # columns that the cube core computes at once
LOOPS = (cst.For, cst.While)
UNKNOWN = "columns of this product that were not loaded are never computed"


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
    loaded and 0 elsewhere, right behind the product. Of a sum of products in a loop, the sum is masked after the loop,
    so that it stays where the cube core adds.

    That gives the same values, as long as what is multiplied by the zeros of masked columns is finite. The selection
    is vector work of one tile. To make the whole tile of `y` defined (`tl.where(mask, y, 0.0)` before the product)
    costs more: it sends the tile through the vector core and back.

    Loads themselves need no `other=0` or `padding_option="zero"` for a product or a sum: what a mask leaves out is
    filled with zeros in either case.

    ## What it leaves alone
    * products whose unknown columns reach nothing but stores that leave them out, also through casts, arithmetic,
      transposes, sums over rows and further products, of which they are the columns or the rows.
    * those that a `tl.where` drops already. A selection of the lower triangle moves the unknown part to rows past the
      last loaded one.
    * right factors that are computed: `tl.dot(x, y * scale)`. A cast counts as the load, since it may be none.
    * tiles of 16 columns or less, and masks against a tile's own size.
    * a product where the mask of the load is no longer to be had, is not always the same, or comes from a block
      pointer that moves; an accumulator (`tl.dot(x, y, acc)`) that is not known to begin as zeros, or is read in the
      loop. Reported.
    """

    id = "ASC216"
    name = "zero-columns"
    summary = "columns of a product that were not loaded are set to zero where something reads them"
    safety = Safety.SAFE
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
                    b_s = tl.where(tl.arange(0, B)[None, :] < n, tl.dot(b_q, tl.trans(b_k)), 0.0)
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
                    acc = tl.where(inside[None, :], acc, 0.0)
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
                def kernel(q, k, v, h, out, n, V, B: tl.constexpr, D: tl.constexpr):
                    row, col = tl.arange(0, B), tl.arange(0, D)
                    m_row, m_col = row < n, col < V
                    b_q = tl.load(q + row[:, None] * D + col[None, :], mask=m_row[:, None], other=0.0)
                    b_k = tl.load(k + row[:, None] * D + col[None, :], mask=m_row[:, None], other=0.0)
                    b_v = tl.load(v + row[:, None] * V + col[None, :], mask=m_row[:, None] & m_col[None, :], other=0.0)
                    b_h = tl.load(h + col[:, None] * V + col[None, :], mask=m_col[None, :], other=0.0)
                    b_a = tl.where(row[:, None] >= row[None, :], tl.dot(b_q, tl.trans(b_k)), 0.0)
                    b_o = tl.dot(b_q, b_h) + tl.dot(b_a, b_v) * 0.5
                    b_c = tl.where(m_row[None, :], tl.dot(b_k, tl.trans(b_q)), 0.0)
                    b_o = b_o + tl.dot(b_c, b_v)
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
        self.made: dict[str, list[cst.CSTNode]] = {}
        for name, node, _ in bindings(kernel.node.body):
            self.made.setdefault(name, []).append(node)

    def run(self) -> None:
        sums: dict[cst.CSTNode, list[tuple[Sum, cst.Call]]] = {}
        for product, readers in self.ragged.readers.items():
            shape = tiles(self.kernel).of(product).shape
            if shape and shape[-1].isdigit() and int(shape[-1]) <= FRACTAL:
                continue
            bound, by = self.ragged.bound[product], next(iter(readers.values()))
            if isinstance(bound, str):
                self._left(product, by, bound)
            elif not self._holds(bound, product):
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
        elif len(product.args) > 2 and any(a.keyword.value == "acc" if a.keyword else i == 2
                                           for i, a in enumerate(product.args)):
            self._left(product, by, "its accumulator is not known to begin as zeros and to be read after the loop only")
        else:
            new = product.with_changes(lpar=[], rpar=[])
            where = cst.Call(edit.expression(f"{self.source.language}.where"), [
                cst.Arg(edit.expression(bound.mask)), cst.Arg(new), cst.Arg(edit.expression(self._zero(product)))])
            self.rule.replace(product, where, f"{UNKNOWN}, and {by} reads them: they become zero")

    def _left(self, product: cst.Call, by: str, why: str) -> None:
        self.rule.report(product, f"{UNKNOWN}, and {by} reads them: set them to zero. Not done, since {why}")

    def _zero(self, product: cst.Call) -> str:
        return "0" if tiles(self.kernel).of(product).dtype == "int32" else "0.0"

    def _after(self, after: cst.CSTNode, found: Sequence[tuple[Sum, cst.Call]]) -> None:
        new = {f"{s.name} = {self.source.language}.where({s.bound.mask}, {s.name}, {self._zero(product)})": product
               for s, product in found}
        names = ", ".join(dict.fromkeys(f"`{s.name}`" for s, _ in found))
        edits: dict[cst.CSTNode, Edit] = {after: cst.FlattenSentinel([
            after, *(edit.statement(text, self.tree.module) for text in new)])}     # type: ignore[list-item]
        self.rule.together(edits, f"columns of {names} that were not loaded are never computed, and are read later: "
                           "they become zero", at=found[0][1])

    # Whether a mask still holds

    def _holds(self, bound: Bound, product: cst.Call, after: cst.CSTNode | None = None) -> bool:
        """Whether the names of a mask are what they were where it was made: at the product, or after a loop."""
        place = self.tree.span(after or product)[:2]
        around = [loop for loop in self.tree.ancestors(after or product) if isinstance(loop, LOOPS)]
        for name, read in bound.names:
            for node in self.made.get(name, ()):
                if self.tree.span(read)[:2] < self.tree.span(node)[:2] < place or (
                        after is not None and self._inside(node, after)):
                    return False
                if any(self._inside(node, loop) and not self._inside(read, loop) for loop in around):
                    return False
        return True

    def _inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        return node is outer or any(up is outer for up in self.tree.ancestors(node))

    # Sums of products

    def _sum(self, product: cst.Call, bound: Bound) -> Sum | None:
        """The sum that a product is added to, where that can be masked once: after the loop, or the statement."""
        name, line = self._added(product), self.tree.statement(product)
        if not name:
            return None
        loops = [up for up in self.tree.ancestors(line) if isinstance(up, LOOPS)]
        for loop in reversed(loops):            # the outermost first
            if all(self._adds(node, bound) for node in self.made[name] if self._inside(node, loop)):
                return self._masked_after(name, loop, product, bound)
        plain = isinstance(line, cst.SimpleStatementLine) and len(product.args) > 2 and not loops
        return self._masked_after(name, line, product, bound) if plain else None

    def _masked_after(self, name: str, after: cst.CSTNode, product: cst.Call, bound: Bound) -> Sum | None:
        if not self._zeros_before(name, after, bound) or not self._holds(bound, product, after):
            return None
        if any(self._inside(reader, after) for reader in self.ragged.readers[product]):
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
            if any((a.keyword.value == "acc" if a.keyword else i == 2) and code(a.value) == name
                   for i, a in enumerate(product.args)):
                return name
        return ""

    def _adds(self, node: cst.CSTNode, bound: Bound) -> bool:
        """Whether a statement adds a product with the same columns to what it binds."""
        value = getattr(node, "value", None)
        if not isinstance(value, cst.Call) or not self._added(value):
            return False
        other = self.ragged.bound.get(value)
        return isinstance(other, Bound) and other.key == bound.key

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
                         and not self._inside(node, after)), key=lambda node: self.tree.span(node)[:2])
        for node in reversed(before):
            if self._is_zeros(node):
                if self.tree.parent(self.tree.statement(node)) in blocks:
                    return True
            elif not self._adds(node, bound):
                return False
        return False

    def _is_zeros(self, node: cst.CSTNode) -> bool:
        value = getattr(node, "value", None)
        return isinstance(node, (cst.Assign, cst.AnnAssign)) and isinstance(value, cst.Call) and calls(
            self.source, value, "zeros")
