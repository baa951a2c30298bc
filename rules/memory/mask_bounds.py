"""ASC217 mask-bounds."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from migrate import edit
from migrate.analysis.control import bindings
from migrate.analysis.kernels import Kernel, match_args
from migrate.analysis.tiles import INTS, NUMBER, Tiles, calls, tiles
from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find

ACCESSES = {"load": ("pointer", "mask"), "store": ("pointer", "value", "mask")}
FLIPPED: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.GreaterThan, cst.LessThanEqual: cst.GreaterThanEqual, cst.GreaterThan: cst.LessThan,
    cst.GreaterThanEqual: cst.LessThanEqual}
BOUNDS = (cst.LessThan, cst.LessThanEqual, cst.GreaterThanEqual, cst.Equal)     # those that the compiler reads
ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo)
HANDED_ON = ("multiple_of", "max_contiguous", "max_constancy", "expand_dims")
SIGNED = {name for name in INTS if name[0] == "i"} - {"int1"}
DEPTH = 12                                      # of names that stand for names


class MaskBounds(Rule):
    """Write masks so that the compiler reads their bounds, and clamp the address of a masked scalar load.

    ## Why
    Ascend's compiler makes of a mask such as `(at >= 1) & (at < n)` the first and the last element of a transfer. It
    reads a conjunction of comparisons `tile < scalar`, `<=`, `>=` and `==`, with the tile on the left, made of
    `tl.arange` and what is added to it. It does not read `tile > scalar`, a scalar on the left, or a tile from which
    something is subtracted, though they mean the same. Then it transfers the whole tile, past both ends of the tensor,
    and throws away what the mask does not want; a store reads the whole tile, and writes it back. Values are right,
    what is read is not there. So `at > 0` is written `at >= 1`, `n > at` is `at < n`, and `at - 1` is `at + -1`.

    A load of a scalar is made whatever its mask says. What is added to its pointer becomes 0 where the mask is false:
    `tl.load(p - step, mask=c >= 1)` reads `p - tl.where(c >= 1, step, 0)`. That is in bounds where `p` is. Of several
    terms each becomes 0 for itself, since a sum of them may not be an int32.

    Both cost nothing that a model of the core would notice, where clamping the indices of a tile
    (`tl.maximum(at - 1, 0)`) makes a loop over its elements.

    ## What it leaves alone
    * masks that it could not make readable as a whole: triangles, comparisons of two tiles, `|`, `~`, `%`, loaded
      masks. They pick elements rather than bound a transfer.
    * `tile > scalar` where the scalar is no literal: one more than it may not be an int32. Reported, where the rest of
      the mask is readable.
    * tiles from which something is subtracted that may be a boolean or a narrow integer: `-flag` is not what is added.
    * masked loads of a scalar from a pointer to which nothing is added, or under a mask that calls something, or where
      the pointer may not be the first term. Reported.
    * masks of scalars that are parameters: they may be None.
    * pointers and masks of which it does not know that they are tiles or scalars.
    """

    id = "ASC217"
    name = "mask-bounds"
    summary = "a mask is written so that it bounds the transfer, instead of choosing from what was read out of bounds"
    safety = Safety.SAFE
    phase = 3
    triggers = ("mask",)
    references = (
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "in the compiled program, a mask with `>`, a scalar on the left or a subtraction leaves a transfer of the "
            "whole tile and a selection, the same mask in the other form a transfer of its bounds; a masked scalar "
            "is read without a condition", "compiled"),
        Ref("https://github.com/triton-lang/triton-ascend/blob/main/third_party/ascend/lib/TritonToLinalg/"
            "MaskAnalysis.cpp", "comparisons slt, sle, sge and eq of a tile with a scalar on the right; no "
            "subtraction", "source"),
    )
    examples = (
        Example("the element before each",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, n, BLOCK: tl.constexpr):
                    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                    before = at - 1
                    inside = (before >= 0) & (before < n)
                    one = tl.load(x + before, mask=inside, other=0.0)
                    two = tl.load(y + at - 1, mask=(at > 0) & (n > at), other=0.0)
                    tl.store(out + at, one - two, mask=at < n)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, out, n, BLOCK: tl.constexpr):
                    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                    before = at + -1
                    inside = (before >= 0) & (before < n)
                    one = tl.load(x + before, mask=inside, other=0.0)
                    two = tl.load(y + at - 1, mask=(at >= 1) & (at < n), other=0.0)
                    tl.store(out + at, one - two, mask=at < n)
                """,
            run="exact",
            inputs={"x": "float32[20]", "y": "float32[20]", "out": "float32[32]", "n": 20, "BLOCK": 32}),
        Example("rows of a tile, counted from a start, and a store",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, start, end, B: tl.constexpr, D: tl.constexpr):
                    row = tl.arange(0, B) - start
                    col = tl.arange(0, D)
                    inside = (row >= 0)[:, None] & (row < end)[:, None]
                    tile = tl.load(x + row[:, None] * D + col[None, :], mask=inside & (0 < col)[None, :], other=0.0)
                    tl.store(out + row[:, None] * D + col[None, :], tile, mask=inside)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, start, end, B: tl.constexpr, D: tl.constexpr):
                    row = tl.arange(0, B) + -start
                    col = tl.arange(0, D)
                    inside = (row >= 0)[:, None] & (row < end)[:, None]
                    tile = tl.load(x + row[:, None] * D + col[None, :], mask=inside & (col >= 1)[None, :], other=0.0)
                    tl.store(out + row[:, None] * D + col[None, :], tile, mask=inside)
                """,
            run="exact",
            inputs={"x": "float32[32, 8]", "out": "float32[32, 8]", "start": 3, "end": 20, "B": 32, "D": 8}),
        Example("a scalar that is not always there",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, steps, stride):
                    for i in range(steps):
                        here = x + i * stride
                        last = tl.load(here - stride, mask=i >= 1, other=0.0)
                        after = tl.load(x + (i + 1) * stride, mask=i + 1 < steps, other=0.0)
                        tl.store(out + i, last + after)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, steps, stride):
                    for i in range(steps):
                        here = x + i * stride
                        last = tl.load(here - tl.where(i >= 1, stride, 0), mask=i >= 1, other=0.0)
                        after = tl.load(x + tl.where(i + 1 < steps, (i + 1) * stride, 0), mask=i + 1 < steps, other=0.0)
                        tl.store(out + i, last + after)
                """,
            run="exact",
            inputs={"x": "float32[5, 2]", "out": "float32[5]", "steps": 5, "stride": 2}),
        Example("leaves masks that are readable, and those that choose",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, keep, out, n, B: tl.constexpr):
                    at, other = tl.arange(0, B), tl.arange(0, B)
                    back = at - 1
                    row = tl.load(x + at, mask=(at >= 1) & (at <= n - 1), other=0.0)
                    chosen = tl.load(keep + at).to(tl.int1)
                    some = tl.load(x + back, mask=(back >= 0) & chosen, other=0.0)
                    below = (at[:, None] > other[None, :]) & (back >= 0)[:, None]
                    tile = tl.load(x + at[:, None] * B + other[None, :], mask=below, other=0.0)
                    tl.store(out + at, row + some + tl.sum(tile, axis=1))
                """,
            after=SAME),
        Example("reports what it cannot bound",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, start, B: tl.constexpr):
                    at = tl.arange(0, B)
                    here = x + start
                    tile = tl.load(x + at, mask=at > start, other=0.0)
                    tl.store(out + at, tile + tl.load(here, mask=start < 5, other=0.0))
                """,
            after=SAME,
            reports=2),
    )

    def finish(self) -> None:
        for kernel in self.source.kernels.values():
            _Masks(self, kernel).run()


