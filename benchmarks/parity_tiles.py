"""Which configurations upstream's autotuner tries in gpu_parity.py: a few, or the port's frozen one alone."""
from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import triton


def few(limit: int) -> Callable[..., Any]:
    """`triton.autotune` that tries at most `limit` configurations: common ones first."""
    original = triton.autotune

    def uncommon(config: Any) -> tuple[bool, bool, bool]:
        return (getattr(config, "maxnreg", None) is not None, config.num_warps != 4, config.num_stages > 2)

    def autotune(configs: list[Any], *args: Any, **kwargs: Any) -> Any:
        return original(sorted(configs, key=uncommon)[:limit], *args, **kwargs)

    return autotune


def as_ported(ports: str) -> Callable[..., Any]:
    """`triton.autotune` with the one configuration that the port of the same kernel was frozen to, and Triton's
    default of warps and stages, as the port has it. `ports` is the package of the ports of mamba_ssm."""
    original = triton.autotune

    def autotune(configs: list[Any], *args: Any, **kwargs: Any) -> Any:
        def decorate(kernel: Any) -> Any:
            frozen = frozen_constants(kernel, ports, {name for config in configs for name in config.kwargs})
            hook = getattr(configs[0], "pre_hook", None)
            return original([triton.Config(frozen, pre_hook=hook)], *args, **kwargs)(kernel)
        return decorate

    return autotune


def frozen_constants(kernel: Any, ports: str, names: set[str]) -> dict[str, Any]:
    """The values that the port's decorators give to what upstream's configurations set."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    module = ports + kernel.__module__.removeprefix("mamba_ssm")
    port, values = getattr(importlib.import_module(module), kernel.__name__), {}
    while hasattr(port, "fn"):
        for name, value in getattr(port, "values", {}).items():
            if name in names:
                values[name] = value({})
        port = port.fn
    missing = names - values.keys()
    if missing:
        raise RuntimeError(f"{module}.{kernel.__name__}: the port sets no {', '.join(sorted(missing))}")
    return values
