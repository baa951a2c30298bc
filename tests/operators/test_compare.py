"""`compare` and `assert_close`: what is looked at first, and that nothing is forgiven."""
import math

import pytest
import torch

from migrate.verify import assert_close, compare

NAN, INF = math.nan, math.inf


def tensor(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("ref, out, objection", [
    (tensor(1, 2), [1, 2], "expected a tensor, got list"),
    (tensor(1, 2), tensor(1, 2, dtype=torch.float32), "expected dtype torch.float64, got torch.float32"),
    (tensor(1, 2), tensor(1, 2, 3), "expected shape (2,), got (3,)"),
    (tensor(1, 2, 3), tensor(1, NAN, 3), "NaN at (1,), 1 in all; none in the reference"),
    (tensor(1, NAN, 3), tensor(1, 2, 3), "no NaN at (1,), 1 in all; the reference has"),
    (tensor(1, 2, 3), tensor(1, 2, INF), "+Inf at (2,), 1 in all; none in the reference"),
    (tensor(1, INF), tensor(1, -INF), "no +Inf at (1,), 1 in all; the reference has"),
    (tensor(3, 4), tensor(3, 4.5), "relative RMS error 1.000e-01 exceeds 5.000e-02"),
    (tensor(0, 0), tensor(0, 1e-300), "relative RMS error inf exceeds 5.000e-02"),
])
def test_objections(ref, out, objection):
    found = compare("x", ref, out, 0.05)
    assert found.objection == objection
    with pytest.raises(AssertionError, match=r"^x: "):
        assert_close("x", ref, out, 0.05)


def test_agreement():
    found = compare("x", tensor(3, 4, NAN, -INF), tensor(3, 4.5, NAN, -INF), 0.1)
    assert found.ok
    assert found.ratio == pytest.approx(0.1)
    assert found.largest == pytest.approx(0.5)
    assert compare("x", tensor(0, 0), tensor(0, -0.0), 0.0).ok
    assert_close("x", tensor(1, 2), tensor(1, 2, dtype=torch.bfloat16), 0.0, dtype=torch.bfloat16)


def test_one_bad_element_is_not_averaged_away():
    ref = torch.ones(10_000, dtype=torch.float64)
    out = ref.clone()
    out[77] = 1.5
    assert compare("x", ref, out, 0.01).ok
    objection = compare("x", ref, out, 0.01, rtol=0.01, atol=0.0).objection
    assert objection == "an element is off by 5.000e-01 where 1.000e-02 is allowed, at the reference value 1"
