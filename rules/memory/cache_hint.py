"""ASC203 cache-hint."""
from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from migrate.analysis.control import kernel_of
from migrate.analysis.pointers import Pointers
from migrate.edit import without_args
from migrate.rule import SAME, Example, Ref, Rule, Safety

# function -> its hints, with the position where one can be given without a name
HINTS: dict[str, dict[str, int | None]] = {
    "triton.language.load": {"cache_modifier": 5, "eviction_policy": 6, "volatile": 7},
    "triton.language.store": {"cache_modifier": 4, "eviction_policy": 5},
    "triton.language.range": dict.fromkeys(
        ("num_stages", "warp_specialize", "disallow_acc_multi_buffer", "flatten", "disable_licm")),
}
# how a comment speaks of a hint
WORDS = {
    "volatile": r"\bvolatile\b", "cache_modifier": r"\bcache[ _]modifiers?\b",
    "eviction_policy": r"\b(?:eviction(?:[ _]policy)?|evict_(?:first|last))\b", "num_stages": r"\bnum_stages\b",
    "warp_specialize": r"\bwarp[ _-]speciali[sz]\w*", "disallow_acc_multi_buffer": r"\bdisallow_acc_multi_buffer\b",
    "flatten": r"\bflatten\w*", "disable_licm": r"\bdisable_licm\b"}


