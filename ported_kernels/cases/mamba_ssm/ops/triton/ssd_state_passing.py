"""Launches of mamba_ssm/ops/triton/ssd_state_passing.py for the compile gate; see docs/gate.md."""
from functools import partial

from ported_kernels.cases.mamba import gate_cases_of

cases = partial(gate_cases_of, "ops.triton.ssd_state_passing")
