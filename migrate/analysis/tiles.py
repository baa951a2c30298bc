"""Inside a kernel: the symbolic tile shape and the dtype of each value.

One pass over the body, in the order of execution. Where branches or the rounds of a loop disagree, the value is
unknown; what is not understood is unknown too. The promotion rules are those of triton 3.2 (semantic.py).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from migrate.analysis.kernels import Kernel, is_jit, match_args
from migrate.edit import parameters
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source

Shape = tuple[str, ...]
UNKNOWN_SIZE = "?"
LANGUAGE = "triton.language."
HELPER_DEPTH = 5
LOOP_ROUNDS = 4

HALF = frozenset({"float16", "bfloat16"})
FLOATS = HALF | {"float32", "float64"}
INTS = {"int1": 1, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64,
        "uint64": 64}
FP8 = frozenset({"float8e4nv", "float8e5", "float8e4b15", "float8e4b8", "float8e5b16"})
DTYPES = FLOATS | INTS.keys() | FP8

NUMBER = "number"       # a Python number when the kernel is compiled: a literal, a tl.constexpr
TENSOR = "tensor"       # a tile, or a scalar in a register
DTYPE = "dtype"         # tl.float32, x.dtype
NONE = "none"


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value; the default says nothing.

    `dtype` is a name (`float32`), `elem:q` for whatever parameter `q` holds or points at, `dtype:OUT` for a
    constexpr that names a dtype, or "" for unknown. `points` is the same for what a pointer points at.
    """

    shape: Shape | None = None          # () is a scalar
    dtype: str = ""
    points: str = ""
    kind: str = ""                      # "" may be a number or a tensor: a parameter without annotation
    text: str = ""                      # a number as an expression: `BLOCK // 2`
    items: tuple[Value, ...] | None = None


UNKNOWN = Value()
SCALAR_INT = Value((), "int32", kind=TENSOR)


class Tiles:
    """Values of the expressions of one kernel."""

    def __init__(self, values: dict[cst.CSTNode, Value]) -> None:
        self._values = values

    def of(self, node: cst.CSTNode) -> Value:
        """The value of an expression where it stands; `Value()` for what was not reached or not understood."""
        return self._values.get(node, UNKNOWN)

    def shapes(self, source: Source) -> set[Shape | None]:
        """The tile shapes that occur; None among them where that of a load is not understood."""
        found: set[Shape | None] = {value.shape for value in self._values.values() if value.shape}
        if any(value.shape is None and calls(source, node, "load")
               for node, value in self._values.items() if isinstance(node, cst.Call)):
            found.add(None)
        return found


def tiles(kernel: Kernel) -> Tiles:
    """Cached for as long as the kernel's statement is unchanged.

    A function that returns something is a helper, which may be handed tiles; a kernel gets scalars and pointers.
    """
    memo = kernel.source.tree.unit(kernel.node).memo
    found = memo.get(("tiles", kernel.node))
    if found is None:
        run = _Run(kernel.source, {}, {})
        shape = None if any(r.value for r in find(kernel.node.body, cst.Return)) else ()
        run.function(kernel.node, [_parameter(p.name, p.constexpr, shape) for p in kernel.params.values()])
        found = memo[("tiles", kernel.node)] = Tiles(run.values)
    return found


def kernel_at(source: Source, node: cst.CSTNode) -> Kernel | None:
    """The Triton function whose body holds a node, also one that a later definition of the same name hides."""
    function = source.tree.enclosing(node, cst.FunctionDef)
    if function is None:
        return None
    memo = source.tree.unit(function).memo
    key = ("kernel", function)
    if key not in memo:
        if not function.decorators or not is_jit(source, function):
            return None
        memo[key] = Kernel(source, function)
    kernel: Kernel = memo[key]
    return kernel


def dotted(node: cst.CSTNode) -> str:
    """`a.b.c` of plain names; "" for anything else."""
    parts: list[str] = []
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return ""
    if not parts:
        return node.value
    parts.append(node.value)
    return ".".join(reversed(parts))


