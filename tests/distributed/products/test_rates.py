"""Rates are measured once; whatever the machine is, and does beside, a plan can be made of them."""

from dataclasses import replace

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.products.rates import rates_of
from tiledask.plan.products.cost import break_even, cost
from tiledask.plan.products.product import algorithms, plan_product

pytestmark = pytest.mark.cluster


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rates_are_possible(cluster, dtype):
    rates = rates_of(cluster, dtype)
    assert rates.run >= 0  # of memory that lies together: nothing, where copying is that fast
    for name in ("flops", "touch", "call", "read", "message", "task", "request"):
        assert 0 < getattr(rates, name) < np.inf, name
    assert break_even(4, 4, rates) >= 1


def test_they_are_measured_once(cluster):
    assert rates_of(cluster, "f4") is rates_of(cluster, "float32")


@pytest.mark.long
@pytest.mark.parametrize("algorithm", algorithms)
def test_the_overhead_of_a_product_is_what_the_cluster_is_asked(cluster, monkeypatch, algorithm):
    mesh = td.Mesh(cluster, (2, 2))
    placed = (td.Shard(0), td.Replicate() if algorithm == "local" else td.Shard(1))
    a = td.distribute(np.ones((8, 8), "f4"), mesh, placed)
    b = td.distribute(np.ones((8, 8), "f4"), mesh, (td.Replicate(), placed[1]))
    td.matmul(a, b, algorithm=algorithm)  # the first has the operands' anchors made
    rates, asked = rates_of(cluster, "f4"), {"run": 0, "submit_all": 0}

    def counted(name, weight):
        call = getattr(cluster, name)

        def counting(*args, **options):
            asked[name] += weight(args)
            return call(*args, **options)

        monkeypatch.setattr(cluster, name, counting)

    counted("run", lambda args: 1)
    counted("submit_all", lambda args: len(args[1]))
    td.matmul(a, b, algorithm=algorithm)
    plan = plan_product(algorithm, a.tiling, b.tiling)
    only_these = replace(rates, task=1.0, request=1000.0)
    predicted = cost(plan, 4, 4, only_these).overhead
    assert predicted == asked["submit_all"] + 1000 * asked["run"]
