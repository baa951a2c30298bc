"""How far an output is from its reference: dtype, shape, NaN and Inf first, then numbers; no leniency."""
from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Agreement:
    """`ratio` is the relative RMS error, which is also the relative L2 error; `largest` the largest absolute
    error; `objection` says what is wrong before any number counts, or which bound is broken."""

    name: str
    ratio: float | None
    largest: float | None
    objection: str | None

    @property
    def ok(self) -> bool:
        return self.objection is None


def compare(name: str, ref: torch.Tensor, out: object, ratio: float, *, rtol: float | None = None,
            atol: float | None = None, dtype: torch.dtype | None = None) -> Agreement:
    """Measures `out` against `ref`, both of any device and dtype, in float64 on the CPU.

    `ratio` bounds RMS(out - ref) / RMS(ref); with `rtol` and `atol`, each element must also keep
    |out - ref| <= atol + rtol * |ref|. `dtype` is the one `out` must have (None: that of `ref`).
    An all-zero reference is met by zeros only. NaN and infinities stand exactly where the reference has them.
    """
    def objects(what: str) -> Agreement:
        return Agreement(name, None, None, what)

    expected = ref.dtype if dtype is None else dtype
    if not isinstance(out, torch.Tensor):
        return objects(f"expected a tensor, got {type(out).__name__}")
    if out.dtype != expected:
        return objects(f"expected dtype {expected}, got {out.dtype}")
    if out.shape != ref.shape:
        return objects(f"expected shape {tuple(ref.shape)}, got {tuple(out.shape)}")
    want, got = ref.detach().cpu().double(), out.detach().cpu().double()
    for label, test in (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf)):
        extra, missing = test(got) & ~test(want), test(want) & ~test(got)
        if extra.any():
            return objects(f"{label} at {_first(extra)}, {int(extra.sum())} in all; none in the reference")
        if missing.any():
            return objects(f"no {label} at {_first(missing)}, {int(missing.sum())} in all; the reference has")
    finite = torch.isfinite(want)
    want, got = want[finite], got[finite]
    error = (got - want).abs()
    if error.numel() == 0:
        return Agreement(name, 0.0, 0.0, None)
    largest = float(error.max())
    base, off = float(want.norm()), float(error.norm())
    measured = off / base if base else (0.0 if largest == 0 else float("inf"))
    if not measured <= ratio:
        return Agreement(name, measured, largest, f"relative RMS error {measured:.3e} exceeds {ratio:.3e}")
    if rtol is not None or atol is not None:
        room = (atol or 0.0) + (rtol or 0.0) * want.abs()
        if bool((error > room).any()):
            worst = int((error - room).argmax())
            return Agreement(name, measured, largest,
                             f"an element is off by {float(error[worst]):.3e} where {float(room[worst]):.3e} "
                             f"is allowed, at the reference value {float(want[worst]):.6g}")
    return Agreement(name, measured, largest, None)


def assert_close(name: str, ref: torch.Tensor, out: object, ratio: float, *,
                 dtype: torch.dtype | None = None) -> None:
    """AssertionError unless `compare` has no objection."""
    found = compare(name, ref, out, ratio, dtype=dtype)
    assert found.ok, f"{name}: {found.objection}"


def _first(where: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in where.nonzero()[0])
