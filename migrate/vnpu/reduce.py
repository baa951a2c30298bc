"""Shrinks a kernel on which the compiled program and Triton's interpreter disagree, while they do.

Delta debugging over LibCST: statements go, loops and branches give way to their bodies, expressions to a part of
themselves, unused parameters go with their arguments, numbers and grids become smaller. A step is kept when the
interpreter still runs the kernel and the disagreement is still of the same kinds, and of no others: what the checks of
the virtual NPU report, a product that is in the source and not in the program, results that differ. Each attempt runs
in a fork.
"""
from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import libcst as cst

from migrate.gate import hivm, process
from migrate.gate.compiler import Step
from migrate.vnpu import device
from migrate.vnpu.specimen import Drawn, Specimen
from migrate.vnpu.views import row_major

DIFFERS, DROPPED = "results differ", "dropped product"
# what the virtual NPU cannot do stops a program, and is no fault of it
NOT_UNDERSTOOD = frozenset({"unknown function", "unknown operation", "not modelled", "value"})
SMALLEST_TILE = 16     # a side of a product; tiles are not made smaller
FLOAT32, NARROW = 1e-3, 2e-2      # of the largest value; far beyond rounding, far below a wrong result


@dataclass
class Judgement:
    """What came of one attempt. `kinds` is empty where both agree, and where `failed` says why it was no attempt."""

    kinds: frozenset[str] = frozenset()
    said: tuple[str, ...] = ()
    linalg: str = ""              # what the front end made
    flags: tuple[str, ...] = ()   # that the compiler is given
    failed: str = ""


def judge(specimen: Specimen, target: str, limits: process.Limits) -> Judgement:
    """Run a specimen on the virtual NPU and in the interpreter, in a fork."""
    with tempfile.TemporaryDirectory(prefix="migrate-reduce-") as folder:
        file, answer = Path(folder) / "kernel.py", Path(folder) / "answer.json"
        file.write_text(specimen.text())

        def work() -> None:
            import torch

            torch.set_num_threads(1)      # the threads of this process are not there in a fork
            os.environ["MIGRATE_CACHE"] = str(Path(folder) / "cache")      # what is tried is not worth keeping
            with open(Path(folder) / "said.txt", "w") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            answer.write_text(json.dumps(_compare(file, target, limits)).replace(f"{folder}/", ""))

        hivm.parse("builtin.module {}")      # imports the parser here, once, and not in every fork
        end = process.run_forked(work, limits, lambda: None)
        if not answer.exists():
            said = (Path(folder) / "said.txt").read_text().strip().splitlines() or ["died"]
            return Judgement(failed=f"stopped ({end.killed})" if end.killed else said[-1])
        found = json.loads(answer.read_text())
        return Judgement(frozenset(found["kinds"]), tuple(found["said"]), found["linalg"], tuple(found["flags"]),
                         found["failed"])


def _compare(file: Path, target: str, limits: process.Limits) -> dict[str, Any]:
    from ported_kernels import interpreter, runtime

    answer: dict[str, Any] = {"kinds": [], "said": [], "linalg": "", "flags": [], "failed": ""}
    if interpreter.recording():
        raise RuntimeError("launches go to another device already, and would not get to the interpreter")
    npu = _Keeping(device.Settings(target, limits=limits, strict=False))
    try:
        with device.entered(npu):
            module = _load(file)
            theirs = module.arguments()
            module.launch(theirs)
        ours = module.arguments()
        with runtime.on("cpu"):
            module.launch(ours)
    except Exception as error:
        return answer | {"failed": f"{type(error).__name__}: {error}"[:500]}
    errors = [finding for run in npu.take() for finding in run.errors]
    answer["kinds"] = sorted({finding.kind for finding in errors})
    answer["said"] = [str(finding) for finding in errors]
    dots = file.read_text().count("tl.dot(")
    if dots and not any(site.name.startswith("mma") for machine in npu.machines.values()
                        if isinstance(machine, device.Machine) for function in machine.program.functions
                        for site in function.sites):
        answer["kinds"].append(DROPPED)
        answer["said"].append(f"{DROPPED}: {dots} in the kernel, none in the program")
    for name, value in ours.items():
        if hasattr(value, "untyped_storage") and (said := _differ(name, theirs[name], value)):
            answer["kinds"] = [*answer["kinds"], DIFFERS]
            answer["said"].append(said)
    return answer | {"linalg": npu.linalg, "flags": npu.flags}


class _Keeping(device.Device):
    """Keeps what the compiler was given for the last kernel."""

    linalg = ""
    flags: Sequence[str] = ()

    def to_hivm(self, linalg: Path, flags: Sequence[str]) -> Step:
        self.linalg, self.flags = linalg.read_text(), list(flags)
        return super().to_hivm(linalg, flags)