def called(source: Source, func: cst.BaseExpression) -> str:
    """The function that a call names, through imports and through `exp = tl.exp` at module level."""
    name = dotted(func)
    if not name:
        return ""
    head, dot, tail = name.partition(".")
    if not dot and head not in source.definitions:
        for _ in range(3):
            if head in source.imports or head not in source.constants:
                break
            alias = dotted(source.constants[head])
            if not alias:
                break
            head, dot, tail = alias.partition(".")
            if dot:
                break
    full = source.imports.get(head, head) + dot + tail
    module, _, attribute = full.rpartition(".")
    if module and source.project and not full.startswith("triton."):
        other = source.project.module(module)
        if other is not None and attribute in other.constants and attribute not in other.definitions:
            return called(other, cst.Name(attribute))
    return full


def calls(source: Source, call: cst.Call, function: str) -> bool:
    """Whether a call is one of `triton.language.<function>`; quick for all the calls that are not."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value != function:
        return False
    return called(source, func) == LANGUAGE + function


def accumulator(product: cst.Call) -> cst.BaseExpression | None:
    """c of `tl.dot(a, b, c)`."""
    return next((arg.value for arg, name in match_args(product, ["input", "other", "acc"]) if name == "acc"), None)


def without_casts(source: Source, value: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """An expression without casts and transposes, which may be no work of their own."""
    while isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute) and value.func.attr.value == "to":
            value = value.func.value
        elif value.args and any(calls(source, value, name) for name in ("trans", "cast")):
            value = value.args[0].value
        else:
            break
    return value


def _parameter(name: str, constexpr: bool, shape: Shape | None) -> Value:
    if constexpr:
        return Value((), kind=NUMBER, text=name)
    return Value(shape, "elem:" + name, "elem:" + name)


def promote(a: Value, b: Value) -> str:
    """The dtype of `a + b`: a number never promotes a float, float32 wins."""
    if (a.kind == NUMBER) != (b.kind == NUMBER):
        number, tensor = (a, b) if a.kind == NUMBER else (b, a)
        if tensor.dtype not in INTS:
            # An element of unknown type counts as a float here: an integer one would become float32 with a float.
            return tensor.dtype
        if number.dtype == "float32":
            return "float32"
        return tensor.dtype if number.dtype in INTS and tensor.dtype != "int1" else ""
    x, y = a.dtype, b.dtype
    if x == y:
        return x
    if "float64" in (x, y):
        return "float64"
    if "float32" in (x, y):
        return "float32"
    if x in INTS and y in INTS:
        return (x if INTS[x] > INTS[y] else y) if x[0] == y[0] else ""
    if {x, y} == HALF:
        return ""                               # differs between releases of Triton
    for half, other in ((x, y), (y, x)):
        if other in INTS:
            return "float16" if half == "float16" else "float32" if half == "bfloat16" else ""
    return ""


def broadcast(a: Shape | None, b: Shape | None) -> Shape | None:
    if a == b or b == ():
        return a
    if a == ():
        return b
    if a is None or b is None:
        return None
    width = max(len(a), len(b))
    a, b = ("1",) * (width - len(a)) + a, ("1",) * (width - len(b)) + b
    return tuple(y if x == "1" else x if y in ("1", x) else UNKNOWN_SIZE for x, y in zip(a, b, strict=True))


def join(a: Value, b: Value) -> Value:
    """What holds for both."""
    if a == b or b.kind == NONE:
        return a
    if a.kind == NONE:
        return b
    items = None
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        items = tuple(join(x, y) for x, y in zip(a.items, b.items, strict=True))
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(x if x == y else UNKNOWN_SIZE for x, y in zip(a.shape, b.shape, strict=True))
    return Value(shape, a.dtype if a.dtype == b.dtype else "", a.points if a.points == b.points else "",
                 a.kind if a.kind == b.kind else "", a.text if a.text == b.text else "", items)


class _Args:
    """Values of a call's arguments, by position or by name."""

    def __init__(self, run: _Run, call: cst.Call, first: Value | None = None) -> None:
        self.positional = [] if first is None else [first]
        self.named: dict[str, Value] = {}
        self.starred = False
        for arg in call.args:
            value = run.value(arg.value)
            if arg.star:
                self.starred = True
            elif arg.keyword is not None:
                self.named[arg.keyword.value] = value
            else:
                self.positional.append(value)

    def get(self, index: int, name: str) -> Value | None:
        if name in self.named:
            return self.named[name]
        return self.positional[index] if 0 <= index < len(self.positional) and not self.starred else None

    def first(self) -> Value:
        if self.positional:
            return self.positional[0]
        return next(iter(self.named.values()), UNKNOWN)


