"""The CPU device: kernels interpreted at launch time, in the process that may also compile them."""
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from ported_kernels import interpreter, runtime

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@triton.jit
def product(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(left, right))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_product_agrees_with_torch(dtype):
    """Triton 3.2's interpreter multiplies the bit patterns of bfloat16: 1e12 and inf, with no error."""
    M, N, K = 32, 16, 64
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(M, K, generator=generator).to(dtype), torch.randn(K, N, generator=generator).to(dtype)
    out = torch.full((M, N), float("nan"))
    with runtime.on("cpu"):
        product[(1,)](a, b, out, M, N, K)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


@triton.jit
def arithmetic(x, y, out, which: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    if which == "sum":
        c = a + b
    elif which == "product":
        c = a * b
    elif which == "difference":
        c = a - b
    elif which == "largest":
        c = tl.maximum(a, b)
    elif which == "select":
        c = tl.where(a < b, a, b)
    elif which == "fma":
        c = tl.fma(a, b, a)
    else:
        c = tl.full([N], 0.3, dtype=tl.bfloat16)
    tl.store(out + at, c)


@pytest.mark.parametrize("which, expected", [
    ("sum", torch.add), ("product", torch.mul), ("difference", torch.sub), ("largest", torch.maximum),
    ("select", torch.minimum), ("fma", lambda a, b: (a.float() * b.float() + a.float()).bfloat16()),
    ("constant", lambda a, b: torch.full_like(a, 0.3)),
])
def test_bfloat16_arithmetic_is_exact(which, expected):
    x, y = torch.randn(2, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    out = torch.empty_like(x)
    with runtime.on("cpu"):
        arithmetic[(1,)](x, y, out, which, 64)
    assert torch.equal(out, expected(x, y))


def test_bfloat16_rounds_as_torch_does():
    values = torch.cat([torch.randn(10_000), torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 3.4e38, 1e-40]),
                        torch.arange(0x3F80_0000, 0x3F84_0000, 0x1000, dtype=torch.int32).view(torch.float32)])
    bits = torch.from_numpy(interpreter.encode_bfloat16(values.numpy()).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(bits, values.bfloat16())
    assert np.isnan(interpreter.decode_bfloat16(interpreter.encode_bfloat16(np.array([np.nan], np.float32)))).all()


@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0), mask=at < n)


def test_an_address_outside_every_tensor_is_an_error():
    x, out = torch.ones(10), torch.ones(10)
    with runtime.on("cpu"):
        copy[(1,)](x, out, 10, BLOCK=16)
        with pytest.raises(interpreter.OutOfBounds, match=r"copy, program \(0, 0, 0\): bytes .* which has 40"):
            copy[(1,)](x, out, 11, BLOCK=16)


def test_an_expanded_tensor_can_be_read():
    out = torch.empty(10)
    with runtime.on("cpu"):
        copy[(1,)](torch.ones(10).expand(3, 10), out, 10, BLOCK=16)
        copy[(1,)](torch.ones(20)[::2], out, 10, BLOCK=16, num_warps=4, multibuffer=False)
    assert out.eq(1).all()


def test_too_many_programs_are_refused():
    with runtime.on("cpu"), pytest.raises(ValueError, match="at most 65535 programs, got 65536"):
        copy[(256, 256)](torch.ones(1), torch.ones(1), 1, BLOCK=1)


def test_everything_is_taken_back():
    def state():
        return [dict(vars(owner)) for owner in (tl, tl.tensor, tl.dtype, tl.math, JITFunction, triton.runtime.driver)]

    before = state()
    with runtime.on("cpu"):
        assert JITFunction.run is not before[4]["run"]
        copy[(1,)](torch.ones(1), torch.ones(1), 1, BLOCK=1)
        with runtime.on("cpu"):
            pass
        assert JITFunction.run is not before[4]["run"]
    assert state() == before
    with pytest.raises(RuntimeError), runtime.on("cpu"):
        raise RuntimeError
    assert state() == before


