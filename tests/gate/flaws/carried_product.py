"""A cube product carried round a loop into the next one."""
import torch
import triton
import triton.language as tl


@triton.jit
def transition(k, w, g, out, chunks, K: tl.constexpr, BT: tl.constexpr):
    i, t = tl.arange(0, K), tl.arange(0, BT)
    state = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for c in range(chunks):
        key = tl.load(k + (c * BT + t)[:, None] * K + i[None, :])
        weight = tl.load(w + (c * BT + t)[:, None] * K + i[None, :])
        decay = tl.exp2(tl.load(g + c * K + i))
        step = tl.where(i[:, None] == i[None, :], decay[:, None], 0.0) - tl.dot(tl.trans(key), weight)
        state = tl.dot(step, state)  # flaw
    tl.store(out + i[:, None] * K + i[None, :], state)


def gate_cases():
    x = torch.zeros(1 << 16)
    yield "fp32", lambda m: m.transition[(1,)](x, x, x, x, 4, K=64, BT=64)
