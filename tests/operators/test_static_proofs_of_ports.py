"""Proofs from the source of the generated ports that operators run. Upstream's host code does some arithmetic of its
own, so what is proven is less than for code written by hand (test_static_proofs.py), and is this, for each operator:

- the function launches a kernel, by itself or through functions of the port that it calls (for autograd: forward does,
  and backward does);
- what is launched is a jitted function of the same file, whose name nothing else takes;
- on the way to a launch nothing is computed with tensors: they are made, laid out, and measured;
- what is computed with tensors after a launch is what HOST_ARITHMETIC lists, no more and no less: sums over tiles that
  kernels leave apart, scans of those sums, gradients of states added to the last token, the products of chunk_scan.

That inputs do not change unless documented is no proof but is watched in every trial (migrate/verify/trial.py).
"""
import ast
import re

import pytest

from migrate.errors import MigrateError
from migrate.verify import target
from ported_kernels import catalog
from ported_kernels.signature import Tensor

# not those that launch a port's kernels from a wrapper of our own
OPERATORS = [operator for operator in catalog.operators().values()
             if operator.port and operator.wrapper.startswith(str(operator.port))]

# Makes, lays out, measures, converts, or refuses; computes nothing with a tensor's elements.
PLAIN = {"contiguous", "is_contiguous", "copy_", "detach", "stride", "element_size", "device_of", "properties", "dim",
         "numel", "item", "fill_", "zero_", "reshape", "squeeze", "unsqueeze", "to", "save_for_backward", "rearrange",
         "empty", "empty_like", "zeros", "zeros_like", "arange", "cdiv", "next_power_of_2", "ceil", "max", "min", "int",
         "float", "range", "tuple", "print", "RuntimeError", "alloc_tile_workspace", "finalize_tile_workspace",
         "use_deterministic_mode", "_build_varlen_chunk_mapping"}

HOST_ARITHMETIC = {
    "_layer_norm_bwd": {"_dw.sum(0)", "_db.sum(0)"},
    "compute_dqkv": {"dv[0, last_token_idx] += d_ov_state", "dv[:, -1, :, :] += d_ov_state", "dD.sum(dim=0)"},
    "compute_dqktheta": {"torch.sum(dscale, dim=2)", "torch.sum(dgamma, dim=2)", "dq_bias_partial.sum(dim=(0, 1))",
                         "dk_bias_partial.sum(dim=(0, 1))"},
    # These two in upstream's deterministic mode only.
    "_chunk_cumsum_bwd": {"dA_workspace.sum(dim=(0, 1))", "ddt_bias_workspace.sum(dim=(0, 1))"},
    "_chunk_state_bwd_dx": {"ddA_cumsum.sum(dim=-1)", "ddA_cumsum[..., -1] -= ddA_cumsum.sum(dim=-1)"},
    "_chunk_state_bwd_db": {"dB.sum(2)", "torch.cumsum(ddA_cumsum, dim=-1, out=ddA_cumsum)"},
    "_chunk_state_bwd_ddAcs_stable": {"torch.cumsum(ddA_cumsum[..., 1:], dim=-1, out=ddA_cumsum[..., 1:])"},
    "_chunk_scan_bwd_dz": {"dD[:n_valid_blocks].sum(dim=(0, 1, 2))"},
    "_chunk_scan_bwd_dC": {"dC.sum(2)"},
    "_chunk_scan_bwd_dcb": {"dcb.sum(2)", "ddA_cumsum[:, :, :, :n_valid_blocks].sum(dim=3)"},
    "_chunk_scan_bwd_ddAcs_unstable": {"dD[:n_valid_blocks].sum(dim=(0, 1, 2))"},
    "_chunk_scan_bwd_ddAcs_stable": {"ddA_cumsum[:, :, :, :n_valid_blocks].sum(dim=3)"},
    "_chunk_scan_bwd_ddAcs_stable_old": {"ddA_cumsum[:, :, :, :n_valid_blocks].sum(dim=3)"},
    "_state_passing_bwd": {"ddA_chunk_cumsum[..., :n_valid_blocks].sum(dim=-1)"},
    "ChunkScanFn.backward": {"ddA_cumsum -= ddt * dt", "ddt * dt"},
}


