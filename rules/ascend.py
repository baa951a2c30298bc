"""What upstream's questions about the machine answer on an Ascend NPU with triton-ascend 3.2.

FLA picks tile sizes at import time by asking for the GPU model and its shared memory. `check_shared_mem` compares
`max_shared_mem`, which triton-ascend gives as 1, with the size of a GPU's, and so is always False.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packaging.version import Version


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _default(name: str, default: Any = None) -> Any:
    """An environment variable counts as not set: a frozen choice is that of a fresh shell."""
    return default


_FLA = {name: False for name in (
    "IS_AMD", "IS_INTEL", "IS_INTEL_ALCHEMIST", "IS_NVIDIA", "IS_NVIDIA_HOPPER", "IS_NVIDIA_BLACKWELL",
    "IS_NVIDIA_SM100", "IS_NVIDIA_SM120", "IS_TF32_SUPPORTED", "IS_TMA_SUPPORTED", "IS_AMD_TMA_ARCH", "USE_CUDA_GRAPH")}

FACTS: dict[str, Any] = {
    **{f"fla.utils.{name}": value for name, value in _FLA.items()},
    **{f"fla.utils.{module}.{name}": value for module in ("hardware", "_device") for name, value in _FLA.items()},
    "fla.utils.IS_NPU": True,
    "fla.utils.hardware.IS_NPU": True,
    "fla.utils._device.IS_NPU": True,
    "fla.utils.check_shared_mem": _always(False),
    "fla.utils.hardware.check_shared_mem": _always(False),
    "fla.utils._device.check_shared_mem": _always(False),
    "torch.cuda.is_available": _always(False),
    "torch.version.hip": None,
    "torch.version.cuda": None,
    "torch.are_deterministic_algorithms_enabled": _always(False),
    "os.environ.get": _default,
    "os.getenv": _default,
    "triton.__version__": "3.2.0",
    "packaging.version.parse": Version,
    "packaging.version.Version": Version,
}
