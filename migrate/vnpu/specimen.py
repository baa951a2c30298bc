"""One launch as a file of its own: the kernel, its helpers, and arguments drawn from a seed; no wrapper."""
from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import libcst as cst

from migrate.errors import MigrateError
from migrate.vnpu.views import row_major

MOST_VALUES = 4096      # of an integer tensor, which is written out


@dataclass(frozen=True)
class Drawn:
    """A tensor argument. Floats are drawn from N(0, 1); integers, which may be indices, are kept as they were."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str                          # "float32"
    values: tuple[int, ...] = ()        # of the storage, of an integer tensor

    def text(self) -> str:
        reach = sum((n - 1) * step for n, step in zip(self.sizes, self.strides, strict=True))
        count = 0 if 0 in self.sizes else 1 + reach
        dense = row_major(self.sizes) == self.strides
        if self.values:
            made = f"torch.tensor({list(self.values)}, dtype=torch.{self.dtype})"
        else:
            made = f"torch.randn({list(self.sizes) if dense else [count]})"
            made += "" if self.dtype == "float32" else f".to(torch.{self.dtype})"
            if dense:
                return made
        return f"{made}.as_strided({list(self.sizes)}, {list(self.strides)})"


@dataclass(frozen=True)
class Specimen:
    """`functions` is the source of the kernel, last, and of the helpers that it calls. `arguments` are by name."""

    kernel: str
    imports: tuple[str, ...]
    functions: str
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The file. `migrate check FILE` takes it as well."""
        given = "".join(f"        {name!r}: {value.text() if isinstance(value, Drawn) else repr(value)},\n"
                        for name, value in self.arguments.items())
        more = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return "\n".join([
            *self.imports, "", "", self.functions.strip(), "", "",
            "def arguments():", "    torch.manual_seed(0)", "    return {", given.rstrip("\n"), "    }", "", "",
            "def launch(arguments):", f"    {self.kernel}[{self.grid}](**arguments{more})", "", "",
            "def gate_cases():", '    yield "reduced", lambda module: module.launch(module.arguments())', ""])

    def without_argument(self, name: str) -> Specimen:
        return replace(self, arguments={k: v for k, v in self.arguments.items() if k != name})


def of_launch(launch: Any, values: Sequence[Any], grid: Sequence[int]) -> Specimen:
    """From what `Device.run` is given. Raises MigrateError for a kernel that uses what cannot be written down."""
    from migrate.gate.child.recorder import _changed

    names = [name for name in launch.signature if name not in launch.constants]
    given = {**dict(zip(names, values, strict=True)), **launch.constants}
    found = _Sources()
    found.add(launch.fn)
    return Specimen(launch.fn.fn.__name__, tuple(found.imports), "\n\n".join(found.functions), tuple(grid),
                    {name: _argument(name, given[name]) for name in launch.fn.arg_names if name in given},
                    _changed(launch.options))


def _argument(name: str, value: Any) -> Any:
    if not hasattr(value, "untyped_storage"):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    values: tuple[int, ...] = ()
    if not value.is_floating_point():
        if value.numel() > MOST_VALUES:
            raise MigrateError(f"{name}: an integer tensor of at most {MOST_VALUES} elements can be written down, "
                               f"got {value.numel()}")
        values = tuple(int(x) for x in value.contiguous().flatten().tolist())
        return Drawn(tuple(value.shape), row_major(value.shape), dtype, values)
    return Drawn(tuple(value.shape), tuple(value.stride()), dtype)


class _Sources:
    """A kernel and what it needs, helpers before those that call them."""

    def __init__(self) -> None:
        self.imports = ["import torch", "import triton", "import triton.language as tl"]
        self.functions: list[str] = []
        self._done: set[Any] = set()

    def add(self, jit: Any) -> None:
        if jit in self._done:
            return
        self._done.add(jit)
        text = inspect.cleandoc(inspect.getsource(jit.fn))
        for name in _names(text):
            if name in jit.fn.__globals__ and name not in ("tl", "triton", "torch"):
                self._needs(jit, name, jit.fn.__globals__[name])
        self.functions.append(_plain(text))

    def _needs(self, jit: Any, name: str, value: Any) -> None:
        from triton.runtime.jit import JITFunction

        while not isinstance(value, JITFunction) and hasattr(value, "fn") and hasattr(value, "run"):
            value = value.fn
        if isinstance(value, JITFunction):
            self.add(value)
        elif isinstance(value, ModuleType):
            self._import(f"import {value.__name__} as {name}")
        elif isinstance(value, int | float | str):
            self._import(f"{name} = {value!r}")
        elif type(value).__name__ == "constexpr":
            self._import(f"{name} = tl.constexpr({value.value!r})")
        elif getattr(value, "__module__", "").startswith("triton."):
            self._import(f"from {value.__module__} import {value.__name__} as {name}")
        else:
            raise MigrateError(f"{jit.fn.__name__} uses {name}, a {type(value).__name__}, which cannot be written down")

    def _import(self, line: str) -> None:
        if line not in self.imports:
            self.imports.append(line)


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)))


def _plain(text: str) -> str:
    """A function with `triton.jit` as its only decorator, with neither comments nor docstring."""
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    jit = next((d for d in function.decorator_list if "jit" in ast.unparse(d)), None)
    arguments = f"({', '.join(map(ast.unparse, jit.keywords))})" if isinstance(jit, ast.Call) else ""
    function.decorator_list = [ast.parse(f"triton.jit{arguments}", mode="eval").body]
    if ast.get_docstring(function) and len(function.body) > 1:
        del function.body[0]
    return cst.parse_module(ast.unparse(function)).code
