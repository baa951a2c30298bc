"""ASC901 padded-mask."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import libcst as cst

from migrate.analysis.control import bindings
from migrate.analysis.kernels import HEURISTICS, Kernel, match_args
from migrate.analysis.launches import Launch
from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import children, find

ACCESSES = {"triton.language.load": ("pointer", "mask"), "triton.language.store": ("pointer", "value", "mask")}
ARANGE = "triton.language.arange"
PADDED = "triton.next_power_of_2"
CHOOSES = frozenset({"max", "min", "int"})


class PaddedMask(Rule):
    """Report a mask that compares lanes with the padded width of the tile, which masks nothing.

    ## Why
    `tl.arange(0, P) < P` holds in every lane. Where the launch rounds P up to a power of two, lanes beyond the real
    size are read and written: at a head dimension of 48, a tile of 64 reaches 16 elements into the next row, and at
    the end of a tensor outside of it. A GPU rarely faults there, and a sum over the lanes is wrong on any device.
    An Ascend card can stop with a DDR address out of range. The mask has to compare with the size itself.

    ## What it leaves alone
    It only reports, as the kernel may not have the size, or its callers may allow powers of two alone. No report:
    * a mask that also compares the same lanes with something else;
    * an address that counts in padded widths (`row * P`): the tensor itself is that wide;
    * widths that the launches in the file do not round up, and kernels that are launched in other modules.
    """

    id = "ASC901"
    name = "padded-mask"
    summary = "a mask against the padded width masks nothing"
    safety = Safety.MANUAL
    triggers = ("next_power_of_2",)
    references = (
        Ref("https://github.com/state-spaces/mamba/blob/v2.3.2/mamba_ssm/ops/triton/mamba3/mamba3_siso_bwd.py",
            "mamba3_siso_bwd_kernel_dzdo gets headdim_v and does not use it: its compiled program reads out of bounds "
            "at head dimension 48", "compiled"),
        Ref("https://triton-lang.org/main/python-api/generated/triton.language.load.html",
            "lanes whose mask is false are not read", "doc"),
    )
    examples = (
        Example("a width that the launch rounds up",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def double(x, y, rows, width, BM: tl.constexpr, BN: tl.constexpr):
                    at = tl.program_id(0) * BM + tl.arange(0, BM)
                    lane = tl.arange(0, BN)
                    inside = (at[:, None] < rows) & (lane[None, :] < BN)
                    tile = tl.load(x + at[:, None] * width + lane[None, :], mask=inside, other=0.0)
                    tl.store(y + at[:, None] * width + lane[None, :], tile * 2, mask=inside)


                def run(x, y):
                    rows, width = x.shape
                    BN = triton.next_power_of_2(width)
                    double[(triton.cdiv(rows, 16),)](x, y, rows, width, BM=16, BN=BN)
                """,
            after=SAME,
            reports=1),
        Example("a width that a heuristic rounds up, and a size that the kernel does not get",
            before="""
                import triton
                import triton.language as tl


                @triton.heuristics({"B": lambda args: max(triton.next_power_of_2(args["n"]), 16)})
                @triton.jit
                def first(x, n, B: tl.constexpr):
                    tl.store(x + tl.arange(0, B), 1.0, tl.arange(0, B) < B)


                @triton.jit
                def second(x, B: tl.constexpr):
                    tl.store(x + tl.arange(0, B), 1.0, mask=tl.arange(0, B) < B)


                def run(x):
                    first[(1,)](x, len(x))
                    second[(1,)](x, triton.next_power_of_2(len(x)))
                """,
            after=SAME,
            reports=2),
        Example("no report where the size is compared as well, or the width is the tensor's own",
            before="""
                import triton
                import triton.language as tl


                @triton.jit
                def kernel(x, n, B: tl.constexpr, C: tl.constexpr):
                    at = tl.arange(0, B)
                    tl.store(x + at, 1.0, mask=(at < B) & (at < n))
                    tl.store(x + at, 1.0, mask=at < n)
                    tl.store(x + tl.arange(0, C), 1.0, mask=tl.arange(0, C) < C)
                    tl.store(x + tl.program_id(0) * B + at, 1.0, mask=at < B)


                def run(x):
                    kernel[(1,)](x, len(x), B=triton.next_power_of_2(len(x)), C=16)
                """,
            after=SAME),
    )

    def finish(self) -> None:
        launches: dict[cst.FunctionDef, list[Launch]] = {}
        for launch in self.source.launches:
            launches.setdefault(launch.kernel.node, []).append(launch)
        for kernel in self.source.kernels.values():
            told: set[cst.CSTNode] = set()
            for comparison, width in self._always_true(kernel):
                size = self._size(kernel, width, launches.get(kernel.node, []))
                if size and comparison not in told:
                    told.add(comparison)
                    self.report(comparison, f"always true: `{width}` is {size}, so lanes beyond it are not masked. "
                                            "Compare with the size, or make sure that it is a power of two")

    def _always_true(self, kernel: Kernel) -> Iterator[tuple[cst.Comparison, str]]:
        """Comparisons of `arange(0, P)` with P in masks, that nothing else in the mask makes up for."""
        count = Counter(name for name, _, _ in bindings(kernel.node.body))
        local = {name: value for name, _, value in bindings(kernel.node.body)
                 if value is not None and count[name] == 1 and name not in kernel.params}
        for call in find(kernel.node.body, cst.Call):
            names = ACCESSES.get(self.source.qualified(call.func))
            given = {n: a.value for a, n in match_args(call, list(names))} if names else {}
            mask = given.get("mask")
            if mask is None or "pointer" not in given:
                continue
            compared = [(c, self._lanes(c.left, local)) for c in _comparisons(mask, local)]
            for comparison, width in compared:
                right = code(comparison.comparisons[0].comparator)
                if self._strides(given["pointer"], right, local):
                    continue                    # the tensor itself is that wide
                if width and width == right and kernel.params.get(right) and kernel.params[right].constexpr and not any(
                        code(c.comparisons[0].comparator) != right and width == w for c, w in compared):
                    yield comparison, right

    def _strides(self, pointer: cst.BaseExpression, width: str, local: dict[str, cst.BaseExpression]) -> bool:
        """Whether an address counts in widths: P occurs in it elsewhere than in `arange(0, P)`."""
        todo: list[cst.CSTNode] = [pointer]
        seen: set[str] = set()
        while todo:
            node = todo.pop()
            if isinstance(node, cst.Call) and self.source.qualified(node.func) == ARANGE:
                continue
            if isinstance(node, cst.Name):
                if node.value == width:
                    return True
                if node.value in local and node.value not in seen:
                    seen.add(node.value)
                    todo.append(local[node.value])
            else:
                todo += children(node)
        return False

    def _lanes(self, node: cst.BaseExpression, local: dict[str, cst.BaseExpression]) -> str:
        """P of `tl.arange(0, P)`, also through `[:, None]` and a local name."""
        for _ in range(8):
            if isinstance(node, cst.Subscript):
                node = node.value
            elif isinstance(node, cst.Name) and node.value in local:
                node = local[node.value]
            else:
                break
        if isinstance(node, cst.Call) and self.source.qualified(node.func) == ARANGE and len(node.args) == 2 and (
                code(node.args[0].value) == "0"):
            return code(node.args[1].value)
        return ""

    def _size(self, kernel: Kernel, width: str, launches: list[Launch]) -> str:
        """In words, what a width is rounded up from; empty where it is not known to be rounded up."""
        for found in kernel.decorator(HEURISTICS):
            for element in find(found.decorator, cst.DictElement):
                rounded = self._rounded(element.value, None)
                if code(element.key).strip("\"'") == width and rounded is not None:
                    return f"`{code(rounded)}` rounded up"
        for launch in launches:
            bound = launch.args.get(width)
            rounded = self._rounded(bound.value, launch) if bound is not None else None
            if rounded is None:
                continue
            text = code(rounded)
            carrier = next((n for n, b in launch.args.items() if code(b.value) == text and n != width), "")
            return f"`{carrier or text}` rounded up" if carrier else (
                f"`{text}` rounded up at the launch, and no argument is the size")
        return ""

    def _rounded(self, value: cst.BaseExpression, launch: Launch | None) -> cst.BaseExpression | None:
        """x, where a value is `triton.next_power_of_2(x)`, or a choice or a limit of it."""
        if launch is not None:
            value = launch.source_value(value)
        if isinstance(value, cst.Lambda):
            return self._rounded(value.body, launch)
        if isinstance(value, cst.IfExp):
            return self._rounded(value.body, launch) or self._rounded(value.orelse, launch)
        if not isinstance(value, cst.Call) or not value.args:
            return None
        if self.source.qualified(value.func) == PADDED:
            return value.args[0].value
        if code(value.func) in CHOOSES:
            return next((x for a in value.args if (x := self._rounded(a.value, launch)) is not None), None)
        return None


def _comparisons(mask: cst.BaseExpression, local: dict[str, cst.BaseExpression]) -> list[cst.Comparison]:
    """The `a < b` that a mask is the conjunction of, through local names."""
    todo, out = [(mask, 0)], []
    while todo:
        node, depth = todo.pop()
        if isinstance(node, cst.Name) and node.value in local and depth < 8:
            todo.append((local[node.value], depth + 1))
        elif isinstance(node, cst.Subscript):
            todo.append((node.value, depth))
        elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitAnd):
            todo += [(node.left, depth), (node.right, depth)]
        elif isinstance(node, cst.Comparison) and len(node.comparisons) == 1 and isinstance(
                node.comparisons[0].operator, cst.LessThan):
            out.append(node)
    return out
