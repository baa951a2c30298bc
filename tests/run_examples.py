"""Child process of test_examples_run.py. Prints, for each example, how far its two sides are apart."""
from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import torch
from triton.runtime.jit import JITFunction

from ported_kernels import runtime


def kernel(path: str):
    spec = importlib.util.spec_from_file_location("example_" + Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [v for v in vars(module).values() if isinstance(v, JITFunction)][-1]


def tensors(inputs: dict) -> dict:
    random = torch.Generator().manual_seed(0)
    made = {}
    for name, value in inputs.items():
        shape = re.fullmatch(r"(\w+)\[([\d, ]*)\]", value) if isinstance(value, str) else None
        if shape:
            size = [int(n) for n in shape[2].split(",") if n.strip()]
            value = torch.randn(size, generator=random).to(getattr(torch, shape[1]))
        made[name] = value
    return made


def run(job: dict) -> tuple[dict, dict]:
    args = tensors(job["inputs"])
    before = {n: t.clone() for n, t in args.items() if isinstance(t, torch.Tensor)}
    launched = kernel(job["path"])
    with runtime.on("cpu"):
        launched[(1,)](**{n: v for n, v in args.items() if n in launched.arg_names})     # a rule may drop parameters
    return before, {n: args[n] for n in before}


def distance(was: dict, now: dict) -> float:
    """The largest relative L2 error of the tensors."""
    return max(((was[n].double() - now[n].double()).norm() / (was[n].double().norm() + 1e-30)).item() for n in now)


def main() -> None:
    answer: dict[str, dict] = {}
    sides: dict[tuple[str, str], dict] = {}
    for job in json.loads(Path(sys.argv[1]).read_text()):
        start, sides[job["name"], job["side"]] = run(job)
        if job["side"] == "after":
            was, now = sides[job["name"], "before"], sides[job["name"], "after"]
            answer[job["name"]] = {
                "same": all(torch.equal(was[n], now[n]) for n in now), "error": distance(was, now),
                "wrote": any(not torch.equal(start[n], now[n]) for n in now)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
