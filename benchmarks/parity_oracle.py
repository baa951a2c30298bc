"""The float64 reference of a parity case, from the catalogue of ported_kernels, on the device of its arguments."""
from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import torch

from ported_kernels import catalog
from ported_kernels.cases.mamba import Case

# Below this, relative to the output, two orders of summation in float32 differ; an error ratio says nothing there.
NOISE = 2.0**-22


@cache
def operator_of(case: Case) -> catalog.Operator | None:
    """The operator whose port the case runs; None where the catalogue has none."""
    path = "mamba_ssm/" + case.module.replace(".", "/") + ".py"
    for operator in catalog.operators().values():
        if case.operator == operator.name or (
                not case.operator and operator.port and operator.upstream.path == path
                and operator.upstream.function == case.function):
            return operator
    return None


def reference(case: Case, arguments: dict[str, Any], device: str) -> list[torch.Tensor | None] | None:
    """What the function must return, flattened, then the inputs that it changes; None where nothing is known.

    float64; None within the list for an output that the function leaves out.
    """
    operator = operator_of(case)
    if operator is None:
        return None
    with torch.device(device):
        returned = _flat(operator.load_reference()(**arguments))
    changed = returned[len(returned) - len(operator.left_in):] if operator.left_in else []
    given = returned[:len(returned) - len(changed)]
    tensors = case.defined([value for value in given if value is not None])
    filled = iter(tensors)
    return [None if value is None else next(filled) for value in given] + changed


def errors(reference: list[torch.Tensor | None], outputs: list[Any]) -> list[float]:
    """The relative L2 error of each output that the reference has; `outputs` as outputs_of makes them."""
    missing, *tensors = outputs
    given = iter(tensors)
    aligned = [None if left_out else next(given) for left_out in missing] + list(given)
    return [_error(want, got) for want, got in zip(reference, aligned, strict=False)
            if want is not None and got is not None]


def error_ratio(upstream: float, port: float) -> float:
    """The port's error over upstream's; below the noise, the two count as equal. NaN where the port's is NaN."""
    return max(port, NOISE) / max(upstream, NOISE)


def _error(want: torch.Tensor, got: torch.Tensor) -> float:
    """Over the finite values of the reference; NaN where `got` is not finite there."""
    known = want.isfinite()
    a, b = want[known].double(), got[known].double()
    base, off = float(a.norm()), float((a - b).norm())
    return off / base if base else (0.0 if off == 0 else float("inf"))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return list(itertools.chain.from_iterable(map(_flat, value)))
    return [value]
