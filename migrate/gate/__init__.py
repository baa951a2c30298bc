"""The Ascend compile gate: Huawei's own compiler as judge, on a machine with no NPU.

A check runs in three kinds of process. The command (this package) holds no triton and no user code. A
worker (`migrate.gate.child`) imports the user's file under an offline driver, calls its wrappers on CPU
tensors and lowers what they would have launched to TTIR. The compilers (`triton-adapter-opt`,
`bishengir-compile`, `bishengir-opt`) are programs of their own. Workers and compilers run under limits
on time and memory, so that none of them can take the check, or another kernel's verdict, with it.
"""
