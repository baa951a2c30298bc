"""ASC401 portable-math."""
from __future__ import annotations

import io
import re
import tokenize

import libcst as cst

from migrate.analysis import ptx
from migrate.analysis.tiles import TENSOR, calls, dotted, kernel_at, tiles
from migrate.edit import cast, code, comments
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.source import Source
from rules.wording import beside, docstring, swap

MATH = "triton.language.math."
LIBRARIES = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice", "triton.language.libdevice")
# triton.language.math of Triton 3.2, on every device; older releases had all of libdevice under that name
IN_MATH = frozenset({"umulhi", "exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "sqrt_rn", "rsqrt", "abs", "fdiv",
                     "div_rn", "erf", "floor", "ceil", "fma"})
PLAIN = {**{name: name for name in IN_MATH - {"umulhi", "fdiv"}},
         "fast_expf": "exp", "fast_logf": "log", "fast_log2f": "log2", "fast_sinf": "sin", "fast_cosf": "cos",
         "rsqrt_rn": "rsqrt", "fabs": "abs", "fmaf": "fma", "fma_rn": "fma", "fast_dividef": "fdiv"}
WRITTEN = {"tanh": "_tanh", "fast_tanhf": "_tanh", "log1p": "_log1p", "round": "_round", "roundf": "_round",
           "rint": "_rint", "nearbyint": "_rint", "trunc": "_trunc"}
DEFINITIONS = {
    "_tanh": """
        x = tl.cast(x, tl.float32)
        e = tl.exp(-2.0 * tl.abs(x))
        far = (1.0 - e) / (1.0 + e)
        near = x + x * x * x * (x * x * 0.13333333 - 0.33333333)    # where 1 - e would cancel
        return tl.where(tl.abs(x) < 0.1, near, tl.where(x < 0.0, -far, far))
        """,
    "_log1p": """
        x = tl.cast(x, tl.float32)
        u = 1.0 + x
        exact = tl.log(u) * (x / (u - 1.0))     # undoes the rounding of 1 + x
        return tl.where(u == 1.0, x, tl.where(u == x, tl.log(u), exact))
        """,
    "_round": """
        x = tl.cast(x, tl.float32)
        whole = tl.floor(tl.abs(x))
        whole += tl.where(tl.abs(x) - whole >= 0.5, 1.0, 0.0)       # halves away from zero
        return tl.where(x < 0.0, -whole, whole)
        """,
    "_rint": """
        x = tl.cast(x, tl.float32)
        whole = tl.floor(x)
        odd = whole - 2.0 * tl.floor(whole * 0.5)
        return whole + tl.where(x - whole > 0.5, 1.0, tl.where(x - whole == 0.5, odd, 0.0))     # halves to even
        """,
    "_trunc": """
        x = tl.cast(x, tl.float32)
        return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
        """,
}


PTX = re.compile(r"\b(?:PTX|inline (?:asm|assembly))\b", re.IGNORECASE)
BY_PTX = (swap(r"\b(?:using|via|through|with|by) (?:inline )?(?:PTX|assembly)(?: inline)?(?: (?:asm|assembly))?"
               r"(?: instructions?)?(?!\w)", "with triton.language"),)


