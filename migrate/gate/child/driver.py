"""A driver for triton that has no device behind it: importing and lowering work, launching does not.

`triton.autotune` asks for an active driver when a module is imported, ported wrappers ask it for core
counts, and triton-ascend's compiler asks it for the SoC's name. This driver answers from the target table.
"""
from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class Utils:
    """What `driver.active.utils` and triton-ascend's `NPUUtils` are asked for."""

    def __init__(self, arch: str, cube_cores: int, vector_cores: int) -> None:
        self._arch = arch
        # the keys that triton-ascend 3.2.0 fills in, and no others: code that reads more fails there too
        self._properties = {"max_shared_mem": 1, "num_aicore": cube_cores, "num_vectorcore": vector_cores}

    def get_device_properties(self, device: object = 0) -> dict[str, int]:
        return dict(self._properties)

    def get_arch(self) -> str:
        return self._arch

    def get_aicore_num(self) -> int:
        return self._properties["num_aicore"]

    def get_aivector_core_num(self) -> int:
        return self._properties["num_vectorcore"]


class OfflineDriver(DriverBase):
    """Stands in for the NPU driver of one SoC."""

    def __init__(self, arch: str, cube_cores: int, vector_cores: int) -> None:
        self.arch = arch
        self.utils = Utils(arch, cube_cores, vector_cores)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("npu", self.arch, 0)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_benchmarker(self) -> Any:
        return lambda fn, quantiles=None, **_: [1.0, 1.0, 1.0]

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1)


def install(arch: str, cube_cores: int, vector_cores: int) -> OfflineDriver:
    """Make the offline driver the active one, for triton and for triton-ascend's own compiler."""
    import triton.backends.ascend.compiler as ascend

    driver = OfflineDriver(arch, cube_cores, vector_cores)
    triton.runtime.driver.set_active(driver)
    ascend.NPUUtils = lambda: driver.utils
    return driver
