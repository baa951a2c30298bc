"""Which strides of a kernel can go, and what takes their place."""
from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from migrate.analysis.dims import Dim
from migrate.analysis.kernels import Kernel
from migrate.analysis.launches import Launch
from migrate.analysis.shapes import host_shapes
from migrate.analysis.strides import StrideArg, Strides, strides_of
from migrate.analysis.values import Tensor, Value, as_dim, as_tensor
from migrate.edit import code
from migrate.tree import find
from rules.host.contiguous_inputs import meant


@dataclass
class Plan:
    """How one kernel loses its strides, checked against every launch."""

    values: dict[str, str]              # stride parameter -> the expression that takes its place in the kernel
    shapes: dict[str, str]              # pointer parameter -> its shape in kernel terms, for the message
    added: dict[str, list[str]]         # new parameter -> its argument at each launch
    saved: dict[str, str]               # new local name -> the parameter it keeps the first value of


def make_plan(kernel: Kernel, sites: list[Strides], wanted: list[str]) -> tuple[Plan, dict[str, str]]:
    """Expressions for as many strides as can be written soundly, and the reasons for the others."""
    plan, reasons = Plan({}, {}, {}, {}), {}
    names = _Names(kernel, sites, plan)
    for param in wanted:
        if kernel.params[param].constexpr and not all(param in site.args for site in sites):
            continue
        reason = _kept_by_kernel(kernel, param, sites[0].launch.source.strings) or _why_not(param, sites)
        if reason:
            reasons[param] = reason
            continue
        args = [site.args[param] for site in sites]
        tensors = [site.tensor(arg) for site, arg in zip(sites, args, strict=True)]
        shapes = [t.shape for t in tensors]
        n = len(shapes[0] or ())
        axis = args[0].axis % n
        below = range(axis + 1, n)
        factors = [names.dim([s[i] for s in shapes if s is not None], args, i) for i in below]
        if any(f is None for f in factors):
            reasons[param] = f"a dimension of `{args[0].tensor}` cannot be written at the launch"
            continue
        plan.values[param] = " * ".join(f for f in factors if f and f != "1") or "1"
        if args[0].pointers:
            described = [names.dim([s[i] for s in shapes if s is not None], args, i, new=False) or _plain(shapes[0][i])
                         for i in range(n)] if shapes[0] is not None else []
            plan.shapes[args[0].pointers[0]] = f"[{', '.join(described)}]" if n > 1 else "(one axis)"
    for site in sites:                          # a starred tuple goes as a whole or not at all
        for param in wanted:
            together = {p for p, b in site.launch.args.items() if b.arg is site.launch.args[param].arg} \
                if param in site.launch.args else set()
            stay = together - plan.values.keys()
            if stay and param in plan.values:
                del plan.values[param]
                reasons[param] = f"it is passed in one starred tuple with `{min(stay)}`, which stays"
    first = next((p for p in kernel.params if p in plan.values), None)
    if plan.added and first is not None and _after_a_default(kernel, first):
        return Plan({}, {}, {}, {}), reasons | dict.fromkeys(
            plan.values, "new parameters would have to stand behind one that has a default")
    used = {word for value in plan.values.values() for word in re.findall(r"\w+", value)}
    plan.added = {k: v for k, v in plan.added.items() if k in used}
    plan.saved = {k: v for k, v in plan.saved.items() if k in used}
    return plan, reasons


def _after_a_default(kernel: Kernel, param: str) -> bool:
    for name, info in kernel.params.items():
        if info.default is not None:
            return True
        if name == param:
            break
    return False


def _kept_by_kernel(kernel: Kernel, param: str, strings: frozenset[str]) -> str:
    if param in kernel.rebound:
        return "the kernel assigns it anew"
    if param in strings:
        return "a grid or a heuristic reads it by name"
    tree = kernel.source.tree
    for use in find(kernel.node.body, cst.Attribute):
        if isinstance(use.value, cst.Name) and use.value.value == param and not (
                use.attr.value == "to" and isinstance(tree.parent(use), cst.Call)):
            return f"the kernel asks for its `.{use.attr.value}`"
    return ""


