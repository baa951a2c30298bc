"""ASC102 freeze-autotune."""
from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst

from migrate import edit
from migrate.analysis.autotune import Tuning, decorator, is_autotune, tuning
from migrate.analysis.kernels import Kernel
from migrate.analysis.launches import Launch
from migrate.analysis.static import Config, Evaluator, NotStatic
from migrate.edit import code
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.source import Source
from migrate.tree import Edit, find
from rules.ascend import FACTS
from rules.launch.gpu_launch_hint import HINTS
from rules.launch.leftovers import leftovers
from rules.launch.tile_policy import choose, other_side, reason
from rules.launch.zeroing import CannotZero, above, resetting, zeroing
from rules.wording import swap, within

TUNER = frozenset({"best_config", "configs", "cache", "keys", "bench_time", "configs_timings", "prune_configs",
                   "early_config_prune", "perf_model", "reset_to_zero", "restore_value", "nargs"})
UNSET = {"num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": None}
LINE = 110


@dataclass(frozen=True)
class Plan:
    """What a kernel's autotune becomes. `hook` are the parameters that the chosen configuration zeroes."""

    tuning: Tuning
    chosen: Config
    partner: int            # what a lone constant is multiplied with: tile_policy.other_side
    hook: tuple[str, ...]
    stays: str = ""         # why a one-configuration autotune, with its hook, has to stay


