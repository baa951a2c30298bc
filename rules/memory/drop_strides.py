"""ASC201 drop-strides."""
from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import libcst as cst

from migrate.analysis.dims import Dim
from migrate.analysis.kernels import Kernel
from migrate.analysis.launches import Launch, assignments
from migrate.analysis.shapes import Tensor, Value, as_dim, as_tensor, host_shapes
from migrate.analysis.strides import StrideArg, Strides, complete, strides_of
from migrate.edit import code, edited_items, statement
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, Tree, find
from rules.host.contiguous_inputs import first_use, meant

# Dimensions that vary from call to call stay run-time arguments: as a constexpr each value is a compile of its own.
LENGTH = re.compile(r"(?i)(.*(seq|len|chunk|batch|rows?|tokens?|num_|total).*|b|t|l|m|n|s|nt|ns|bsz)$")


@dataclass
class Plan:
    """How one kernel loses its strides, checked against every launch."""

    values: dict[str, str]              # stride parameter -> the expression that takes its place in the kernel
    shapes: dict[str, str]              # pointer parameter -> its shape in kernel terms, for the message
    added: dict[str, list[str]]         # new parameter -> its argument at each launch
    saved: dict[str, str]               # new local name -> the parameter it keeps the first value of


class DropStrides(Rule):
    """Take stride parameters out of a kernel and write its offsets from dimensions.

    ## Why
    A stride that arrives at run time hides from the compiler that rows are contiguous: DMA degrades to single
    elements, and buffers grow. `bwd_segsum_dadt` with run-time strides needs 3,162,112 bits of Unified Buffer at
    C = 64 in float32 where a core has 1,572,864; without them it compiles.

    ## What it does
    A tensor that is proven contiguous at every launch (ASC003 sees to it) has strides that are products of its
    dimensions. Dimensions come from the host function: `.shape` unpacking, asserts, allocations, views, einops
    patterns. Each is written as a kernel parameter that has the same value at every launch; failing that it
    becomes a new parameter, `tl.constexpr` for head and state sizes, run-time for lengths (a new sequence length must
    not mean a new compile). The stride of the last axis disappears. A parameter that the kernel assigns
    anew is saved under another name first.

    Where a function does not state the shape of an argument, but the callers in the file show it, or every offset
    of the kernel carries a stride, the assumption is written down as an `assert` before the launch.

    ## What it leaves alone
    * strides of transposed or expanded views and of tensors whose strides are compared with 0: a real layout;
    * a stride that is 0 under a condition in which the kernel still reads the tensor: a broadcast;
    * shapes that cannot be inferred, and launches that cannot be matched;
    * a kernel that another module of the package names: a launch there would still pass strides.

    These strides become `tl.constexpr`, so that the compiler sees their values, and a finding says why they stay.

    A product of dimensions is computed in int32 like the stride before it, unless one tensor row has 2**31 elements
    or more; `wide-addresses` is the rule for those.
    """

    id = "ASC201"
    name = "drop-strides"
    summary = "kernels take no strides: offsets are written from dimensions"
    safety = Safety.SAFE
    triggers = (".stride(", "stride_")
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/blob/main/docs/en/migration_guide/migrate_from_gpu.md",
            "strided access along the last axis is discrete access", "doc"),
        Ref("https://github.com/state-spaces/mamba/blob/main/mamba_ssm/ops/triton/mamba3/mamba3_mimo_utils.py",
            "bwd_segsum_dadt at C=64, float32: 3,162,112 of 1,572,864 bits with strides, compiles without", "compiled"),
    )
    examples = (
        Example("a row kernel: the row stride is the row length",
            before="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def scale_kernel(
                    x, y,
                    # strides of x, y: (rows, cols)
                    stride_x_row, stride_x_col,
                    stride_y_row, stride_y_col,
                    # sizes
                    cols,
                    BLOCK: tl.constexpr,
                ):
                    row = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    value = tl.load(x + row * stride_x_row + at * stride_x_col, mask=at < cols)
                    tl.store(y + row * stride_y_row + at * stride_y_col, value * 2, mask=at < cols)

                def scale(x):
                    rows, cols = x.shape
                    x = x.contiguous()
                    y = torch.empty_like(x)
                    scale_kernel[(rows,)](
                        x, y,
                        x.stride(0), x.stride(1),
                        y.stride(0), y.stride(1),
                        cols,
                        BLOCK=triton.next_power_of_2(cols),
                    )
                    return y
                """,
            after="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def scale_kernel(
                    x, y,
                    # sizes
                    cols,
                    BLOCK: tl.constexpr,
                ):
                    row = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    value = tl.load(x + row * cols + at, mask=at < cols)
                    tl.store(y + row * cols + at, value * 2, mask=at < cols)

                def scale(x):
                    rows, cols = x.shape
                    x = x.contiguous()
                    y = torch.empty_like(x)
                    scale_kernel[(rows,)](
                        x, y,
                        cols,
                        BLOCK=triton.next_power_of_2(cols),
                    )
                    return y
                """),
        Example("a dimension that the kernel does not know becomes a parameter, one that it assigns anew is saved",
            before="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def copy_kernel(x, y, starts, stride_b, stride_t, stride_h, seqlen, BLOCK: tl.constexpr):
                    b, h = tl.program_id(0), tl.program_id(1)
                    if starts is not None:
                        seqlen = tl.load(starts + 1)
                    at = tl.arange(0, BLOCK)
                    offset = b * stride_b + at * stride_t + h * stride_h
                    tl.store(y + offset, tl.load(x + offset, mask=at < seqlen), mask=at < seqlen)

                def copy(x, starts=None):
                    batch, seqlen, heads = x.shape
                    x = x.contiguous()
                    y = torch.empty(batch, seqlen, heads)
                    copy_kernel[(batch, heads)](x, y, starts, x.stride(0), x.stride(1), x.stride(2), seqlen, BLOCK=64)
                    return y
                """,
            after="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def copy_kernel(x, y, starts, heads: tl.constexpr, seqlen, BLOCK: tl.constexpr):
                    full_seqlen = seqlen
                    b, h = tl.program_id(0), tl.program_id(1)
                    if starts is not None:
                        seqlen = tl.load(starts + 1)
                    at = tl.arange(0, BLOCK)
                    offset = b * full_seqlen * heads + at * heads + h
                    tl.store(y + offset, tl.load(x + offset, mask=at < seqlen), mask=at < seqlen)

                def copy(x, starts=None):
                    batch, seqlen, heads = x.shape
                    x = x.contiguous()
                    y = torch.empty(batch, seqlen, heads)
                    copy_kernel[(batch, heads)](x, y, starts, heads, seqlen, BLOCK=64)
                    return y
                """),
        Example("a shape that nothing states stays, as a constexpr, with a finding",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill_kernel(x, stride, BLOCK: tl.constexpr):
                    tl.store(x + tl.program_id(0) * stride + tl.arange(0, BLOCK), 0.0)

                def fill(x):
                    x = x.contiguous()
                    fill_kernel[(8,)](x, x.stride(0), BLOCK=64)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill_kernel(x, stride: tl.constexpr, BLOCK: tl.constexpr):
                    tl.store(x + tl.program_id(0) * stride + tl.arange(0, BLOCK), 0.0)

                def fill(x):
                    x = x.contiguous()
                    fill_kernel[(8,)](x, x.stride(0), BLOCK=64)
                """,
            reports=1),
        Example("leaves a kernel that takes dimensions already",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill_kernel(x, cols, BLOCK: tl.constexpr):
                    tl.store(x + tl.program_id(0) * cols + tl.arange(0, BLOCK), 0.0)

                def fill(x):
                    # no x.stride() here
                    fill_kernel[(8,)](x, x.shape[1], BLOCK=64)
                """,
            after=SAME),
    )

    def finish(self) -> None:
        by_kernel: dict[str, list[Launch]] = {}
        for launch in self.source.launches:
            if self.source.kernels.get(launch.kernel.name) is launch.kernel:
                by_kernel.setdefault(launch.kernel.name, []).append(launch)
        for name, kernel in self.source.kernels.items():
            self._kernel(kernel, by_kernel.get(name, []))

    def _kernel(self, kernel: Kernel, launches: list[Launch]) -> None:
        sites = [strides_of(launch) for launch in launches if launch.function is not None]
        named = [p for p, info in kernel.params.items() if p.startswith("stride_")]
        passed = list(dict.fromkeys(p for site in sites for p in site.args))
        wanted = [p for p in kernel.params if p in named or p in passed]
        if not wanted or not launches:
            return                              # nobody launches it here: a helper, or a kernel for other modules
        if len(sites) < len(launches) or not all(launch.matched for launch in launches):
            self._keep(kernel, wanted, {}, "a launch of the kernel could not be matched to its parameters")
            return
        if self.source.project is not None and self.source.project.named_elsewhere(kernel.name, self.source.module):
            self._keep(kernel, wanted, {}, "another module of the package names the kernel and may launch it")
            return
        if self._state_assumptions(kernel, sites):
            return                              # the next pass knows them
        plan, reasons = _plan(kernel, sites, wanted)
        if plan.values and self._drop(kernel, launches, plan):
            return                              # what stays is looked at in the next pass
        self._keep(kernel, [p for p in wanted if p not in plan.values or not plan.values], reasons, "")

    # Assumptions

    def _state_assumptions(self, kernel: Kernel, sites: list[Strides]) -> bool:
        stated = False
        for site in sites:
            facts: dict[str, tuple[StrideArg, str]] = {}
            for arg in site.args.values():
                tensor = site.tensor(arg)
                if tensor.shape is None and arg.tensor not in facts and not meant(site.launch, arg, tensor):
                    fact = self._assumption(kernel, site, arg, tensor)
                    if fact:
                        facts[arg.tensor] = (arg, fact)
            if facts:
                stated |= self._assert(site, facts)
        return stated

    def _assumption(self, kernel: Kernel, site: Strides, arg: StrideArg, tensor: Tensor) -> str:
        """`x.shape == (...)` from the callers in this file, or `x.dim() == n` from the strides; "" if neither."""
        shape = _shape_from_callers(site.launch, arg.tensor)
        if shape:
            return f"{arg.tensor}.shape == {shape}"
        if tensor.rank is not None:
            return ""
        axes = {a.axis for a in site.args.values() if a.tensor == arg.tensor}
        params = frozenset(a.param for a in site.args.values() if a.tensor == arg.tensor)
        if axes == set(range(len(axes))) and arg.pointers and all(complete(kernel, p, params) for p in arg.pointers):
            return f"{arg.tensor}.dim() == {len(axes)}"
        return ""

    def _assert(self, site: Strides, facts: dict[str, tuple[StrideArg, str]]) -> bool:
        at = first_use(site.launch, site)
        if not isinstance(at, cst.SimpleStatementLine) or at in self.edits:
            return False
        lines = []
        for name, (arg, fact) in facts.items():
            optional = arg.when is not None or site.tensor(arg).optional
            lines.append(statement(f"assert {name} is None or {fact}" if optional else f"assert {fact}",
                                   self.source.tree.module))
        text = ", ".join(f"`{fact}`" for _, fact in facts.values())
        return self.replace(at, cst.FlattenSentinel([*lines, at]),
                            f"states what dropping the strides relies on: {text}", at=site.launch.call)

    # Dropping

    def _drop(self, kernel: Kernel, launches: list[Launch], plan: Plan) -> bool:
        edits: dict[cst.CSTNode, Edit] = {}
        first = next(p for p in kernel.params if p in plan.values)
        params = kernel.node.params
        tl = next((alias for alias, full in self.source.imports.items() if full == "triton.language"), "tl")
        new = [_param(name, tl) for name in plan.added]
        dropped = {kernel.params[p].node for p in plan.values}
        edits[params] = params.with_changes(
            params=edited_items(params.params, dropped, {kernel.params[first].node: new}))
        edits.update(_body_edits(kernel, plan, self.source.tree.module))
        for i, launch in enumerate(launches):
            edits[launch.call] = _launch_edit(launch, plan, first, i)
        edits.update(_dead_locals(launches, plan))
        if any(node in self.edits for node in edits):
            return False
        by_shape: dict[str, list[str]] = {}
        for pointer, shape in plan.shapes.items():
            by_shape.setdefault(shape, []).append(f"`{pointer}`")
        shapes = "; ".join(f"{', '.join(pointers)} {shape}" for shape, pointers in by_shape.items())
        return self.together(edits, f"`{kernel.name}` loses {len(plan.values)} stride parameters, all is contiguous: "
                                    f"{shapes}", at=kernel.node.name)

    # Keeping

    def _keep(self, kernel: Kernel, params: list[str], reasons: dict[str, str], reason: str) -> None:
        grouped: dict[str, list[str]] = {}
        for p in params:
            grouped.setdefault(reasons.get(p, reason) or "its argument is not a stride of a tensor that can be seen",
                               []).append(p)
        for why, names in grouped.items():
            text = ", ".join(f"`{n}`" for n in names)
            runtime = [n for n in names if not kernel.params[n].constexpr and self._can_be_constexpr(kernel, n)]
            if runtime:
                edits: dict[cst.CSTNode, Edit] = {}
                tl = next((alias for alias, full in self.source.imports.items() if full == "triton.language"), "tl")
                for n in runtime:
                    edits[kernel.params[n].node] = _annotated(kernel.params[n].node, tl)
                self.together(edits, f"{text} of `{kernel.name}` stay, as `tl.constexpr`: {why}", at=kernel.node.name)
            self.report(kernel.node.name, f"{text} of `{kernel.name}` could not be dropped: {why}")

    def _can_be_constexpr(self, kernel: Kernel, param: str) -> bool:
        uses_methods = any(isinstance(a.value, cst.Name) and a.value.value == param
                           for a in find(kernel.node.body, cst.Attribute))
        return (param not in kernel.rebound and not uses_methods
                and kernel.params[param].node.annotation is None)


