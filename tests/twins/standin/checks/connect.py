"""`td.connect` to workers with GPUs: those of Dask-CUDA, and those that share one."""

import os

import cupy
import numpy as np
import pytest
from dask_cuda import LocalCUDACluster
from distributed import Client
from oracles.waiting import wait_until
from twins.by_hand import ByHand

import tiledask as td
from tiledask.distributed.cluster import device_memory
from tiledask.errors import ConfigError

pytestmark = pytest.mark.cluster
RNG = np.random.default_rng(0)
GPU = 1_000_000_000  # bytes of one


@pytest.fixture(scope="module")
def client():
    """Of the user, on a worker of Dask-CUDA's for each of two GPUs."""
    with (
        LocalCUDACluster(protocol="tcp", dashboard_address="127.0.0.1:0") as local,
        Client(local, set_as_default=False) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture
def by_hand(tmp_path):
    """A scheduler without workers."""
    with ByHand(tmp_path) as dask:
        dask.scheduler()
        yield dask


def product(cluster, slots=2):
    """How far a product is from NumPy's; it moves what was predicted."""
    a = RNG.standard_normal((40, 30), np.float32)
    mesh = td.Mesh(cluster, (slots,))
    A, B = (td.distribute(x, mesh, [td.Shard(0)]) for x in (a, a.T.copy()))
    C = A @ B
    assert C.traffic.predicted == C.traffic.measured
    return float(np.abs(td.to_numpy(C) - a @ a.T).max())


def habits():
    """Where the memory of a worker's GPU comes from."""
    pool = cupy.get_default_memory_pool()
    return str(cupy.cuda.get_allocator()), pool.get_limit(), device_memory.pooled()


def arrays_are(cluster):
    """What blocks on the workers are."""
    X = td.distribute(np.ones(4, "f4"), td.Mesh(cluster, (2,)), [td.Shard(0)])
    return {cluster.submit(0, lambda x: type(x).__module__, X.blocks[0]).result(20)}


def test_each_gpu_is_a_slot_and_all_runs_there(client):
    before = client.run(habits)
    with td.connect(client) as cluster:
        assert (cluster.kind, cluster.slots) == ("GPU", 2)
        assert "each has a GPU" in cluster.why
        assert cluster.memory_limit == 0.9 * GPU
        assert arrays_are(cluster) == {"cupy"}
        assert product(cluster) < 1e-4
        assert cluster.transport == "ipc"
        x, order = np.ones((8, 4), "f4"), td.schedule("1f1b", 2, 4)
        stages = [td.stages.FeedForward((i,), 4, 8) for i in range(2)]
        run = td.run_schedule(order, stages, x, cluster, target=x)
        assert run.traffic.predicted == run.traffic.measured
        text = td.load_text("tales")
        model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
        there = td.train(model, text, td.Mesh(cluster, (1, 2, 1)), steps=2, batch=4)
        here = td.train(model, text, (1, 2, 1), steps=2, batch=4)
        np.testing.assert_allclose(there.losses, here.losses, rtol=1e-5)
        assert all(pooled for _, _, pooled in client.run(habits).values())
    assert client.run(habits) == before
    assert client.submit(lambda: int(cupy.arange(4).sum()), pure=False).result(20) == 6


def test_what_was_asked_for_is_what_computes(client):
    with td.connect(client, device="cpu") as cluster:
        assert cluster.kind == "CPU"
        assert arrays_are(cluster) == {"numpy"}
        with pytest.raises(ConfigError, match=r"device='cuda' was asked for, .* CPU workers"):
            td.connect(client, device="cuda")
        with (
            Client(client.scheduler.address, set_as_default=False) as other,
            td.connect(other, device="cuda") as second,
        ):
            assert arrays_are(second) == {"cupy"}
        assert product(cluster) < 1e-4
    with pytest.raises(ConfigError, match="device is 'auto', 'cuda' or 'cpu', got 'gpu'"):
        td.connect(client, device="gpu")


def test_a_killed_worker_comes_back_with_its_gpu(client):
    with td.connect(client) as cluster:
        a = RNG.standard_normal((32, 16), np.float32)
        A = td.distribute(a, td.Mesh(cluster, (2,)), [td.Shard(0)])
        at = cluster.address(1)
        client.run(os._exit, 1, workers=[at], on_error="ignore")
        wait_until(lambda: cluster._workers().get(1, {}).get("address", at) != at)
        np.testing.assert_array_equal(td.to_numpy(A), a)
        assert all(pooled for _, _, pooled in client.run(habits).values())
        assert product(cluster) < 1e-4


def test_workers_started_by_hand(by_hand):
    by_hand.worker(program="cuda worker")
    with td.connect(by_hand.address, workers=2, device="cuda", timeout=60) as cluster:
        assert cluster.kind == "GPU"
        assert product(cluster) < 1e-4


def test_workers_that_share_a_gpu_share_its_memory(by_hand):
    for _ in range(2):
        by_hand.worker("--no-nanny")
    with td.connect(by_hand.address, workers=2) as cluster:
        assert cluster.kind == "CPU"
        assert "no GPU was given to it" in cluster.why
    with td.connect(by_hand.address, workers=2, device="cuda") as cluster:
        assert cluster.memory_limit == 0.45 * GPU
        assert {limit for _, limit, _ in cluster.run(habits)} == {0.475 * GPU}
        assert product(cluster) < 1e-4
    with Client(by_hand.address, set_as_default=False) as client:
        assert {found[1:] for found in client.run(habits).values()} == {(0, False)}


def test_gpus_that_are_shared_are_only_taken_if_asked_for(by_hand):
    for _ in range(2):
        by_hand.worker("--no-nanny", CUDA_VISIBLE_DEVICES="0")
    with td.connect(by_hand.address, workers=2) as cluster:
        assert cluster.kind == "CPU"
        assert "2 workers share GPU" in cluster.why


def test_slots_go_to_workers_that_have_a_gpu(by_hand):
    by_hand.worker("--no-nanny", STANDIN_GPUS="0")
    by_hand.worker("--no-nanny", CUDA_VISIBLE_DEVICES="1")
    with Client(by_hand.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=30)
        with pytest.raises(ConfigError, match=r"1 workers cannot .* no usable GPU .*workers=1\)"):
            td.connect(client, device="cuda")
        with td.connect(client, device="cuda", workers=1) as cluster:
            assert product(cluster, 1) < 1e-4
            assert cluster.run(lambda: os.environ.get("CUDA_VISIBLE_DEVICES")) == ["1"]
        with td.connect(client) as cluster:
            assert (cluster.kind, cluster.slots) == ("CPU", 2)
            assert "has none: no GPU was given to it" in cluster.why