def test_a_kernel_that_was_interpreted_still_compiles():
    """Both in one process: interpreted, lowered to Triton's IR, interpreted again."""
    pytest.importorskip("triton.backends.ascend.compiler", reason="lowering is triton-ascend's")
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import AscendBackend
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def interpret():
        a, out = torch.eye(16), torch.empty(16, 16)
        with runtime.on("cpu"):
            product[(1,)](a, a, out, 16, 16, 16)
        assert torch.equal(out, a)

    interpret()
    backend = AscendBackend(GPUTarget("npu", "Ascend910B2", 0))
    context = ir.context()
    ir.load_dialects(context)
    source = ASTSource(product, {"a": "*fp32", "b": "*fp32", "out": "*fp32"}, {"M": 16, "N": 16, "K": 16})
    text = str(source.make_ir(backend.parse_options({}), backend.get_codegen_implementation(),
                              backend.get_module_map(), context))
    assert "tt.dot" in text
    interpret()


def test_upstream_style_module_runs(monkeypatch):
    """Autotune at import needs a driver; the first configuration is taken; helpers come from another module."""
    monkeypatch.syspath_prepend(str(HERE / "data"))
    module = runtime.load(HERE / "data/autotuned.py", "cpu")
    for n, factor in ((50, 6.0), (51, 3.0)):
        x, out = torch.randn(n), torch.empty(n)
        with runtime.on("cpu"):
            module.run(x, out)
        assert torch.equal(out, x * 3.0 * (factor / 3.0))


def test_load_under_a_package_name():
    module = runtime.load(HERE / "data/autotuned.py", "cpu", root=HERE / "data")
    assert module.__name__ == "autotuned"
    assert str(HERE / "data") not in sys.path


def test_triton_interpret_in_the_environment_works_too():
    code = ("import torch; from ported_kernels.catalog import get; op = get('mamba3_siso_bwd_dzdo')\n"
            "inputs = op.case('T37 D40').build(0, torch.bfloat16)\n"
            "out, ref = op.load('cpu')(**inputs)[0], op.load_reference()(**inputs)[0]\n"
            "assert (out.double() - ref).norm() < 4e-3 * ref.norm()")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60,
                   env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)})


def test_whoever_records_launches_gets_them(launches):
    from ported_kernels import mamba3_siso_bwd_dzdo

    assert interpreter.recording()
    x = torch.zeros(2, 1024, 8, 256)
    mamba3_siso_bwd_dzdo(x, x, x)
    (kernel, grid), = launches
    assert kernel.__name__ == "mamba3_siso_bwd_dzdo_kernel"
    assert grid == (48,), "recorded launches are sized for the NPU of the active driver"


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_what_numpy_2_4_refuses_is_not_done():
    """numpy up to 2.3 warns where 2.4 raises: one-element arrays taken as integers, as loop bounds are."""
    from ported_kernels import catalog

    operator = catalog.get("bwd_segsum_dadt")
    operator.load("cpu")(**operator.case("odd number of chunks").build(0, torch.float32))


def test_an_environment_without_an_interpreter_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", None)
    reason = runtime.why_not("cpu")
    assert reason is not None
    assert "pip install 'triton-ascend-migrate[cpu]'" in reason
    with pytest.raises(runtime.DeviceUnavailable, match="device 'cpu': Triton's interpreter cannot be imported"):
        runtime.on("cpu")


def test_devices():
    assert runtime.default_device() in runtime.DEVICES
    with pytest.raises(ValueError, match="device: expected one of npu, cuda, cpu, vnpu, got 'tpu'"):
        runtime.why_not("tpu")
    cpu = runtime.properties("cpu")
    assert cpu.ub_bytes == 1_572_864 // 8
    assert runtime.vector_programs("cpu", 1) == 1
    assert runtime.vector_programs("cpu", 1000) == cpu.vector_cores


def test_torch_npu_is_not_imported_unasked():
    code = ("import sys, ported_kernels, ported_kernels.catalog as c; c.operators(); "
            "assert 'triton' not in sys.modules, 'triton'; "
            "import ported_kernels.mamba3.dzdo; from ported_kernels import runtime; runtime.properties('cpu'); "
            "assert 'torch_npu' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60,
                   env={**os.environ, "PYTHONPATH": str(ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