Env = dict[str, Value]


class _Run:
    """Walks one function. `helpers` remembers what calls of helpers returned."""

    def __init__(self, source: Source, helpers: dict[Any, Value], values: dict[cst.CSTNode, Value],
                 depth: int = 0) -> None:
        self.source, self.helpers, self.values, self.depth = source, helpers, values, depth
        self.env: Env = {}
        self.returned: Value | None = None
        self.names: dict[cst.CSTNode, str] = {}

    def function(self, node: cst.FunctionDef, args: list[Value]) -> Value:
        params = parameters(node)
        self.env = {p.name.value: v for p, v in zip(params, args, strict=True)}
        self.block(node.body)
        return self.returned or UNKNOWN

    # Statements. Each returns whether the code after it is out of reach.

    def block(self, body: cst.BaseSuite) -> bool:
        step: Any = self.small if type(body) is cst.SimpleStatementSuite else self.statement
        return any(step(statement) for statement in body.body)

    def statement(self, node: cst.CSTNode) -> bool:
        kind = type(node)
        if kind is cst.SimpleStatementLine:
            return any([self.small(s) for s in node.body])      # type: ignore[attr-defined]
        if kind is cst.If:
            return self.branch(node)                            # type: ignore[arg-type]
        if kind is cst.For:
            self.value(node.iter)                               # type: ignore[attr-defined]
            self.loop(node.body, node)                          # type: ignore[attr-defined]
        elif kind is cst.While:
            self.value(node.test)                               # type: ignore[attr-defined]
            self.loop(node.body, node)                          # type: ignore[attr-defined]
        elif kind is cst.With:
            return self.block(node.body)                        # type: ignore[attr-defined]
        return False

    def small(self, node: cst.BaseSmallStatement) -> bool:
        kind = type(node)
        if kind is cst.Assign:
            value = self.value(node.value)                      # type: ignore[attr-defined]
            for target in node.targets:                         # type: ignore[attr-defined]
                self.bind(target.target, _assigned(value))
        elif kind is cst.AnnAssign:
            value = self.value(node.value) if node.value else UNKNOWN       # type: ignore[attr-defined]
            constexpr = dotted(node.annotation.annotation).endswith("constexpr")        # type: ignore[attr-defined]
            self.bind(node.target, value if constexpr else _assigned(value))            # type: ignore[attr-defined]
        elif kind is cst.AugAssign:
            left, right = self.value(node.target), self.value(node.value)               # type: ignore[attr-defined]
            self.bind(node.target, _assigned(_arithmetic(left, right, type(node.operator).__name__)))   # type: ignore[attr-defined]
        elif kind is cst.Expr:
            self.value(node.value)                              # type: ignore[attr-defined]
        elif kind is cst.Return:
            value = self.value(node.value) if node.value else Value(kind=NONE)          # type: ignore[attr-defined]
            self.returned = value if self.returned is None else join(self.returned, value)
            return True
        elif kind is cst.Assert:
            self.value(node.test)                               # type: ignore[attr-defined]
        return kind in (cst.Break, cst.Continue, cst.Raise)

    def bind(self, target: cst.BaseExpression, value: Value) -> None:
        if type(target) is cst.Name:
            self.env[target.value] = value
        elif isinstance(target, (cst.Tuple, cst.List)):
            items = value.items
            if items is None or len(items) != len(target.elements):
                items = (UNKNOWN,) * len(target.elements)
            for element, item in zip(target.elements, items, strict=True):
                self.bind(element.value, _assigned(item))

    def branch(self, node: cst.If) -> bool:
        self.value(node.test)
        before = dict(self.env)
        done = self.block(node.body)
        after, self.env = self.env, before
        orelse = node.orelse
        other = False
        if isinstance(orelse, cst.If):
            other = self.branch(orelse)
        elif orelse is not None:
            other = self.block(orelse.body)
        if other:
            self.env = after
        elif not done:
            self.env = _merge(after, self.env)
        return done and other

    def loop(self, body: cst.BaseSuite, node: cst.CSTNode) -> None:
        for round_ in range(LOOP_ROUNDS + 1):
            before = self.env
            self.env = dict(before)
            if type(node) is cst.For:
                self.bind(node.target, self.counter(node))
            elif type(node) is cst.While and round_:
                self.value(node.test)
            self.block(body)
            after = _merge(before, self.env)
            if all(after[name] == value for name, value in before.items()):
                self.env = after
                return
            if round_ >= LOOP_ROUNDS - 1:               # it does not settle: what the loop changes is unknown
                after = {n: v if before.get(n, v) == v else UNKNOWN for n, v in after.items()}
            self.env = after

    def counter(self, node: cst.For) -> Value:
        call = node.iter
        if type(call) is cst.Call:
            name = called(self.source, call.func)
            if name in ("range", LANGUAGE + "range"):
                return SCALAR_INT
            if name == LANGUAGE + "static_range":
                return Value((), "int32", kind=NUMBER, text=dotted(node.target))
        return UNKNOWN

    # Expressions

    def value(self, node: cst.CSTNode) -> Value:
        method = _EXPRESSIONS.get(type(node))
        found = method(self, node) if method is not None else UNKNOWN
        self.values[node] = found
        return found

    def name(self, node: cst.Name) -> Value:
        found = self.env.get(node.value)
        if found is not None:
            return found
        if node.value == "None":
            return Value(kind=NONE)
        if node.value in ("True", "False"):
            return Value((), "int1", kind=NUMBER, text=node.value)
        full = self.source.imports.get(node.value, "")
        if full.startswith(LANGUAGE):
            return _dtype(full.removeprefix(LANGUAGE))
        if node.value in self.source.constants:         # a module-level tl.constexpr(...)
            return Value((), kind=NUMBER, text=node.value)
        return UNKNOWN

    def attribute(self, node: cst.Attribute) -> Value:
        full = dotted(node)
        head, _, tail = full.partition(".")
        if full and head not in self.env:
            full = self.source.imports.get(head, head) + "." + tail
            if full.startswith(LANGUAGE):
                return _dtype(full.removeprefix(LANGUAGE))
            return UNKNOWN
        base, attribute = self.value(node.value), node.attr.value
        if attribute in ("dtype", "type"):
            return Value(dtype=base.dtype, points=base.points, kind=DTYPE)
        if attribute == "element_ty" and base.kind == DTYPE:
            return Value(dtype=base.points or base.dtype, kind=DTYPE)
        if attribute == "scalar" and base.kind == DTYPE:
            return base
        if attribute == "shape" and base.shape is not None:
            return _tuple(Value((), "int32", kind=NUMBER, text=size) for size in base.shape)
        if attribute == "T":
            return replace(base, shape=_reversed(base.shape))
        return UNKNOWN

    def number(self, node: Any) -> Value:
        return Value((), "int32" if type(node) is cst.Integer else "float32", kind=NUMBER, text=node.value)

    def tuple(self, node: Any) -> Value:
        return _tuple(self.value(e.value) for e in node.elements)

    def binary(self, node: cst.BinaryOperation) -> Value:
        return _arithmetic(self.value(node.left), self.value(node.right), type(node.operator).__name__)

    def unary(self, node: cst.UnaryOperation) -> Value:
        value = self.value(node.expression)
        if type(node.operator) is cst.Not:
            return Value(value.shape, "int1", kind=value.kind)
        text = "-" + value.text if value.text and type(node.operator) is cst.Minus else ""
        return replace(value, points="", text=text)

    def boolean(self, node: cst.BooleanOperation) -> Value:
        a, b = self.value(node.left), self.value(node.right)
        return Value(broadcast(a.shape, b.shape), "int1", kind=_kind(a, b))

    def comparison(self, node: cst.Comparison) -> Value:
        found = self.value(node.left)
        for target in node.comparisons:
            other = self.value(target.comparator)
            found = Value(broadcast(found.shape, other.shape), "int1", kind=_kind(found, other))
        return found

    def conditional(self, node: cst.IfExp) -> Value:
        self.value(node.test)
        return join(self.value(node.body), self.value(node.orelse))

    def subscript(self, node: cst.Subscript) -> Value:
        base = self.value(node.value)
        index = [e.slice for e in node.slice]
        if len(index) == 1 and isinstance(index[0], cst.Index):
            only = self.value(index[0].value)
            if base.items is not None:
                at = index[0].value
                if type(at) is cst.Integer and at.evaluated_value < len(base.items):
                    return base.items[at.evaluated_value]
                return UNKNOWN
            if only.kind != NONE:
                return UNKNOWN
        if base.shape is None:
            return replace(base, text="", items=None)
        shape, left = [], list(base.shape)
        for part in index:
            if isinstance(part, cst.Slice):
                if part.lower or part.upper or not left:
                    return replace(base, shape=None)
                shape.append(left.pop(0))
            elif isinstance(part, cst.Index) and self.value(part.value).kind == NONE:
                shape.append("1")
            else:
                return replace(base, shape=None)
        return replace(base, shape=tuple(shape + left), text="")

    def call(self, node: cst.Call) -> Value:
        func = node.func
        full = dotted(func)
        head = full.partition(".")[0]
        if full and head not in self.env:
            name = self.names.get(func)
            if name is None:
                name = self.names[func] = called(self.source, func)
            args = _Args(self, node)
            if name.startswith(LANGUAGE):
                return self.language(name.removeprefix(LANGUAGE), args)
            if name == "float" and args.positional:
                return Value((), "float32", kind=NUMBER)
            if type(func) is cst.Name:
                return self.helper(func.value, args)
            return UNKNOWN
        if type(func) is not cst.Attribute:
            self.value(func)
            _Args(self, node)
            return UNKNOWN
        receiver = self.value(func.value)
        args = _Args(self, node, receiver)
        if func.attr.value == "load" and receiver.points:            # a tensor descriptor
            return Value(receiver.shape, receiver.points, kind=TENSOR)
        return self.language("cast" if func.attr.value == "to" else func.attr.value, args)

    def language(self, name: str, args: _Args) -> Value:
        name = name.removeprefix("math.")
        if name.startswith("extra."):
            return Value(_all_shapes(args), "float32" if "libdevice." in name else "", kind=TENSOR)
        if name in _MATH:
            return Value(args.first().shape, "float32", kind=TENSOR)
        handler = _FUNCTIONS.get(name)
        return handler(args) if handler is not None else Value(kind=TENSOR) if name in _TENSOR else UNKNOWN

    def helper(self, name: str, args: _Args) -> Value:
        found = self.source.resolve(name) if self.depth < HELPER_DEPTH else None
        if found is None or args.starred or not is_jit(*found):
            return UNKNOWN
        source, node = found
        params = parameters(node)
        inner = _Run(source, self.helpers, {}, self.depth + 1)
        bound = []
        for i, param in enumerate(params):
            given = args.get(i, param.name.value)
            if given is None:
                given = inner.value(param.default) if param.default is not None else UNKNOWN
            bound.append(given)
        key = (node, tuple(bound))
        if key not in self.helpers:
            self.helpers[key] = UNKNOWN         # what a recursive call finds
            self.helpers[key] = inner.function(node, bound)
        return self.helpers[key]