def _plain(dim: Dim) -> str:
    """A dimension that the kernel does not need, as the host calls it."""
    return str(dim) if re.fullmatch(r"\w+", str(dim)) else "..."


def _why_not(param: str, sites: list[Strides]) -> str:
    ranks = set()
    for site in sites:
        arg = site.args.get(param)
        if arg is None:
            return "its argument is not a stride of a tensor that can be seen"
        tensor = site.tensor(arg)
        layout = meant(site.launch, arg.tensor, tensor)
        if layout:
            return layout
        if not arg.pointers:
            return f"`{arg.tensor}` itself is not an argument of the launch"
        if tensor.shape is None:
            return f"the shape of `{arg.tensor}` could not be inferred"
        if not tensor.contiguous:
            return f"`{arg.tensor}` is not proven contiguous"
        if not -len(tensor.shape) <= arg.axis < len(tensor.shape):
            return f"`{arg.tensor}` has no axis {arg.axis}"
        if param in site.foreign:
            return f"`{site.foreign[param]}` is addressed with it too"
        for other in site.borrowers.get(param, ()):
            if not site.tensor(other).contiguous:
                return f"`{other.tensor}` is addressed with it too, and is not proven contiguous"
        if not site.absent_otherwise(arg):
            return f"it is 0 where the kernel still uses `{arg.tensor}`: a broadcast"
        ranks.add((len(tensor.shape), arg.axis % len(tensor.shape)))
    return "" if len(ranks) == 1 else "the launches pass tensors of different rank"


class _Names:
    """Kernel-side names for dimensions that are the same at every launch."""

    def __init__(self, kernel: Kernel, sites: list[Strides], plan: Plan) -> None:
        self.kernel, self.sites, self.plan = kernel, sites, plan
        self.known: dict[tuple[Dim, ...], str] = {}
        taken = {n.value for n in find(kernel.node, cst.Name)}
        self.taken = taken
        self.params: list[tuple[str, list[Value]]] = []
        strides = {p for site in sites for p in site.args}
        for name in kernel.params:
            if name in strides or not all(name in site.launch.args for site in sites):
                continue
            values = [site.shapes.value(site.launch.args[name].value, dict(site.env), "")
                      for site in sites if site.shapes is not None]
            known = [v for v in values if v is not None]
            if len(known) == len(sites):
                self.params.append((name, known))
        # constexpr first, then run-time parameters, then those that the kernel assigns anew
        self.params.sort(key=lambda p: (p[0] in kernel.rebound, not kernel.params[p[0]].constexpr))

    def dim(self, dims: list[Dim], args: list[StrideArg], axis: int, *, new: bool = True) -> str | None:
        """The expression for one dimension; a new parameter where none fits and `new` allows it."""
        if len({str(d) for d in dims}) == 1 and not dims[0].atoms:
            return str(dims[0].factor)
        found = self._existing(dims, args)
        if found is not None:
            return found
        if len(dims) == 1 and len(dims[0].atoms) > 1:       # a product: its factors may have names
            parts = [self._existing([Dim.symbol(a)], args) or ((new and self._by_name(Dim.symbol(a))) or None)
                     for a in dims[0].atoms]
            if all(parts):
                factor = [str(dims[0].factor)] if dims[0].factor != 1 else []
                return " * ".join([*factor, *(p for p in parts if p)])
        return self._new(dims, args, axis) if new else self.known.get(tuple(dims))

    def _existing(self, dims: list[Dim], args: list[StrideArg]) -> str | None:
        for name, values in self.params:
            here = zip(values, dims, self.sites, args, strict=True)
            if all(as_dim(value, site.assume(arg)) == dim for value, dim, site, arg in here):
                return self._saved(name) if name in self.kernel.rebound else name
        return self.known.get(tuple(dims))

    def _saved(self, param: str) -> str:
        name = f"full_{param}"
        while name in self.taken:
            name += "_"
        self.plan.saved[name] = param
        return name

    def _by_name(self, dim: Dim) -> str | None:
        """A new parameter for a symbol that a host name stands for at the only launch."""
        host = _host_name(self.sites[0], dim, {})
        return self._add(host, [host], (dim,)) if host is not None else None

    def _new(self, dims: list[Dim], args: list[StrideArg], axis: int) -> str | None:
        texts = []
        for dim, site, arg in zip(dims, self.sites, args, strict=True):
            text = _host_name(site, dim, site.assume(arg))
            if text is None:
                text = f"{arg.tensor}.shape[{axis}]"
                tensor = site.tensor(arg)
                if arg.when is not None:
                    test = code(arg.when.with_changes(lpar=[], rpar=[]))
                    text = f"{text} if {test} else 1" if arg.sense else f"1 if {test} else {text}"
                elif tensor.optional:
                    text = f"{text} if {arg.tensor} is not None else 1"
            texts.append(text)
        name = texts[0] if texts[0].isidentifier() else self._name_of_axis(args[0], axis)
        return self._add(name, texts, tuple(dims))

    def _name_of_axis(self, arg: StrideArg, axis: int) -> str:
        """`stride_v_seqlen` is the stride of the axis that `v_seqlen` is the length of."""
        for other in self.sites[0].args.values():
            if other.tensor == arg.tensor and other.axis == axis and other.param.startswith("stride_"):
                return other.param.removeprefix("stride_")
        return f"{arg.pointers[0]}_dim{axis}"

    def _add(self, name: str, texts: list[str], key: tuple[Dim, ...]) -> str:
        if name in self.taken:
            name = f"{name}_dim"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        self.plan.added[name] = texts
        self.known[key] = name
        return name


