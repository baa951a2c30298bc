"""Symbolic shapes of host tensors: what a wrapper function proves about its tensors, statement by statement.

The analysis walks a function once, forward. It learns from `.shape` unpacking and indexing, from asserts and guards,
from allocations, views and einops patterns; what it does not know stays unknown. Nothing is executed.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from migrate.analysis.dims import Dim, product
from migrate.analysis.host_syntax import (
    axis_of,
    blocks_of,
    body_of,
    einops_groups,
    int_of,
    literal_index,
    rank_owner,
    shape_owner,
    tested_for_none,
)
from migrate.analysis.values import (
    NONE,
    Choice,
    Env,
    Nothing,
    Several,
    Tensor,
    Unknown,
    Value,
    as_dim,
    as_tensor,
    assume_test,
    depth,
    may_alias_caller,
    spell,
    without_none,
)
from migrate.edit import code, parameters
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source

DEPTH = 4                                        # of nested choices: deeper ones are unknown

KEEP_SHAPE = frozenset({"contiguous", "to", "float", "half", "bfloat16", "double", "int", "long", "detach", "clone",
                        "type", "type_as", "requires_grad_", "zero_", "fill_", "copy_", "cuda", "cpu", "npu"})
FACTORIES = frozenset({"empty", "zeros", "ones", "full", "rand", "randn"})
PURE = frozenset({"triton.cdiv", "triton.next_power_of_2", "math.ceil", "math.floor", "min", "max", "abs", "int",
                  "math.log2", "math.sqrt"})
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "prod"})
RESHAPE_IN_PLACE = frozenset({"unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "resize_", "resize_as_",
                              "set_", "as_strided_"})
REFRESH = KEEP_SHAPE | {"view", "reshape"}       # methods whose result is None exactly where the tensor was


class HostShapes:
    """What is known about the names of one host function before each of its statements."""

    def __init__(self, source: Source, function: cst.FunctionDef) -> None:
        self.source, self.function = source, function
        self._labels: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._volatile = _bound_out_of_sight(function)
        self._before: dict[cst.CSTNode, tuple[Env, dict[str, int]]] = {}
        self._tests: dict[str, tuple[cst.BaseExpression, str, bool]] = {}    # flag@version -> the test it holds
        env: Env = {}
        for p in parameters(function):
            optional = (isinstance(p.default, cst.Name) and p.default.value == "None") or (
                p.annotation is not None and bool(re.search(r"Optional|None", code(p.annotation.annotation))))
            self._set(env, p.name.value, Unknown(self._label(p.name.value), external=True, optional=optional))
        if not _changes_layout_in_place(function):
            self._block(function.body.body, env)

    def _set(self, env: Env, name: str, value: Value) -> None:
        """Nothing is ever known of a name that is also bound where the walk does not look."""
        if name not in self._volatile:
            env[name] = value

    def before(self, node: cst.CSTNode) -> Env:
        """Values by name when the statement that holds `node` starts; {} for code that is never reached."""
        tree = self.source.tree
        while node not in self._before:
            up = tree.parent(node)
            if up is None or up is self.function:
                return {}
            node = up
        return self._before[node][0]

    def test_key(self, test: cst.BaseExpression, node: cst.CSTNode) -> tuple[str, bool]:
        """A condition as it stands at a node, in the form that `Choice.test` has, and its sense."""
        tree = self.source.tree
        while node not in self._before:
            up = tree.parent(node)
            if up is None or up is self.function:
                return "", True
            node = up
        return self._key(test, self._before[node][1])

    # Statements

    def _label(self, name: str) -> str:
        n = self._labels.get(name, 0) + 1
        self._labels[name] = n
        return name if n == 1 else f"{name}#{n}"

    def _block(self, body: Sequence[cst.CSTNode], env: Env) -> bool:
        """Runs statements on `env`; False when the end is never reached."""
        for statement in body:
            self._before[statement] = (dict(env), dict(self._versions))
            if not self._statement(statement, env):
                return False
        return True

    def _statement(self, node: cst.CSTNode, env: Env) -> bool:
        if isinstance(node, cst.SimpleStatementLine):
            return all([self._small(s, env) for s in node.body])
        if isinstance(node, cst.If):
            return self._if(node, env)
        if isinstance(node, cst.With):
            for item in node.items:
                if item.asname is not None:
                    self._assign(item.asname.name, None, env)
            return self._block(body_of(node.body), env)
        if isinstance(node, (cst.For, cst.While, cst.Try)):
            self._forget(node, env)
            for block in blocks_of(node):
                self._block(block, dict(env))
            self._forget(node, env)
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._set(env, node.name.value, Unknown(self._label(node.name.value)))
        else:                                   # a statement of a kind that is not followed
            self._forget(node, env)
        return True

    def _small(self, node: cst.BaseSmallStatement, env: Env) -> bool:
        if isinstance(node, cst.Assign):
            for target in node.targets:
                self._assign(target.target, node.value, env)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, env)
        elif isinstance(node, cst.AugAssign):
            if isinstance(node.target, cst.Name) and not isinstance(env.get(node.target.value), Tensor):
                self._assign(node.target, None, env)
        elif isinstance(node, cst.Assert):
            self._learn(node.test, True, env)
        return not isinstance(node, (cst.Return, cst.Raise, cst.Continue, cst.Break))

    def _if(self, node: cst.If, env: Env) -> bool:
        key, sense = self._key(node.test, self._versions)
        then, other = dict(env), dict(env)
        start = dict(self._versions)
        assume_test(then, key, sense)
        assume_test(other, key, not sense)
        self._learn(node.test, True, then)
        learnt = dict(then)
        then_ends = self._block(body_of(node.body), then)
        after_then, self._versions = self._versions, dict(start)
        self._learn(node.test, False, other)
        narrowed = dict(other)
        other_ends = True
        if isinstance(node.orelse, cst.If):
            self._before[node.orelse] = (dict(other), dict(self._versions))
            other_ends = self._if(node.orelse, other)
        elif node.orelse is not None:
            other_ends = self._block(body_of(node.orelse.body), other)
        if not then_ends and not other_ends:
            return False
        for name in after_then.keys() | self._versions.keys():
            a, b = after_then.get(name, 0), self._versions.get(name, 0)
            self._versions[name] = a if a == b else max(a, b) + 1
        if then_ends and other_ends:
            untouched = {name: env[name] for name in env if then.get(name) is learnt.get(name)
                         and other.get(name) is narrowed.get(name)}
            merged = self._merge(key, *((then, other) if sense else (other, then))) | untouched
        else:
            merged = then if then_ends else other
        env.clear()
        env.update(merged)
        return True

    def _merge(self, key: str, then: Env, other: Env) -> Env:
        out: Env = {}
        for name in then.keys() | other.keys():
            a, b = then.get(name), other.get(name)
            if a is None or b is None:
                only = a if a is not None else b
                assert only is not None
                out[name] = only if isinstance(only, (Tensor, Several)) else Unknown(self._label(name), optional=True)
            else:
                out[name] = self._either(key, a, b, name)
        return out

    def _either(self, key: str, a: Value, b: Value, name: str) -> Value:
        if a == b:
            return a
        if isinstance(a, Several) and isinstance(b, Several) and len(a.items) == len(b.items):
            return Several(tuple(self._either(key, x, y, f"{name}_{i}")
                                 for i, (x, y) in enumerate(zip(a.items, b.items, strict=True))))
        if key and max(depth(a), depth(b)) < DEPTH:
            return Choice(key, a, b, self._label(name))
        return Unknown(self._label(name), external=may_alias_caller(a) or may_alias_caller(b), optional=True)

    def _forget(self, node: cst.CSTNode, env: Env) -> None:
        """Names that a loop or a try block assigns are unknown inside and after it."""
        for inner in find(node, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For):
            targets = [t.target for t in inner.targets] if isinstance(inner, cst.Assign) else [inner.target]
            for target in targets:
                self._assign(target, None, env)
        for named in find(node, cst.AsName):
            self._assign(named.name, None, env)

    def _assign(self, target: cst.BaseExpression, value: cst.BaseExpression | None, env: Env) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            self._unpack(target, value, env)
            return
        if not isinstance(target, cst.Name):
            return
        name = target.value
        new = self.value(value, env, name) if value is not None else None
        if isinstance(value, cst.List):
            new = None                          # may grow or change before it is used
        refreshed = (isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute)
                     and value.func.attr.value in REFRESH and code(value.func.value) == name)
        key = self._key(value, self._versions) if isinstance(value, (cst.Comparison, cst.UnaryOperation)) else None
        self._rebind(name, may_change_none=not refreshed)
        if key is not None and value is not None:
            self._tests[f"{name}@{self._versions[name]}"] = (value, *key)
        self._set(env, name, new if new is not None else Unknown(self._label(name), external=True, optional=True))

    def _unpack(self, target: cst.Tuple | cst.List, value: cst.BaseExpression | None, env: Env) -> None:
        starred = any(isinstance(e, cst.StarredElement) for e in target.elements)
        if value is not None and not starred:
            got = self.value(value, env, "")
            if isinstance(got, Several) and len(got.items) == len(target.elements):
                for element, item in zip(target.elements, got.items, strict=True):
                    self._bind(element.value, item, env)
                return
            owner = shape_owner(value)
            if owner is not None:
                known = as_tensor(env.get(owner))
                axes = dict(known.axes)
                dims = []
                for i, element in enumerate(target.elements):
                    label = element.value.value if isinstance(element.value, cst.Name) else owner
                    if label == "_":
                        label = f"{owner}.shape[{i}]"
                    dims.append(axes.get(i) or axes.get(i - len(target.elements)) or Dim.symbol(self._label(label)))
                    self._bind(element.value, dims[-1], env)
                if owner in env:
                    env[owner] = replace(known, shape=tuple(dims), axes=(), rank=len(dims))
                return
        for element in target.elements:
            self._bind(element.value, None, env)

    def _bind(self, target: cst.BaseExpression, value: Value | None, env: Env) -> None:
        if isinstance(target, cst.Name):
            if target.value == "_":
                return                          # says that the value is not wanted
            self._rebind(target.value)
            self._set(env, target.value, value if value is not None else Unknown(self._label(target.value), True, True))
        else:
            self._assign(target, None, env)

    def _rebind(self, name: str, *, may_change_none: bool = True) -> None:
        """Tests are compared by the versions of their names; whether a name is None has a version of its own."""
        for key in (name, "?" + name) if may_change_none else (name,):
            self._versions[key] = self._versions.get(key, 0) + 1

    # Facts from tests

    def _key(self, test: cst.BaseExpression, versions: Mapping[str, int]) -> tuple[str, bool]:
        """The test as text in which each name carries its version, without outer `not`s, and its sense."""
        sense = True
        while isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test, sense = test.expression, not sense
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            operator = test.comparisons[0].operator
            if isinstance(operator, cst.IsNot):
                plain = test.with_changes(comparisons=[test.comparisons[0].with_changes(operator=cst.Is())])
                test, sense = plain, not sense
        if isinstance(test, cst.Name):
            flag = self._tests.get(f"{test.value}@{versions.get(test.value, 0)}")
            if flag is not None:                # `has_z = z is not None`: the flag and the test are one condition
                return flag[1], flag[2] == sense
        tested = tested_for_none(test, is_none=True)
        if tested is not None:
            return f"{tested}@{versions.get('?' + tested, 0)} is None", sense
        names = {n.value for n in find(test, cst.Name)}
        text = code(test.with_changes(lpar=[], rpar=[]))
        return re.sub(r"[A-Za-z_]\w*", lambda m: f"{m[0]}@{versions.get(m[0], 0)}" if m[0] in names else m[0],
                      text), sense

    def _learn(self, test: cst.BaseExpression, holds: bool, env: Env) -> None:
        """Narrow `env` by a test that holds, or does not."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            self._learn(test.expression, not holds, env)
        elif isinstance(test, cst.Name):
            flag = self._tests.get(f"{test.value}@{self._versions.get(test.value, 0)}")
            if flag is not None and self._key(flag[0], self._versions)[0] == flag[1]:
                self._learn(flag[0], holds, env)
        elif isinstance(test, cst.BooleanOperation):
            both = isinstance(test.operator, cst.And) == holds
            if both:
                self._learn(test.left, holds, env)
                self._learn(test.right, holds, env)
            else:
                # "x is None or <fact on x>" holds, or "x is not None and <...>" does not: where x is None the fact
                # says nothing, and where it is not, it applies.
                name = tested_for_none(test.left, is_none=holds)
                if name is not None and name in env:
                    narrowed = dict(env)
                    self._learn(test.right, holds, narrowed)
                    value = narrowed[name]
                    if isinstance(value, Tensor):
                        env[name] = replace(value, optional=True)
        elif isinstance(test, cst.Comparison):
            if len(test.comparisons) > 1 and not holds:
                return                          # one of them fails, but which?
            left = test.left
            for part in test.comparisons:
                self._compare(left, part.operator, part.comparator, holds, env)
                left = part.comparator
        elif (holds and isinstance(test, cst.Call) and isinstance(test.func, cst.Attribute)
              and test.func.attr.value == "is_contiguous" and not test.args and isinstance(test.func.value, cst.Name)):
            name = test.func.value.value
            if name in env:
                env[name] = replace(as_tensor(env[name]), contiguous=True)

    def _compare(self, left: cst.BaseExpression, operator: cst.BaseCompOp, right: cst.BaseExpression, holds: bool,
                 env: Env) -> None:
        if isinstance(operator, (cst.Is, cst.IsNot)) and isinstance(left, cst.Name) and code(right) == "None":
            if left.value in env:
                is_none = isinstance(operator, cst.Is) == holds
                env[left.value] = NONE if is_none else without_none(env[left.value])
            return
        if not (isinstance(operator, cst.Equal) if holds else isinstance(operator, cst.NotEqual)):
            return
        for this, that in ((left, right), (right, left)):
            owner = shape_owner(this)
            if owner is not None and owner in env:
                known = as_tensor(env[owner])
                shape = self._shape(that, env)
                if shape is not None and (known.shape is None or isinstance(that, (cst.Tuple, cst.List))):
                    env[owner] = replace(known, shape=shape, axes=(), rank=len(shape))
                    return
            axis = axis_of(this)
            if axis is not None and axis[0] in env:
                dim = as_dim(self.value(that, env, ""))
                known = as_tensor(env[axis[0]])
                if dim is not None and known.shape is None:
                    env[axis[0]] = replace(known, axes=tuple({**dict(known.axes), axis[1]: dim}.items()))
                    return
            owner = rank_owner(this)
            if owner is not None and owner in env and isinstance(that, cst.Integer):
                self._rank(owner, that.evaluated_value, env)
                return

    def _rank(self, owner: str, rank: int, env: Env) -> None:
        known = as_tensor(env[owner])
        if known.shape is None:
            axes = dict(known.axes)
            shape = tuple(axes.get(i) or axes.get(i - rank) or Dim.symbol(self._label(f"{owner}.shape[{i}]"))
                          for i in range(rank))
            env[owner] = replace(known, shape=shape, axes=(), rank=rank)

    # Expressions

    def value(self, node: cst.BaseExpression, env: Env, label: str) -> Value | None:
        """What an expression is; None for "nothing is known". `label` names a new symbol."""
        if isinstance(node, cst.Name):
            return NONE if node.value == "None" else env.get(node.value)
        number = int_of(node)
        if number is not None:
            return Dim.number(number)
        if isinstance(node, (cst.Tuple, cst.List)):
            return self._several(node, env)
        if isinstance(node, cst.IfExp):
            return self._ifexp(node, env, label)
        if isinstance(node, cst.BinaryOperation):
            return self._binary(node, env)
        if isinstance(node, cst.Subscript):
            return self._subscript(node, env, label)
        if isinstance(node, cst.Attribute):
            if node.attr.value in ("T", "mT", "H", "mH"):
                return Tensor(layout="transposed")
            shape = self._shape(node, env)
            return Several(shape) if shape is not None else None
        if isinstance(node, cst.Call):
            return self._call(node, env, label)
        return None

    def _several(self, node: cst.Tuple | cst.List, env: Env) -> Value | None:
        items: list[Value] = []
        for element in node.elements:
            got = self.value(element.value, env, "")
            if isinstance(element, cst.StarredElement):
                if not isinstance(got, Several):
                    return None
                items += got.items
            else:
                items.append(got if got is not None else self._opaque(element.value, env))
        return Several(tuple(items))

    def _opaque(self, node: cst.BaseExpression, env: Env) -> Value:
        """A symbol for an expression: the same one for the same text over the same values."""
        parts = {n.value: env[n.value] for n in find(node, cst.Name) if n.value in env}
        calls = [self.source.qualified(c.func) for c in find(node, cst.Call)]
        if all(c in PURE or c.endswith((".dim", ".size", ".numel")) for c in calls):
            text = re.sub(r"[A-Za-z_]\w*", lambda m: f"{{{spell(parts[m[0]])}}}" if m[0] in parts else m[0],
                          code(node))
            return Dim.symbol(" ".join(text.split()))
        return Dim.symbol(self._label(code(node)))

    def _ifexp(self, node: cst.IfExp, env: Env, label: str) -> Value | None:
        key, sense = self._key(node.test, self._versions)
        then, other = dict(env), dict(env)
        assume_test(then, key, sense)
        assume_test(other, key, not sense)
        self._learn(node.test, True, then)
        self._learn(node.test, False, other)
        a, b = self.value(node.body, then, label), self.value(node.orelse, other, label)
        if a is None or b is None:
            return None
        return self._either(key, *((a, b) if sense else (b, a)), label or "value")

    def _binary(self, node: cst.BinaryOperation, env: Env) -> Value | None:
        left, right = (as_dim(self.value(n, env, "")) for n in (node.left, node.right))
        if left is None or right is None:
            return None
        if isinstance(node.operator, cst.Multiply):
            return left * right
        if isinstance(node.operator, cst.FloorDivide) and left.without(right) is not None:
            return left.without(right)
        if isinstance(node.operator, (cst.Add, cst.Subtract, cst.FloorDivide, cst.Modulo)):
            if not left.atoms and not right.atoms and isinstance(node.operator, (cst.Add, cst.Subtract)):
                sign = 1 if isinstance(node.operator, cst.Add) else -1
                return Dim.number(left.factor + sign * right.factor)
            return self._opaque(node, env)
        return None

    def _shape(self, node: cst.BaseExpression, env: Env) -> tuple[Dim, ...] | None:
        """A whole shape: `x.shape`, `x.size()`, a tuple of sizes, `torch.Size([...])`, a name bound to one."""
        owner = shape_owner(node)
        if owner is not None:
            return as_tensor(env.get(owner)).shape
        if isinstance(node, cst.Call) and self.source.qualified(node.func) == "torch.Size" and node.args:
            return self._shape(node.args[0].value, env)
        if isinstance(node, (cst.Tuple, cst.List, cst.Name, cst.Subscript, cst.BinaryOperation)):
            got = self.value(node, env, "")
            if isinstance(got, Several):
                dims = [as_dim(i) for i in got.items]
                return None if any(d is None for d in dims) else tuple(d for d in dims if d is not None)
        return None

    def _subscript(self, node: cst.Subscript, env: Env, label: str) -> Value | None:
        index = literal_index(node)
        axis = axis_of(node)
        if axis is not None:
            return self._axis(*axis, env, label)
        shape = self._shape(node.value, env) if isinstance(node.value, (cst.Attribute, cst.Name, cst.Call)) else None
        items: tuple[Value, ...] | None = shape
        if items is None and isinstance(node.value, cst.Name):
            got = env.get(node.value.value)
            items = got.items if isinstance(got, Several) else None
        if items is None:
            return None
        if index is not None:
            return items[index] if -len(items) <= index < len(items) else None
        part = node.slice[0].slice if len(node.slice) == 1 else None
        if isinstance(part, cst.Slice) and part.step is None:
            ends = [None if e is None else int_of(e) for e in (part.lower, part.upper)]
            if all(e is not None or p is None for e, p in zip(ends, (part.lower, part.upper), strict=True)):
                return Several(items[slice(*ends)])
        return None

    def _axis(self, owner: str, axis: int, env: Env, label: str) -> Value | None:
        if owner not in env:
            return None
        tensor = as_tensor(env[owner])
        dim = tensor.dim(axis)
        if dim is None:
            dim = Dim.symbol(self._label(label or f"{owner}.shape[{axis}]"))
            if tensor.shape is None:
                env[owner] = replace(tensor, axes=(*tensor.axes, (axis, dim)))
        return dim

    def _call(self, node: cst.Call, env: Env, label: str) -> Value | None:
        name = self.source.qualified(node.func)
        if name.startswith("torch."):
            made = self._factory(name.removeprefix("torch."), node, env)
            if made is not None:
                return made
        if name == "einops.rearrange":
            return self._rearrange(node, env)
        if name in PURE:
            if name == "int" and len(node.args) == 1:
                return self.value(node.args[0].value, env, label)
            return self._opaque(node, env)
        if isinstance(node.func, cst.Attribute):
            return self._method(node, node.func, env, label)
        return None

    def _factory(self, name: str, node: cst.Call, env: Env) -> Tensor | None:
        if name.endswith("_like") and name.removesuffix("_like") in FACTORIES and node.args:
            like = as_tensor(self.value(node.args[0].value, env, ""))
            form = _memory_format(node)
            dense = (like.contiguous and form in ("", "preserve")) or form == "contiguous"
            return replace(like, contiguous=dense, external=False, optional=False, layout="")
        if name in FACTORIES:
            made = self._sized(node, env, one=name == "full")
            if any(a.keyword and a.keyword.value == "out" for a in node.args):
                return replace(made, contiguous=False, external=True)
            return replace(made, contiguous=_memory_format(node) in ("", "contiguous"))
        if name == "arange":
            return Tensor(contiguous=True, external=False, rank=1)
        return None

    def _sized(self, node: cst.Call, env: Env, *, one: bool) -> Tensor:
        """A fresh tensor from its sizes, given as one tuple or one by one."""
        sizes = [a for a in node.args if a.keyword is None]
        named = [a for a in node.args if a.keyword and a.keyword.value == "size"]
        if named or one:
            sizes = (named or sizes)[:1]
        if len(sizes) == 1 and sizes[0].star == "":
            shape = self._shape(sizes[0].value, env)
            if shape is not None:
                return Tensor(shape, rank=len(shape), contiguous=True, external=False)
            if not isinstance(self.value(sizes[0].value, env, ""), Dim):
                return Tensor(contiguous=True, external=False)      # one size, or all of them: not known
        got = self._several(cst.Tuple([cst.StarredElement(a.value) if a.star else cst.Element(a.value)
                                       for a in sizes]), env)
        if not isinstance(got, Several):
            return Tensor(contiguous=True, external=False)
        dims = [as_dim(i) for i in got.items]
        if any(d is None for d in dims):
            return Tensor(contiguous=True, external=False)
        return Tensor(tuple(d for d in dims if d), rank=len(dims), contiguous=True, external=False)

    def _method(self, node: cst.Call, func: cst.Attribute, env: Env, label: str) -> Value | None:
        method = func.attr.value
        if method in ("new_empty", "new_zeros", "new_ones", "new_full"):
            return self._sized(node, env, one=method == "new_full")
        if method in ("dim", "ndimension") and isinstance(func.value, cst.Name):
            rank = as_tensor(env.get(func.value.value)).rank
            return Dim.number(rank) if rank is not None else None
        got = self.value(func.value, env, "")
        if got is None or isinstance(got, (Dim, Several, Nothing)):
            return None
        tensor = as_tensor(got)
        args = [a.value for a in node.args if a.keyword is None and a.star == ""]
        if method == "size":
            axis = int_of(args[0]) if args else None
            if axis is not None and isinstance(func.value, cst.Name):
                return self._axis(func.value.value, axis, env, label)
            return Several(tensor.shape) if tensor.shape is not None and not args else None
        if method == "numel":
            return product(tensor.shape) if tensor.shape is not None else None
        if _memory_format(node) not in ("", "contiguous", "preserve"):
            return replace(tensor, contiguous=False, layout="channels last")
        if method == "contiguous":
            return replace(tensor, contiguous=True, layout="")
        if method in KEEP_SHAPE:
            return replace(tensor, external=tensor.external and method != "clone")
        if method in ("view", "reshape"):
            return self._view(tensor, node, env)
        if method in REDUCTIONS:
            return _reduced(tensor, [a.value for a in node.args])
        return _moved(tensor, method, [int_of(a) for a in args])

    def _view(self, tensor: Tensor, node: cst.Call, env: Env) -> Tensor:
        blank = replace(tensor, shape=None, axes=(), rank=None)
        sizes = self._sized(node, env, one=False).shape
        if sizes is None:
            return blank
        dims = list(sizes)
        if Dim.number(-1) in dims:
            at = dims.index(Dim.number(-1))
            rest = product(d for i, d in enumerate(dims) if i != at)
            whole = product(tensor.shape).without(rest) if tensor.shape is not None else None
            dims[at] = whole if whole is not None else Dim.symbol(self._label("view"))
        return replace(tensor, shape=tuple(dims), axes=(), rank=len(dims))

    def _rearrange(self, node: cst.Call, env: Env) -> Tensor | None:
        """einops with a literal pattern. Contiguous stays only what is not permuted."""
        if len(node.args) < 2 or not isinstance(node.args[1].value, cst.SimpleString):
            return None
        tensor = as_tensor(self.value(node.args[0].value, env, ""))
        given = {a.keyword.value: as_dim(self.value(a.value, env, "")) for a in node.args[2:] if a.keyword}
        pattern = str(node.args[1].value.evaluated_value)
        before, _, after = pattern.partition("->")
        left, right = einops_groups(before), einops_groups(after)
        blank = replace(tensor, shape=None, axes=(), rank=None, contiguous=False)
        if left is None or right is None:
            return blank
        order = [n for g in left for n in g if n != "1"] == [n for g in right for n in g if n != "1"]
        sizes: dict[str, Dim] = {k: v for k, v in given.items() if v is not None}
        if tensor.shape is None or len(tensor.shape) != len(left):
            return replace(blank, rank=len(right), contiguous=tensor.contiguous and order)
        for group, dim in zip(left, tensor.shape, strict=True):
            unknown = [n for n in group if n not in sizes and n != "1"]
            if len(unknown) == 1:
                rest = dim.without(product(sizes[n] for n in group if n in sizes))
                sizes[unknown[0]] = rest if rest is not None else Dim.symbol(self._label(unknown[0]))
            elif unknown:
                return replace(blank, rank=len(right))
        shape = tuple(product(Dim.number(1) if n == "1" else sizes.get(n, Dim.symbol(n)) for n in g) for g in right)
        return replace(tensor, shape=shape, axes=(), rank=len(shape), contiguous=tensor.contiguous and order,
                       layout=tensor.layout if order else "transposed")


