"""Proofs from the source: no fallback to torch arithmetic, the shipped kernel is the launched one, and a
kernel stores only where its operator says."""
import ast
import inspect
from pathlib import Path

import pytest
import torch

from ported_kernels import catalog

OPERATORS = list(catalog.operators().values())
# fla_cp_*: our launchers of a generated port, see test_fla_cp.py
OWN = [op for op in OPERATORS if ":" in op.wrapper and not op.wrapper.rpartition(":")[0].endswith(".py")
       and not op.port]

# All that a public function may call: checks, memory and layout, sizes of the launch.
CALLS = {"runtime.on", "runtime.vector_programs", "triton.cdiv", "triton.next_power_of_2", "min", "max", "map", "str",
         "tuple", "', '.join", "torch.empty_like", "torch.empty", "runtime.launch_options"}
METHODS = {"contiguous", "numel", "copy_"}


def parts(operator):
    """(module tree, the public function, {name: jitted function of the same file})"""
    function = operator.load("cpu")
    tree = ast.parse(Path(inspect.getsourcefile(function)).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    kernels = {name: node for name, node in functions.items()
               if any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)}
    return tree, functions[function.__name__], kernels


def launches(function):
    """Calls of the form kernel[grid](...)"""
    return [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)]


def tensors(function):
    """Names that hold tensors: annotated arguments, and what is made from one."""
    names = {arg.arg for arg in function.args.args if "Tensor" in ast.unparse(arg.annotation)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for target, value in zip(targets, values, strict=False):
                if isinstance(value, ast.Call) and ast.unparse(value.func).endswith((".contiguous", "empty_like")):
                    names.add(ast.unparse(target))
    return names


@pytest.mark.parametrize("operator", OWN, ids=lambda op: op.name)
def test_no_torch_arithmetic_on_the_way(operator):
    _, function, _ = parts(operator)
    held = tensors(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Subscript):
            name = ast.unparse(node.func)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            assert name in CALLS or name.startswith(("arguments.", "check.")) or method in METHODS, f"call of {name}"
        operands = {ast.BinOp: lambda n: [n.left, n.right], ast.UnaryOp: lambda n: [n.operand],
                    ast.AugAssign: lambda n: [n.target, n.value], ast.Subscript: lambda n: [n.value],
                    ast.Compare: lambda n: [] if isinstance(n.ops[0], ast.Is) else [n.left, *n.comparators]}
        for operand in operands.get(type(node), lambda n: [])(node):
            assert ast.unparse(operand) not in held, f"arithmetic on {ast.unparse(operand)}: {ast.unparse(node)}"
    returned = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    assert len(returned) == 1, "one way out, after the launch"
    assert max(launch.lineno for launch in launches(function)) < returned[0].lineno
    branches = [node for node in ast.walk(function) if isinstance(node, ast.If | ast.Try | ast.While | ast.For)]
    assert all(isinstance(step, ast.Raise) for branch in branches for step in branch.body), \
        "the only branches are refusals"


@pytest.mark.parametrize("operator", OWN, ids=lambda op: op.name)
def test_the_launched_kernel_is_the_one_in_the_file(operator, launches):
    tree, function, kernels = parts(operator)
    (launch,) = globals()["launches"](function)
    name = ast.unparse(launch.func.value)
    assert name in kernels
    bound = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.FunctionDef | ast.alias)
             and (getattr(node, "id", None) or getattr(node, "asname", None) or node.name) == name
             and not isinstance(getattr(node, "ctx", None), ast.Load)]
    assert bound == [kernels[name]], "nothing else takes the kernel's name"
    # and so it is when it runs
    operator.load("cpu")(**operator.cases[0].build(0, torch.float32))
    ((kernel, _),) = launches
    assert kernel.fn.__name__ == name
    assert Path(kernel.fn.__code__.co_filename) == Path(inspect.getsourcefile(operator.load("cpu")))


@pytest.mark.parametrize("operator", OWN, ids=lambda op: op.name)
def test_the_kernel_stores_only_to_outputs(operator):
    _, function, kernels = parts(operator)
    kernel = kernels[ast.unparse(launches(function)[0].func.value)]
    arguments = [arg.arg for arg in kernel.args.args]
    made = {ast.unparse(node.targets[0]): node.value for node in ast.walk(kernel) if isinstance(node, ast.Assign)}

    def roots(node):
        found = set()
        for name in (part.id for part in ast.walk(node) if isinstance(part, ast.Name)):
            if name in arguments:
                found.add(name)
            elif name in made:
                found |= roots(made[name])
        return found

    pointers = set(operator.outputs) | set(operator.mutates)
    numbers = {"chunks", "elements", "C", "J", "G", "BLOCK", "head_offset", "T", "H", "H_TOTAL", "K", "V", "BT", "BV"}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("tl.store", "tl.atomic")):
            assert roots(node.args[0]) - numbers <= pointers, ast.unparse(node)
    mutating = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")]
    assert {name.partition(".")[0] for name in mutating} <= set(operator.mutates)


@pytest.mark.parametrize("operator", OWN, ids=lambda op: op.name)
def test_no_strides_reach_the_kernel(operator):
    _, function, kernels = parts(operator)
    (launch,) = launches(function)
    assert "stride" not in ast.unparse(launch)
    assert not any("stride" in arg.arg for arg in kernels[ast.unparse(launch.func.value)].args.args)


@pytest.mark.parametrize("operator", OWN, ids=lambda op: op.name)
def test_reference_and_kernel_share_no_code(operator):
    def imported(module):
        tree = ast.parse(Path(inspect.getsourcefile(module)).read_text())
        return {node.module if isinstance(node, ast.ImportFrom) else alias.name
                for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}

    reference = inspect.getmodule(operator.load_reference())
    assert imported(reference) <= {"__future__", "collections.abc", "torch", "ported_kernels.catalog"}
    assert not any("reference" in name for name in imported(inspect.getmodule(operator.load("cpu"))))


def test_the_proof_notices_a_fallback():
    """The checks above are worth something: each objects to a function that cheats."""
    cheat = ast.parse("def f(x: torch.Tensor):\n    y = x.contiguous()\n    return y * 2").body[0]
    assert tensors(cheat) == {"x", "y"}
    assert not launches(cheat)
