"""Ours against what the pinned release itself ships, loaded from the unpacked snapshot: its reference
function, and its kernel in the same interpreter. Nothing of it is in this repository."""
import math

import pytest
import torch

from migrate.errors import MigrateError
from migrate.verify import assert_close
from ported_kernels import bwd_segsum_dadt, catalog, runtime

OPERATOR = catalog.get("bwd_segsum_dadt")


@pytest.fixture(scope="module")
def upstream():
    from upstream_snapshots import sync

    try:
        root = sync.ensure(sync.find(OPERATOR.upstream.release))
    except (MigrateError, OSError) as error:
        pytest.skip(f"{OPERATOR.upstream.release} cannot be had here: {error}")
    return runtime.load(root / OPERATOR.upstream.path, "cpu")


@pytest.mark.parametrize("C", [8, 16, 64, 128])
def test_segsum_against_upstream_reference(upstream, C):
    B, H, N = 2, 3, 2
    normal = catalog.seeded(C)
    D, total = normal(B, H, N, C, C), normal(B, H, N * C) * 0.1
    by_chunk = total.view(B, H, N, C)
    S = by_chunk[..., :, None] - by_chunk[..., None, :]
    # Theirs counts in log2: it scales the sum by -log2(e) and leaves nothing to add to.
    want = upstream.bwd_segsum_ddt_from_dSSdA_ref(D, total, C) / -math.log2(math.e)
    assert_close("reference", want, OPERATOR.load_reference()(D, S, torch.zeros(B, H, N * C), C), 1e-12)
    out = bwd_segsum_dadt(D.float(), S.float(), torch.zeros(B, H, N * C), C)
    assert_close("ours", want, out, 1e-5, dtype=torch.float32)


@pytest.mark.parametrize("dtype", OPERATOR.dtypes)
def test_segsum_is_no_worse_than_upstream_kernel(upstream, dtype):
    """Both kernels in the interpreter, on the same inputs, against the same float64 reference. Theirs multiplies
    in the inputs' dtype and cannot take exp of float16, so it is given float32 copies."""
    inputs = OPERATOR.case("B2 H4 N4 C32").build(0, dtype)
    want = OPERATOR.load_reference()(**inputs)
    D, S, before, C = inputs["dSSdA"].float(), inputs["SSdA"].float(), inputs["ddt_out"], inputs["chunk_size"]
    B, H, N = D.shape[:3]
    theirs = before.clone()
    with runtime.on("cpu"):
        upstream.bwd_segsum_dadt_kernel[(B, H, N)](D, S, theirs, *D.stride(), *S.stride(), *theirs.stride(),
                                                   B=B, H=H, nchunks=N, C=C, CHUNK_SIZE=C)
    ours = bwd_segsum_dadt(**inputs)
    error = {name: float((out - want).norm() / want.norm()) for name, out in (("ours", ours), ("theirs", theirs))}
    assert error["ours"] <= 1.1 * error["theirs"] + 1e-8, error