class PortableMath(Rule):
    """Write PTX assembly and libdevice calls as functions of `triton.language`.

    ## Why
    PTX is the assembly of NVIDIA's GPUs. The front end of triton-ascend accepts the text and every pass hands it on,
    one call for each element, until the device assembler, which ships with CANN, fails: no check without a card sees
    it. `triton.language.extra.libdevice` imports under triton-ascend, but its functions return None
    (`cannot convert None of type NoneType to tensor`). Triton's own `triton.language` has no `tanh`, `log1p`, `round`,
    and what triton-ascend adds under these names moves between its releases and does not run in the interpreter: the
    file gets a small function, exact to a few float32 units also near zero, where `2 * sigmoid(2 * x) - 1` is not.
    Approximate instructions become accurate functions; `.ftz` no longer flushes subnormals.
    `griddepcontrol` overlaps a launch with the one before, and is nothing where launches follow one another: it goes.

    ## What it leaves alone
    * an instruction, a type, a rounding mode or a libdevice function that it does not know, predicates, assembly whose
      text is computed, several outputs or packed elements. Each is reported, and none compiles on an NPU.
    * comments elsewhere that mention assembly. Above the statement and its function "using PTX" becomes "with
      triton.language", also in the docstring; a comment there that names PTX otherwise keeps its text under the line
      "Upstream, on a GPU:".
    """

    id = "ASC401"
    name = "portable-math"
    summary = "PTX assembly and libdevice calls become functions of `triton.language`"
    safety = Safety.REVIEW
    triggers = ("inline_asm", "libdevice", ".math.")
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/blob/555799067a941bb34a52bad0dda3dd942ad174ca/docs/zh/"
            "triton_api/Inline_Assembly/inline_asm_elementwise.md",
            "the text has to be the target's assembly; s64 and f32 registers, constraint l, one dimension", "doc"),
        Ref("https://pypi.org/project/ascendnpu-ir/1.2.0/",
            "PTX text passes every open pass for Ascend910B2 as scalar calls of assembly; what replaces it here, the "
            "functions that are defined included, becomes vector code", "compiled"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "triton/language/extra/libdevice.py: every body is `...`, so every call is None", "source"),
        Ref("https://docs.nvidia.com/cuda/parallel-thread-execution/",
            "tanh.approx.f32 has a relative error of 2^-11; griddepcontrol without a dependent launch does nothing",
            "doc"),
    )
    examples = (
        Example("one instruction",
            before='''
                import triton
                import triton.language as tl


                @triton.jit
                def turn(x, y):
                    c = tl.inline_asm_elementwise("cos.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
                    t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
                    half = tl.inline_asm_elementwise(
                        asm="div.full.f32 $0, $1, $2;",
                        constraints="=f,f,f",
                        args=[y.to(tl.float32), x * 2.0],  # a turn is two halves
                        dtype=tl.float32,
                        is_pure=True,
                        pack=1,
                    )
                    return c * half * t
                ''',
            after='''
                import triton
                import triton.language as tl


                @triton.jit
                def _tanh(x):
                    x = tl.cast(x, tl.float32)
                    e = tl.exp(-2.0 * tl.abs(x))
                    far = (1.0 - e) / (1.0 + e)
                    near = x + x * x * x * (x * x * 0.13333333 - 0.33333333)    # where 1 - e would cancel
                    return tl.where(tl.abs(x) < 0.1, near, tl.where(x < 0.0, -far, far))


                @triton.jit
                def turn(x, y):
                    c = tl.cos(tl.cast(x, tl.float32))
                    t = _tanh(x)
                    # a turn is two halves
                    half = y.to(tl.float32) / tl.cast(x * 2.0, tl.float32)
                    return c * half * t
                '''),
        Example("comments and docstrings beside it",
            before='''
                import triton
                import triton.language as tl

                # PTX is a little less exact here
                # and much faster.


                @triton.jit
                def turn(x):
                    """Cosine by PTX inline assembly."""
                    # one value a register, using PTX
                    return tl.inline_asm_elementwise("cos.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
                ''',
            after='''
                import triton
                import triton.language as tl

                # Upstream, on a GPU:
                # PTX is a little less exact here
                # and much faster.


                @triton.jit
                def turn(x):
                    """Cosine with triton.language."""
                    # one value a register, with triton.language
                    return tl.cos(tl.cast(x, tl.float32))
                '''),
        Example("several instructions, and a function that triton.language lacks",
            before='''
                import triton
                import triton.language as tl


                @triton.jit
                def gate(p, out, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    x = tl.load(p + at).to(tl.float32)
                    y = tl.inline_asm_elementwise(
                        """
                        {
                            .reg .f32 t;
                            mul.f32 t, $1, 0f3F000000;  // x / 2
                            tanh.approx.f32 t, t;
                            fma.rn.f32 $0, t, 0.5, 0.5;
                        }
                        """,
                        "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
                    tl.store(out + at, y)
                ''',
            after='''
                import triton
                import triton.language as tl


                @triton.jit
                def _tanh(x):
                    x = tl.cast(x, tl.float32)
                    e = tl.exp(-2.0 * tl.abs(x))
                    far = (1.0 - e) / (1.0 + e)
                    near = x + x * x * x * (x * x * 0.13333333 - 0.33333333)    # where 1 - e would cancel
                    return tl.where(tl.abs(x) < 0.1, near, tl.where(x < 0.0, -far, far))


                @triton.jit
                def gate(p, out, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    x = tl.load(p + at).to(tl.float32)
                    y = tl.fma(_tanh(x * 0.5), 0.5, 0.5)
                    tl.store(out + at, y)
                '''),
        Example("libdevice, by module, by name, and as a value",
            before="""
                import triton
                import triton.language as tl
                import triton.language.extra.libdevice as device
                from triton.language.extra.libdevice import log1p

                exp = device.fast_expf


                @triton.jit
                def kernel(p, out, BLOCK: tl.constexpr):
                    x = tl.load(p + tl.arange(0, BLOCK)).to(tl.float32)
                    y = device.fast_cosf(x) + log1p(exp(x)) + tl.math.rsqrt(x * x + 1.0)
                    tl.store(out + tl.arange(0, BLOCK), y)
                """,
            after="""
                import triton
                import triton.language as tl

                exp = tl.exp


                @triton.jit
                def _log1p(x):
                    x = tl.cast(x, tl.float32)
                    u = 1.0 + x
                    exact = tl.log(u) * (x / (u - 1.0))     # undoes the rounding of 1 + x
                    return tl.where(u == 1.0, x, tl.where(u == x, tl.log(u), exact))


                @triton.jit
                def kernel(p, out, BLOCK: tl.constexpr):
                    x = tl.load(p + tl.arange(0, BLOCK)).to(tl.float32)
                    y = tl.cos(x) + _log1p(exp(x)) + tl.math.rsqrt(x * x + 1.0)
                    tl.store(out + tl.arange(0, BLOCK), y)
                """),
        Example("a launch that waits for the one before",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, OVERLAP: tl.constexpr):
                    if OVERLAP:
                        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], tl.int32, False, 1)
                    tl.store(y, tl.load(x))
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, y, OVERLAP: tl.constexpr):
                    if OVERLAP:
                        pass
                    tl.store(y, tl.load(x))
                """),
        Example("reports what it does not know",
            before='''
                import triton
                import triton.language as tl
                from triton.language.extra import libdevice

                TEXT = tl.constexpr(make_text())


                @triton.jit
                def odd(x):
                    """Used to hold `cos.approx.f32`."""
                    # tl.inline_asm_elementwise("sin.approx.f32 $0, $1;", ...)
                    a = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1)
                    b = tl.inline_asm_elementwise(TEXT, "=r,r", [x], tl.float32, True, 1)
                    return a + b + libdevice.cyl_bessel_i0(x)
                ''',
            after=SAME,
            reports=3),
    )

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.needed: dict[str, cst.CSTNode] = {}        # function to define -> the top-level statement that uses it

    # PTX

    def visit_Call(self, node: cst.Call) -> None:
        if not calls(self.source, node, "inline_asm_elementwise"):
            return
        names = ("asm", "constraints", "args", "dtype", "is_pure", "pack")
        given = {a.keyword.value if a.keyword else names[i]: a.value for i, a in enumerate(node.args) if i < 6}
        try:
            text = self._assembly(given.get("asm"))
            if "griddepcontrol" in text and self._drop(node, text):
                return
            new = self._expression(node, text, given)
        except ptx.Refused as why:
            self.report(node, f"PTX does not run on an NPU, and {why}")
            return
        edits: dict[cst.CSTNode, object] = {node: new}
        edits.update(self._comments(node))
        edits.update(self._wording(node, edits))
        if self.together(edits, f"PTX `{_instructions(text)}` as functions of triton.language", at=node):
            self._need(code(new), node)

    def _assembly(self, asm: cst.BaseExpression | None) -> str:
        text = asm.evaluated_value if isinstance(asm, (cst.SimpleString, cst.ConcatenatedString)) else None
        if not isinstance(text, str):
            raise ptx.Refused("its text is computed: write what it computes")
        return text

    def _drop(self, node: cst.Call, text: str) -> bool:
        """Programmatic dependent launch is a matter of the GPU's queue; the statement has no value."""
        rest = ptx.COMMENT.sub("", text).strip(" \n;")
        if rest not in ("griddepcontrol.wait", "griddepcontrol.launch_dependents"):
            return False
        statement = self.source.tree.parent(node)
        if not isinstance(statement, cst.Expr):
            return False
        self.replace(self._whole_line(statement), cst.RemoveFromParent(),
                     f"removed `{rest}`: launches on an NPU follow one another", at=node)
        return True

    def _expression(self, node: cst.Call, text: str, given: dict[str, cst.BaseExpression]) -> cst.BaseExpression:
        constraints, pack, args = given.get("constraints"), given.get("pack"), given.get("args")
        if not isinstance(constraints, cst.SimpleString) or str(constraints.evaluated_value).count("=") != 1:
            raise ptx.Refused("it has not exactly one output")
        if not isinstance(pack, cst.Integer) or pack.evaluated_value != 1:
            raise ptx.Refused("it packs several elements into one register")
        if self.source.qualified(given.get("dtype")) != "triton.language.float32":
            raise ptx.Refused("its result is not float32")
        if not isinstance(args, (cst.List, cst.Tuple)):
            raise ptx.Refused("its arguments are not listed")
        kernel = kernel_at(self.source, node)
        found, tl = tiles(kernel) if kernel else None, self.source.language
        inputs = []
        for element in args.elements:
            value = found.of(element.value) if found else None
            known = value is not None and value.dtype == "float32"
            new = element.value if known else cast(
                element.value, f"{tl}.float32", language=tl, tensor=value is not None and value.kind == TENSOR)
            inputs.append(code(new))
        written = ptx.expression(text, inputs, tl)
        for element, given_as in zip(args.elements, inputs, strict=True):
            if any(written == f"{name}({given_as})" for name in DEFINITIONS):     # which casts by itself
                written = written.replace(given_as, code(element.value))
        return cst.parse_expression(written)

    def _wording(self, node: cst.Call, edits: dict[cst.CSTNode, object]) -> dict[cst.CSTNode, object]:
        """Comments above the statement and the function, and its docstring, that name PTX."""
        out: dict[cst.CSTNode, object] = {}
        function = self.source.tree.enclosing(node, cst.FunctionDef)
        for place in (self.source.tree.statement(node), function):
            now = edits.get(place, self.edits.get(place, place)) if place is not None else None
            new = beside(now, PTX, BY_PTX) if isinstance(now, cst.CSTNode) else None
            if place is not None and new is not None:
                out[place] = new
        return {**out, **docstring(function, BY_PTX)} if function is not None else out

    def _comments(self, node: cst.Call) -> dict[cst.CSTNode, object]:
        """Comments inside the call move above its statement."""
        text = code(node)
        if "#" not in text:
            return {}
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        lines = [cst.EmptyLine(comment=cst.Comment(t.string)) for t in tokens if t.type == tokenize.COMMENT]
        statement = self.source.tree.statement(node)
        if not lines or not isinstance(statement, cst.SimpleStatementLine):
            return {}
        return {statement: statement.with_changes(leading_lines=[*statement.leading_lines, *lines])}

    # libdevice

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._library(node)

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in self.source.imports and "libdevice" in self.source.imports[node.value]:
            self._library(node)

    def _library(self, node: cst.Attribute | cst.Name) -> None:
        head, dot, tail = dotted(node).partition(".")
        if head not in self.source.imports:
            return
        full = self.source.imports[head] + dot + tail
        library, _, function = full.rpartition(".")
        if library not in LIBRARIES and (full != MATH + function or function in IN_MATH):
            return
        up = self.source.tree.parent(node)
        if isinstance(up, (cst.Attribute, cst.ImportAlias)) or (isinstance(up, cst.Arg) and up.keyword is node):
            return
        if function in PLAIN:
            new = f"{self.source.language}.{PLAIN[function]}"
        elif function in WRITTEN and self._free(WRITTEN[function]):
            new = WRITTEN[function]
        else:
            self.report(node, f"`{function}` of libdevice has no counterpart in triton.language: write it out")
            return
        if self.replace(node, cst.parse_expression(new), f"libdevice's `{function}` returns None on an NPU: `{new}`"):
            self._need(new, node)

    def _free(self, name: str) -> bool:
        """Whether the file has no function of that name, or has ours."""
        own = self.source.definitions.get(name)
        return own is None or code(own).strip().replace("\r\n", "\n") == self._define(name)

    # What the file lacks

    def _need(self, text: str, node: cst.CSTNode) -> None:
        for name in DEFINITIONS:
            if name in text and name not in self.source.definitions:
                top = self.source.tree.unit(node).statement
                units = [u.statement for u in self.source.tree.units]
                old = self.needed.get(name)
                if old is None or units.index(top) < units.index(old):
                    self.needed[name] = top

    def _define(self, name: str) -> str:
        lines = [line[4:] for line in DEFINITIONS[name].strip("\n").rstrip().splitlines()]
        body = "\n".join(lines).replace("tl.", self.source.language + ".")
        return f"@{self._triton}.jit\ndef {name}(x):\n{body}"

    @property
    def _triton(self) -> str:
        return next((k for k, v in self.source.imports.items() if v == "triton"), "triton")

    def finish(self) -> None:
        by_statement: dict[cst.CSTNode, list[str]] = {}
        for name, top in self.needed.items():
            by_statement.setdefault(top, []).append(name)
        config, newline = self.source.tree.module.config_for_parsing, self.source.tree.module.default_newline
        for top, names in by_statement.items():
            texts = [(self._define(name) + "\n").replace("\n", newline) for name in names]
            blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
            new = [cst.parse_statement(text, config).with_changes(leading_lines=blank) for text in texts]
            listed = ", ".join(f"`{n}`" for n in names)
            old = self.edits.get(top, top)
            if len(old.leading_lines) < 2 and not comments(old.leading_lines):
                old = old.with_changes(leading_lines=blank)
            self.replace(top, cst.FlattenSentinel([*new, old]), f"triton.language lacks {listed}: defined here")
        if not self.edits:
            self._unused_imports()

    def _unused_imports(self) -> None:
        for node in self.source.tree.all(cst.Import, cst.ImportFrom):
            if isinstance(node.names, cst.ImportStar) or "libdevice" not in code(node):
                continue
            kept = [alias for alias in node.names if not self._unused(alias, node)]
            if len(kept) == len(node.names):
                continue
            if kept:
                kept[-1] = kept[-1].with_changes(comma=node.names[-1].comma)
                self.replace(node, node.with_changes(names=kept), "nothing uses libdevice any more")
            else:
                self.replace(self._whole_line(node), cst.RemoveFromParent(), "nothing uses libdevice any more", at=node)

    def _whole_line(self, node: cst.CSTNode) -> cst.CSTNode:
        """What to remove: the line, unless a comment stands above it or its block would be left empty."""
        line = self.source.tree.statement(node)
        block = self.source.tree.parent(line)
        alone = isinstance(block, cst.IndentedBlock) and len(block.body) == 1
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1 or alone or comments(line.leading_lines):
            return node
        return line

    def _unused(self, alias: cst.ImportAlias, node: cst.Import | cst.ImportFrom) -> bool:
        if alias.asname is not None:
            local = alias.evaluated_alias or ""
        elif isinstance(node, cst.ImportFrom):
            local = alias.evaluated_name
        else:
            return False                        # `import triton.language.extra.libdevice` binds `triton`
        if not self.source.imports.get(local, "").startswith(LIBRARIES):
            return False
        names = [n for n in self.source.tree.all(cst.Name) if n.value == local]
        return all(isinstance(self.source.tree.parent(n), (cst.ImportAlias, cst.AsName)) for n in names)


def _instructions(text: str) -> str:
    words = [line.split()[0] for line in ptx.COMMENT.sub(" ", text).replace("{", ";").replace("}", ";").split(";")
             if line.split() and not line.split()[0].startswith(".")]
    return ", ".join(dict.fromkeys(words))
