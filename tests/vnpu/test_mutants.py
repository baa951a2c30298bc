"""A few seeded faults in two compiled kernels; `benchmarks/vnpu_mutants.py` has the whole run."""
from __future__ import annotations

import pytest
import small_kernels as small
import torch

from migrate.vnpu import device, mutate
from migrate.vnpu.mutate import BARRIER, FLAG_PAIR, HANDSHAKE, ONTO, Report
from ported_kernels.mamba3 import dzdo


def dzdo_loop() -> None:
    do, z, o = torch.randn(3, 4500)
    dzdo.mamba3_siso_bwd_dzdo_kernel[(1,)](do, z, o, torch.empty_like(do), torch.empty_like(do), 4500, BLOCK=1024)


def matmul() -> None:
    small.matmul_silu(torch.randn(32, 96), torch.randn(96, 32), torch.randn(32))


def examine(npu: device.Device, call: object, kinds: tuple[str, ...]) -> Report:
    [subject] = mutate.subjects(call)      # type: ignore[arg-type]
    return mutate.examine(subject, npu, 3, kinds)


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
