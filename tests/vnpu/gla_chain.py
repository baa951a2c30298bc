"""Runs gated linear attention of FLA's port, forward and backward, on the virtual NPU, beside a plain recurrence in
float64. Prints JSON: the relative error of each output, and the errors that the checks found as [kernel, text]. In a
process of its own, as it registers a torch.npu.

    python gla_chain.py FOLDER        the port of fla-core==0.5.2:gla/chunk.py, made with `migrate port -o FOLDER`
"""
import importlib
import json
import sys

import torch

from migrate.gate.child import npu
from migrate.vnpu import device

T, K, V = 64, 32, 32


def recurrence(q, k, v, g):
    """o[t] = q[t] / sqrt(K) S[t], with S[t] = exp(g[t]) S[t-1] + k[t] v[t]^T; one head, [T, K] and [T, V]."""
    state, out = torch.zeros(K, V, dtype=torch.float64), []
    for t in range(T):
        state = state * torch.exp(g[t])[:, None] + k[t][:, None] * v[t][None, :]
        out.append(q[t] * K**-0.5 @ state)
    return torch.stack(out)


def main(folder):
    npu.install("Ascend910B2", 24)
    device.configure(device.Settings(strict=False))
    sys.path.insert(0, folder)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, T, 1, n, generator=draw) * 0.3 for n in (K, K, V))
    g = torch.nn.functional.logsigmoid(torch.randn(1, T, 1, K, generator=draw)) / 16
    here = {name: x.clone().requires_grad_() for name, x in zip("qkvg", (q, k, v, g), strict=True)}
    there = {name: x[0, :, 0].double().requires_grad_() for name, x in zip("qkvg", (q, k, v, g), strict=True)}
    with device.entered() as virtual:
        chunk = importlib.import_module("fla_0_5_2.ops.gla.chunk")
        out, _ = chunk.chunk_gla(*here.values())
        out.sum().backward()
    want = recurrence(*there.values())
    want.sum().backward()
    pairs = {"o": (out[0, :, 0], want)}
    pairs |= {"d" + name: (here[name].grad[0, :, 0], there[name].grad) for name in "qkvg"}
    print(json.dumps({
        "outputs": {name: float((a.double() - b).norm() / b.norm()) for name, (a, b) in pairs.items()},
        "found": [[finding.kernel, str(finding)] for run in virtual.take() for finding in run.errors]}))


if __name__ == "__main__":
    main(sys.argv[1])
