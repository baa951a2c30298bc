"""Runs the port that `migrate port docs/example/double_rows.py` makes, on the CPU, in Triton's interpreter."""
import torch

from ported_kernels import runtime

module = runtime.load("ported_kernels/generated/double_rows.py", "cpu")
x = torch.randn(3, 100)
with runtime.on("cpu"):
    y = module.double(x)
print("same as 2 * x:", torch.equal(y, 2 * x))
