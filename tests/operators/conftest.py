"""Recording launches instead of running them, as the compile gate does."""
import pytest


@pytest.fixture
def launches(monkeypatch):
    """What is launched inside the test: (kernel, grid). The active driver names an Ascend910B2."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from ported_kernels import interpreter

    seen = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, grid, **kwargs: seen.append((self, grid)))
    before = dict(vars(driver))
    driver.set_active(interpreter.OfflineDriver())
    yield seen
    vars(driver).update(before)