def _moved(tensor: Tensor, method: str, args: list[int | None]) -> Tensor:
    """The result of a method that moves or adds axes; unknown, and not contiguous, for any other method."""
    layout = {"transpose": "transposed", "permute": "transposed", "t": "transposed", "swapaxes": "transposed",
              "expand": "expanded", "expand_as": "expanded", "broadcast_to": "expanded"}.get(method, "")
    blank = Tensor(external=tensor.external, layout=layout)
    shape = tensor.shape
    if shape is None or any(a is None for a in args):
        return replace(blank, contiguous=tensor.contiguous) if method in ("unsqueeze", "flatten") else blank
    axes = [a for a in args if a is not None]
    n = len(shape)
    if method != "unsqueeze" and not all(-n <= a < n for a in axes):
        return blank                            # raises when it runs
    if method == "unsqueeze" and len(axes) == 1:
        at = axes[0] if axes[0] >= 0 else axes[0] + n + 1
        return replace(tensor, shape=(*shape[:at], Dim.number(1), *shape[at:]), rank=n + 1)
    if method == "squeeze" and len(axes) == 1 and shape[axes[0]].is_one:
        at = axes[0] % n
        return replace(tensor, shape=(*shape[:at], *shape[at + 1:]), rank=n - 1)
    if method == "transpose" and len(axes) == 2:
        moved = list(shape)
        moved[axes[0]], moved[axes[1]] = moved[axes[1]], moved[axes[0]]
        return replace(tensor, shape=tuple(moved), contiguous=False, layout=layout)
    if method == "permute" and len(axes) == n:
        return replace(tensor, shape=tuple(shape[a] for a in axes), contiguous=False, layout=layout)
    return blank


