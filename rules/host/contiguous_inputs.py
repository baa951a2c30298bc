"""ASC003 contiguous-inputs."""
from __future__ import annotations

import re

import libcst as cst

from migrate.analysis.kernels import match_args
from migrate.analysis.launches import Launch, assignments, is_launch
from migrate.analysis.strides import StrideArg, Strides, compared_with_zero, pairs, strides_of
from migrate.analysis.values import Tensor, as_tensor
from migrate.edit import code, parameters, removed, statement
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.source import Source
from migrate.tree import Edit, find


class ContiguousInputs(Rule):
    """Make each tensor contiguous whose strides a kernel takes, before the launch.

    ## Why
    Ascend moves data by DMA in rows; a run-time stride turns a row into single elements or inflates the buffer that
    holds it. Once every tensor is contiguous, a kernel needs no stride arguments (ASC201 takes them away). For a
    tensor that is contiguous already, `.contiguous()` costs nothing and returns the tensor itself.

    ## What it does
    * a guard such as `if x.stride(-1) != 1: x = x.contiguous()` loses its stride test;
    * an output from `torch.empty_like(x)` gets `memory_format=torch.contiguous_format`, since it would inherit the
      strides of a permuted `x`;
    * an argument that the kernel writes is packed, and copied back after the launch if packing made a copy;
    * any other tensor is made contiguous in the lines before the launch, under its own name where it is only read
      from then on, else under a name of its own, so that the caller's tensor stays the one that later lines change;
    * a tensor that the kernel addresses with another tensor's strides is treated like that one, and an `assert` that
      compares their strides goes.

    ## What it leaves alone
    * a tensor that is proven contiguous: fresh from `torch.empty`, or after `.contiguous()`;
    * a transposed or expanded view, or a tensor whose strides the function compares with 0: its layout is meant, and
      a copy of a broadcast can be large. Reported by ASC201, which then keeps the strides;
    * a tensor whose strides are taken in an inner block, or before other lines change it;
    * tensors that one of these must lie like, because the kernel addresses both with the same strides;
    * a launch that is not a statement of its own: lines before it would not run exactly when it does;
    * a tensor that the launch gets under two names;
    * launches whose arguments cannot be matched to the kernel's parameters.
    """

    id = "ASC003"
    name = "contiguous-inputs"
    summary = "tensors whose strides a kernel takes become contiguous before the launch"
    safety = Safety.SAFE
    triggers = (".stride(",)
    references = (
        Ref("https://github.com/fla-org/flash-linear-attention/blob/main/fla/utils/_decorators.py",
            "`input_guard` makes every tensor of a public function contiguous", "source"),
        Ref("https://docs.pytorch.org/docs/stable/generated/torch.empty_like.html",
            "torch.preserve_format keeps the strides of a dense, permuted input", "doc"),
        Ref("https://github.com/triton-lang/triton-ascend/blob/main/docs/en/migration_guide/performance_guidelines.md",
            "discrete access along the last axis is moved element by element", "doc"),
    )
    examples = (
        Example("inputs, an optional one, and an output that would inherit strides",
            before="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def scale_kernel(x, z, y, n, stride_x, stride_z, stride_y, BLOCK: tl.constexpr):
                    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                    value = tl.load(x + at * stride_x, mask=at < n)
                    if z is not None:
                        value *= tl.load(z + at * stride_z, mask=at < n)
                    tl.store(y + at * stride_y, value, mask=at < n)

                def scale(x, z=None):
                    n, = x.shape
                    y = torch.empty_like(x)
                    # one program a block
                    scale_kernel[(triton.cdiv(n, 64),)](
                        x, z, y, n, x.stride(0), z.stride(0) if z is not None else 0, y.stride(0), BLOCK=64)
                    return y
                """,
            after="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def scale_kernel(x, z, y, n, stride_x, stride_z, stride_y, BLOCK: tl.constexpr):
                    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                    value = tl.load(x + at * stride_x, mask=at < n)
                    if z is not None:
                        value *= tl.load(z + at * stride_z, mask=at < n)
                    tl.store(y + at * stride_y, value, mask=at < n)

                def scale(x, z=None):
                    n, = x.shape
                    y = torch.empty_like(x, memory_format=torch.contiguous_format)
                    x = x.contiguous()
                    if z is not None:
                        z = z.contiguous()
                    # one program a block
                    scale_kernel[(triton.cdiv(n, 64),)](
                        x, z, y, n, x.stride(0), z.stride(0) if z is not None else 0, y.stride(0), BLOCK=64)
                    return y
                """),
        Example("a guard that looked at the last stride only",
            before="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def copy_kernel(x, y, n, stride_x, stride_y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tl.store(y + at * stride_y, tl.load(x + at * stride_x, mask=at < n), mask=at < n)

                def copy(x):
                    if x.stride(-1) != 1:
                        x = x.contiguous()
                    y = torch.empty_like(x)
                    copy_kernel[(1,)](x, y, x.shape[0], x.stride(0), y.stride(0), BLOCK=64)
                    return y
                """,
            after="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def copy_kernel(x, y, n, stride_x, stride_y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tl.store(y + at * stride_y, tl.load(x + at * stride_x, mask=at < n), mask=at < n)

                def copy(x):
                    x = x.contiguous()
                    y = torch.empty_like(x)
                    copy_kernel[(1,)](x, y, x.shape[0], x.stride(0), y.stride(0), BLOCK=64)
                    return y
                """),
        Example("an argument that the kernel writes is copied back",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def decay_kernel(state, n, stride_state, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tl.store(state + at * stride_state, tl.load(state + at * stride_state) * 0.5)

                def decay(state):
                    decay_kernel[(1,)](state, state.shape[0], state.stride(0), BLOCK=64)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def decay_kernel(state, n, stride_state, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tl.store(state + at * stride_state, tl.load(state + at * stride_state) * 0.5)

                def decay(state):
                    state_packed = state.contiguous()
                    decay_kernel[(1,)](state_packed, state.shape[0], state_packed.stride(0), BLOCK=64)
                    if state_packed is not state:
                        state.detach().copy_(state_packed)
                """),
        Example("leaves a broadcast that the host asks about",
            before="""
                import torch
                import triton
                import triton.language as tl

                @triton.jit
                def add_kernel(x, y, stride_x, ROW: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tl.store(y + at, tl.load(x + at * stride_x))

                def add(x):
                    y = torch.empty(x.shape)
                    add_kernel[(1,)](x, y, x.stride(-1), x.stride(-1) == 0, BLOCK=64)
                    return y
                """,
            after=SAME),
    )

    def finish(self) -> None:
        for launch in self.source.launches:
            if not launch.matched or launch.function is None or not stands_alone(launch):
                continue
            strides = strides_of(launch)
            if not strides.env:                 # nothing is known here, nor would it be after an edit
                continue
            todo: dict[str, StrideArg] = {}
            blocked = _blocked(launch, strides)
            for arg in (*strides.args.values(), *(b for group in strides.borrowers.values() for b in group)):
                if not strides.tensor(arg).contiguous and arg.pointers and arg.tensor not in blocked:
                    todo.setdefault(arg.tensor, arg)
            if todo and not self._guards(launch, strides, todo):
                self._before_launch(launch, strides, todo)

    def _written(self, launch: Launch, strides: Strides, arg: StrideArg) -> bool:
        return any(p in launch.kernel.writes for p in arg.pointers)

    def _guards(self, launch: Launch, strides: Strides, todo: dict[str, StrideArg]) -> bool:
        """Takes the stride tests out of guards before the launch. What the guards settle is not done again."""
        assert launch.function is not None
        found = False
        line = self.source.tree.span(launch.call)[0]
        for branch in find(launch.function.body, cst.If):
            if self.source.tree.span(branch)[0] > line or self.source.tree.enclosing(branch, cst.If) is not None:
                continue
            name = _guarded_name(branch)
            if (name in todo and branch not in self.edits and not self._written(launch, strides, todo[name])
                    and _only_read_after(launch, name, may_keep=True)):
                found |= self._guard(branch, name)
        return found

    def _guard(self, branch: cst.If, name: str) -> bool:
        tests = [t for t in _conjuncts(branch.test) if not re.search(r"\.(stride|is_contiguous)\(", code(t))]
        new: Edit
        if tests:
            test = tests[0]
            for more in tests[1:]:
                test = cst.BooleanOperation(test, cst.And(), more)
            new = branch.with_changes(test=test)
        else:
            assert isinstance(branch.body, cst.IndentedBlock)
            new = branch.body.body[0].with_changes(leading_lines=branch.leading_lines)
        return self.replace(branch, new, f"`{name}` is made contiguous whatever its last stride is: "
                                         "the kernel takes no strides")

    def _before_launch(self, launch: Launch, strides: Strides, todo: dict[str, StrideArg]) -> None:
        tree = self.source.tree
        at = first_use(launch, strides)
        home = tree.statement(launch.call)
        if not isinstance(home, cst.SimpleStatementLine) or at in self.edits or home in self.edits:
            return
        before: list[cst.CSTNode] = []
        after: list[cst.CSTNode] = []
        edits: dict[cst.CSTNode, Edit] = {}
        for name, arg in todo.items():
            tensor = strides.tensor(arg)
            made = allocation(launch, name)
            if not tensor.external and made is not None:
                edits[made] = made.with_changes(args=_with_dense_format(made))
                continue
            guard = _guard_text(launch, strides, arg, tensor)
            written = self._written(launch, strides, arg)
            if written or not _only_read_after(launch, name):
                packed = _unused_name(launch, f"{name}_packed")
                value = f"{name}.contiguous()" if not guard else f"{name}.contiguous() if {guard} else None"
                before.append(self._line(f"{packed} = {value}"))
                edits.update(_renamed(launch, name, packed))
                if written:                     # detached: the kernel does not ask for gradients either
                    test = f"{guard} and {packed} is not {name}" if guard else f"{packed} is not {name}"
                    after.append(self._line(f"if {test}:\n    {name}.detach().copy_({packed})"))
            elif guard:
                before.append(self._line(f"if {guard}:\n    {name} = {name}.contiguous()"))
            else:
                before.append(self._line(f"{name} = {name}.contiguous()"))
        if at is home and (before or after):
            edits[home] = cst.FlattenSentinel([*before, home, *after])
        else:
            if before:
                edits[at] = cst.FlattenSentinel([*before, at])
            if after:
                edits[home] = cst.FlattenSentinel([home, *after])
        edits.update(_moot_asserts(launch, todo))
        names = ", ".join(f"`{n}`" for n in todo)
        self.together(edits, f"{names}: contiguous at the launch of `{launch.kernel.name}`, whose strides can go",
                      at=launch.call)

    def _line(self, text: str) -> cst.CSTNode:
        return statement(text, self.source.tree.module)


def meant(launch: Launch, name: str, tensor: Tensor) -> str:
    """Why the strides of a tensor say something; "" where they are only how it happens to lie in memory."""
    if tensor.layout:
        return f"`{name}` is a view that is {tensor.layout}"
    if name in compared_with_zero(launch):
        return f"the function compares strides of `{name}` with 0, so it may be a broadcast"
    return ""


def stands_alone(launch: Launch) -> bool:
    """The launch is a statement of its own, so that lines before and after it run exactly when it does."""
    tree = launch.source.tree
    home = tree.statement(launch.call)
    return (isinstance(home, cst.SimpleStatementLine) and len(home.body) == 1
            and isinstance(home.body[0], cst.Expr) and home.body[0].value is launch.call)


def _blocked(launch: Launch, strides: Strides) -> set[str]:
    """Tensors to leave alone: their layout is meant, or cannot be changed, or one that must lie alike is blocked."""
    groups: list[set[str]] = []
    blocked: set[str] = set()
    for param, arg in strides.args.items():
        borrowers = strides.borrowers.get(param, ())
        groups.append({arg.tensor, *(b.tensor for b in borrowers)})
        if not arg.pointers or param in strides.foreign:
            blocked.add(arg.tensor)
    names = set().union(*groups) if groups else set()
    names |= {n.value for bound in launch.args.values() for n in find(bound.value, cst.Name)}
    assert launch.function is not None
    twins = {frozenset((a, b.value)) for found in find(launch.function.body, cst.Assign) for target in found.targets
             for a, b in pairs(target.target, found.value) if isinstance(b, cst.Name)}
    for group in groups:
        for name in group:
            tensor = as_tensor(strides.env.get(name))
            if (meant(launch, name, tensor) or _read_elsewhere(launch, strides, name)
                    or any(frozenset((name, other)) in twins for other in names)):
                blocked.add(name)
    while True:
        more = set().union(*(g for g in groups if g & blocked)) - blocked if blocked else set()
        if not more:
            return blocked
        blocked |= more


def _only_read_after(launch: Launch, name: str, *, may_keep: bool = False) -> bool:
    """Whether the name may stand for a copy from the launch on: nobody writes through it, returns or keeps it.

    Only a local name of the function will do, and only outside loops, where "after" is before as well. `may_keep`:
    the function makes such a copy itself where it needs one, so returning or keeping it is fine.
    """
    source, function = launch.source, launch.function
    assert function is not None
    tree = source.tree
    params = parameters(function)
    if name not in {p.name.value for p in params} and name not in assignments(source, function):
        return False
    line = tree.span(launch.call)[0]
    for up in tree.ancestors(launch.call):
        if up is function:
            break
        if isinstance(up, (cst.For, cst.While)):
            return False
    for use in find(function.body, cst.Name):
        if use.value == name and tree.span(use)[0] > line and not (
                _harmless(source, use) or (may_keep and _is_kept(source, use))):
            return False
    return True


def _is_kept(source: Source, use: cst.Name) -> bool:
    """The tensor is returned, or handed to a function of this file that launches nothing that writes to it."""
    around, line = source.tree.parent(use), source.tree.statement(use)
    if isinstance(around, (cst.Return, cst.Element)) and isinstance(line, cst.SimpleStatementLine):
        return isinstance(line.body[0], cst.Return)
    call = source.tree.parent(around) if isinstance(around, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
        return False
    callee = source.definitions.get(call.func.value)
    if callee is None:
        return False
    inside = [name for arg, name in match_args(call, [p.name.value for p in callee.params.params])
              if arg.value is use]
    return bool(inside) and not any(
        param in launch.kernel.writes and any(n.value in inside for n in find(bound.value, cst.Name))
        for launch in source.launches if launch.function is callee for param, bound in launch.args.items())


def _harmless(source: Source, use: cst.Name) -> bool:
    """The use asks for a size, dtype or device, passes the tensor to a launch that reads it, or tests for None."""
    tree = source.tree
    around = tree.parent(use)
    if isinstance(around, cst.Attribute) and around.attr is use:
        return True
    if isinstance(around, cst.Attribute) and around.value is use:
        return around.attr.value in ("shape", "dtype", "device", "ndim", "stride", "size", "dim", "numel", "contiguous",
                                     "is_contiguous", "element_size")
    if isinstance(around, cst.AssignTarget):
        statement_ = tree.statement(use)
        return re.fullmatch(rf"\s*{use.value} = {use.value}\.contiguous\(\)\s*", code(statement_)) is not None
    if isinstance(around, cst.Comparison):
        return True
    if isinstance(around, cst.Arg) and around.keyword is use:
        return True
    launch = next((x for x in source.launches if isinstance(around, (cst.Arg, cst.IfExp)) and x.call in
                   list(tree.ancestors(use))), None)
    if launch is None or not launch.matched:
        return False
    return not any(param in launch.kernel.writes for param, bound in launch.args.items()
                   if any(n is use for n in find(bound.value, cst.Name)))


def _unused_name(launch: Launch, wanted: str) -> str:
    assert launch.function is not None
    taken = {n.value for n in find(launch.function, cst.Name)}
    while wanted in taken:
        wanted += "_"
    return wanted


def first_use(launch: Launch, strides: Strides) -> cst.CSTNode:
    """The statement before which a tensor must be ready: the launch, or an earlier one that reads its strides."""
    tree = launch.source.tree
    home = tree.statement(launch.call)
    block, line = tree.parent(home), tree.span(home)[0]
    assert launch.function is not None
    readers = {id(s) for found in _other_readers(launch).values() for s in found}
    if not readers:
        return home
    names = {n.value for a in launch.call.args for n in find(a.value, cst.Name)}
    before = [where for name in names & assignments(launch.source, launch.function).keys()
              for assign in assignments(launch.source, launch.function)[name]
              if id(where := tree.statement(assign)) in readers and tree.parent(where) is block
              and tree.span(where)[0] < line]
    return min(before, key=lambda s: tree.span(s)[0], default=home)


def _read_elsewhere(launch: Launch, strides: Strides, name: str) -> bool:
    """Strides of the tensor are taken where a line before the launch would come too late for them."""
    tree = launch.source.tree
    block, line = tree.parent(tree.statement(launch.call)), tree.span(first_use(launch, strides))[0]
    return any(tree.parent(where) is not block or tree.span(where)[0] < line
               for where in _other_readers(launch).get(name, ()))


def _other_readers(launch: Launch) -> dict[str, list[cst.CSTNode]]:
    """Statements of the host function that take strides of a tensor outside launches and comparisons."""
    assert launch.function is not None
    tree = launch.source.tree
    memo = tree.unit(launch.call).memo
    key = ("stride readers", launch.function)
    if key not in memo:
        readers: dict[str, list[cst.CSTNode]] = {}
        for call in find(launch.function.body, cst.Call):
            func = call.func
            if (isinstance(func, cst.Attribute) and func.attr.value == "stride" and isinstance(func.value, cst.Name)
                    and not any(isinstance(up, cst.Comparison) or is_launch(up) for up in tree.ancestors(call))):
                readers.setdefault(func.value.value, []).append(tree.statement(call))
        memo[key] = readers
    known: dict[str, list[cst.CSTNode]] = memo[key]
    return known


def _guarded_name(branch: cst.If) -> str:
    """`x` in `if <anything about x's layout>: x = x.contiguous()`."""
    if branch.orelse is not None or not isinstance(branch.body, cst.IndentedBlock) or len(branch.body.body) != 1:
        return ""
    hit = re.fullmatch(r"\s*(\w+) = (\w+)\.contiguous\(\)\s*", code(branch.body.body[0]))
    if hit is None or hit[1] != hit[2]:
        return ""
    layout = rf"(not )?\(?(not )?{hit[1]}\.(stride\([^()]*\) != 1|is_contiguous\(\))\)?"
    presence = rf"{hit[1]} is not None"
    good = all(re.fullmatch(f"{layout}|{presence}", code(t)) for t in _conjuncts(branch.test))
    return hit[1] if good else ""


def _conjuncts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_conjuncts(test.left), *_conjuncts(test.right)]
    return [test]


def _moot_asserts(launch: Launch, todo: dict[str, StrideArg]) -> dict[cst.CSTNode, Edit]:
    """Removes `assert a.stride() == b.stride()`: it would compare layouts from before both are made contiguous."""
    assert launch.function is not None
    edits: dict[cst.CSTNode, Edit] = {}
    for check in find(launch.function.body, cst.Assert):
        hit = re.fullmatch(r"(\w+)\.stride\(\) == (\w+)\.stride\(\)", code(check.test))
        if hit is not None and {hit[1], hit[2]} & todo.keys():
            line = launch.source.tree.statement(check)
            edits[line] = removed(line)
    return edits


def allocation(launch: Launch, name: str) -> cst.Call | None:
    """The one `torch.empty_like(...)` (or `zeros_like`, ...) that the function assigns to a name."""
    assert launch.function is not None
    hits = [c for a in find(launch.function.body, cst.Assign)
            if any(isinstance(t.target, cst.Name) and t.target.value == name for t in a.targets)
            for c in find(a.value, cst.Call)
            if re.fullmatch(r"torch\.\w+_like", launch.source.qualified(c.func))]
    return hits[0] if len(hits) == 1 else None


def _with_dense_format(call: cst.Call) -> list[cst.Arg]:
    new = cst.Arg(keyword=cst.Name("memory_format"), value=cst.parse_expression("torch.contiguous_format"),
                  equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")))
    last = call.args[-1]
    comma = last.comma if isinstance(last.comma, cst.Comma) else cst.Comma(cst.SimpleWhitespace(""),
                                                                          cst.SimpleWhitespace(" "))
    return [*call.args[:-1], last.with_changes(comma=comma), new]


def _guard_text(launch: Launch, strides: Strides, arg: StrideArg, tensor: Tensor) -> str:
    """The condition under which the tensor is there, as the launch itself writes it; "" where it always is."""
    if arg.when is not None:
        text = code(arg.when.with_changes(lpar=[], rpar=[]))
        return text if arg.sense else f"not ({text})"
    return f"{arg.tensor} is not None" if tensor.optional else ""


def _renamed(launch: Launch, name: str, new: str) -> dict[cst.CSTNode, Edit]:
    """The pointer and stride arguments of a launch, asked of the packed tensor."""
    edits: dict[cst.CSTNode, Edit] = {}
    for bound in launch.args.values():
        value = bound.value
        if isinstance(value, cst.Name) and value.value == name:
            edits[value] = cst.Name(new)
        for call in find(value, cst.Call):
            if code(call.func) == f"{name}.stride":
                edits[call.func] = cst.Attribute(cst.Name(new), cst.Name("stride"))
        for branch in find(value, cst.IfExp):
            for side in (branch.body, branch.orelse):
                if isinstance(side, cst.Name) and side.value == name:
                    edits[side] = cst.Name(new)
    return edits