class CacheHint(Rule):
    """Drop cache hints from loads and stores, and pipelining hints from `tl.range`.

    ## Why
    `volatile`, `cache_modifier` and `eviction_policy` speak to a GPU's L1 and L2. An Ascend core has no such cache
    between global memory and its Unified Buffer: tiles are moved by DMA, and the compiler ignores the hints. The same
    goes for `tl.range(num_stages=...)` and its relatives, which ask for a GPU's software pipeline. Code that is
    generated is the same with and without them; a reader who believes them is misled.

    A comment that explains the hint is stale once the hint has gone. On the lines just above the statement, a comment
    line that names the hint and is a sentence of its own goes with it; where the sentence runs over several lines only
    the word is replaced. Other comments stay.

    ## What it leaves alone
    * `volatile=True` on a load from a tensor that the same kernel writes. The hint stood for an order that Ascend does
      not give through it. Reported instead.
    * `loop_unroll_factor`, which does unroll here, `tl.static_range`, and `tl.multiple_of`, `tl.max_contiguous`,
      `tl.max_constancy`, which are facts about values rather than wishes: the compiler takes them.
    """

    id = "ASC203"
    name = "cache-hint"
    summary = "`volatile`, `cache_modifier`, `eviction_policy` and the pipelining hints of `tl.range` mean nothing here"
    safety = Safety.SAFE
    triggers = ("volatile", "cache_modifier", "eviction_policy", "num_stages", "warp_specialize",
                "disallow_acc_multi_buffer", "flatten", "disable_licm")
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/blob/main/docs/zh/triton_api/Memory_Pointer_Ops/tl.load.md",
            "cache_modifier, eviction_policy and volatile are ignored", "doc"),
        Ref("https://github.com/triton-lang/triton-ascend/blob/main/docs/zh/triton_api/Iterators/range.md",
            "tl.range takes num_stages, without effect", "doc"),
        Ref("https://pypi.org/project/triton-ascend/3.2.0/",
            "the final HIVM of a loop of loads and stores is the same with each dropped hint and without; "
            "loop_unroll_factor=2 does unroll; multiple_of and max_contiguous compile", "compiled"),
    )
    examples = (
        Example("hints of a load, with the comment that explained one of them",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def double(x, y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    # Read past the cache: volatile keeps L1 out of the way
                    tile = tl.load(
                        x + at,
                        volatile=True,
                        eviction_policy="evict_first",
                    )
                    tl.store(y + at, tile * 2, cache_modifier=".cs")
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def double(x, y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tile = tl.load(
                        x + at,
                    )
                    tl.store(y + at, tile * 2)
                """),
        Example("only the sentence about the hint goes",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def double(x, y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)

                    # Twice the input.
                    # Read again with evict_last: the next program wants it too.
                    tile = tl.load(x + at, eviction_policy="evict_last")  # (BLOCK,)
                    # The result is written once, so the volatile
                    # flag would not help.
                    tl.store(y + at, tl.load(x + at, volatile=True) + tile)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def double(x, y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)

                    # Twice the input.
                    tile = tl.load(x + at)  # (BLOCK,)
                    # The result is written once, so the (dropped) cache hint
                    # flag would not help.
                    tl.store(y + at, tl.load(x + at) + tile)
                """),
        Example("a pipelined loop",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def total(x, y, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    acc = tl.zeros([BLOCK], tl.float32)
                    for i in tl.range(0, n, num_stages=STAGES, loop_unroll_factor=2):
                        acc += tl.load(x + i * BLOCK + at)
                    tl.store(y + at, acc)
                """,
            after="""
                import triton
                import triton.language as tl

                @triton.jit
                def total(x, y, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    acc = tl.zeros([BLOCK], tl.float32)
                    for i in tl.range(0, n, loop_unroll_factor=2):
                        acc += tl.load(x + i * BLOCK + at)
                    tl.store(y + at, acc)
                """),
        Example("reports a volatile load of what the kernel itself writes",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def shift(x, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tl.store(x + at, tl.load(x + at) + 1)
                    tl.store(x + at, tl.load(x + at + 1, volatile=True))
                """,
            after=SAME,
            reports=1),
        Example("leaves facts about values, and other functions of these names",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def copy(x, y, BLOCK: tl.constexpr):
                    at = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK), BLOCK), BLOCK)
                    tl.store(y + at, tl.load(x + at))

                def host(cache):
                    return cache.load("x", volatile=True)
                """,
            after=SAME),
        Example("leaves what the author asked to keep",
            before="""
                import triton
                import triton.language as tl

                @triton.jit
                def copy(x, y, BLOCK: tl.constexpr):
                    at = tl.arange(0, BLOCK)
                    tl.store(y + at, tl.load(x + at, volatile=True))  # migrate: ignore[cache-hint] shared with the GPU
                """,
            after=SAME),
    )

    def visit_Call(self, node: cst.Call) -> None:
        if len(node.args) < 2:
            return
        hints = HINTS.get(self.source.qualified(node.func))
        if not hints:
            return
        drop = {a: name for i, a in enumerate(node.args) if (name := _hint(a, i, hints))}
        kernel = kernel_of(self.source, node) if drop else None
        if kernel is None:
            return
        if "volatile" in drop.values():
            pointers = Pointers(kernel)
            written = pointers.bases(node.args[0].value) & pointers.stored
            if written:
                self.report(node, f"this kernel also writes `{min(written)}`: `volatile` does not order the load after "
                                  "the store here; split the kernel, or keep the value in a tile")
                drop = {a: name for a, name in drop.items() if name != "volatile"}
                if not drop:
                    return
        edits: dict[cst.CSTNode, object] = {node: without_args(node, drop)}
        edits.update(self._stale_comments(node, list(drop.values())))
        self.together(edits, f"removed {', '.join(f'`{n}`' for n in drop.values())}: a wish to a GPU's caches "
                             "and pipeline, ignored on an NPU", at=node)

    def _stale_comments(self, node: cst.CSTNode, hints: list[str]) -> dict[cst.CSTNode, object]:
        statement = self.source.tree.statement(node)
        if not isinstance(statement, (cst.SimpleStatementLine, cst.For)):
            return {}
        word = re.compile("|".join(WORDS[h] for h in hints), re.IGNORECASE)
        lines: Sequence[cst.EmptyLine] = statement.leading_lines
        first = max((i + 1 for i, line in enumerate(lines) if line.comment is None), default=0)
        edits: dict[cst.CSTNode, object] = {}
        for i in range(first, len(lines)):
            comment = lines[i].comment
            if comment is None or not word.search(comment.value) or "migrate:" in comment.value:
                continue
            alone = _starts_sentence(lines[i]) and (i + 1 == len(lines) or _starts_sentence(lines[i + 1]))
            edits[lines[i]] = cst.RemoveFromParent() if alone else lines[i].with_changes(
                comment=comment.with_changes(value=word.sub("(dropped) cache hint", comment.value)))
        if not edits:
            return {}
        kept = [new for line in lines if not isinstance(new := edits.get(line, line), cst.RemovalSentinel)]
        return {statement: statement.with_changes(leading_lines=kept)}


def _hint(arg: cst.Arg, index: int, hints: dict[str, int | None]) -> str | None:
    """The name of the hint that an argument gives, if it gives one."""
    if arg.keyword is not None:
        return arg.keyword.value if arg.keyword.value in hints else None
    return next((name for name, at in hints.items() if at == index and not arg.star), None)


def _starts_sentence(line: cst.EmptyLine) -> bool:
    text = line.comment.value.lstrip("# ") if line.comment else ""
    return not text[:1].islower()
