"""Time of a program on the virtual NPU, checks on, beside Triton's interpreter on the same launch.

    python benchmarks/vnpu_speed.py

Prints milliseconds a program (the median over programs and rounds) and the ratio. Exit code 1 when a kernel takes more
than 4 ms a program, or more than the interpreter. Compiling is not counted, nor is the first round.
"""
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from migrate.vnpu import device
from ported_kernels import runtime
from ported_kernels.mamba3.dzdo import mamba3_siso_bwd_dzdo_kernel
from ported_kernels.mamba3.segsum_dadt import bwd_segsum_dadt_kernel

PROGRAMS, ROUNDS = 16, 5
MOST_MS, MOST_RATIO = 4.0, 1.0


def segsum(dtype: torch.dtype) -> Callable[[], Any]:
    C = 64
    d, s = (torch.randn(PROGRAMS, C, C).to(dtype) for _ in range(2))
    sums = torch.zeros(PROGRAMS, C)
    return lambda: bwd_segsum_dadt_kernel[(PROGRAMS,)](d, s, sums, PROGRAMS, C=C, J=C, G=1)


def dzdo(dtype: torch.dtype) -> Callable[[], Any]:
    block = 4096     # 64 tokens of head dimension 64
    do, z, o, dz, scaled = (torch.randn(PROGRAMS * block).to(dtype) for _ in range(5))
    return lambda: mamba3_siso_bwd_dzdo_kernel[(PROGRAMS,)](do, z, o, dz, scaled, PROGRAMS * block, BLOCK=block)


def on_the_npu(launch: Callable[[], Any]) -> float:
    seconds: list[float] = []
    with device.entered() as npu:
        for k in range(ROUNDS + 1):
            launch()
            (run,) = npu.take()
            assert not run.errors, run.errors[0]
            seconds += run.seconds if k else []
    return statistics.median(seconds)


def interpreted(launch: Callable[[], Any]) -> float:
    seconds = []
    with runtime.on("cpu"):
        for k in range(ROUNDS + 1):
            start = time.perf_counter()
            launch()
            seconds += [(time.perf_counter() - start) / PROGRAMS] if k else []
    return statistics.median(seconds)


def main() -> int:
    if reason := device.unusable():
        print(f"vnpu_speed: {reason}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    slow = False
    print(f"{'kernel':<32}{'dtype':<10}{'vnpu, ms':>10}{'interpreter, ms':>18}{'ratio':>8}")
    for name, make in (("bwd_segsum_dadt, C = 64", segsum), ("mamba3_siso_bwd_dzdo, 64 x 64", dzdo)):
        for dtype in (torch.float32, torch.bfloat16):
            launch = make(dtype)
            here, there = 1e3 * on_the_npu(launch), 1e3 * interpreted(launch)
            slow |= here > MOST_MS or here > MOST_RATIO * there
            print(f"{name:<32}{str(dtype).removeprefix('torch.'):<10}{here:>10.2f}{there:>18.2f}{here / there:>8.2f}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
