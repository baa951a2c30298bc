"""ASC302 ieee-dot."""
from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.analysis.kernels import AUTOTUNE, Kernel
from migrate.analysis.tiles import calls, kernel_at
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.source import Source
from migrate.tree import find

KEPT = frozenset({"ieee", "hf32"})      # what triton-ascend accepts
PRECISION, ALLOW = "input_precision", "allow_tf32"


class IeeeDot(Rule):
    """Make every product ask for `input_precision="ieee"`.

    ## Why
    TF32 is a format of NVIDIA's tensor cores. triton-ascend 3.2.0 stops at `input_precision="tf32"`, `"tf32x3"` and
    `allow_tf32=True` with an AssertionError; `"ieee"` is its default and the closest thing to what the author meant.
    Results change in the last bits, towards the exact ones.

    ## What it leaves alone
    * `allow_tf32=False`, `None`, `"ieee"`, and `"hf32"`, which is Ascend's own and therefore somebody's choice.
    * constants and autotune configurations that can be seen to hold one of these.
    * where a module-level constant names the precision, the constant changes and its uses stay, unless something else
      reads it too. A parameter of the kernel stays, with nothing left that reads it: callers may go on passing it.
    * a product that takes its options from `**kwargs`. Reported.
    """

    id = "ASC302"
    name = "ieee-dot"
    summary = "`tf32` and `tf32x3` products become `ieee` ones"
    safety = Safety.REVIEW
    triggers = (PRECISION, ALLOW, "dot(")
    references = (
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "triton_patch/language/core.py: tf32 and tf32x3 are invalid, allow_tf32 is deprecated", "source"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "allow_tf32=True, \"tf32\" and \"tf32x3\" end in an AssertionError; False, \"ieee\" and \"hf32\" compile",
            "compiled"),
        Ref("https://github.com/fla-org/flash-linear-attention/pull/1011",
            "the Ascend path of FLA: solve_tril with ieee", "issue"),
    )
    examples = (
        Example("literals",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(a, b, c, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    x, y = tl.load(a + at), tl.load(b + at)
                    z = tl.dot(x, y, allow_tf32=True)
                    z += tl.dot(y, x, input_precision='tf32x3')  # small terms matter
                    z = tl.dot(x, x, z, "tf32")
                    tl.store(c + at, z)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(a, b, c, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    x, y = tl.load(a + at), tl.load(b + at)
                    z = tl.dot(x, y, input_precision="ieee")
                    z += tl.dot(y, x, input_precision='ieee')  # small terms matter
                    z = tl.dot(x, x, z, "ieee")
                    tl.store(c + at, z)
                """),
        Example("a constant that depends on the machine changes once",
            before="""
                import triton
                import triton.language as tl

                if HAS_TENSOR_CORES:
                    PRECISION = tl.constexpr('tf32')
                else:
                    PRECISION = tl.constexpr('ieee')
                SLOW = tl.constexpr("tf32x3" if HAS_TENSOR_CORES else "ieee")


                @triton.jit
                def square(x):
                    return tl.dot(x, x, input_precision=PRECISION) + tl.dot(x, x, input_precision=SLOW)
                """,
            after="""
                import triton
                import triton.language as tl

                if HAS_TENSOR_CORES:
                    PRECISION = tl.constexpr('ieee')
                else:
                    PRECISION = tl.constexpr('ieee')
                SLOW = tl.constexpr("ieee")


                @triton.jit
                def square(x):
                    return tl.dot(x, x, input_precision=PRECISION) + tl.dot(x, x, input_precision=SLOW)
                """),
        Example("what a caller or a setting decides",
            before="""
                import os

                import triton
                import triton.language as tl

                MODE = tl.constexpr(os.environ.get("MODE", "tf32"))


                @triton.jit
                def square(x, FAST: tl.constexpr, HOW: tl.constexpr = "tf32"):
                    y = tl.dot(x, x, input_precision=HOW)
                    y = tl.dot(y, x, input_precision="tf32" if FAST else "ieee")
                    return tl.dot(x, y, allow_tf32=FAST) + tl.dot(y, x, input_precision=MODE)
                """,
            after="""
                import os

                import triton
                import triton.language as tl

                MODE = tl.constexpr(os.environ.get("MODE", "tf32"))


                @triton.jit
                def square(x, FAST: tl.constexpr, HOW: tl.constexpr = "tf32"):
                    y = tl.dot(x, x, input_precision="ieee")
                    y = tl.dot(y, x, input_precision="ieee")
                    return tl.dot(x, y, input_precision="ieee") + tl.dot(y, x, input_precision="ieee")
                """),
        Example("leaves what is right already",
            before="""
                import triton
                import triton.language as tl

                EXACT = tl.constexpr(False)


                @triton.autotune([triton.Config({"HOW": "ieee"}), triton.Config({"HOW": "ieee", "BLOCK": 64})], key=[])
                @triton.jit
                def kernel(x, y, HOW: tl.constexpr, BLOCK: tl.constexpr):
                    t = tl.load(x + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :])
                    t = tl.dot(t, t, allow_tf32=False) + tl.dot(t, t, input_precision="hf32") + tl.dot(t, t)
                    t = tl.dot(t, t, input_precision=HOW) + tl.dot(t, t, allow_tf32=EXACT)
                    tl.store(y, tl.sum(t))
                """,
            after=SAME),
        Example("reports options it cannot see",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def square(x, options):
                    return tl.dot(x, x, **options)
                """,
            after=SAME,
            reports=1),
    )

    def visit_Call(self, node: cst.Call) -> None:
        if not calls(self.source, node, "dot"):
            return
        if any(a.star for a in node.args):
            self.report(node, "options from a dictionary: on an NPU the precision of a product must be `ieee`")
            return
        kernel = kernel_at(self.source, node)
        for i, arg in enumerate(node.args):
            name = arg.keyword.value if arg.keyword else {3: PRECISION, 4: ALLOW}.get(i)
            if name not in (PRECISION, ALLOW) or self._fine(arg.value, kernel):
                continue
            definitions = self._definitions(arg.value, kernel)
            if definitions:
                self.together(definitions, "an NPU multiplies in full float32: `ieee`", at=next(iter(definitions)))
            elif name == PRECISION:
                self.replace(arg.value, _ieee(arg.value), "an NPU multiplies in full float32: `ieee`", at=node)
            elif arg.keyword:
                new = arg.with_changes(keyword=cst.Name(PRECISION), value=_ieee(arg.value))
                self.replace(arg, new, "an NPU multiplies in full float32: `ieee`", at=node)
            else:
                self.replace(arg.value, cst.Name("False"), "an NPU multiplies in full float32", at=node)

    def _fine(self, value: cst.BaseExpression, kernel: Kernel | None) -> bool:
        """Whether the value can be seen to be one that triton-ascend accepts."""
        if isinstance(value, cst.Name) and value.value not in ("True", "False", "None"):
            if kernel is not None and value.value in kernel.params:
                seen = _configured(kernel, value.value)
            else:
                seen = self._assigned(value.value, kernel)
                if not seen:
                    seen = self._imported(value.value)
            return bool(seen) and all(_accepted(leaf) for v in seen for leaf in _leaves(v))
        return all(_accepted(leaf) for leaf in _leaves(value))

    def _assigned(self, name: str, kernel: Kernel | None) -> list[cst.BaseExpression]:
        """Everything that a local name of the kernel, or else a name of the module, is assigned."""
        local = list(_assignments(kernel.node.body, name)) if kernel is not None else []
        if local:
            return local
        return [value for unit in self.source.tree.units if not isinstance(unit.statement, cst.FunctionDef)
                for value in _assignments(unit.statement, name)]

    def _imported(self, name: str) -> list[cst.BaseExpression]:
        module, _, attribute = self.source.imports.get(name, "").rpartition(".")
        other: Source | None = self.source.project.module(module) if self.source.project and module else None
        return [other.constants[attribute]] if other and attribute in other.constants else []

    def _definitions(self, value: cst.BaseExpression, kernel: Kernel | None) -> dict[cst.CSTNode, object]:
        """Edits that turn each literal a constant is made from into `ieee`; none where that is not the whole story."""
        if not isinstance(value, cst.Name) or (kernel is not None and value.value in kernel.params):
            return {}
        values = self._assigned(value.value, kernel)
        leaves = [leaf for v in values for leaf in _leaves(v)]
        if not leaves or not all(isinstance(leaf, cst.SimpleString) for leaf in leaves):
            return {}
        if not all(self._only_precision(n) for n in self.source.tree.all(cst.Name) if n.value == value.value):
            return {}
        edits: dict[cst.CSTNode, object] = {}
        for v in values:
            at = _inside_constexpr(v)
            if not all(_accepted(leaf) for leaf in _leaves(at)):
                edits[at] = _ieee(next(_leaves(at)))
        return edits

    def _only_precision(self, name: cst.Name) -> bool:
        up = self.source.tree.parent(name)
        return isinstance(up, (cst.AssignTarget, cst.AnnAssign)) or (
            isinstance(up, cst.Arg) and (up.keyword is name or (up.keyword is not None
                                                                and up.keyword.value == PRECISION)))


def _assignments(body: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
    for node in find(body, cst.Assign, cst.AnnAssign):
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        if node.value is not None and any(isinstance(t, cst.Name) and t.value == name for t in targets):
            yield node.value


def _configured(kernel: Kernel, name: str) -> list[cst.BaseExpression]:
    """What the configurations of an autotuned kernel give a parameter."""
    return [element.value for decorator in kernel.decorator(AUTOTUNE) for element in find(decorator, cst.DictElement)
            if isinstance(element.key, cst.SimpleString) and element.key.evaluated_value == name]


def _inside_constexpr(value: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(value, cst.Call) and len(value.args) == 1 and isinstance(value.func, (cst.Attribute, cst.Name)):
        name = value.func.attr.value if isinstance(value.func, cst.Attribute) else value.func.value
        if name == "constexpr":
            return value.args[0].value
    return value


def _leaves(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What a value may be, through tl.constexpr(...) and conditional expressions."""
    value = _inside_constexpr(value)
    if isinstance(value, cst.IfExp):
        yield from _leaves(value.body)
        yield from _leaves(value.orelse)
    else:
        yield value


def _accepted(leaf: cst.BaseExpression) -> bool:
    if isinstance(leaf, cst.SimpleString):
        return leaf.evaluated_value in KEPT
    return isinstance(leaf, cst.Name) and leaf.value in ("False", "None")


def _ieee(old: cst.BaseExpression) -> cst.SimpleString:
    quote = old.quote if isinstance(old, cst.SimpleString) else '"'
    return cst.SimpleString(f"{quote}ieee{quote}")
