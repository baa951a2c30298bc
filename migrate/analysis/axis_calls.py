"""What the functions of triton.language do to the axes of their arguments; part of migrate.analysis.axes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.analysis.axis_values import ARANGE, NONE, NUMBER, OTHER, Axis, Number, Spread, Value
from migrate.edit import code

if TYPE_CHECKING:
    from migrate.analysis.axes import Run

Pair = tuple[cst.BaseExpression, Value]

ELEMENTWISE = frozenset({
    "abs", "add", "add_rn", "assume", "bitcast", "cast", "cdiv", "ceil", "clamp", "cos", "debug_barrier", "div_rn",
    "erf", "exp", "exp2", "expm1", "fdiv", "floor", "fma", "full_like", "isinf", "isnan", "log", "log1p", "log2",
    "maximum", "minimum", "mul", "mul_rn", "num_programs", "pow", "program_id", "rand", "randint", "randn", "rsqrt",
    "sigmoid", "sin", "sqrt", "sqrt_rn", "sub", "sub_rn", "tanh", "umulhi", "where", "zeros_like"})
STORES = frozenset({"store", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor",
                    "atomic_xchg", "atomic_cas"})
JOINS = {"sum": "+", "max": "maximum", "min": "minimum", "xor_sum": "^"}
SCANS = {"cumsum": 1, "cumprod": 1, "associative_scan": 1, "flip": 1, "sort": 1}


class Arguments:
    """Arguments of a call with their values; `first` is what stands before the dot of `x.sum(...)`."""

    def __init__(self, run: Run, node: cst.Call, name: str, first: Pair | None) -> None:
        self.run, self.node, self.name = run, node, name
        self.positional: list[Pair] = [first] if first else []
        self.named: dict[str, Pair] = {}
        self.starred = False
        for arg in node.args:
            pair = (arg.value, run.value(arg.value))
            if arg.star:
                self.starred = True
            if arg.keyword is not None:
                self.named[arg.keyword.value] = pair
            else:
                self.positional.append(pair)

    def get(self, index: int, *names: str) -> Pair | None:
        for name in names:
            if name in self.named:
                return self.named[name]
        return self.positional[index] if 0 <= index < len(self.positional) else None

    def pairs(self) -> list[Pair]:
        return [*self.positional, *self.named.values()]

    def values(self) -> Iterator[Value]:
        return (v for _, v in self.pairs())

    def plain(self) -> list[Pair]:
        """Arguments that are no tuples."""
        return [(n, v) for n, v in self.pairs() if v.items is None]

    def flat(self) -> Iterator[Pair]:
        """Arguments, and the elements of those that are tuples in the text."""
        todo = self.pairs()
        while todo:
            node, value = todo.pop(0)
            if value.items is None:
                yield node, value
            elif isinstance(node, (cst.Tuple, cst.List)):
                todo = [(e.value, v) for e, v in zip(node.elements, value.items, strict=True)] + todo

    def rest(self, *used: cst.BaseExpression | None) -> list[tuple[cst.BaseExpression, tuple[int, ...] | None]]:
        """Operands that are scalars. Tiles where none is expected keep their axes whole."""
        out: list[tuple[cst.BaseExpression, tuple[int, ...] | None]] = []
        for node, value in self.flat():
            if all(node is not u for u in used):
                self.run.block(value.axes or (), f"is an argument of `{code(self.node.func)}`", self.node)
                if value.axes == ():
                    out.append((node, ()))
        return out


def language(run: Run, call: Arguments, name: str) -> Value:
    """The value of `triton.language.<name>(...)`."""
    name = name.removeprefix("math.")
    if name in STORES or name == "load":
        run.stores |= name != "load"
        return _memory(run, call)
    if name in ELEMENTWISE or name.startswith(("extra.libdevice.", "extra.cuda.libdevice.")):
        return run.spread(call.node, call.plain())
    handler = _HANDLERS.get(name)
    return handler(run, call, name) if handler is not None else run.not_known(call)


def _memory(run: Run, call: Arguments) -> Value:
    """The address says the shape; masks and values broadcast to it."""
    pairs = call.plain()
    address = call.get(0, "pointer")
    if address is None:
        return run.not_known(call)
    if address[1].axes is None:
        return run.unclear(call.node, call.plain())
    return run.spread(call.node, pairs, like=next(i for i, (n, _) in enumerate(pairs) if n is address[0]))


def _number(pair: Pair | None) -> int | None:
    value = pair[1].number.value if pair is not None and pair[1].kind == NUMBER else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _dim(pair: Pair | None, rank: int) -> int | None:
    """The number of an axis, counted from 0; None for what is not known or does not exist."""
    at = _number(pair)
    if at is None or not -rank <= at < rank:
        return None
    return at % rank


def _sizes(run: Run, pair: Pair | None,
           ) -> tuple[tuple[Axis, ...], dict[cst.BaseExpression, int]] | None:
    """The axes that a shape argument makes, and where each length is written; None unless it is written out."""
    if pair is None:
        return None
    node, value = pair
    if value.items is not None and isinstance(node, (cst.Tuple, cst.List)):
        parts = [(e.value, v) for e, v in zip(node.elements, value.items, strict=True)]
    elif value.kind == NUMBER:
        parts = [pair]
    else:
        return None
    if not all(v.kind == NUMBER for _, v in parts):
        return None
    return tuple(run.axis(n, v) for n, v in parts), {n: i for i, (n, _) in enumerate(parts)}


def _arange(run: Run, call: Arguments, name: str) -> Value:
    start, end = call.get(0, "start"), call.get(1, "end")
    if start is None or end is None or start[1].kind != NUMBER or end[1].kind != NUMBER:
        return run.not_known(call)
    first, last = _number(start), _number(end)
    length = end[1]
    if first != 0:
        known = last - first if first is not None and last is not None else None
        length = Value((), NUMBER, Number(params=start[1].number.params | length.number.params, value=known))
    axis = run.axis(call.node, length)
    run.found.spreads[call.node] = Spread((axis,), [], kind=ARANGE, starts={start[0]: 0}, lengths={end[0]: 0})
    return Value((axis,))


def _filled(run: Run, call: Arguments, name: str) -> Value:
    shape = call.get(0, "shape")
    sizes = _sizes(run, shape)
    if sizes is None:
        return run.not_known(call)
    run.found.spreads[call.node] = Spread(sizes[0], call.rest(*sizes[1]), lengths=sizes[1])
    return Value(sizes[0])


def _broadcast_to(run: Run, call: Arguments, name: str) -> Value:
    source, sizes = call.get(0, "input"), _sizes(run, call.get(1, "shape"))
    if source is None or source[1].axes is None or sizes is None or len(call.pairs()) != 2 \
            or len(sizes[0]) < len(source[1].axes):
        return run.not_known(call)
    out, old = sizes[0], source[1].axes
    for axis, new in zip(old, out[len(out) - len(old):], strict=True):
        if not axis.one:
            run.unite(new, axis, call.node)
    places = tuple(range(len(out) - len(old), len(out)))
    run.found.spreads[call.node] = Spread(out, [(source[0], places)], lengths=sizes[1])
    return Value(out)


def _block_pointer(run: Run, call: Arguments, name: str) -> Value:
    offsets, shape = call.get(3, "offsets"), call.get(4, "block_shape")
    sizes = _sizes(run, shape)
    if sizes is None or offsets is None or not isinstance(offsets[0], (cst.Tuple, cst.List)) \
            or len(offsets[0].elements) != len(sizes[0]):
        return run.not_known(call)
    starts = {e.value: i for i, e in enumerate(offsets[0].elements)}
    run.found.spreads[call.node] = Spread(sizes[0], call.rest(*sizes[1]), lengths=sizes[1], starts=starts)
    return Value(sizes[0])


def _advance(run: Run, call: Arguments, name: str) -> Value:
    base = call.get(0, "base")
    if base is None or base[1].axes is None:
        return run.not_known(call)
    axes = base[1].axes
    run.found.spreads[call.node] = Spread(axes, [(base[0], tuple(range(len(axes)))), *call.rest(base[0])])
    return Value(axes)


def _dot(run: Run, call: Arguments, name: str) -> Value:
    a, b, acc = call.get(0, "input"), call.get(1, OTHER), call.get(2, "acc")
    if a is None or b is None:
        return run.not_known(call)
    if a[1].axes is None or b[1].axes is None:
        return run.unclear(call.node, [a, b])
    if len(a[1].axes) != len(b[1].axes) or len(a[1].axes) < 2:
        return run.not_known(call)
    left, right = a[1].axes, b[1].axes
    batch = len(left) - 2
    for x, y in zip(left[:batch], right[:batch], strict=True):
        run.unite(x, y, call.node)
    run.unite(left[-1], right[-2], call.node)
    run.consumed(left[-1], call.node)
    out = (*left[:-1], right[-1])
    heads = tuple(range(batch))
    rank = len(out)
    operands = [(a[0], (*heads, batch, rank)), (b[0], (*heads, rank, batch + 1))]
    if acc is not None and acc[1].kind != NONE:
        if acc[1].axes is None or len(acc[1].axes) != rank:
            return run.not_known(call)
        for x, y in zip(out, acc[1].axes, strict=True):
            run.unite(x, y, call.node)
        operands.append((acc[0], tuple(range(rank))))
    used = [a[0], b[0], *([acc[0]] if acc else [])]
    run.found.spreads[call.node] = Spread((*out, left[-1]), [*operands, *call.rest(*used)], join="+",
                                          once=acc[0] if acc and acc[1].kind != NONE else None)
    return Value(out)


def _trans(run: Run, call: Arguments, name: str) -> Value:
    source = call.get(0, "input")
    if source is None or source[1].axes is None:
        return run.not_known(call)
    axes = source[1].axes
    order = call.named.get("dims")
    given = [order] if order else call.positional[1:]
    if len(given) == 1 and given[0][1].items is not None:
        numbers = [v.number.value for v in given[0][1].items]
    else:
        numbers = [v.number.value for _, v in given]
    if not numbers and len(axes) == 2:
        numbers = [1, 0]
    if sorted(n for n in numbers if isinstance(n, int)) != list(range(len(axes))):
        return run.not_known(call)
    perm = [n for n in numbers if isinstance(n, int)]
    out = tuple(axes[p] for p in perm)
    run.found.spreads[call.node] = Spread(out, [(source[0], tuple(perm.index(i) for i in range(len(axes))))])
    return Value(out)


def _expand_dims(run: Run, call: Arguments, name: str) -> Value:
    source, at = call.get(0, "input"), call.get(1, "axis")
    if source is None or source[1].axes is None:
        return run.not_known(call)
    axes = source[1].axes
    dim = _dim(at, len(axes) + 1)
    if dim is None:
        return run.not_known(call)
    one = run.named.setdefault((call.node, 0), Axis(one=True))
    places = tuple(i if i < dim else i + 1 for i in range(len(axes)))
    out = (*axes[:dim], one, *axes[dim:])
    run.found.spreads[call.node] = Spread(out, [(source[0], places)])
    return Value(out)


def _reduced(run: Run, call: Arguments, name: str) -> Value:
    """`tl.sum(x, axis)` and its like. Where two parts cannot be put together again, the axis stays whole."""
    source, axis, keep = call.get(0, "input"), call.get(1, "axis", "dim"), call.named.get("keep_dims")
    if source is None or source[1].axes is None:
        return run.not_known(call)
    axes = source[1].axes
    everything = axis is None or axis[1].kind == NONE
    dims = list(range(len(axes))) if everything else [d for d in [_dim(axis, len(axes))] if d is not None]
    more = len(call.positional) > (3 if name == "reduce" else 2) or "return_indices" in call.named
    kept = keep is not None and keep[1].number.value is True
    if (not dims and not everything) or more or (keep is not None and keep[1].number.value not in (True, False)) \
            or (kept and everything):
        return run.not_known(call)
    join = JOINS.get(name, "")
    for d in dims:
        if not join:
            run.block([axes[d]], f"is reduced by `{name}`", call.node)
        run.consumed(axes[d], call.node)
    out: list[Axis] = []
    places: list[int] = [0] * len(axes)
    rank = len(axes) - len(dims) + (len(dims) if kept else 0)
    for i, one in enumerate(axes):
        if i not in dims:
            places[i] = len(out)
            out.append(one)
        elif kept:
            out.append(run.named.setdefault((call.node, 0), Axis(one=True)))
    for n, d in enumerate(dims):
        places[d] = rank + n
    operands = [(source[0], tuple(places)), *call.rest(source[0])]
    run.found.spreads[call.node] = Spread((*out, *(axes[d] for d in dims)), operands, join=join)
    return Value(tuple(out))


def _ordered(run: Run, call: Arguments, name: str) -> Value:
    """Scans and what reorders along an axis: that one stays whole, the others do not matter."""
    source, axis = call.get(0, "input", "x"), call.get(SCANS[name], "axis", "dim")
    if source is None or source[1].axes is None or source[1].items is not None:
        return run.not_known(call)
    axes = source[1].axes
    default = {"cumsum": 0, "cumprod": 0, "flip": len(axes) - 1, "sort": len(axes) - 1}.get(name)
    dim = default if axis is None or axis[1].kind == NONE else _dim(axis, len(axes))
    if dim is None or not 0 <= dim < len(axes):
        return run.not_known(call)
    run.block([axes[dim]], f"is the one that `{name}` runs along", call.node)
    run.found.spreads[call.node] = Spread(axes, [(source[0], tuple(range(len(axes)))), *call.rest(source[0])])
    return Value(axes)


def _gather(run: Run, call: Arguments, name: str) -> Value:
    run.block_values(call.values(), "is gathered from", call.node)
    index = call.get(1, "index")
    return Value(index[1].axes) if index is not None else run.not_known(call)


def _reshaped(run: Run, call: Arguments, name: str) -> Value:
    """The new axes are other ones: neither these nor those can be cut."""
    source = call.get(0, "input")
    if source is None:
        return run.not_known(call)
    run.block_values([source[1]], f"is lost in a `{name}`", call.node)
    rest = call.positional[1:] or [p for k, p in call.named.items() if k == "shape"]
    if len(rest) == 1 and rest[0][1].items is not None and isinstance(rest[0][0], (cst.Tuple, cst.List)):
        rest = [(e.value, v) for e, v in zip(rest[0][0].elements, rest[0][1].items, strict=True)]
    if not rest or not all(v.kind == NUMBER for _, v in rest):
        return run.not_known(call)
    axes = tuple(run.axis(n, v) for n, v in rest)
    run.block(axes, f"comes out of a `{name}`", call.node)
    run.found.spreads[call.node] = Spread(axes, call.rest(source[0]) + (
        [(source[0], ())] if source[1].axes == () else []))
    return Value(axes)


def _constexpr(run: Run, call: Arguments, name: str) -> Value:
    return call.positional[0][1] if call.positional else run.not_known(call)


def _hint(run: Run, call: Arguments, name: str) -> Value:
    """`tl.multiple_of` and its like: what is said of a whole tile need not hold for its parts."""
    first = call.positional[:1]
    run.block_values((v for _, v in first), f"is what `{name}` speaks of", call.node)
    return run.spread(call.node, first)


def _dtype(run: Run, call: Arguments, name: str) -> Value:
    run.block_values(call.values(), f"is an argument of `{name}`", call.node)
    return Value((), OTHER)


def _check(run: Run, call: Arguments, name: str) -> Value:
    run.block_values(call.values(), f"is an argument of `{name}`", call.node)
    return Value()


_HANDLERS: dict[str, Callable[[Run, Arguments, str], Value]] = {
    "arange": _arange, "zeros": _filled, "full": _filled, "broadcast_to": _broadcast_to,
    "make_block_ptr": _block_pointer, "advance": _advance, "dot": _dot, "trans": _trans, "permute": _trans,
    "expand_dims": _expand_dims, "reshape": _reshaped, "view": _reshaped, "ravel": _reshaped, "gather": _gather,
    "constexpr": _constexpr, "multiple_of": _hint, "max_contiguous": _hint, "max_constancy": _hint,
    "pointer_type": _dtype, "static_assert": _check, "static_print": _check,
    "device_assert": _check, "device_print": _check,
    **dict.fromkeys((*JOINS, "argmax", "argmin", "reduce"), _reduced), **dict.fromkeys(SCANS, _ordered),
}
