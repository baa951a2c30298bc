"""ASC303 same-dtype-dot."""
from __future__ import annotations

import libcst as cst

from migrate.analysis.tiles import HALF, TENSOR, UNKNOWN, Tiles, Value, calls, kernel_at, tiles
from migrate.edit import cast
from migrate.rule import SAME, Example, Ref, Rule, Safety

WIDE = "float32"
PARAMETERS = ("input", "other", "acc", "input_precision", "allow_tf32", "max_num_imprecise_acc", "out_dtype")


class SameDtypeDot(Rule):
    """Give both operands of a product one dtype, and let it accumulate in float32.

    ## Why
    `tl.dot` refuses operands of two dtypes (`Both operands must be same dtype`), and the cube unit accumulates in
    float32: `out_dtype=tl.bfloat16` does not compile, and a half-precision accumulator loses what the hardware
    computed. The narrower operand is widened, because narrowing the other one would round it; where the result was
    asked for in half precision, it is cast after the product.

    ## What it leaves alone
    * operands that are elements of two parameters: wrappers pass those in one dtype, and say so by not casting.
    * an operand whose dtype the file does not show. That a float32 tile meets such an operand is usual in kernels that
      are called with float32 alone, and a cast would change nothing there.
    * an integer operand against a float one. Reported: which of the two is meant to change cannot be told.
    """

    id = "ASC303"
    name = "same-dtype-dot"
    summary = "the operands of a product get one dtype, and it accumulates in float32"
    safety = Safety.REVIEW
    triggers = ("dot(",)
    references = (
        Ref("https://github.com/triton-lang/triton/blob/v3.2.0/python/triton/language/semantic.py",
            "Both operands must be same dtype; out_dtype=bfloat16 is unsupported; acc.type must be the result's",
            "source"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "mixed operands and a bfloat16 out_dtype or accumulator do not compile for Ascend910B2", "compiled"),
        Ref("https://github.com/triton-lang/triton-ascend/blob/54bebaaf3d26f3369aa2e9f5bc88e95a43c1f693/docs/zh/"
            "triton_api/Linear_Algebra_Ops/dot.md",
            "acc and out_dtype are float32 or int32; float16 is not supported, the hardware accumulates in float32",
            "doc"),
    )
    examples = (
        Example("a float32 tile meets a bfloat16 one",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(p, v, out, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    weights = tl.exp(tl.load(p + at).to(tl.float32))
                    values = tl.load(v + at).to(tl.bfloat16)
                    mixed = tl.dot(weights, values)
                    mixed += tl.dot(values * 2.0, weights - 1.0)
                    tl.store(out + at, mixed)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(p, v, out, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    weights = tl.exp(tl.load(p + at).to(tl.float32))
                    values = tl.load(v + at).to(tl.bfloat16)
                    mixed = tl.dot(weights, values.to(tl.float32))
                    mixed += tl.dot((values * 2.0).to(tl.float32), weights - 1.0)
                    tl.store(out + at, mixed)
                """),
        Example("accumulators in half precision",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(a, b, c, steps, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    x = tl.load(a + at).to(tl.float16)
                    y = tl.dot(x, x, out_dtype=tl.bfloat16)
                    acc = tl.zeros([N, N], tl.float16)
                    for _ in range(steps):
                        acc = tl.dot(x, x, acc, out_dtype=tl.float16)
                    tl.store(c + at, acc + y)
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(a, b, c, steps, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    x = tl.load(a + at).to(tl.float16)
                    y = tl.dot(x, x, out_dtype=tl.float32).to(tl.bfloat16)
                    acc = tl.zeros([N, N], tl.float16)
                    for _ in range(steps):
                        acc = tl.dot(x, x, acc.to(tl.float32), out_dtype=tl.float32).to(tl.float16)
                    tl.store(c + at, acc + y)
                """),
        Example("leaves one dtype, and dtypes that callers decide",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(q, k, v, out, N: tl.constexpr):
                    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
                    score = tl.dot(tl.load(q + at), tl.trans(tl.load(k + at)))
                    values = tl.load(v + at)
                    acc = tl.zeros([N, N], dtype=tl.float32)
                    acc += tl.dot(score.to(values.dtype), values)
                    acc = tl.dot(score, acc, acc=acc, out_dtype=tl.float32)
                    tl.store(out + at, acc)
                """,
            after=SAME),
        Example("reports an integer mask as an operand",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, out, N: tl.constexpr):
                    row, col = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
                    x_tile = tl.load(x + row * N + col).to(tl.float32)
                    tl.store(out + row * N + col, tl.dot((row >= col).to(tl.int32), x_tile))
                """,
            after=SAME,
            reports=1),
    )

    def visit_Call(self, node: cst.Call) -> None:
        if not calls(self.source, node, "dot") or any(a.star for a in node.args):
            return
        kernel = kernel_at(self.source, node)
        if kernel is None:
            return
        found = tiles(kernel)
        args = {a.keyword.value if a.keyword else PARAMETERS[i]: a for i, a in enumerate(node.args) if i < 7}
        if "input" in args and "other" in args:
            self._operands(node, args, found)
        self._accumulator(node, args, found)

    def _operands(self, node: cst.Call, args: dict[str, cst.Arg], found: Tiles) -> None:
        a, b = args["input"].value, args["other"].value
        x, y = found.of(a).dtype, found.of(b).dtype
        for narrow, one, other in ((a, x, y), (b, y, x)):
            if one in HALF and other in HALF | {WIDE} and one != other:
                self._cast(narrow, found.of(narrow), f"{one} meets {other} in a product: widened to float32")
            elif one.startswith(("int", "uint")) and (other in HALF or other == WIDE):
                self.report(node, f"a product of {one} and {other}: cast one of them to the dtype that is meant")

    def _accumulator(self, node: cst.Call, args: dict[str, cst.Arg], found: Tiles) -> None:
        asked = found.of(args["out_dtype"].value).dtype if "out_dtype" in args else ""
        acc = found.of(args["acc"].value) if "acc" in args else UNKNOWN
        half = asked if asked in HALF else acc.dtype if acc.dtype in HALF else ""
        if not half:
            return
        tl = self.source.language
        edits: dict[cst.CSTNode, object] = {}
        if asked in HALF:
            edits[args["out_dtype"].value] = cst.parse_expression(f"{tl}.{WIDE}")
        if acc.dtype in HALF:
            edits[args["acc"].value] = cast(args["acc"].value, f"{tl}.{WIDE}", language=tl, tensor=True)
        edits[node] = cast(node, f"{tl}.{half}", language=tl, tensor=True)
        self.together(edits, f"the product accumulates in float32 and is cast to {half} after it", at=node)

    def _cast(self, node: cst.BaseExpression, value: Value, message: str) -> None:
        tl = self.source.language
        self.replace(node, cast(node, f"{tl}.{WIDE}", language=tl, tensor=value.kind == TENSOR), message)