_EXPRESSIONS: dict[type, Callable[[_Run, Any], Value]] = {
    cst.Name: _Run.name, cst.Attribute: _Run.attribute, cst.Integer: _Run.number, cst.Float: _Run.number,
    cst.Tuple: _Run.tuple, cst.List: _Run.tuple, cst.BinaryOperation: _Run.binary, cst.UnaryOperation: _Run.unary,
    cst.BooleanOperation: _Run.boolean, cst.Comparison: _Run.comparison, cst.IfExp: _Run.conditional,
    cst.Subscript: _Run.subscript, cst.Call: _Run.call,
}


def _assigned(value: Value) -> Value:
    """`x = 1.0` makes a tensor: only an annotation of tl.constexpr keeps a number a number."""
    if value.kind == NUMBER:
        return replace(value, kind=TENSOR, shape=())
    return value


def _merge(a: Env, b: Env) -> Env:
    """After a branch. A name that one side lacks is only read where the other side ran."""
    if a == b:
        return dict(a)
    out = dict(a)
    for name, value in b.items():
        old = a.get(name)
        out[name] = value if old is None or old is value else join(old, value)
    return out


def _dtype(name: str) -> Value:
    name = name.rpartition(".")[2]
    return Value(dtype=name, kind=DTYPE) if name in DTYPES else UNKNOWN