class FreezeAutotune(Rule):
    """Replace `@triton.autotune` by one of its configurations.

    ## Why
    Autotune compiles and times every configuration at the first launch. On Ascend each is a full compile of many
    seconds, and one whose tiles overflow the Unified Buffer ends the process. The decorator also asks for the active
    driver when it is applied, so a module that has it cannot be imported on a machine without a device.

    The decorator is replaced in its place by `@triton.heuristics`, which supplies the constants of the chosen
    configuration. Launches stay as they are, whichever module they are in; grid functions see the values in `META`;
    heuristics further in see them in `args`; and there is one place where a tile is changed later. A configuration
    without constants leaves no decorator.

    The choice: the Unified Buffer is 192 KB, 96 KB once double-buffered, about six live float32 tiles of 16 KB. So
    the configuration whose two largest constants multiply to the most, but at most 4,096; one with a single constant
    pairs it with 256; if none fits, the smallest; the first of equals. Where a pruning function may drop
    configurations, only those that it keeps whatever the arguments are chosen from. Questions about the machine
    (`check_shared_mem()`, `IS_NVIDIA_HOPPER`) are answered for Ascend, and environment variables count as not set.

    A configuration's `pre_hook` that zeroes arguments becomes `x.zero_()` on the host before each launch, guarded
    where the tensor may be None: without it, outputs from `torch.empty` that the kernel adds to hold garbage.
    `reset_to_zero` acts only while tuning; its tensors are zeroed where the host allocates them with `torch.empty`.
    `restore_value` acts only while tuning and needs nothing. Reads of `kernel.best_config` and `kernel.configs` get
    the chosen values, and what only the decorators used (hooks, pruning functions, lists, imports) goes. A comment in
    a function that launches the kernel, which says of a constant that it "is autotuned", says where it is set now.

    ## What it leaves alone
    * configurations, hooks and pruning that cannot be read from the source. Reported.
    * a kernel with a hook that is launched in another module, or whose launch cannot be matched: it keeps
      `@triton.autotune` with the one chosen configuration, hook included. Reported. So does a kernel whose tuner is
      read in another way (`kernel.cache`).
    * `reset_to_zero` of a tensor that comes from elsewhere: zeroing it at every launch could destroy a sum. The
      message of the edit says so, as it does where a pruning function could not be followed.
    * functions that are not under `triton.jit`. Reported.
    """

    id = "ASC102"
    name = "freeze-autotune"
    summary = "`@triton.autotune` becomes one configuration; what its hooks zeroed, the host zeroes"
    safety = Safety.REVIEW
    triggers = ("autotune", "best_config", ".configs")
    references = (
        Ref("https://github.com/triton-lang/triton-ascend/blob/a84b1eb52/docs/en/examples/06_autotune_example.md",
            "every configuration is compiled and measured at the first call", "doc"),
        Ref("https://github.com/triton-lang/triton/blob/v3.2.0/python/triton/runtime/autotuner.py",
            "Config.pre_hook runs before each launch; reset_to_zero and restore_value only around tuning", "source"),
        Ref("https://github.com/triton-lang/triton/blob/v3.2.0/python/triton/runtime/autotuner.py",
            "Autotuner.__init__ asks driver.active for a benchmarker: under triton-ascend 3.2.0 without a device, "
            "`@triton.autotune` raises at import", "ran"),
        Ref("https://github.com/triton-lang/triton/blob/v3.2.0/python/triton/runtime/autotuner.py",
            "Heuristics adds its values to the launch's keywords, where grid functions and inner heuristics see "
            "them, also under the interpreter", "ran"),
    )
    examples = (
        Example("the largest tile that fits, in place, so that later heuristics still see it",
            before="""
                import triton
                import triton.language as tl


                @triton.autotune(
                    configs=[
                        triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}),
                        triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}),
                        triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}),
                    ],
                    key=["M", "N"],
                )
                @triton.heuristics({"EVEN": lambda args: args["M"] % args["BLOCK_M"] == 0})
                @triton.jit
                def scale(x, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr):
                    pass
                """,
            after="""
                import triton
                import triton.language as tl


                @triton.heuristics({"BLOCK_M": lambda args: 64, "BLOCK_N": lambda args: 64})
                @triton.heuristics({"EVEN": lambda args: args["M"] % args["BLOCK_M"] == 0})
                @triton.jit
                def scale(x, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr):
                    pass
                """),
        Example("a comprehension over lists chosen by the machine, through a wrapper; what only it used goes",
            before="""
                import triton
                from fla.ops.utils.cache import fla_cache_autotune
                from fla.utils import autotune_cache_kwargs, check_shared_mem, input_guard

                BLOCKS = [64, 128] if check_shared_mem() else [16, 32]


                @fla_cache_autotune(
                    configs=[
                        triton.Config({"BK": BK, "BV": BV}, num_warps=w)
                        for BK in BLOCKS
                        for BV in BLOCKS
                        for w in [2, 4]
                        if BK <= BV
                    ],
                    key=["K", "V"],
                    **autotune_cache_kwargs,
                )
                @triton.jit(do_not_specialize=["T"])
                def kernel(x, T, BK, BV):
                    pass
                """,
            after="""
                import triton
                from fla.utils import input_guard


                @triton.heuristics({"BK": lambda args: 32, "BV": lambda args: 32})
                @triton.jit(do_not_specialize=["T"])
                def kernel(x, T, BK, BV):
                    pass
                """),
        Example("no constants, no decorator",
            before="""
                import triton

                # one program a row
                @triton.autotune(configs=[triton.Config({}, num_warps=w) for w in [2, 4, 8]], key=["N"])
                # N is never specialised
                @triton.jit
                def kernel(x, N):
                    pass
                """,
            after="""
                import triton

                # one program a row
                # N is never specialised
                @triton.jit
                def kernel(x, N):
                    pass
                """),
        Example("a hook that zeroes outputs moves to the host",
            before="""
                import torch
                import triton


                def zeroing(outputs):
                    return lambda bound: [bound[o].zero_() for o in outputs if bound[o] is not None]


                @triton.autotune(
                    configs=[triton.Config({"BLOCK": b}, pre_hook=zeroing(["dw", "db"])) for b in (16, 32)],
                    key=["N"],
                )
                @triton.jit
                def backward(dy, dw, db, N, BLOCK):
                    pass


                def bias_backward(dy, bias=None):
                    dw = torch.empty(dy.shape[-1])
                    db = torch.empty_like(bias) if bias is not None else None

                    # one program a block of rows
                    backward[(4,)](dy, dw, db, dy.shape[0])
                    return dw, db
                """,
            after="""
                import torch
                import triton


                @triton.heuristics({"BLOCK": lambda args: 16})
                @triton.jit
                def backward(dy, dw, db, N, BLOCK):
                    pass


                def bias_backward(dy, bias=None):
                    dw = torch.empty(dy.shape[-1])
                    db = torch.empty_like(bias) if bias is not None else None

                    dw.zero_()
                    if db is not None:
                        db.zero_()
                    # one program a block of rows
                    backward[(4,)](dy, dw, db, dy.shape[0])
                    return dw, db
                """),
        Example("a comment at the launch that calls a constant autotuned",
            before="""
                @triton.autotune([triton.Config({"BLOCK": b}, num_stages=s) for b in (16, 32) for s in (1, 2)], ["n"])
                @triton.jit
                def kernel(x, n, BLOCK):
                    pass


                def run(x, n):
                    # BLOCK is autotuned, so the grid is a function
                    def grid(META):
                        return (triton.cdiv(n, META["BLOCK"]),)

                    kernel[grid](x, n)
                """,
            after="""
                @triton.heuristics({"BLOCK": lambda args: 16})
                @triton.jit
                def kernel(x, n, BLOCK):
                    pass


                def run(x, n):
                    # BLOCK is set by the kernel's decorator, so the grid is a function
                    def grid(META):
                        return (triton.cdiv(n, META["BLOCK"]),)

                    kernel[grid](x, n)
                """),
        Example("a conditional argument is zeroed under its condition",
            before="""
                @triton.autotune([triton.Config({"B": 8}, pre_hook=lambda args: args["out"].zero_())], [])
                @triton.jit
                def kernel(x, out, B):
                    pass


                def run(x, work, keep):
                    with torch.no_grad():
                        kernel[(1,)](x, out=work if keep else None)
                """,
            after="""
                @triton.heuristics({"B": lambda args: 8})
                @triton.jit
                def kernel(x, out, B):
                    pass


                def run(x, work, keep):
                    with torch.no_grad():
                        if keep:
                            work.zero_()
                        kernel[(1,)](x, out=work if keep else None)
                """),
        Example("reads of the chosen configuration",
            before="""
                @triton.autotune([triton.Config({"B": 32}), triton.Config({"B": 16})], key=[])
                @triton.jit
                def kernel(x, B):
                    pass


                MIN_BLOCK = min(
                    cfg.kwargs["B"] for cfg in kernel.configs
                )


                def run(x, n):
                    work = x.new_empty(triton.cdiv(n, MIN_BLOCK))
                    kernel[(1,)](x)
                    block = kernel.best_config.kwargs["B"]
                    return work[: triton.cdiv(n, block)]
                """,
            after="""
                @triton.heuristics({"B": lambda args: 16})
                @triton.jit
                def kernel(x, B):
                    pass


                MIN_BLOCK = 16


                def run(x, n):
                    work = x.new_empty(triton.cdiv(n, MIN_BLOCK))
                    kernel[(1,)](x)
                    block = 16
                    return work[: triton.cdiv(n, block)]
                """),
        Example("only what a pruning function surely keeps",
            before="""
                import triton


                def prune(configs, nargs, **kwargs):
                    G = {**(nargs or {}), **kwargs}.get("G", 1)
                    return [c for c in configs if c.kwargs["BQ"] == 1 or c.kwargs["BQ"] * G <= 256]


                @triton.autotune(
                    configs=[triton.Config({"BQ": BQ}) for BQ in [1, 2, 4]],
                    key=["G"],
                    prune_configs_by={"early_config_prune": prune},
                )
                @triton.jit
                def kernel(x, G, BQ):
                    pass
                """,
            after="""
                import triton


                @triton.heuristics({"BQ": lambda args: 1})
                @triton.jit
                def kernel(x, G, BQ):
                    pass
                """),
        Example("reset_to_zero of an allocation without values, and restore_value",
            before="""
                @triton.autotune([triton.Config({"B": 16})], key=[], reset_to_zero=["dx"], restore_value=["h"])
                @triton.jit
                def kernel(dx, h, B):
                    pass


                def run(x, h):
                    dx = torch.empty_like(x)
                    kernel[(1,)](dx, h)
                """,
            after="""
                @triton.heuristics({"B": lambda args: 16})
                @triton.jit
                def kernel(dx, h, B):
                    pass


                def run(x, h):
                    dx = torch.empty_like(x)
                    dx.zero_()
                    kernel[(1,)](dx, h)
                """),
        Example("a hook without a launch here keeps a one-configuration autotune",
            before="""
                @triton.autotune(
                    configs=[
                        triton.Config({"B": 16}, pre_hook=lambda args: args["out"].zero_()),
                        triton.Config({"B": 8}, pre_hook=lambda args: args["out"].zero_()),
                    ],
                    key=["n"],
                )
                @triton.jit
                def kernel(x, out, n, B):
                    pass
                """,
            after="""
                @triton.autotune(configs=[triton.Config({"B": 16}, pre_hook=lambda args: args["out"].zero_())], key=[])
                @triton.jit
                def kernel(x, out, n, B):
                    pass
                """,
            reports=1),
        Example("reports configurations that the source does not tell",
            before="""
                @triton.autotune(configs=tuned_elsewhere(), key=["n"])
                @triton.jit
                def kernel(x, n, B):
                    pass
                """,
            after=SAME,
            reports=1),
        Example("reports a hook that does more than zero its arguments",
            before="""
                def count(args):
                    LAUNCHES.append(args["x"])


                @triton.autotune(configs=[triton.Config({"B": 16}, pre_hook=count)], key=[])
                @triton.jit
                def kernel(x, B):
                    pass
                """,
            after=SAME,
            reports=1),
        Example("leaves what the author asked to keep",
            before="""
                # migrate: ignore[ASC102] measured on 910B3
                @triton.autotune([triton.Config({"B": 16})], key=[])
                @triton.jit
                def kernel(x, B):
                    pass


                def run(x):
                    kernel[(1,)](x)
                    return kernel.best_config.kwargs["B"]
                """,
            after=SAME),
    )

    def finish(self) -> None:
        self.gone: list[cst.CSTNode] = []       # replaced code, whose names may be used nowhere else now
        self.stay: set[str] = set()             # names in what took its place
        for kernel in self.source.kernels.values():
            found = decorator(self.source, kernel)
            if found is None:
                continue
            try:
                plan = self._plan(kernel)
            except NotStatic as why:
                self.report(found, f"autotune of `{kernel.name}` stays: {why}")
                continue
            self._freeze(plan)
        self._imported()
        self._others()
        leftovers(self.source, self.gone, self.stay, self.replace)

    # One kernel

    def _plan(self, kernel: Kernel, source: Source | None = None) -> Plan:
        """Raises NotStatic."""
        source = source or self.source
        found = tuning(source, kernel, FACTS)
        assert found is not None
        partner = other_side(kernel)
        chosen = choose(found.kept or found.configs, partner)
        hook = tuple(Evaluator(FACTS).zeroed(chosen.hook)) if chosen.hook is not None else ()
        stays = ""
        if hook:
            launches = [x for x in source.launches if x.kernel.node is kernel.node]
            if not launches:
                stays = "its hook zeroes arguments and no launch of it is in this file"
            elif self._escapes(source, kernel, launches):
                stays = "its hook zeroes arguments and it is used otherwise than by launching it"
            else:
                try:
                    for launch in launches:
                        zeroing(launch, hook)
                except CannotZero as why:
                    stays = f"its hook zeroes arguments, and {why}"
        return Plan(found, chosen, partner, hook, stays)

    def _freeze(self, plan: Plan) -> None:
        kernel, found = plan.tuning.kernel, plan.tuning.decorator
        reads, why = self._reads(kernel.name, plan)
        stays = plan.stays or why
        if stays:
            self._keep(plan, stays)
            return
        values = self._values(plan)
        if not values and self._is_peeled(kernel):
            self.report(found, f"autotune of `{kernel.name}` stays: `{kernel.name}.fn` is launched past it")
            return
        new = self._decorator(values, self.source)
        if new is None:
            self.report(found, f"autotune of `{kernel.name}` stays: this file does not import `triton`")
            return
        edits: dict[cst.CSTNode, Edit] = {**reads, **self._swap(kernel, found, new if values else "")}
        uncertain: list[str] = []
        zeroed = []
        for launch in (x for x in self.source.launches if x.kernel.node is kernel.node):
            lines = zeroing(launch, plan.hook)
            if plan.tuning.zeroed_when_tuning:
                more, odd = resetting(launch, plan.tuning.zeroed_when_tuning)
                lines += [x for x in more if x not in lines]
                uncertain += odd
            zeroed += lines
            if not self._insert(launch, lines, edits):
                return                          # another kernel's edit is there: the next pass does this one
        edits.update(self._comments(kernel, values, edits))
        message = self._message(plan, values)
        if zeroed:
            message += "; the host zeroes what its hook zeroed"
        if plan.tuning.unclear:
            message += f". Check that pruning would keep it: it was not followed ({plan.tuning.unclear})"
        if uncertain:
            names = ", ".join(f"`{name}`" for name in dict.fromkeys(uncertain))
            message += f". Check that {names} holds zeros where that is meant: it was reset to zero while tuning"
        if self.together(edits, message, at=found):
            self.gone += [found, *reads]

    def _message(self, plan: Plan, values: dict[str, Any]) -> str:
        n = len(plan.tuning.configs)
        over = f"autotune over {n} configuration{'s' * (n > 1)}"
        params = plan.tuning.kernel.params
        hints = sorted({k for c in plan.tuning.configs for k, v in c.options.items()
                        if k in HINTS and k not in params and v != UNSET[k]})
        named = ", ".join(f"`{k}`" for k in hints)
        if not values:
            only = "GPU hints only" + (f" ({named})" if hints else "")
            return f"{over} removed: {'they differ in' if n > 1 else 'it sets'} {only}"
        why = reason(plan.tuning.configs, plan.tuning.kept or (), plan.chosen, plan.partner)
        shown = ", ".join(f"{k}={v!r}" for k, v in values.items())
        return f"{over} frozen to {shown}" + (f" ({why})" if why else "") + (
            f", without {named}, which {'do' if len(hints) > 1 else 'does'} not steer an NPU" if hints else "")

    def _comments(self, kernel: Kernel, values: dict[str, Any], edits: dict[cst.CSTNode, Edit],
                  ) -> dict[cst.CSTNode, Edit]:
        """Comments around the launches that call a constant autotuned."""
        if not values or "autotuned" not in self.source.text:
            return {}
        names = "|".join(re.escape(name) for name in values)
        swaps = [swap(rf"\b(?-i:({names})) (is|are) auto-?tuned\b", r"\1 \2 set by the kernel's decorator")]
        functions = {x.function for x in self.source.launches if x.kernel.node is kernel.node}
        out: dict[cst.CSTNode, Edit] = {}
        for function in functions:
            if function is not None:
                out.update(within(function, swaps[0][0], swaps, {**self.edits, **edits}))
        return out

    def _values(self, plan: Plan) -> dict[str, Any]:
        """Constants, options that are not GPU hints, and hints that the kernel takes as a parameter."""
        kernel, chosen = plan.tuning.kernel, plan.chosen
        options = {k: v for k, v in chosen.options.items() if k not in HINTS or k in kernel.params}
        return {**chosen.kwargs, **options}

    def _decorator(self, values: dict[str, Any], source: Source) -> str | None:
        module = self._triton
        if module is None:
            return None
        items = [f'{_literal(k)}: lambda args: {_literal(v)}' for k, v in values.items()]
        line = f"{module}.heuristics({{{', '.join(items)}}})"
        if len(line) < LINE:
            return line
        return f"{module}.heuristics({{\n" + "".join(f"    {item},\n" for item in items) + "})"

    @functools.cached_property
    def _triton(self) -> str | None:
        names = [local for local, module in self.source.imports.items() if module == "triton"]
        if names:
            return names[0]
        return None if self.source.imports.get("triton") or any(
            m.startswith("triton.") for m in self.source.imports.values() if m != "triton.language") else "triton"

    def _swap(self, kernel: Kernel, old: cst.Decorator, new: str) -> dict[cst.CSTNode, Edit]:
        """Another expression in a decorator; without one the decorator goes, and its comments move down."""
        if new:
            return {old.decorator: cst.parse_expression(new, self.source.tree.module.config_for_parsing)}
        edits: dict[cst.CSTNode, Edit] = {old: cst.RemoveFromParent()}
        below = [d for d in kernel.node.decorators if d is not old]
        after = kernel.node.decorators[list(kernel.node.decorators).index(old) + 1:]
        if old.leading_lines and after:
            edits[after[0]] = after[0].with_changes(leading_lines=[*old.leading_lines, *after[0].leading_lines])
        assert below                            # triton.jit is one
        return edits

    def _keep(self, plan: Plan, why: str) -> None:
        kernel, chosen, found = plan.tuning.kernel, plan.chosen, plan.tuning.decorator
        self.report(found, f"`{kernel.name}` keeps autotune with one configuration: {why}; it does not import "
                           "without a device")
        if chosen.bound or self._triton is None:
            return
        constants = ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in self._values(plan).items())
        hook = f", pre_hook={code(chosen.hook_node)}" if chosen.hook_node is not None else ""
        new = f"{self._triton}.autotune(configs=[{self._triton}.Config({{{constants}}}{hook})], key=[])"
        if new == code(found.decorator):
            return
        if self.replace(found.decorator, cst.parse_expression(new),
                        f"autotune over {len(plan.tuning.configs)} configurations reduced to one"):
            self.gone.append(found)
            self.stay |= {n.value for n in find(cst.parse_expression(new), cst.Name)}

    # Other uses of a kernel's name

    def _uses(self, source: Source, name: str) -> Iterator[cst.Name]:
        for node in source.tree.all(cst.Name):
            if node.value == name:
                up = source.tree.parent(node)
                if isinstance(up, (cst.FunctionDef, cst.ImportAlias, cst.Param)) or (
                        isinstance(up, cst.Arg) and up.keyword is node) or (
                        isinstance(up, cst.Attribute) and up.attr is node):
                    continue
                yield node

    def _escapes(self, source: Source, kernel: Kernel, launches: list[Launch]) -> bool:
        launched = {n for x in launches for n in find(x.call.func, cst.Name)}
        for use in self._uses(source, kernel.name):
            up = source.tree.parent(use)
            tuner = isinstance(up, cst.Attribute) and up.attr.value in TUNER
            if use not in launched and not tuner:
                return True
        return False

    def _is_peeled(self, kernel: Kernel) -> bool:
        ups = (self.source.tree.parent(use) for use in self._uses(self.source, kernel.name))
        return any(isinstance(up, cst.Attribute) and up.attr.value in ("fn", "base_fn") for up in ups)

    def _reads(self, name: str, plan: Plan) -> tuple[dict[cst.CSTNode, Edit], str]:
        """Edits for reads of the tuner of the kernel `name`, or why one of them was not understood."""
        edits: dict[cst.CSTNode, Edit] = {}
        seen = Evaluator({**FACTS, **self._seen(name, plan)})
        for use in self._uses(self.source, name):
            read = self.source.tree.parent(use)
            if not isinstance(read, cst.Attribute) or read.attr.value not in TUNER:
                continue
            place, value = self._worth(seen, read)
            if place is None:
                return {}, f"`{code(read)}` is read in a way that is not understood"
            new = cst.parse_expression(_literal(value))
            edits[place] = new
        return edits, ""

    def _seen(self, name: str, plan: Plan) -> dict[str, Any]:
        qualified = self.source.imports.get(name, name)
        return {f"{qualified}.best_config": plan.chosen, f"{qualified}.configs": [plan.chosen]}

    def _worth(self, seen: Evaluator, read: cst.Attribute) -> tuple[cst.BaseExpression | None, Any]:
        """The smallest expression around a read that is a plain value: `min(c.kwargs["B"] for c in k.configs)`."""
        best: tuple[cst.BaseExpression | None, Any] = (None, None)
        for node in self.source.tree.ancestors(read):
            if isinstance(node, (cst.BaseStatement, cst.BaseSmallStatement, cst.Lambda)):
                break
            if not isinstance(node, cst.BaseExpression):
                continue
            try:
                value = seen.value(self.source, node)
            except NotStatic:
                continue
            if isinstance(value, (int, str)):
                return node, value
            if isinstance(value, list) and all(isinstance(v, (int, str)) for v in value):
                best = (node, value)
        return best

    def _imported(self) -> None:
        """Reads and launches of kernels that another module of the package tunes."""
        names = {use.value for use in self._tuner_reads()} | {
            x.call.func.value.value for x in self.source.launches
            if isinstance(x.call.func, cst.Subscript) and isinstance(x.call.func.value, cst.Name)}
        for name in sorted(names - self.source.kernels.keys()):
            found = self.source.resolve(name)
            if found is None or found[1].name.value not in found[0].kernels:
                continue
            source, kernel = found[0], found[0].kernels[found[1].name.value]
            if decorator(source, kernel) is None:
                continue
            try:
                plan = self._plan(kernel, source)
            except NotStatic:
                continue
            if plan.stays:
                continue
            reads, why = self._reads(name, plan)
            for place, new in reads.items():
                self.replace(place, new, f"the chosen value: autotune of `{name}` is frozen")
            if why:
                use = next(u for u in self._uses(self.source, name))
                self.report(use, f"autotune of `{name}` is frozen, and {why}")
            if plan.hook:
                self._zero_imported(name, plan)

    def _zero_imported(self, name: str, plan: Plan) -> None:
        for launch in self.source.launches:
            if launch.kernel.name != plan.tuning.kernel.name:
                continue
            edits: dict[cst.CSTNode, Edit] = {}
            try:
                if self._insert(launch, zeroing(launch, plan.hook), edits) and edits:
                    self.together(edits, f"zeroes what the hook of `{name}` zeroed", at=launch.call)
            except CannotZero as why:
                self.report(launch.call, f"the hook of `{name}` zeroed arguments, and {why}")

    def _tuner_reads(self) -> Iterator[cst.Name]:
        for node in self.source.tree.all(cst.Attribute):
            if node.attr.value in ("best_config", "configs") and isinstance(node.value, cst.Name):
                yield node.value

    def _others(self) -> None:
        """Autotune around something that is no `triton.jit` function."""
        known = {d for k in self.source.kernels.values() for d in k.node.decorators}
        for call in self.source.tree.all(cst.Call):
            if is_autotune(self.source, call) and self.source.qualified(call.func):
                up = self.source.tree.parent(call)
                if isinstance(up, cst.Decorator) and up in known:
                    continue
                if isinstance(up, cst.Decorator) or (isinstance(up, cst.Call) and up.func is call):
                    self.report(call, "autotune of something that is not a `triton.jit` function here stays")

    # Statements on the host

    def _insert(self, launch: Launch, lines: list[str], edits: dict[cst.CSTNode, Edit]) -> bool:
        """Add these statements before the launch. False if another edit is there already."""
        statement = self.source.tree.statement(launch.call)
        lines = [x for x in lines if x not in above(launch.source, statement)]
        if not lines:
            return True
        if statement in self.edits or statement in edits:
            return False
        parsed: list[Any] = [edit.statement(x, self.source.tree.module) for x in lines]
        blank = 0
        lead = list(statement.leading_lines)        # type: ignore[attr-defined]
        while blank < len(lead) and not lead[blank].comment:
            blank += 1
        parsed[0] = parsed[0].with_changes(leading_lines=lead[:blank])
        rest = statement.with_changes(leading_lines=lead[blank:])
        edits[statement] = cst.FlattenSentinel([*parsed, rest])
        return True

def _literal(value: Any) -> str:
    if isinstance(value, str) and '"' not in value and "\\" not in value and value.isprintable():
        return f'"{value}"'
    return repr(value)
