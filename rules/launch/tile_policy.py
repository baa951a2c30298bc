"""Which autotune configuration a port starts from."""
from __future__ import annotations

import heapq
from collections.abc import Sequence

from migrate.analysis.kernels import Kernel
from migrate.analysis.static import Config
from migrate.analysis.tiles import tiles

BUDGET = 4_096      # elements: a float32 tile of 16 KB
PARTNER = 256       # the other side of a tile with one constant, as a guess


def other_side(kernel: Kernel) -> int:
    """What a lone constant is multiplied with: 1 where all tiles are known to be vectors, as in a kernel that takes
    rows in blocks, else PARTNER."""
    shapes = tiles(kernel).shapes(kernel.source)
    vectors = bool(shapes) and all(shape is not None and sum(dim != "1" for dim in shape) == 1 for shape in shapes)
    return 1 if vectors else PARTNER


def footprint(config: Config, partner: int = PARTNER) -> int:
    """Elements of the largest tile that the constants can span: the product of the two largest."""
    sizes = [v for v in config.kwargs.values() if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    if not sizes:
        return 0
    one, *other = heapq.nlargest(2, sizes)
    return one * (other[0] if other else partner)


def choose(configs: Sequence[Config], partner: int = PARTNER) -> Config:
    """The largest tile within the budget, else the smallest; the first of equals.

    The Unified Buffer holds 192 KB, 96 KB once double-buffered: about six live float32 tiles of 16 KB. Warps and
    stages play no role.
    """
    sizes = [footprint(c, partner) for c in configs]
    fitting = [size for size in sizes if size <= BUDGET]
    return configs[sizes.index(max(fitting) if fitting else min(sizes))]


def reason(configs: Sequence[Config], kept: Sequence[Config], chosen: Config, partner: int = PARTNER) -> str:
    """Why `choose` took it, in a few words; empty where there was no choice."""
    if len(configs) == 1:
        return ""
    among = kept or configs
    if all(c.kwargs == among[0].kwargs for c in among):
        why = "it is what the others set, too"
    elif footprint(chosen, partner) > BUDGET:
        why = f"the smallest, as no tile is within {BUDGET:,} elements"
    elif sum(isinstance(v, int) and not isinstance(v, bool) for v in chosen.kwargs.values()) > 1:
        why = f"the largest whose two largest constants span at most {BUDGET:,} elements"
    elif partner == 1:
        why = f"the largest vector of at most {BUDGET:,} elements"
    else:
        why = f"the largest that spans at most {BUDGET:,} elements with {PARTNER} on the other side"
    return why + (", of those that pruning surely keeps" if kept and len(kept) < len(configs) else "")
