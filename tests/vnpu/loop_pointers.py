"""Small loops that advance a pointer, in every combination of what they do with it, and what each of them computes."""
from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

HEAD = "import triton\nimport triton.language as tl\n"
ROUNDS, DIM, BLOCK, SIZE = 5, 100, 128, 6400


@dataclass(frozen=True)
class Form:
    """`pointer`: a scalar, a tile of pointers, or a scalar base of a tile. `inside`, `after`: what is done with it in
    the loop and after it. `beside`: what else the loop carries. `outer`: the loop stands in another one, which carries
    the pointer or gives it a new value each time."""

    pointer: str
    inside: str
    after: str
    beside: str
    masked: bool
    outer: str = ""

    @property
    def name(self) -> str:
        return "_".join(["k", self.pointer, self.inside, self.after, self.beside, "masked" if self.masked else "whole",
                         self.outer]).rstrip("_")

    @property
    def text(self) -> str:
        """The kernel; it takes three tensors of SIZE, ROUNDS and DIM."""
        scalar = self.pointer == "scalar"
        address, value = ("p", "tl.sum(w)") if scalar else ("p" if self.pointer == "tile" else "p + at", "w")
        mask, other = (", mask=at < dim", ", other=0.0") if self.masked else ("", "")
        row, rows = ("", "") if scalar else (" * dim + at", ", mask=at < dim")
        start = f"p = x{' + at' if self.pointer == 'tile' else ''}"
        loop = ["for c in range(n):", *("    " + line for line in [
            *{"none": ["tl.store(z + c, 1.0)"], "store": [f"tl.store({address}, {value} * c{mask})"],
              "load": [f"v = tl.load({address}{mask}{other})", f"tl.store(z + c{row}, v{rows})"]}[self.inside],
            *{"nothing": [], "state": ["acc = acc * 0.5 + w + c"],
              "pointer": ["tl.store(z + 1000 + c * dim + at, tl.load(q, mask=at < dim, other=0.0), mask=at < dim)",
                          "q += dim"]}[self.beside],
            "p += dim"])]
        if self.beside == "state":
            loop.append("tl.store(z + 2000 + at, acc, mask=at < dim)")
        at = "" if scalar else " + at"
        loop += {"no": [], "store": [f"tl.store({address}, {value}{mask})"],
                 "load": [f"v = tl.load({address}{mask}{other})", f"tl.store(z + 3000{at}, v{rows})"]}[self.after]
        lines = ["at = tl.arange(0, BLOCK)", "w = tl.load(y + at, mask=at < dim, other=0.0)"]
        lines += {"nothing": [], "state": ["acc = tl.zeros((BLOCK,), dtype=tl.float32)"],
                  "pointer": ["q = y + at"]}[self.beside]
        if self.outer == "fresh":
            loop = [start + " + d * dim", *loop]
        else:
            lines.append(start)
        lines += ["for d in range(2):", *("    " + line for line in loop)] if self.outer else loop
        return "\n".join([f"\n\n@triton.jit\ndef {self.name}(x, y, z, n, dim, BLOCK: tl.constexpr):",
                          *("    " + line for line in lines), ""])

    def run(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        """What the kernel does to the tensors."""
        at, acc = torch.arange(BLOCK), torch.zeros(BLOCK)
        inner = at[:DIM]
        w = torch.where(at < DIM, y[:BLOCK], 0.0)
        own = at[:1] if self.pointer == "scalar" else inner if self.masked else at      # what the pointer reaches
        kept = at[:1] if self.pointer == "scalar" else inner                            # and what of it is kept
        value = w.sum() if self.pointer == "scalar" else w[own]
        row = 1 if self.pointer == "scalar" else DIM
        p = q = 0
        for d in range(2 if self.outer else 1):
            p = d * DIM if self.outer == "fresh" else p
            for c in range(ROUNDS):
                if self.inside == "none":
                    z[c] = 1.0
                elif self.inside == "store":
                    x[p + own] = value * c
                else:
                    z[c * row + kept] = x[p + kept]
                if self.beside == "state":
                    acc = acc * 0.5 + w + c
                elif self.beside == "pointer":
                    z[1000 + c * DIM + inner] = y[q + inner]
                    q += DIM
                p += DIM
            if self.beside == "state":
                z[2000 + inner] = acc[inner]
            if self.after == "store":
                x[p + own] = value
            elif self.after == "load":
                z[3000 + kept] = x[p + kept]


def forms(outer: str = "") -> list[Form]:
    """135 of them. A scalar needs no mask."""
    return [Form(pointer, inside, after, beside, masked, outer) for pointer, inside, after, beside, masked in
            itertools.product(("scalar", "tile", "base"), ("none", "load", "store"), ("load", "store", "no"),
                              ("nothing", "state", "pointer"), (False, True)) if not (masked and pointer == "scalar")]
