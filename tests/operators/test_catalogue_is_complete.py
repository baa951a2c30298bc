"""The catalogue against the pinned release, parsed, not imported: every function of the nine ported files that launches
a kernel is an operator, with the parameters that upstream's has; what is left out has a reason."""
import ast
import inspect

import pytest

from migrate.errors import MigrateError
from ported_kernels import catalog

RELEASE = "mamba-ssm==2.3.2.post1"
FILES = [f"mamba_ssm/ops/triton/{name}.py" for name in (
    "mamba3/mamba3_siso_bwd", "mamba3/mamba3_siso_fwd", "mamba3/mamba3_mimo_utils", "ssd_chunk_state", "ssd_chunk_scan",
    "ssd_state_passing", "ssd_bmm", "selective_state_update", "layernorm_gated")]

_TORCH = "plain torch, launches nothing: upstream's own reference, which ours is compared with"
_SELF = "a script's self-test or benchmark, which compares or times functions that are operators"
_ENTERED = "a torch.autograd.Function: entered by the function that is an operator"
_MODULE = "a torch.nn.Module: holds weights and calls the function that is an operator"
_HOST = "host code that launches nothing: "
LEFT_OUT = {
    "_alloc_fn": _HOST + "memory for Triton's descriptors on a GPU",
    "init_to_zero": _HOST + "a hook that autotuning calls",
    "_build_varlen_chunk_mapping": _HOST + "indices for the three functions of packed sequences, which are operators",
    "_chunk_scan_fwd_wip": "not finished: upstream leaves the products with cb and the gate out of its kernel, and no "
                           "other file calls it",
    **dict.fromkeys(("ChunkStateFn", "ChunkScanFn", "StatePassingFn", "LayerNormFn"), _ENTERED),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), _MODULE),
    **dict.fromkeys((
        "bwd_segsum_ddt_from_dSSdA_ref", "bwd_ddt_from_ddA_cs_rev_ref", "bwd_ddt_from_ddA_cs_ref",
        "compute_dtrap_ddt_ref", "compute_dacs_segsum_ref", "compute_dacs_segsum_ref_varlen",
        "bwd_dadt_fused_varlen_ref",
        "compute_dtrap_ddt_varlen_ref", "chunk_state_ref", "chunk_scan_ref", "state_passing_ref",
        "selective_state_update_ref", "rms_norm_ref"), _TORCH),
    **dict.fromkeys((
        "test_bwd_ddt_fused_correctness", "test_dtrap_ddt_correctness", "test_dacs_segsum_correctness_varlen",
        "test_dacs_segsum_correctness", "test_bwd_dadt_fused_varlen_correctness", "test_dtrap_ddt_varlen_correctness",
        "benchmark_bwd_ddt", "benchmark_dacs_segsum", "benchmark_dtrap_ddt"), _SELF),
}
RUNS_A_PORT = {operator.name: operator for operator in catalog.operators().values()
               if operator.port and operator.upstream.path in FILES}


@pytest.fixture(scope="module")
def trees():
    from upstream_snapshots import sync

    snapshot = sync.find(RELEASE)
    try:
        root = sync.ensure(snapshot)
    except (MigrateError, OSError) as error:
        assert not snapshot.root.is_dir(), f"the release is there, but: {error}"
        pytest.skip(f"the release cannot be had here: {error}")
    return {path: ast.parse((root / path).read_text(encoding="utf-8")) for path in FILES}


def public(tree):
    """Functions and classes at the top of a file that are no kernels."""
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)]


def test_every_function_is_an_operator_or_has_a_reason(trees):
    found = {(path, name) for path, tree in trees.items() for name in public(tree)}
    operators = {(operator.upstream.path, operator.upstream.function) for operator in RUNS_A_PORT.values()}
    left_out = {(path, name) for path, name in found if name in LEFT_OUT}
    assert operators <= found, "an operator that upstream has no function for"
    assert not operators & left_out, "left out, though it is an operator"
    assert found - operators - left_out == set(), "neither an operator nor left out"
    assert {name for _, name in left_out} == set(LEFT_OUT), "left out, but not there"
    assert all(operator.name == operator.upstream.function for operator in RUNS_A_PORT.values())


def launches(tree, name):
    """Whether a function of the file launches a kernel, by itself or through one that it calls."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    seen, todo = set(), [name]
    while todo:
        node = functions[todo.pop()]
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
                return True
            called = ast.unparse(call.func).removesuffix(".apply") if isinstance(call, ast.Call) else ""
            if called in functions and called not in seen:
                seen.add(called)
                todo.append(called)
    return False


def test_what_is_left_out_launches_nothing(trees):
    """Except for entries of autograd, modules, self-tests, and what upstream has not finished."""
    for tree in trees.values():
        for name in public(tree):
            expected = LEFT_OUT.get(name) not in (_TORCH,) and not LEFT_OUT.get(name, "").startswith(_HOST)
            assert launches(tree, name) == expected or LEFT_OUT.get(name) == _SELF, name


@pytest.mark.parametrize("operator", RUNS_A_PORT.values(), ids=lambda operator: operator.name)
def test_the_parameters_are_upstreams(operator, trees):
    """Names, order and defaults; a declaration for each."""
    function = next(node for node in trees[operator.upstream.path].body
                    if isinstance(node, ast.FunctionDef) and node.name == operator.upstream.function)
    names = [argument.arg for argument in function.args.args]
    values = [eval(ast.unparse(default), {"float": float}) for default in function.args.defaults]
    defaults = dict(zip(names[len(names) - len(values):], values, strict=True))
    ours = inspect.signature(operator.function).parameters
    assert list(ours) == names
    assert set(operator.signature.arguments) == set(names)
    # Packed sequences: ours may have a default that upstream's lacks; without a value it is refused.
    own = {name: one.default for name, one in ours.items() if one.default is not one.empty}
    assert {name: value for name, value in own.items() if name in defaults or name != "cu_seqlens"} == defaults
