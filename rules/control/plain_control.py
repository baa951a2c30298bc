"""ASC501 plain-control."""
from __future__ import annotations

import functools

import libcst as cst

from migrate.analysis.control import RANGES, bindings, constness, kernel_of, operands
from migrate.analysis.kernels import Kernel, is_jit, match_args
from migrate.edit import code, expression
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import find
from rules.control.loop_exit import without_exit
from rules.control.pointer_choice import PointerChoice

SHAPED = frozenset({"triton.language.zeros", "triton.language.full"})


class PlainControl(Rule):
    """Rewrite control flow that the Ascend front end or adapter does not take.

    ## Why
    triton-ascend 3.2.0 has the front end of Triton 3.2, and its adapter follows an address only through arithmetic:

    * `a or b or c` is a front-end error: `(a or b) or c`. The same goes for `and`;
    * a condition that mixes a constant of the compilation with a value on the device (`last and RETURN_STATE`) is not
      folded, as later Tritons do. The branch is compiled although it can never run, and meets the `None` pointer or the
      undefined name that the constant was there to keep away. The constant gets an `if` of its own, around the other;
    * `continue` and `break` are front-end errors: what follows them goes under a condition;
    * a pointer chosen on the device (`x + a if c else x + b`, `if c: p += n`) crashes the adapter. The choice
      moves into the offset: `x + tl.where(c, a, b)`;
    * a product under a run-time condition, whose result a later loop of products carries on, crashes the compiler. The
      product moves out and its result is selected: `acc = tl.where(c, acc + tl.dot(a, b), acc)`;
    * `range` over constants, whose index has to be a constant itself (it shapes a tile, or fills a `tl.constexpr` of a
      helper), becomes `tl.static_range`. Loops over constants that compile as loops stay loops: unrolling them
      multiplies the code, and the tiles that are live at once.

    ## What it leaves alone
    Reported instead:
    * `return` inside a loop, and `break` or `continue` of any other shape than one `if` in the loop's own body;
    * pointers to different tensors, chosen on the device: load both and select the value;
    * such a product that also loads its operands under the condition: its loads would need a mask. A product under a
      run-time condition that no later loop carries on compiles, inside a loop as well, and stays: taking it out would
      compute it every time. So does one under `CONSTANT or run_time`, which the compiler folds where the constant
      holds.

    `if CONSTEXPR and run_time: ... else: ...` stays: nesting it would double the else. ASC502 looks at its pointers.
    """

    id = "ASC501"
    name = "plain-control"
    summary = "control flow in the forms that the Ascend front end and adapter follow"
    safety = Safety.SAFE
    triggers = ("jit",)
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/issues/2333",
            "chained boolean operators (A or B or C) are not supported; use parentheses to split the chain", "issue"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "unsupported AST node type: Break, Continue; Cannot have `return` statements inside `while` or `for`; "
            "both forms of each example compiled, before and after", "compiled"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "triton-adapter-opt crashes on `p = x if c else x + 64` and on `if c: p += 64`; with tl.where on the "
            "offset each is one DMA", "compiled"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "bishengir-compile dies (signal 11, `scf.if along control flow edge`) of `if pid > 0: acc = tl.dot(a, b)`"
            " before a loop of `acc += tl.dot(...)`; with tl.where it compiles, as it does inside the loop, with no "
            "loop after it, and with the result stored in the branch", "compiled"),
    )
    examples = (
        Example("a chain of conditions",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def edge(x, y, n, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    if i == 0 or i == n or i == 7:  # the edges
                        tl.store(y + i * BLOCK + at, tl.load(x + at))
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def edge(x, y, n, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    if (i == 0 or i == n) or i == 7:  # the edges
                        tl.store(y + i * BLOCK + at, tl.load(x + at))
                """),
        Example("a constant mixed into a run-time condition",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def last(x, y, state, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    if KEEP:
                        p_state = state + at
                    for i in range(n):
                        tile = tl.load(x + i * BLOCK + at)
                        # only the last one is kept
                        if i == n - 1 and KEEP:
                            tl.store(p_state, tile)
                        tl.store(y + i * BLOCK + at, tile)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def last(x, y, state, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    if KEEP:
                        p_state = state + at
                    for i in range(n):
                        tile = tl.load(x + i * BLOCK + at)
                        # only the last one is kept
                        if KEEP:
                            if i == n - 1:
                                tl.store(p_state, tile)
                        tl.store(y + i * BLOCK + at, tile)
                """),
        Example("skipping a round",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def skip(x, y, n, odd, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    for i in range(n):
                        tile = tl.load(x + i * BLOCK + at)
                        # not this one
                        if i == odd:
                            continue
                        tl.store(y + i * BLOCK + at, tile)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def skip(x, y, n, odd, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    for i in range(n):
                        tile = tl.load(x + i * BLOCK + at)
                        # not this one
                        if not (i == odd):
                            tl.store(y + i * BLOCK + at, tile)
                """),
        Example("leaving a loop early",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def until(x, y, n, limit, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    for i in range(n):
                        tile = tl.load(x + i * BLOCK + at)
                        if tl.sum(tile) > limit:
                            break
                        tl.store(y + i * BLOCK + at, tile)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def until(x, y, n, limit, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    stop = False
                    for i in range(n):
                        if not stop:
                            tile = tl.load(x + i * BLOCK + at)
                            stop = tl.sum(tile) > limit
                            if not stop:
                                tl.store(y + i * BLOCK + at, tile)
                """),
        Example("a pointer chosen on the device, three ways",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def tail(x, y, n, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    p_in = x + i * BLOCK if i < n else x + (n - 1) * BLOCK
                    if i == 0:
                        p_last = x + i + n
                    else:
                        p_last = x + i
                    p_out = y + at
                    if i > 0:
                        p_out += i * BLOCK  # my own part
                    tl.store(p_out, tl.load(p_in + at) + tl.load(p_last))
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def tail(x, y, n, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    p_in = x + tl.where(i < n, i * BLOCK, (n - 1) * BLOCK)
                    p_last = x + i + tl.where(i == 0, n, 0)
                    p_out = y + at
                    p_out += tl.where(i > 0, i * BLOCK, 0)  # my own part
                    tl.store(p_out, tl.load(p_in + at) + tl.load(p_last))
                """),
        Example("a loop whose index has to be a constant",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def part(x, PART: tl.constexpr, BLOCK: tl.constexpr):
                    tile = tl.load(x + PART * BLOCK + tl.arange(0, BLOCK))
                    if PART > 0:
                        tile *= 2
                    return tile

                @triton.jit
                def halves(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    acc = tl.zeros([BLOCK], tl.float32)
                    for i in range(N):
                        acc += part(x, i, BLOCK)
                    for i in range(N):
                        tl.store(y + i * BLOCK + at, acc)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def part(x, PART: tl.constexpr, BLOCK: tl.constexpr):
                    tile = tl.load(x + PART * BLOCK + tl.arange(0, BLOCK))
                    if PART > 0:
                        tile *= 2
                    return tile

                @triton.jit
                def halves(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    acc = tl.zeros([BLOCK], tl.float32)
                    for i in tl.static_range(N):
                        acc += part(x, i, BLOCK)
                    for i in range(N):
                        tl.store(y + i * BLOCK + at, acc)
                """),
        Example("reports a return in a loop, and pointers to two tensors",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def pick(x, z, y, n, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    p = x if i < n else z
                    q = x + at
                    if i == n:
                        q = z + at
                    for j in range(n):
                        if j == i:
                            return
                        tl.store(y + j * BLOCK + at, tl.load(p + at) + tl.load(q))
                """,
            after=SAME,
            reports=3),
        Example("a product under a run-time condition, carried on by a loop",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def scan(x, y, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    here = at[:, None] * BLOCK + at[None, :]
                    tile = tl.load(x + here)
                    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
                    # the first has no past
                    if tl.program_id(0) > 0:
                        acc += tl.dot(tile, tile)
                    for i in range(n):
                        acc += tl.dot(tile, tl.load(x + i * BLOCK * BLOCK + here))
                    tl.store(y + here, acc)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def scan(x, y, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    here = at[:, None] * BLOCK + at[None, :]
                    tile = tl.load(x + here)
                    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
                    # the first has no past
                    acc = tl.where(tl.program_id(0) > 0, acc + tl.dot(tile, tile), acc)
                    for i in range(n):
                        acc += tl.dot(tile, tl.load(x + i * BLOCK * BLOCK + here))
                    tl.store(y + here, acc)
                """),
        Example("reports such a product with a load of its own, leaves one that is stored",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def scan(x, y, n, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    here = at[:, None] * BLOCK + at[None, :]
                    tile = tl.load(x + here)
                    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
                    if tl.program_id(0) > 0:
                        acc = tl.dot(tile, tl.load(y + here))
                    if tl.program_id(0) > 1:
                        square = tl.dot(tile, tile)
                        tl.store(y + BLOCK * BLOCK + here, square)
                    for i in range(n):
                        acc += tl.dot(tile, tile)
                    tl.store(y + here, acc)
                """,
            after=SAME,
            reports=1),
        Example("leaves conditions on constants alone, integers chosen on the device, and host code",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def plain(x, y, bias, n, HAS_BIAS: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    size = BLOCK if n > BLOCK else n
                    tile = tl.load(x + at, mask=(at < size) & (at < n), other=0.0)
                    for i in tl.static_range(2):
                        if HAS_BIAS and i == 0:
                            tile += tl.load(bias + at)
                    if bias is not None and MODE == 1:
                        tile *= 2
                    p = x if HAS_BIAS else y
                    tl.store(p + at, tile)

                def host(a, b, c):
                    for i in range(3):
                        if a or b or c:
                            break
                """,
            after=SAME),
        Example("leaves what the author asked to keep",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def last(x, y, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    if KEEP and tl.program_id(0) == n:  # migrate: ignore[ASC501] shared with the GPU
                        tl.store(y + at, tl.load(x + at))
                """,
            after=SAME),
    )

    # Facts

    @functools.cached_property
    def _tl(self) -> str:
        return self.source.language

    @functools.cached_property
    def _choices(self) -> dict[str, PointerChoice]:
        return {}

    def _choice(self, kernel: Kernel) -> PointerChoice:
        if kernel.name not in self._choices:
            self._choices[kernel.name] = PointerChoice(self.source, kernel, self._tl)
        return self._choices[kernel.name]

    # Chains

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:
        left = node.left
        if (isinstance(left, cst.BooleanOperation) and not left.lpar and type(left.operator) is type(node.operator)
                and kernel_of(self.source, node) is not None and not self._in_nested_test(node)):
            word = "or" if isinstance(node.operator, cst.Or) else "and"
            self.replace(left, left.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]),
                         f"a chain of `{word}` is a front-end error: two at a time", at=node)

    def _in_nested_test(self, node: cst.CSTNode) -> bool:
        """Its `if` is taken apart in this pass; what is left of the chain comes next."""
        child = node
        for up in self.source.tree.ancestors(node):
            if isinstance(up, cst.If):
                return up.test is child and self._nested(up) is not None
            child = up
        return False

    # Conditions

    def visit_If(self, node: cst.If) -> None:
        kernel = kernel_of(self.source, node)
        if kernel is None:
            return
        nested = self._nested(node)
        if nested is not None:
            self.replace(node, nested, "a constant gets an `if` of its own: mixed into a run-time condition it does "
                                       "not keep the branch from being compiled")
            return
        if constness(kernel).folds(node.test):
            return
        choice = self._choice(kernel)
        lines = choice.of_if(node) if isinstance(self.source.tree.parent(node), cst.IndentedBlock) else None
        if lines is not None:
            self.replace(node, cst.FlattenSentinel(lines),
                         "the device chooses an offset, not a pointer: the adapter crashes on a chosen pointer")
            return
        for name in choice.merged(node):
            self.report(node, f"`{name}` is a pointer that depends on a run-time condition: choose an offset into one "
                              "tensor, or load both and select the value")
        self._product(kernel, node)

    def _nested(self, node: cst.If) -> cst.If | None:
        """`if run_time and CONSTANT:` as two, the constant outside; None for any other `if`."""
        kernel = kernel_of(self.source, node) if isinstance(node.test, cst.BooleanOperation) else None
        if kernel is None or node.orelse is not None:
            return None
        tests = operands(node.test, cst.And)
        constants = constness(kernel)
        outer = [t for t in tests if constants.folds(t)]
        inner = [t for t in tests if not constants.folds(t)]
        if not outer or not inner or any("atomic" in code(t) for t in inner):
            return None
        inside = cst.If(_all_of(inner), node.body, whitespace_after_test=node.whitespace_after_test)
        return node.with_changes(test=_all_of(outer), body=cst.IndentedBlock([inside]))

    def _product(self, kernel: Kernel, node: cst.If) -> None:
        """A product whose result a later loop of products carries on: the one shape that does not compile."""
        if any(isinstance(a, (cst.For, cst.While)) for a in self.source.tree.ancestors(node)):
            return
        last = self.source.tree.span(node)[2]
        own = self._products(node.body)
        if not own or any(constness(kernel).folds(t) for t in operands(node.test, cst.Or)):
            return
        carried = {name for loop in find(kernel.node.body, cst.For, cst.While)
                   if self.source.tree.span(loop)[0] > last for name in self._products(loop.body)}
        names = own & carried
        if not names:
            return
        selected = self._selected(node, min(names))
        if selected is not None:
            self.replace(node, selected, "a product under a run-time condition, carried on by a loop, crashes the "
                                         "compiler: its result is selected instead")
        else:
            self.report(node, f"`{min(names)}` is a product under a run-time condition that a later loop carries on; "
                              "this crashes the compiler: take it out, mask its loads, and select with `tl.where`")

    def _products(self, block: cst.CSTNode) -> set[str]:
        """Names that get a product in a block."""
        return {name for name, where, _ in bindings(block) if not isinstance(where, cst.For) and any(
            self.source.qualified(c.func) == "triton.language.dot" for c in find(where, cst.Call))}

    def _selected(self, node: cst.If, name: str) -> cst.SimpleStatementLine | None:
        """`if test: acc = value` as `acc = tl.where(test, value, acc)`, where the value reads no memory."""
        line = node.body.body[0]
        if len(node.body.body) != 1 or node.orelse or not isinstance(line, cst.SimpleStatementLine) or len(
                line.body) != 1 or any("load" in code(c.func) for c in find(node, cst.Call)):
            return None
        small = line.body[0]
        if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
            value = f"{name} + {code(small.value)}"
        elif isinstance(small, cst.Assign) and len(small.targets) == 1 and code(small.targets[0].target) == name:
            value = code(small.value)
        else:
            return None
        new = expression(f"{self._tl}.where({code(node.test)}, {value}, {name})")
        return line.with_changes(body=[cst.Assign([cst.AssignTarget(cst.Name(name))], new)],
                                 leading_lines=[*node.leading_lines, *line.leading_lines])

    def visit_IfExp(self, node: cst.IfExp) -> None:
        kernel = kernel_of(self.source, node)
        if kernel is None:
            return
        if constness(kernel).folds(node.test):
            return
        choice = self._choice(kernel)
        if not choice.pointers.is_pointer(node.body) and not choice.pointers.is_pointer(node.orelse):
            return
        new = choice.offset(node.test, node.body, node.orelse)
        if new is None:
            self.report(node, "a pointer chosen on the device: choose an offset into one tensor, or load both and "
                              "select the value")
        else:
            self.replace(node, new.with_changes(lpar=node.lpar, rpar=node.rpar),
                         "the device chooses an offset, not a pointer: the adapter crashes on a chosen pointer")

    # Loops

    def visit_For(self, node: cst.For) -> None:
        self._exits(node)
        kernel = kernel_of(self.source, node)
        call = node.iter
        if (kernel is None or not isinstance(call, cst.Call) or not isinstance(node.target, cst.Name)
                or node in self.edits or any(a.keyword or a.star for a in call.args)
                or self.source.qualified(call.func) not in RANGES):
            return
        constants = constness(kernel)
        if all(constants.folds(a.value) for a in call.args) and self._needs_constant(node, node.target.value):
            self.replace(call.func, expression(f"{self._tl}.static_range"),
                         f"`{node.target.value}` has to be a constant in this loop", at=node.iter)

    def visit_While(self, node: cst.While) -> None:
        self._exits(node)

    def _needs_constant(self, loop: cst.For, index: str) -> bool:
        """Whether the index shapes a tile, or fills a `tl.constexpr` of a helper."""
        def reads(node: cst.CSTNode) -> bool:
            return any(n.value == index for n in find(node, cst.Name))

        for call in find(loop.body, cst.Call):
            if self.source.qualified(call.func) in SHAPED:
                if call.args and reads(call.args[0].value):
                    return True
                continue
            helper = self.source.resolve(call.func.value) if isinstance(call.func, cst.Name) else None
            if helper and is_jit(*helper):
                params = Kernel(*helper).params
                if any(params[name].constexpr and reads(arg.value) for arg, name in match_args(call, list(params))):
                    return True
        return False

    def _exits(self, loop: cst.For | cst.While) -> None:
        leaves = [n for n in find(loop.body, cst.Break, cst.Continue, cst.Return)]
        if not leaves or kernel_of(self.source, loop) is None:
            return
        returns = [n for n in leaves if isinstance(n, cst.Return)]
        own = [n for n in leaves if n not in returns and self._loop_of(n) is loop]
        for leave in returns:
            if self._loop_of(leave) is loop:
                self.report(leave, "`return` inside a loop is a front-end error: make it a condition")
        if not own or returns:
            return
        new = without_exit(self.source, loop)
        if new is None or any(self._loop_of(n) is not loop for n in leaves):
            for leave in own:
                self.report(leave, f"`{code(leave)}` is a front-end error: make it a condition on what follows")
        elif isinstance(own[0], cst.Break):
            flag = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name("stop"))], cst.Name("False"))],
                                           leading_lines=new.leading_lines)
            self.replace(loop, cst.FlattenSentinel([flag, new.with_changes(leading_lines=[])]),
                         "`break` is a front-end error: the rounds that follow do nothing instead")
        else:
            self.replace(loop, new, "`continue` is a front-end error: what follows it goes under a condition")

    def _loop_of(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return next((a for a in self.source.tree.ancestors(node) if isinstance(a, (cst.For, cst.While))), None)


def _all_of(tests: list[cst.BaseExpression]) -> cst.BaseExpression:
    """`a and b and c`, two at a time. A test that runs over several lines keeps brackets of its own."""
    if len(tests) == 1 and len(tests[0].lpar) == 1 and "\n" not in code(tests[0]):
        return tests[0].with_changes(lpar=[], rpar=[])
    for i, test in enumerate(tests):
        if not test.lpar and ("\n" in code(test) or (len(tests) > 1 and isinstance(test, (
                cst.BooleanOperation, cst.IfExp)))):
            tests[i] = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    whole = tests[0]
    for n, test in enumerate(tests[1:]):
        left = whole.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]) if n else whole
        whole = cst.BooleanOperation(left, cst.And(), test)
    return whole