def _load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"specimen_{os.getpid()}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _differ(name: str, theirs: Any, ours: Any) -> str:
    """What is said where a tensor differs by more than rounding."""
    import torch

    if not ours.is_floating_point():
        wrong = theirs != ours
    else:
        one, other = theirs.double(), ours.double()
        allowed = FLOAT32 if ours.dtype == torch.float32 else NARROW
        finite = other[other.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        wrong = ~((one == other) | ((one - other).abs() <= allowed * scale) | (one.isnan() & other.isnan()))
    count = int(wrong.sum())
    if not count:
        return ""
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return (f"{DIFFERS}: {count} of {wrong.numel()} elements of {name}; at {list(at)} the program has "
            f"{theirs[at].item():g}, the interpreter {ours[at].item():g}")


# -- smaller ones ----------------------------------------------------------------------------------------------------

def reduce(specimen: Specimen, target: str, limits: process.Limits, seconds: float,
           progress: Callable[[str], None] = lambda _: None) -> tuple[Specimen, Judgement, int]:
    """(the smallest specimen found, what is said of it, attempts). `seconds` bounds the search."""
    first = judge(specimen, target, limits)
    kinds = first.kinds - NOT_UNDERSTOOD
    if first.failed or not kinds:
        return specimen, first, 1
    best, said, attempts, tried = specimen, first, 1, {specimen.text()}
    end = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for find in (_statements, _unused, _flattened, _numbers, _expressions, _inlined):
            k = 0
            while k < len(candidates := list(find(best))) and time.monotonic() < end:
                smaller = candidates[k]
                k += 1
                if smaller.text() in tried or not _complete(smaller):
                    continue
                tried.add(smaller.text())
                attempts += 1
                found = judge(smaller, target, limits)
                if not found.failed and kinds <= found.kinds <= first.kinds:
                    best, said, again = smaller, found, True
                    k -= 1        # the one behind it has taken its place
                progress(f"{attempts} attempts, {len(best.functions.splitlines())} lines")
    return best, said, attempts


def _complete(specimen: Specimen) -> bool:
    """Whether every name that a function reads is given to it, assigned in it, or known to the file."""
    known = {*dir(builtins), "tl", "triton", "torch"}
    known |= {name for line in specimen.imports for name in line.replace("=", " = ").split()}
    try:
        functions = [node for node in ast.parse(specimen.functions).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return False
    known |= {function.name for function in functions}
    for function in functions:
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        mine = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {a.arg for a in function.args.args}
        if {node.id for node in names if isinstance(node.ctx, ast.Load)} - mine - known:
            return False
    return True


def _changed(specimen: Specimen, module: Any) -> Specimen:
    assert isinstance(module, cst.Module)
    return replace(specimen, functions=module.code)


def _blocks(module: cst.Module) -> list[tuple[cst.BaseSuite, Sequence[Any]]]:
    """The bodies of functions, loops and branches, the innermost last."""
    found: list[Any] = []

    class Find(cst.CSTVisitor):
        def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
            found.append((node, node.body))

    module.visit(Find())
    return found


def _statements(specimen: Specimen) -> Iterator[Specimen]:
    """Without one statement, or without all of a block from some statement on."""
    module = cst.parse_module(specimen.functions)
    for block, body in _blocks(module):
        for k in reversed(range(len(body))):
            if len(body) > 1:
                yield _changed(specimen, module.deep_replace(block, block.with_changes(
                    body=[*body[:k], *body[k + 1:]])))


def _flattened(specimen: Specimen) -> Iterator[Specimen]:
    """A loop's body once, a branch's body always; helpers that nobody calls are gone."""
    module = cst.parse_module(specimen.functions)
    for k, function in enumerate(module.body[:-1]):
        assert isinstance(function, cst.FunctionDef)
        if module.code.count(function.name.value) == 1:
            yield _changed(specimen, module.with_changes(body=[*module.body[:k], *module.body[k + 1:]]))
    for block, body in _blocks(module):
        for k, statement in enumerate(body):
            inside: list[Sequence[Any]] = [_apart(statement)] if _apart(statement) else []
            if isinstance(statement, cst.For):
                first = [a.value for a in statement.iter.args] if isinstance(statement.iter, cst.Call) else []
                start = cst.Integer("0") if len(first) < 2 else first[0]
                assign = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(statement.target)], start)])
                inside.append([assign, *statement.body.body])
            elif isinstance(statement, cst.If):
                inside.append(statement.body.body)
                if isinstance(statement.orelse, cst.Else):
                    inside.append(statement.orelse.body.body)
            for some in inside:
                yield _changed(specimen, module.deep_replace(block, block.with_changes(
                    body=[*body[:k], *some, *body[k + 1:]])))


