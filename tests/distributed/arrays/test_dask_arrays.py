"""Products of dask.arrays: exact for any chunks, within what was promised, on any scheduler."""

import os
import pickle
import random
import signal
import tracemalloc
import weakref
from collections import Counter
from itertools import pairwise, product

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import convert_legacy_graph
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, wait

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.distributed.arrays.creation import from_dask
from tiledask.distributed.cluster import slots
from tiledask.distributed.products import lazy
from tiledask.distributed.products.lazy import multiply
from tiledask.errors import DoesNotFitError, KernelError, PlacementError
from tiledask.tile import as_dtype

DTYPES = ("float16", "bfloat16", "float32", "float64")


def integers(shape, seed=0, dtype="f4"):
    """Small integers: sums are exact in every order, and in every type."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(as_dtype(dtype))


def cut(rng, extent, most=5):
    """Random chunks of one dimension, now and then an empty one."""
    edges = sorted([0, extent, *(rng.randint(0, extent) for _ in range(rng.randrange(most)))])
    return tuple(b - a for a, b in pairwise(edges))


def chunked(rng, a):
    """In random chunks, by rows or columns, sometimes in the other order of bytes."""
    a = np.asarray(a, order=rng.choice("CF"))
    if a.dtype.kind == "f" and rng.random() < 0.2:
        a = a.astype(a.dtype.newbyteorder())
    return da.from_array(a, chunks=tuple(cut(rng, n) for n in a.shape))


def operands(rng):
    """(a, b, x, y): a random product and its dask.arrays."""
    lead = [rng.randint(0, 9) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    k, columns = rng.randint(0, 12), [rng.randint(0, 11)] * rng.choice((0, 1, 1, 1))
    dtype, seed = rng.choice(DTYPES), rng.randrange(10**6)
    a, b = integers((*lead, k), seed, dtype), integers((k, *columns), seed + 1, dtype)
    return a, b, chunked(rng, a), chunked(rng, b)


def same(c, a, b, **options):
    """The product, exact: of small integers."""
    expected = np.tensordot(a.astype("f8"), b.astype("f8"), 1).astype(a.dtype)
    got = c.compute(**options)
    assert (got.shape, c.shape) == (expected.shape, expected.shape)
    assert (got.dtype, c.dtype, c._meta.dtype) == (a.dtype,) * 3
    np.testing.assert_array_equal(got, expected)


@pytest.fixture(autouse=True)
def no_cluster_by_accident(request):
    """Plans are for this machine's threads, unless a test asks for a client: one that another
    test file has started would be the active scheduler."""
    if {"client", "cluster"} & set(request.fixturenames):
        yield
        return
    with dask.config.set(scheduler="threads"):
        yield


@pytest.mark.parametrize("seed", range(4))
def test_any_chunks_any_shape_any_type_any_cuts(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(lazy, "SMALL", 10)  # tiny products are cut as large ones are
    for _ in range(30):
        a, b, x, y = operands(rng)
        x, y = rng.choice([(x, y), (x, y), (a, y), (x, b)])
        kernel = rng.choice(("blas", "blas", "tiled", "loops"))
        monkeypatch.setattr(lazy, "CHUNKS", rng.choice((3, 1e-5, 1e-6)))
        with dask.config.set(num_workers=rng.choice((1, 2, 3, 8))):
            c = multiply(x, y, kernel=kernel)
        same(c, a, b, scheduler=rng.choice(("synchronous", "threads")))


@pytest.mark.parametrize(
    "xp", ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)], indirect=True
)
def test_on_either_kind_of_array(xp):
    x = da.from_array(xp.ones((1, 4096), "f2"), (1, 64), asarray=False)
    c = multiply(x, x.T)
    assert type(c._meta) is xp.ndarray
    # in float16 ones add up to 2048, and no further
    assert c.compute(scheduler="synchronous") == 4096


def unaligned(block):
    raw = np.empty(block.nbytes + 1, np.uint8)[1:]
    raw[:] = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    return raw.view(block.dtype).reshape(block.shape)


def test_how_a_block_came_changes_no_bit():
    """What another worker has sent may lie unaligned; what it had itself does not."""
    rng = np.random.default_rng(0)
    x = da.from_array(rng.standard_normal((300, 1400)), chunks=(300, 700))
    y = da.from_array(rng.standard_normal((1400, 200)), chunks=(700, 200))
    ways = product((x, x.map_blocks(unaligned)), (y, y.map_blocks(unaligned)))
    made = [multiply(*came).compute(scheduler="synchronous") for came in ways]
    assert len({c.tobytes() for c in made}) == 1


def test_further_operations_and_parts_of_it():
    a, b = integers((40, 30)), integers((30, 20), 1)
    c = multiply(da.from_array(a, 7), da.from_array(b, 8))
    assert isinstance(c.dask, HighLevelGraph)
    c.dask.validate()
    c = pickle.loads(pickle.dumps(c)).rechunk(c.chunks)
    np.testing.assert_array_equal((c.T + 1)[3:9, ::2].compute(), ((a @ b).T + 1)[3:9, ::2])
    np.testing.assert_array_equal(c.sum(axis=0).compute(), (a @ b).sum(axis=0))
    d = multiply(c, c.T)
    np.testing.assert_array_equal(d.persist().compute(), (a @ b) @ (a @ b).T)


X, Y = da.ones((4, 6), chunks=2), da.ones((6, 4), chunks=3)
WRONG = [
    (r"got \(4, 6\) @ \(4, 6\)", X, X),
    ("A is float64 and B is float32", X, Y.astype("f4")),
    (r"A is int64 and B is int64, the kernel", X.astype(int), Y.astype(int)),
    ("B is complex128, must be equal", X, Y.astype(complex)),
    (r"y \(k, n\) or \(k\), got", X, da.ones((2, 6, 4))),
    (r"x must be \(\.\.\., k\)", da.ones(()), Y),
    (r"x has shape \(nan.*compute_chunk_sizes", X[X[:, 0] > 0], Y),
    (r"MaskedArray.*da\.ma\.filled\(y, 0\)", X, da.ma.masked_equal(Y, 0)),
    (r"y is a list, must be a dask\.array", X, [[1.0]], TypeError),
]


def test_products_that_make_no_sense():
    for words, x, y, *error in WRONG:
        with pytest.raises(*error or [PlacementError], match=words):
            multiply(x, y)
    with pytest.raises(KernelError, match="there is no kernel 'no'; there are loops"):
        multiply(X, Y, kernel="no")


def held(c):
    """Bytes that the task of ``c`` which holds most holds: received and allocated, measured."""
    slots.warm_up()  # libraries are loaded once, and are not what a task takes
    graph = convert_legacy_graph(dict(c.__dask_graph__()))
    order, values, found = dask.order.order(graph), {}, 0
    for key in sorted(graph, key=order.get):
        received = sum(getattr(values[d], "nbytes", 0) for d in graph[key].dependencies)
        tracemalloc.start()
        values[key] = graph[key](values)
        found = max(found, received + tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return found


PYTHON = 400_000
"""Bytes of Python's own objects in a task, and of a scheduler that other tests started here."""


