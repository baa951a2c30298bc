"""Running sums and products along the first of two axes, from the front or from the back, in the type's own width."""
from __future__ import annotations

import numpy as np

from migrate.vnpu import cost_model
from migrate.vnpu.library.table import Effect, handles
from migrate.vnpu.memory import View


@handles(r"cum(?P<op>sum|prod)_ra(?P<reverse>_reverse|)_<T>")
def running(x: View, out: View, *, op: str, reverse: str) -> Effect:
    scan = np.cumsum if op == "sum" else np.cumprod

    def run() -> None:
        values = x.get()
        if reverse:
            values = values[::-1]
        values = scan(values, axis=0, dtype=values.dtype)
        out.put(values[::-1] if reverse else values)
    return Effect("V", (x,), (out,), cost_model.scan(x, 0), run)
