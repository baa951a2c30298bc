"""Works out what an expression of an upstream file is worth, without running the file.

Lists of autotune configurations are written as literals, comprehensions, module constants and small helper
functions. `Evaluator` reads those from the syntax tree: it knows integers, strings, lists, dicts, conditions, loops
and calls of functions in the same package, and raises `NotStatic` for the rest. What the machine would answer
(`is this a Hopper?`) comes in as `facts`. No upstream code is executed.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source

STEPS = 20_000              # nodes looked at before giving up
SIZE = 4_096                # longest list, range or string
CONFIG = frozenset({"triton.Config", "triton.runtime.Config", "triton.runtime.autotuner.Config"})


class NotStatic(Exception):
    """The value depends on something that the source text does not say."""


class _Unknown:
    """Stands for a run-time value. Whatever is computed from it is unknown too."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


@dataclass(frozen=True, eq=False)
class Config:
    """One `triton.Config`: tile constants, launch options (`num_warps`, ...), and where it is written."""

    kwargs: dict[str, Any]
    options: dict[str, Any]
    hook: Any
    hook_node: cst.BaseExpression | None
    bound: bool             # written with names that only its surroundings know: a loop variable, a parameter


@dataclass(frozen=True, eq=False)
class Function:
    """A `def` or `lambda` with the names that it sees."""

    source: Source
    node: cst.FunctionDef | cst.Lambda
    env: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Argument:
    """A tensor argument of a launch, as a hook sees it in `nargs["x_ptr"]`."""

    name: str
    zeroed: list[str]


@dataclass(frozen=True, eq=False)
class Arguments:
    """The `nargs` dict that a hook gets; `zeroed` lists the names that it zeroes, in order."""

    zeroed: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Argument:
        return Argument(name, self.zeroed)


@dataclass(frozen=True, eq=False)
class _Method:
    owner: Any
    name: str


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Loop(Exception):
    """`break` or `continue`."""

    def __init__(self, again: bool) -> None:
        self.again = again


BINARY: dict[type, Callable[[Any, Any], Any]] = {
    cst.Add: operator.add, cst.Subtract: operator.sub, cst.Multiply: operator.mul, cst.FloorDivide: operator.floordiv,
    cst.Divide: operator.truediv, cst.Modulo: operator.mod, cst.BitAnd: operator.and_, cst.BitOr: operator.or_,
    cst.AddAssign: operator.add, cst.SubtractAssign: operator.sub, cst.MultiplyAssign: operator.mul}
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    cst.Equal: operator.eq, cst.NotEqual: operator.ne, cst.LessThan: operator.lt, cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt, cst.GreaterThanEqual: operator.ge, cst.Is: operator.is_, cst.IsNot: operator.is_not,
    cst.In: lambda a, b: a in b, cst.NotIn: lambda a, b: a not in b}
METHODS: dict[type, frozenset[str]] = {
    list: frozenset({"append", "extend", "index", "count", "copy", "insert"}),
    dict: frozenset({"get", "items", "keys", "values", "update", "copy"}),
    str: frozenset({"startswith", "endswith", "lower", "upper", "strip", "split", "format"}),
    set: frozenset({"add", "union", "difference", "intersection"})}
BUILTINS: dict[str, Any] = {
    "True": True, "False": False, "None": None, "len": len, "min": min, "max": max, "sum": sum, "list": list,
    "tuple": tuple, "set": set, "dict": dict, "sorted": sorted, "zip": zip, "enumerate": enumerate, "range": range,
    "any": any, "all": all, "bool": bool, "int": int, "str": str, "abs": abs, "reversed": reversed}
GENERATOR: tuple[type, ...] = (range, zip, enumerate, reversed, type({}.items()), type({}.keys()), type({}.values()))


