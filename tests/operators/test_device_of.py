"""runtime.device_of: the card that a launch goes to."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from ported_kernels import runtime


def test_nothing_to_do_on_the_cpu() -> None:
    x = torch.zeros(1)
    for what in (x, x.device, "cpu", None, torch.zeros(1, device="meta")):
        assert isinstance(runtime.device_of(what), contextlib.nullcontext)


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_enters_the_card(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    @contextlib.contextmanager
    def device(which: torch.device) -> Iterator[None]:
        entered.append((which.type, which.index))
        yield

    monkeypatch.setattr(torch, kind, type("module", (), {"device": staticmethod(device)}), raising=False)
    monkeypatch.setattr(runtime, "default_device", lambda: kind)
    monkeypatch.setattr(torch, "device", lambda name, index=None: type("d", (), {"type": name, "index": index}))
    for what in (kind, 1):
        with runtime.device_of(what):
            pass
    assert entered == [(kind, None), (kind, 1)]
