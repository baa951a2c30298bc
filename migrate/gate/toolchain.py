"""Where the compiler is, and whether it is sound.

`triton` and `triton-ascend` install into the same folder, so a CUDA build of torch, which brings `triton`, silently
replaces files of triton-ascend while its metadata stays. Soundness is therefore judged by the files themselves,
against the hashes that the wheel recorded.
"""
from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache as kept
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from migrate.errors import MigrateError, UsageError
from migrate.gate import cache

PINS = {"torch": "2.13.0", "triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "numpy": "2.2.6"}
# triton-ascend needs the first two and declares neither; ported files import einops
_ALSO = ("pybind11", "attrs", "einops", "packaging")
_PYTHONS = ("3.11", "3.10", "3.9")   # triton-ascend 3.2.0 has wheels for these


@dataclass(frozen=True)
class Toolchain:
    """A Python environment that holds triton-ascend and ascendnpu-ir."""

    python: Path
    site: Path
    versions: dict[str, str]
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems

    @property
    def adapter(self) -> Path:
        return self.site / "triton/backends/ascend/triton-adapter-opt"

    def program(self, name: str) -> Path:
        """A program of ascendnpu-ir: bishengir-compile, bishengir-opt, or their -a5 forms."""
        return self.site / "ascendnpuir/bin" / name

    def links(self, function: str) -> bool:
        """Whether the bitcode that `bishengir-compile` links holds a name: the names of the four files lie end to end.

        A name that is part of a longer one counts as there, and so does every name where the files cannot be read:
        False is sure, True is not.
        """
        return _links(self.site / "ascendnpuir/lib", function)

    @property
    def environment(self) -> dict[str, str]:
        """For workers: the compiler on PATH, and this package importable whatever environment they run in."""
        here = str(Path(__file__).parents[2])
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**{k: v for k, v in os.environ.items() if not k.startswith("TRITON_")},
                "PATH": f"{self.program('').resolve()}{os.pathsep}{os.environ.get('PATH', '')}",
                "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def inspect(python: Path, site: Path) -> Toolchain:
    """What an environment holds, by what is in its folders."""
    found = {d.metadata["Name"].lower(): d for d in metadata.distributions(path=[str(site)]) if d.metadata["Name"]}
    versions = {name: found[name].version for name in PINS if name in found}
    problems = [f"{name} is not installed" for name in ("torch", "triton-ascend", "ascendnpu-ir") if name not in found]
    if "triton-ascend" in found:
        problems += _overwritten(site, found["triton-ascend"], "triton" in found)
    if "ascendnpu-ir" in found and not os.access(site / "ascendnpuir/bin/bishengir-compile", os.X_OK):
        problems.append("ascendnpu-ir holds no executable bishengir-compile")
    return Toolchain(python, site, versions, problems)


def _overwritten(site: Path, distribution: metadata.Distribution, has_triton: bool) -> Iterator[str]:
    """Compare the `triton` folder with what the triton-ascend wheel recorded: text by hash, programs by size."""
    changed, missing = [], []
    for name, recorded, size in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        path = site / name
        if not name.startswith("triton/") or not recorded:
            continue
        if not path.exists():
            missing.append(name)
        elif path.stat().st_size != int(size) or (path.suffix == ".py" and _digest(path) != recorded):
            changed.append(name)
    if changed or missing:
        first = (changed + missing)[0]
        culprit = "triton (it comes with a CUDA build of torch) overwrote" if has_triton else "something changed"
        yield f"{culprit} triton-ascend's folder: {len(changed)} files differ, {len(missing)} are gone, first {first}"
    foreign = [b for b in ("nvidia", "amd") if (site / "triton/backends" / b).exists()]
    if foreign:
        yield f"triton/backends holds {', '.join(foreign)}: the folder belongs to triton, not to triton-ascend"


def _digest(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@lru_cache(maxsize=1)
def _bitcode(folder: Path) -> list[bytes]:
    try:
        return [(folder / f"meta_op.{core}.bc").read_bytes() for core in ("aiv", "aic", "mix.aiv", "mix.aic")]
    except OSError:
        return []


@kept
def _links(folder: Path, function: str) -> bool:
    """Kept by name: a search through 18 MB takes 8 ms, and a kernel calls a few functions hundreds of times."""
    names = _bitcode(folder)
    return not names or any(function.encode() in some for some in names)


def own_environment() -> Path:
    """Where `migrate doctor --install-gate` puts an environment for the gate alone."""
    name = "-".join(f"{package}-{version}" for package, version in PINS.items() if package != "numpy")
    return cache.folder() / "gate-env" / name


def current() -> Toolchain:
    return inspect(Path(sys.executable), Path(sysconfig.get_paths()["purelib"]))


def installed() -> Toolchain | None:
    """The gate's own environment, when it is there."""
    python = own_environment() / "bin/python"
    sites = sorted(own_environment().glob("lib/python3.*/site-packages"))
    return inspect(python, sites[0]) if python.exists() and sites else None


@lru_cache(maxsize=1)
def find() -> Toolchain:
    """The toolchain to use: this environment's, else the gate's own. MIGRATE_GATE_PYTHON names another."""
    if named := os.environ.get("MIGRATE_GATE_PYTHON"):
        chosen = inspect(Path(named), _site_of(Path(named)))
        if chosen.sound:
            return chosen
        raise UsageError(f"MIGRATE_GATE_PYTHON={named}: {'; '.join(chosen.problems)}")
    here = current()
    if here.sound:
        return here
    own = installed()
    if own and own.sound:
        return own
    raise UsageError("no sound Ascend toolchain: " + "; ".join(here.problems)
                     + ". Nothing was tried. Make one with: migrate doctor --install-gate")


def _site_of(python: Path) -> Path:
    try:
        out = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                             capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"{python} is no Python interpreter: {error}") from None
    return Path(out.stdout.strip())


def assembler(name: str) -> Path | None:
    """The real last step (`hivmc`, `hivmc-a5`) of a CANN installation on PATH, if there is one."""
    found = shutil.which(name)
    return Path(found) if found else None


def install() -> Toolchain:
    """Make the gate's own environment: a CPU torch, and the two packages at the versions above."""
    python = _python_for_gate()
    target = own_environment()
    if (ready := installed()) and ready.sound:
        return ready
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    pip: list[str | Path] = [target / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _step([python, "-m", "venv", target], target)
    # first torch alone: PyPI's own build brings `triton`, which must be gone before triton-ascend comes. The CPU
    # build is not on PyPI; where the user's own indexes do not have it either, PyTorch's does
    torch: list[str | Path] = [*pip, "install", _cpu_torch()]
    if _run(torch):
        _step([*torch, "--extra-index-url", "https://download.pytorch.org/whl/cpu"], target)
    _step([*pip, "uninstall", "--yes", "triton"], target)
    others = [f"{name}=={version}" for name, version in PINS.items() if name != "torch"]
    _step([*pip, "install", *others, *_ALSO], target)
    made = installed()
    if not made or not made.sound:
        raise MigrateError(f"the environment in {target} is not sound: "
                           + "; ".join(made.problems if made else ["it has no Python"]))
    return made


def _run(argv: list[str | Path]) -> int:
    # what pip says goes to stderr: stdout is for results
    return subprocess.run([os.fspath(part) for part in argv], stdout=sys.stderr, check=False).returncode


def _step(argv: list[str | Path], target: Path) -> None:
    if code := _run(argv):
        shutil.rmtree(target, ignore_errors=True)
        raise MigrateError(f"could not make the gate's environment: {' '.join(map(str, argv))} ended with {code}")


def _cpu_torch() -> str:
    # the CPU builds carry a local version on x86-64; on aarch64 PyPI's build has no CUDA in it
    return f"torch=={PINS['torch']}" + ("+cpu" if os.uname().machine == "x86_64" else "")


def _python_for_gate() -> Path:
    if f"{sys.version_info.major}.{sys.version_info.minor}" in _PYTHONS:
        return Path(sys.executable)
    for version in _PYTHONS:
        if found := shutil.which(f"python{version}"):
            return Path(found)
    raise UsageError(f"triton-ascend {PINS['triton-ascend']} needs Python {' or '.join(_PYTHONS)}, "
                     "and none is on PATH")
