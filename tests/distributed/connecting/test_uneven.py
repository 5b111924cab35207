"""Workers that come and go, and workers that are not alike.

Holds `tiledask.distributed.connecting.slots` and `tiledask.distributed.cluster.room`.
"""

import time

import numpy as np
import pytest
from distributed import Client, LocalCluster
from oracles.waiting import wait_until
from twins.by_hand import dask_by_hand

import tiledask as td
from tiledask.errors import DeadlineError, DoesNotFitError, PlacementError
from tiledask.plan.splitting.partition import contiguous_splits

pytestmark = pytest.mark.cluster
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def local():
    """Dask's own cluster of two workers; its scheduler is in this process."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as started:
        yield started


@pytest.fixture(scope="module")
def client(local):
    with Client(local, set_as_default=False) as client:
        yield client


def scaled(local, client, workers):
    local.scale(workers)
    wait_until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == workers)


def test_workers_that_come_and_go_between_products(local, client):
    a = RNG.standard_normal((48, 48))
    with td.connect(client, workers=2) as cluster:
        A = td.distribute(a, td.Mesh(cluster, (2,)), [td.Shard(0)])
        A @ A

        scaled(local, client, 3)  # one stands by
        assert cluster.slots == 2
        np.testing.assert_allclose(td.to_numpy(A @ A), a @ a)
        assert td.connect(client).slots == 3
        X = td.distribute(a, td.Mesh(cluster, (3,)), [td.Shard(0)])
        np.testing.assert_allclose(td.to_numpy(X @ X), a @ a)

        scaled(local, client, 2)
        with pytest.raises(DeadlineError, match="slot "):
            td.matmul(X, X, timeout=3)

        scaled(local, client, 3)  # as many come back, and what they had is made again
        wait_until(lambda: len(cluster._workers()) == 3)
        np.testing.assert_allclose(td.to_numpy(X @ X), a @ a)
        scaled(local, client, 2)
    with td.connect(client) as fewer:
        assert fewer.slots == 2
        with pytest.raises(PlacementError, match=r"3 ranks, the cluster has 2 slots"):
            td.Mesh(fewer, (3,))


def tiny():
    text = td.load_text("tales")
    return td.GPT(text.vocabulary, hidden=12, layers=3, heads=3, sequence=8), text


@pytest.mark.slow
def test_a_cluster_that_adapts_keeps_as_many_as_it_is_told(local, client):
    a = RNG.standard_normal((40, 40))
    scaled(local, client, 2)
    adaptive = local.adapt(minimum=2, maximum=3, interval="100 ms", wait_count=2)
    try:
        with td.connect(client, workers=2) as cluster:
            A = td.distribute(a, td.Mesh(cluster, (2,)), [td.Shard(0)])
            for _ in range(3):
                C = A @ A
                assert C.traffic.predicted == C.traffic.measured
                np.testing.assert_allclose(td.to_numpy(C), a @ a)
                time.sleep(0.5)
    finally:
        adaptive.stop()


def test_a_slot_with_less_memory_is_named_with_both_numbers(tmp_path):
    with dask_by_hand(tmp_path, 2) as dask:
        dask.worker("--no-nanny", "--memory-limit", "300MB")
        with td.connect(dask.address, workers=3) as cluster:
            assert sorted(cluster.memory_limits) == [300_000_000, 2_000_000_000, 2_000_000_000]
            assert cluster.memory_limit == 300_000_000
            small = cluster.memory_limits.index(300_000_000)
            large = tuple(slot for slot in range(3) if slot != small)

            def ones(*slots, m, n):
                mesh = td.Mesh(cluster, (len(slots),), slots=slots)
                make = lambda at: np.ones((-(-m // len(slots)), n), "f4")  # noqa: E731
                return td.from_function(make, (m, n), "f4", mesh, [td.Shard(0)])

            def operands(*slots):
                """Of a product that is much larger than they are, and soon done."""
                return ones(*slots, m=9000, n=50), ones(*slots, m=50, n=9000)

            A, B = operands(small, large[0])
            with pytest.raises(DoesNotFitError) as refused:
                A @ B
            said = str(refused.value)
            assert f"(slot {small}: " in said
            assert "300 MB" in said
            assert "needs least, " in said
            assert f"workers that have it, td.Mesh(cluster, (2,), slots={large})" in said
            assert "--memory-limit" in said
            assert not td.explain(A, B).chosen
            A, B = operands(*large)
            C = A @ B
            assert C.traffic.predicted == C.traffic.measured
            with pytest.raises(DoesNotFitError, match=rf"a worker may hold .*slot {small}: "):
                ones(small, m=9000, n=9000)
            assert ones(large[0], m=9000, n=9000).block_bytes == (324_000_000,)


def test_layers_are_cut_by_the_speeds_and_memory_of_the_slots(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "_speeds", (1.0, 3.0, 2.0, 1.0))
    costs, sizes = [3.0, 1.0, 2.0, 2.0, 1.0, 4.0], [1.0] * 6
    for memory in (None, sizes):
        room = None if memory is None else (8, 2, 8)
        cut = td.partition(costs, 3, speeds=cluster.speeds()[:3], memory=memory, capacity=room)
        best = min(
            max(
                sum(costs[i:j]) / speed
                for i, j, speed in zip(bounds, bounds[1:], (1, 3, 2), strict=False)
            )
            for bounds in contiguous_splits(6, 3)
            if memory is None
            or all(j - i <= n for i, j, n in zip(bounds, bounds[1:], room, strict=False))
        )
        assert cut.bottleneck == best
    model, text = tiny()
    cut = td.partition(model.layers, 2, speeds=cluster.speeds()[:2]).sizes
    assert cut == (1, 2)
    there = td.train(model, text, td.Mesh(cluster, (1, 1, 2)), steps=2, batch=2, cut=cut)
    here = td.train(model, text, (1, 1, 1), steps=2, batch=2)
    np.testing.assert_allclose(there.losses, here.losses, rtol=1e-6)


def test_speeds_are_measured_once(cluster):
    first = cluster.speeds()
    assert len(first) == 4
    assert all(speed > 0 for speed in first)
    assert cluster.speeds() is first
