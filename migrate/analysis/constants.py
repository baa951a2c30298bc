"""What may be set of the kernels of a file: their `tl.constexpr` parameters, and None for any parameter."""
from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.analysis.kernels import Kernel
from migrate.asked import Literal, Setting
from migrate.errors import UsageError
from migrate.tree import find

if TYPE_CHECKING:
    from migrate.source import Source


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
    """Raises UsageError for a setting that no kernel of the file has a parameter for."""
    for setting in source.asked.settings:
        _check(source, path, setting)


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
