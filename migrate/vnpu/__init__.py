"""The virtual NPU: what Ascend's compiler made of a kernel, run on numpy, with no card."""