def _reduced(tensor: Tensor, args: list[cst.BaseExpression]) -> Tensor:
    """The result of a reduction over literal axes, given as one number or a tuple."""
    blank = Tensor(external=False)
    if not tensor.shape or len(args) != 1:
        return blank
    given = args[0].elements if isinstance(args[0], (cst.Tuple, cst.List)) else [cst.Element(args[0])]
    axes = [int_of(e.value) for e in given]
    if any(a is None for a in axes):
        return blank
    n = len(tensor.shape)
    gone = {a % n for a in axes if a is not None}
    shape = tuple(d for i, d in enumerate(tensor.shape) if i not in gone)
    return replace(blank, shape=shape, rank=len(shape))


def _memory_format(call: cst.Call) -> str:
    """"contiguous", "preserve", "channels_last", ...; "" where none is given, "?" where it is not a plain name."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "memory_format":
            hit = re.fullmatch(r"torch\.(\w+?)(_format)?", code(arg.value))
            return hit[1] if hit else "?"
    return ""


def _bound_out_of_sight(function: cst.FunctionDef) -> frozenset[str]:
    """Names that an expression, a pattern or a nested function binds: the walk follows statements only."""
    names: set[str] = set()
    for node in find(function.body, cst.NamedExpr, cst.MatchAs, cst.MatchStar, cst.Nonlocal, cst.Global):
        if isinstance(node, cst.NamedExpr):
            names.update(n.value for n in find(node.target, cst.Name))
        elif isinstance(node, (cst.Nonlocal, cst.Global)):
            names.update(item.name.value for item in node.names)
        elif node.name is not None:
            names.add(node.name.value)
    return frozenset(names)


def _changes_layout_in_place(function: cst.FunctionDef) -> bool:
    """Somewhere a tensor changes its shape or strides without being assigned, perhaps under another name."""
    if any(isinstance(c.func, cst.Attribute) and c.func.attr.value in RESHAPE_IN_PLACE
           for c in find(function.body, cst.Call)):
        return True
    return any(isinstance(t.target, cst.Attribute) and t.target.attr.value == "data"
               for a in find(function.body, cst.Assign) for t in a.targets)


def host_shapes(source: Source, function: cst.FunctionDef) -> HostShapes:
    """The analysis of a host function, made when first asked for and kept as long as the function is unchanged."""
    memo = source.tree.unit(function).memo
    if ("shapes", function) not in memo:
        memo["shapes", function] = HostShapes(source, function)
    shapes: HostShapes = memo["shapes", function]
    shapes.source = source                       # positions in the tree are asked of the current version
    return shapes