def _named_dtype(value: Value | None) -> str:
    """The dtype that an argument such as `dtype=` names."""
    if value is None:
        return ""
    if value.kind == DTYPE:
        return value.dtype
    return "dtype:" + value.text if value.kind == NUMBER and value.text.isidentifier() else ""


def _tuple(items: Iterator[Value]) -> Value:
    return Value(items=tuple(items))


def _reversed(shape: Shape | None) -> Shape | None:
    return None if shape is None else shape[::-1]


def _kind(*values: Value) -> str:
    kinds = {v.kind for v in values}
    return TENSOR if TENSOR in kinds else NUMBER if kinds == {NUMBER} else ""


_SIGNS = {"Add": "+", "Subtract": "-", "Multiply": "*", "FloorDivide": "//", "Divide": "/", "Modulo": "%",
          "Power": "**"}


def _arithmetic(a: Value, b: Value, operator: str) -> Value:
    operator = operator.removesuffix("Assign")
    kind, shape = _kind(a, b), broadcast(a.shape, b.shape)
    if kind == NUMBER:
        dtype = "float32" if operator == "Divide" or "float32" in (a.dtype, b.dtype) else \
            "int32" if a.dtype == b.dtype == "int32" else ""
        sign = _SIGNS.get(operator, "")
        text = f"{_operand(a.text)} {sign} {_operand(b.text)}" if sign and a.text and b.text else ""
        return Value(shape, dtype, kind=NUMBER, text=text)
    points = ""
    if operator in ("Add", "Subtract"):
        # The pointer of an address stands on the left by custom; a number or an index is never one.
        points = a.points or (b.points if operator == "Add" else "")
        if a.dtype in INTS and operator == "Add":
            points = b.points
    if operator == "Divide":
        dtype = "float64" if "float64" in (a.dtype, b.dtype) else "float32"     # also int / int, and half precision
    else:
        dtype = promote(a, b)
        if operator in ("Modulo", "FloorDivide") and dtype in HALF:
            dtype = "float32"
    return Value(shape, dtype, points, kind)