class Evaluator:
    """Values of expressions of one package, on a machine described by `facts`.

    `facts` maps qualified names (`fla.utils.IS_NVIDIA`) to values, or to functions for names that are called.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.steps = 0
        self.busy: set[tuple[int, str]] = set()
        self.path: list[bool] | None = None     # which way each undecidable `if` goes, while exploring

    # What callers ask

    def value(self, source: Source, node: cst.BaseExpression) -> Any:
        """Raises NotStatic."""
        self.steps = 0
        self.path = None
        return _known(self._guarded(lambda: self._value(source, node, {})))

    def zeroed(self, hook: Any) -> list[str]:
        """Names of the arguments that a hook zeroes. Raises NotStatic when it does anything else, or none."""
        self.steps = 0
        self.path = None
        nargs = Arguments()
        if not isinstance(hook, Function):
            raise NotStatic("the hook is not a function of this package")
        names = [p.name.value for p in (*hook.node.params.params, *hook.node.params.kwonly_params)]
        more = {n: False for n in names[1:] if n == "reset_only"}
        self._guarded(lambda: self._call_function(hook, [nargs], more))
        if not nargs.zeroed:
            raise NotStatic("the hook zeroes nothing")
        return list(dict.fromkeys(nargs.zeroed))

    def surely_kept(self, prune: Any, configs: list[Config]) -> list[Config]:
        """The configurations that a pruning function keeps whatever the arguments. Raises NotStatic."""
        if not isinstance(prune, Function):
            raise NotStatic("the pruning function is not of this package")
        kept: list[Config] | None = None
        todo: list[list[bool]] = [[]]
        tried = 0
        while todo:
            tried += 1
            if tried > 16:
                raise NotStatic("the pruning function has too many branches")
            self.steps, self.path = 0, list(todo.pop())
            given = len(self.path)
            self.taken: list[bool] = []
            result = self._guarded(lambda: self._call_function(prune, [list(configs), UNKNOWN], {"**": UNKNOWN}))
            if not isinstance(result, list):
                raise NotStatic("the pruning function returns no list")
            kept = [c for c in (configs if kept is None else kept) if any(c is r for r in result)]
            todo += [[*self.taken[:i], False] for i in range(given, len(self.taken))]
        return kept or []

    def _guarded(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except NotStatic:
            raise
        except (_Return, _Loop, RecursionError):
            raise NotStatic("control flow is too deep") from None
        except Exception as error:      # the interpreted code would have raised this
            raise NotStatic(f"{type(error).__name__}: {error}") from None

    # Expressions

    def _value(self, source: Source, node: cst.BaseExpression, env: dict[str, Any]) -> Any:
        self.steps += 1
        if self.steps > STEPS:
            raise NotStatic("too long to work out")
        method = getattr(self, "_" + type(node).__name__, None)
        if method is None:
            raise NotStatic(f"a {type(node).__name__} is not worked out")
        return method(source, node, env)

    def _Integer(self, source: Source, node: cst.Integer, env: dict[str, Any]) -> Any:
        return node.evaluated_value

    def _Float(self, source: Source, node: cst.Float, env: dict[str, Any]) -> Any:
        return node.evaluated_value

    def _SimpleString(self, source: Source, node: cst.SimpleString, env: dict[str, Any]) -> Any:
        return node.evaluated_value

    def _FormattedString(self, source: Source, node: cst.FormattedString, env: dict[str, Any]) -> Any:
        text = ""
        for part in node.parts:
            if isinstance(part, cst.FormattedStringText):
                text += part.value
            elif isinstance(part, cst.FormattedStringExpression):
                text += str(_known(self._value(source, part.expression, env)))
        return text

    def _Name(self, source: Source, node: cst.Name, env: dict[str, Any]) -> Any:
        if node.value in env:
            return env[node.value]
        return self._global(source, node.value)

    def _global(self, source: Source, name: str) -> Any:
        qualified = source.imports.get(name, f"{source.module}.{name}" if source.module else name)
        if qualified in self.facts:
            return self.facts[qualified]
        if name in source.constants:
            key = (id(source), name)
            if key in self.busy:
                raise NotStatic(f"{name} is defined by itself")
            self.busy.add(key)
            try:
                return self._value(source, source.constants[name], {})
            finally:
                self.busy.discard(key)
        if name in source.definitions and source.tree.parent(source.definitions[name]) is None:
            return Function(source, source.definitions[name], {})
        if name in source.imports:
            return self._imported(source, source.imports[name])
        made = self._replayed(source, name)
        if made is not UNKNOWN:
            return made
        if name in BUILTINS:
            return BUILTINS[name]
        raise NotStatic(f"{name} is not known")

    def _replayed(self, source: Source, name: str) -> Any:
        """A module constant that several statements make, some under an `if`; UNKNOWN if there are none."""
        env: dict[str, Any] = {}
        for unit in source.tree.units:
            if isinstance(unit.statement, (cst.SimpleStatementLine, cst.If)):
                self._replay(source, unit.statement, name, env)
        return env.get(name, UNKNOWN)

    def _replay(self, source: Source, node: cst.CSTNode, name: str, env: dict[str, Any]) -> None:
        """Run what assigns this name, and nothing else, in a statement at the top of a module."""
        if name not in {n.value for a in find(node, cst.Assign, cst.AugAssign, cst.AnnAssign)
                        for n in find(a.targets[0].target if isinstance(a, cst.Assign) else a.target, cst.Name)}:
            return
        if isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                self._small(source, small, env)
        elif isinstance(node, (cst.If, cst.Else)):
            if isinstance(node, cst.Else) or _known(self._value(source, node.test, env)):
                for statement in node.body.body:
                    self._replay(source, statement, name, env)
            elif node.orelse is not None:
                self._replay(source, node.orelse, name, env)
        else:
            raise NotStatic(f"{name} is assigned inside a {type(node).__name__}")

    def _imported(self, source: Source, qualified: str) -> Any:
        for _ in range(5):                      # a package may re-export what its own modules export
            if qualified in self.facts:
                return self.facts[qualified]
            module, _, name = qualified.rpartition(".")
            other = source.project.module(module) if source.project and module else None
            if other is None:
                break
            if name not in other.imports or name in other.constants or name in other.definitions:
                return self._global(other, name)
            qualified = other.imports[name]
        raise NotStatic(f"{qualified} is not known")

    def _Attribute(self, source: Source, node: cst.Attribute, env: dict[str, Any]) -> Any:
        root = _root(node)
        if isinstance(root, cst.Name) and root.value not in env:
            qualified = source.qualified(node)
            if qualified in self.facts:
                return self.facts[qualified]
            if root.value in source.imports and not self._is_part(qualified):
                return self._imported(source, qualified)
        owner = self._value(source, node.value, env)
        name = node.attr.value
        if owner is UNKNOWN:
            return UNKNOWN
        if isinstance(owner, Config):
            if name == "kwargs":
                return owner.kwargs
            if name in owner.options:
                return owner.options[name]
            if name == "pre_hook":
                return owner.hook
        elif isinstance(owner, (Argument, Arguments)) or name in METHODS.get(type(owner), ()):
            return _Method(owner, name)
        raise NotStatic(f"attribute {name} is not known")

    def _is_part(self, qualified: str) -> bool:
        """Whether it is an attribute of something that the facts know."""
        while "." in qualified:
            qualified = qualified.rpartition(".")[0]
            if qualified in self.facts:
                return True
        return False

    def _Subscript(self, source: Source, node: cst.Subscript, env: dict[str, Any]) -> Any:
        owner = self._value(source, node.value, env)
        if len(node.slice) != 1:
            raise NotStatic("a subscript with several indices")
        at = node.slice[0].slice
        if isinstance(at, cst.Index):
            key: Any = self._value(source, at.value, env)
        else:
            ends = cst.ensure_type(at, cst.Slice)
            bounds = (ends.lower, ends.upper, ends.step)
            key = slice(*(None if b is None else self._value(source, b, env) for b in bounds))
        if owner is UNKNOWN or key is UNKNOWN:
            return UNKNOWN
        return owner[key]

    def _Tuple(self, source: Source, node: cst.Tuple, env: dict[str, Any]) -> Any:
        return tuple(self._elements(source, node.elements, env))

    def _List(self, source: Source, node: cst.List, env: dict[str, Any]) -> Any:
        return self._elements(source, node.elements, env)

    def _Set(self, source: Source, node: cst.Set, env: dict[str, Any]) -> Any:
        return list(dict.fromkeys(self._elements(source, node.elements, env)))

    def _elements(self, source: Source, elements: Any, env: dict[str, Any]) -> list[Any]:
        out: list[Any] = []
        for element in elements:
            value = self._value(source, element.value, env)
            out += _iterable(value) if isinstance(element, cst.StarredElement) else [value]
        return out

    def _Dict(self, source: Source, node: cst.Dict, env: dict[str, Any]) -> Any:
        out: dict[Any, Any] = {}
        for element in node.elements:
            value = self._value(source, element.value, env)
            if isinstance(element, cst.StarredDictElement):
                if value is UNKNOWN:
                    return UNKNOWN
                out.update(value)
            elif isinstance(element, cst.DictElement):
                out[_known(self._value(source, element.key, env))] = value
        return out

    def _ListComp(self, source: Source, node: cst.ListComp, env: dict[str, Any]) -> Any:
        return [self._value(source, node.elt, e) for e in self._rounds(source, node.for_in, dict(env))]

    _GeneratorExp = _ListComp
    _SetComp = _ListComp

    def _DictComp(self, source: Source, node: cst.DictComp, env: dict[str, Any]) -> Any:
        return {self._value(source, node.key, e): self._value(source, node.value, e)
                for e in self._rounds(source, node.for_in, dict(env))}

    def _rounds(self, source: Source, loop: cst.CompFor, env: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for item in _iterable(self._value(source, loop.iter, env)):
            inner = dict(env)
            _bind(loop.target, item, inner)
            if all(self._filter(self._value(source, i.test, inner)) for i in loop.ifs):
                if loop.inner_for_in:
                    yield from self._rounds(source, loop.inner_for_in, inner)
                else:
                    yield inner

    def _filter(self, value: Any) -> bool:
        """While exploring a pruning function, what may go is taken to go."""
        if value is UNKNOWN and self.path is not None:
            return False
        return bool(_known(value))

    def _BinaryOperation(self, source: Source, node: cst.BinaryOperation, env: dict[str, Any]) -> Any:
        return _binary(node.operator, self._value(source, node.left, env), self._value(source, node.right, env))

    def _BooleanOperation(self, source: Source, node: cst.BooleanOperation, env: dict[str, Any]) -> Any:
        left = self._value(source, node.left, env)
        decides = isinstance(node.operator, cst.Or)
        if left is UNKNOWN:
            right = self._value(source, node.right, env)
            decided = right is not UNKNOWN and isinstance(right, bool) and right is decides
            return decides if decided else UNKNOWN
        return left if bool(left) is decides else self._value(source, node.right, env)

    def _UnaryOperation(self, source: Source, node: cst.UnaryOperation, env: dict[str, Any]) -> Any:
        value = self._value(source, node.expression, env)
        if value is UNKNOWN:
            return UNKNOWN
        if isinstance(node.operator, cst.Not):
            return not value
        if isinstance(node.operator, cst.Minus):
            return -value
        raise NotStatic("an operator is not worked out")

    def _Comparison(self, source: Source, node: cst.Comparison, env: dict[str, Any]) -> Any:
        left = self._value(source, node.left, env)
        unsure = False
        for target in node.comparisons:
            right = self._value(source, target.comparator, env)
            if left is UNKNOWN or right is UNKNOWN:
                unsure = True
            elif not COMPARE[type(target.operator)](left, right):
                return False
            left = right
        return UNKNOWN if unsure else True

    def _IfExp(self, source: Source, node: cst.IfExp, env: dict[str, Any]) -> Any:
        test = self._value(source, node.test, env)
        if test is UNKNOWN:
            return UNKNOWN
        return self._value(source, node.body if test else node.orelse, env)

    def _Lambda(self, source: Source, node: cst.Lambda, env: dict[str, Any]) -> Any:
        return Function(source, node, dict(env))

    def _NamedExpr(self, source: Source, node: cst.NamedExpr, env: dict[str, Any]) -> Any:
        env[cst.ensure_type(node.target, cst.Name).value] = value = self._value(source, node.value, env)
        return value

    # Calls

    def _Call(self, source: Source, node: cst.Call, env: dict[str, Any]) -> Any:
        if source.qualified(node.func) in CONFIG:
            return self._config(source, node, env)
        target = self._value(source, node.func, env)
        if target is UNKNOWN:
            return UNKNOWN
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for arg in node.args:
            value = self._value(source, arg.value, env)
            if arg.star == "*":
                args += _iterable(value)
            elif arg.star == "**":
                kwargs.update({"**": UNKNOWN} if value is UNKNOWN else value)
            elif arg.keyword:
                kwargs[arg.keyword.value] = value
            else:
                args.append(value)
        if isinstance(target, Function):
            return self._call_function(target, args, kwargs)
        if isinstance(target, _Method):
            return _call_method(target, args, kwargs)
        if not callable(target):
            raise NotStatic("what is called is not known")
        if target in (any, all) and len(args) == 1:
            return _any_all(target is any, _iterable(args[0]))
        if any(a is UNKNOWN for a in args) or any(isinstance(a, (list, tuple)) and UNKNOWN in a for a in args):
            return UNKNOWN
        if target is range and len(range(*args)) > SIZE:
            raise NotStatic("a long range")
        args = [self._plain(a) for a in args]
        return target(*args, **{k: self._plain(v) for k, v in kwargs.items()})

    def _plain(self, value: Any) -> Any:
        """A function that Python itself can call, for `key=` and facts that take one."""
        if isinstance(value, Function):
            return lambda *a: self._call_function(value, list(a), {})
        return value

    def _config(self, source: Source, node: cst.Call, env: dict[str, Any]) -> Config:
        kwargs: Any = {}
        hook, hook_node = None, None
        options: dict[str, Any] = {"num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": None}
        for i, arg in enumerate(node.args):
            name = arg.keyword.value if arg.keyword else ("kwargs", "num_warps", "num_stages", "num_ctas")[i]
            if arg.star:
                raise NotStatic("a configuration with a starred argument")
            value = self._value(source, arg.value, env)
            if name == "kwargs":
                kwargs = value
            elif name == "pre_hook":
                hook, hook_node = value, arg.value
            else:
                options[name] = value
        if not isinstance(kwargs, dict) or any(v is UNKNOWN for v in kwargs.values()):
            raise NotStatic("the constants of a configuration are not known")
        bound = hook_node is not None and any(n.value in env for n in find(hook_node, cst.Name))
        return Config(kwargs, options, hook, hook_node, bound)

    def _call_function(self, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        env = dict(function.env)
        self._bind_call(function, args, kwargs, env)
        if isinstance(function.node, cst.Lambda):
            return self._value(function.source, function.node.body, env)
        try:
            self._body(function.source, function.node.body, env)
        except _Return as done:
            return done.value
        return None

    def _bind_call(self, function: Function, args: list[Any], kwargs: dict[str, Any], env: dict[str, Any]) -> None:
        params = function.node.params
        more = dict(kwargs)
        unknown = more.pop("**", None) is UNKNOWN
        names = [*params.posonly_params, *params.params]
        if len(args) > len(names) and not isinstance(params.star_arg, cst.Param):
            raise NotStatic("a call with too many arguments")
        for i, param in enumerate([*names, *params.kwonly_params]):
            name = param.name.value
            if i < len(args) and i < len(names):
                env[name] = args[i]
            elif name in more:
                env[name] = more.pop(name)
            elif param.default is not None:
                env[name] = UNKNOWN if unknown else self._value(function.source, param.default, {})
            elif unknown:
                env[name] = UNKNOWN
            else:
                raise NotStatic(f"a call without {name}")
        if isinstance(params.star_arg, cst.Param):
            env[params.star_arg.name.value] = tuple(args[len(names):])
        if params.star_kwarg is not None:
            env[params.star_kwarg.name.value] = UNKNOWN if unknown else more
        elif more:
            raise NotStatic("a call with unexpected keywords")

    # Statements

    def _body(self, source: Source, body: cst.BaseSuite, env: dict[str, Any]) -> None:
        for statement in body.body:
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    self._small(source, small, env)
            else:
                self._statement(source, statement, env)

    def _small(self, source: Source, node: cst.CSTNode, env: dict[str, Any]) -> None:
        if isinstance(node, cst.Return):
            raise _Return(self._value(source, node.value, env) if node.value else None)
        if isinstance(node, cst.Assign):
            value = self._value(source, node.value, env)
            for target in node.targets:
                _bind(target.target, value, env)
        elif isinstance(node, cst.AnnAssign):
            if node.value is not None:
                _bind(node.target, self._value(source, node.value, env), env)
        elif isinstance(node, cst.AugAssign):
            name = cst.ensure_type(node.target, cst.Name)
            value = _binary(node.operator, self._value(source, name, env), self._value(source, node.value, env))
            env[name.value] = value
        elif isinstance(node, cst.Expr):
            if not isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString)):
                self._value(source, node.value, env)
        elif isinstance(node, (cst.Break, cst.Continue)):
            raise _Loop(isinstance(node, cst.Continue))
        elif not isinstance(node, (cst.Pass, cst.Global, cst.Import, cst.ImportFrom, cst.Assert)):
            raise NotStatic(f"a {type(node).__name__} is not worked out")

    def _statement(self, source: Source, node: cst.CSTNode, env: dict[str, Any]) -> None:
        if isinstance(node, cst.If):
            if self._branch(self._value(source, node.test, env)):
                self._body(source, node.body, env)
            elif isinstance(node.orelse, cst.If):
                self._statement(source, node.orelse, env)
            elif node.orelse is not None:
                self._body(source, node.orelse.body, env)
        elif isinstance(node, cst.For):
            for item in _iterable(self._value(source, node.iter, env)):
                _bind(node.target, item, env)
                try:
                    self._body(source, node.body, env)
                except _Loop as jump:
                    if not jump.again:
                        break
        elif isinstance(node, cst.FunctionDef):
            env[node.name.value] = Function(source, node, env)
        else:
            raise NotStatic(f"a {type(node).__name__} is not worked out")

    def _branch(self, test: Any) -> bool:
        if test is not UNKNOWN:
            return bool(test)
        if self.path is None:
            raise NotStatic("a branch depends on a run-time value")
        way = self.path[len(self.taken)] if len(self.taken) < len(self.path) else True
        self.taken.append(way)
        return way


def _known(value: Any) -> Any:
    if value is UNKNOWN:
        raise NotStatic("a run-time value")
    return value


def _iterable(value: Any) -> list[Any]:
    if value is UNKNOWN or not isinstance(value, (list, tuple, set, dict, str, *GENERATOR)):
        raise NotStatic("a loop over something that is not known")
    items: Any = value
    return list(items)


def _bind(target: cst.BaseExpression, value: Any, env: dict[str, Any]) -> None:
    if isinstance(target, cst.Name):
        env[target.value] = value
    elif isinstance(target, (cst.Tuple, cst.List)):
        values = [UNKNOWN] * len(target.elements) if value is UNKNOWN else list(_iterable(value))
        if len(values) != len(target.elements):
            raise NotStatic("an assignment to a different number of names")
        for element, item in zip(target.elements, values, strict=True):
            _bind(element.value, item, env)
    else:
        raise NotStatic("an assignment to something that is not a name")


def _binary(op: cst.CSTNode, left: Any, right: Any) -> Any:
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if type(op) not in BINARY:
        raise NotStatic("an operator is not worked out")
    if isinstance(op, (cst.Multiply, cst.MultiplyAssign)):
        for one, other in ((left, right), (right, left)):
            if isinstance(one, (list, tuple, str)) and isinstance(other, int) and len(one) * other > SIZE:
                raise NotStatic("a long list")
    return BINARY[type(op)](left, right)


def _any_all(is_any: bool, items: list[Any]) -> Any:
    if any(i is not UNKNOWN and bool(i) is is_any for i in items):
        return is_any
    return UNKNOWN if any(i is UNKNOWN for i in items) else not is_any


def _call_method(method: _Method, args: list[Any], kwargs: dict[str, Any]) -> Any:
    owner = method.owner
    if isinstance(owner, Arguments):
        if method.name == "get" and args:
            return owner[args[0]]
        raise NotStatic("a hook that does more than zero arguments")
    if isinstance(owner, Argument):
        if method.name == "zero_" or (method.name == "fill_" and args in ([0], [0.0])):
            owner.zeroed.append(owner.name)
            return owner
        raise NotStatic("a hook that does more than zero arguments")
    result = getattr(owner, method.name)(*args, **kwargs)
    if isinstance(result, str) and len(result) > SIZE:
        raise NotStatic("a long string")
    return result


def _root(node: cst.BaseExpression) -> cst.BaseExpression:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node
