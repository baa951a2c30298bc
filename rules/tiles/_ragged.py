"""Products of which some columns are never computed, and where those columns end up.

Of a right factor that was loaded under a mask over its columns, the compiler makes the product of the loaded columns
only; past their last 16 it holds anything. One pass over a Triton function in the order of execution, with what may be
known of each name, finds the products whose unknown columns are read for more than themselves.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import libcst as cst

from migrate.analysis.control import bindings
from migrate.analysis.kernels import Kernel, match_args
from migrate.analysis.tiles import LANGUAGE, called, calls, tiles
from migrate.edit import code, is_atom
from migrate.tree import children, find

ROWS, COLUMNS = -2, -1
DEPTH = 6                                       # of names that stand for names
ROUNDS = 4                                      # of a loop, until nothing new is found
BUDGET = 100                                    # expansions of names for one mask
ELEMENTWISE = frozenset({
    "abs", "add", "cast", "ceil", "clamp", "cos", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2",
    "maximum", "minimum", "rsqrt", "sigmoid", "sin", "sqrt", "sqrt_rn", "div_rn", "broadcast_to", "multiple_of",
    "max_contiguous"})
REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce"})
# Calls that give the same when they are made once more, besides elementwise ones and reductions
REPEATABLE = ELEMENTWISE | REDUCTIONS | frozenset({
    "arange", "full", "zeros", "zeros_like", "program_id", "num_programs", "cdiv", "where", "trans", "permute",
    "reshape", "view", "expand_dims", "len", "int", "to"})
ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo)
LOOPS = (cst.For, cst.While)
STORES = {"store": ("pointer", "value", "mask", "boundary_check"),
          **dict.fromkeys(("atomic_add", "atomic_max", "atomic_min"), ("pointer", "value", "mask"))}
LOAD = ("pointer", "mask", "other", "boundary_check", "padding_option")
BLOCK = ("base", "shape", "strides", "offsets", "block_shape", "order")

Key = tuple[str, str]                           # what is compared, and what it is less than


@dataclass(frozen=True)
class Bound:
    """Which columns of a product are computed. `mask` has them, as a row: `at[None, :] < n`; `names` are those in it,
    each with the expression in which it was read."""

    key: Key
    mask: str
    names: frozenset[tuple[str, cst.BaseExpression]]


class Block(NamedTuple):
    """A block pointer: the texts of its shape, offsets and block shape, and for each axis the names in them, each with
    the expression in which it was read."""

    shape: list[str]
    offsets: list[str]
    size: list[str]
    names: list[frozenset[tuple[str, cst.BaseExpression]]]


@dataclass(frozen=True)
class Known:
    """What is known of a value: the unknown columns of products that it holds, as (product, axis from the end); the
    loads that it may be, each with whether it was transposed since; and, of a name, the expressions that it may be."""

    dirty: frozenset[tuple[cst.Call, int]] = frozenset()
    loads: frozenset[tuple[cst.Call, bool]] = frozenset()
    made: frozenset[cst.BaseExpression] = frozenset()


CLEAN = Known()
Env = dict[str, Known]


class Ragged:
    """The products of one Triton function."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.source, self.tiles = kernel, kernel.source, tiles(kernel)
        self.masks: dict[cst.Call, dict[int, Bound | str | None]] = {}     # of each load, for each axis
        self.bound: dict[cst.Call, Bound | str] = {}    # of each product; in words, why it has none that is usable
        self.loads: dict[cst.Call, set[cst.Call]] = {}  # what the right factor of each product may be
        self.readers: dict[cst.Call, dict[cst.CSTNode, str]] = {}   # what reads its unknown columns, and in words
        self.expanding, self.expanded, self.ambiguous, self.lost = 0, 0, False, False
        self.env: Env = {}
        self.bindings: dict[str, list[cst.CSTNode]] = {}
        for name, node, _ in bindings(kernel.node.body):
            self.bindings.setdefault(name, []).append(node)
        self.at: cst.CSTNode = kernel.node              # the statement that is looked at
        self._block(kernel.node.body)
        self.readers = {product: readers for product, readers in self.readers.items() if self.loads[product]}

    # Statements

    def _block(self, body: cst.BaseSuite) -> None:
        for statement in body.body:
            self._statement(statement)

    def _statement(self, node: cst.CSTNode) -> None:
        self.at = node
        if isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            for small in node.body:
                self._small(small)
        elif isinstance(node, cst.If):
            self._value(node.test)
            before = dict(self.env)
            self._block(node.body)
            after, self.env = self.env, before
            if node.orelse is not None:
                if isinstance(node.orelse, cst.If):
                    self._statement(node.orelse)
                else:
                    self._block(node.orelse.body)
            self.env = _join(after, self.env)
        elif isinstance(node, (cst.For, cst.While)):
            for _ in range(ROUNDS):
                before = dict(self.env)
                if isinstance(node, cst.For):
                    self._bind(node.target, CLEAN)
                else:
                    self._value(node.test)
                self._block(node.body)
                self.env = _join(before, self.env, carried=True)
                if self.env == before:
                    break
        elif isinstance(node, cst.With):
            self._block(node.body)

    def _small(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            target = node.targets[0].target
            if isinstance(target, (cst.Tuple, cst.List)) and isinstance(node.value, (cst.Tuple, cst.List)) and len(
                    target.elements) == len(node.value.elements):
                made = [(self._value(e.value), e.value) for e in node.value.elements]
                for element, (value, expression) in zip(target.elements, made, strict=True):
                    self._bind(element.value, value, expression)
                return
            value = self._value(node.value)
            for each in node.targets:
                self._bind(each.target, value, node.value)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self._bind(node.target, self._value(node.value), node.value)
        elif isinstance(node, cst.AugAssign):
            self._bind(node.target, Known(self._value(node.target).dirty | self._value(node.value).dirty))
        elif isinstance(node, (cst.Expr, cst.Return)) and node.value is not None:
            found = self._value(node.value)
            if isinstance(node, cst.Return):
                self._used(found.dirty, node, "what returns it")

    def _bind(self, target: cst.BaseExpression, value: Known, expression: cst.BaseExpression | None = None) -> None:
        if isinstance(target, cst.Name):
            self.env[target.value] = replace(value, made=frozenset() if expression is None else frozenset({expression}))
        elif isinstance(target, (cst.Tuple, cst.List)):
            self._used(value.dirty, target, f"`{code(target)}`")
            for element in target.elements:
                self._bind(element.value, CLEAN)

    def _used(self, dirty: Iterable[tuple[cst.Call, int]], node: cst.CSTNode, by: str) -> None:
        for product, _ in dirty:
            self.readers.setdefault(product, {})[node] = by

    # Expressions

    def _value(self, node: cst.BaseExpression) -> Known:
        if isinstance(node, cst.Name):
            return self.env.get(node.value, CLEAN)
        if isinstance(node, cst.Attribute):     # x.dtype, x.shape
            return self._value(node.value) if node.attr.value == "T" else CLEAN
        if isinstance(node, cst.Subscript):
            return self._subscript(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.NamedExpr):
            value = self._value(node.value)
            self._bind(node.target, value, node.value)
            return value
        dirty: frozenset[tuple[cst.Call, int]] = frozenset()
        for child in children(node):
            if isinstance(child, cst.ComparisonTarget):
                child = child.comparator
            if isinstance(child, cst.Element):
                child = child.value
            if isinstance(child, cst.BaseExpression):
                dirty |= self._value(child).dirty
        return Known(dirty)

    def _subscript(self, node: cst.Subscript) -> Known:
        dirty = self._value(node.value).dirty
        if not dirty:
            return CLEAN
        index = [code(e.slice).strip() for e in node.slice]
        if index == [":", "None"]:
            return Known(frozenset((p, axis - 1) for p, axis in dirty))
        if index == ["None", ":"]:
            return Known(dirty)
        self._used(dirty, node, f"`{code(node)}`")
        return CLEAN

    def _call(self, node: cst.Call) -> Known:
        name = called(self.source, node.func)
        head = name.partition(".")[0]
        if not name.startswith(LANGUAGE) and isinstance(node.func, cst.Attribute) and (
                head in self.env or not head or head in self.kernel.params):
            return self._method(node, node.func)
        name = name.removeprefix(LANGUAGE).removeprefix("math.") if name.startswith(LANGUAGE) else ""
        args = [self._value(a.value) for a in node.args]
        dirty = frozenset[tuple[cst.Call, int]]().union(*(a.dirty for a in args))
        if name == "load":
            self._used(dirty, node, "an address")
            self.masks[node] = {axis: self.columns(node, axis) for axis in (ROWS, COLUMNS)}
            return Known(loads=frozenset({(node, False)}))
        if name == "dot":
            return self._dot(node)
        if not dirty and not any(a.loads for a in args):
            return CLEAN
        if name in ("trans", "permute") and len(node.args) in (1, 3):
            return _transposed(args[0])
        if name == "where" and len(args) == 3:
            bounds = self.bounds(node.args[0].value)
            turned = self._triangle(node.args[0].value)
            kept = frozenset((p, turned.get(axis, axis)) for p, axis in args[1].dirty
                             if not self._bounded(p, axis, bounds))
            return Known(args[0].dirty | kept | args[2].dirty)
        if name == "cast":
            return args[0]
        if name in STORES:
            return self._store(node, name)
        if name in ELEMENTWISE or code(node.func).rpartition(".")[2] in ELEMENTWISE:   # a file's own `exp`
            return Known(dirty)
        if name in REDUCTIONS and args:
            return self._reduced(node, args[0].dirty, node.args[1:])
        self._used(dirty, node, f"`{code(node.func)}`")
        return CLEAN

    def _method(self, node: cst.Call, func: cst.Attribute) -> Known:
        receiver, name = self._value(func.value), func.attr.value
        args = [self._value(a.value) for a in node.args]
        self._used((d for a in args for d in a.dirty), node, f"`{name}`")
        if name == "to":
            return receiver
        if name == "trans" and not node.args:
            return _transposed(receiver)
        if name in ELEMENTWISE:
            return Known(receiver.dirty)
        if name in REDUCTIONS:
            return self._reduced(node, receiver.dirty, node.args)
        self._used(receiver.dirty, node, f"`{name}`")
        return CLEAN

    def _reduced(self, node: cst.Call, dirty: frozenset[tuple[cst.Call, int]], rest: Sequence[cst.Arg]) -> Known:
        axes = [code(a.value) for i, a in enumerate(rest) if (a.keyword.value == "axis" if a.keyword else i == 0)]
        kept = {"0": COLUMNS, "-2": COLUMNS, "1": ROWS, "-1": ROWS}.get(axes[0] if axes else "")
        keep_dims = any(a.keyword is not None and a.keyword.value == "keep_dims" for a in rest)
        out = set()
        for product, axis in dirty:
            if axis == kept and not keep_dims:
                out.add((product, COLUMNS))
            else:
                self._used([(product, axis)], node, f"`{code(node)}`")
        return Known(frozenset(out))

    def _store(self, node: cst.Call, name: str) -> Known:
        given = {n: a.value for a, n in match_args(node, list(STORES[name]))}
        if {"pointer", "value"} <= given.keys():
            bounds: dict[int, set[Key]] = self.bounds(given["mask"]) if "mask" in given else {}
            block = self.block(given["pointer"])
            for axis in (ROWS, COLUMNS):
                if block is not None and (found := self._block_bound(block, axis, given.get("boundary_check"))):
                    bounds.setdefault(axis, set()).add(found.key)
            self._used((d for d in self._value(given["value"]).dirty if not self._bounded(*d, bounds, same_end=True)),
                       node, f"a store of more than them to `{code(given['pointer'])}`")
        return CLEAN

    def _bounded(self, product: cst.Call, axis: int, bounds: Mapping[int, set[Key]], same_end: bool = False) -> bool:
        bound = self.bound[product]
        if isinstance(bound, str):
            return axis in bounds               # it has a bound, and so has this
        return any(key == bound.key or (same_end and (key[1] == bound.key[1] or _block_of(bound.key, key)))
                   for key in bounds.get(axis, ()))

    # Products and their columns

    def _dot(self, node: cst.Call) -> Known:
        given = {n: self._value(a.value) for a, n in match_args(node, ["input", "other", "acc"])}
        right = given.get("other", CLEAN)
        self._used(given.get("input", CLEAN).dirty | right.dirty, node, "another product")
        dirty = set(given.get("acc", CLEAN).dirty)
        bounds = {self.masks[load][ROWS if turned else COLUMNS] for load, turned in right.loads} - {None}
        self.loads[node] = {load for load, _ in right.loads} if bounds else set()   # as the last round of a loop has it
        if bounds:
            (bound,) = bounds if len(bounds) == 1 else [None]
            self.bound[node] = bound or "its right factor is not always loaded alike"
            dirty.add((node, COLUMNS))
        return Known(frozenset(dirty))

    def columns(self, load: cst.Call, axis: int) -> Bound | str | None:
        """What bounds an axis of a loaded tile; None if nothing does; or why that cannot be said."""
        bound = self._columns(load, axis)
        if isinstance(bound, Bound) and not self._repeatable(cst.parse_expression(bound.mask)):
            return "its mask holds a call that is not to be made once more"
        return bound

    def _columns(self, load: cst.Call, axis: int) -> Bound | str | None:
        given = {n: a.value for a, n in match_args(load, list(LOAD))}
        if "pointer" not in given:
            return None
        if "padding_option" in given and code(given["padding_option"])[1:-1] not in ("zero", ""):
            return None
        if "boundary_check" in given:
            checked = _numbers(given["boundary_check"])
            if checked is not None and axis + 2 not in checked:
                return None
            block = self.block(given["pointer"])
            if block is None:
                return "where its block pointer points is not known"
            if len(block.shape) != 2:
                return None
            return self._block_bound(block, axis, given["boundary_check"])
        if "mask" not in given:
            return None
        if "other" in given and code(given["other"]) not in ("0", "0.0", "0."):
            return None
        shape = self.tiles.of(given["pointer"]).shape
        if shape is None or len(shape) != 2:
            return None
        self.ambiguous, self.lost, self.expanded = False, False, 0
        found = list({b.key: b for at, b in self._conjuncts(given["mask"], None) if at == axis and not _always(b.key)
                      }.values())
        if self.expanded > BUDGET:
            return "its mask is made of too many others"
        if not found:
            return "a name in the mask of its right factor was bound anew" if self.lost else None
        if self.ambiguous:
            return "the mask of its right factor is not always the same"
        if len(found) == 1:
            return found[0]
        return Bound(("&".join(sorted(b.key[0] for b in found)), "&".join(sorted(b.key[1] for b in found))),
                     " & ".join(f"({b.mask})" for b in found), frozenset().union(*(b.names for b in found)))

    def block(self, pointer: cst.BaseExpression) -> Block | None:
        """What a block pointer is, through a name and `tl.advance`."""
        steps: list[tuple[list[str], cst.BaseExpression]] = []
        for _ in range(4):
            if isinstance(pointer, cst.Call) and calls(self.source, pointer, "advance") and len(pointer.args) == 2:
                steps.append((_elements(pointer.args[1].value), pointer))
                pointer = pointer.args[0].value
            elif isinstance(pointer, cst.Name) and len(values := self._made(pointer.value)) == 1:
                (value,) = values
                if not self.holds({(pointer.value, pointer)}, self.at):
                    return None
                if any(n.value == pointer.value for n in find(value, cst.Name)):
                    return None
                pointer = value
            else:
                break
        if not isinstance(pointer, cst.Call) or not calls(self.source, pointer, "make_block_ptr"):
            return None
        given = {n: a.value for a, n in match_args(pointer, list(BLOCK))}
        if not {"shape", "offsets", "block_shape"} <= given.keys():
            return None
        shape, offsets, size = (_elements(given[n]) for n in ("shape", "offsets", "block_shape"))
        if not len(shape) == len(offsets) == len(size) or any(len(step) != len(shape) for step, _ in steps):
            return None
        shape, offsets = [_operand(t) for t in shape], [_operand(t) for t in offsets]
        steps = [([_operand(t) for t in step], node) for step, node in steps]
        names = [_names((shape[at], offsets[at], size[at]), pointer).union(*(_names((step[at],), node)
                                                                             for step, node in steps))
                 for at in range(len(shape))]
        for step, _ in steps:
            offsets = [b if a == "0" else a if b == "0" else f"{a} + {b}" for a, b in zip(offsets, step, strict=True)]
        return Block(shape, offsets, size, names)

    def _block_bound(self, block: Block, axis: int, checked: cst.BaseExpression | None) -> Bound | None:
        shape, offsets, size, names = block
        numbers = _numbers(checked) if checked is not None else []
        if len(shape) != 2 or (numbers is not None and axis + 2 not in numbers):
            return None
        tl, at = self.source.language, axis + 2
        lanes = f"{tl}.arange(0, {size[at]})"
        start = "" if offsets[at] == "0" else f"{offsets[at]} + "
        row = f"({start}{lanes})[None, :]" if start else f"{lanes}[None, :]"
        key = (self._canonical(cst.parse_expression(start + lanes)), self._canonical(cst.parse_expression(shape[at])))
        return None if _always(key) else self._named(Bound(key, f"{row} < {shape[at]}", names[at]))

    def bounds(self, mask: cst.BaseExpression) -> dict[int, set[Key]]:
        """What a mask bounds on each axis. Several bounds of an axis count as one, too."""
        found: dict[int, set[Key]] = {}
        self.expanded = 0
        for axis, bound in self._conjuncts(mask, None):
            found.setdefault(axis, set()).add(bound.key)
        for keys in found.values():
            if len(keys) > 1:
                keys.add(("&".join(sorted(k[0] for k in keys)), "&".join(sorted(k[1] for k in keys))))
        return found

    def _conjuncts(self, mask: cst.BaseExpression, axis: int | None) -> list[tuple[int, Bound]]:
        """The comparisons along one axis that a mask is the conjunction of."""
        if isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, cst.BitAnd):
            return self._conjuncts(mask.left, axis) + self._conjuncts(mask.right, axis)
        if isinstance(mask, cst.Subscript):
            inside = {":,None": ROWS, "None,:": COLUMNS}.get(",".join(code(e.slice).strip() for e in mask.slice))
            return self._conjuncts(mask.value, inside) if inside and axis is None else []
        if isinstance(mask, cst.Name):
            made = self._made(mask.value)
            self.expanded += 1
            if self.expanding > DEPTH or self.expanded > BUDGET:
                return []
            if made and not self.holds({(mask.value, mask)}, self.at):
                self.lost = True                # it is another by now
                return []
            self.expanding += 1
            several = [self._conjuncts(value, axis) for value in made]
            self.expanding -= 1
            if len(made) > 1:                   # in branches that one constant chooses, for example
                self.ambiguous |= len({frozenset((at, b.key) for at, b in each) for each in several}) > 1
            return [f for each in several for f in each]
        if not isinstance(mask, cst.Comparison) or len(mask.comparisons) != 1:
            return []
        (target,) = mask.comparisons
        shape = self.tiles.of(mask).shape
        if not isinstance(target.operator, cst.LessThan) or not shape or len(shape) > 2:
            return []
        wide = [i - len(shape) for i, size in enumerate(shape) if size != "1"]
        if len(wide) != 1 or (len(shape) == 2 and axis is not None):
            return []
        at = wide[0] if axis is None else axis
        left, right = _flat(mask.left), target.comparator
        key = self._canonical(left), self._canonical(right)
        text = code(left)
        row = f"{text if left.lpar or isinstance(left, (cst.Name, cst.Call)) else f'({text})'}[None, :]"
        names = frozenset((n.value, mask) for n in find(mask, cst.Name))
        return [(at, self._named(Bound(key, f"{row} < {code(right)}", names)))]

    def _named(self, bound: Bound) -> Bound:
        """The same by its name, where the kernel has one for it that was made of what the names stand for here."""
        for name in self.env:
            for mask in self._made(name)[:1]:
                if isinstance(mask, cst.Comparison) and len(self._made(name)) == 1 and bound.key == self._key(
                        mask) and self._before(mask) and self._alike(mask, bound):
                    return Bound(bound.key, f"{name}[None, :]", frozenset({(name, mask)}))
        return bound

    def _before(self, made: cst.BaseExpression) -> bool:
        """Whether a name that was given this value has it at the statement that is looked at: not only since the last
        round of a loop, or in a branch."""
        tree = self.source.tree
        line = tree.statement(made)
        return tree.span(line)[:2] < tree.span(self.at)[:2] and any(
            up is tree.parent(line) for up in tree.ancestors(self.at))

    def _alike(self, mask: cst.Comparison, bound: Bound) -> bool:
        """Whether a comparison with the text of a bound has its value, too: it is the one that was read, or all that
        either is made of is still what it was, and no call gave one of them something of its own."""
        if any(read is mask for _, read in bound.names):
            return True
        ours = self._closure(frozenset((n.value, mask) for n in find(mask, cst.Name)))
        theirs = self._closure(bound.names)
        if ours is None or theirs is None or not self.holds(ours | theirs, self.at):
            return False
        if not self._repeatable(mask) or not self._repeatable(cst.parse_expression(bound.mask)):
            return False
        roots = {mask, *(read for _, read in bound.names)}
        first, second = ({read for _, read in names if read not in roots and not self._repeatable(read)}
                         for names in (ours, theirs))
        return first == second

    def _closure(self, names: frozenset[tuple[str, cst.BaseExpression]]
                 ) -> frozenset[tuple[str, cst.BaseExpression]] | None:
        """Names, and those in what they stand for; None where these are too many."""
        found, new = set(names), list(names)
        while new:
            name, _ = new.pop()
            made = self._made(name)
            if len(made) == 1:
                more = {(n.value, made[0]) for n in find(made[0], cst.Name)} - found
                found |= more
                new.extend(more)
            if len(found) > BUDGET:
                return None
        return frozenset(found)

    def _repeatable(self, node: cst.CSTNode) -> bool:
        """Whether an expression has no effect and reads no memory."""
        if any(find(node, cst.NamedExpr, cst.Await, cst.Yield)):
            return False
        for call in find(node, cst.Call):
            name = called(self.source, call.func)
            if name.startswith(LANGUAGE):
                name = name.removeprefix(LANGUAGE).removeprefix("math.")
            elif isinstance(call.func, cst.Attribute):
                name = "cdiv" if name == "triton.cdiv" else call.func.attr.value
                if name != "cdiv" and name != "to":
                    return False
            if name not in REPEATABLE or name == "reduce":
                return False
        return True

    def holds(self, names: Iterable[tuple[str, cst.BaseExpression]], place: cst.CSTNode,
              after: cst.CSTNode | None = None) -> bool:
        """Whether names are what they were where they were read: at a place, or behind a statement that ends there."""
        tree = self.source.tree
        end = tree.span(after or place)[:2]
        around = [loop for loop in tree.ancestors(after or place) if isinstance(loop, LOOPS)]
        for name, read in names:
            for node in self.bindings.get(name, ()):
                own = self.inside(read, node) and not isinstance(node, LOOPS)
                if own and not (self.inside(place, node) or place is tree.statement(node)) and any(
                        n.value == name for n in find(read, cst.Name)):
                    return False                # `n = n + 1`: read, and bound anew
                if tree.span(read)[:2] < tree.span(node)[:2] < end or (
                        after is not None and self.inside(node, after)):
                    return False
                if any(self.inside(node, loop) and not self.inside(read, loop) for loop in around):
                    return False
        return True

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        return node is outer or any(up is outer for up in self.source.tree.ancestors(node))

    def _key(self, mask: cst.Comparison) -> Key | None:
        """Of a comparison that makes a row of a mask."""
        (target,) = mask.comparisons[:1]
        if len(self.tiles.of(mask).shape or ()) != 1 or not isinstance(target.operator, cst.LessThan):
            return None
        return self._canonical(mask.left), self._canonical(target.comparator)

    def _triangle(self, mask: cst.BaseExpression) -> dict[int, int]:
        """Of a mask that keeps a lower triangle: what lies past the last column lies past the last row. And the
        reverse."""
        found: dict[int, int] = {}
        for part in self._parts(mask):
            if isinstance(part, cst.Comparison) and len(part.comparisons) == 1:
                (target,) = part.comparisons
                left, right = part.left, target.comparator
                if self._canonical(_flat(left)) == self._canonical(_flat(right)) and len(
                        self.tiles.of(part).shape or ()) == 2 and "1" not in (self.tiles.of(part).shape or ()):
                    down = isinstance(target.operator, (cst.GreaterThan, cst.GreaterThanEqual))
                    if down or isinstance(target.operator, (cst.LessThan, cst.LessThanEqual)):
                        rows_first = (self.tiles.of(left).shape or ("1",))[-1] == "1"
                        found |= {COLUMNS: ROWS} if down == rows_first else {ROWS: COLUMNS}
        return found

    def _parts(self, mask: cst.BaseExpression) -> list[cst.BaseExpression]:
        if isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, cst.BitAnd):
            return self._parts(mask.left) + self._parts(mask.right)
        if isinstance(mask, cst.Name) and self.expanded < BUDGET:
            made = self._made(mask.value)
            self.expanded += 1
            if len(made) == 1 and not any(n.value == mask.value for n in find(made[0], cst.Name)):
                return self._parts(made[0])
        return [mask]

    def _made(self, name: str) -> list[cst.BaseExpression]:
        """The expressions that a name may stand for here; none for a parameter, or where that is not known."""
        return [] if name in self.kernel.params else list(self.env.get(name, CLEAN).made)

    def _canonical(self, node: cst.BaseExpression, depth: int = 0) -> str:
        """A text that is the same for sums in another order, and for names of them."""
        return " + ".join(sorted(self._terms(node, depth)))

    def _terms(self, node: cst.BaseExpression, depth: int) -> list[str]:
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            return self._terms(node.left, depth) + self._terms(node.right, depth)
        if isinstance(node, cst.Name) and depth < DEPTH:
            made = self._made(node.value)
            if len(made) == 1 and isinstance(made[0], (cst.BinaryOperation, cst.Name, cst.Call)):
                return self._terms(made[0], depth + 1)
        if isinstance(node, cst.Subscript):
            return self._terms(node.value, depth)
        return ["".join(code(node.with_changes(lpar=[], rpar=[])).split())]


