"""The SoCs that the compiler can be asked about, as data.

Memory sizes are in bits, as the compiler reports them. Every row was read from the
`dlti.target_system_spec` that bishengir-compile 1.2.0 (and bishengir-compile-a5 for the 950 family) writes
into the final HIVM for that `--target`; tests/gate/test_targets.py reads them again.
"""
from __future__ import annotations

from dataclasses import dataclass

from migrate.errors import UsageError


@dataclass(frozen=True)
class Target:
    """One SoC: what `--target` calls it, its cores, and the memories of one core in bits."""

    name: str
    cube_cores: int
    vector_cores: int
    ub_bits: int = 1_572_864      # Unified Buffer of a vector core
    l1_bits: int = 4_194_304      # cbuf, shared by a cube core's operands
    l0a_bits: int = 524_288
    l0b_bits: int = 524_288
    l0c_bits: int = 1_048_576     # accumulators of a cube core
    family: str = "A2/A3"

    @property
    def compiler(self) -> str:
        return "bishengir-compile-a5" if self.family == "A5" else "bishengir-compile"

    @property
    def optimizer(self) -> str:
        return "bishengir-opt-a5" if self.family == "A5" else "bishengir-opt"

    @property
    def assembler(self) -> str:
        """The last step, which only CANN ships."""
        return "hivmc-a5" if self.family == "A5" else "hivmc"


def _a5(name: str, cube_cores: int) -> Target:
    return Target(name, cube_cores, 2 * cube_cores, ub_bits=2_031_616, l0c_bits=2_097_152, family="A5")


TARGETS: dict[str, Target] = {target.name: target for target in (
    Target("Ascend910B1", 24, 48),
    Target("Ascend910B2", 24, 48),
    Target("Ascend910B2C", 24, 48),
    Target("Ascend910B3", 20, 40),
    Target("Ascend910B4", 20, 40),
    Target("Ascend910B4-1", 20, 40),
    Target("Ascend910_9362", 20, 40),
    Target("Ascend910_9372", 20, 40),
    Target("Ascend910_9381", 24, 48),
    Target("Ascend910_9382", 24, 48),
    Target("Ascend910_9391", 24, 48),
    Target("Ascend910_9392", 24, 48),
    _a5("Ascend950PR_950z", 4),
    _a5("Ascend950DT_950x", 8),
    _a5("Ascend950PR_9579", 28),
    _a5("Ascend950PR_9589", 32),
    _a5("Ascend950PR_9599", 36),
)}

DEFAULT = "Ascend910B2"
ALL = tuple(name for name, target in TARGETS.items() if target.family == "A2/A3")
"""What `--all-targets` means. The 950 family is asked for by name: triton-ascend 3.2.0 does not lower for it
unless told to, so a verdict there says less about what a user would get."""


def get(name: str) -> Target:
    try:
        return TARGETS[name]
    except KeyError:
        raise UsageError(f"unknown target {name!r}; known: {', '.join(TARGETS)}") from None
