"""Kernels of mamba and flash-linear-attention for Ascend NPUs, callable on npu, cuda and cpu.

    from ported_kernels import bwd_segsum_dadt, compute_dqkv

Every operator of the catalogue can be imported so, those that run a generated port as well: the port is imported at the
first call, for the device of the tensors, and must have been made by then (`migrate port`, `migrate verify`).

Nothing is imported until a name is used: listing operators needs neither triton nor torch_npu.
`python -m ported_kernels` lists the operators and runs one.
"""
from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ported_kernels.kda.state_grad_ext import kda_state_grad_ext
    from ported_kernels.kda.state_summary import kda_split_state_summary
    from ported_kernels.kda.state_transition import kda_state_transition
    from ported_kernels.mamba3.dzdo import mamba3_siso_bwd_dzdo
    from ported_kernels.mamba3.segsum_dadt import bwd_segsum_dadt

__all__ = ["bwd_segsum_dadt", "kda_split_state_summary", "kda_state_grad_ext", "kda_state_transition",
           "mamba3_siso_bwd_dzdo"]

_HOME = {
    "bwd_segsum_dadt": "ported_kernels.mamba3.segsum_dadt",
    "kda_split_state_summary": "ported_kernels.kda.state_summary",
    "kda_state_grad_ext": "ported_kernels.kda.state_grad_ext",
    "kda_state_transition": "ported_kernels.kda.state_transition",
    "mamba3_siso_bwd_dzdo": "ported_kernels.mamba3.dzdo",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    # The import system asks for modules here before it looks for them.
    if not name.startswith("__") and importlib.util.find_spec(f"{__name__}.{name}") is None:
        known = importlib.import_module(f"{__name__}.catalog").operators()
        if name in known:
            return known[name].function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
