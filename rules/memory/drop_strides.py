"""ASC201 drop-strides."""
from __future__ import annotations

import functools
from collections import Counter

import libcst as cst

from migrate.analysis.kernels import Kernel
from migrate.analysis.launches import Launch
from migrate.analysis.strides import StrideArg, Strides, complete, strides_of
from migrate.analysis.values import Tensor
from migrate.edit import edited_items, statement
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.host.contiguous_inputs import allocation, first_use, meant, stands_alone
from rules.memory import stride_rewrite
from rules.memory.stride_plan import Plan, make_plan, shape_from_callers


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
    * a kernel that another module of the package names, that another kernel calls, or that is put into a table: who
      uses it there would still pass strides;
    * a stride that the kernel assigns anew, or that a grid or a heuristic reads by name.

    These strides become `tl.constexpr`, so that the compiler sees their values, and a finding says why they stay.

    A product of dimensions is computed in int32, like an index times a stride before. Where one row of an axis has
    2**31 elements or more, Triton passed its stride as int64: such a kernel needs its indices widened by hand.
    """

    id = "ASC201"
    name = "drop-strides"
    summary = "kernels take no strides: offsets are written from dimensions"
    safety = Safety.REVIEW
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

    @functools.cached_property
    def _name_uses(self) -> Counter[str]:
        """How often each name stands in the file; a kernel that is only launched stands at its `def` besides."""
        return Counter(n.value for n in self.source.tree.all(cst.Name))

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
        if self._name_uses[kernel.name] > len(launches) + 1:
            self._keep(kernel, wanted, {}, "the kernel is used in other ways than by launching it")
            return
        if self.source.project is not None and self.source.project.named_elsewhere(kernel.name, self.source.module):
            self._keep(kernel, wanted, {}, "another module of the package names the kernel and may launch it")
            return
        if self._state_assumptions(kernel, sites):
            return                              # the next pass knows them
        plan, reasons = make_plan(kernel, sites, wanted)
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
                if (tensor.shape is None and tensor.contiguous and arg.tensor in site.env and arg.tensor not in facts
                        and not meant(site.launch, arg.tensor, tensor)):
                    fact = self._assumption(kernel, site, arg, tensor)
                    if fact:
                        facts[arg.tensor] = (arg, fact)
            if facts:
                stated |= self._assert(site, facts)
        return stated

    def _assumption(self, kernel: Kernel, site: Strides, arg: StrideArg, tensor: Tensor) -> str:
        """`x.shape == (...)` from the callers in this file, or `x.dim() == n` from the strides; "" if neither."""
        shape = shape_from_callers(site.launch, arg.tensor)
        if shape:
            return f"{arg.tensor}.shape == {shape}"
        made_here = not tensor.external and allocation(site.launch, arg.tensor) is None
        if tensor.rank is not None or made_here:
            return ""
        axes = {a.axis for a in site.args.values() if a.tensor == arg.tensor}
        params = frozenset(a.param for a in site.args.values() if a.tensor == arg.tensor)
        if axes == set(range(len(axes))) and arg.pointers and all(complete(kernel, p, params) for p in arg.pointers):
            return f"{arg.tensor}.dim() == {len(axes)}"
        return ""

    def _assert(self, site: Strides, facts: dict[str, tuple[StrideArg, str]]) -> bool:
        at = first_use(site.launch, site)
        if not stands_alone(site.launch) or at in self.edits:
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
        tl = self.source.language
        new = [stride_rewrite.new_param(name, tl) for name in plan.added]
        dropped = {kernel.params[p].node for p in plan.values}
        edits[params] = params.with_changes(
            params=edited_items(params.params, dropped, {kernel.params[first].node: new}))
        edits.update(stride_rewrite.body_edits(kernel, plan, self.source.tree.module, tl))
        for i, launch in enumerate(launches):
            edits[launch.call] = stride_rewrite.launch_edit(launch, plan, first, i)
        edits.update(stride_rewrite.dead_locals(launches, plan))
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
                tl = self.source.language
                for n in runtime:
                    edits[kernel.params[n].node] = stride_rewrite.as_constexpr(kernel.params[n].node, tl)
                self.together(edits, f"{text} of `{kernel.name}` stay, as `tl.constexpr`: {why}", at=kernel.node.name)
            self.report(kernel.node.name, f"{text} of `{kernel.name}` stay: {why}")

    def _can_be_constexpr(self, kernel: Kernel, param: str) -> bool:
        uses_methods = any(isinstance(a.value, cst.Name) and a.value.value == param
                           for a in find(kernel.node.body, cst.Attribute))
        return (param not in kernel.rebound and not uses_methods
                and kernel.params[param].node.annotation is None)
