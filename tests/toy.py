"""A small package with a kernel, written for tests, as two pinned releases; and `migrate` as a function."""
from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from migrate import cli
from upstream_snapshots import pins

FILES = {
    "toyk/__init__.py": "import a_gpu_library_that_is_not_installed\nfrom toyk.ops import scan\n",
    "toyk/flags.py": "FAST = True\n",
    "toyk/ops/__init__.py": "from toyk.ops.index import offsets\nfrom toyk.ops.scan import scale\n",
    "toyk/ops/index.py": "def offsets(lengths):\n    return [0, *lengths]\n",
    "toyk/ops/maths.py": """\
import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x + x
""",
    "toyk/ops/scan.py": '''\
# Copyright of the toy authors

"""Scales."""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from toyk.ops import offsets
from toyk.ops.maths import twice

if TYPE_CHECKING:
    from toyk.flags import FAST


@triton.jit
def scale_kernel(X, Y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, twice(tl.load(X + at, mask=at < N)), mask=at < N)


def scale(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64, num_warps=4)
    scale_kernel[(1,)](
        x, y, offsets([x.numel()])[1],
        BLOCK=64,
        num_stages=3,
    )
    return y


def step(x):
    scale_kernel[(1,)](x, x, 1, BLOCK=64, num_stages=1)
''',
}


@dataclass
class Run:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@dataclass
class Toy:
    """The working folder, with the releases toy-kernels 1.0 and 2.0 (whose scan.py has one more function)."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    @property
    def generated(self) -> Path:
        return self.folder / "out"

    def migrate(self, *args: str) -> Run:
        self.monkeypatch.setattr(sys, "argv", ["migrate", *args])
        self.capsys.readouterr()
        try:
            cli.main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = self.capsys.readouterr()
        assert isinstance(code, int)
        return Run(code, out, err)

    def port(self, *args: str) -> Run:
        return self.migrate("port", *args, "-o", str(self.generated))

    def tree(self, top: Path | None = None) -> dict[str, bytes]:
        top = top or self.generated
        return {p.relative_to(top).as_posix(): p.read_bytes() for p in sorted(top.rglob("*")) if p.is_file()}


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())
    return folder


def pin(home: Path, unpacked: Path, version: str, port_as: str, files: dict[str, str]) -> None:
    """Pin a release whose files lie there already, so that nothing is fetched."""
    folder = f"toy-kernels-{version}"
    put(unpacked / folder, files)
    with (home / "snapshots.toml").open("a") as table:
        table.write(f'[[snapshot]]\nname = "toy-kernels"\nversion = "{version}"\nfile = "t.whl"\nsha256 = "0"\n'
                    f'licence = "MIT"\npackage = "toyk"\nport_as = "{port_as}"\n')
    with (home / "snapshots.sha256").open("a") as hashes:
        for name, text in sorted(files.items()):
            hashes.write(f"{hashlib.sha256(text.encode()).hexdigest()}  {folder}/{name}\n")


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Toy:
    home, unpacked, work = tmp_path / "pins", tmp_path / "unpacked", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    pin(home, unpacked, "1.0", "toyk_1_0", FILES)
    more = FILES["toyk/ops/scan.py"] + "\n\ndef more():\n    pass\n"
    pin(home, unpacked, "2.0", "toyk", {**FILES, "toyk/ops/scan.py": more, "toyk/ops/only_new.py": "X = 1\n"})
    monkeypatch.setattr(pins, "HERE", home)
    monkeypatch.setenv("MIGRATE_SNAPSHOTS", str(unpacked))
    monkeypatch.chdir(work)
    return Toy(work, monkeypatch, capsys)
