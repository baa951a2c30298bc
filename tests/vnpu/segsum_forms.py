"""Three forms of one sum over a chunk of 64, for the cost model to rank: the gradient of a segment sum.

    out[i] = sum over i' >= i, j < i of d[j, i'] * exp(s[i', j])

`vector` transposes a tile in registers and scans it, `products` scans it by a product with a triangle of ones on the
cube core, and `transposed read` reads the transposed tile element by element.

    migrate check tests/vnpu/segsum_forms.py --case vector --trace vector.json
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

C = 64


@triton.jit
def vector(d, s, out, C: tl.constexpr):
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    across = tl.load(d + i * C + j)
    sums = tl.load(s + i * C + j)
    weighted = tl.where(i > j, tl.trans(across) * tl.exp(sums), 0.0)
    scanned = tl.cumsum(weighted, axis=0, reverse=True)
    tl.store(out + tl.arange(0, C), tl.sum(tl.where(i > j, scanned, 0.0), axis=1))


@triton.jit
def products(d, s, out, C: tl.constexpr):
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    across = tl.load(d + i * C + j)
    sums = tl.load(s + i * C + j)
    weighted = tl.where(i > j, tl.trans(across) * tl.exp(sums), 0.0)
    scanned = tl.dot(tl.where(j >= i, 1.0, 0.0), weighted)
    tl.store(out + tl.arange(0, C), tl.sum(tl.where(i > j, scanned, 0.0), axis=1))


@triton.jit
def transposed_read(d, s, out, C: tl.constexpr):
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    sums = tl.load(s + i * C + j)
    weighted = tl.where(i > j, tl.load(d + j * C + i) * tl.exp(sums), 0.0)
    scanned = tl.cumsum(weighted, axis=0, reverse=True)
    tl.store(out + tl.arange(0, C), tl.sum(tl.where(i > j, scanned, 0.0), axis=1))


FORMS = {"transposed read": transposed_read, "vector": vector, "products": products}


def run(form: str, d: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """d and s (64, 64) of float32 -> (64)."""
    out = torch.empty(C, dtype=torch.float32)
    FORMS[form][(1,)](d, s, out, C=C)
    return out


def expected(d: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """The same in float64."""
    weighted = torch.tril(d.double().T * s.double().exp(), -1)
    return torch.tril(weighted.flip(0).cumsum(0).flip(0), -1).sum(1)


def gate_cases() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    draw = torch.Generator().manual_seed(0)
    d, s = torch.randn(2, C, C, generator=draw)
    for form in FORMS:
        yield form, lambda module, form=form: module.run(form, d, s)