def _assignment(statement: Any) -> cst.Assign | None:
    """A statement that assigns to one target, and does nothing else."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    assign = statement.body[0]
    return assign if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None


def _apart(statement: Any) -> list[Any]:
    """`a, b = x, y` as two statements."""
    assign = _assignment(statement)
    if assign is None or not isinstance(assign.value, cst.Tuple):
        return []
    target = assign.targets[0].target
    if not isinstance(target, cst.Tuple) or len(target.elements) != len(assign.value.elements):
        return []
    return [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(one.value)], value.value)])    # type: ignore[arg-type]
            for one, value in zip(target.elements, assign.value.elements, strict=True)]


def _inlined(specimen: Specimen) -> Iterator[Specimen]:
    """A value in the place of a name that is assigned once and read once, or that is only another name for it."""
    module = cst.parse_module(specimen.functions)
    tree = ast.parse(specimen.functions)
    for block, body in _blocks(module):
        for k, statement in enumerate(body):
            assign = _assignment(statement)
            if assign is None or not isinstance(assign.targets[0].target, cst.Name):
                continue
            name = assign.targets[0].target.value
            names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
            reads = sum(isinstance(node.ctx, ast.Load) for node in names)
            if len(names) - reads != 1 or (reads != 1 and not isinstance(assign.value, cst.Name | cst.Integer)):
                continue
            without = module.deep_replace(block, block.with_changes(
                body=[*body[:k], *body[k + 1:]]))
            value = assign.value
            if not isinstance(value, cst.Name | cst.Integer | cst.Call | cst.Subscript):
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            yield _changed(specimen, without.visit(_Put(name, value)))


class _Put(cst.CSTTransformer):
    """A value wherever a name is read."""

    def __init__(self, name: str, value: cst.BaseExpression) -> None:
        super().__init__()
        self._name, self._value = name, value

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._value if updated_node.value == self._name else updated_node


def _expressions(specimen: Specimen) -> Iterator[Specimen]:
    """A sum or product gives way to one side, a call to its first argument or to itself without its last."""
    module = cst.parse_module(specimen.functions)
    parts: list[tuple[cst.CSTNode, cst.CSTNode]] = []

    class Find(cst.CSTVisitor):
        def visit_Annotation(self, node: cst.Annotation) -> bool:
            return False

        def visit_Decorator(self, node: cst.Decorator) -> bool:
            return False

        def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
            parts.extend((node, side) for side in (node.left, node.right))

        def visit_Call(self, node: cst.Call) -> None:
            if len(node.args) > 1:
                last = node.args[-2].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                parts.append((node, node.with_changes(args=[*node.args[:-2], last])))
            if isinstance(node.func, cst.Attribute) and node.func.attr.value not in ("load", "store", "dot", "arange"):
                if isinstance(node.func.value, cst.Name) and node.func.value.value == "tl":
                    parts.extend((node, argument.value) for argument in node.args if not argument.keyword)
                else:
                    parts.append((node, node.func.value))      # a method: value.to(tl.float32)

    module.visit(Find())
    for whole, part in parts:
        yield _changed(specimen, module.deep_replace(whole, part))


def _unused(specimen: Specimen) -> Iterator[Specimen]:
    """Without a parameter of the kernel that it does not use."""
    module = cst.parse_module(specimen.functions)
    kernel = module.body[-1]
    assert isinstance(kernel, cst.FunctionDef)
    used = {node.id for node in ast.walk(ast.parse(module.code).body[-1]) if isinstance(node, ast.Name)}
    for k, parameter in enumerate(kernel.params.params):
        name = parameter.name.value
        if name not in used and name in specimen.arguments:
            left = [*kernel.params.params[:k], *kernel.params.params[k + 1:]]
            if left:
                left[-1] = left[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            smaller = kernel.with_changes(params=kernel.params.with_changes(params=left))
            yield _changed(specimen, module.deep_replace(kernel, smaller)).without_argument(name)


def _numbers(specimen: Specimen) -> Iterator[Specimen]:
    """Fewer programs, smaller numbers, smaller tensors."""
    if any(n > 1 for n in specimen.grid):
        yield replace(specimen, grid=tuple(1 for _ in specimen.grid))
    kernel = ast.parse(specimen.functions).body[-1]
    assert isinstance(kernel, ast.FunctionDef)
    tiles = {a.arg for a in kernel.args.args if a.annotation}
    for name, value in specimen.arguments.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and value > (SMALLEST_TILE if name in tiles else 1):
            yield replace(specimen, arguments=specimen.arguments | {name: value // 2})
        elif isinstance(value, Drawn) and not value.values:
            for axis, n in enumerate(value.sizes):
                if n > 1:
                    sizes = (*value.sizes[:axis], n // 2, *value.sizes[axis + 1:])
                    small = Drawn(sizes, row_major(sizes), value.dtype)
                    yield replace(specimen, arguments=specimen.arguments | {name: small})
