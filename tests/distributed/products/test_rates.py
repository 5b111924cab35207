"""Rates are measured once; whatever the machine is, and does beside, a plan can be made of them."""

import numpy as np
import pytest

from tiledask.distributed.products.rates import rates_of
from tiledask.tile import as_dtype

pytestmark = pytest.mark.cluster


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rates_are_possible(cluster, dtype):
    rates = rates_of(cluster, dtype)
    assert rates.run >= 0  # of memory that lies together: nothing, where copying is that fast
    for name in ("flops", "touch", "call", "read", "message", "task", "request"):
        assert 0 < getattr(rates, name) < np.inf, name
    assert rates_of(cluster, as_dtype(dtype)) is rates  # measured once
