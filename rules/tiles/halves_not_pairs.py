"""ASC215 halves-not-pairs."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from migrate import edit
from migrate.analysis.control import bindings, kernel_of
from migrate.analysis.kernels import Kernel
from migrate.analysis.tiles import INTS, calls, tiles
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find

PADDED = "a last axis of 2, which Ascend's compiler pads to 32 bytes, or lays out before it is loaded"


@dataclass(frozen=True)
class Cut:
    """`a, b = tl.split(reshape(tile, [*rows, half, 2]))`. `shape`, where given, is what the tile is first laid out as;
    `named` is the statement that gave the reshaped tile a name, where one did."""

    call: cst.Call
    assign: cst.Assign
    tile: cst.BaseExpression
    rows: tuple[str, ...]
    half: str
    shape: str
    named: cst.SimpleStatementLine | None


@dataclass(frozen=True)
class Joint:
    """`reshape(tl.join(a, b), [*rows, columns])`; `call` is the reshape. `halves` has a and b, as tiles of half the
    columns."""

    call: cst.Call
    halves: tuple[str, ...]
    rows: tuple[str, ...]
    columns: str


@dataclass(frozen=True)
class Index:
    """An index of columns that statements may share: what it is, and the block in which it has a name."""

    key: tuple[str, ...]
    block: cst.CSTNode
    names: tuple[str, ...]


class HalvesNotPairs(Rule):
    """Take even and odd columns of a tile, and put them together again, by `tl.gather` instead of through an axis of 2.

    ## Why
    Rotary embeddings turn pairs of neighbours: `tl.split(tl.reshape(x, [R, D // 2, 2]))` takes them apart,
    `tl.reshape(tl.join(a, b), [R, D])` puts them together. On Ascend a tile whose last axis is 2 has rows of 32 bytes,
    of which 8 are used. The compiler gives that layout to the tiles that it was made of as well, back to the loads,
    and then copies a tile to its new place before it has been loaded: the kernel compiles, and works on memory that
    nobody wrote. Where it does come out right, it needs 4 to 8 times the Unified Buffer.

    `tl.gather(x, 2 * i, 1)` is the same value, element by element, and leaves the tiles as they are, also one that was
    not loaded. Indices that several statements need are written once. All is moved, nothing computed: results are the
    same to the bit.

    It has a price: a gather is a call for each row. A tile that comes straight from memory or from a product, and is
    split at once, may compile well; a product between two rotations of such tiles takes 1.6 to 2.4 times the cycles
    with gathers, by the virtual NPU's model. Which tiles compile well cannot be told from the source.

    Where the shape of a tile cannot be seen, as in a helper, the one that the reshape implies is written out:
    `tl.reshape(x, [R, D])` of a tile to take apart, `tl.broadcast_to(a, [R, D // 2])` of one to put together, which
    does not compile should it be laid out otherwise. Elements of whatever dtype the caller hands in count as floats.

    ## What it leaves alone
    * a `tl.split` whose operand is not a reshape to `[..., half, 2]` that can be seen: of pairs that are not neighbours
      (a permuted tile), or made by arithmetic on the reshaped tile. Reported.
    * a `tl.join` that is not reshaped at once to one or two axes. Reported.
    * tiles of more than two axes, and of integers other than int8, which `tl.gather` does not take. Reported.
    """

    id = "ASC215"
    name = "halves-not-pairs"
    summary = "even and odd columns are gathered, not split from an axis of 2, which is padded and compiled wrongly"
    safety = Safety.SAFE
    phase = 2                   # after split-tile, which may cut an axis without pairs
    triggers = ("split(", "join(")
    references = (
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "in the final HIVM of a tile that is split into pairs and multiplied, `copy_ubuf_to_ubuf` from the padded "
            "buffer to the compact one stands before `load_gm_to_ubuf` into the compact one", "compiled"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "executed on the virtual NPU, Mamba-3's forward kernel and its rotary backward kernel are wrong in every "
            "case with pairs, and agree with float64 with gathers", "ran"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "`tl.gather` takes tiles of floats and of int8, and becomes one `gather_1d` call for a row", "source"),
    )
    examples = (
        Example("a rotary embedding",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def rotate(x, angle, out, R: tl.constexpr, D: tl.constexpr):
                    row, at, half = tl.arange(0, R), tl.arange(0, D), tl.arange(0, D // 2)
                    b_x = tl.load(x + row[:, None] * D + at[None, :])
                    b_a = tl.load(angle + row[:, None] * (D // 2) + half[None, :])
                    # turn each pair
                    x0, x1 = tl.split(tl.reshape(b_x, [R, D // 2, 2]))  # [R, D // 2] each
                    y0 = x0 * tl.cos(b_a) - x1 * tl.sin(b_a)
                    y1 = x0 * tl.sin(b_a) + x1 * tl.cos(b_a)
                    b_y = tl.reshape(tl.join(y0, y1), [R, D]).to(out.dtype.element_ty)
                    tl.store(out + row[:, None] * D + at[None, :], b_y)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def rotate(x, angle, out, R: tl.constexpr, D: tl.constexpr):
                    row, at, half = tl.arange(0, R), tl.arange(0, D), tl.arange(0, D // 2)
                    b_x = tl.load(x + row[:, None] * D + at[None, :])
                    b_a = tl.load(angle + row[:, None] * (D // 2) + half[None, :])
                    even = tl.broadcast_to(2 * tl.arange(0, D // 2)[None, :], [R, D // 2])
                    # turn each pair
                    x0, x1 = tl.gather(b_x, even, 1), tl.gather(b_x, even + 1, 1)  # [R, D // 2] each
                    y0 = x0 * tl.cos(b_a) - x1 * tl.sin(b_a)
                    y1 = x0 * tl.sin(b_a) + x1 * tl.cos(b_a)
                    pair = tl.broadcast_to(tl.arange(0, D)[None, :] // 2, [R, D])
                    left = (tl.arange(0, D)[None, :] & 1) == 0
                    b_y = tl.where(left, tl.gather(y0, pair, 1), tl.gather(y1, pair, 1)).to(out.dtype.element_ty)
                    tl.store(out + row[:, None] * D + at[None, :], b_y)
                """,
            run="exact",
            inputs={"x": "float32[8, 16]", "angle": "float32[8, 8]", "out": "float32[8, 16]", "R": 8, "D": 16}),
        Example("several tiles share an index; a reshaped tile with a name; rows, in a loop",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def norms(x, y, out, steps, D: tl.constexpr, TURN: tl.constexpr):
                    at, half = tl.arange(0, D), tl.arange(0, D // 2)
                    for i in range(steps):
                        b_x = tl.load(x + i * D + at)
                        pairs = tl.reshape(b_x, [D // 2, 2])
                        x0, x1 = tl.split(pairs)
                        y0, y1 = tl.split(tl.reshape(tl.load(y + i * D + at) + b_x, [D // 2, 2]))
                        found = x0 * y1 - x1 * y0
                        if TURN:
                            z0, z1 = tl.split(tl.reshape(b_x * 2.0, [D // 2, 2]))
                            found += z0 * z1
                        tl.store(out + i * (D // 2) + half, found)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def norms(x, y, out, steps, D: tl.constexpr, TURN: tl.constexpr):
                    at, half = tl.arange(0, D), tl.arange(0, D // 2)
                    for i in range(steps):
                        b_x = tl.load(x + i * D + at)
                        even = 2 * tl.arange(0, D // 2)
                        x0, x1 = tl.gather(b_x, even, 0), tl.gather(b_x, even + 1, 0)
                        tile = tl.load(y + i * D + at) + b_x
                        y0, y1 = tl.gather(tile, even, 0), tl.gather(tile, even + 1, 0)
                        found = x0 * y1 - x1 * y0
                        if TURN:
                            tile2 = b_x * 2.0
                            z0, z1 = tl.gather(tile2, even, 0), tl.gather(tile2, even + 1, 0)
                            found += z0 * z1
                        tl.store(out + i * (D // 2) + half, found)
                """,
            run="exact",
            inputs={"x": "float32[3, 16]", "y": "float32[3, 16]", "out": "float32[3, 8]", "steps": 3, "D": 16,
                    "TURN": True}),
        Example("a helper's tile, whose shape only the reshape tells",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def swapped(x, R: tl.constexpr, D: tl.constexpr):
                    a, b = tl.split(tl.reshape(x, (R, D // 2, 2)))
                    return tl.reshape(tl.join(-b, a), (R, D))


                @triton.jit
                def kernel(x, out, R: tl.constexpr, D: tl.constexpr):
                    at = tl.arange(0, R)[:, None] * D + tl.arange(0, D)[None, :]
                    tl.store(out + at, swapped(tl.load(x + at), R, D))
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def swapped(x, R: tl.constexpr, D: tl.constexpr):
                    even = tl.broadcast_to(2 * tl.arange(0, D // 2)[None, :], [R, D // 2])
                    tile = tl.reshape(x, [R, D])
                    a, b = tl.gather(tile, even, 1), tl.gather(tile, even + 1, 1)
                    pair = tl.broadcast_to(tl.arange(0, D)[None, :] // 2, [R, D])
                    left = (tl.arange(0, D)[None, :] & 1) == 0
                    return tl.where(left, tl.gather(-b, pair, 1), tl.gather(a, pair, 1))


                @triton.jit
                def kernel(x, out, R: tl.constexpr, D: tl.constexpr):
                    at = tl.arange(0, R)[:, None] * D + tl.arange(0, D)[None, :]
                    tl.store(out + at, swapped(tl.load(x + at), R, D))
                """,
            run="exact",
            inputs={"x": "float32[4, 16]", "out": "float32[4, 16]", "R": 4, "D": 16}),
        Example("reports pairs that are not neighbours, integers, and what it cannot see",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, n, out, R: tl.constexpr, D: tl.constexpr):
                    at = tl.arange(0, R)[:, None] * D + tl.arange(0, D)[None, :]
                    b_x = tl.load(x + at)
                    a, b = tl.split(tl.permute(tl.reshape(b_x, [R, 2, D // 2]), (0, 2, 1)))
                    pairs = tl.reshape(b_x, [R, D // 2, 2])
                    c, d = tl.split(pairs * 2)
                    e, f = tl.split(tl.reshape(tl.load(n + at).to(tl.int32), [R, D // 2, 2]))
                    b_y = tl.reshape(tl.permute(tl.join(a + c + e, b + d + f), (0, 2, 1)), [R, D])
                    tl.store(out + at, b_y)
                """,
            after=SAME,
            reports=4),
        Example("a joined tile that becomes one row",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out):
                    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
                    u = tl.load(x + at)
                    v = u * u
                    y = tl.join(u, v).reshape(64)
                    tl.store(out + tl.arange(0, 64), y)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out):
                    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
                    u = tl.load(x + at)
                    v = u * u
                    pair = tl.arange(0, 64) // 2
                    left = (tl.arange(0, 64) & 1) == 0
                    y = tl.where(left, tl.gather(tl.reshape(u, [32]), pair, 0), tl.gather(tl.reshape(v, [32]), pair, 0))
                    tl.store(out + tl.arange(0, 64), y)
                """,
            run="exact",
            inputs={"x": "float32[4, 8]", "out": "float32[64]"}),
    )

    def finish(self) -> None:
        self._indices: dict[cst.CSTNode, list[Index]] = {}
        self._given: dict[cst.CSTNode, set[str]] = {}
        found: dict[cst.CSTNode, tuple[Kernel, list[Cut | Joint]]] = {}
        for call in self.source.tree.all(cst.Call):
            name = next((n for n in ("split", "join") if calls(self.source, call, n)), "")
            kernel = kernel_of(self.source, call) if name else None
            if kernel is None:
                continue
            line = self.source.tree.statement(call)
            what = self._cut(kernel, call) if name == "split" else self._joint(kernel, call)
            if not isinstance(what, str) and not (isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
                                                  and isinstance(self.source.tree.parent(line), cst.IndentedBlock)):
                what = "it has no line of its own"
            if isinstance(what, str):
                made = f"splits {PADDED}" if name == "split" else f"makes {PADDED}"
                self.report(call, f"this {made}, and {what}: gather even and odd columns by hand")
            else:
                found.setdefault(line, (kernel, []))[1].append(what)
        for line, (kernel, parts) in found.items():
            self._rewrite(kernel, line, parts)

    # What stands there: a Cut or a Joint, or why it is neither

    def _cut(self, kernel: Kernel, call: cst.Call) -> Cut | str:
        assign, operand = self.source.tree.parent(call), _only(call)
        target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        if not isinstance(assign, cst.Assign) or not isinstance(target, cst.Tuple) or len(target.elements) != 2 \
                or operand is None:
            return "it is not of the form `a, b = tl.split(...)`"
        named = None
        if isinstance(operand, cst.Name):
            named = self._naming(kernel, assign, operand)
            operand = named.body[0].value if named and isinstance(named.body[0], cst.Assign) else operand
        view = self._reshape(operand)
        if view is None:
            return "its operand is no reshape to `[..., half, 2]` that is used for this alone"
        tile, sizes = view
        texts = [self._size(kernel, size) for size in sizes]
        if not 2 <= len(sizes) <= 3 or texts[-1] != "2":
            return "its operand is no reshape of one or two axes to `[..., half, 2]`"
        if self._makes_pairs(tile):
            return "the tile is made of others in the same statement"
        value = tiles(kernel).of(tile)
        if value.dtype in INTS and value.dtype != "int8":
            return f"`tl.gather` takes no tile of {value.dtype}"
        rows, half = tuple(edit.code(s) for s in sizes[:-2]), edit.code(sizes[-2])
        whole = _twice(texts[-2])
        known = value.shape == (*texts[:-2], whole)
        shape = "" if known else f"[{', '.join((*rows, whole))}]"
        return Cut(call, assign, tile, rows, half, shape, named)

    def _naming(self, kernel: Kernel, assign: cst.Assign, name: cst.Name) -> cst.SimpleStatementLine | None:
        """The statement before the split, in its block, that names its operand for this use alone."""
        tree = self.source.tree
        bound = [node for n, node, _ in bindings(kernel.node.body) if n == name.value]
        uses = [n for n in find(kernel.node, cst.Name) if n.value == name.value]
        line = tree.statement(bound[0]) if len(bound) == 1 else None
        here = tree.statement(assign)
        block = tree.parent(here)
        if (len(uses) != 2 or not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1
                or not isinstance(block, cst.IndentedBlock) or tree.parent(line) is not block
                or not isinstance(line.body[0], cst.Assign)
                or not isinstance(line.body[0].targets[0].target, cst.Name)):
            return None
        body = list(block.body)
        return line if body.index(line) < body.index(here) else None     # type: ignore[arg-type]

    def _joint(self, kernel: Kernel, call: cst.Call) -> Joint | str:
        outer = self.source.tree.parent(call)
        if isinstance(outer, cst.Arg) or (isinstance(outer, cst.Attribute) and outer.value is call):
            outer = self.source.tree.parent(outer)
        view = self._reshape(outer)
        if view is None or view[0] is not call:
            return "what it makes is not reshaped at once"
        if len(call.args) != 2 or any(a.star or a.keyword for a in call.args):
            return "its operands are not plain"
        sizes = view[1]
        parts = (call.args[0].value, call.args[1].value)
        if not 1 <= len(sizes) <= 2:
            return "what it makes is not reshaped to one or two axes"
        if any(self._makes_pairs(part) for part in parts):
            return "its operands are made of others in the same statement"
        dtype = next((d for d in (tiles(kernel).of(part).dtype for part in parts) if d in INTS and d != "int8"), "")
        if dtype:
            return f"`tl.gather` takes no tile of {dtype}"
        assert isinstance(outer, cst.Call)
        rows, columns = tuple(edit.code(s) for s in sizes[:-1]), edit.code(sizes[-1])
        texts = [self._size(kernel, size) for size in sizes]
        shapes = [tiles(kernel).of(part).shape for part in parts]
        if shapes[0] != shapes[1] and not all(shape is None or _fits(shape, texts) for shape in shapes):
            return "its operands are not laid out as half of what it makes"
        if () in shapes:
            return "its operands are no tiles"
        halves = [edit.code(part) for part in parts]
        if not all(shape and list(shape[:-1]) == texts[:-1] and _twice(shape[-1]) == texts[-1] for shape in shapes):
            # tl.join broadcasts what it is given; two tiles of one shape may become one of another
            function = "reshape" if shapes[0] == shapes[1] is not None else "broadcast_to"
            shape = f"[{', '.join((*rows, _half(columns)))}]"
            halves = [f"{self.source.language}.{function}({half}, {shape})" for half in halves]
        return Joint(outer, tuple(halves), rows, columns)

    def _reshape(self, node: cst.CSTNode | None) -> tuple[cst.BaseExpression, Sequence[cst.BaseExpression]] | None:
        """The tile and the sizes of `tl.reshape(tile, [..])` or `tile.reshape(..)`."""
        if not isinstance(node, cst.Call) or any(a.star or a.keyword for a in node.args):
            return None
        values = [a.value for a in node.args]
        if not calls(self.source, node, "reshape"):
            func = node.func
            if not isinstance(func, cst.Attribute) or func.attr.value != "reshape" \
                    or (isinstance(func.value, cst.Name) and func.value.value in self.source.imports):
                return None
            values.insert(0, func.value)
        if len(values) == 2 and isinstance(values[1], (cst.List, cst.Tuple)):
            if any(isinstance(e, cst.StarredElement) for e in values[1].elements):
                return None
            return values[0], [e.value for e in values[1].elements]
        return (values[0], values[1:]) if len(values) > 1 else None

    def _size(self, kernel: Kernel, node: cst.BaseExpression) -> str:
        return tiles(kernel).of(node).text or edit.code(node)

    def _makes_pairs(self, node: cst.CSTNode) -> bool:
        return any(calls(self.source, call, name) for call in find(node, cst.Call) for name in ("join", "split"))

    # What takes its place

    def _rewrite(self, kernel: Kernel, line: cst.CSTNode, parts: Sequence[Cut | Joint]) -> None:
        tl, block = self.source.language, self.source.tree.parent(line)
        assert block is not None
        fresh: list[Index] = []
        above: list[str] = []
        edits: dict[cst.CSTNode, Edit] = {}
        for part in parts:
            axis = len(part.rows)
            if isinstance(part, Cut):
                (even,) = self._index(kernel, block, "even", part.rows, part.half, fresh, above)
                tile = self._tile(kernel, part, above, edits)
                edits[part.call] = edit.expression(
                    f"{tl}.gather({tile}, {even}, {axis}), {tl}.gather({tile}, {even} + 1, {axis})")
            else:
                pair, left = self._index(kernel, block, "pair", part.rows, part.columns, fresh, above)
                a, b = part.halves
                edits[part.call] = edit.expression(
                    f"{tl}.where({left}, {tl}.gather({a}, {pair}, {axis}), {tl}.gather({b}, {pair}, {axis}))")
        new = [edit.statement(text, self.source.tree.module) for text in above]
        if new:
            edits[line] = cst.FlattenSentinel([*new, line])
        cut, put = (any(isinstance(p, kind) for p in parts) for kind in (Cut, Joint))
        what = "taken apart and put together" if cut and put else "taken apart" if cut else "put together"
        if self.together(edits, f"pairs are {what} by gathers: not through {PADDED}", at=line):
            self._indices.setdefault(kernel.node, []).extend(fresh)

    def _tile(self, kernel: Kernel, cut: Cut, above: list[str], edits: dict[cst.CSTNode, Edit]) -> str:
        """The name of the tile that is taken apart."""
        laid_out = edit.code(cut.tile)
        if cut.shape:
            laid_out = f"{self.source.language}.reshape({laid_out}, {cut.shape})"
        if cut.named is not None:
            naming = cut.named.body[0]
            assert isinstance(naming, cst.Assign) and isinstance(naming.targets[0].target, cst.Name)
            if cut.shape or not self._stays(cut, cut.tile):
                edits[naming.value] = edit.expression(laid_out)
                return naming.targets[0].target.value
            lines = cut.named.leading_lines         # comments above may be about more than this line
            edits[cut.named] = cst.FlattenSentinel(lines) if lines else cst.RemoveFromParent()
        if isinstance(cut.tile, cst.Name) and not cut.shape:
            return cut.tile.value
        name = self._fresh(kernel, "tile")
        above.append(f"{name} = {laid_out}")
        return name

    def _stays(self, cut: Cut, tile: cst.BaseExpression) -> bool:
        """Whether the tile is a name that has the same value at the split as where it was reshaped."""
        block = self.source.tree.parent(self.source.tree.statement(cut.call))
        assert isinstance(block, cst.IndentedBlock) and cut.named is not None
        body: list[cst.CSTNode] = list(block.body)
        between = body[body.index(cut.named):body.index(self.source.tree.statement(cut.call))]
        return isinstance(tile, cst.Name) and all(
            name != tile.value for statement in between for name, _, _ in bindings(statement))

    def _index(self, kernel: Kernel, block: cst.CSTNode, kind: str, rows: tuple[str, ...], columns: str,
               fresh: list[Index], above: list[str]) -> tuple[str, ...]:
        """The names of an index: of one that stands above and holds here, or of a new one."""
        key = (kind, *rows, columns)
        around = {block, *self.source.tree.ancestors(block)}
        known = next((i for i in (*self._indices.get(kernel.node, ()), *fresh) if i.key == key and i.block in around),
                     None)
        if known is not None and self._fixed(kernel, key):
            return known.names
        across = "[None, :]" if rows else ""
        names = tuple(self._fresh(kernel, n) for n in (("even",) if kind == "even" else ("pair", "left")))
        tl = self.source.language
        at = f"{tl}.arange(0, {columns}){across}"
        index = f"2 * {at}" if kind == "even" else f"{at} // 2"
        shape = f"[{', '.join((*rows, columns))}]"
        above.append(f"{names[0]} = {tl}.broadcast_to({index}, {shape})" if rows else f"{names[0]} = {index}")
        if kind == "pair":
            above.append(f"{names[1]} = ({at} & 1) == 0")
        fresh.append(Index(key, block, names))
        return names

    def _fixed(self, kernel: Kernel, sizes: tuple[str, ...]) -> bool:
        """Whether sizes mean the same all over the kernel."""
        changed = {name for name, _, _ in bindings(kernel.node.body)}
        return all(name.value not in changed for size in sizes[1:]
                   for name in find(edit.expression(size), cst.Name))

    def _fresh(self, kernel: Kernel, name: str) -> str:
        given = self._given.setdefault(kernel.node, {n.value for n in find(kernel.node, cst.Name)})
        found = next(n for n in (f"{name}{i if i > 1 else ''}" for i in range(1, 1000)) if n not in given)
        given.add(found)
        return found


def _only(call: cst.Call) -> cst.BaseExpression | None:
    return call.args[0].value if len(call.args) == 1 and not call.args[0].star and not call.args[0].keyword else None


def _twice(half: str) -> str:
    """Two times a size."""
    whole = half.removesuffix(" // 2")
    if half.isdigit():
        return str(2 * int(half))
    if whole != half and whole.isidentifier():
        return whole
    return f"2 * {half}" if half.isidentifier() else f"2 * ({half})"


def _fits(shape: Sequence[str], made: Sequence[str]) -> bool:
    """Whether a tile is broadcast to half the columns of what is made, or has them."""
    return len(shape) == len(made) and all(one in ("1", other) for one, other in zip(shape[:-1], made[:-1], strict=True)
                                           ) and (shape[-1] == "1" or _twice(shape[-1]) == made[-1])


def _half(whole: str) -> str:
    """Half of a size."""
    if whole.isdigit():
        return str(int(whole) // 2)
    return f"{whole} // 2" if whole.isidentifier() else f"({whole}) // 2"
