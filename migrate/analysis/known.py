"""Values of expressions inside a kernel of which some names are known: `K // 2` for K = 128, `g is None`.

Only what Triton and Python compute alike is worked out. Integers stay below 2**31, where a value that Triton keeps in a
register is the one that Python computes; `//` and `%` want operands that are not negative, because Triton truncates.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from migrate.analysis.control import bindings
from migrate.analysis.tiles import called, dotted
from migrate.asked import Literal
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


class _Present:
    """Some value that is not None."""

    def __repr__(self) -> str:
        return "not None"


UNKNOWN: Any = _Unknown()
PRESENT: Any = _Present()
WORDS: dict[str, Literal] = {"True": True, "False": False, "None": None}
LARGEST = 2 ** 31
TRITON = ("triton.language.", "triton.")

ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    cst.Add: operator.add, cst.Subtract: operator.sub, cst.Multiply: operator.mul, cst.FloorDivide: operator.floordiv,
    cst.Modulo: operator.mod, cst.LeftShift: operator.lshift, cst.RightShift: operator.rshift,
    cst.BitAnd: operator.and_, cst.BitOr: operator.or_, cst.BitXor: operator.xor, cst.Power: operator.pow}
NOT_NEGATIVE = (cst.FloorDivide, cst.Modulo, cst.LeftShift, cst.RightShift, cst.Power)
ORDER: dict[type, Callable[[Any, Any], Any]] = {
    cst.LessThan: operator.lt, cst.LessThanEqual: operator.le, cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "abs": abs, "int": int, "cdiv": lambda a, b: -(-a // b),
    "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else UNKNOWN}


@dataclass(frozen=True)
class Known:
    """What is known of the names of one kernel.

    `text` are names that are written as their value wherever they are read. `held` are names that hold one known
    value and keep their name: they decide branches. `present` are names that are not None.
    """

    source: Source
    text: Mapping[str, Literal] = field(default_factory=dict)
    held: Mapping[str, Literal] = field(default_factory=dict)
    present: frozenset[str] = frozenset()

    def only_text(self) -> Known:
        return replace(self, held={}, present=frozenset())

    def value(self, node: cst.BaseExpression, *, test: bool = False) -> Any:
        """The value, PRESENT or UNKNOWN. In a `test` only its truth matters."""
        method = getattr(self, "_" + type(node).__name__, None)
        if method is None:
            return UNKNOWN
        return method(node, test) if type(node) in (cst.BooleanOperation, cst.UnaryOperation, cst.IfExp) \
            else method(node)

    def _Integer(self, node: cst.Integer) -> Any:
        return node.evaluated_value

    def _Float(self, node: cst.Float) -> Any:
        return node.evaluated_value

    def _SimpleString(self, node: cst.SimpleString) -> Any:
        value = node.evaluated_value
        return value if isinstance(value, str) else UNKNOWN

    def _Name(self, node: cst.Name) -> Any:
        name = node.value
        for table in (WORDS, self.text, self.held):
            if name in table:
                return table[name]
        return PRESENT if name in self.present else UNKNOWN

    def _UnaryOperation(self, node: cst.UnaryOperation, test: bool) -> Any:
        if isinstance(node.operator, cst.Not):
            value = self.value(node.expression, test=True)
            return UNKNOWN if value in (UNKNOWN, PRESENT) else not value
        value = self.value(node.expression)
        if isinstance(node.operator, cst.Minus) and type(value) in (int, float):
            return -value
        return UNKNOWN

    def _BinaryOperation(self, node: cst.BinaryOperation) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        function = ARITHMETIC.get(type(node.operator))
        if function is None or type(left) is not int or type(right) is not int:
            return UNKNOWN
        if isinstance(node.operator, NOT_NEGATIVE) and (left < 0 or right < 0):
            return UNKNOWN
        if isinstance(node.operator, (cst.FloorDivide, cst.Modulo)) and right == 0:
            return UNKNOWN
        if isinstance(node.operator, (cst.Power, cst.LeftShift)) and right > 31:
            return UNKNOWN
        return _small(function(left, right))

    def _BooleanOperation(self, node: cst.BooleanOperation, test: bool) -> Any:
        ends = isinstance(node.operator, cst.Or)        # the truth of an operand that settles the result
        left, right = self.value(node.left, test=test), self.value(node.right, test=test)
        if left is not UNKNOWN and left is not PRESENT:
            return left if bool(left) is ends else right
        settles = right is not UNKNOWN and right is not PRESENT and bool(right) is ends
        if test and settles and pure(self.source, node.left):
            return right
        return UNKNOWN

    def _Comparison(self, node: cst.Comparison) -> Any:
        left = self.value(node.left)
        for target in node.comparisons:
            right = self.value(target.comparator)
            result = _compare(target.operator, left, right)
            if result is UNKNOWN or not result:
                return result
            left = right
        return True

    def _IfExp(self, node: cst.IfExp, test: bool) -> Any:
        value = self.value(node.test, test=True)
        if value is UNKNOWN or value is PRESENT:
            return UNKNOWN
        return self.value(node.body if value else node.orelse, test=test)

    def _Call(self, node: cst.Call) -> Any:
        function = FUNCTIONS.get(folded_call(self.source, node))
        values = [self.value(a.value) for a in node.args]
        if function is None or not values or any(a.star or a.keyword for a in node.args):
            return UNKNOWN
        if any(type(v) is not int for v in values) or (len(values) > 1 and any(v < 0 for v in values[1:])):
            return UNKNOWN
        try:
            return _small(function(*values))
        except (TypeError, ZeroDivisionError):
            return UNKNOWN


def folded_call(source: Source, node: cst.Call) -> str:
    """`cdiv`, `min`, ...: the name of a function that is worked out; "" for any other call."""
    name = called(source, node.func)
    if isinstance(node.func, cst.Name) and name in ("min", "max", "abs", "int"):
        return name
    for prefix in TRITON:
        if name.startswith(prefix) and name.removeprefix(prefix) in ("cdiv", "next_power_of_2"):
            return name.removeprefix(prefix)
    return ""


def _small(value: Any) -> Any:
    return value if type(value) is not int or -LARGEST < value < LARGEST else UNKNOWN


def _compare(how: cst.BaseCompOp, left: Any, right: Any) -> Any:
    if isinstance(how, (cst.Is, cst.IsNot)):
        if left is UNKNOWN or right is UNKNOWN or (left is not None and right is not None):
            return UNKNOWN
        return (left is right) is isinstance(how, cst.Is)
    if UNKNOWN in (left, right) or PRESENT in (left, right):
        return UNKNOWN
    if isinstance(how, (cst.Equal, cst.NotEqual)):
        if None in (left, right) and left is not right:
            return UNKNOWN                      # `x == None` is an error on the device where x is a tensor
        return (left == right) is isinstance(how, cst.Equal)
    function = ORDER.get(type(how))
    if function is None or not all(type(v) in (int, float) for v in (left, right)):
        return UNKNOWN
    return function(left, right)


def locals_of(body: cst.CSTNode, known: Known, but: frozenset[str]) -> dict[str, Literal]:
    """Names that the body binds to one value which is known, whichever of their assignments was the last."""
    found: dict[str, Any] = {}
    for name, node, value in bindings(body):
        plain = isinstance(node, (cst.Assign, cst.AnnAssign)) and value is not None and name not in but
        got = known.value(value) if plain and value is not None else UNKNOWN
        # a float in a register has 32 bits, and a comparison would show it
        if not isinstance(got, bool | int | str | None) or isinstance(got, float):
            got = UNKNOWN
        if name in found and (type(found[name]), found[name]) != (type(got), got):
            got = UNKNOWN
        found[name] = got
    return {name: value for name, value in found.items() if value is not UNKNOWN}


# What may go when nobody reads its value

MATH = frozenset({"exp", "exp2", "log", "log2", "log1p", "sigmoid", "softplus", "tanh", "rsqrt", "sqrt", "fast_exp",
                  "safe_exp", "gather", "make_tensor_descriptor"})
ACTS = frozenset({"store", "device_print", "device_assert", "debug_barrier", "assume", "static_print", "static_assert",
                  "inline_asm_elementwise", "store_tensor_descriptor"})
PYTHON = frozenset({"min", "max", "abs", "int", "float", "bool", "len", "range"})


def pure(source: Source, node: cst.CSTNode, depth: int = 5) -> bool:
    """Whether an expression only computes a value: no store, no atomic, no call that could do either, no binding."""
    if next(find(node, cst.NamedExpr, cst.Await, cst.Yield), None) is not None:
        return False
    return all(_harmless(source, call, depth) for call in find(node, cst.Call))


def _harmless(source: Source, call: cst.Call, depth: int) -> bool:
    name = called(source, call.func)
    last = name.rpartition(".")[2]
    if isinstance(call.func, cst.Attribute):
        last = call.func.attr.value
    if last in ACTS or last.startswith("atomic_"):
        return False
    if name.startswith("triton.") or (isinstance(call.func, cst.Name) and name in PYTHON):
        return True
    if isinstance(call.func, cst.Name):
        helper = source.resolve(call.func.value)
        if helper is not None and depth:
            return pure(helper[0], helper[1].body, depth - 1)
        return last in MATH
    # a method of a value: `.to(tl.float32)`; or a function of a module that is not Triton's
    return dotted(call.func).partition(".")[0] not in source.imports or last in MATH
