"""Two forms of kda_state_transition's kernel on the virtual NPU: M carried round the loop in a tile, as it is written
in ported_kernels/kda/plain, and M in its output, as the rule feedback-through-memory makes it. Both are compiled with
multibuffer=False.

    python benchmarks/vnpu_transition.py [--chunk-size 16] [--chunks 3]

Prints the relative L2 error against float64 and what the checks found; exit code 1 when a form that compiles is wrong.
"""
from __future__ import annotations

import argparse
import sys

import torch
from vnpu_chains import error

from migrate.vnpu import device
from ported_kernels.kda import state_transition
from ported_kernels.kda.plain import state_transition as plain
from ported_kernels.kda.state_reference import kda_state_transition_reference

K, COLUMNS, BOUND = 128, 64, 1e-5
FORMS = {"carried in a tile": plain.kda_state_transition_kernel,
         "through memory": state_transition.kda_state_transition_kernel}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--chunk-size", type=int, default=16, choices=(16, 32, 64))
    options.add_argument("--chunks", type=int, default=3)
    chosen = options.parse_args()
    if reason := device.unusable():
        print(f"vnpu_transition: {reason}", file=sys.stderr)
        return 2
    device.configure(device.Settings(strict=False))
    size, T = chosen.chunk_size, chosen.chunk_size * chosen.chunks
    draw = torch.Generator().manual_seed(0)
    wrong = False
    for dtype in (torch.float32, torch.bfloat16):
        key, w = (torch.randn(1, T, 1, K, generator=draw).mul(K**-0.5).to(dtype) for _ in range(2))
        gate = torch.rand(1, T, 1, K, generator=draw).neg().unflatten(1, (-1, size)).cumsum(2).flatten(1, 2) / size
        want = kda_state_transition_reference(gate=gate, key=key, w=w, chunk_size=size)
        for form, kernel in FORMS.items():
            M = torch.full((1, 1, K, K), float("nan"))
            with device.entered() as npu:
                try:
                    kernel[(K // COLUMNS, 1, 1)](gate, key, w, M, T, 0, H=1, H_TOTAL=1, K=K, BT=size, BV=COLUMNS,
                                                 W_HEAD_FIRST=False, multibuffer=False)
                except device.NotCompiled as refused:
                    print(f"{form}, {dtype}: not tried: {refused}")
                    continue
                (run,) = npu.take()
            found = error(M, want)
            wrong |= bool(run.errors) or found > BOUND
            print(f"{form}, {dtype}: relative L2 error {found:.1e}; {len(run.errors)} errors"
                  + "".join(f"\n    {finding}" for finding in run.findings), flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