# Planning

def _plan(kernel: Kernel, sites: list[Strides], wanted: list[str]) -> tuple[Plan, dict[str, str]]:
    """Expressions for as many strides as can be written soundly, and the reasons for the others."""
    plan, reasons = Plan({}, {}, {}, {}), {}
    names = _Names(kernel, sites, plan)
    for param in wanted:
        if kernel.params[param].constexpr and not all(param in site.args for site in sites):
            continue
        reason = _why_not(param, sites)
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
            plan.shapes[args[0].pointers[0]] = f"[{', '.join(described)}]"
    for site in sites:                          # a starred tuple goes as a whole or not at all
        for param in wanted:
            together = {p for p, b in site.launch.args.items() if b.arg is site.launch.args[param].arg} \
                if param in site.launch.args else set()
            stay = together - plan.values.keys()
            if stay and param in plan.values:
                del plan.values[param]
                reasons[param] = f"it is passed in one starred tuple with `{min(stay)}`, which stays"
    used = {word for value in plan.values.values() for word in re.findall(r"\w+", value)}
    plan.added = {k: v for k, v in plan.added.items() if k in used}
    plan.saved = {k: v for k, v in plan.saved.items() if k in used}
    return plan, reasons


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
        layout = meant(site.launch, arg, tensor)
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
        for other in site.borrowers.get(param, ()):
            if not site.tensor(other).contiguous:
                return f"`{other.tensor}` is addressed with it too, and is not proven contiguous"
        if not site.absent_otherwise(arg):
            return f"it is 0 where the kernel still reads `{arg.tensor}`: a broadcast"
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
        name = texts[0] if texts[0].isidentifier() else f"{args[0].pointers[0]}_dim{axis}"
        return self._add(name, texts, tuple(dims))

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


