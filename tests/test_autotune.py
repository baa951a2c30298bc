"""Reading configurations without running them, choosing one, and what reaches a kernel afterwards."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from migrate import engine
from migrate.analysis.static import Config, Evaluator, NotStatic
from migrate.project import PackageProject, TextProject, Upstream
from migrate.source import Source
from rules.ascend import FACTS
from rules.host.portable_host import PortableHost
from rules.launch.freeze_autotune import FreezeAutotune
from rules.launch.gpu_launch_hint import GpuLaunchHint
from rules.launch.tile_policy import choose
from upstream_snapshots import sync


def value(text: str, name: str = "VALUE", **modules: str) -> Any:
    project = TextProject({"pkg.main": textwrap.dedent(text), **{f"pkg.{k}": v for k, v in modules.items()}})
    source = project.module("pkg.main")
    assert source is not None
    return Evaluator(FACTS).value(source, cst.Name(name))


@pytest.mark.parametrize(("text", "expected"), [
    ("VALUE = [a * b for a in (1, 2) for b in range(3) if a != b]", [0, 2, 0, 2]),
    ("from fla.utils import check_shared_mem\nVALUE = [64] if check_shared_mem('ada') else [32]", [32]),
    ("from fla.utils import IS_NVIDIA_HOPPER as H\nVALUE = [2] if H else [2, 4]", [2, 4]),
    ("VALUE = [1]\nif len(VALUE) > 3:\n    VALUE += [2]\nelse:\n    VALUE += [3]", [1, 3]),
    ("import os\nVALUE = os.environ.get('TILES', 'small') == 'small'", True),
    ("def f(n, *, step=2):\n    out = []\n    for i in range(n):\n        if i % step:\n            continue\n"
     "        out.append(i)\n    return out\nVALUE = f(5) + f(2, step=1)", [0, 2, 4, 0, 1]),
    ("from pkg.sizes import SIZES\nVALUE = [max(SIZES), min(SIZES)]", [64, 16]),
    ("VALUE = (lambda a, b=3: {'k': a * b})(2)['k']", 6),
    ("VALUE = sorted({3: 'c', 1: 'a'}.items())[0][1]", "a"),
    ("VALUE = 1 < 2 <= 2 and not None or 5", True),
])
def test_value(text: str, expected: Any) -> None:
    assert value(text, sizes="SIZES = [16, 64]") == expected


@pytest.mark.parametrize("text", [
    "VALUE = open('x').read()",
    "VALUE = __import__('os').system('true')",
    "VALUE = ().__class__.__bases__",
    "VALUE = [0] * 10 ** 9",
    "VALUE = list(range(10 ** 9))",
    "VALUE = OTHER\nOTHER = VALUE",
    "def f():\n    return f()\nVALUE = f()",
    "def f():\n    while True:\n        pass\nVALUE = f()",
    "VALUE = [a for a in range(4000) for b in range(4000)]",
    "import torch\nVALUE = torch.cuda.device_count()",
    "VALUE = 1 // 0",
    "VALUE = 'a' % (1,)",
])
def test_not_static(text: str) -> None:
    with pytest.raises(NotStatic):
        value(text)


def configs(*kwargs: dict[str, Any]) -> list[Config]:
    return [Config(k, {}, None, None, False) for k in kwargs]


@pytest.mark.parametrize(("offered", "expected"), [
    ([{"M": 128, "N": 64, "K": 64}, {"M": 64, "N": 64, "K": 32}, {"M": 32, "N": 32, "K": 32}], {"M": 64}),
    ([{"BK": 64, "BV": 64}, {"BK": 32, "BV": 128}], {"BK": 64}),            # equals: the first
    ([{"B": 8}, {"B": 16}, {"B": 32}], {"B": 16}),                          # pairs with 256
    ([{"M": 256, "N": 128}, {"M": 128, "N": 128}], {"M": 128}),             # none fits: the smallest
    ([{"W": 4, "FLAG": True}, {"W": 8, "FLAG": True}], {"W": 8}),           # a flag is no tile
    ([{}, {"B": 1024}], {}),
])
def test_choose(offered: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert expected.items() <= choose(configs(*offered)).kwargs.items()


TUNED = """
import triton

def zero(nargs):
    nargs["y"].zero_()

@triton.autotune(configs=[triton.Config({"B": b}{HOOK}) for b in (8, 16)], key=[])
@triton.jit
def kernel(x, y, B):
    pass
"""
USER = """
import triton
from pkg.tuned import kernel

BLOCK = kernel.best_config.kwargs["B"]


def run(x, y):
    kernel[lambda meta: (meta["B"],)](x, y)
"""


def test_reads_in_another_module() -> None:
    project = TextProject({"pkg.tuned": TUNED.replace("{HOOK}", ""), "pkg.user": USER})
    user = project.module("pkg.user")
    assert user is not None
    outcome = engine.apply(user, [FreezeAutotune])
    assert "BLOCK = 16\n" in outcome.final.text and not outcome.open


def test_a_hook_launched_from_another_module_stays_with_its_kernel() -> None:
    project = TextProject({"pkg.tuned": TUNED.replace("{HOOK}", ", pre_hook=zero"), "pkg.user": USER})
    tuned, user = project.module("pkg.tuned"), project.module("pkg.user")
    assert tuned is not None and user is not None
    kept = engine.apply(tuned, [FreezeAutotune])
    assert 'configs=[triton.Config({"B": 16}, pre_hook=zero)], key=[]' in kept.final.text
    assert "def zero(nargs):" in kept.final.text and len(kept.open) == 1
    assert engine.apply(user, [FreezeAutotune]).final.text == USER


def test_values_reach_grid_heuristics_and_kernel(tmp_path: Path) -> None:
    """Under the interpreter; on a device it is the same `Heuristics.run`."""
    pytest.importorskip("triton")
    before = """
    import torch
    import triton
    import triton.language as tl


    @triton.autotune(configs=[triton.Config({"B": b}, num_warps=w) for b in (4, 8192) for w in (1, 2)], key=["n"])
    @triton.heuristics({"TWICE": lambda args: 2 * args["B"]})
    @triton.jit
    def fill(x, n, B: tl.constexpr, TWICE: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(x + at, at + TWICE, mask=at < n)


    x = torch.zeros(10, dtype=torch.int32)
    fill[lambda meta: (triton.cdiv(10, meta["B"]),)](x, 10)
    print(x.tolist())
    """
    after = engine.apply(Source.parse(textwrap.dedent(before)), [FreezeAutotune]).final.text
    file = tmp_path / "fill.py"                 # the interpreter reads a kernel's source from its file
    file.write_text(after)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.stdout.strip() == str([8 + i for i in range(10)]), done.stderr


def test_nothing_of_cuda_is_left_in_mamba3_siso_bwd() -> None:
    root = sync.ensure(sync.find("mamba-ssm"))
    project = PackageProject(Upstream(root, "mamba_ssm", "mamba_ssm"))
    source = project.module("mamba_ssm.ops.triton.mamba3.mamba3_siso_bwd")
    assert source is not None
    outcome = engine.apply(source, [PortableHost, GpuLaunchHint, FreezeAutotune])
    words = ("is_cuda", "set_allocator", "cuda", "triton.autotune", "num_warps", "num_stages", "maxnreg")
    assert [w for w in words if w in outcome.final.text] == []
    assert outcome.open == ()
