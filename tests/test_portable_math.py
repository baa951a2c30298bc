"""PTX as expressions, and how exact the functions are that a port gets where triton.language has none."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from migrate.analysis import ptx
from rules.numerics.portable_math import DEFINITIONS


@pytest.mark.parametrize(("asm", "expression"), [
    ("sin.approx.f32 $0, $1;", "tl.sin(x)"),
    ("ex2.approx.ftz.f32 $0, $1;", "tl.exp2(x)"),
    ("lg2.approx.f32 $0, $1;", "tl.log2(x)"),
    ("rcp.approx.f32 $0, $1;", "1.0 / x"),
    ("rsqrt.approx.f32 $0, $1;", "tl.rsqrt(x)"),
    ("sqrt.rn.f32 $0, $1;", "tl.sqrt(x)"),
    ("mov.b32 $0, $1;", "x"),
    ("sub.f32 $0, $1, $2;", "x - (y + 1.0)"),
    ("{ .reg .f32 a, b; add.f32 a, $1, 1.0; neg.f32 b, a; mul.f32 $0, b, 0f40000000; }", "(-(x + 1.0)) * 2.0"),
])
def test_ptx(asm: str, expression: str) -> None:
    assert ptx.expression(asm, ["x", "y + 1.0"]) == expression


@pytest.mark.parametrize("asm", [
    "sin.approx.f16x2 $0, $1;", "add.rz.f32 $0, $1, $1;", "mul.sat.f32 $0, $1, 2.0;", "@p mov.f32 $0, $1;",
    "setp.gt.f32 p, $1, 20.0;", "cvt.rna.tf32.f32 $0, $1;", "bar.sync 0;", "", "add.f32 $0, $1;",
    "add.f32 $0, $1, %r1;", "{ .reg .f32 t; add.f32 t, $1, 1.0; mul.f32 $0, t, t; }", "membar.gl;",
    ".reg .pred p;",
])
def test_ptx_that_is_refused(asm: str) -> None:
    with pytest.raises(ptx.Refused):
        ptx.expression(asm, ["x"])


RUN = """
import json, torch, triton, triton.language as tl
{functions}
{kernels}
x = torch.cat([torch.randn(4096) * s for s in (1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4)] + [torch.arange(-8, 8) / 2])
out = {{}}
def error(kernel, x, exact):
    y = torch.full_like(x, float("nan"))
    kernel[(1,)](x, y, x.numel())
    return ((y.double() - exact).abs() / exact.abs().clamp_min(1e-30)).max().item()
out["_tanh"] = error(_tanh_kernel, x, x.double().tanh())
near = x[(x > -0.999)]
out["_log1p"] = error(_log1p_kernel, near, near.double().log1p())
out["_rint"] = error(_rint_kernel, x, x.double().round())
out["_trunc"] = error(_trunc_kernel, x, x.double().trunc())
away = (x.double().abs() + 0.5).floor() * x.double().sign()
out["_round"] = error(_round_kernel, x, away)
ends = torch.tensor([float("inf"), -1.0])
y = torch.empty(2)
_log1p_kernel[(1,)](ends, y, 2)
out["ends"] = y.tolist() == [float("inf"), float("-inf")]
_tanh_kernel[(1,)](torch.tensor([float("inf"), float("-inf")]), y, 2)
out["ends"] &= y.tolist() == [1.0, -1.0]
print(json.dumps(out))
"""
KERNEL = """
@triton.jit
def {name}_kernel(x, y, n, BLOCK: tl.constexpr = 32768):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, {name}(tl.load(x + at, at < n, other=0.0)), at < n)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the [cpu] extra")
def test_functions_are_exact(tmp_path: Path) -> None:
    functions = "\n".join(f"@triton.jit\ndef {n}(x):\n{textwrap.indent(textwrap.dedent(b), '    ')}"
                          for n, b in DEFINITIONS.items())
    script = tmp_path / "run.py"
    script.write_text(RUN.format(functions=functions, kernels="".join(KERNEL.format(name=n) for n in DEFINITIONS)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got.pop("ends")
    assert {n: e for n, e in got.items() if e > (1e-6 if n in ("_tanh", "_log1p") else 0.0)} == {}
