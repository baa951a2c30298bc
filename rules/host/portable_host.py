"""ASC001 portable-host."""
from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import libcst as cst

from migrate import edit
from migrate.analysis.launches import Launch
from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.host import runtime_import

GUARDS = frozenset({"torch.cuda.device", "torch.cuda.device_of"})
MODULE_CALLS = frozenset({"synchronize", "current_stream", "current_device", "device_count", "set_device", "stream",
                          "Stream", "Event"})
SEEDS = frozenset({"torch.cuda.manual_seed", "torch.cuda.manual_seed_all"})
AUTOCAST = frozenset({"torch.autocast", "torch.amp.autocast", "torch.get_autocast_dtype", "torch.is_autocast_enabled",
                      "torch.set_autocast_dtype"})
CUSTOM = frozenset({"torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd"})
CUDA = re.compile(r"cuda(:\d+)?")
TENSOR = frozenset({"shape", "stride", "device", "dim", "ndim", "contiguous", "is_contiguous", "numel", "element_size"})
NOT_DATA = frozenset({"self", "cls", "ctx"})


class PortableHost(Rule):
    """Make the code around the launches work on any device.

    ## Why
    Upstream's wrappers ask for CUDA by name: they assert `x.is_cuda`, enter `torch.cuda.device(...)`, allocate on
    `"cuda"`, count streaming multiprocessors and install an allocator for TMA descriptors. On an NPU, and on the CPU
    under Triton's interpreter, each of these fails before a kernel is reached. Tensors already
    know their device.

    A launch does not ask its tensors: Triton takes the current device. So a `with torch.cuda.device(x.device.index):`
    stays, as `with runtime.device_of(x):`, which makes the card of `x` the current one and is nothing on the CPU.

    The device of an input tensor is used where one is in scope, otherwise `runtime.default_device()`: the first of
    NPU, GPU, CPU that is there. `multi_processor_count` becomes the number of cube cores where the function launches
    a kernel with a product, else of vector cores. An allocator serves descriptors, which become block pointers, and
    scratch space, which triton-ascend allocates itself; it goes, with a heading above it or a log message beside it
    that speaks of the allocator.

    ## What it leaves alone
    * decisions taken by `x.is_cuda`, `torch.cuda.is_available()` or a compute capability, other than guards that
      raise. Reported.
    * code that only runs once such a decision, or FLA's `IS_NVIDIA`, has said that this is a GPU.
    * `torch.cuda` functions without a counterpart for other devices (graphs, memory statistics). Reported.
    * `device="cuda"` as the default of a parameter, where callers may rely on it. Reported.
    * strings that are not devices (`backend == "cuda"`), docstrings and comments.
    """

    id = "ASC001"
    name = "portable-host"
    summary = "Host code that asks for CUDA by name asks the tensors instead"
    safety = Safety.SAFE
    triggers = ("cuda", "set_allocator")
    references = (
        Ref("https://docs.pytorch.org/docs/stable/generated/torch.get_device_module.html",
            "torch.get_device_module(device) is torch.cuda, torch.npu or torch.cpu", "doc"),
        Ref("https://github.com/triton-lang/triton-ascend/blob/b9fe1fa1924a/third_party/ascend/backend/driver.py",
            "get_device_properties gives num_aicore and num_vectorcore; the launcher allocates its own workspace",
            "source"),
        Ref("https://github.com/pytorch/pytorch/blob/v2.6.0/torch/cuda/__init__.py",
            "without a CUDA build, torch.cuda.device(0) and torch.empty(1, device='cuda') raise AssertionError", "ran"),
    )
    examples = (
        Example("device guards: the card of the tensor, on any device",
            before="""
                import torch


                def scale(x):
                    out = torch.empty_like(x)
                    # launch where x lives
                    with torch.cuda.device(x.device.index):  # not the current device
                        # one program a row
                        kernel[(4,)](x, out)
                        if out.dim() == 1:
                            out = out[None]
                        # done
                    return out


                def launch(x: torch.Tensor, device, index):
                    with torch.cuda.device(device), torch.no_grad():
                        kernel[(4,)](x)
                    with torch.cuda.device(index):
                        kernel[(4,)](x)
                    with torch.cuda.device("cuda:0"):
                        kernel[(4,)](x)
                """,
            after="""
                import torch
                from ported_kernels import runtime


                def scale(x):
                    out = torch.empty_like(x)
                    # launch where x lives
                    with runtime.device_of(x):  # not the current device
                        # one program a row
                        kernel[(4,)](x, out)
                        if out.dim() == 1:
                            out = out[None]
                        # done
                    return out


                def launch(x: torch.Tensor, device, index):
                    with runtime.device_of(device), torch.no_grad():
                        kernel[(4,)](x)
                    with runtime.device_of(index):
                        kernel[(4,)](x)
                    with runtime.device_of(x):
                        kernel[(4,)](x)
                """),
        Example("assertions lose the part about CUDA, and their message with it",
            before="""
                def check(x, y):
                    assert x.is_cuda and y.is_cuda, "must be on CUDA"
                    assert x.is_cuda and x.shape == y.shape, "x must be a CUDA tensor shaped like y"
                    assert all(t.is_cuda for t in (x, y))
                    if not x.is_cuda:
                        raise ValueError("needs CUDA")
                    if x.dim() != 2 or not y.is_cuda:
                        raise ValueError("x must have two dimensions")
                    return x.device
                """,
            after="""
                def check(x, y):
                    assert x.shape == y.shape, "x must be a tensor shaped like y"
                    if x.dim() != 2:
                        raise ValueError("x must have two dimensions")
                    return x.device
                """),
        Example("allocations follow an input tensor",
            before="""
                def forward(x, bias=None):
                    out = torch.empty(x.shape, device="cuda")
                    offsets = torch.arange(4).cuda()
                    table = torch.zeros(4).to("cuda:0")
                    dtype = torch.get_autocast_dtype("cuda")
                    return out, offsets, table, dtype, torch.device("cuda")
                """,
            after="""
                def forward(x, bias=None):
                    out = torch.empty(x.shape, device=x.device)
                    offsets = torch.arange(4).to(x.device)
                    table = torch.zeros(4).to(x.device)
                    dtype = torch.get_autocast_dtype(x.device.type)
                    return out, offsets, table, dtype, x.device
                """),
        Example("without a tensor, the device that is there",
            before="""
                import torch
                import triton


                def test_scale():
                    x = torch.randn(4, device="cuda")
                    y = torch.randn(4, device="cuda")
                    torch.cuda.synchronize()


                def bench():
                    device = "cuda"
                    return torch.randn(4, device=device)
                """,
            after="""
                import torch
                import triton
                from ported_kernels import runtime


                def test_scale():
                    device = runtime.default_device()
                    x = torch.randn(4, device=device)
                    y = torch.randn(4, device=device)
                    torch.get_device_module().synchronize()


                def bench():
                    device = runtime.default_device()
                    return torch.randn(4, device=device)
                """),
        Example("the number of cores of the kind that the kernel uses",
            before="""
                import torch
                import triton
                import triton.language as tl


                @triton.jit
                def product(a, b, c):
                    tl.store(c, tl.dot(tl.load(a), tl.load(b)))


                def run(a, b, c):
                    sm_count = torch.cuda.get_device_properties(a.device).multi_processor_count
                    product[(sm_count,)](a, b, c)


                def rows(x):
                    return min(len(x), torch.cuda.get_device_properties(0).multi_processor_count)
                """,
            after="""
                import torch
                import triton
                import triton.language as tl
                from ported_kernels import runtime


                @triton.jit
                def product(a, b, c):
                    tl.store(c, tl.dot(tl.load(a), tl.load(b)))


                def run(a, b, c):
                    sm_count = runtime.properties(a.device.type).cube_cores
                    product[(sm_count,)](a, b, c)


                def rows(x):
                    return min(len(x), runtime.properties(runtime.default_device()).vector_cores)
                """),
        Example("the allocator for descriptors goes, wherever it is installed",
            before="""
                import torch
                import triton

                BLOCK = 64

                # =====================================
                # Allocator for TMA descriptors
                # =====================================

                def _scratch(nbytes, alignment, stream):
                    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


                try:
                    triton.set_allocator(_scratch)
                except Exception:
                    pass


                def run(x):
                    triton.set_allocator(_scratch)
                    return x + BLOCK
                """,
            after="""
                import torch
                import triton

                BLOCK = 64


                def run(x):
                    return x + BLOCK
                """),
        Example("an allocator that is announced",
            before="""
                import logging

                import triton

                logger = logging.getLogger(__name__)


                def _alloc(size, alignment, stream):
                    return bytearray(size)


                if NEEDS_SCRATCH:
                    # the compiler may ask for scratch space
                    logger.info("registering an allocator")
                    triton.set_allocator(_alloc)
                """,
            after="""
                import logging

                import triton

                logger = logging.getLogger(__name__)


                if NEEDS_SCRATCH:
                    pass
                """),
        Example("automatic mixed precision, streams, seeds and caches",
            before="""
                import torch


                class Scale(torch.autograd.Function):
                    @staticmethod
                    @torch.cuda.amp.custom_fwd
                    def forward(ctx, x):
                        torch.cuda.empty_cache()
                        stream = torch.cuda.current_stream(x.device)
                        torch.cuda.manual_seed_all(0)
                        return x
                """,
            after="""
                import torch
                from ported_kernels import runtime


                class Scale(torch.autograd.Function):
                    @staticmethod
                    @torch.amp.custom_fwd(device_type=runtime.default_device())
                    def forward(ctx, x):
                        stream = torch.get_device_module(x.device).current_stream(x.device)
                        torch.manual_seed(0)
                        return x
                """),
        Example("code for a GPU alone stays, choices of a device do not",
            before="""
                import torch


                def name(x):
                    if torch.cuda.is_available():
                        return torch.cuda.get_device_name(0)
                    return "cpu"


                def bench():
                    if not torch.cuda.is_available():
                        raise RuntimeError("no GPU")
                    device = "cuda" if torch.cuda.is_available() else "cpu"
                    return torch.randn(4, device=device)
                """,
            after="""
                import torch
                from ported_kernels import runtime


                def name(x):
                    if torch.cuda.is_available():
                        return torch.cuda.get_device_name(0)
                    return "cpu"


                def bench():
                    device = runtime.default_device()
                    return torch.randn(4, device=device)
                """),
        Example("reports decisions, and what has no counterpart",
            before="""
                def run(x, device="cuda"):
                    if x.is_cuda:
                        return fast(x)
                    if torch.cuda.get_device_capability()[0] < 8:
                        return slow(x)
                    graph = torch.cuda.CUDAGraph()
                """,
            after=SAME,
            reports=4),
        Example("leaves names and text that are no devices",
            before='''
                def convolve(x, backend="triton"):
                    """
                    >>> convolve(torch.randn(4, device="cuda"))
                    """
                    if backend == "cuda":
                        raise ValueError("no such backend")
                ''',
            after=SAME),
        Example("leaves what the author asked to keep",
            before="""
                def run(x):
                    assert x.is_cuda  # migrate: ignore[ASC001] a wrapper for one GPU
                """,
            after=SAME),
    )

    def finish(self) -> None:
        self.covered: set[cst.CSTNode] = set()          # code that goes, or that an edit has dealt with
        self.local: dict[cst.FunctionDef, list[tuple[cst.CSTNode, str]]] = {}
        self.told: set[tuple[object, str]] = set()
        self.uses_runtime = False
        self._allocators()
        self._guards()
        for node in self.source.tree.all(cst.Assert, cst.If):
            self._check(node)
        for choice in self.source.tree.all(cst.IfExp):
            self._choice(choice)
        for call in self.source.tree.all(cst.Call):
            if call not in self.covered and not self._only_cuda(call):
                self._call(call)
        for text in self.source.tree.all(cst.SimpleString, cst.FormattedString):
            if text not in self.covered:
                self._device_text(text)
        for attribute in self.source.tree.all(cst.Attribute, cst.Comparison):
            if attribute not in self.covered and not self._only_cuda(attribute):
                self._left(attribute)
        for node in self.source.tree.all(cst.Decorator):
            self._decorator(node)
        self._defaults()
        if self.uses_runtime:
            for line, new in runtime_import.edits(self.source).items():
                self.replace(line, new, "imports what the edits below use")

    def _done(self, edits: dict[cst.CSTNode, Edit], message: str, at: cst.CSTNode) -> bool:
        done = self.together(edits, message, at=at)
        for node in edits:
            self.covered.update(find_all(node))
        return done

    def _tell(self, node: cst.CSTNode, message: str) -> None:
        """Report, once for each function."""
        key = (self.source.tree.enclosing(node, cst.FunctionDef), message)
        if key not in self.told:
            self.told.add(key)
            self.report(node, message)

    # Allocators

    def _allocators(self) -> None:
        calls = [c for c in self.source.tree.all(cst.Call) if self.source.qualified(c.func) == "triton.set_allocator"]
        names: set[str] = set()
        for call in calls:
            line = self.source.tree.statement(call)
            if not isinstance(self.source.tree.parent(call), cst.Expr) or not isinstance(line, cst.SimpleStatementLine):
                self._tell(call, "`set_allocator` inside an expression: remove it, triton-ascend needs no allocator")
                continue
            whole = self._hollow(line)
            edits: dict[cst.CSTNode, Edit] = {x: cst.RemoveFromParent() for x in self._announced(line)}
            edits[whole] = self._removed(whole)
            if self._done(edits, "removed the allocator: triton-ascend needs none", call):
                names |= {n.value for a in call.args for n in find(a.value, cst.Name)}
        for name in sorted(names):
            function = self.source.definitions.get(name)
            if function is None:
                continue
            own = set(find(function, cst.Name))
            if any(n.value == name and n not in own and n not in self.covered for n in self.source.tree.all(cst.Name)):
                continue
            self._done({function: self._removed(function)}, f"removed `{name}`: only `set_allocator` used it", function)

    def _announced(self, line: cst.SimpleStatementLine) -> list[cst.BaseStatement]:
        """Log messages right beside it in its block that speak of the allocator."""
        block = self.source.tree.parent(line)
        body = list(block.body) if isinstance(block, cst.IndentedBlock) else []
        if line not in body:
            return []
        at = body.index(line)
        near = (*body[max(at - 1, 0):at], *body[at + 1:at + 2])
        return [x for x in near if _is_log(x) and "alloc" in code(x).lower()]

    def _removed(self, statement: cst.CSTNode) -> Edit:
        """Nothing, with the comments above that speak of the allocator, be they a heading set apart."""
        above = edit.detached(getattr(statement, "leading_lines", ()))
        if any("alloc" in line.comment.value.lower() for line in above if line.comment):
            return cst.RemoveFromParent()
        return edit.removed(statement)

    def _hollow(self, statement: cst.CSTNode) -> cst.CSTNode:
        """The outermost `try` or `if` around a statement that holds nothing else."""
        while True:
            block = self.source.tree.parent(statement)
            around = self.source.tree.parent(block) if block is not None else None
            if not isinstance(block, cst.IndentedBlock) or len(block.body) != 1:
                return statement
            elif_ = around is not None and isinstance(self.source.tree.parent(around), cst.If)
            if not isinstance(around, (cst.Try, cst.If)) or around.orelse is not None or elif_ or (
                    isinstance(around, cst.Try) and around.finalbody is not None):
                return statement
            statement = around

    # with torch.cuda.device(...)

    def _guards(self) -> None:
        for node in self.source.tree.all(cst.With):
            guards = [i for i in node.items if isinstance(i.item, cst.Call)
                      and self.source.qualified(i.item.func) in GUARDS]
            if not guards or node in self.covered:
                continue
            for guard in guards:
                call = cst.ensure_type(guard.item, cst.Call)
                new = edit.expression(f"{self._runtime}.device_of({self._card(call)})")
                self.uses_runtime |= self._done({call: new}, "a launch goes to the current card: still that of the "
                                                             "tensor, on any device", call)

    def _card(self, guard: cst.Call) -> str:
        """What says which card is meant: a tensor where it names one."""
        if not guard.args:
            return "None"
        given = guard.args[0].value
        text = code(given)
        if _is_text(given) or (isinstance(given, cst.Call) and self.source.qualified(given.func) == "torch.device"
                               and given.args and _is_text(given.args[0].value)):
            return self._tensor(guard) or f"{self._runtime}.default_device()"
        if _is_tensor_index(given):
            return text.removesuffix(".get_device()")
        return text.removesuffix(".index").removesuffix(".device") if text.endswith((".device.index", ".device")) \
            else text

    # Checks

    def _check(self, node: cst.Assert | cst.If) -> None:
        if node in self.covered or not any(_is_cuda(n) or _type_is_cuda(n) is not None or self._is_available(n)
                                           for n in find(node.test, cst.Attribute, cst.Comparison, cst.Call)):
            return
        if isinstance(node, cst.Assert):
            left = self._under_cuda(node.test)
            if left is node.test:
                return
            if left is True:
                line = cst.ensure_type(self.source.tree.statement(node), cst.SimpleStatementLine)
                alone = len(line.body) == 1
                self._done(self._without(line) if alone else {node: cst.RemoveFromParent()},
                           "the tensors may be on any device", node)
            elif isinstance(left, cst.BaseExpression):
                self._done({node: node.with_changes(test=left, msg=_reworded(node.msg))},
                           "the tensors may be on any device", node)
        elif self._raises(node):
            left = self._under_cuda(node.test)
            if left is False:
                self._done(self._without(node), "the tensors may be on any device", node)
            elif isinstance(left, cst.BaseExpression) and left is not node.test:
                self._done({node.test: left}, "the tensors may be on any device", node.test)

    def _without(self, statement: cst.CSTNode) -> dict[cst.CSTNode, Edit]:
        """The edit that removes a statement. One that opened a block leaves no blank line behind."""
        edits: dict[cst.CSTNode, Edit] = {statement: edit.removed(statement)}
        block = self.source.tree.parent(statement)
        if isinstance(block, cst.IndentedBlock) and len(block.body) > 1 and block.body[0] is statement:
            after = block.body[1]
            lines = list(getattr(after, "leading_lines", ()))
            if lines and not lines[0].comment and after not in self.edits:
                while lines and not lines[0].comment:
                    lines.pop(0)
                edits[after] = after.with_changes(leading_lines=lines)
        return edits

    def _raises(self, node: cst.If) -> bool:
        """Whether it does nothing but raise: a guard, not a choice between two ways."""
        up = self.source.tree.parent(node)
        if node.orelse is not None or (isinstance(up, cst.If) and up.orelse is node):
            return False
        body = node.body.body
        if len(body) != 1:
            return False
        small = body[0].body if isinstance(body[0], cst.SimpleStatementLine) else body
        return len(small) == 1 and isinstance(small[0], cst.Raise)

    def _under_cuda(self, node: cst.BaseExpression) -> cst.BaseExpression | bool:
        """A condition once every `is_cuda` in it counts as true: what is left, or its value. `node` if unchanged."""
        if _is_cuda(node) or _type_is_cuda(node) is True:
            return True
        if _type_is_cuda(node) is False:
            return False
        if self._is_available(node):
            return True
        if isinstance(node, cst.Name) and node.value == "IS_NVIDIA":
            return True
        if isinstance(node, cst.Call) and code(node.func) == "all" and len(node.args) == 1:
            inner = node.args[0].value
            if isinstance(inner, (cst.GeneratorExp, cst.ListComp)) and _is_cuda(inner.elt):
                return True
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            value = self._under_cuda(node.expression)
            return not value if isinstance(value, bool) else node
        if isinstance(node, cst.BooleanOperation):
            decides = isinstance(node.operator, cst.Or)
            left, right = self._under_cuda(node.left), self._under_cuda(node.right)
            if left is decides or right is decides:
                return decides
            if isinstance(left, bool):
                return right if isinstance(right, bool) else _wrapped(right, node)
            if isinstance(right, bool):
                return _wrapped(left, node)
            if left is not node.left or right is not node.right:
                return node.with_changes(left=left, right=right)
        return node

    def _only_cuda(self, node: cst.CSTNode) -> bool:
        """Whether a place is reached only after a test for a GPU."""
        below = node
        for up in self.source.tree.ancestors(node):
            if isinstance(up, (cst.If, cst.IfExp)) and up.body is below and self._asks(up.test):
                return True
            if isinstance(up, cst.BooleanOperation) and isinstance(up.operator, cst.And) and (
                    up.right is below and self._asks(up.left)):
                return True
            if isinstance(up, (cst.FunctionDef, cst.ClassDef)):
                return False
            below = up
        return False

    def _asks(self, test: cst.BaseExpression) -> bool:
        """Whether a condition holds only on a GPU."""
        if isinstance(test, cst.BooleanOperation):
            left, right = self._asks(test.left), self._asks(test.right)
            return (left or right) if isinstance(test.operator, cst.And) else (left and right)
        if isinstance(test, cst.Name):
            return test.value.startswith("IS_NVIDIA")
        return self._is_available(test) or _is_cuda(test) or _type_is_cuda(test) is True

    def _is_available(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and (
            self.source.qualified(node.func) == "torch.cuda.is_available")

    def _leads_to_cuda(self, call: cst.Call) -> bool:
        """Whether what a test decides is code for CUDA: then "no" is the right answer elsewhere."""
        below: cst.CSTNode = call
        for up in self.source.tree.ancestors(call):
            if isinstance(up, (cst.If, cst.IfExp)):
                return up.test is below and self._asks(up.test) and "torch.cuda" in code(up.body)
            below = up
        return False

    def _choice(self, node: cst.IfExp) -> None:
        """`"cuda" if torch.cuda.is_available() else "cpu"`"""
        if self._is_available(node.test) and _is_text(node.body):
            self.covered.update(find_all(node))
            self._default(node, node)

    # Calls

    def _call(self, call: cst.Call) -> None:
        name = self.source.qualified(call.func) if isinstance(call.func, (cst.Name, cst.Attribute)) else ""
        tail = name.rpartition(".")[2]
        if name == "torch.cuda.get_device_properties":
            self._cores(call)
        elif name == "torch.cuda.get_device_capability":
            self._capability(call)
        elif name == "torch.cuda.is_available":
            self.covered.update(find_all(call))
            if not self._leads_to_cuda(call):
                self._tell(call, "a decision by `torch.cuda.is_available()`: false on an NPU, so say which way is "
                                 "meant there")
        elif name in SEEDS:
            self._done({call.func: edit.expression("torch.manual_seed")}, "seeds every device", call)
        elif name == "torch.cuda.empty_cache" and isinstance(self.source.tree.parent(call), cst.Expr):
            line = self.source.tree.statement(call)
            self._done({line: edit.removed(line)}, "emptying the cache of CUDA changes no result", call)
        elif name.startswith("torch.cuda.") and name.count(".") == 2 and tail in MODULE_CALLS:
            self._module(call, tail)
        elif name == "torch.device" and call.args and _is_text(call.args[0].value):
            tensor = self._tensor(call)
            if tensor:
                self._done({call: edit.expression(f"{tensor}.device")}, f"the device of `{tensor}`", call)
            else:
                self._default(call.args[0].value, call)
        elif tail_of(call) == "cuda" and name != "torch.cuda":
            self._moved(call)

    def _moved(self, call: cst.Call) -> None:
        """`x.cuda()`"""
        func = cst.ensure_type(call.func, cst.Attribute)
        tensor = self._tensor(call)
        to = func.with_changes(attr=cst.Name("to"))
        device = edit.expression(f"{tensor}.device" if tensor else f"{self._runtime}.default_device()")
        keep = [a for a in call.args if a.keyword and a.keyword.value == "non_blocking"]
        if self._done({call: call.with_changes(func=to, args=[cst.Arg(device), *keep])},
                      f"the device of `{tensor}`" if tensor else "the device that is there", call) and not tensor:
            self.uses_runtime = True

    def _module(self, call: cst.Call, name: str) -> None:
        up = self.source.tree.parent(call)
        if isinstance(up, cst.Attribute) and up.attr.value == "cuda_stream":
            self._tell(call, "a raw CUDA stream: other devices have no such handle")
            self.covered.update(find_all(call))
            return
        tensor = self._tensor(call)
        module = f"torch.get_device_module({tensor}.device)" if tensor else "torch.get_device_module()"
        self._done({call.func: edit.expression(f"{module}.{name}")}, "asks the module of the device at hand", call)

    def _cores(self, call: cst.Call) -> None:
        read = self.source.tree.parent(call)
        if not isinstance(read, cst.Attribute) or read.attr.value != "multi_processor_count":
            self._tell(call, "properties of a CUDA device: an Ascend device has core counts and a Unified Buffer")
            self.covered.update(find_all(call))
            return
        device = self._device_type(call)
        kind = "cube" if self._launches_product(call) else "vector"
        if self._done({read: edit.expression(f"{self._runtime}.properties({device}).{kind}_cores")},
                      f"the number of {kind} cores takes the place of multiprocessors", call):
            self.uses_runtime = True

    def _device_type(self, call: cst.Call) -> str:
        if call.args:
            text = code(call.args[0].value)
            if text.endswith(".device.index"):
                text = text.removesuffix(".index")
            if text.endswith(".device"):
                return f"{text}.type"
            if _is_tensor_index(call.args[0].value):
                return f"{text.removesuffix('.get_device()')}.device.type"
        tensor = self._tensor(call)
        return f"{tensor}.device.type" if tensor else f"{self._runtime}.default_device()"

    def _launches_product(self, node: cst.CSTNode) -> bool:
        function = self.source.tree.enclosing(node, cst.FunctionDef)
        return any(_has_product(x) for x in self.source.launches if x.function is function)

    def _capability(self, call: cst.Call) -> None:
        """`capability >= (9, 0)` is a question about a GPU; it is false elsewhere."""
        value: cst.CSTNode = call
        up = self.source.tree.parent(value)
        while isinstance(up, cst.Subscript) and up.value is value:
            value, up = up, self.source.tree.parent(up)
        self.covered.update(find_all(call))
        if isinstance(up, cst.Comparison) and up.left is value and len(up.comparisons) == 1 and isinstance(
                up.comparisons[0].operator, (cst.GreaterThan, cst.GreaterThanEqual, cst.Equal)):
            self._done({up: cst.Name("False")}, "no GPU, no compute capability", call)
        else:
            self._tell(call, "a decision by compute capability: say what holds on Ascend")

    # Device names

    def _device_text(self, node: cst.SimpleString | cst.FormattedString) -> None:
        if not _is_text(node):
            return
        up = self.source.tree.parent(node)
        if isinstance(up, cst.Arg):
            call = cst.ensure_type(self.source.tree.parent(up), cst.Call) if isinstance(
                self.source.tree.parent(up), cst.Call) else None
            keyword = up.keyword.value if up.keyword else ""
            name = self.source.qualified(call.func) if call else ""
            if keyword == "device_type" or (not keyword and name in AUTOCAST):
                self._place(node, ".type")
            elif keyword == "device" or (call is not None and not keyword and tail_of(call) == "to"):
                self._place(node, "")
        elif isinstance(up, cst.Assign) and up.value is node:
            names = [code(t.target) for t in up.targets]
            tests = [code(a.test) for a in self.source.tree.ancestors(node) if isinstance(a, cst.If)]
            if any(n in t for n in names for t in tests):       # `if device == "cpu": device = "cuda"`
                return
            if any("device" in n.lower() for n in names):
                self._place(node, ".type")
        elif isinstance(up, cst.DictElement) and up.value is node and "device" in code(up.key).lower():
            self._place(node, ".type" if "type" in code(up.key) else "")
        elif isinstance(up, cst.Param) and "device" in up.name.value:
            self._tell(node, f'`{up.name.value}="cuda"` as a default: callers on other devices have to pass one')

    def _place(self, node: cst.BaseExpression, suffix: str) -> None:
        tensor = self._tensor(node)
        if tensor:
            self._done({node: edit.expression(f"{tensor}.device{suffix}")}, f"the device of `{tensor}`", node)
        else:
            self._default(node, node)

    def _default(self, node: cst.BaseExpression, at: cst.CSTNode) -> None:
        """A place that needs the default device; `_defaults` decides how it is written."""
        function = self.source.tree.enclosing(node, cst.FunctionDef)
        self.covered.add(node)
        if function is not None:
            self.local.setdefault(function, []).append((node, ""))
        elif self._done({node: edit.expression(f"{self._runtime}.default_device()")}, "the device that is there", at):
            self.uses_runtime = True

    def _defaults(self) -> None:
        for function, places in self.local.items():
            whole = edit.expression(f"{self._runtime}.default_device()")
            taken = any(n.value == "device" for n in find(function.body, cst.Name)
                        if not isinstance(self.source.tree.parent(n), (cst.Arg, cst.Attribute))) or any(
                p.name.value == "device" for p in find(function.params, cst.Param))
            message = "the device that is there"
            if len(places) == 1 or taken or not isinstance(function.body, cst.IndentedBlock):
                for node, _ in places:
                    self.uses_runtime |= self._done({node: whole.deep_clone()}, message, node)
                continue
            at = 1 if function.get_docstring() is not None else 0
            body = list(function.body.body)
            body.insert(at, edit.statement(f"device = {self._runtime}.default_device()", self.source.tree.module))
            edits: dict[cst.CSTNode, Edit] = {node: cst.Name("device") for node, _ in places}
            edits[function.body] = function.body.with_changes(body=body)
            self.uses_runtime |= self.together(edits, message, at=places[0][0])

    def _tensor(self, node: cst.CSTNode) -> str | None:
        """A parameter of the function around a place that surely is a tensor."""
        function = self.source.tree.enclosing(node, cst.FunctionDef)
        while function is not None:
            name = self._inputs(function)
            if name:
                return name
            function = self.source.tree.enclosing(function, cst.FunctionDef)
        return None

    @functools.cached_property
    def _known(self) -> dict[cst.FunctionDef, str | None]:
        return {}

    def _inputs(self, function: cst.FunctionDef) -> str | None:
        if function not in self._known:
            self._known[function] = next(self._find_inputs(function), None)
        return self._known[function]

    def _find_inputs(self, function: cst.FunctionDef) -> Iterator[str]:
        used = {n.value.value for n in find(function.body, cst.Attribute)
                if isinstance(n.value, cst.Name) and n.attr.value in TENSOR}
        compared = {n.left.value for n in find(function.body, cst.Comparison) if isinstance(n.left, cst.Name)
                    and any(isinstance(c.operator, (cst.Is, cst.IsNot)) for c in n.comparisons)}
        for param in edit.parameters(function):
            name = param.name.value
            hint = code(param.annotation.annotation) if param.annotation else ""
            if param.default is not None or name in NOT_DATA or name in compared or "None" in hint or (
                    "Optional" in hint) or name.startswith("device"):
                continue
            if hint in ("torch.Tensor", "Tensor") or (not hint and name in used):
                yield name

    # What is left

    def _left(self, node: cst.Attribute | cst.Comparison) -> None:
        """Report what asks for CUDA and was not dealt with."""
        if isinstance(node, cst.Comparison):
            if _type_is_cuda(node) is not None and "npu" not in code(node):
                self._tell(node, "a decision by the type of a device: say which way is meant on an NPU")
            return
        if node.attr.value == "is_cuda":
            self._tell(node, "a decision by `is_cuda`: false on an NPU, so say which way is meant there")
            return
        name = self.source.qualified(node) if _is_dotted(node) else ""
        up = self.source.tree.parent(node)
        if not name.startswith("torch.cuda.") or isinstance(up, cst.Attribute) or name in CUSTOM or name in GUARDS:
            return
        if any(isinstance(a, (cst.ImportFrom, cst.Import)) for a in self.source.tree.ancestors(node)):
            return
        self._tell(node, f"`{name}` has no counterpart on other devices")

    def _decorator(self, node: cst.Decorator) -> None:
        inner = node.decorator
        func = inner.func if isinstance(inner, cst.Call) else inner
        name = self.source.qualified(func)
        if name not in CUSTOM:
            return
        args = list(inner.args) if isinstance(inner, cst.Call) else []
        device = cst.parse_expression(f"f(device_type={self._runtime}.default_device())")
        new = cst.Call(edit.expression(f"torch.amp.{name.rpartition('.')[2]}"),
                       [*cst.ensure_type(device, cst.Call).args, *args])
        if self._done({inner: new}, "mixed precision of the device that is there", node):
            self.uses_runtime = True

    @functools.cached_property
    def _runtime(self) -> str:
        return runtime_import.name(self.source)


def find_all(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from find_all(child)


def tail_of(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _is_text(node: cst.BaseExpression) -> bool:
    """`"cuda"`, `"cuda:0"`, `f"cuda:{i}"`"""
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return isinstance(value, str) and CUDA.fullmatch(value) is not None
    if isinstance(node, cst.FormattedString) and node.parts:
        first = node.parts[0]
        return isinstance(first, cst.FormattedStringText) and first.value == "cuda:"
    return False


def _is_dotted(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and _is_dotted(node.value))


def _is_cuda(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "is_cuda"


def _type_is_cuda(node: cst.CSTNode) -> bool | None:
    """True for `x.device.type == "cuda"` and `in ("cuda", ...)`, False for the negated forms, None for the rest."""
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return None
    if not code(node.left).endswith(".device.type"):
        return None
    target = node.comparisons[0]
    values = [target.comparator] if isinstance(target.operator, (cst.Equal, cst.NotEqual)) else [
        e.value for e in getattr(target.comparator, "elements", ())]
    if not any(_is_text(v) for v in values):
        return None
    if isinstance(target.operator, (cst.Equal, cst.In)):
        return True
    return False if isinstance(target.operator, (cst.NotEqual, cst.NotIn)) else None


def _wrapped(node: cst.BaseExpression, around: cst.BaseExpression) -> cst.BaseExpression:
    """What is left of a parenthesised condition keeps the parentheses, which may span lines."""
    if around.lpar and not node.lpar:
        return node.with_changes(lpar=around.lpar, rpar=around.rpar)
    return node


def _reworded(message: cst.BaseExpression | None) -> cst.BaseExpression | None:
    if not isinstance(message, cst.SimpleString):
        return message
    value = re.sub(r"\b(?:CUDA|cuda|GPU) (?=tensor)", "", message.value)
    value = re.sub(r"\bon (?:the |a )?(?:CUDA|cuda|GPU)(?: devices?)?\b", "on one device", value)
    return message.with_changes(value=value)


def _is_log(statement: cst.CSTNode) -> bool:
    """`logger.info(...)`, `logging.debug(...)`, alone on a line."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    expr = statement.body[0]
    return isinstance(expr, cst.Expr) and isinstance(expr.value, cst.Call) and (
        re.fullmatch(r"_?(log|logger|logging)\.(debug|info|warning|warn)", code(expr.value.func)) is not None)


def _is_tensor_index(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and tail_of(node) == "get_device" and not node.args


def _has_product(launch: Launch) -> bool:
    return any(launch.kernel.source.qualified(c.func) in ("triton.language.dot", "triton.language.dot_scaled")
               for c in find(launch.kernel.node.body, cst.Call) if isinstance(c.func, (cst.Name, cst.Attribute)))
