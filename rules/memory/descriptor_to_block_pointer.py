"""ASC202 descriptor-to-block-pointer."""
from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

import libcst as cst

from migrate.analysis.control import Constness, bindings, kernel_of
from migrate.analysis.kernels import Kernel, match_args
from migrate.edit import code, expression
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import find
from rules.wording import swap, within

MAKERS = frozenset({"make_tensor_descriptor", "_experimental_make_tensor_descriptor"})
FREE_LOAD, FREE_STORE = "triton.language.load_tensor_descriptor", "triton.language.store_tensor_descriptor"
FIELDS = ("base", "shape", "strides", "block_shape", "padding_option")
TMA = re.compile(r"\b(?:TMA|(?<!block )descriptors?)\b", re.IGNORECASE)
ON_HOST = re.compile(r"\bTMA\b")
WORDS = (
    swap(r"\bnon-TMA (loads?/stores?|loads?|stores?)\b", r"\1 without a block pointer"),
    swap(r"\b(?:TMA )?(?:tensor )?descriptor(s?)\b", r"block pointer\1"),
    swap(r"\bTMA (loads?/stores?|loads?|stores?|accesses)\b", r"block \1"),
    swap(r"\b(?:via|using|with|through|by) TMA\b", "through block pointers"),
)
HOST = frozenset({"TensorDescriptor", "TensorDescriptor.from_tensor"})


@dataclass
class Descriptor:
    """A name that holds a descriptor in one Triton function, be it made there or handed in."""

    kernel: Kernel
    name: str
    rank: int
    padding: str = "zero"
    edits: dict[cst.CSTNode, object] = field(default_factory=dict)
    handed_to: list[tuple[cst.Call, Kernel, str]] = field(default_factory=list)
    made: list[cst.Call] = field(default_factory=list)
    obstacle: tuple[cst.CSTNode, str] | None = None


