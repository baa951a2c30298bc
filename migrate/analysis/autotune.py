"""What an autotune decorator does besides tuning: its configurations, what pruning keeps, the arguments it zeroes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from migrate.analysis.kernels import Kernel
from migrate.analysis.static import Config, Evaluator, NotStatic
from migrate.source import Source

POSITIONAL = ("configs", "key")


@dataclass(frozen=True)
class Tuning:
    """One decorated kernel. `kept` are the configurations that no pruning function can drop."""

    source: Source
    kernel: Kernel
    decorator: cst.Decorator
    configs: Sequence[Config]
    kept: Sequence[Config]
    zeroed_when_tuning: tuple[str, ...]      # reset_to_zero, and an autotune-level pre_hook that zeroes
    unclear: str = ""                        # what was not understood, though the configurations were


def decorator(source: Source, kernel: Kernel) -> cst.Decorator | None:
    """The autotune decorator of a kernel: `triton.autotune`, or a wrapper of the project that takes its arguments."""
    for each in kernel.node.decorators:
        call = each.decorator
        if isinstance(call, cst.Call) and is_autotune(source, call):
            return each
    return None


def is_autotune(source: Source, call: cst.Call) -> bool:
    name = source.qualified(call.func)
    if name.rpartition(".")[2] == "autotune" and name.partition(".")[0] == "triton":
        return True
    return name.endswith("autotune") and "configs" in _arguments(call)


def _arguments(call: cst.Call) -> dict[str, cst.BaseExpression]:
    out = {}
    for i, arg in enumerate(call.args):
        if arg.keyword:
            out[arg.keyword.value] = arg.value
        elif not arg.star and i < len(POSITIONAL):
            out[POSITIONAL[i]] = arg.value
    return out


def tuning(source: Source, kernel: Kernel, facts: Mapping[str, Any]) -> Tuning | None:
    """None for a kernel without autotune. Raises NotStatic where the configurations cannot be read."""
    found = decorator(source, kernel)
    if found is None:
        return None
    call = cst.ensure_type(found.decorator, cst.Call)
    args = _arguments(call)
    evaluate = Evaluator(facts)
    if "configs" not in args:
        raise NotStatic("autotune without configurations")
    configs = evaluate.value(source, args["configs"])
    if not isinstance(configs, (list, tuple)) or not configs or not all(isinstance(c, Config) for c in configs):
        raise NotStatic("not a list of configurations")
    if "post_hook" in args:
        raise NotStatic("post_hook does work after each launch")
    zeroed: list[str] = []
    if "reset_to_zero" in args:
        names = evaluate.value(source, args["reset_to_zero"])
        zeroed += names or []
    if "pre_hook" in args:
        hook = evaluate.value(source, args["pre_hook"])
        zeroed += evaluate.zeroed(hook) if hook is not None else []
    kept: Sequence[Config] = configs
    unclear = ""
    if "prune_configs_by" in args:
        kept, unclear = _pruned(evaluate, source, args["prune_configs_by"], configs)
    return Tuning(source, kernel, found, configs, kept, tuple(zeroed), unclear)


def _pruned(evaluate: Evaluator, source: Source, node: cst.BaseExpression,
            configs: Sequence[Config]) -> tuple[Sequence[Config], str]:
    try:
        by = evaluate.value(source, node)
        if by is None:
            return configs, ""
        prune = by.get("early_config_prune")
        if prune is None:                           # perf_model only ranks
            return configs, ""
        kept = evaluate.surely_kept(prune, list(configs))
        return (kept, "") if kept else ([], "which configurations it keeps depends on the arguments")
    except NotStatic as why:
        return [], str(why)
