"""Launches of fla/ops/cp/chunk_delta_h.py (fla-core 0.5.2) for the compile gate, in the middle of three ranks.

No process group is made: the rank is said to be 1, and gathering repeats what this rank has.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch

B, T, H, HV, K, V, RANKS = 1, 200, 2, 4, 128, 128, 3
STARTS = (0, 70, 71, 200)       # of three packed sequences
CONTEXT = SimpleNamespace(group="none", is_first_rank=False, is_last_rank=False, pre_num_ranks=1, post_num_ranks=1)


def _gathered(mine: torch.Tensor, group: object) -> tuple[torch.Tensor, None]:
    return mine.expand(RANKS, *mine.shape).contiguous(), None


def _call(backward: bool, dtype: torch.dtype, gate: str, module: ModuleType) -> None:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(B, T, *shape, dtype=dtype)

    gates = {"g": torch.zeros(B, T, HV)} if gate == "g" else {"gk": torch.zeros(B, T, HV, K)}
    given = {"k": zeros(H, K), "w": zeros(HV, K), "cu_seqlens": torch.tensor(STARTS), "context": CONTEXT, **gates}
    with mock.patch.object(module, "all_gather_into_tensor", _gathered), \
            mock.patch.object(module.dist, "get_rank", lambda group=None: 1):
        if backward:
            module.chunk_gated_delta_rule_bwd_dhu_pre_process(q=zeros(H, K), do=zeros(HV, V), dv=zeros(HV, V),
                                                              scale=K ** -0.5, **given)
        else:
            module.chunk_gated_delta_rule_fwd_h_pre_process(u=zeros(HV, V), **given)


def cases() -> Iterator[tuple[str, Callable[[ModuleType], None]]]:
    """Both directions, with one gate for a head (`g`) and one for each key (`gk`), in bfloat16 and float32."""
    for backward in (False, True):
        for gate in ("g", "gk"):
            for dtype in (torch.bfloat16, torch.float32):
                name = f"{'backward' if backward else 'forward'} {gate} {str(dtype).removeprefix('torch.')}"
                yield name, partial(_call, backward, dtype, gate)