@pytest.mark.parametrize(
    ("dtype", "limit", "chunks"),
    [("bfloat16", 3_000_000, (64, 100)), ("float64", 1_500_000, (300, 300))],
)
def test_no_task_holds_more_than_it_may(dtype, limit, chunks):
    a, b = integers((600, 700), dtype=dtype), integers((700, 500), 1, dtype)
    x, y = da.from_array(a, chunks).persist(), da.from_array(b, chunks[::-1]).persist()
    with dask.config.set({"array.chunk-size": limit // lazy.CHUNKS}, num_workers=2):
        c = multiply(x, y)
    assert held(c) - PYTHON <= limit
    np.testing.assert_array_equal(c.compute(), (a.astype("f4") @ b.astype("f4")).astype(a.dtype))


@pytest.mark.parametrize("tall", ["k", "m"])
def test_threads_hold_no_more_of_a_taller_product(tall):
    """Blocks are made as they are needed, and each once."""
    living, most, made = Counter(), Counter(), Counter()

    def block(block_info=None):
        made[block_info[None]["chunk-location"]] += 1
        x = np.ones(block_info[None]["chunk-shape"], "f4")
        weakref.finalize(x, living.subtract, ["n"])
        living["n"] += 1
        most["n"] = max(most["n"], living["n"])
        return x

    x = da.map_blocks(block, chunks=((500,) * 160, (100,)), meta=np.empty((0, 0), "f4"))
    with dask.config.set(num_workers=2):
        c = multiply(x.T, x) if tall == "k" else multiply(x, np.ones((100, 100), "f4"))
        assert c.sum().compute() == (500 * 160 * 100**2)
    assert set(made.values()) == {1}
    assert most["n"] < 40


@pytest.mark.parametrize(("m", "k", "n"), [(2**14,) * 3, (10**6, 1000, 1000), (1000, 10**6, 1000)])
@pytest.mark.parametrize("threads", [1, 4, 6, 16])
def test_large_products_occupy_every_thread_evenly_and_the_long_side_is_read_once(m, k, n, threads):
    x, y = da.ones((m, k), chunks=1000), da.ones((k, n), chunks=1000)
    with dask.config.set({"array.chunk-size": 10**12}):
        extents = lazy._cut(x, y, threads)
    rows, panels, columns = (-(-n // of) for n, of in zip((m, k, n), extents, strict=True))
    tasks = rows * panels * columns
    assert tasks % threads == 0 or tasks > 32 * threads
    assert m != 10**6 or columns == 1
    assert k != 10**6 or rows * columns == 1


@pytest.fixture
def client(cluster):
    with cluster.client.as_current():
        yield cluster.client


@pytest.mark.cluster
def test_lazy_and_persisted_operands_on_a_cluster(client):
    rng = random.Random(5)
    for trial in range(12):
        a, b, x, y = operands(rng)
        x = x.persist() if trial % 2 else x + np.zeros((), a.dtype)
        c = multiply(x, y.persist() if trial % 3 else y)
        same(c.persist() if trial % 4 == 1 else c, a, b)


@pytest.mark.cluster
def test_a_plan_is_for_all_slots_of_the_cluster_whoever_is_away(cluster, client, monkeypatch):
    """And so are the bits of the product: who is lost comes back."""
    x = da.ones((900, 900), chunks=300, dtype="f4")
    monkeypatch.setattr(client, "nthreads", dict)
    assert lazy._threads(x, x) == cluster.slots


def received(client):
    """Bytes that all workers have received from others so far."""
    logs = client.run(lambda dask_worker: [e["total"] for e in dask_worker.transfer_incoming_log])
    return sum(map(sum, logs.values()))


SHAPES = [((7, 5), "f4"), ((1, 9), "f4"), ((2, 2), "f4"), ((0, 3), "f4"), ((5,), ">f8")]
SHAPES += [((3, 4, 5), dtype) for dtype in ("float16", "int32", "bfloat16", "float64")]


@pytest.mark.cluster
@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_round_trips_of_every_placement(cluster, client, shape, dtype):
    a, mesh = integers(shape).astype(as_dtype(dtype)), td.Mesh(cluster, (2, 2))
    native, x = a.dtype.newbyteorder("="), chunked(random.Random(0), a)
    for placements in product((*map(Shard, range(a.ndim)), Replicate()), repeat=2):
        array = from_dask(x, mesh, placements)
        assert (array.placements, array.dtype, array.made_by) == (placements, native, "from_dask")
        np.testing.assert_array_equal(td.to_numpy(array), a)
        back = array.to_dask()
        assert (back.shape, back.dtype) == (a.shape, native)
        assert back.npartitions <= cluster.slots
        if placements == (Shard(0), Shard(0)):
            assert back.chunks[0] == (tuple(filter(None, map(len, np.array_split(a, 4)))) or (0,))
        np.testing.assert_array_equal((back + a).persist().compute(), a + a)


@pytest.mark.cluster
def test_only_what_a_rank_needs_moves_and_blocks_live_as_long_as_the_dask_array(cluster, client):
    a = integers((64, 64), dtype="f8")
    x = da.from_array(a, 64).map_blocks(np.copy).persist()
    wait(x)
    before = received(client)
    array = from_dask(x, td.Mesh(cluster, (4,)), (Shard(0),))
    assert received(client) - before <= a.nbytes
    before, back = received(client), array.to_dask()
    del array
    more = (back * 2).persist()
    wait(more)
    assert received(client) == before
    del back
    np.testing.assert_array_equal(more[1:].compute(), 2 * a[1:])


@pytest.mark.cluster
def test_a_lost_block_is_made_again_and_what_another_client_persisted_is_taken_too(cluster):
    a, mesh = integers((60, 40)), td.Mesh(cluster, (4,))
    array = from_dask(da.from_array(a, 16) + 1, mesh, (Shard(0),))
    with Client(cluster.client.scheduler.address, set_as_default=False) as other:
        x = other.persist(da.from_array(a, 16))
        wait(x)  # two clients' messages reach the scheduler in any order
        made = from_dask(x + 1, mesh, (Shard(0),))
        np.testing.assert_array_equal(td.to_numpy(made), a + 1)
    back = array.to_dask()
    os.kill(cluster.run(os.getpid)[2], signal.SIGKILL)
    with cluster.client.as_current():
        np.testing.assert_array_equal(back.compute(), a + 1)
    np.testing.assert_array_equal(td.to_numpy(array, timeout=240), a + 1)


@pytest.mark.cluster
def test_what_cannot_change_hands(cluster, client, monkeypatch):
    mesh, two = td.Mesh(cluster, (2, 2)), td.Mesh(cluster, (2,))
    x, grid = da.ones((8, 8), chunks=(4, 8)), (Shard(0), Shard(1))
    for bad, placements, message in (
        (x[x[:, 0] > 0], grid, "chunks of unknown size"),
        (x.astype(complex), grid, "got dtype complex128"),
        (x, (Shard(0), Partial()), "partial sums are not unique"),
        (x, (Shard(0),), "one placement per axis"),
    ):
        with pytest.raises(PlacementError, match=message):
            from_dask(bad, mesh, placements)
    with pytest.raises(TypeError, match=r"takes a dask.array, got ndarray; td\.distribute"):
        from_dask(np.ones((2, 2)), mesh, grid)
    a = from_dask(x, mesh, (Shard(1), Replicate()))
    partial = td.matmul(a, from_dask(x, mesh, (Shard(0), Replicate())), algorithm="local")
    with pytest.raises(PlacementError, match=r"partial sums on its ranks.*td\.redistribute"):
        partial.to_dask()
    with pytest.raises(TypeError, match=r"x is a ShardedArray.*\.to_dask\(\)"):
        multiply(a, x)
    monkeypatch.setattr(cluster, "memory_limits", (700,) * cluster.slots)
    assert from_dask(x, two, (Shard(0),)).shape == (8, 8)  # 256 bytes, a chunk each
    with pytest.raises(DoesNotFitError, match=r"1\.024 kB"):
        from_dask(x, two, (Replicate(),))
    monkeypatch.setattr(cluster, "memory_limits", (100,) * cluster.slots)
    with pytest.raises(DoesNotFitError, match="a worker may hold 100 B"):
        from_dask(x, two, (Shard(0),))
