"""Ports Triton kernels to Ascend NPUs. Knows Python and Triton; what Ascend needs is in `rules`."""
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("triton-ascend-migrate")
except PackageNotFoundError:          # run from a checkout that was never installed
    __version__ = "0+unknown"
