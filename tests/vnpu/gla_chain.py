"""Runs gated linear attention of FLA's port, forward and backward, on the virtual NPU, beside a plain recurrence in
float64. Prints JSON: the relative error of each output, what the checks found, and the errors once more with nobody
looking whose the bytes of a buffer are, as on a card. In a process of its own, as it registers a torch.npu.

    python gla_chain.py FOLDER        the port of fla-core==0.5.2:gla/chunk.py, made with `migrate port -o FOLDER`
"""
import importlib
import json
import sys

import torch

from migrate.gate.child import npu
from migrate.vnpu import device, views

T, K, V = 64, 32, 32


def recurrence(q, k, v, g):
    """o[t] = q[t] / sqrt(K) S[t], with S[t] = exp(g[t]) S[t-1] + k[t] v[t]^T; one head, [T, K] and [T, V]."""
    state, out = torch.zeros(K, V, dtype=torch.float64), []
    for t in range(T):
        state = state * torch.exp(g[t])[:, None] + k[t][:, None] * v[t][None, :]
        out.append(q[t] * K**-0.5 @ state)
    return torch.stack(out)


def errors():
    """The relative error of each output, and what the checks found."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, T, 1, n, generator=draw) * 0.3 for n in (K, K, V))
    g = torch.nn.functional.logsigmoid(torch.randn(1, T, 1, K, generator=draw)) / 16
    here = {name: x.clone().requires_grad_() for name, x in zip("qkvg", (q, k, v, g), strict=True)}
    there = {name: x[0, :, 0].double().requires_grad_() for name, x in zip("qkvg", (q, k, v, g), strict=True)}
    with device.entered(device.Device(device.Settings(strict=False))) as virtual:
        chunk = importlib.import_module("fla_0_5_2.ops.gla.chunk")
        out, _ = chunk.chunk_gla(*here.values())
        out.sum().backward()
    want = recurrence(*there.values())
    want.sum().backward()
    pairs = {"o": (out[0, :, 0], want)}
    pairs |= {"d" + name: (here[name].grad[0, :, 0], there[name].grad) for name in "qkvg"}
    return {name: float((a.double() - b).norm() / b.norm()) for name, (a, b) in pairs.items()}, [
        vars(finding) for run in virtual.take() for finding in run.findings]


def main(folder):
    npu.install("Ascend910B2", 24)
    sys.path.insert(0, folder)
    told, found = errors()
    whole = views.at_address
    views.at_address = lambda memory, address, sizes, dtype, buffer: whole(memory, address, sizes, dtype)
    as_it_lies, _ = errors()
    print(json.dumps({"told": told, "as it lies": as_it_lies, "found": found}))


if __name__ == "__main__":
    main(sys.argv[1])
