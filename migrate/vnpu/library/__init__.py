"""The functions of HIVM's library, by name.

`find(name)` gives the handler of a function of the final HIVM. It is called with what the HIVM call has, in that order:
views and Python numbers. It does nothing yet; it returns an `Effect`, or a list of `Effect`, `SetFlag` and `WaitFlag`
for a function that works on several pipes. To carry an effect out: check and account `reads`, `writes` and `scratch`,
call `run()`, then mark `writes` as written and clobber `scratch`.
"""
from migrate.vnpu.library.table import Effect, SetFlag, Step, Unknown, WaitFlag, find, handles

__all__ = ["Effect", "SetFlag", "Step", "Unknown", "WaitFlag", "find", "handles"]
