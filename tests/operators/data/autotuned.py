"""A module as upstream writes them: autotuned at import, heuristics, a helper from another module."""
import triton
import triton.language as tl
from helpers import scaled


@triton.autotune(configs=[triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 32})], key=["n"],
                 restore_value=["out"])
@triton.heuristics({"DOUBLE": lambda args: args["n"] % 2 == 0})
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr, DOUBLE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = scaled(tl.load(x + at, mask=at < n), 3.0)
    if DOUBLE:
        value += value
    tl.store(out + at, value, mask=at < n)


def run(x, out):
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
