"""The child process: reads one job on stdin, tries its cases, prints a line of JSON before and after each.

    echo '{"operator": "...", "cases": [...], "dtype": "float32", "device": "cpu", "seed": 0}' \
        | python -m migrate.verify.worker
"""
from __future__ import annotations

import json
import os
import sys

import torch

from migrate.verify.trial import try_case
from ported_kernels import catalog


def main() -> None:
    job = json.load(sys.stdin)
    # Whatever a library prints must not end up between the results.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)     # several children share the cores
    operator = catalog.get(job["operator"])
    for name in job["cases"]:
        print(json.dumps({"start": name}), file=lines, flush=True)
        result = try_case(operator, operator.case(name), getattr(torch, job["dtype"]), job["device"], job["seed"])
        print(json.dumps({"done": result.as_json()}), file=lines, flush=True)


if __name__ == "__main__":
    main()
