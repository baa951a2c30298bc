"""ASC211 specialise."""
from __future__ import annotations

import libcst as cst

from migrate.analysis.constants import given
from migrate.analysis.kernels import Kernel
from migrate.asked import Asked, Literal, Setting
from migrate.edit import code
from migrate.errors import MigrateError
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.launch.leftovers import leftovers
from rules.tiles import _signature
from rules.tiles._body import Body
from rules.tiles._dead import assigned, reads
from rules.tiles._outside import SPLIT, Outside, outside


class Specialise(Rule):
    """Fold the values of `tl.constexpr` parameters that `--set` gives into the kernels of a file.

    ## Why
    A kernel for every head size, gate and layout carries branches, tiles and pointers that one model never uses. A
    tile is split, and fitted to the 192 KB of the Unified Buffer, where its size is a number; a reader checks one path
    instead of sixteen. The compiler folds the same constants anyway, so that values do not change: this rule writes
    down what it sees.

    ## What it does
    `migrate port FILE --set K=128 USE_G=False` acts on each kernel that has such a parameter, `--set KERNEL.K=128` on
    one. `if`, conditional expressions, `and`, `or`, `not`, comparisons and arithmetic on known integers are folded;
    `tl.static_assert` that holds goes, one that does not is an error. A loop without a round goes, one of a single
    round is written without the loop, one of several rounds stays a loop (`tl.static_range(4)`): nothing is unrolled. A
    local constant keeps its name (`BK: tl.constexpr = 64`) and decides branches. `x is None` is known where
    `--set x=None` says so, or a heuristic does: `USE_G = False`, of `lambda args: args["g"] is not None`, makes g None.
    `0 + x` and `x * 1` are folded for integers and pointers alone, `0 * x` for scalars.

    What only the dropped code read goes with it: assignments whose value is pure (loads too, stores and atomics never),
    parameters with their launch arguments, heuristics, entries of `key` and `do_not_specialize`, configurations with
    other values, imports. Dead code that was there before stays, and so do comments of live code.

    The host cannot be asked whether it always passes these values, so it is told to: where a launch passes more
    than the literal, `assert K == 128 and g is None, ...` stands before it; with the type, where a value of another
    one passes as well and makes another kernel: `SCALE == 2.0 and isinstance(SCALE, float)`.

    ## What it leaves alone
    * a parameter of a kernel that other modules name, that a launch passes through `*args` or `**kwargs`, or that a
      grid or a decorator names in a way that cannot be edited. The body is specialised, the parameter stays, and
      `tl.static_assert(K == 128)` in the kernel checks it. Reported;
    * a value that a launch in the file contradicts, or a call of a helper, that none of the autotune configurations
      has, that a heuristic gives otherwise, and a parameter that the kernel assigns anew. 1, True and 1.0 are different
      values. Reported;
    * a float of a parameter that stays: `tl.static_assert(K == 2.0)` holds for 2 as well. Reported;
    * helpers called by kernels, which get the number as an argument, unless `--set HELPER.K=128` names them;
    * constants that `--split` names: they decide branches, but keep their name for the rule that splits their axes;
    * arithmetic on floats, and on what may be one; a product of an 8-bit tile with `tl.cdiv(K, 64)`, which is an int32
      on the device and would be a constant;
    * host code that only prepared an argument that has gone.
    """

    id = "ASC211"
    name = "specialise"
    summary = "constexpr values given by `--set` are folded into the kernel; what only other values need goes"
    safety = Safety.SAFE
    phase = -1
    option = "--set"
    references = (
        Ref("https://github.com/triton-lang/triton/blob/v3.2.0/python/triton/compiler/code_generator.py",
            "`if` and conditional expressions on a constexpr visit the chosen branch only; a literal in a kernel is a "
            "constexpr, like a parameter annotated tl.constexpr", "source"),
        Ref("https://github.com/triton-lang/triton/blob/v3.2.0/python/triton/compiler/code_generator.py",
            "a plain assignment of a constexpr makes a value on the device, and `min` of two constexprs is one",
            "source"),
        Ref("https://github.com/fla-org/flash-linear-attention/blob/v0.5.2/fla/ops/cp/chunk_delta_h.py",
            "pre_process_fwd_kernel_merged and pre_process_bwd_kernel_merged specialised for K = V = 128, BT = 64, "
            "USE_GK, fixed length: the same bits under Triton's interpreter as before", "ran"),
    )
    examples = (
        Example("branches, a derived constant and a loop of one round",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def scale(x, y, g, K: tl.constexpr, USE_G: tl.constexpr):
                    # one tile of 64 after the other
                    NK: tl.constexpr = K // 64
                    at = tl.arange(0, 64)
                    b_1 = tl.load(x + at)
                    if K > 64:
                        b_2 = tl.load(x + 64 + at)
                    if K > 128:
                        b_3 = tl.load(x + 128 + at)

                    # the gate
                    if USE_G:
                        b_1 *= tl.load(g + at)
                    else:
                        # none: a constant
                        b_1 *= 2.0
                    for i in tl.static_range(NK - 1):
                        tl.store(y + i * K + at, b_1)
                    if K > 64:
                        tl.store(y + 64 + at, b_2)
                    if K > 128:
                        tl.store(y + 128 + at, b_3)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def scale(x, y):
                    at = tl.arange(0, 64)
                    b_1 = tl.load(x + at)
                    b_2 = tl.load(x + 64 + at)

                    # the gate
                    # none: a constant
                    b_1 *= 2.0
                    tl.store(y + at, b_1)
                    tl.store(y + 64 + at, b_2)
                """,
            asked=Asked((Setting("K", 128), Setting("USE_G", False))),
            run="exact",
            inputs={"x": "float32[256]", "y": "float32[256]", "g": "float32[64]", "K": 128, "USE_G": False}),
        Example("heuristics, configurations, the grid and the launch",
            before="""
                import triton
                import triton.language as tl

                @triton.heuristics({
                    'USE_G': lambda args: args['g'] is not None,
                    'EVEN': lambda args: args['T'] % args['BT'] == 0,
                })
                @triton.autotune(
                    configs=[triton.Config({'BT': BT}, num_warps=w) for BT in [32, 64] for w in [2, 4]],
                    key=['BT', 'K'],
                )
                @triton.jit(do_not_specialize=['T'])
                def gate(x, g, o, T, K: tl.constexpr, BT: tl.constexpr, USE_G: tl.constexpr, EVEN: tl.constexpr):
                    at = tl.program_id(0) * BT + tl.arange(0, BT)
                    b_x = tl.load(x + at * K, mask=at < T, other=0.0)
                    if USE_G:
                        b_x *= tl.load(g + at, mask=at < T, other=0.0)
                    if EVEN:
                        tl.store(o + at, b_x)
                    else:
                        tl.store(o + at, b_x, mask=at < T)

                def run(x, g, o):
                    T, K = x.shape
                    def grid(meta): return (triton.cdiv(T, meta['BT']),)
                    gate[grid](x, g, o, T, K=K)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.heuristics({
                    'EVEN': lambda args: args['T'] % 64 == 0,
                })
                @triton.autotune(
                    configs=[triton.Config({}, num_warps=w) for w in [2, 4]],
                    key=[],
                )
                @triton.jit(do_not_specialize=['T'])
                def gate(x, o, T, EVEN: tl.constexpr):
                    at = tl.program_id(0) * 64 + tl.arange(0, 64)
                    b_x = tl.load(x + at * 128, mask=at < T, other=0.0)
                    if EVEN:
                        tl.store(o + at, b_x)
                    else:
                        tl.store(o + at, b_x, mask=at < T)

                def run(x, g, o):
                    T, K = x.shape
                    def grid(meta): return (triton.cdiv(T, 64),)
                    assert K == 128 and g is None, "the kernel is specialised for this"
                    gate[grid](x, o, T)
                """,
            asked=Asked((Setting("K", 128), Setting("BT", 64), Setting("USE_G", False)))),
        Example("a kernel that another module launches keeps its parameters, and checks them",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill(x, K: tl.constexpr):
                    if K > 64:
                        tl.store(x + 64 + tl.arange(0, 64), 0.0)
                    tl.store(x + tl.arange(0, 64), 0.0)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill(x, K: tl.constexpr):
                    tl.static_assert(K == 128)
                    tl.store(x + 64 + tl.arange(0, 64), 0.0)
                    tl.store(x + tl.arange(0, 64), 0.0)
                """,
            reports=1, module="ops.fill", asked=Asked((Setting("K", 128),)),
            others={"ops.use": """
                from ops.fill import fill

                def run(x):
                    fill[(1,)](x, K=128)
                """}),
        Example("leaves a value that a launch contradicts",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill(x, LAST: tl.constexpr):
                    if LAST:
                        tl.store(x + 64, 0.0)
                    tl.store(x, 0.0)

                def run(x):
                    fill[(1,)](x, LAST=True)
                    fill[(1,)](x, LAST=False)
                """,
            after=SAME, reports=1, asked=Asked((Setting("LAST", True),))),
        Example("does nothing that is not asked for",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def fill(x, K: tl.constexpr = 64):
                    if K > 64:
                        tl.store(x + 64 + tl.arange(0, 64), 0.0)
                    tl.store(x + tl.arange(0, 64), 0.0)
                """,
            after=SAME),
    )

    def finish(self) -> None:
        if not self.source.asked.settings:
            return
        changed: list[tuple[cst.FunctionDef, cst.FunctionDef]] = []
        for kernel in list(self.source.kernels.values()):
            values = given(self.source, kernel)
            if values:
                changed += self._kernel(kernel, values)
        if changed:
            names = {n.value for _, new in changed for n in find(new, cst.Name)}
            leftovers(self.source, [old for old, _ in changed], names, self.replace)

    def _kernel(self, kernel: Kernel, values: dict[str, Literal]) -> list[tuple[cst.FunctionDef, cst.FunctionDef]]:
        """The kernel before and after, if it changes."""
        refused: dict[str, str] = {}
        while True:
            found = outside(kernel, {n: v for n, v in values.items() if n not in refused}, self.source.asked.split)
            body = self._body(found)
            again = body.rebound & found.asked.keys()
            refused.update({**found.refused, **dict.fromkeys(again, "the kernel assigns it anew")})
            if not again:
                break
        for name, why in refused.items():
            self.report(kernel.node.name, f"`{name}` = {values[name]!r} is not folded into `{kernel.name}`: {why}")
        if not found.asked:
            return []
        gone, decorators, edits = _leaving(found, body)
        node = kernel.node.with_changes(
            decorators=decorators, params=_signature.parameters(found, gone) if gone else kernel.node.params,
            body=body.with_assertions(gone))
        staying: dict[str, list[str]] = {}
        for name in found.asked:
            if name in body.values and name not in gone and found.keeps(name) != SPLIT:
                staying.setdefault(found.keeps(name), []).append(f"`{name}`")
        for reason, names in staying.items():
            stay = "stays" if len(names) == 1 else "stay"
            self.report(kernel.node.name, f"{', '.join(names)} of `{kernel.name}` {stay}, checked by a static "
                                          f"assertion: {reason}")
        if code(node) == code(kernel.node):
            return []
        edits.update(_signature.launch_edits(found, gone))
        edits[kernel.node] = node
        if not self._commit(kernel, found, body, gone, edits):
            return []
        return [(kernel.node, node)]

    def _body(self, found: Outside) -> Body:
        try:
            return Body(found)
        except MigrateError as error:
            name = found.kernel.node.name
            raise MigrateError(f"kernel {name.value}, line {self.source.tree.span(name)[0]}: {error}") from error

    def _commit(self, kernel: Kernel, found: Outside, body: Body, gone: list[str],
                edits: dict[cst.CSTNode, Edit]) -> bool:
        tree = self.source.tree
        places: dict[str, list[cst.CSTNode]] = {}
        for event in body.events:
            if event.node in tree:
                places.setdefault(event.text, []).append(event.node)
        numbers: dict[str, list[cst.CSTNode]] = {}
        for name in body.replaced:
            if name in tree:
                numbers.setdefault(name.value, []).append(name)
        touched = [n for nodes in (*places.values(), *numbers.values()) for n in nodes]
        if any(self.source.ignored(n, self) for n in (*touched, *edits)):
            return False
        values = ", ".join(f"{name} = {value!r}" for name, value in found.asked.items() if name in body.values)
        self.together(edits, f"`{kernel.name}` is specialised for {values}", at=kernel.node.name)
        for number, nodes in numbers.items():
            if number in body.values:
                self._add(nodes[0], f"`{number}` is {body.values[number]!r}", tuple(nodes))
        for text, nodes in places.items():
            self._add(nodes[0], text, tuple(nodes))
        if gone:
            nodes = [kernel.params[name].node for name in gone]
            dead = ", ".join(f"`{name}`" for name in gone if name not in found.values)
            more = f"; only what has gone read {dead}" if dead else ""
            self._add(nodes[0], f"`{kernel.name}` and its launches lose {_count(len(gone), 'parameter')}{more}",
                      tuple(nodes))
        for launch in found.launches:
            if found.conditions.get(launch):
                never = "".join(f"; `{text}` is never None, so this launch will fail" for text in found.never[launch])
                self._add(launch.call, f"the launch states what `{kernel.name}` is specialised for{never}",
                          (launch.call,))
        return True


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _leaving(found: Outside, body: Body) -> tuple[list[str], list[cst.Decorator], dict[cst.CSTNode, Edit]]:
    """Parameters that leave, with the decorators and grids that are left."""
    read = reads(body.bare).keys() | assigned(body.bare)
    was_read = reads(found.kernel.node.body)
    gone = [name for name in found.kernel.params if name not in read and not found.keeps(name)
            and (name in body.values or name in was_read)]
    for name in body.values:
        if name in read:
            found.stay.setdefault(name, "the kernel still reads it")
    while True:
        decorators = _signature.decorators(found, gone)
        edits = _signature.grid_edits(found, gone)
        named = _signature.still_named(found, decorators, gone, edits)
        if not named:
            return gone, decorators, edits
        for name in named:
            found.stay[name] = "a decorator, a grid or the launching function names it in a string"
        gone = [name for name in gone if name not in named]