def _operand(text: str) -> str:
    return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"


def _all_shapes(args: _Args) -> Shape | None:
    shape: Shape | None = ()
    for value in (*args.positional, *args.named.values()):
        shape = broadcast(shape, value.shape)
    return shape


def _sizes(value: Value | None) -> Shape | None:
    """A shape argument: `[BM, BN]`, `(BM,)`, `x.shape`, or one number."""
    if value is None:
        return None
    if value.items is not None:
        return tuple(v.text or UNKNOWN_SIZE for v in value.items)
    return (value.text,) if value.text else None


def _varargs(args: _Args) -> Shape | None:
    """`reshape(x, [M, N])` and `reshape(x, M, N)`."""
    rest = args.positional[1:] or [v for k, v in args.named.items() if k == "shape"]
    return _sizes(rest[0]) if len(rest) == 1 else tuple(v.text or UNKNOWN_SIZE for v in rest) if rest else None


def _axis(args: _Args, shape: Shape | None, index: int = 1) -> int | None:
    value = args.get(index, "axis") or args.get(index, "dim")
    if value is None or shape is None or not value.text.lstrip("-").isdigit():
        return None
    axis = int(value.text)
    axis += len(shape) if axis < 0 else 0
    return axis if 0 <= axis < len(shape) else None


def _load(args: _Args) -> Value:
    pointer = args.get(0, "pointer") or UNKNOWN
    return Value(pointer.shape, pointer.points, kind=TENSOR)


def _block_pointer(args: _Args) -> Value:
    base = args.get(0, "base") or UNKNOWN
    block = args.get(4, "block_shape") if "strides" not in args.named or "block_shape" in args.named else None
    return Value(_sizes(block), points=base.points, kind=TENSOR)


def _descriptor(args: _Args) -> Value:
    base = args.get(0, "base") or UNKNOWN
    return Value(_sizes(args.get(3, "block_shape")), points=base.points, kind=TENSOR)


def _arange(args: _Args) -> Value:
    start, end = args.get(0, "start") or UNKNOWN, args.get(1, "end") or UNKNOWN
    if not end.text:
        size = UNKNOWN_SIZE
    elif start.text == "0":
        size = end.text
    else:
        size = f"{_operand(end.text)} - {_operand(start.text)}" if start.text else UNKNOWN_SIZE
    return Value((size,), "int32", kind=TENSOR)


def _zeros(args: _Args) -> Value:
    return Value(_sizes(args.get(0, "shape")), _named_dtype(args.get(1, "dtype")), kind=TENSOR)


def _full(args: _Args) -> Value:
    return Value(_sizes(args.get(0, "shape")), _named_dtype(args.get(2, "dtype")), kind=TENSOR)


