"""Lists the operators, or runs one of them and prints the shapes and norms of what came, and the time."""
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ported_kernels import catalog, runtime
from ported_kernels.arguments import short
from ported_kernels.catalog import Operator


def main(arguments: Sequence[str] | None = None, prog: str = "python -m ported_kernels", who: str = "ported_kernels",
         prepare: Callable[[Operator], None] = lambda operator: None) -> int:
    """Exit code 0: done; 2: no such operator, case, dtype or device, or no port. `migrate run` is this, too: `prepare`
    makes the port."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("name", nargs="?", help="operator to run; without it, the operators are listed")
    parser.add_argument("--device", help="npu, cuda, cpu or vnpu; default: the first of npu, cuda and cpu "
                                           "that is here")
    parser.add_argument("--dtype", default="float32", help="default: %(default)s")
    parser.add_argument("--case", help="default: the operator's first; 'list' shows them")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.name is None:
        print(listing())
        return 0
    try:
        operator = catalog.get(options.name)
        if options.case == "list":
            print("\n".join(case.name for case in operator.cases))
            return 0
        case = operator.case(options.case) if options.case else operator.cases[0]
        dtype = {short(dtype): dtype for dtype in operator.dtypes}.get(options.dtype)
        if dtype is None:
            raise KeyError(f"{operator.name} has no dtype {options.dtype!r}; it has "
                           + ", ".join(map(short, operator.dtypes)))
        device = options.device or runtime.default_device()
        runtime.require(device)
    except (KeyError, ValueError, runtime.DeviceUnavailable) as error:
        print(f"{who}: {error.args[0]}", file=sys.stderr)
        return 2
    prepare(operator)
    try:
        print(run(operator, case, dtype, device, options.seed))
    except catalog.NotPorted as error:
        print(f"{who}: {error}", file=sys.stderr)
        return 2
    return 0


def listing() -> str:
    """A line for each operator: name, what it does, its dtypes, what it ports."""
    width = max(map(len, catalog.operators()))
    lines = []
    for name, operator in catalog.operators().items():
        dtypes = ", ".join(map(short, operator.dtypes))
        lines += [f"{name:<{width}}  {operator.summary}",
                  f"{'':<{width}}  {len(operator.cases)} cases; {dtypes}",
                  f"{'':<{width}}  {operator.origin}"]
    return "\n".join(lines)


def run(operator: Operator, case: catalog.Case, dtype: torch.dtype, device: str, seed: int) -> str:
    """Runs one case twice, the first time to compile, the second to be timed, each on its own copies of what
    it changes. Says nothing on whether the result is right: that is `migrate verify`."""
    wrapper = operator.trial(device)
    inputs = {name: _to(value, device) for name, value in case.build(seed, dtype).items()}
    came = [f"  in   {name:<12} {describe(value)}" for name, value in inputs.items()]
    wrapper(**{name: value.clone() if name in operator.mutates else value for name, value in inputs.items()})
    runtime.wait(device)
    started = time.perf_counter()
    outputs = wrapper(**inputs)
    runtime.wait(device)
    seconds = time.perf_counter() - started
    lines = [f"{operator.name}, case {case.name!r}, {short(dtype)}, seed {seed}, on {device} "
             f"({runtime.properties(device).arch})", *came]
    lines += [f"  out  {name:<12} {describe(value)}"
              for name, value in zip(operator.outputs, operator.results(outputs, inputs), strict=False)]
    return "\n".join([*lines, f"  {seconds * 1e3:.2f} ms"])


def _to(value: Any, device: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_to(one, device) for one in value)
    return value.to(runtime.home(device)) if isinstance(value, torch.Tensor) else value


def describe(value: Any) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(describe, value))
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{list(value.shape)} {short(value.dtype)}, norm {float(value.float().norm()):.6g}"


if __name__ == "__main__":
    sys.exit(main())
