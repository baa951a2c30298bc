"""ASC502 typed-none."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from migrate.analysis.control import Constness, bindings, kernel_of, operands
from migrate.analysis.kernels import HEURISTICS, Kernel
from migrate.analysis.launches import Launch
from migrate.analysis.pointers import Pointers
from migrate.edit import code, expression
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import find

NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class TypedNone(Rule):
    """Keep a pointer that may be `None` out of branches that only a run-time test guards.

    ## Why
    A tensor that is not given arrives in the kernel as `None`. Where a constant decides, the branch that reads it is
    not compiled. triton-ascend 3.2.0 does not fold a condition that mixes a constant with a run-time value, so
    `if not HAS_STATE or i > 0: ... else: <reads state>` compiles both branches and stops with
    `'NoneType' object has no attribute 'type'`.

    The branch already implies what the constants say, so an `if` on the constants alone goes around its body: nothing
    is copied. Where the body gives values to names that are read later and have no value before, that does not work;
    then the launch passes another tensor in place of `None`, which is never read, and a new `HAS_X: tl.constexpr` says
    whether there is one; tests of the pointer in the kernel and in `triton.heuristics` ask for that instead.

    ## What it leaves alone
    * `if X is not None:` and `if CONSTEXPR:`, which the compiler folds, with whatever is inside;
    * `if CONSTEXPR and run_time:` without an else: ASC501 nests it;
    * a kernel whose launches are not in the file or cannot be matched. Reported instead.
    """

    id = "ASC502"
    name = "typed-none"
    summary = "a pointer that may be `None` must not be reached under a run-time condition"
    safety = Safety.REVIEW
    triggers = (" and ", " or ")
    references = (
        Ref("https://github.com/fla-org/flash-linear-attention/blob/main/fla/modules/causal_conv1d/backends/"
            "triton_ascend.py", "a guard on the constant alone, inside the else of a mixed condition", "source"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "`if F and i == n:` around a load of None: 'NoneType' object has no attribute 'type'; with `if F:` around "
            "the load it compiles", "compiled"),
    )
    examples = (
        Example("the else of a mixed `or`",
            before="""
                import triton
                import triton.language as tl

                @triton.heuristics({"HAS_STATE": lambda args: args["state"] is not None})
                @triton.jit
                def shift(x, state, y, HAS_STATE: tl.constexpr, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + i * BLOCK + at)
                    if not HAS_STATE or i > 0:
                        tile += 1.0
                    else:
                        # only the first block has a past
                        tile += tl.load(state + at)
                    tl.store(y + i * BLOCK + at, tile)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.heuristics({"HAS_STATE": lambda args: args["state"] is not None})
                @triton.jit
                def shift(x, state, y, HAS_STATE: tl.constexpr, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + i * BLOCK + at)
                    if not HAS_STATE or i > 0:
                        tile += 1.0
                    else:
                        if HAS_STATE:
                            # only the first block has a past
                            tile += tl.load(state + at)
                    tl.store(y + i * BLOCK + at, tile)
                """),
        Example("a mixed `and` with an else",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def gate(x, z, y, n, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + i * BLOCK + at)
                    if z is not None and i < n:
                        tile *= tl.load(z + at)
                    else:
                        tile *= 0.5
                    tl.store(y + i * BLOCK + at, tile)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def gate(x, z, y, n, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + i * BLOCK + at)
                    if z is not None and i < n:
                        if z is not None:
                            tile *= tl.load(z + at)
                    else:
                        tile *= 0.5
                    tl.store(y + i * BLOCK + at, tile)
                """),
        Example("a value that both branches give: the launch passes another tensor",
            before="""
                import triton
                import triton.language as tl

                @triton.heuristics({
                    "USE_Z": lambda args: args["z"] is not None,
                })
                @triton.jit
                def pick(
                    x, z, y, n,
                    USE_Z: tl.constexpr,
                    BLOCK: tl.constexpr,
                ):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    if USE_Z and i < n:
                        tile = tl.load(z + at)
                    else:
                        tile = tl.load(x + i * BLOCK + at)
                    tl.store(y + i * BLOCK + at, tile)

                def host(x, y, z=None):
                    pick[(4,)](x, z, y, 2, BLOCK=64)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.heuristics({
                    "USE_Z": lambda args: args["HAS_z"],
                })
                @triton.jit
                def pick(
                    x, z, y, n,
                    USE_Z: tl.constexpr,
                    BLOCK: tl.constexpr,
                    HAS_z: tl.constexpr,
                ):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    if USE_Z and i < n:
                        tile = tl.load(z + at)
                    else:
                        tile = tl.load(x + i * BLOCK + at)
                    tl.store(y + i * BLOCK + at, tile)

                def host(x, y, z=None):
                    pick[(4,)](x, z if z is not None else x, y, 2, BLOCK=64, HAS_z=z is not None)
                """),
        Example("reports a kernel that nothing here launches",
            before="""
                import triton
                import triton.language as tl

                @triton.heuristics({"USE_Z": lambda args: args["z"] is not None})
                @triton.jit
                def pick(x, z, y, n, USE_Z: tl.constexpr, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    if USE_Z and i < n:
                        tile = tl.load(z + at)
                    else:
                        tile = tl.load(x + i * BLOCK + at)
                    tl.store(y + i * BLOCK + at, tile)
                """,
            after=SAME,
            reports=1),
        Example("leaves tests of constants alone, and pointers that are always given",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def plain(x, z, y, n, MODE: tl.constexpr, BLOCK: tl.constexpr):
                    i = tl.program_id(0)
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(x + at)
                    if z is not None and MODE == 1:
                        tile += tl.load(z + at)
                    else:
                        tile *= 2.0
                    if MODE == 2 or i > n:
                        tile *= 0.5
                    else:
                        tile += tl.load(x + at + 1)
                    tl.store(y + at, tile)
                """,
            after=SAME),
    )

    def visit_If(self, node: cst.If) -> None:
        kernel = kernel_of(self.source, node) if isinstance(node.test, cst.BooleanOperation) else None
        if kernel is None or node.orelse is None:
            return
        constness = Constness(kernel)
        operator = type(node.test.operator) if isinstance(node.test, cst.BooleanOperation) else cst.And
        tests = operands(node.test, operator)
        constants = [t for t in tests if constness.folds(t)]
        if not constants or len(constants) == len(tests):
            return
        if operator is cst.And:
            branch: cst.CSTNode = node.body
        else:
            branch = node.orelse.body if isinstance(node.orelse, cst.Else) else node.orelse
            constants = [_negated(t) for t in constants]
        reached = sorted(p for p in self._optional(kernel) if self._reaches(branch, p, constness))
        if not reached:
            return
        if isinstance(branch, cst.IndentedBlock) and not self._gives_values(kernel, node, branch):
            guard = cst.If(_all_of(constants), branch.with_changes(header=cst.TrailingWhitespace()))
            self.replace(branch, branch.with_changes(body=[guard], footer=[]),
                         f"`{reached[0]}` may be None, and a mixed condition compiles both branches: "
                         "the constants get an `if` of their own", at=node)
            return
        for param in reached:
            self._placeholder(kernel, node, param)

    # Which pointers, and where

    def _optional(self, kernel: Kernel) -> set[str]:
        """Parameters that are tested against None, or that some launch in this file may leave out."""
        names = set()
        for test in find(kernel.node, cst.Comparison):
            if any(isinstance(c.operator, (cst.Is, cst.IsNot)) for c in test.comparisons):
                names |= {n.value for n in find(test.left, cst.Name)} | {
                    s.evaluated_value for s in find(test.left, cst.SimpleString) if isinstance(s.evaluated_value, str)}
        for launch in self._launches(kernel):
            names |= {p for p, bound in launch.args.items() if _may_be_none(launch, bound.value)}
        return {p for p in names & kernel.params.keys() if not kernel.params[p].constexpr}

    def _launches(self, kernel: Kernel) -> list[Launch]:
        return [launch for launch in self.source.launches if launch.kernel.node is kernel.node]

    def _reaches(self, branch: cst.CSTNode, param: str, constness: Constness) -> bool:
        """Whether the branch uses the pointer with no `if` on constants in between."""
        for use in find(branch, cst.Name):
            if use.value != param or isinstance(self.source.tree.parent(use), cst.Comparison):
                continue
            for up in self.source.tree.ancestors(use):
                if up is branch:
                    return True
                if isinstance(up, (cst.If, cst.IfExp)) and constness.folds(up.test):
                    break
            else:
                return True
        return False

    def _gives_values(self, kernel: Kernel, node: cst.If, branch: cst.IndentedBlock) -> bool:
        """Whether names get their first value in the branch and are read outside it."""
        inside = set(find(branch, cst.Name))
        first = self.source.tree.span(node)[0]
        before = {name for name, where, _ in bindings(kernel.node.body) if self.source.tree.span(where)[0] < first}
        names = {name for name, _, _ in bindings(branch)} - before - kernel.params.keys()
        own = set(find(node, cst.Name))
        return any(n.value in names and n not in inside and n not in own for n in find(kernel.node.body, cst.Name))

    # A tensor in place of None

    def _placeholder(self, kernel: Kernel, node: cst.If, param: str) -> None:
        launches = self._launches(kernel)
        tensor = self._stand_in(kernel, launches)
        flag = f"HAS_{param}"
        if not launches or tensor is None or not all(
                launch.matched and param in launch.args and launch.args[param].index is None for launch in launches
        ) or any(n.value == flag for n in find(kernel.node, cst.Name)):
            self.report(node, f"`{param}` may be None here, and its launches cannot be changed with it: pass a tensor "
                              "and a `tl.constexpr` that says whether to read it")
            return
        edits: dict[cst.CSTNode, object] = dict(self._tests(kernel, param, flag))
        params = kernel.node.params
        tl = self.source.language
        default = " = True" if any(p.default for p in params.params) else ""
        edits[params] = params.with_changes(params=_with_param(params.params, f"{flag}: {tl}.constexpr{default}"))
        for launch in launches:
            value = launch.args[param].value
            given = code(value)
            edits[launch.call] = launch.call.with_changes(
                args=_with_arg(launch.call.args, flag, f"{given} is not None"))
            edits[value] = expression(f"{given} if {given} is not None else {code(launch.args[tensor].value)}")
        self.together(edits, f"`{param}` may be None here: the launch passes `{tensor}` in its place, and `{flag}` "
                             "says so", at=node)

    def _stand_in(self, kernel: Kernel, launches: list[Launch]) -> str | None:
        """A pointer that every launch gives."""
        pointers = Pointers(kernel)
        optional = self._optional(kernel)
        return next((p for p in kernel.params if p in pointers.loaded and p not in optional and all(
            p in launch.args and isinstance(launch.args[p].value, cst.Name) for launch in launches)), None)

    def _tests(self, kernel: Kernel, param: str, flag: str) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
        """`param is not None` in the kernel, and `args["param"] is not None` in its heuristics."""
        for test in find(kernel.node.body, cst.Comparison):
            if code(test.left) == param and isinstance(test.comparisons[0].operator, (cst.Is, cst.IsNot)):
                yield test, _flag(test, flag)
        for decorator in kernel.decorator(HEURISTICS):
            for test in find(decorator, cst.Comparison):
                if re.fullmatch(rf"\w+\[['\"]{param}['\"]\]", code(test.left)):
                    args = code(test.left).partition("[")[0]
                    yield test, _flag(test, f'{args}["{flag}"]')


def _flag(test: cst.Comparison, flag: str) -> cst.BaseExpression:
    given = isinstance(test.comparisons[0].operator, cst.IsNot)
    return expression(flag if given else f"not {flag}").with_changes(lpar=test.lpar, rpar=test.rpar)


def _may_be_none(launch: Launch, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Name) and value.value == "None":
        return True
    if isinstance(value, cst.IfExp):
        if code(value.test) == f"{code(value.body)} is not None":
            return _may_be_none(launch, value.orelse)
        return _may_be_none(launch, value.body) or _may_be_none(launch, value.orelse)
    if not isinstance(value, cst.Name) or launch.function is None:
        return False
    for param in (*launch.function.params.params, *launch.function.params.kwonly_params):
        if param.name.value == value.value and param.default is not None and code(param.default) == "None":
            return True
    assigned = [v for name, _, v in bindings(launch.function.body) if name == value.value and v is not None]
    return any(code(v) == "None" or (isinstance(v, cst.IfExp) and "None" in (code(v.body), code(v.orelse)))
               for v in assigned)


def _negated(test: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        operator = test.comparisons[0].operator
        right = code(test.comparisons[0].comparator)
        if isinstance(operator, (cst.Is, cst.IsNot)):
            return expression(f"{code(test.left)} {'is' if isinstance(operator, cst.IsNot) else 'is not'} {right}")
        sign = code(operator).strip()
        if sign in NEGATED:
            return expression(f"{code(test.left)} {NEGATED[sign]} {right}")
    atom = isinstance(test, (cst.Name, cst.Attribute, cst.Call)) or bool(test.lpar)
    return expression(f"not {code(test)}" if atom else f"not ({code(test)})")


def _all_of(tests: list[cst.BaseExpression]) -> cst.BaseExpression:
    text = code(tests[0])
    for n, test in enumerate(tests[1:]):
        text = f"({text}) and {code(test)}" if n else f"{text} and {code(test)}"
    return expression(text)


def _with_param(params: Sequence[cst.Param], text: str) -> list[cst.Param]:
    new = cst.ensure_type(cst.parse_statement(f"def f({text}): pass"), cst.FunctionDef).params.params[0]
    last = params[-1]
    return [*params[:-1], last.with_changes(comma=_comma(params)),
            new.with_changes(comma=last.comma, whitespace_after_param=last.whitespace_after_param)]


def _with_arg(args: Sequence[cst.Arg], name: str, value: str) -> list[cst.Arg]:
    last, tight = args[-1], cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return [*args[:-1], last.with_changes(comma=_comma(args)), cst.Arg(
        expression(value), keyword=cst.Name(name), equal=next((a.equal for a in args if a.keyword), tight),
        comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)]


def _comma(items: Sequence[cst.Param] | Sequence[cst.Arg]) -> cst.Comma:
    """As between the items before the last; a plain one where there is only one."""
    comma = items[-2].comma if len(items) > 1 else None
    return comma if isinstance(comma, cst.Comma) else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