def _cast(args: _Args) -> Value:
    target = args.get(1, "dtype")
    value = args.first()
    if target is not None and target.kind not in (DTYPE, NUMBER):        # a pointer type: tl.pointer_type(...)
        return Value(value.shape, kind=TENSOR, points=target.points)
    return Value(value.shape, _named_dtype(target), kind=TENSOR)


def _dot(args: _Args) -> Value:
    a, b = args.get(0, "input") or UNKNOWN, args.get(1, "other") or UNKNOWN
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape) >= 2:
        shape = (*a.shape[:-1], b.shape[-1])
    elif (acc := args.get(2, "acc")) is not None:
        shape = acc.shape
    out = args.get(6, "out_dtype")
    dtype = "int32" if a.dtype == "int8" else "float32" if out is None or a.dtype in ("float32", "bfloat16") \
        else _named_dtype(out)
    return Value(shape, dtype, kind=TENSOR)


def _trans(args: _Args) -> Value:
    value = args.first()
    order = args.positional[1:] or ([args.named["dims"]] if "dims" in args.named else [])
    if len(order) == 1 and order[0].items is not None:
        order = list(order[0].items)
    shape = value.shape
    if shape is not None and order:
        axes = [v.text for v in order]
        shape = tuple(shape[int(a)] for a in axes) if sorted(axes) == [str(i) for i in range(len(shape))] else None
    else:
        shape = _reversed(shape) if shape is not None and len(shape) == 2 else None
    return Value(shape, value.dtype, kind=TENSOR)


def _reshape(args: _Args) -> Value:
    value = args.first()
    return Value(_varargs(args), value.dtype, value.points, kind=TENSOR)


def _expand_dims(args: _Args) -> Value:
    value = args.first()
    shape = None
    at = args.get(1, "axis")
    if value.shape is not None and at is not None and at.text.lstrip("-").isdigit():
        axis = int(at.text)
        axis += len(value.shape) + 1 if axis < 0 else 0
        shape = (*value.shape[:axis], "1", *value.shape[axis:])
    return replace(value, shape=shape, kind=TENSOR)


def _reduced(args: _Args, value: Value) -> Shape | None:
    axis = args.get(1, "axis")
    keep = args.named.get("keep_dims")
    if axis is None or axis.kind == NONE:
        return ()
    at = _axis(args, value.shape)
    if value.shape is None or at is None or (keep is not None and keep.text != "True" and keep.text != "False"):
        return None
    kept = ("1",) if keep is not None and keep.text == "True" else ()
    return (*value.shape[:at], *kept, *value.shape[at + 1:])


def _sum(args: _Args) -> Value:
    value = args.first()
    return Value(_reduced(args, value), _sum_dtype(value.dtype), kind=TENSOR)


def _sum_dtype(dtype: str) -> str:
    if dtype == "bfloat16":
        return "float32"
    return dtype if dtype in DTYPES else ""


def _max(args: _Args) -> Value:
    value = args.first()
    dtype = "float32" if value.dtype in FLOATS - {"float64"} else "int32" if INTS.get(value.dtype, 64) < 32 else \
        value.dtype if value.dtype in INTS else ""
    found = Value(_reduced(args, value), dtype, kind=TENSOR)
    if "return_indices" in args.named or len(args.positional) > 2:
        return Value(items=(found, replace(found, dtype="int32")))
    return found


def _argmax(args: _Args) -> Value:
    return Value(_reduced(args, args.first()), "int32", kind=TENSOR)


def _scan(args: _Args) -> Value:
    value = args.first()
    return Value(value.shape, _sum_dtype(value.dtype), kind=TENSOR)


def _same(args: _Args) -> Value:
    value = args.first()
    return value if value.kind == NUMBER else replace(value, kind=TENSOR)


def _associative(args: _Args) -> Value:
    value = args.first()
    return value if value.items is not None else replace(value, kind=TENSOR)


def _promoted(values: list[Value], *, widen: bool) -> Value:
    """Elementwise functions of several values; `widen`: tl.minimum and tl.maximum turn bfloat16 into float32."""
    if widen:
        values = [replace(v, dtype="float32") if v.dtype == "bfloat16" else v for v in values]
    out = values[0]
    for other in values[1:]:
        dtype = promote(out, other)
        out = Value(broadcast(out.shape, other.shape), dtype, kind=_kind(out, other))
    if widen and out.dtype not in DTYPES:
        out = replace(out, dtype="")
    return replace(out, kind=TENSOR, points="", text="")