def _host_name(site: Strides, dim: Dim, assume: dict[str, bool]) -> str | None:
    """A host name that holds exactly this dimension at the launch."""
    for name, value in site.env.items():
        if not isinstance(value, Tensor) and as_dim(value, assume) == dim:
            return name
    return None


def shape_from_callers(launch: Launch, tensor: str) -> str:
    """The shape that every caller in the file gives an argument, in names that the function knows itself."""
    function, source = launch.function, launch.source
    assert function is not None
    params = [p.name.value for p in function.params.params]
    packed = re.fullmatch(r"(\w+)\.contiguous\(\)( if .* else None)?", code(launch.source_value(cst.Name(tensor))))
    if packed is not None:
        tensor = packed[1]                      # what ASC003 packed has the shape of the argument
    if tensor not in params:
        return ""
    inner = strides_of(launch)
    texts = set()
    for call in source.calls.get(function.name.value, ()):
        outer = source.tree.enclosing(call, cst.FunctionDef)
        if outer is None or outer is function or any(a.star for a in call.args):
            return ""
        texts.add(_shape_at_call(inner, outer, call, params, tensor))
    return texts.pop() if len(texts) == 1 else ""


def _shape_at_call(inner: Strides, outer: cst.FunctionDef, call: cst.Call, params: list[str], tensor: str) -> str:
    shapes = host_shapes(inner.launch.source, outer)
    env = shapes.before(call)
    given = {(a.keyword.value if a.keyword else params[i]): a.value
             for i, a in enumerate(call.args) if a.keyword or i < len(params)}
    names: dict[Dim, str] = {}
    for param, value in given.items():          # what a caller's symbol is called inside
        outside = as_tensor(shapes.value(value, dict(env), ""))
        inside = as_tensor(inner.env.get(param))
        for i, dim in enumerate(outside.shape or ()):
            known = inside.dim(i)
            text = _host_name(inner, known, {}) if known is not None else None
            if text is not None:
                names.setdefault(dim, text)
    target = as_tensor(shapes.value(given[tensor], dict(env), "")) if tensor in given else Tensor()
    if not target.shape or not all(d in names for d in target.shape):
        return ""
    parts = [names[d] for d in target.shape]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