@pytest.fixture(scope="module")
def trees():
    try:
        target.prepare(OPERATORS)
    except MigrateError as error:
        pytest.skip(f"a release cannot be had here: {error}")
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in {operator.port for operator in OPERATORS}}


def jitted(node):
    return isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(one) for one in node.decorator_list)


def hosts(trees):
    """{name: (tree, function)} of every host function of the ports; methods as "Class.method"."""
    found = {}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                found |= {f"{node.name}.{one.name}": (tree, one) for one in methods}
            elif isinstance(node, ast.FunctionDef) and not jitted(node):
                found[node.name] = tree, node
    return found


def launches(function):
    """Calls of the form kernel[grid](...)"""
    return [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)]


def called(function, known):
    """The host functions that it calls; `Fn.apply` is both ways of Fn."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            ways = [f"{name[:-6]}.{way}" for way in ("forward", "backward")] if name.endswith(".apply") else [name]
            found |= {way for way in ways if way in known}
    return found


def path_of(name, known):
    """The host functions between an operator and its kernels."""
    seen, todo = set(), [name]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += called(known[one][1], known)
    return seen


def reaches_a_launch(name, known):
    return any(launches(known[one][1]) for one in path_of(name, known))


def root(node):
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


LENGTHS = {"cu_seqlens", "Cu_Seqlens"}
# What gives a tensor: memory, layouts, and other host functions. All else that does is a call outside PLAIN.
GIVES = re.compile(r"\b(empty|zeros|empty_like|zeros_like|contiguous|detach|reshape|squeeze|unsqueeze|to|rearrange|"
                   r"saved_tensors|alloc_tile_workspace|finalize_tile_workspace|\w+_(fwd|bwd)\w*)\b")


def tensors(function, declared):
    """Names that hold tensors: those declared so, and what is made from them; where packed sequences end is indices."""
    found = set(declared)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and GIVES.search(ast.unparse(node.value)):
            found |= {name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)}
    return found - LENGTHS


def arithmetic(function, known, declared=()):
    """{text: line} of what is computed with tensors."""
    held, found = tensors(function, declared), {}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Subscript):
            name = ast.unparse(node.func)
            if name not in known and not name.endswith(".apply") and name.rpartition(".")[2] not in PLAIN:
                found[ast.unparse(node)] = node.lineno
        operands = {ast.BinOp: lambda one: [one.left, one.right], ast.AugAssign: lambda one: [one.target],
                    ast.UnaryOp: lambda one: [] if isinstance(one.op, ast.Not) else [one.operand]}
        for operand in operands.get(type(node), lambda one: [])(node):
            if root(operand) in held:
                found[ast.unparse(node)] = node.lineno
    return found


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_it_launches_kernels_of_its_port(operator, trees):
    known = hosts(trees)
    entry = operator.upstream.function
    ways = {way for way in called(known[entry][1], known) if "." in way}
    assert bool(ways) == bool(operator.gradients)
    assert all(reaches_a_launch(one, known) for one in ways or {entry})
    for name in path_of(entry, known):
        tree, function = known[name]
        for launch in launches(function):
            kernel = ast.unparse(launch.func.value)
            bound = [node for node in tree.body if getattr(node, "name", None) == kernel
                     or any(ast.unparse(one) == kernel for one in getattr(node, "targets", ()))]
            assert len(bound) == 1 and jitted(bound[0]), f"{name} launches {kernel}"


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_only_listed_arithmetic_and_only_after_the_launch(operator, trees):
    known = hosts(trees)
    declared = {argument for other in OPERATORS if other.port == operator.port
                for argument, one in other.signature.arguments.items() if isinstance(one, Tensor)}
    for name in path_of(operator.upstream.function, known):
        function = known[name][1]
        found = arithmetic(function, known, declared)
        assert set(found) == HOST_ARITHMETIC.get(name, set()), name
        last = max((launch.lineno for launch in launches(function)), default=0)
        assert all(line > last for line in found.values()), f"{name}: before the launch"


def test_the_proof_notices_arithmetic():
    cheat = ast.parse("def f(x, n):\n    y = torch.empty_like(x)\n    y += x.exp()\n    k[(n + 1,)](y)\n"
                      "    return -y").body[0]
    assert set(arithmetic(cheat, {}, {"x"})) == {"y += x.exp()", "x.exp()", "-y"}