def _shape_from_callers(launch: Launch, tensor: str) -> str:
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
    for call in source.tree.all(cst.Call):
        if not (isinstance(call.func, cst.Name) and call.func.value == function.name.value):
            continue
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


# Rewriting

def _param(name: str, tl: str) -> cst.Param:
    param = cst.Param(cst.Name(name))
    return param if LENGTH.match(name) else _annotated(param, tl)


def _annotated(param: cst.Param, tl: str) -> cst.Param:
    return param.with_changes(annotation=cst.Annotation(cst.parse_expression(f"{tl}.constexpr"),
                                                        whitespace_before_indicator=cst.SimpleWhitespace("")))


def _body_edits(kernel: Kernel, plan: Plan, module: cst.Module) -> dict[cst.CSTNode, Edit]:
    """Each use of a dropped stride becomes its expression; a factor of 1 goes."""
    edits: dict[cst.CSTNode, Edit] = {}
    tree = kernel.source.tree
    for name in find(kernel.node.body, cst.Name):
        value = plan.values.get(name.value)
        around = tree.parent(name)
        if value is None or (isinstance(around, cst.Arg) and around.keyword is name) or (
                isinstance(around, cst.Attribute) and around.attr is name):
            continue
        if isinstance(around, cst.BinaryOperation) and isinstance(around.operator, cst.Multiply):
            if value == "1" and around not in edits:
                edits[around] = _alone(around.right if around.left is name else around.left, around)
                continue
            if "*" in value and around.right is name and around not in edits:
                edits[around] = _product(around, value)
                continue
            bare = around.left is name
        else:
            bare = _loose(around)
        edits[name] = cst.parse_expression(value if bare or "*" not in value else f"({value})")
    body = kernel.node.body
    if plan.saved and isinstance(body, cst.IndentedBlock):
        lines = [statement(f"{new} = {old}", module) for new, old in plan.saved.items()]
        documented = kernel.node.get_docstring() is not None and len(body.body) > 1
        at = body.body[1 if documented else 0]
        edits[at] = cst.FlattenSentinel([*lines, at])
    return edits


