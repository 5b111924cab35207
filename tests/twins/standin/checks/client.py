"""What comes to the client from GPU workers: through host memory, a block at a time."""

import os
import signal
import tracemalloc

import numpy as np
import pytest
from cupy import _machine

import tiledask as td
from tiledask.distributed.arrays import array as arrays
from tiledask.errors import DeadlineError
from tiledask.tile import as_dtype

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster():
    with td.start_cluster(device="cuda", workers=4, quiet=True) as started:
        yield started


@pytest.fixture
def untouched():
    """This process allocates nothing on a device."""
    before = [device.mallocs for device in _machine.devices()]
    yield
    assert [device.mallocs for device in _machine.devices()] == before


def made(shape, dtype="float32"):
    return np.random.default_rng(0).integers(-9, 9, shape).astype(as_dtype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
def test_every_type_comes_back(cluster, untouched, dtype, turned):
    x = made((37, 22), dtype)
    for placements in [(td.Shard(0),), (td.Shard(1),), (td.Replicate(),)]:
        X = td.distribute(x, td.Mesh(cluster, (4,)), placements)
        found = td.to_numpy(X.T if turned else X)
        assert found.dtype == x.dtype
        assert np.array_equal(found, x.T if turned else x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_moves_between_workers_keeps_its_type(cluster, untouched, dtype):
    x, mesh = made((24, 18), dtype), td.Mesh(cluster, (2, 2))
    X = td.distribute(x, mesh, (td.Shard(0), td.Shard(1)))
    for to in [(td.Shard(1), td.Shard(0)), (td.Replicate(), td.Shard(0)), (td.Replicate(),) * 2]:
        moved = td.redistribute(X, to)
        assert td.to_numpy(moved).dtype == x.dtype
        assert np.array_equal(td.to_numpy(moved), x)
        assert moved.traffic.predicted == moved.traffic.measured


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_product_and_its_partial_sums(cluster, untouched, dtype):
    a, b = made((64, 48), dtype), made((48, 40), dtype)
    mesh = td.Mesh(cluster, (4,))
    A = td.distribute(a, mesh, (td.Shard(1),))
    B = td.distribute(b, mesh, (td.Shard(0),))
    C = td.matmul(A, B)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    assert td.to_numpy(C).dtype == as_dtype(dtype)
    assert np.allclose(td.to_numpy(C).astype(np.float32), expected, rtol=0.02, atol=2)


def test_chunks_of_dask_arrays_keep_their_type(cluster):
    x = made((12, 10), "bfloat16")
    X = td.distribute(x, td.Mesh(cluster, (4,)), (td.Shard(0),))
    D = X.to_dask()
    assert D.dtype == x.dtype
    back = td.from_dask(D, X.mesh, (td.Shard(1),))
    assert np.array_equal(td.to_numpy(back), x)
    assert np.array_equal(D.compute(), x)


def test_there_is_never_more_than_the_result_and_two_blocks(cluster, untouched, monkeypatch):
    monkeypatch.setattr(arrays, "SLAB", 2**12)
    x = made((1024, 1024))  # 4 blocks of 1 MiB
    X = td.distribute(x, td.Mesh(cluster, (4,)), (td.Shard(0),))
    td.to_numpy(X)
    tracemalloc.start()
    found = td.to_numpy(X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(found, x)
    assert peak <= x.nbytes + 2 * X.block_bytes[0] + 2**18


def test_many_small_blocks_come_together(cluster, monkeypatch):
    fetched = []
    gather = cluster.client._gather
    monkeypatch.setattr(
        cluster.client,
        "_gather",
        lambda part, **how: (fetched.append(len(part)), gather(part, **how))[1],
    )
    td.to_numpy(td.distribute(made((8, 8)), td.Mesh(cluster, (4,)), (td.Shard(0),)))
    assert fetched == [4]


def test_a_worker_that_dies_between_two_blocks(cluster, monkeypatch):
    monkeypatch.setattr(arrays, "SLAB", 1)
    x = made((64, 64))
    X = td.distribute(x, td.Mesh(cluster, (4,)), (td.Shard(0),))
    gather, asked = cluster.client._gather, []

    async def deadly(part, **how):
        asked.append(part)
        if len(asked) == 2:
            os.kill(pid, signal.SIGKILL)
        return await gather(part, **how)

    pid = cluster.run(os.getpid)[2]
    monkeypatch.setattr(cluster.client, "_gather", deadly)
    assert np.array_equal(td.to_numpy(X), x)
    assert len(asked) == 4


def test_a_frozen_worker_is_waited_for_until_the_deadline(cluster):
    x = made((64, 64))
    X = td.distribute(x, td.Mesh(cluster, (4,)), (td.Shard(0),))
    pid = cluster.run(os.getpid)[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineError, match=r"did not arrive within 0\.5 s"):
            td.to_numpy(X, timeout=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert np.array_equal(td.to_numpy(X), x)


def _batch(rank):
    import cupy

    return {"here": cupy.full((3, 2), rank.index, as_dtype("bfloat16")).T, "as": [cupy.ones(3)]}


def test_what_a_program_of_ranks_returns(cluster, untouched):
    done = td.run_ranks(_batch, td.Mesh(cluster, (4,)))
    for r, found in enumerate(done.results):
        assert isinstance(found["here"], np.ndarray)
        assert found["here"].dtype == as_dtype("bfloat16")
        assert (found["here"] == r).all()
        assert found["here"].flags.writeable


def test_a_training(cluster, untouched):
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=2, sequence=8)
    options = {"steps": 2, "batch": 4, "microbatches": 2}
    host = td.train(model, text, (2, 1, 2), **options)
    got = td.train(model, text, td.Mesh(cluster, (2, 1, 2)), **options)
    assert np.allclose(host.losses, got.losses, rtol=1e-4)
