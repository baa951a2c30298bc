"""ASC213 feedback-through-memory."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from migrate import edit
from migrate.analysis.control import RANGES, bindings, kernel_of
from migrate.analysis.kernels import Kernel
from migrate.analysis.launches import Launch, assignments
from migrate.analysis.pointers import Pointers
from migrate.analysis.tiles import calls, tiles, without_casts
from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.source import Source
from migrate.tree import Edit, find
from rules.host import runtime_import

PROGRAM = "triton.language.program_id"
ALLOCATES = frozenset({"empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like",
                       "new_empty", "new_zeros", "new_ones", "new_full"})
OPTIONS = "multibuffer=False"


@dataclass(frozen=True)
class Feedback:
    """A product in a loop that is given its own result of the round before."""

    loop: cst.For
    line: cst.SimpleStatementLine
    name: str
    product: cst.Call


class FeedbackThroughMemory(Rule):
    """Take a product whose result is its own operand in the next round of a loop through global memory.

    ## Why
    With `x = tl.dot(a, x)` round a loop, the tile that the cube wrote is the operand of the cube's next product, and
    no vector work lies between. Ascend's compiler dies on a tile that is carried like that, where the loop makes `a` by
    vector work. Where the loop ends in `tl.store(p, x)` to memory that only this program uses, the tile can live there:
    it is stored before the loop, loaded before the product and stored after it. The values are the same, for memory of
    float32 holds what the tile holds. A barrier stands before each load and each store in the loop: on a GPU, other
    threads of the program store what one loads, and nothing else orders them.

    With its default options the compiler finds no end for this form either: it needs `multibuffer=False`, which the
    rule adds to each launch, through `runtime.launch_options`, as a GPU's Triton does not know the option.

    ## What it leaves alone
    All of the following is reported, at the product:

    * a tile that anything else in the kernel reads or changes;
    * a tile that is not stored after the loop as it is, without a mask, in the block that holds the loop;
    * memory that the kernel also reads or writes elsewhere, an address that changes in the loop, and one that some
      `tl.program_id` of the kernel plays no part in: programs might share it;
    * an output that the wrapper does not visibly allocate in float32, and kernels whose launches are not in the file;
    * an other operand that is loaded and cast, with no more work on it. Loaded in bfloat16, it is like one that vector
      work makes; loaded in float32, the cast is nothing, and the form in memory never compiles. The kernel does not
      say which.

    Not reported, as they compile as they are: products that pass through a sum or a decay on the way round
    (`x = x * g + tl.dot(a, b)`), and those whose other operand is loaded, made before the loop, or itself a product and
    nothing more. With a loaded operand it is the form in memory that never compiles. Loops of `tl.static_range` are
    unrolled, and not looked at.
    """

    id = "ASC213"
    name = "feedback-through-memory"
    summary = "a product that feeds itself round a loop goes through global memory"
    safety = Safety.REVIEW
    phase = 0                   # before split-tile, which can cut a tile that is stored and loaded again
    triggers = ("dot(",)
    references = (
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "Ascend910B2, K=128, BT=64, 32 columns, float32: with the tile carried, bishengir-compile dies; with the "
            "tile in memory it finds no end in 60 s; with multibuffer=False the form in memory compiles in a second, "
            "2 products in the HIVM of 2", "compiled"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "64 x 64, float32, x = tl.dot(a, x): with a = tl.exp(tl.load(...)) in the loop the carried tile crashes "
            "unless multibuffer=False, and the form in memory needs it as well; with a loaded, or made before the "
            "loop, the carried tile compiles as launched and the form in memory finds no end, with multibuffer=False "
            "neither; with a = tl.dot(b, b) both compile", "compiled"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "64 x 64, 64 x 32 and 128 x 64, a = tl.load(...).to(tl.float32): loaded in bfloat16, the carried tile "
            "crashes unless multibuffer=False, and the form in memory needs it; loaded in float32, the carried tile "
            "compiles as launched, and the form in memory finds no end, with multibuffer=False neither", "compiled"),
        Ref("https://github.com/triton-lang/triton-ascend/issues/1416",
            "a load after a store of the same output in one program returned stale data, once, behind a barrier; not "
            "seen without one", "issue"),
        Ref("https://triton-lang.org/main/python-api/generated/triton.language.debug_barrier.html",
            "on an H200, without barriers and with tiles loaded ahead (num_stages=3), a product of 128-row tiles of "
            "float32 came out 40 % off", "ran"),
    )
    examples = (
        Example("a product of matrices, one a round",
            before="""
                import torch
                import triton
                import triton.language as tl


                @triton.jit
                def chain_kernel(a, out, n, N: tl.constexpr):
                    i = tl.program_id(0)
                    o = tl.arange(0, N)
                    tile = o[:, None] * N + o[None, :]
                    p_out = out + i * N * N + tile
                    b_m = tl.where(o[:, None] == o[None, :], 1.0, 0.0)
                    for step in range(n):
                        b_a = tl.load(a + (i * n + step) * N * N + tile) * 0.5
                        # the later matrix stands on the left
                        b_m = tl.dot(b_a, b_m, input_precision="ieee")
                    tl.store(p_out, b_m)


                def chain(a):
                    b, n, size, _ = a.shape
                    a = a.contiguous()
                    out = torch.empty((b, size, size), dtype=torch.float32, device=a.device)
                    chain_kernel[(b,)](a, out, n, N=size)
                    return out
                """,
            after="""
                import torch
                import triton
                import triton.language as tl
                from ported_kernels import runtime


                @triton.jit
                def chain_kernel(a, out, n, N: tl.constexpr):
                    i = tl.program_id(0)
                    o = tl.arange(0, N)
                    tile = o[:, None] * N + o[None, :]
                    p_out = out + i * N * N + tile
                    b_m = tl.where(o[:, None] == o[None, :], 1.0, 0.0)
                    tl.store(p_out, b_m)
                    for step in range(n):
                        b_a = tl.load(a + (i * n + step) * N * N + tile) * 0.5
                        tl.debug_barrier()
                        b_m = tl.load(p_out)
                        # the later matrix stands on the left
                        b_m = tl.dot(b_a, b_m, input_precision="ieee")
                        tl.debug_barrier()
                        tl.store(p_out, b_m)


                def chain(a):
                    b, n, size, _ = a.shape
                    a = a.contiguous()
                    out = torch.empty((b, size, size), dtype=torch.float32, device=a.device)
                    chain_kernel[(b,)](a, out, n, N=size, **runtime.launch_options(out.device, multibuffer=False))
                    return out
                """,
            run="exact",
            inputs={"a": "float32[3, 16, 16]", "out": "float32[16, 16]", "n": 3, "N": 16}),
        Example("the address written out at the store; the tile as the left operand, in a loop inside a loop",
            before="""
                import torch
                import triton
                import triton.language as tl
                from ported_kernels import runtime


                @triton.jit
                def powers_kernel(a, out, rows, n, N: tl.constexpr):
                    o = tl.arange(0, N)
                    tile = o[:, None] * N + o[None, :]
                    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
                        here = row * N * N
                        b_x = tl.load(a + here + tile)
                        for _ in range(n):
                            b_x = tl.dot(b_x, tl.load(a + here + tile) * 0.25)
                        tl.store(out + here + tile, b_x)


                def powers(a, n):
                    rows, size, _ = a.shape
                    out = a.new_empty(a.shape, dtype=torch.float32)
                    powers_kernel[(4,)](
                        a, out, rows, n, N=size,)
                    return out
                """,
            after="""
                import torch
                import triton
                import triton.language as tl
                from ported_kernels import runtime


                @triton.jit
                def powers_kernel(a, out, rows, n, N: tl.constexpr):
                    o = tl.arange(0, N)
                    tile = o[:, None] * N + o[None, :]
                    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
                        here = row * N * N
                        b_x = tl.load(a + here + tile)
                        p_b_x = out + here + tile
                        tl.store(p_b_x, b_x)
                        for _ in range(n):
                            tl.debug_barrier()
                            b_x = tl.load(p_b_x)
                            b_x = tl.dot(b_x, tl.load(a + here + tile) * 0.25)
                            tl.debug_barrier()
                            tl.store(p_b_x, b_x)


                def powers(a, n):
                    rows, size, _ = a.shape
                    out = a.new_empty(a.shape, dtype=torch.float32)
                    powers_kernel[(4,)](
                        a, out, rows, n, N=size, **runtime.launch_options(out.device, multibuffer=False),)
                    return out
                """,
            run="exact",
            inputs={"a": "float32[2, 16, 16]", "out": "float32[2, 16, 16]", "rows": 2, "n": 3, "N": 16}),
        Example("leaves a state that decays, operands that come as they are, and a loop that is unrolled",
            before="""
                import torch
                import triton
                import triton.language as tl


                @triton.jit
                def state_kernel(k, v, g, out, n, N: tl.constexpr):
                    i = tl.program_id(0)
                    o = tl.arange(0, N)
                    tile = o[:, None] * N + o[None, :]
                    b_s = tl.zeros([N, N], dtype=tl.float32)
                    for step in range(n):
                        b_k = tl.load(k + step * N * N + tile)
                        b_v = tl.load(v + step * N * N + tile) - tl.dot(b_k, b_s)
                        b_s = b_s * tl.load(g + step * N + o)[:, None]
                        b_s += tl.dot(tl.trans(b_k), b_v)
                    b_a = tl.exp(tl.load(k + tile))
                    for step in range(n):
                        b_s = tl.dot(b_a, b_s)
                    for step in range(n):
                        b_s = tl.dot(tl.load(k + step * N * N + tile), b_s)
                    for _ in tl.static_range(2):
                        b_s = tl.dot(b_s, b_s + 1.0)
                    tl.store(out + i * N * N + tile, b_s)


                def state(k, v, g):
                    n, size = g.shape
                    out = torch.empty((1, size, size), dtype=torch.float32, device=k.device)
                    state_kernel[(1,)](k, v, g, out, n, N=size)
                    return out
                """,
            after=SAME),
        Example("reports an operand that is only cast",
            before="""
                import torch
                import triton
                import triton.language as tl


                @triton.jit
                def chain_kernel(a, out, n, N: tl.constexpr):
                    i = tl.program_id(0)
                    o = tl.arange(0, N)
                    tile = o[:, None] * N + o[None, :]
                    b_m = tl.where(o[:, None] == o[None, :], 1.0, 0.0)
                    for step in range(n):
                        b_a = tl.load(a + (i * n + step) * N * N + tile)
                        b_c = b_a.to(tl.float32)
                        b_m = tl.dot(tl.trans(b_c), b_m)
                    tl.store(out + i * N * N + tile, b_m)


                def chain(a):
                    b, n, size, _ = a.shape
                    out = torch.empty((b, size, size), dtype=torch.float32, device=a.device)
                    chain_kernel[(b,)](a, out, n, N=size)
                    return out
                """,
            after=SAME,
            reports=1),
        Example("reports a masked store, memory that programs may share, memory of another dtype, a tile used twice",
            before="""
                import torch
                import triton
                import triton.language as tl


                @triton.jit
                def masked(a, out, n, size, N: tl.constexpr):
                    o = tl.arange(0, N)
                    tile = tl.program_id(0) * N * N + o[:, None] * N + o[None, :]
                    b_m = tl.load(a + tile)
                    for step in range(n):
                        b_m = tl.dot(tl.load(a + tile) * 2.0, b_m)
                    tl.store(out + tile, b_m, mask=o[:, None] < size)


                @triton.jit
                def shared(a, out, n, N: tl.constexpr):
                    o = tl.arange(0, N)
                    tile = o[:, None] * N + o[None, :]
                    b_a = tl.load(a + (tl.program_id(1) * N + tl.program_id(0)) * N * N + tile)
                    b_m = tl.load(a + tile)
                    for step in range(n):
                        b_m = tl.dot(b_a * 2.0, b_m)
                    tl.store(out + tl.program_id(0) * N * N + tile, b_m)


                @triton.jit
                def narrow(a, out, n, N: tl.constexpr):
                    o = tl.arange(0, N)
                    tile = tl.program_id(0) * N * N + o[:, None] * N + o[None, :]
                    b_m = tl.load(a + tile)
                    for step in range(n):
                        b_m = tl.dot(tl.load(a + tile) * 2.0, b_m)
                    tl.store(out + tile, b_m)


                @triton.jit
                def summed(a, out, n, N: tl.constexpr):
                    o = tl.arange(0, N)
                    tile = tl.program_id(0) * N * N + o[:, None] * N + o[None, :]
                    b_m = tl.load(a + tile)
                    b_sum = tl.zeros([N, N], dtype=tl.float32)
                    for step in range(n):
                        b_m = tl.dot(tl.load(a + tile) * 2.0, tl.trans(b_m))
                        b_sum += b_m
                    tl.store(out + tile, b_sum)


                def run(a, n):
                    out = torch.empty(a.shape, dtype=torch.float32, device=a.device)
                    half = torch.empty_like(a, dtype=torch.bfloat16)
                    masked[(4,)](a, out, n, 8, N=16)
                    shared[(4, 2)](a, out, n, N=16)
                    narrow[(4,)](a, half, n, N=16)
                    summed[(4,)](a, out, n, N=16)
                    return out, half
                """,
            after=SAME,
            reports=4),
    )

    def visit_For(self, node: cst.For) -> None:
        kernel = kernel_of(self.source, node)
        if kernel is None or not isinstance(node.iter, cst.Call) or self.source.qualified(node.iter.func) not in RANGES:
            return
        for feedback in self._feedbacks(node):
            if not self._worked_on(feedback, casts=True):
                continue
            plan: Plan | str = "its other operand is a cast of what is loaded: cast from float32 to float32, it is " \
                "no work, and only the tile carried compiles"
            if self._worked_on(feedback, casts=False):
                plan = self._plan(kernel, feedback)
            if isinstance(plan, str):
                self.report(feedback.product, f"`{feedback.name}`, the result of this product, is its own operand in "
                            f"the next round: take it through global memory, and launch with {OPTIONS}; not done, "
                            f"as {plan}")
            else:
                self.together({**plan.edits(self.source, feedback), **runtime_import.edits(self.source)},
                              f"`{feedback.name}`, which this product is given again in the next round, goes through "
                              f"`{plan.pointer}`: Ascend's compiler takes it neither carried in a tile nor without "
                              f"{OPTIONS}", at=feedback.line)

    # Products that feed themselves

    def _feedbacks(self, loop: cst.For) -> Iterator[Feedback]:
        found: dict[str, list[tuple[cst.CSTNode, cst.BaseExpression | None]]] = {}
        for name, node, value in bindings(loop.body):
            found.setdefault(name, []).append((node, value))
        once = {name: made[0][1] for name, made in found.items() if len(made) == 1}
        for name, value in once.items():
            product = self._product(value)
            node = found[name][0][0]
            line = self.source.tree.parent(node)
            inner = self.source.tree.enclosing(node, cst.For)
            if product is None or inner is not loop or not isinstance(line, cst.SimpleStatementLine):
                continue
            if self._fed(product, name, once, {name}):
                yield Feedback(loop, line, name, product)

    def _product(self, value: cst.BaseExpression | None) -> cst.Call | None:
        """The product that an expression is, but for casts and transposes."""
        value = without_casts(self.source, value)
        return value if isinstance(value, cst.Call) and calls(self.source, value, "dot") else None

    def _fed(self, product: cst.Call, name: str, once: dict[str, cst.BaseExpression | None], seen: set[str]) -> bool:
        """Whether an operand is the name, or a product that the name is an operand of."""
        for operand in _operands(product):
            bare = without_casts(self.source, operand)
            if isinstance(bare, cst.Name):
                if bare.value == name:
                    return True
                if bare.value in seen:
                    continue
                seen.add(bare.value)
                bare = once.get(bare.value)
            before = self._product(bare)
            if before is not None and self._fed(before, name, once, seen):
                return True
        return False

    def _worked_on(self, feedback: Feedback, casts: bool) -> bool:
        """Whether the other operand comes from vector work in the loop, as opposed to memory or the cube; `casts` says
        whether a cast is work, which depends on the dtypes."""
        made: dict[str, list[cst.BaseExpression | None]] = {}
        for name, node, value in bindings(feedback.loop.body):
            made.setdefault(name, []).append(None if isinstance(node, cst.AugAssign) else value)

        def worked(value: cst.BaseExpression | None) -> bool:
            if isinstance(value, cst.Name):
                values = made.get(value.value, [])
                return len(values) > 1 or any(worked(v) for v in values)
            if isinstance(value, cst.Call):
                if any(calls(self.source, value, name) for name in ("load", "dot")):
                    return False
                if isinstance(value.func, cst.Attribute) and value.func.attr.value == "to":
                    return casts or worked(value.func.value)
                if value.args and calls(self.source, value, "cast"):
                    return casts or worked(value.args[0].value)
                if value.args and calls(self.source, value, "trans"):
                    return worked(value.args[0].value)
            return True

        return any(worked(operand) for operand in _operands(feedback.product)
                   if not any(n.value == feedback.name for n in find(operand, cst.Name)))

    def _whole(self, operand: cst.BaseExpression, name: str) -> bool:
        """`name`, or `name.to(tl.float32)`, which it is."""
        if (isinstance(operand, cst.Call) and isinstance(operand.func, cst.Attribute)
                and operand.func.attr.value == "to" and len(operand.args) == 1
                and self.source.qualified(operand.args[0].value) == "triton.language.float32"):
            operand = operand.func.value
        return isinstance(operand, cst.Name) and operand.value == name

    # Whether the tile can live in memory

    def _plan(self, kernel: Kernel, feedback: Feedback) -> Plan | str:
        """What is to be changed, or why nothing can be."""
        loop, name, tree = feedback.loop, feedback.name, self.source.tree
        block = tree.parent(loop)
        if tree.parent(feedback.line) is not loop.body or not isinstance(block, cst.IndentedBlock):
            return "it does not stand in the loop itself"
        if not any(self._whole(operand, name) for operand in _operands(feedback.product)):
            return "the result is cast, transposed or multiplied again on its way to the operand"
        assign = feedback.line.body[0]
        if len(feedback.line.body) != 1 or not isinstance(assign, cst.Assign) or assign.value is not feedback.product:
            return "it is not the whole of its statement"
        at = block.body.index(loop)
        stores = [s for s in block.body[at + 1:] if isinstance(s, cst.SimpleStatementLine) and self._stores(s, name)]
        if len(stores) != 1:
            return f"`{name}` is not stored as it is, unmasked, once after the loop"
        store = stores[0]
        before = block.body[:at]
        if not any(_assigns(s, name) for s in before):
            return f"`{name}` gets no value right before the loop"
        allowed = {n for s in (*before, feedback.line, store) for n in find(s, cst.Name)}
        if any(n not in allowed for n in find(kernel.node, cst.Name) if n.value == name):
            return f"`{name}` is used elsewhere, too"
        address = store.body[0].value.args[0].value     # type: ignore[attr-defined, union-attr]
        return self._memory(kernel, feedback, store, address) or self._host(kernel, feedback, store, address)

    def _stores(self, line: cst.SimpleStatementLine, name: str) -> bool:
        """`tl.store(address, name)`"""
        call = line.body[0].value if len(line.body) == 1 and isinstance(line.body[0], cst.Expr) else None
        return (isinstance(call, cst.Call) and calls(self.source, call, "store") and len(call.args) == 2
                and not any(a.keyword or a.star for a in call.args)
                and isinstance(call.args[1].value, cst.Name) and call.args[1].value.value == name)

    def _memory(self, kernel: Kernel, feedback: Feedback, store: cst.SimpleStatementLine,
                address: cst.BaseExpression) -> str:
        """Why the memory at the address cannot hold the tile; "" where it can."""
        pointers = Pointers(kernel)
        bases = pointers.bases(address)
        if len(bases) != 1:
            return f"it cannot be told which argument `{code(address)}` points into"
        [base] = bases
        if sum(base in a.loads | a.stores for a in pointers.accesses) != 1:
            return f"the kernel reads or writes `{base}` elsewhere, too"
        used = {n.value for n in find(address, cst.Name)}
        line = {statement: i for i, statement in enumerate(find(kernel.node.body, *STATEMENTS))}
        for name, node, _ in bindings(kernel.node.body):
            if name in used and line[self.source.tree.statement(node)] >= line[feedback.loop]:
                return f"`{name}` in the address of `{base}` changes in the loop or after it"
        for call in find(kernel.node.body, cst.Call):
            helper = self.source.resolve(call.func.value) if isinstance(call.func, cst.Name) else None
            if helper and any(helper[0].qualified(c.func) == PROGRAM for c in find(helper[1].body, cst.Call)):
                return "a helper asks for the program"
        asked = _axes(self.source.qualified, find(kernel.node.body, cst.Call))
        known = _axes(self.source.qualified, _behind(kernel, address))
        if not asked or asked != known or "" in asked:
            return f"programs may share the memory at `{code(address)}`"
        if tiles(kernel).of(feedback.product).dtype != "float32":
            return "the product is not known to be float32"
        return ""

    def _host(self, kernel: Kernel, feedback: Feedback, store: cst.SimpleStatementLine,
              address: cst.BaseExpression) -> Plan | str:
        [base] = Pointers(kernel).bases(address)
        found = [launch for launch in self.source.launches if launch.kernel.node is kernel.node]
        project = self.source.project
        if not found or (project is not None and project.named_elsewhere(kernel.name, self.source.module)):
            return f"not all launches of `{kernel.name}` are in this file"
        devices = {}
        for launch in found:
            device = self._allocated(launch, base)
            if device is None:
                return f"a launch gives `{base}` what is not visibly allocated in float32"
            devices[launch.call] = device
        taken = {n.value for n in find(kernel.node, cst.Name)}
        pointer = code(address) if isinstance(address, cst.Name) else f"p_{feedback.name}"
        if not isinstance(address, cst.Name) and pointer in taken:
            return f"the name `{pointer}` is taken"
        return Plan(store, address, pointer, devices)

    def _allocated(self, launch: Launch, base: str) -> str | None:
        """The device of the tensor that a launch gives for a pointer, when the file allocates it in float32."""
        bound = launch.args.get(base)
        if not launch.matched or launch.function is None or bound is None or bound.index is not None:
            return None
        made = assignments(self.source, launch.function).get(bound.value.value, []) \
            if isinstance(bound.value, cst.Name) else []
        if len(made) != 1 or not isinstance(made[0].value, cst.Call):
            return None
        call = made[0].value
        dtype = next((a.value for a in call.args if a.keyword and a.keyword.value == "dtype"), None)
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ALLOCATES:
            return None
        return f"{code(bound.value)}.device" if self.source.qualified(dtype) == "torch.float32" else None


@dataclass(frozen=True)
class Plan:
    """The tile lives at `address`, which is called `pointer`; `devices` has that of the memory at each launch."""

    store: cst.SimpleStatementLine
    address: cst.BaseExpression
    pointer: str
    devices: dict[cst.Call, str]

    def edits(self, source: Source, feedback: Feedback) -> dict[cst.CSTNode, Edit]:
        tl, name, module = source.language, feedback.name, source.tree.module

        def line(text: str) -> cst.BaseStatement:
            return edit.statement(text, module)

        before = [] if isinstance(self.address, cst.Name) else [line(f"{self.pointer} = {code(self.address)}")]
        save, barrier = f"{tl}.store({self.pointer}, {name})", f"{tl}.debug_barrier()"
        edits: dict[cst.CSTNode, Edit] = {
            feedback.loop: cst.FlattenSentinel([*before, line(save), feedback.loop]),
            feedback.line: cst.FlattenSentinel([line(barrier), line(f"{name} = {tl}.load({self.pointer})"),
                                                feedback.line, line(barrier), line(save)]),
            self.store: edit.removed(self.store),
        }
        for call, device in self.devices.items():
            option = f"{runtime_import.name(source)}.launch_options({device}, {OPTIONS})"
            edits[call] = _with_last(call, cst.Arg(edit.expression(option), star="**"))
        return edits


STATEMENTS = (cst.SimpleStatementLine, cst.For, cst.While, cst.If, cst.With)


def _operands(product: cst.Call) -> list[cst.BaseExpression]:
    return [a.value for i, a in enumerate(product.args)
            if (a.keyword.value in ("input", "other") if a.keyword else i < 2 and not a.star)]


def _assigns(statement: cst.CSTNode, name: str) -> bool:
    """`name = ...`"""
    return isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 and any(
        isinstance(s, cst.Assign) and len(s.targets) == 1 and isinstance(target := s.targets[0].target, cst.Name)
        and target.value == name for s in statement.body)


def _axes(qualified: Callable[[cst.CSTNode], str], found: Iterable[cst.Call]) -> set[str]:
    """The axes of the grid that calls of `program_id` name; "" for one that is not a number."""
    return {code(c.args[0].value) if len(c.args) == 1 and isinstance(c.args[0].value, cst.Integer) else ""
            for c in found if qualified(c.func) == PROGRAM}


def _behind(kernel: Kernel, address: cst.BaseExpression) -> Iterator[cst.Call]:
    """The calls that an address depends on, through the assignments and loops of the body."""
    made: dict[str, list[cst.BaseExpression]] = {}
    for name, node, value in bindings(kernel.node.body):
        values = [node.iter] if isinstance(node, cst.For) else [value] if value is not None else [
            v for v in (getattr(node, "value", None),) if v is not None]
        made.setdefault(name, []).extend(values)
    todo: list[cst.BaseExpression] = [address]
    seen: set[str] = set()
    while todo:
        expression = todo.pop()
        yield from find(expression, cst.Call)
        for name in {n.value for n in find(expression, cst.Name)} - seen:
            seen.add(name)
            todo += made.get(name, [])


def _with_last(call: cst.Call, arg: cst.Arg) -> cst.Call:
    """The call with one more argument, followed by what followed the last one."""
    *rest, last = call.args
    comma = last.comma if not isinstance(last.comma, cst.Comma) else \
        rest[-1].comma if rest else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if not isinstance(comma, cst.Comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    new = arg.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    kept = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*rest, kept, new])
