"""Turn launches into records: what would be compiled, with which grid, and nothing runs.

Triton's own `JITFunction.run` does the binding, specialisation and option checks; the recorder only takes
the place of the hook that triton calls right before it compiles, so a launch that would be refused on a
card is refused here with the same message.
"""
from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, get_jit_fn_file_line

GRID_LIMIT = 65_535   # programs a launch; the runtime's block number is 16 bits wide
_NOT_COMPILED = frozenset({"grids", "config", "scalars", "launched_at", "unspoken"})
_SPOKEN = int | float | bool | str | None       # what JSON holds as it is


@dataclass
class Launch:
    """One specialisation of one kernel, as triton would compile it."""

    fn: JITFunction
    signature: dict[str, str]
    constants: dict[str, Any]
    attrs: Any
    options: Any
    config: str = ""               # which autotune configuration, when there are several
    scalars: dict[str, int] = field(default_factory=dict)   # integer arguments, as first launched
    launched_at: tuple[str, int] = ("", 0)
    grids: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Launches with the same key compile to the same thing."""
        same = {k: v for k, v in self.describe().items() if k not in _NOT_COMPILED}
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:24]

    def describe(self) -> dict[str, Any]:
        file, line = get_jit_fn_file_line(self.fn)
        return {
            "kernel": self.fn.fn.__name__, "file": file, "line": line, "signature": self.signature,
            "constants": {name: value if isinstance(value, _SPOKEN) else repr(value)
                          for name, value in self.constants.items()},
            "unspoken": [name for name, value in self.constants.items() if not isinstance(value, _SPOKEN)],
            "divisible_by_16": [name for name in (self.fn.arg_names[i] for i in self.attrs.divisibility_16)
                                if name in self.signature],
            "options": _changed(self.options), "config": self.config, "scalars": self.scalars,
            "launched_at": list(self.launched_at), "grids": [list(g) for g in self.grids]}


def _changed(options: Any) -> dict[str, Any]:
    """The launch options that are not at their default; those are what a port sets."""
    default = type(options)()
    return {name: repr(value) if not isinstance(value, int | float | bool | str | None) else value
            for name, value in vars(options).items()
            if value != getattr(default, name) and name not in ("debug", "stream", "num_warps", "num_stages")}


def _label(config: Any) -> str:
    """What a configuration sets; warps and stages mean nothing on Ascend."""
    chosen = config.kwargs | {k: v for k, v in config.all_kwargs().items() if v and not k.startswith("num_")}
    return ", ".join(f"{k}={v}" for k, v in chosen.items()) or str(config)


def _caller() -> tuple[str, int]:
    """The line that launched: the innermost frame that is neither triton's nor ours."""
    frame = sys._getframe(2)
    while frame.f_back and ("/triton/" in frame.f_code.co_filename or frame.f_globals.get("__name__") == __name__):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class Recorder:
    """Collects the launches of what is called while it is installed."""

    def __init__(self) -> None:
        self.launches: dict[str, Launch] = {}
        self._bound: Launch | None = None
        self._config = ""

    def install(self) -> None:
        recorder, run = self, JITFunction.run

        def call_hook(jit: JITFunction, key: Any, signature: dict[str, str], device: int, constants: dict[str, Any],
                      options: Any, configs: Any, is_warmup: bool, before: bool) -> bool:
            recorder._bound = Launch(jit, signature, constants, configs[0], options, recorder._config)
            return True   # triton takes this as "someone else compiled it" and returns without launching

        def record(jit: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
            recorder._bound = None
            run(jit, *args, grid=grid, warmup=warmup, **kwargs)
            if recorder._bound is None:
                return
            kwargs.setdefault("debug", False)
            bound = jit.binder(*args, **kwargs)[0]
            launch = recorder.launches.setdefault(recorder._bound.key, recorder._bound)
            launch.scalars = launch.scalars or {name: value for name, value in bound.items()
                                                if isinstance(value, int) and name in launch.signature}
            if not launch.grids:
                launch.launched_at = _caller()
            if callable(grid):
                grid = grid(bound)
            grid = tuple(int(n) for n in ((grid,) if isinstance(grid, int) else grid))
            if grid not in launch.grids:
                launch.grids.append(grid)

        def try_all(tuner: Autotuner, *args: Any, **kwargs: Any) -> None:
            """On a card every configuration is compiled to be timed; here every one is recorded."""
            tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
            configs = tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs
            for config in configs:
                recorder._config = _label(config) if len(configs) > 1 else ""
                tuner.fn.run(*args, **{**kwargs, **config.all_kwargs()})
            recorder._config = ""

        JITFunction._call_hook = call_hook
        JITFunction.run = record
        Autotuner.run = try_all

    def take(self) -> list[Launch]:
        """The launches since the last call of `take`."""
        taken, self.launches = list(self.launches.values()), {}
        return taken


def jit_functions(module: Any) -> list[JITFunction]:
    """The `@triton.jit` functions that a module defines, under any stack of decorators."""
    found = []
    for value in vars(module).values():
        while not isinstance(value, JITFunction) and hasattr(value, "fn") and hasattr(value, "run"):
            value = value.fn
        if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__ and value not in found:
            found.append(value)
    return found
