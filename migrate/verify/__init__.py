"""Runs operators on a device and says how well they agree with their references.

    verify(targets, device, seed) -> Report

`target.py` finds operators, `trial.py` runs a case, `worker.py` does so in a child process, `pool.py` keeps
several children at work under a time limit, `compare.py` measures, `report.py` prints.
"""
from migrate.verify.compare import Agreement, assert_close, compare
from migrate.verify.pool import Report, verify
from migrate.verify.result import CaseResult, Verdict

__all__ = ["Agreement", "CaseResult", "Report", "Verdict", "assert_close", "compare", "verify"]
