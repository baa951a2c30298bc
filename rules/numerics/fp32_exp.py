"""ASC301 fp32-exp."""
from __future__ import annotations

import libcst as cst

from migrate.analysis.tiles import HALF, INTS, NUMBER, TENSOR, Value, called, dotted, kernel_at, tiles
from migrate.edit import cast
from migrate.rule import SAME, Example, Ref, Rule, Safety
from rules.numerics.portable_math import LIBRARIES, PLAIN

FLOAT32_ONLY = frozenset({"exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "sqrt_rn", "rsqrt", "erf", "floor",
                          "ceil", "sigmoid", "softmax", "div_rn"})
SCANS = frozenset({"cumsum", "cumprod"})
NAMES = FLOAT32_ONLY | SCANS


class Fp32Exp(Rule):
    """Cast the argument of `tl.exp`, `tl.log2`, `tl.sigmoid`, `tl.rsqrt`... to float32 unless it is float32 already.

    ## Why
    On a GPU Triton refuses half precision here (`Expected dtype ['fp32', 'fp64'] but got bf16`). triton-ascend lifts
    the check, so that a kernel which is handed bfloat16 decays compiles, and returns exponentials with three digits.
    Where the argument is float32 at run time the cast is nothing: no value changes on inputs that a GPU accepts.
    Running sums (`tl.cumsum`) take half precision on a GPU too, and lose digits in it: they are cast where the argument
    provably is float16 or bfloat16.

    ## What it leaves alone
    * arguments that are float32 in every case: after `.to(tl.float32)`, products, float32 sums, quotients.
    * literals and `tl.constexpr` values, which Triton makes float32.
    * calls of helper functions (FLA's `exp2`): the cast belongs inside the helper, and often is there.
    * running sums of integers, and of elements whose type the file does not show: a float32 result would change what
      they index.
    * float64, which an NPU lacks: another rule's finding.
    """

    id = "ASC301"
    name = "fp32-exp"
    summary = "`exp`, `log`, `sigmoid`, `rsqrt`... get a float32 argument"
    safety = Safety.SAFE
    triggers = ("triton",)
    references = (
        Ref("https://github.com/triton-lang/triton/blob/v3.2.0/python/triton/language/math.py",
            "_check_dtype(dtypes=[\"fp32\", \"fp64\"]) stands above exp, exp2, log, log2, sin, cos, sqrt, rsqrt, erf",
            "source"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "triton/triton_patch/language/math.py replaces them by versions that take and return bf16 and fp16",
            "source"),
    )
    examples = (
        Example("loaded decays, and a helper that may be handed anything",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def decay(x):
                    return tl.exp2(x)


                @triton.jit
                def kernel(a, out, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    log_a = tl.load(a + at)
                    rest = tl.exp(log_a - tl.sum(log_a))
                    tl.store(out + at, rest + decay(log_a))
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def decay(x):
                    return tl.exp2(tl.cast(x, tl.float32))


                @triton.jit
                def kernel(a, out, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    log_a = tl.load(a + at)
                    rest = tl.exp((log_a - tl.sum(log_a)).to(tl.float32))
                    tl.store(out + at, rest + decay(log_a))
                """,
            run="exact", inputs={"a": "float32[64]", "out": "float32[64]", "BLOCK": 64}),
        Example("method calls and an alias of the language module",
            before="""
                import triton
                from triton import language as L


                @triton.jit
                def kernel(x, out, BLOCK: L.constexpr):
                    at = L.arange(0, BLOCK)
                    L.store(out + at, L.load(x + at).sigmoid() + L.math.sin(L.load(x + at)))
                """,
            after="""
                import triton
                from triton import language as L


                @triton.jit
                def kernel(x, out, BLOCK: L.constexpr):
                    at = L.arange(0, BLOCK)
                    L.store(out + at, L.load(x + at).to(L.float32).sigmoid() + L.math.sin(L.load(x + at).to(L.float32)))
                """,
            run="exact", inputs={"x": "float32[64]", "out": "float32[64]", "BLOCK": 64}),
        Example("a running sum in half precision",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    steps = tl.load(x + at).to(tl.float16)
                    tl.store(out + at, tl.cumsum(steps, axis=0))
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    steps = tl.load(x + at).to(tl.float16)
                    tl.store(out + at, tl.cumsum(steps.to(tl.float32), axis=0))
                """),
        Example("leaves what is float32 already",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(q, k, g, out, scale: tl.constexpr, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tile = at[:, None] * BLOCK + at[None, :]
                    gate = tl.load(g + at).to(tl.float32)
                    score = tl.dot(tl.load(q + tile), tl.load(k + tile)) * scale
                    peak = tl.max(score, 1)
                    score = tl.exp(score - peak[:, None]) * tl.exp2(tl.minimum(gate[:, None] - gate[None, :], 0.0))
                    score /= tl.sqrt(tl.sum(score * score, 1) / BLOCK + 1e-6)[:, None]
                    rank = tl.cumsum((gate > 0).to(tl.int32), 0)
                    tl.store(out + tile, score * tl.log2(scale * 2.0) + rank)
                """,
            after=SAME),
        Example("leaves what the author asked to keep",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out):
                    tl.store(out, tl.exp(tl.load(x)))  # migrate: ignore[fp32-exp] x is float32 by contract
                """,
            after=SAME),
    )

    def visit_Call(self, node: cst.Call) -> None:
        name, args = self._arguments(node)
        kernel = kernel_at(self.source, node) if args else None
        if kernel is None:
            return
        found, tl = tiles(kernel), self.source.language
        for arg in args:
            value = found.of(arg)
            if needs_cast(value, scan=name in SCANS):
                new = cast(arg, f"{tl}.float32", language=tl, tensor=value.kind == TENSOR)
                self.replace(arg, new, f"`{name}` takes float32: the argument is {kind(value)}")

    def _arguments(self, call: cst.Call) -> tuple[str, list[cst.BaseExpression]]:
        """The function's name and the arguments that have to be float32; none for any other call."""
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value not in NAMES and func.attr.value not in PLAIN:
            return "", []
        full = called(self.source, func)
        library, _, name = full.rpartition(".")
        if library in LIBRARIES and PLAIN.get(name) in FLOAT32_ONLY and not any(a.star for a in call.args):
            return name, [a.value for a in call.args]
        if full in (f"triton.language.{name}", f"triton.language.math.{name}"):
            if name not in NAMES or any(a.star for a in call.args):
                return "", []
            return name, [a.value for a in call.args[:2 if name == "div_rn" else 1]]
        if isinstance(func, cst.Attribute) and func.attr.value in NAMES and (
                dotted(func).partition(".")[0] not in self.source.imports):
            return func.attr.value, [func.value]
        return "", []


def needs_cast(value: Value, *, scan: bool = False) -> bool:
    if scan:
        return value.dtype in HALF
    return value.kind != NUMBER and value.dtype not in ("float32", "float64")


def kind(value: Value) -> str:
    """A dtype in words."""
    if value.dtype.startswith("elem:"):
        return f"of the type of `{value.dtype.removeprefix('elem:')}`"
    return value.dtype if value.dtype in HALF | INTS.keys() else "of a type that the file does not show"
