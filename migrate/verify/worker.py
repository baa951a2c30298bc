"""The child process: a line of JSON on stdin is a case to try, a line of JSON on stdout its result.

    {"operator": "mamba3_siso_bwd_dzdo", "case": "T37 D40", "dtype": "float32", "device": "cpu", "seed": 0}
"""
from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from migrate.verify.trial import try_case
from migrate.vnpu import device
from migrate.vnpu.machine import Options
from ported_kernels import catalog


def main() -> None:
    # Whatever a library prints must not end up between the results.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)     # several children share the cores
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        contract = job.get("contract")
        if virtual := job.get("virtual"):
            programs = virtual["programs"]
            options = Options(programs=None if programs is None else tuple(programs))
            device.configure(device.Settings(virtual["target"], options, strict=False))
        operator = catalog.from_file(Path(contract)) if contract else catalog.get(job["operator"])
        result = try_case(operator, operator.case(job["case"]), getattr(torch, job["dtype"]), job["device"],
                          job["seed"])
        print(json.dumps(result.as_json()), file=answers, flush=True)


if __name__ == "__main__":
    main()