class _Masks:
    """The masks of one Triton function."""

    def __init__(self, rule: MaskBounds, kernel: Kernel) -> None:
        self.rule, self.source, self.kernel = rule, rule.source, kernel
        self.tiles: Tiles = tiles(kernel)
        self.made: dict[str, list[cst.BaseExpression | None]] = {}
        for name, node, value in bindings(kernel.node.body):
            if not isinstance(node, cst.AugAssign):
                self.made.setdefault(name, []).append(value)
            elif isinstance(node.operator, (cst.BitAndAssign, cst.AddAssign)):
                self.made.setdefault(name, []).append(node.value)
            else:
                self.made.setdefault(name, []).append(None)
        self.sizes = {name for name, p in kernel.params.items() if p.constexpr} & {
            arg.value.value for call in find(kernel.node.body, cst.Call) if calls(self.source, call, "arange")
            for arg in call.args if isinstance(arg.value, cst.Name)}
        self.factors = {side.value for product in find(kernel.node.body, cst.BinaryOperation)
                        if isinstance(product.operator, (cst.Multiply, cst.FloorDivide, cst.Modulo))
                        for side in (product.left, product.right) if isinstance(side, cst.Name)}
        self.helper = any(isinstance(call.func, cst.Name) and call.func.value == kernel.node.name.value
                          for other in self.source.kernels.values() for call in find(other.node.body, cst.Call))
        self.done: set[cst.CSTNode] = set()

    def run(self) -> None:
        for call in find(self.kernel.node.body, cst.Call):
            for function, names in ACCESSES.items():
                if calls(self.source, call, function):
                    given = {name: arg for arg, name in match_args(call, list(names))}
                    if "mask" in given and "pointer" in given:
                        self._access(call, given["pointer"], given["mask"], function)

    def _access(self, call: cst.Call, pointer: cst.Arg, mask: cst.Arg, function: str) -> None:
        shape = self.tiles.of(pointer.value).shape
        if shape == () and self.tiles.of(mask.value).shape == () and function == "load":
            self._scalar(call, pointer.value, mask.value)
        elif shape:
            edits: dict[cst.CSTNode, Edit] = {}
            too_large: list[cst.Comparison] = []
            if not all([self._readable(part, edits, too_large) for part in self._parts(mask.value)]):
                return
            for comparison in too_large:
                if comparison not in self.done:
                    self.done.add(comparison)
                    self.rule.report(comparison, "the compiler does not read `>` as the bound of a transfer: the whole "
                                     f"tile is {'read' if function == 'load' else 'read and written back'}; write `>=`")
            if too_large:
                return
            for node, new in edits.items():
                if node not in self.done:
                    self.done.add(node)
                    self._change(node, new)

    def _change(self, node: cst.CSTNode, new: Edit) -> None:
        assert isinstance(node, cst.BaseExpression) and isinstance(new, cst.BaseExpression)
        what = "a comparison with" if isinstance(node, cst.Comparison) else "a mask made of"
        self.rule.replace(node, new, f"{what} `{code(node)}` does not bound the transfer, and the whole tile is read, "
                          f"out of bounds; `{code(new)}` does")

    # Masks of tiles

    def _parts(self, mask: cst.BaseExpression, seen: Sequence[str] = ()) -> Iterator[cst.BaseExpression | None]:
        """What a mask is the conjunction of; None for what is not understood."""
        if (isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, cst.BitAnd)) or (
                isinstance(mask, cst.BooleanOperation) and isinstance(mask.operator, cst.And)):
            yield from self._parts(mask.left, seen)
            yield from self._parts(mask.right, seen)
        elif isinstance(mask, cst.Subscript):
            yield from self._parts(mask.value, seen)
        elif isinstance(mask, cst.Name) and self.tiles.of(mask).shape != ():
            if mask.value in seen:
                return                          # `mask = mask & more`: its other values are looked at
            if len(seen) > DEPTH or mask.value in self.kernel.params:
                yield None
            for value in self.made.get(mask.value, [None]):
                if value is None:
                    yield None
                else:
                    yield from self._parts(value, (*seen, mask.value))
        else:
            yield mask

    def _readable(self, part: cst.BaseExpression | None, edits: dict[cst.CSTNode, Edit],
                  too_large: list[cst.Comparison]) -> bool:
        """Whether a part of a mask bounds a tile, with these edits; or is a scalar, the same for the whole tile."""
        if part is None:
            return False
        if self.tiles.of(part).shape == ():
            return True
        if not isinstance(part, cst.Comparison) or len(part.comparisons) != 1:
            return False
        tile, (target,) = part.left, part.comparisons
        operator, scalar = type(target.operator), target.comparator
        if self.tiles.of(tile).shape == ():
            tile, scalar = scalar, tile
            operator = FLIPPED.get(operator, operator)
        if not self.tiles.of(tile).shape or self.tiles.of(scalar).shape != () or not self._sum(tile, edits, ()):
            return False
        if operator is cst.GreaterThan:
            if not (isinstance(scalar, cst.Integer) or _negative(scalar)) or not self._integer(tile, ()):
                too_large.append(part)
                return True
            operator, scalar = cst.GreaterThanEqual, _one_more(scalar)
        elif operator not in BOUNDS:
            return False
        if operator is not type(target.operator) or tile is not part.left:
            edits[part] = part.with_changes(left=_operand(tile), comparisons=[target.with_changes(
                operator=operator(), comparator=_operand(scalar))])
            for node in list(edits):            # the new comparison holds the tile as it was: one edit, then the next
                if node is not part and node in set(find(part, cst.BinaryOperation)):
                    del edits[node]
        return True

    def _integer(self, node: cst.BaseExpression, seen: Sequence[str]) -> bool:
        """Whether a value is known to be a signed integer. What sizes a tile is one."""
        if self.tiles.of(node).dtype in SIGNED or isinstance(node, cst.Integer):
            return True
        if isinstance(node, cst.Name) and node.value not in seen:
            made = self.made.get(node.value, [])
            return node.value in self.sizes or (len(seen) < DEPTH and node.value not in self.kernel.params and bool(
                made) and all([v is not None and self._integer(v, (*seen, node.value)) for v in made]))
        if isinstance(node, cst.Subscript):
            return self._integer(node.value, seen)
        return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, ARITHMETIC) and self._integer(
            node.left, seen) and self._integer(node.right, seen)

    def _sum(self, tile: cst.BaseExpression, edits: dict[cst.CSTNode, Edit], seen: Sequence[str]) -> bool:
        """Whether a tile is `tl.arange` with scalars added to it, after these edits."""
        if self.tiles.of(tile).shape == ():
            return True
        if isinstance(tile, cst.Subscript):
            return self._sum(tile.value, edits, seen)
        if isinstance(tile, cst.Name):
            if tile.value in seen:
                return True
            if len(seen) > DEPTH or tile.value in self.kernel.params or tile.value not in self.made:
                return False
            return all([value is not None and self._sum(value, edits, (*seen, tile.value))
                        for value in self.made[tile.value]])
        if isinstance(tile, cst.BinaryOperation) and isinstance(tile.operator, cst.Add):
            return self._sum(tile.left, edits, seen) and self._sum(tile.right, edits, seen)
        if isinstance(tile, cst.BinaryOperation) and isinstance(tile.operator, cst.Subtract):
            if self.tiles.of(tile.right).shape != () or not self._negatable(tile.right, ()) or not self._sum(
                    tile.left, edits, seen):
                return False
            inner = {node for node in edits if node in set(find(tile.left, cst.BinaryOperation))}
            if not inner:                       # else the inner one first; this one in the next round
                edits[tile] = tile.with_changes(operator=cst.Add(
                    tile.operator.whitespace_before, tile.operator.whitespace_after), right=_negated(tile.right))
            return True
        if isinstance(tile, cst.Call):
            if calls(self.source, tile, "arange"):
                return True
            if isinstance(tile.func, cst.Attribute) and tile.func.attr.value == "to":
                return self._sum(tile.func.value, edits, seen)
            return bool(tile.args) and any(calls(self.source, tile, name) for name in HANDED_ON) and self._sum(
                tile.args[0].value, edits, seen)
        return False

    def _negatable(self, node: cst.BaseExpression, seen: Sequence[str]) -> bool:
        """Whether adding `-node` is subtracting it: not so for booleans, and for integers narrower than the tile."""
        if isinstance(node, cst.Integer) or self.tiles.of(node).dtype in ("int32", "int64"):
            return True
        if isinstance(node, cst.UnaryOperation):
            return isinstance(node.operator, cst.Minus) and self._negatable(node.expression, seen)
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, ARITHMETIC) and self._negatable(node.left, seen) and self._negatable(
                node.right, seen)
        if not isinstance(node, cst.Name) or node.value in seen or len(seen) > DEPTH:
            return False
        made = self.made.get(node.value, [])
        if node.value in self.kernel.params:
            known = self.kernel.params[node.value].constexpr or not self.helper
        else:
            known = bool(made) or self.tiles.of(node).kind == NUMBER
        return known and all([v is not None and self._negatable(v, (*seen, node.value)) for v in made])

    # Masked loads of scalars

    def _scalar(self, call: cst.Call, pointer: cst.BaseExpression, mask: cst.BaseExpression) -> None:
        if self._absent(mask, ()):
            return
        (_, base), *terms = edit.terms(pointer)
        text, tl = code(mask), self.source.language
        if any(isinstance(term, cst.Call) and calls(self.source, term, "where") and term.args
               and code(term.args[0].value) == text for _, term in terms):
            return
        where = f"a scalar is loaded whether or not `{text}`"
        if not terms:
            self.rule.report(call, f"{where}: see that `{code(base)}` may be read in either case")
        elif any(True for _ in find(mask, cst.Call)):
            self.rule.report(call, f"{where}: give the mask a name, or see that the address may be read in either case")
        elif any(sign == "+" and not self._number(term, ()) for sign, term in terms):
            self.rule.report(call, f"{where}: see that the address may be read in either case")
        else:                                   # each term for itself: pointers are wider than a sum of int32
            new = edit.expression(" ".join([code(base), *(
                f"{sign} {tl}.where({text}, {code(_plain(term))}, 0)" for sign, term in terms)]))
            self.rule.replace(pointer, new, f"{where}: where it does not, `{code(base)}` is read")

    def _absent(self, mask: cst.BaseExpression, seen: Sequence[str]) -> bool:
        """Whether a mask may be None, or is True."""
        if isinstance(mask, cst.IfExp):
            return self._absent(mask.body, seen) or self._absent(mask.orelse, seen)
        if not isinstance(mask, cst.Name):
            return False
        if mask.value in self.kernel.params or mask.value in seen or len(seen) > DEPTH:
            return True
        return any([value is None or self._absent(value, (*seen, mask.value))
                    for value in self.made.get(mask.value, [None])])

    def _number(self, node: cst.BaseExpression, seen: Sequence[str]) -> bool:
        """Whether a term of an address is known to be no pointer, so that the pointer stands on its left."""
        value = self.tiles.of(node)
        if value.kind == NUMBER or value.dtype in INTS or isinstance(node, (cst.Integer, cst.UnaryOperation)):
            return True
        if isinstance(node, cst.BinaryOperation):
            return not isinstance(node.operator, (cst.Add, cst.Subtract)) or (
                self._number(node.left, seen) and self._number(node.right, seen))
        if not isinstance(node, cst.Name) or node.value in seen or len(seen) > DEPTH:
            return isinstance(node, cst.Comparison) or (
                isinstance(node, cst.Call) and calls(self.source, node, "load"))
        made = self.made.get(node.value, [])
        if node.value in self.kernel.params:
            return node.value in self.factors
        return bool(made) and all([v is not None and self._number(v, (*seen, node.value)) for v in made])


def _negative(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus) and isinstance(
        node.expression, cst.Integer)


def _one_more(node: cst.BaseExpression) -> cst.BaseExpression:
    return edit.expression(str(int(code(_plain(node)).replace(" ", ""), 0) + 1))


def _negated(node: cst.BaseExpression) -> cst.BaseExpression:
    if _negative(node):
        assert isinstance(node, cst.UnaryOperation)
        return node.expression
    return cst.UnaryOperation(cst.Minus(), node if edit.is_atom(node) else edit.parenthesised(node))


def _plain(node: cst.BaseExpression) -> cst.BaseExpression:
    """Without brackets around it."""
    return node.with_changes(lpar=[], rpar=[])


def _operand(node: cst.BaseExpression) -> cst.BaseExpression:
    """Without brackets, where it needs none as an operand of a comparison: brackets may hold a line break."""
    simple = isinstance(node, (cst.Name, cst.Integer, cst.Float, cst.Call, cst.Subscript, cst.Attribute)) or (
        isinstance(node, cst.BinaryOperation) and isinstance(node.operator, ARITHMETIC)) or _negative(node)
    return _plain(node) if simple and "\n" not in code(node) else node