def _loose(around: cst.CSTNode | None) -> bool:
    """A place where a product needs no parentheses."""
    if isinstance(around, cst.BinaryOperation):
        return isinstance(around.operator, (cst.Add, cst.Subtract))
    return isinstance(around, (cst.Arg, cst.Element, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Index))


def _alone(kept: cst.BaseExpression, product_: cst.BinaryOperation) -> cst.BaseExpression:
    """One factor in place of the product, in the product's parentheses if it needs any."""
    if not product_.lpar or kept.lpar or isinstance(kept, (cst.Name, cst.Subscript, cst.Call, cst.Attribute)):
        return kept
    return kept.with_changes(lpar=product_.lpar, rpar=product_.rpar)


def _product(times: cst.BinaryOperation, value: str) -> cst.BinaryOperation:
    """`x * stride` as `x * a * b`: left to right, so that an index that was widened stays wide."""
    first, *more = value.split(" * ")
    out = times.with_changes(right=cst.Name(first) if first.isidentifier() else cst.parse_expression(first),
                             lpar=[], rpar=[])
    for factor in more:
        out = cst.BinaryOperation(out, cst.Multiply(), cst.parse_expression(factor))
    return out.with_changes(lpar=times.lpar, rpar=times.rpar)


def _launch_edit(launch: Launch, plan: Plan, first: str, index: int) -> cst.Call:
    """The launch without the strides, and with the arguments of new parameters where the first stride was."""
    drop = {launch.args[p].arg for p in plan.values}
    at = launch.args[first].arg
    new = []
    for name, texts in plan.added.items():
        value = cst.parse_expression(texts[index])
        new.append(cst.Arg(value) if at.keyword is None else cst.Arg(
            value, keyword=cst.Name(name), equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))))
    return launch.call.with_changes(args=edited_items(launch.call.args, drop, {at: new}))


