"""The outputs that mamba's autotune hooks zero are zeroed by the ported host: seen in the text, and in a run.

Eight backward kernels add to outputs that their wrappers allocate with `torch.empty`. Upstream relies on a hook in
each autotune configuration; a port that froze the configuration and lost the hook would return garbage.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest

from migrate import engine
from migrate.analysis.autotune import tuning
from migrate.analysis.static import Evaluator
from migrate.project import PackageProject, Upstream
from migrate.source import Source
from rules.ascend import FACTS
from upstream_snapshots import sync

FOLDER = "mamba_ssm.ops.triton."
HOOKED = ("ssd_chunk_state", "ssd_chunk_scan", "ssd_combined")
IMPORTED = ("ssd_bmm", "ssd_state_passing", "layernorm_gated", "k_activations", "softplus")
UTILS = ("mamba_ssm.utils.determinism", "mamba_ssm.utils.torch")

# All but the imports: the ports lie under upstream's own names here, so that nothing else has to be ported
RULES = [r for r in engine.select(engine.load()) if r.name != "ported-imports"]

Zeroed = dict[str, dict[str, tuple[str, ...]]]      # module -> kernel -> parameters that its hook zeroes


@pytest.fixture(scope="module")
def upstream() -> PackageProject:
    root = sync.ensure(sync.find("mamba-ssm"))
    return PackageProject(Upstream(root, "mamba_ssm", "mamba_ssm"))


def source(upstream: PackageProject, module: str) -> Source:
    found = upstream.module(module)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def zeroed(upstream: PackageProject) -> Zeroed:
    found: Zeroed = {}
    for module in HOOKED:
        text = source(upstream, FOLDER + module)
        for kernel in text.kernels.values():
            plan = tuning(text, kernel, FACTS)
            if plan is not None and plan.configs[0].hook is not None:
                hooks = {tuple(Evaluator(FACTS).zeroed(c.hook)) for c in plan.configs}
                assert len(hooks) == 1
                found.setdefault(module, {})[kernel.name] = hooks.pop()
    return found


@pytest.fixture(scope="module")
def ported(upstream: PackageProject) -> dict[str, Source]:
    modules = [*(FOLDER + m for m in (*HOOKED, *IMPORTED)), *UTILS]
    return {m: engine.apply(source(upstream, m), RULES).final for m in modules}


def test_there_are_eight(zeroed: Zeroed) -> None:
    assert sum(len(kernels) for kernels in zeroed.values()) == 8


def test_each_launch_follows_the_zeroing(zeroed: Zeroed, ported: dict[str, Source]) -> None:
    for module, kernels in zeroed.items():
        after = ported[FOLDER + module]
        assert "autotune" not in after.text and "pre_hook" not in after.text
        for kernel, names in kernels.items():
            launches = [x for x in after.launches if x.kernel.name == kernel]
            assert launches
            for launch in launches:
                above = before_it(after, launch.call)
                for name in names:
                    value = launch.args[name].value
                    tensor = value.body if isinstance(value, cst.IfExp) else value
                    assert f"{cst.Module([]).code_for_node(tensor)}.zero_()" in above


def before_it(text: Source, call: cst.Call) -> str:
    """The zeroing statements directly above a launch."""
    statement = text.tree.statement(call)
    block = text.tree.parent(statement)
    assert isinstance(block, cst.IndentedBlock)
    out = ""
    for node in reversed(block.body[:list(block.body).index(statement)]):
        code = cst.Module([]).code_for_node(node)
        if ".zero_()" not in code:
            break
        out = code + out
    return out


# In a child process, with every fresh tensor full of NaN and the launches of the eight kernels recorded.
CHILD = '''
import inspect, json, sys, types

import torch

if len(sys.argv) > 3:                       # the control: nothing is zeroed
    torch.Tensor.zero_ = lambda self: self
try:
    from ported_kernels import runtime
except ImportError:                         # the tool alone
    runtime = types.ModuleType("ported_kernels.runtime")
    runtime.properties = lambda device: types.SimpleNamespace(cube_cores=2, vector_cores=4)
    runtime.default_device = lambda: "cpu"
    package = types.ModuleType("ported_kernels")
    package.runtime = runtime
    sys.modules.update({"ported_kernels": package, "ported_kernels.runtime": runtime})
sys.path.insert(0, sys.argv[1])
from mamba_ssm.ops.triton import ssd_chunk_scan, ssd_chunk_state, ssd_combined

empty, empty_like = torch.empty, torch.empty_like


def nan(tensor):
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


torch.empty = lambda *args, **kwargs: nan(empty(*args, **kwargs))
torch.empty_like = lambda *args, **kwargs: nan(empty_like(*args, **kwargs))


class Recorder:
    """Takes the launches of a kernel and looks at the arguments that have to hold zeros."""

    def __init__(self, kernel, names):
        while not hasattr(kernel, "rewrite"):
            kernel = kernel.fn
        self.signature, self.names, self.bad, self.seen = inspect.signature(kernel.fn), names, [], set()

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *args, **kwargs):
        given = self.signature.bind_partial(*args, **kwargs).arguments
        for name in self.names:
            if given[name] is not None:
                self.seen.add(name)
                if not torch.equal(given[name], torch.zeros_like(given[name])):
                    self.bad.append(name)


B, L, H, P, G, N, C = 1, 16, 4, 16, 2, 16, 8
S = L // C
torch.manual_seed(0)
x, dout = torch.randn(B, L, H, P), torch.randn(B, L, H, P)
bc = torch.randn(B, L, G, N)
cb = torch.randn(B, S, G, C, C)
dt = torch.rand(B, H, S, C)
states = torch.randn(B, S, H, P, N)
D = torch.randn(H)
calls = {
    "_chunk_cumsum_bwd_kernel": lambda m: m._chunk_cumsum_bwd(
        dt, dt, torch.rand(B, L, H), -torch.rand(H), dt_bias=torch.rand(H)),
    "_chunk_state_bwd_dx_kernel": lambda m: m._chunk_state_bwd_dx(bc, x, dt, dt, states),
    "_chunk_state_bwd_db_kernel": lambda m: m._chunk_state_bwd_db(x, dt, dt, states, B=bc, ngroups=G),
    "_chunk_state_bwd_ddAcs_stable_kernel": lambda m: m._chunk_state_bwd_ddAcs_stable(bc, x, dt, dt, states),
    "_chunk_scan_bwd_dc_kernel": lambda m: m._chunk_scan_bwd_dC(states, dt, dout, C=bc, ngroups=G),
    "_chunk_scan_bwd_dx_kernel": lambda m: m._chunk_scan_bwd_dx(cb, x, dt, dt, dout),
    "_chunk_scan_bwd_ddAcs_prev_kernel": lambda m: m._chunk_scan_bwd_ddAcs_prev(states, bc, dout, dt),
    "_chunk_scan_chunk_state_bwd_dx_kernel": lambda m: m._chunk_scan_chunk_state_bwd_dx(
        x, dt, dt, bc, cb, dout, states, D=D),
}
report = {}
for module, kernels in json.loads(sys.argv[2]).items():
    here = sys.modules["mamba_ssm.ops.triton." + module]
    for kernel, names in kernels.items():
        recorder = Recorder(getattr(here, kernel), names)
        setattr(here, kernel, recorder)
        calls[kernel](here)
        report[kernel] = [sorted(recorder.seen), recorder.bad]
print(json.dumps(report))
'''


@pytest.fixture(scope="module")
def package(ported: dict[str, Source], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ported modules as an importable package, with nothing else of upstream in it."""
    root = tmp_path_factory.mktemp("ported")
    for module, text in ported.items():
        file = root / (module.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.text)
    for folder in ("mamba_ssm", "mamba_ssm/ops", "mamba_ssm/ops/triton", "mamba_ssm/utils"):
        (root / folder / "__init__.py").touch()
    return root


def run(package: Path, zeroed: Zeroed, *control: str) -> dict[str, tuple[list[str], list[str]]]:
    done = subprocess.run([sys.executable, "-c", CHILD, str(package), json.dumps(zeroed), *control],
                          capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    return {kernel: (seen, bad) for kernel, (seen, bad) in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("control", [False, True], ids=["ported", "without-the-zeroing"])
def test_zeros_reach_the_kernels(package: Path, zeroed: Zeroed, control: bool) -> None:
    pytest.importorskip("triton")
    report = run(package, zeroed, *["control"] * control)
    assert len(report) == 8
    for module in zeroed.values():
        for kernel, names in module.items():
            seen, bad = report[kernel]
            assert seen == sorted(names)                # no parameter was None: each was looked at
            assert bool(bad) is control, (kernel, bad)
