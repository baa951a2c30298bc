"""What this machine can do for the gate, and the one command that adds the rest."""
from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from migrate.errors import UsageError
from migrate.gate import cache, targets, toolchain

INSTALL = "migrate doctor --install-gate"


@dataclass(frozen=True)
class Ability:
    """One thing: whether it is there, what was found, and the command that adds it."""

    name: str
    there: bool
    found: str
    remedy: str = ""


def abilities() -> list[Ability]:
    """In the order in which a check needs them."""
    here, own = toolchain.current(), toolchain.installed()
    used: toolchain.Toolchain | None = None
    why = ""
    try:
        used = toolchain.find()
    except UsageError as error:
        why = str(error)
    found = [Ability("machine", platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64"),
                     f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
                     "the compiler's programs exist for Linux on x86-64 and aarch64"),
             Ability("this environment", here.sound, _told(here), INSTALL),
             Ability("the gate's own environment", bool(own and own.sound),
                     _told(own) if own else f"not made ({toolchain.own_environment()})", "" if here.sound else INSTALL)]
    if used:
        found.append(Ability("check: front end, linalg, HIVM", True, f"uses {used.python}"))
        found.append(Ability("check: the 950 family", os.access(used.program("bishengir-compile-a5"), os.X_OK),
                             "bishengir-compile-a5", INSTALL))
    else:
        found.append(Ability("check: front end, linalg, HIVM", False, why, INSTALL))
    found.append(Ability("check: reading HIVM", importlib.util.find_spec("xdsl") is not None, "xdsl",
                         "pip install 'triton-ascend-migrate[cpu]'"))
    name = targets.get(targets.DEFAULT).assembler
    real = toolchain.assembler(name)
    found.append(Ability("check: binary", real is not None, str(real) if real else f"no {name} on PATH",
                         "" if real else "install CANN, then: source /usr/local/Ascend/ascend-toolkit/set_env.sh"))
    found.append(Ability("cache", _writable(cache.folder()), str(cache.folder()), "set MIGRATE_CACHE to a folder"))
    return found


def _told(chain: toolchain.Toolchain) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in chain.versions.items())
    return "; ".join(filter(None, [versions, *chain.problems]))


def _writable(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)
