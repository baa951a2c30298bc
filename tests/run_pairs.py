"""Child process of test_split_tile.py: runs two versions of a kernel on the same inputs, for each line of stdin."""
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import run_examples
import torch

with tempfile.TemporaryDirectory() as folder:
    for number, line in enumerate(sys.stdin):
        job = json.loads(line)
        sides = []
        for side in ("before", "after"):
            path = Path(folder) / f"{side}{number}.py"
            path.write_text(job[side])
            sides.append(run_examples.run({"path": str(path), "inputs": job["inputs"]}))
        (start, was), (_, now) = sides
        print(json.dumps({
            "same": all(torch.equal(was[n], now[n]) for n in now),
            "finite": all(bool(torch.isfinite(was[n]).all()) for n in now),
            "error": run_examples.distance(was, now),
            "wrote": [n for n in now if not torch.equal(start[n], now[n])]}), flush=True)
