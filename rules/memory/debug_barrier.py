"""ASC204 debug-barrier."""
from __future__ import annotations

import libcst as cst

from migrate.analysis.control import kernel_of
from migrate.analysis.kernels import Kernel, is_jit
from migrate.analysis.pointers import Pointers
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import find

BARRIER = "triton.language.debug_barrier"


class DebugBarrier(Rule):
    """Remove `tl.debug_barrier()` where no value goes through global memory across it.

    ## Why
    On a GPU the barrier makes the threads of a block wait for each other; upstream puts it where the GPU compiler needs
    help with shared memory. On Ascend one program is one instruction stream over tiles, the compiler places the
    synchronisation between DMA, vector and cube units itself, and the barrier becomes `pipe_barrier[PIPE_ALL]`: all
    units of the core drain, in every round of a loop.

    A call of a thin helper whose whole body is the barrier counts as the barrier; the helper keeps it, for the calls
    that stay.

    ## What it leaves alone
    A barrier that stands between a store and a later load of the same pointer parameter, counting rounds of a loop that
    holds the barrier. It is reported: stale values after such a pair have been seen on triton-ascend 3.2 with CANN 8.5.
    The kernel has to be split, or the value kept in a tile.
    """

    id = "ASC204"
    name = "debug-barrier"
    summary = "`tl.debug_barrier()` drains every unit of the core and orders nothing that needs ordering"
    safety = Safety.SAFE
    triggers = ("barrier",)
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/issues/1416",
            "a load after a store of the same output in one program returned stale data", "issue"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "the final HIVM differs by one `pipe_barrier[<PIPE_ALL>]` with the barrier and without", "compiled"),
    )
    examples = (
        Example("a barrier between loads and an unrelated store",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def scale(x, y, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    for i in range(n):
                        tile = tl.load(x + i * BLOCK + at)

                        # keep this line
                        tl.debug_barrier()  # DO NOT REMOVE
                        tl.store(y + i * BLOCK + at, tile * 2)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def scale(x, y, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    for i in range(n):
                        tile = tl.load(x + i * BLOCK + at)

                        tl.store(y + i * BLOCK + at, tile * 2)
                """),
        Example("through a thin helper, as the only statement of a branch",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def wait():
                    tl.debug_barrier()

                @triton.jit
                def copy(x, y, SLOW: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + at)
                    if SLOW:
                        wait()
                    tl.store(y + at, tile)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def wait():
                    tl.debug_barrier()

                @triton.jit
                def copy(x, y, SLOW: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + at)
                    if SLOW:
                        pass
                    tl.store(y + at, tile)
                """),
        Example("reports a value that goes through memory, also round a loop",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def chain(x, scratch, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    p_out = scratch + at
                    tl.store(p_out, tl.load(x + at))
                    tl.debug_barrier()
                    last = tl.load(scratch + at + 1)
                    for i in range(n):
                        tile = tl.load(x + at)
                        tl.debug_barrier()
                        tl.store(x + at, tile + last)
                """,
            after=SAME,
            reports=2),
        Example("leaves what the author asked to keep",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def copy(x, y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + at)
                    tl.debug_barrier()  # migrate: ignore[ASC204] seen to hang without it
                    tl.store(y + at, tile)
                """,
            after=SAME),
    )

    def visit_Expr(self, node: cst.Expr) -> None:
        if not isinstance(node.value, cst.Call) or node.value.args or not self._is_barrier(node.value):
            return
        kernel = kernel_of(self.source, node)
        line = self.source.tree.parent(node)
        if kernel is None or line is None or _only_statement(kernel.node) is node:
            return
        through = self._through_memory(kernel, node.value)
        if through:
            self.report(node, f"`{min(through)}` is stored before this barrier and loaded after it: keep the value "
                              "in a tile, or split the kernel; the barrier stays")
        else:
            alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
            self.together(self._without(line) if alone else {node: cst.RemoveFromParent()},
                          "removed a barrier: nothing goes through global memory across it, "
                          "and it drains every unit of the core", at=node)

    def _without(self, line: cst.CSTNode) -> dict[cst.CSTNode, object]:
        """The line goes, with the comment right above it; what stands above a blank line stays for the next one."""
        edits: dict[cst.CSTNode, object] = {line: cst.RemoveFromParent()}
        block = self.source.tree.parent(line)
        if not isinstance(line, cst.SimpleStatementLine) or not isinstance(block, cst.IndentedBlock):
            return edits
        blank = max((i + 1 for i, empty in enumerate(line.leading_lines) if empty.comment is None), default=0)
        after = block.body[list(block.body).index(line) + 1:]
        if blank and after and isinstance(after[0], (cst.SimpleStatementLine, cst.For, cst.If, cst.While)):
            lines = after[0].leading_lines
            if lines and lines[0].comment is None:
                blank -= 1                      # one blank line is enough
            edits[after[0]] = after[0].with_changes(leading_lines=[*line.leading_lines[:blank], *lines])
        return edits

    def _is_barrier(self, call: cst.Call) -> bool:
        if self.source.qualified(call.func) == BARRIER:
            return True
        helper = self.source.resolve(call.func.value) if isinstance(call.func, cst.Name) else None
        if helper is None or not is_jit(*helper):
            return False
        only = _only_statement(helper[1])
        return (only is not None and isinstance(only.value, cst.Call)
                and helper[0].qualified(only.value.func) == BARRIER)

    def _through_memory(self, kernel: Kernel, barrier: cst.Call) -> frozenset[str]:
        """Parameters that a store before the barrier and a load after it share, in some order of execution."""
        loops = [a for a in self.source.tree.ancestors(barrier) if isinstance(a, (cst.For, cst.While))]
        again = set(find(loops[-1], cst.Call)) if loops else set()     # runs both before and after the barrier
        calls = list(find(kernel.node.body, cst.Call))
        at = {call: i for i, call in enumerate(calls)}
        here = at[barrier]
        stored: frozenset[str] = frozenset()
        loaded: frozenset[str] = frozenset()
        for access in Pointers(kernel).accesses:
            if at[access.node] < here or access.node in again:
                stored |= access.stores
            if at[access.node] > here or access.node in again:
                loaded |= access.loads
        return stored & loaded


def _only_statement(function: cst.FunctionDef) -> cst.Expr | None:
    """The one expression that is the whole body of a function, its docstring aside."""
    body: list[cst.CSTNode] = []
    for line in function.body.body:
        body += line.body if isinstance(line, cst.SimpleStatementLine) else [line]
    body = [s for s in body if not (isinstance(s, cst.Expr) and isinstance(s.value, cst.SimpleString))]
    return body[0] if len(body) == 1 and isinstance(body[0], cst.Expr) else None