def _where(args: _Args) -> Value:
    test, a, b = args.get(0, "condition"), args.get(1, "x"), args.get(2, "y")
    if test is None or a is None or b is None:
        return UNKNOWN
    out = _promoted([a, b], widen=False)
    return replace(out, shape=broadcast(test.shape, out.shape), points=a.points if a.points == b.points else "")


def _extremum(args: _Args) -> Value:
    values = [v for v in (args.get(0, "x"), args.get(1, "y")) if v is not None]
    return _promoted(values, widen=True) if len(values) == 2 else UNKNOWN


def _elementwise(args: _Args) -> Value:
    return _promoted(args.positional, widen=False) if args.positional and not args.named else UNKNOWN


def _clamp(args: _Args) -> Value:
    values = [v for v in (args.get(0, "x"), args.get(1, "min"), args.get(2, "max")) if v is not None]
    return _promoted(values, widen=True) if len(values) == 3 else UNKNOWN


def _cdiv(args: _Args) -> Value:
    a, b = args.get(0, "x") or UNKNOWN, args.get(1, "div") or UNKNOWN
    return _arithmetic(a, b, "FloorDivide")


def _join(args: _Args) -> Value:
    out = _elementwise(args)
    return replace(out, shape=None if out.shape is None else (*out.shape, "2"))


def _split(args: _Args) -> Value:
    value = args.first()
    half = Value(None if not value.shape else value.shape[:-1], value.dtype, kind=TENSOR)
    return Value(items=(half, half))


def _gather(args: _Args) -> Value:
    source, index = args.get(0, "src") or UNKNOWN, args.get(1, "index") or UNKNOWN
    return Value(index.shape, source.dtype, kind=TENSOR)


def _pointer_type(args: _Args) -> Value:
    return Value(points=_named_dtype(args.first()))


def _assembly(args: _Args) -> Value:
    inputs = args.get(2, "args")
    shape: Shape | None = ()
    for value in (inputs.items or ()) if inputs else ():
        shape = broadcast(shape, value.shape)
    return Value(shape, _named_dtype(args.get(3, "dtype")), kind=TENSOR)


def _constexpr(args: _Args) -> Value:
    return args.first()


# float32 in, float32 out: a GPU takes nothing else (but float64), and rule ASC301 sees to it on an NPU
_MATH = frozenset({"exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "sqrt_rn", "rsqrt", "erf", "floor", "ceil",
                   "sigmoid", "softmax", "rand", "randn"})
_TENSOR = frozenset({"cat", "histogram", "randint", "dot_scaled"})
_FUNCTIONS: dict[str, Callable[[_Args], Value]] = {
    "load": _load, "make_block_ptr": _block_pointer, "advance": _same, "make_tensor_descriptor": _descriptor,
    "_experimental_make_tensor_descriptor": _descriptor, "arange": _arange, "zeros": _zeros, "full": _full,
    "zeros_like": _same, "cast": _cast, "dot": _dot, "trans": _trans, "permute": _trans, "reshape": _reshape,
    "view": _reshape, "broadcast_to": _reshape, "expand_dims": _expand_dims, "sum": _sum, "max": _max, "min": _max,
    "argmax": _argmax, "argmin": _argmax, "cumsum": _scan, "cumprod": _scan, "associative_scan": _associative,
    "where": _where, "minimum": _extremum, "maximum": _extremum, "clamp": _clamp, "fma": _elementwise,
    "add": _elementwise, "div_rn": _elementwise, "fdiv": _elementwise, "abs": _same, "flip": _same, "sort": _same,
    "multiple_of": _same, "max_contiguous": _same, "max_constancy": _same, "cdiv": _cdiv, "join": _join,
    "interleave": lambda a: replace(_elementwise(a), shape=None), "split": _split, "gather": _gather,
    "ravel": lambda a: replace(_same(a), shape=None), "pointer_type": _pointer_type,
    "inline_asm_elementwise": _assembly, "constexpr": _constexpr,
    "program_id": lambda _: SCALAR_INT, "num_programs": lambda _: SCALAR_INT,
    **dict.fromkeys(("atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_cas"), _load),
}