def _dead_locals(launches: list[Launch], plan: Plan) -> dict[cst.CSTNode, Edit]:
    """Removes tuples of strides (`z_strides = ...`) that nothing reads once the arguments are gone."""
    edits: dict[cst.CSTNode, Edit] = {}
    for function in dict.fromkeys(launch.function for launch in launches):
        if function is None:
            continue
        source = launches[0].source
        dropped = {n for launch in launches if launch.function is function for p in plan.values
                   for n in find(launch.args[p].arg, cst.Name)}
        assigned = assignments(source, function)
        locals_ = {n.value for n in dropped} & assigned.keys()
        uses = Counter(n.value for n in find(function.body, cst.Name) if n.value in locals_ and n not in dropped)
        for local in locals_:
            alone = all(len(a.targets) == 1 for a in assigned[local]) and uses[local] == len(assigned[local])
            if alone and any(".stride(" in code(a.value) for a in assigned[local]):
                for assign in assigned[local]:
                    line = source.tree.statement(assign)
                    edits[_only_statement_of_else(line, source.tree) or line] = cst.RemoveFromParent()
    return edits


def _only_statement_of_else(line: cst.CSTNode, tree: Tree) -> cst.CSTNode | None:
    block = tree.parent(line)
    if isinstance(block, cst.IndentedBlock) and len(block.body) == 1:
        around = tree.parent(block)
        if isinstance(around, cst.Else):
            return around
    return None