class DescriptorToBlockPointer(Rule):
    """Turn a TMA descriptor into a block pointer at the same place, and its loads and stores into block loads.

    ## Why
    triton-ascend 3.2.0 has no tensor descriptors worth the name: a plain `.load` of one does not compile. A block
    pointer says the same thing (base, shape, strides, block) and becomes one DMA.

    The block pointer is made where the descriptor was, with zero offsets, so that it captures base, shape and strides
    as they were then, and each access moves it there: `tl.advance(ptr, [i, j])`. Nothing is carried round a loop, which
    is what the compiler cannot follow. Offsets stay int32, as they had to be for the descriptor.

    What TMA does by itself has to be written: lanes outside the tensor read as zero (`boundary_check` and
    `padding_option="zero"`) and are not stored. A descriptor store of float32 into bfloat16 converts on the GPU and is
    an error here, so a stored value is cast to the element type, unless it is cast already.

    A descriptor that is handed to a helper of the same file is followed into it.

    Comments of a kernel none of whose descriptors is left say block pointer where they said TMA or descriptor. A block
    of comments that speaks of TMA in another way, there or in a function that launches the kernel, keeps its text
    under the line "Upstream, on a GPU:". Other comments and docstrings stay.

    ## What it leaves alone
    Reported instead:
    * descriptors made on the host (`TensorDescriptor`), and kernels that get one;
    * descriptors put into a tuple, chosen at run time, handed to a function that is not in this file, or used for
      atomics, gather and scatter;
    * a block whose rank cannot be read from the code.
    """

    id = "ASC202"
    name = "descriptor-to-block-pointer"
    summary = "`tl.make_tensor_descriptor` does not compile: block pointers say the same"
    safety = Safety.SAFE
    triggers = ("make_tensor_descriptor", "TensorDescriptor")
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/blob/main/docs/zh/triton_api/Memory_Pointer_Ops/"
            "make_tensor_descriptor.md", "limits on 3.2: not to be mixed with tl.load and tl.store", "doc"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "tl.advance off an unmoved block pointer and a block pointer made at each access give the same HIVM: one "
            "load_gm_to_ubuf_2d and one store_ubuf_to_gm_2d a round, no scalar loop", "compiled"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "a store of float32 through a bfloat16 block pointer: Block element type(bf16) and value element type(fp32)"
            " mismatch; int64 offsets: Block pointers only support 32 bit", "compiled"),
    )
    examples = (
        Example("a tile in, a tile out, inside a loop",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def double(x, y, rows, cols, stride_x, stride_y, BM: tl.constexpr, BN: tl.constexpr):
                    # both by TMA
                    src = tl.make_tensor_descriptor(
                        x,
                        shape=[rows, cols],
                        strides=[stride_x, 1],
                        block_shape=[BM, BN],
                    )
                    dst = tl.make_tensor_descriptor(y, [rows, cols], [stride_y, 1], [BM, BN])
                    # as TMA wants it, a block of rows each
                    for i in range(tl.cdiv(rows, BM)):
                        # they overlap with TMA loads
                        a = src.load([i * BM, 0])  # BM BN
                        dst.store([i * BM, 0], a + 1.)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def double(x, y, rows, cols, stride_x, stride_y, BM: tl.constexpr, BN: tl.constexpr):
                    # both through block pointers
                    src = tl.make_block_ptr(
                        x,
                        shape=[rows, cols],
                        strides=[stride_x, 1],
                        offsets=[0, 0],
                        block_shape=[BM, BN],
                        order=[1, 0],
                    )
                    dst = tl.make_block_ptr(y, [rows, cols], [stride_y, 1], [0, 0], [BM, BN], [1, 0])
                    # Upstream, on a GPU:
                    # as TMA wants it, a block of rows each
                    for i in range(tl.cdiv(rows, BM)):
                        # they overlap with block loads
                        a = tl.load(tl.advance(src, [i * BM, 0]), boundary_check=(0, 1), padding_option="zero")  # BM BN
                        tl.store(tl.advance(dst, [i * BM, 0]), (a + 1.).to(dst.dtype.element_ty), boundary_check=(0, 1))
                """),
        Example("an optional descriptor, a cast by its type, a tile at the origin",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def gate(x, z, y, n, HAS_Z: tl.constexpr, B: tl.constexpr):
                    dx = tl.make_tensor_descriptor(x, shape=[n], strides=[1], block_shape=[B])
                    dy = tl.make_tensor_descriptor(y, shape=[n], strides=[1], block_shape=[B])
                    if HAS_Z:
                        dz = tl.make_tensor_descriptor(z, shape=[n], strides=[1], block_shape=[B])
                    tile = dx.load([0]).to(tl.float32)
                    if HAS_Z:
                        tile *= dz.load([0])
                    dy.store([0], tile.to(dy.dtype))
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def gate(x, z, y, n, HAS_Z: tl.constexpr, B: tl.constexpr):
                    dx = tl.make_block_ptr(x, shape=[n], strides=[1], offsets=[0], block_shape=[B], order=[0])
                    dy = tl.make_block_ptr(y, shape=[n], strides=[1], offsets=[0], block_shape=[B], order=[0])
                    if HAS_Z:
                        dz = tl.make_block_ptr(z, shape=[n], strides=[1], offsets=[0], block_shape=[B], order=[0])
                    tile = tl.load(dx, boundary_check=(0,), padding_option="zero").to(tl.float32)
                    if HAS_Z:
                        tile *= tl.load(dz, boundary_check=(0,), padding_option="zero")
                    tl.store(dy, tile.to(dy.dtype.element_ty), boundary_check=(0,))
                """),
        Example("the first spellings of the API, and a helper that gets the descriptor",
            before="""
                import triton
                import triton.language as tl
                from kit.op import make_tensor_descriptor

                @triton.jit
                def put(out, i, tile):
                    tl.store_tensor_descriptor(out, [i, 0], tile)

                @triton.jit
                def copy(x, y, n, B: tl.constexpr):
                    i = tl.program_id(0) * B
                    source = make_tensor_descriptor(x, [n, B], [B, 1], [B, B])
                    target = tl._experimental_make_tensor_descriptor(y, [n, B], [B, 1], [B, B])
                    put(target, i, tl.load_tensor_descriptor(source, [i, 0]))
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def put(out, i, tile):
                    tl.store(tl.advance(out, [i, 0]), tile.to(out.dtype.element_ty), boundary_check=(0, 1))

                @triton.jit
                def copy(x, y, n, B: tl.constexpr):
                    i = tl.program_id(0) * B
                    source = tl.make_block_ptr(x, [n, B], [B, 1], [0, 0], [B, B], [1, 0])
                    target = tl.make_block_ptr(y, [n, B], [B, 1], [0, 0], [B, B], [1, 0])
                    put(target, i, tl.load(tl.advance(source, [i, 0]), boundary_check=(0, 1), padding_option="zero"))
                """),
        Example("reports a descriptor in a tuple, and one chosen at run time",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def pick(x, y, n, B: tl.constexpr):
                    a = tl.make_tensor_descriptor(x, [n], [1], [B])
                    both = (a, n)
                    if tl.program_id(0) == 0:
                        b = tl.make_tensor_descriptor(x, [n], [1], [B])
                    else:
                        b = tl.make_tensor_descriptor(y, [n], [1], [B])
                    tl.store(y + tl.arange(0, B), both[0].load([0]) + b.load([0]))
                """,
            after=SAME,
            reports=2),
        Example("reports a descriptor made on the host",
            before="""
                from triton.tools.tensor_descriptor import TensorDescriptor

                def host(x):
                    kernel[(1,)](TensorDescriptor(x, x.shape, x.stride(), [64, 64]))
                """,
            after=SAME,
            reports=1),
        Example("leaves what the author asked to keep",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def first(x, y, n, B: tl.constexpr):
                    d = tl.make_tensor_descriptor(x, [n], [1], [B])  # migrate: ignore[ASC202] A5 only
                    tl.store(y + tl.arange(0, B), d.load([0]))
                """,
            after=SAME),
    )

    def visit_Call(self, node: cst.Call) -> None:
        name = self.source.qualified(node.func)
        if "TensorDescriptor" in name and ".".join(name.split(".")[-2:]).removeprefix(
                "tensor_descriptor.") in HOST | {"TensorDescriptor"}:
            self.report(node, "a descriptor made on the host: hand the kernel the tensor, its shape and strides, and "
                              "make a block pointer there")
        if not self._makes(node):
            return
        kernel = kernel_of(self.source, node)
        assign = self.source.tree.parent(node)
        if kernel is None:
            return
        rank = _rank(node)
        if not (isinstance(assign, cst.Assign) and len(assign.targets) == 1
                and isinstance(assign.targets[0].target, cst.Name)) or self._tl is None or rank is None:
            self.report(node, "a descriptor with no name of its own, or whose rank is unknown: write a block pointer")
            return
        key = (kernel.name, assign.targets[0].target.value)
        found = self._found.setdefault(key, Descriptor(kernel, key[1], rank))
        if rank != found.rank:
            found.obstacle = (node, f"`{key[1]}` has two ranks")
        found.made.append(node)

    @functools.cached_property
    def _found(self) -> dict[tuple[str, str], Descriptor]:
        return {}

    @functools.cached_property
    def _tl(self) -> str | None:
        return next((local for local, name in self.source.imports.items() if name == "triton.language"), None)

    def _makes(self, call: cst.Call) -> bool:
        return self.source.qualified(call.func).rpartition(".")[2] in MAKERS

    def finish(self) -> None:
        todo = list(self._found.values())
        while todo:                             # helpers that get a descriptor join while we go
            one = todo.pop()
            self._read(one)
            for _, helper, param in one.handed_to:
                key = (helper.name, param)
                if key not in self._found:
                    self._found[key] = Descriptor(helper, param, one.rank, one.padding)
                    todo.append(self._found[key])
        blocked: set[str] = set()
        groups = self._groups()
        for one in (d for group in groups for d in group if not d.made):
            self._check_callers(one)
        for group in groups:
            if any(d.obstacle for d in group):
                blocked.update(d.kernel.name for d in group)
        for group in groups:
            self._rewrite(group, blocked)
        self._drop_imports()

    def _read(self, one: Descriptor) -> None:
        """Every use of the name, as an edit or as the obstacle that keeps all of it as it is."""
        for call in one.made:
            fields = _fields(call)
            padding = fields.pop("padding_option", None)
            if fields.keys() != {"base", "shape", "strides", "block_shape"} or (
                    padding and code(padding.value).strip("\"'") not in ("zero", "nan")):
                one.obstacle = (call, "its arguments are not the four that a block pointer takes")
                continue
            if padding:
                one.padding = code(padding.value).strip("\"'")
            one.edits[call] = self._block_pointer(call, fields, one.rank)
        others = [node for name, node, value in bindings(one.kernel.node.body)
                  if name == one.name and value not in one.made]
        if others:
            one.obstacle = (others[0], f"`{one.name}` is also bound to something else")
        if one.made and self._chosen_at_run_time(one):
            one.obstacle = (one.made[0], f"`{one.name}` is chosen at run time")
        for use in find(one.kernel.node.body, cst.Name):
            if use.value == one.name and not self._is_own_binding(use) and not self._use(one, use):
                one.obstacle = (use, f"`{one.name}` is used in a way that a block pointer does not know")

    def _is_own_binding(self, use: cst.Name) -> bool:
        up = self.source.tree.parent(use)
        return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.Arg) and up.keyword is use) or (
            isinstance(up, cst.Attribute) and up.attr is use)

    def _use(self, one: Descriptor, use: cst.Name) -> bool:
        up = self.source.tree.parent(use)
        if isinstance(up, cst.Attribute):
            call = self.source.tree.parent(up)
            if up.attr.value == "dtype":
                one.edits[up] = cst.Attribute(up, cst.Name("element_ty"))
                return True
            if not isinstance(call, cst.Call) or call.func is not up:
                return False
            args = [a.value for a in call.args]
            if up.attr.value == "load" and len(args) == 1:
                one.edits[call] = self._load(one, call, args[0])
                return True
            if up.attr.value == "store" and len(args) == 2:
                one.edits[call] = self._store(one, call, *args)
                return True
            return False
        call = self.source.tree.parent(up) if isinstance(up, cst.Arg) else None
        if not isinstance(call, cst.Call):
            return False
        target = self.source.qualified(call.func)
        args = [a.value for a in call.args]
        if target == FREE_LOAD and len(args) == 2:
            one.edits[call] = self._load(one, call, args[1])
            return True
        if target == FREE_STORE and len(args) == 3:
            one.edits[call] = self._store(one, call, *args[1:])
            return True
        helper = self.source.kernels.get(call.func.value) if isinstance(call.func, cst.Name) else None
        param = next((p for a, p in match_args(call, list(helper.params)) if a is up), None) if helper else None
        if helper is None or param is None:
            return False
        one.handed_to.append((call, helper, param))
        return True

    def _chosen_at_run_time(self, one: Descriptor) -> bool:
        """Whether the device, not the compiler, decides which descriptor (or whether any) the name holds."""
        constness = Constness(one.kernel)
        for call in one.made:
            for up in self.source.tree.ancestors(call):
                outer = (isinstance(up, (cst.While, cst.For)) and len(one.made) > 1) or (
                    isinstance(up, cst.If) and not constness.folds(up.test))
                if outer and (len(one.made) > 1 or self._used_outside(one, up)):
                    return True
        return False

    def _used_outside(self, one: Descriptor, block: cst.CSTNode) -> bool:
        names = [n for n in find(one.kernel.node.body, cst.Name) if n.value == one.name]
        return len(names) > sum(n.value == one.name for n in find(block, cst.Name))

    def _block_pointer(self, call: cst.Call, fields: dict[str, cst.Arg], rank: int) -> cst.Call:
        args = []
        for arg in call.args:
            if arg is fields["block_shape"]:
                args.append(_like(fields["strides"], arg, "offsets", [0] * rank))
            if arg in fields.values():
                args.append(arg)
        last = args[-1]
        args[-1] = last.with_changes(comma=fields["strides"].comma,
                                     whitespace_after_arg=fields["strides"].whitespace_after_arg)
        order = _like(last, fields["block_shape"], "order", list(range(rank - 1, -1, -1)))
        return call.with_changes(func=expression(f"{self._tl}.make_block_ptr"), args=[*args, order])

    def _address(self, one: Descriptor, at: cst.BaseExpression) -> str:
        if isinstance(at, (cst.List, cst.Tuple)) and all(code(e.value) == "0" for e in at.elements):
            return one.name
        return f"{self._tl}.advance({one.name}, {code(at)})"

    def _load(self, one: Descriptor, call: cst.Call, at: cst.BaseExpression) -> cst.BaseExpression:
        new = expression(f"{self._tl}.load({self._address(one, at)}, boundary_check={_axes(one.rank)}, "
                         f'padding_option="{one.padding}")')
        return new.with_changes(lpar=call.lpar, rpar=call.rpar)

    def _store(self, one: Descriptor, call: cst.Call, at: cst.BaseExpression, value: cst.BaseExpression) -> cst.Call:
        new = cst.ensure_type(expression(f"{self._tl}.store({self._address(one, at)}, v, "
                                         f"boundary_check={_axes(one.rank)})"), cst.Call)
        if not _is_cast(value, one.name):
            value = cst.Call(cst.Attribute(_grouped(value), cst.Name("to")),
                             [cst.Arg(expression(f"{one.name}.dtype.element_ty"))])
        return new.with_changes(args=[new.args[0], new.args[1].with_changes(value=value), new.args[2]])

    def _groups(self) -> list[list[Descriptor]]:
        """Descriptors that share a helper change together or not at all."""
        groups: list[list[Descriptor]] = []
        for one in self._found.values():
            near = {id(one), *(id(self._found[h.name, p]) for _, h, p in one.handed_to)}
            joined = [g for g in groups if any(id(m) in near or id(one) in {
                id(self._found[h.name, p]) for _, h, p in m.handed_to} for m in g)]
            groups = [g for g in groups if g not in joined] + [[one, *(m for g in joined for m in g)]]
        return groups

    def _rewrite(self, group: list[Descriptor], kept: set[str]) -> None:
        blocked = next((d.obstacle for d in group if d.obstacle), None)
        if blocked:
            node, why = blocked
            self.report(node, f"{why}: this descriptor has to become a block pointer by hand")
            return
        edits: dict[cst.CSTNode, object] = {}
        for one in group:
            edits.update(one.edits)
        for kernel in {d.kernel.name: d.kernel for d in group if d.kernel.name not in kept}.values():
            edits.update(self._comments(kernel))
        at = next(c for d in group for c in d.made)
        names = ", ".join(sorted(f"`{d.name}`" for d in group))
        casts = any("store(" in code(e) for e in edits.values() if isinstance(e, cst.Call))
        self.together(edits, f"{names}: a block pointer in place of a TMA descriptor; lanes outside the tensor read as "
                             f"zero{', stores are cast to the element type' if casts else ''}", at=at)

    def _check_callers(self, one: Descriptor) -> None:
        """A helper changes only if every call of it hands over a descriptor of one rank."""
        handed = {call: d for d in self._found.values() for call, h, p in d.handed_to if (h.name, p) == (
            one.kernel.name, one.name)}
        calls = [c for c in self.source.tree.all(cst.Call)
                 if isinstance(c.func, cst.Name) and c.func.value == one.kernel.name]
        if any(c not in handed for c in calls) or {(d.rank, d.padding) for d in handed.values()} != {
                (one.rank, one.padding)}:
            one.obstacle = (one.kernel.node.name, f"`{one.kernel.name}` does not always get such a descriptor")

    def _comments(self, kernel: Kernel) -> dict[cst.CSTNode, object]:
        """Comments that name descriptors: in the kernel, and where it is launched."""
        out: dict[cst.CSTNode, object] = {**within(kernel.node, TMA, WORDS)}
        for launch in self.source.launches:
            if launch.kernel.node is kernel.node and launch.function is not None:
                out.update(within(launch.function, ON_HOST))
        return {node: new for node, new in out.items() if node not in self.edits}

    def _drop_imports(self) -> None:
        """`from x import make_tensor_descriptor`, where nothing needs it any more."""
        gone = {call.func for call in self.edits if isinstance(call, cst.Call)}
        for node in self.source.tree.all(cst.ImportFrom):
            if isinstance(node.names, cst.ImportStar):
                continue
            for alias in node.names:
                local = alias.evaluated_alias or alias.evaluated_name
                uses = [n for n in self.source.tree.all(cst.Name) if n.value == local
                        and self.source.tree.enclosing(n, cst.ImportAlias) is not alias]
                if alias.evaluated_name not in MAKERS or not uses or not all(n in gone for n in uses):
                    continue
                left = [a for a in node.names if a is not alias]
                target = node if left else self.source.tree.statement(node)
                new = node.with_changes(names=[*left[:-1], left[-1].with_changes(
                    comma=node.names[-1].comma)]) if left else cst.RemoveFromParent()
                self.replace(target, new, f"`{local}` is not needed any more")


def _fields(call: cst.Call) -> dict[str, cst.Arg]:
    return {name: arg for arg, name in match_args(call, list(FIELDS))}


def _rank(call: cst.Call) -> int | None:
    for name in ("block_shape", "shape", "strides"):
        arg = _fields(call).get(name)
        if arg is not None and isinstance(arg.value, (cst.List, cst.Tuple)):
            return len(arg.value.elements)
    return None


def _like(layout: cst.Arg, style: cst.Arg, name: str, values: list[int]) -> cst.Arg:
    """An argument laid out as `layout`, by keyword or by position as `style` is."""
    return style.with_changes(
        keyword=cst.Name(name) if style.keyword else None, value=expression(str(values)),
        comma=layout.comma, whitespace_after_arg=layout.whitespace_after_arg)


def _axes(rank: int) -> str:
    return str(tuple(range(rank)))


def _is_cast(value: cst.BaseExpression, name: str) -> bool:
    """`x.to(desc.dtype)`, whose dtype becomes the block pointer's element type by an edit of its own."""
    return (isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "to"
            and bool(value.args) and code(value.args[0].value) == f"{name}.dtype")


def _grouped(value: cst.BaseExpression) -> cst.BaseExpression:
    if value.lpar or isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
