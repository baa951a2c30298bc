"""What may be asked of the kernels of a file: values of their `tl.constexpr` parameters, None for any parameter, and
lengths to split."""
from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.analysis.axes import axes
from migrate.analysis.kernels import Kernel
from migrate.asked import Literal, Setting
from migrate.errors import UsageError
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source


PART = 64               # rows of a part of a split axis, as ASC212 makes them


def is_helper(source: Source, kernel: Kernel) -> bool:
    """A function that returns something, or that another Triton function calls."""
    if any(r.value is not None for r in find(kernel.node.body, cst.Return)):
        return True
    return any(isinstance(call.func, cst.Name) and call.func.value == kernel.name
               for other in source.kernels.values() for call in find(other.node.body, cst.Call))


def given(source: Source, kernel: Kernel) -> dict[str, Literal]:
    """What was set for parameters of a kernel; for a helper, what names it."""
    values = source.asked.values(kernel.name)
    if is_helper(source, kernel):
        values = {s.name: s.value for s in source.asked.settings if s.kernel == kernel.name}
    return {name: value for name, value in values.items() if name in kernel.params and _settable(kernel, name, value)}


def _settable(kernel: Kernel, name: str, value: Literal) -> bool:
    return kernel.params[name].constexpr or value is None


def check(source: Source, path: str) -> None:
    """Raises UsageError for a setting that no kernel of the file has a parameter for, or a length that none has."""
    for setting in source.asked.settings:
        _check(source, path, setting)
    kernels = [k for k in source.kernels.values() if not is_helper(source, k)]
    for word in source.asked.split:
        if not any(_has_length(source, kernel, word) for kernel in kernels):
            names = dict.fromkeys(name for kernel in kernels for name in _constants(source, kernel))
            has = "an axis of this length" if word.isdigit() else f"a constant {word}"
            raise UsageError(f"--split {word}: no kernel of {path} has {has}; there "
                             f"{'are ' + ', '.join(names) if names else 'is no constant'}")


def _check(source: Source, path: str, setting: Setting) -> None:
    kernels = source.kernels
    if setting.kernel and setting.kernel not in kernels:
        raise UsageError(f"--set {setting}: {path} has no kernel {setting.kernel}; it has "
                         f"{', '.join(kernels) or 'none'}")
    asked = [kernels[setting.kernel]] if setting.kernel else [
        k for k in kernels.values() if not is_helper(source, k)]
    having = [k for k in asked if setting.name in k.params]
    if any(_settable(k, setting.name, setting.value) for k in having):
        return
    if having:
        raise UsageError(f"--set {setting}: {setting.name} of {having[0].name} is a run-time argument, "
                         "not tl.constexpr")
    where = setting.kernel or f"no kernel of {path}"
    names = dict.fromkeys(name for k in asked for name, p in k.params.items() if p.constexpr)
    has = "has no" if setting.kernel else "has a"
    raise UsageError(f"--set {setting}: {where} {has} tl.constexpr parameter {setting.name}; there "
                     f"{'are ' + ', '.join(names) if names else 'is none'}")


def _constants(source: Source, kernel: Kernel) -> list[str]:
    """Names that may be the length of an axis: parameters, constants of the kernel's own, those of the module."""
    own = [n.target.value for n in find(kernel.node.body, cst.AnnAssign) if isinstance(n.target, cst.Name)]
    module = [n.value for n in find(kernel.node.body, cst.Name) if n.value in source.constants]
    return [*(name for name, p in kernel.params.items() if p.constexpr), *own, *module]


def _has_length(source: Source, kernel: Kernel, word: str) -> bool:
    """Whether `--split WORD` may mean something here. Numbers: also those that other rules may yet make a length."""
    if not word.isdigit():
        imported = word in source.imports and any(n.value == word for n in find(kernel.node.body, cst.Name))
        return imported or word in _constants(source, kernel)
    values = dict(source.asked.values(kernel.name))
    numbers = {n.evaluated_value for n in find(kernel.node, cst.Integer)} | set(values.values())
    # of a kernel in parts of 64 already, where the last part begins is left in the text
    return int(word) > 0 and (int(word) in numbers or int(word) - PART in numbers - {0} or any(
        length.number.value == int(word) for axis in axes(kernel, values).all() for length in axis.lengths))
