"""A few seeded faults in three compiled kernels; `benchmarks/vnpu_mutants.py` has the whole run."""
from __future__ import annotations

import re

import pytest
import small_kernels as small
import torch

from migrate.vnpu import device, mutate
from migrate.vnpu.mutate import BARRIER, BY_A_BLOCK, FLAG_PAIR, HALVED, HANDSHAKE, ONTO, Report
from ported_kernels.mamba3 import dzdo, segsum_dadt


def dzdo_loop() -> None:
    do, z, o = torch.randn(3, 4500)
    dzdo.mamba3_siso_bwd_dzdo_kernel[(1,)](do, z, o, torch.empty_like(do), torch.empty_like(do), 4500, BLOCK=1024)


def matmul() -> None:
    small.matmul_silu(torch.randn(32, 96), torch.randn(96, 32), torch.randn(32))


def segsum() -> None:
    gradient, sums = torch.randn(2, 2, 64, 64)
    segsum_dadt.bwd_segsum_dadt_kernel[(1,)](gradient, sums, torch.randn(2, 64), 2, C=64, J=64, G=1)


def examine(npu: device.Device, call: object, kinds: tuple[str, ...], limit: int = 3) -> Report:
    [subject] = mutate.subjects(call)      # type: ignore[arg-type]
    return mutate.examine(subject, npu, limit, kinds)


@pytest.mark.parametrize("call, kinds", [(dzdo_loop, (FLAG_PAIR, BARRIER, ONTO)),
                                         (matmul, (FLAG_PAIR, HANDSHAKE, BARRIER, ONTO))])
def test_what_matters_is_noticed(npu: device.Device, call: object, kinds: tuple[str, ...]) -> None:
    report = examine(npu, call, kinds)
    assert not report.itself.matters and not report.itself.noticed      # no false alarm, by any of the yardsticks
    assert {outcome.mutant.kind for outcome in report.outcomes} == set(kinds)
    assert [o.mutant.what for o in report.outcomes if o.matters and not o.noticed] == []
    for kind in kinds:
        assert any(o.matters for o in report.outcomes if o.mutant.kind == kind), kind


def test_the_second_opinions_agree_on_flags(npu: device.Device) -> None:
    """Without a pair of flags two calls have no order, and another order gives another result."""
    report = examine(npu, dzdo_loop, (FLAG_PAIR,))
    assert all(o.unordered and o.other_order and not o.changed for o in report.outcomes)


def test_buffers_of_integers_and_masks(npu: device.Device) -> None:
    """A mask that is made before the loop, from integers: each of their buffers moved or halved. What is lost is no
    number that could be a NaN, and is noticed where it ends up."""
    report = examine(npu, segsum, (ONTO, BY_A_BLOCK, HALVED), limit=0)
    assert not report.itself.matters and not report.itself.noticed
    of_mask = [o for o in report.outcomes if re.search(r"ub (0|256|16640|33024), ", o.mutant.what)]
    assert sum(o.matters for o in of_mask) >= 10
    assert [o.mutant.what for o in report.outcomes if o.matters and not o.noticed] == []
