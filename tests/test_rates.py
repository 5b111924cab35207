"""Rates are measured once, and are those of a machine that can exist."""

import pytest

from tiledask.dist.rates import rates_of
from tiledask.plan.products.cost import break_even

pytestmark = [pytest.mark.cluster, pytest.mark.timed]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rates_are_possible(cluster, dtype):
    rates = rates_of(cluster, dtype)
    assert 1e8 < rates.flops < 1e13
    assert 1e7 < rates.read < 1e12
    assert 1e8 < rates.touch <= 1e12
    assert 0 < rates.call < 0.1
    assert 0 < rates.message < 0.1
    assert 0 <= rates.run < 1e-3
    assert 1e-5 < rates.task < 1
    assert 1e-5 < rates.request < 1
    assert 1 < break_even(4, 4, rates) < 2**20


def test_they_are_measured_once(cluster):
    assert rates_of(cluster, "f4") is rates_of(cluster, "float32")