def _transposed(value: Known) -> Known:
    turned = {ROWS: COLUMNS, COLUMNS: ROWS}
    return Known(frozenset((p, turned.get(axis, axis)) for p, axis in value.dirty),
                 frozenset((load, not was) for load, was in value.loads))


def _join(a: Env, b: Env, carried: bool = False) -> Env:
    """What holds after either. What a loop carries round is no load, unless it is one in every round."""
    out = dict(a)
    for name, value in b.items():
        old = a.get(name)
        if old is not None:
            loads = old.loads | value.loads if not carried or (old.loads and value.loads) else frozenset()
            made = old.made | value.made if old.made and value.made else frozenset()    # one of them is not known
            value = Known(old.dirty | value.dirty, loads, made)
        out[name] = value
    return out


def _always(key: Key) -> bool:
    """Whether all lanes of a tile are below its own size."""
    return key[0].endswith(f"arange(0,{key[1]})") and " + " not in key[0]


def _block_of(inner: Key, outer: Key) -> bool:
    """Whether `i * n + at < m * n`, where `at < n` is the other: block i of m in a longer axis. That there is such a
    block is taken for granted."""
    rest = [term for term in inner[0].split(" + ") if term not in outer[0].split(" + ")]
    return len(rest) == 1 and all(outer[1] in text.split("*") and text.count("*") == 1 for text in (rest[0], inner[1]))


def _flat(node: cst.BaseExpression) -> cst.BaseExpression:
    """`k + at[:, None]` as `k + at`."""
    return cst.parse_expression(re.sub(r"\[\s*(:\s*,\s*None|None\s*,\s*:)\s*\]", "", code(node)))


def _elements(node: cst.BaseExpression) -> list[str]:
    return [code(e.value) for e in node.elements] if isinstance(node, (cst.Tuple, cst.List)) else []


def _names(texts: Iterable[str], node: cst.BaseExpression) -> frozenset[tuple[str, cst.BaseExpression]]:
    return frozenset((name.value, node) for text in texts for name in find(cst.parse_expression(text), cst.Name))


def _operand(text: str) -> str:
    """An expression as it can stand in a sum."""
    node = cst.parse_expression(text)
    plain = is_atom(node) or (isinstance(node, cst.BinaryOperation) and isinstance(node.operator, ARITHMETIC))
    return text if plain else f"({text})"


def _numbers(node: cst.BaseExpression) -> list[int] | None:
    """Axes as `boundary_check` has them; None where they are not spelled out."""
    texts = _elements(node) or [code(node)]
    return [int(t) for t in texts] if all(t.isdigit() for t in texts) else None
