"""Products of dask.arrays: exact for any chunks, within what was promised, on any scheduler.

Holds `tiledask.distributed.arrays.recompute`, `tiledask.distributed.products.lazy`,
`tiledask.distributed.products.lazy_graph`, `tiledask.distributed.products.lazy_plan` and
`tiledask.distributed.products.lazy_tasks`.
"""

import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tracemalloc
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import convert_legacy_graph
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, wait

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.distributed.arrays.dask_arrays import from_dask
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.products import lazy, lazy_graph, lazy_plan, lazy_tasks
from tiledask.distributed.products.lazy import multiply
from tiledask.distributed.products.lazy_plan import LazyPlan, Machine, Side, plan_product
from tiledask.errors import DoesNotFitError, KernelError, PlacementError
from tiledask.tile import as_dtype

LOCAL = Machine(workers=1, threads=2, task_bytes=10**9, task_seconds=1e-4)
DTYPES = ("float16", "bfloat16", "float32", "float64")


def integers(shape, seed=0, dtype="f4"):
    """Small integers: sums are exact in every order, and in every type."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(as_dtype(dtype))


def cut(rng, extent, most=5):
    """Random chunks of one dimension, now and then an empty one."""
    edges = sorted([0, extent, *(rng.randint(0, extent) for _ in range(rng.randrange(most)))])
    return tuple(b - a for a, b in pairwise(edges))


def chunked(rng, a):
    return da.from_array(a, chunks=tuple(cut(rng, n) for n in a.shape))


def operands(rng):
    """(a, b, x, y): a random product and its dask.arrays."""
    lead = [rng.randint(1, 9) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    k, columns = rng.randint(1, 12), [rng.randint(1, 11)] * rng.choice((0, 1, 1, 1))
    dtype, seed = rng.choice(DTYPES), rng.randrange(10**6)
    a, b = integers((*lead, k), seed, dtype), integers((k, *columns), seed + 1, dtype)
    return a, b, chunked(rng, a), chunked(rng, b)


def reference(a, b):
    """The product in loops over k: of small integers, exact in float32."""
    terms = (np.multiply.outer(a[..., k], b[k]).astype("f4") for k in range(len(b)))
    return sum(terms).astype(a.dtype)


def same(c, a, b, **options):
    expected, got = reference(a, b), c.compute(**options)
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


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """What the first product of a process imports is no memory of a task."""
    for dtype in DTYPES:
        td.tile.matmul(integers((2, 2), dtype=dtype), integers((2, 2), dtype=dtype))


@pytest.fixture
def thin(monkeypatch):
    """Blocks of a few elements count as thick, and slabs are thin: all ways of taking blocks."""
    monkeypatch.setattr(lazy_tasks, "THICK", 2)
    for module in (lazy_plan, lazy_tasks):
        monkeypatch.setattr(module, "SLAB", 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_any_chunks_any_shape_any_type(seed):
    rng = random.Random(seed)
    for _ in range(20):
        a, b, x, y = operands(rng)
        same(multiply(x, y), a, b, scheduler=rng.choice(("synchronous", "threads")))


def random_plan(rng, left, right):
    """Any cuts, whether or not they are wise."""
    edges = lambda n: tuple(np.cumsum([0, *filter(None, cut(rng, n))]).tolist())  # noqa: E731
    tiles = tuple(edges(n) for n in (*left.shape[:-1], right.shape[0]))
    return LazyPlan(tiles, edges(left.shape[-1]), rng.random() < 0.5, 0, 0, 0.0)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_any_plan_gives_the_product(seed, thin, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(lazy_graph, "FAN_IN", 2)
    monkeypatch.setattr(
        lazy, "plan_product", lambda left, right, *_, **__: random_plan(rng, left, right)
    )
    for _ in range(25):
        a, b, x, y = operands(rng)
        made = rng.random() < 0.5
        if made:  # blocks that can be made within the tasks that use them
            x, y = (da.from_array(Source(z.compute()), chunks=z.chunks) for z in (x, y))
        c = multiply(x, y, memory_limit=1 if made else None)
        same(c, a, b, scheduler="synchronous")


def pairs():
    """(x, y, options of the product): operands of every kind."""
    a, b = integers((9, 8)), integers((8, 7), 1)
    x, y = da.from_array(a, 3), da.from_array(b, 4)
    for kernel in ("blas", "tiled", "loops"):
        yield x, y, {"kernel": kernel}
    yield da.from_array(a, 1), da.from_array(b, 1), {}
    yield x, b, {}
    yield a, y, {}
    yield da.from_array(a.astype(">f4"), 2), y, {}
    for left, right in (((0, 3), (3, 2)), ((2, 0), (0, 3)), ((3, 2), (2, 0))):
        yield da.ones(left, dtype="f4"), da.ones(right, dtype="f4"), {}
    itself = da.from_array(integers((6, 6)), ((1, 2, 3), (4, 2)))
    yield itself, itself, {}
    askew = np.zeros(8 * 24 + 1, np.uint8)[1:].view("f8").reshape(6, 4)
    askew[:] = integers((6, 4))
    assert not askew.flags.aligned
    turned = np.asfortranarray(integers((4, 5), 1, "f8"))
    yield *(da.from_array(z.T, 2, asarray=False) for z in (turned, askew)), {}


@pytest.mark.long
def test_operands_of_every_kind():
    for x, y, options in pairs():
        c, (a, b) = multiply(x, y, **options), map(np.asarray, (x, y))
        got, native = c.compute(), a.dtype.newbyteorder("=")
        np.testing.assert_array_equal(got, a @ b, strict=native == a.dtype)
        assert (c.shape, c.dtype, c._meta.dtype, got.dtype) == (got.shape, *[native] * 3)


def test_halves_are_summed_in_float32():
    a, b = np.ones((1, 4096), "f2"), np.ones((4096, 1), "f2")
    x, y = da.from_array(a, (1, 64)), da.from_array(b, (64, 1))
    assert multiply(x, y).compute() == 4096  # in float16 ones add up to 2048, and no further


def test_k_goes_up_whatever_the_plan(monkeypatch):
    a, b = np.array([[1.0, 1e16, -1e16]]), np.ones((3, 1))
    x, y = da.from_array(a, (1, 1)), da.from_array(b, (2, 1))
    for parallel in (False, True):
        plan = LazyPlan(((0, 1), (0, 1)), (0, 1, 2, 3), parallel, 0, 0, 0.0)
        monkeypatch.setattr(lazy, "plan_product", lambda *_, plan=plan, **__: plan)
        assert multiply(x, y).compute()[0, 0] == (1.0 + 1e16) - 1e16


def test_on_either_kind_of_array(xp):
    a, b = integers((9, 8)), integers((8, 7), 1)
    x, y = (da.from_array(xp.asarray(z), 3, asarray=False) for z in (a, b))
    c = multiply(x, y)
    assert type(c._meta) is xp.ndarray
    np.testing.assert_array_equal(td.tile.to_numpy(c.compute(scheduler="synchronous")), a @ b)


def unaligned(block):
    raw = np.empty(block.nbytes + 1, np.uint8)[1:]
    raw[:] = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    return raw.view(block.dtype).reshape(block.shape)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_how_a_block_came_changes_no_bit(dtype):
    """What another worker has sent may lie unaligned; what it had itself does not."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((300, 1400), (1400, 200)))
    x, y = da.from_array(a, chunks=(300, 700)), da.from_array(b, chunks=(700, 200))
    right = multiply(x, y).compute(scheduler="synchronous").tobytes()
    for left, other in ((unaligned, None), (None, unaligned), (unaligned, unaligned)):
        came = [z.map_blocks(how) if how else z for z, how in ((x, left), (y, other))]
        assert multiply(*came).compute(scheduler="synchronous").tobytes() == right


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


def test_a_part_of_it_needs_only_its_tasks():
    x = da.ones((64, 64), chunks=16, dtype="f8")
    c = multiply(x, x, memory_limit=30_000)
    with dask.config.set({"optimization.fuse.active": False}):
        (part,) = dask.optimize(c[:1, :1])
    assert [sum(is_product(t) for t in tasks(z).values()) for z in (c, part)] == [c.npartitions, 1]


def is_product(task):
    return getattr(task, "func", None) is lazy_tasks.multiply_tile


def test_its_name_says_what_it_is():
    x, y = da.ones((8, 8), chunks=4), da.ones((8, 8), chunks=3)
    assert multiply(x, y).name == multiply(x, y).name
    others = {multiply(x, x).name, multiply(x, y, kernel="tiled").name, multiply(y, x).name}
    assert multiply(x, y).name not in others
    assert len(others) == 3
    assert dask.base.key_split(multiply(x, y).name) == "tiledask_matmul_1e3"  # 1024 FLOP


def wrong():
    x, y = da.ones((4, 6), chunks=2), da.ones((6, 4), chunks=3)
    yield "x .* 6 columns and y .* 4 rows", x, x
    yield "x is float64 and y is float32", x, y.astype("f4")
    yield r"x is int64.*x\.astype\('float64'\).*dask's own", x.astype(int), y.astype(int)
    yield "y is complex128", x, y.astype(complex)
    yield "must have 1 dimension or more and y 1 or 2", x, da.ones((2, 6, 4))
    yield "must have 1 dimension or more and y 1 or 2", da.ones(()), y
    yield r"x has chunks of unknown size.*compute_chunk_sizes", x[x[:, 0] > 0], y
    yield r"MaskedArray.*da\.ma\.filled\(y, 0\)", x, da.ma.masked_equal(y, 0)


def test_products_that_make_no_sense():
    for message, x, y in wrong():
        with pytest.raises(PlacementError, match=message):
            multiply(x, y)
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(KernelError, match="there is no kernel 'nonsense'; there are loops"):
        multiply(x, x, kernel="nonsense")
    with pytest.raises(TypeError, match=r"y is a list, must be a dask\.array"):
        multiply(x, [[1.0]])


class Source:
    """Something to read blocks from, that counts the bytes read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim
        self.read = 0

    def __getitem__(self, index):
        block = self.array[index].copy()
        self.read += block.nbytes
        return block


@pytest.fixture
def plans(monkeypatch):
    """The plans that were made, last one last."""
    made = []

    def spy(*args, **options):
        made.append(plan_product(*args, **options))
        return made[-1]

    monkeypatch.setattr(lazy, "plan_product", spy)
    return made


def tasks(c):
    return convert_legacy_graph(dict(c.__dask_graph__()))


def held(c):
    """Bytes that each product or sum of ``c`` holds at most: received and allocated, measured."""
    on_worker.warm_up()  # libraries are loaded once, and are not what a task takes
    graph = tasks(c)
    order, values, found = dask.order.order(graph), {}, []
    for key in sorted(graph, key=order.get):
        task = graph[key]
        ours = is_product(task) or getattr(task, "func", None) is lazy_tasks.add_up
        received = sum(getattr(values[d], "nbytes", 0) for d in task.dependencies)
        if ours:
            tracemalloc.start()
        values[key] = task(values)
        if ours:
            found.append(received + tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    return found


PYTHON = 400_000
"""Bytes of Python's own objects in a task, and of a scheduler that other tests started here."""


@pytest.mark.few(3)
@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("limit", [None, "3MB", "1.5MB"])
@pytest.mark.parametrize("chunks", [(300, 300), (64, 100)])
def test_tasks_hold_what_was_predicted(plans, dtype, limit, chunks):
    a, b = integers((600, 700), dtype=dtype), integers((700, 500), 1, dtype)
    x, y = da.from_array(a, chunks), da.from_array(b, chunks[::-1])
    with dask.config.set(num_workers=2, scheduler="threads"):
        c = multiply(x, y, memory_limit=limit)
    measured = max(held(c))
    assert measured <= plans[-1].peak + PYTHON
    assert measured >= 0.5 * plans[-1].peak
    if limit:
        assert plans[-1].peak <= td.plan.units.parse_bytes(limit)
    expected = (a.astype("f4") @ b.astype("f4")).astype(a.dtype)
    np.testing.assert_array_equal(c.compute(), expected)


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sums_hold_what_was_predicted(plans, threads):
    a = integers((80, 20_000))
    x = da.from_array(a, (80, 1000))
    with dask.config.set(num_workers=threads, scheduler="threads"):
        c = multiply(x, x.T)
    # one thread has nobody to share k with
    assert plans[-1].parallel == (threads > 1)
    assert 0.3 * plans[-1].peak <= max(held(c)) <= plans[-1].peak + PYTHON
    np.testing.assert_array_equal(c.compute(), a @ a.T)


@pytest.mark.long
@pytest.mark.parametrize(("chunk", "limit"), [(100, 10**6), (150, 10**6), (300, 4 * 10**6)])
def test_operands_beyond_the_limit_are_read_again_and_not_kept(plans, monkeypatch, chunk, limit):
    for module in (lazy_plan, lazy_tasks):
        monkeypatch.setattr(module, "SLAB", 16)  # blocks of 100 are large ones here
    monkeypatch.setattr(lazy_tasks, "THICK", 16)
    n = 600
    a, b = integers((n, n), dtype="f8"), integers((n, n), 1, "f8")
    sources = Source(a), Source(b)
    x, y = (da.from_array(s, chunks=chunk, name=False) for s in sources)
    with dask.config.set(scheduler="synchronous"):
        c = multiply(x, y, memory_limit=limit)
        plan, out = plans[-1], np.empty((n, n))
        on_worker.warm_up()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        c.store(out)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
    np.testing.assert_array_equal(out, a @ b)
    assert plan.peak <= limit < a.nbytes + b.nbytes
    assert peak <= plan.peak + 2 * PYTHON
    assert plan.moved == sum(s.read for s in sources)


def test_operands_within_the_limit_are_read_once():
    sources = Source(integers((80, 60))), Source(integers((60, 70), 1))
    x, y = (da.from_array(s, chunks=16, name=False) for s in sources)
    multiply(x, y).compute(scheduler="synchronous")
    assert [s.read for s in sources] == [s.array.nbytes for s in sources]


def test_a_block_beyond_the_limit_is_refused():
    x = da.ones((100, 100), chunks=100)
    with pytest.raises(DoesNotFitError, match=r"block of x has 80 kB, a task may hold 1 kB.*128"):
        multiply(x, x, memory_limit="1kB")
    with pytest.raises(DoesNotFitError, match=r"smallest task .* hold \d+ B, a task may hold 30 B"):
        multiply(da.ones((2, 2), chunks=1), da.ones((2, 2), chunks=1), memory_limit=30)


def test_the_limit_is_a_share_of_what_threads_have(monkeypatch):
    monkeypatch.setattr(lazy, "MEMORY_LIMIT", 8000)
    x = da.ones((4, 4), chunks=2)
    for settings, threads in (
        ({"scheduler": "synchronous"}, 1),
        ({"scheduler": "threads", "num_workers": 2}, 2),
        ({"scheduler": "processes", "num_workers": 4}, 4),
    ):
        with dask.config.set(settings):
            machine = lazy._machine(x, x)
        assert (machine.threads, machine.task_bytes) == (threads, 4000 // threads)
        assert machine.workers == (4 if settings["scheduler"] == "processes" else 1)


def side(rows, k, chunk, itemsize=4):
    return Side(((*range(0, rows, chunk), rows), (*range(0, k, chunk), k)), itemsize)


@pytest.mark.parametrize(("m", "k", "n"), [(4096, 4096, 4096), (100, 10**5, 50), (10**5, 80, 60)])
@pytest.mark.parametrize("workers", [1, 2, 6])
@pytest.mark.parametrize("limit", [10**10, 10**8, 2 * 10**7])
def test_plans_cover_the_product_and_fit(m, k, n, workers, limit):
    machine = Machine(workers, 2 * workers, limit, 1e-3)
    plan = plan_product(side(m, k, 500), side(n, k, 700), machine, limit)
    assert plan.peak <= limit
    for edges, extent in zip((*plan.tiles, plan.panels), (m, n, k), strict=True):
        assert list(edges) == sorted(set(edges))
        assert (edges[0], edges[-1]) == (0, extent)


@pytest.mark.parametrize("threads", [1, 2, 4, 6, 16])
def test_large_products_occupy_every_thread_evenly(threads):
    square = side(16_384, 16_384, 1024)
    plan = plan_product(square, square, Machine(1, threads, 10**12, 1e-4), 10**12)
    tiles = [len(edges) - 1 for edges in plan.tiles]
    assert np.prod(tiles) in (threads, 2 * threads)
    shares = [np.diff(edges) for edges in plan.tiles]
    assert all(s.max() <= 1.2 * s.min() for s in shares)


def test_small_products_are_one_task():
    plan = plan_product(side(64, 64, 8), side(64, 64, 8), Machine(4, 8, 10**9, 1.5e-3), 10**9)
    assert (plan.tiles, plan.panels) == (((0, 64), (0, 64)), (0, 64))


def test_the_long_side_stays_where_it_is():
    machine = Machine(8, 8, 10**10, 1.5e-3)
    long, wide = side(10**6, 1000, 10_000), side(1000, 1000, 1000)
    plan = plan_product(long, wide, machine, 10**10)
    assert plan.tiles[0] == long.edges[0]
    assert plan.moved < long.nbytes / 2
    deep = Side(((0, 1000), tuple(range(0, 10**6 + 1, 10_000))), 4)
    plan = plan_product(deep, deep, machine, 10**10)
    assert plan.parallel
    assert plan.moved < deep.nbytes


def test_less_memory_more_panels_and_then_finer_tiles():
    square, machine = side(4096, 4096, 512), Machine(2, 2, 0, 1.5e-3)
    counts = []
    for limit in (10**9, 6 * 10**7, 2 * 10**7, 5 * 10**6):
        plan = plan_product(square, square, machine, limit)
        counts.append((np.prod([len(e) - 1 for e in plan.tiles]), len(plan.panels) - 1))
    assert counts[0][1] == 1
    assert counts[1][1] > 1
    assert [tiles for tiles, _ in counts] == sorted(tiles for tiles, _ in counts)


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
        y = y.persist() if trial % 3 else y
        c = multiply(x, y)
        same(c.persist() if trial % 4 == 1 else c, a, b)


@pytest.mark.cluster
def test_workers_are_known_whenever_dask_looks_at_the_cluster_itself(cluster, client, monkeypatch):
    """It does every two seconds, and keeps totals alone: here at once after each other look."""
    look = client._update_scheduler_info

    async def look_again(n_workers=0):
        await look(n_workers)
        await look()

    monkeypatch.setattr(client, "_update_scheduler_info", look_again)
    assert not client.scheduler_info()["workers"]
    assert sorted(cluster._workers()) == list(range(cluster.slots))
    assert lazy._machine(da.ones(2), da.ones(2)).workers == cluster.slots


@pytest.mark.cluster
@pytest.mark.parametrize("there", [0, 1])
def test_a_plan_is_the_same_while_workers_are_away(cluster, client, monkeypatch, there):
    """And so are the bits of the product: who is lost comes back."""
    x = da.ones((900, 900), chunks=300, dtype="f4")
    name, known = multiply(x, x, kernel="tiled", tile=24).name, lazy.workers_of
    monkeypatch.setattr(lazy, "workers_of", lambda client: dict([*known(client).items()][:there]))
    assert lazy._machine(x, x).workers == cluster.slots
    assert multiply(x, x, kernel="tiled", tile=24).name == name


@pytest.mark.cluster
def test_the_cluster_is_what_a_plan_is_made_for(cluster, client):
    machine = lazy._machine(da.ones(2), da.ones(2))
    assert (machine.workers, machine.threads) == (cluster.slots, cluster.slots)
    assert 0 < machine.task_bytes < cluster.memory_limit


def on_gpus(monkeypatch, *devices):
    """Something that is taken for a dask.array of CuPy's on a machine with these ``devices``."""
    monkeypatch.setattr(lazy, "probe", lambda: SimpleNamespace(devices=devices))
    monkeypatch.setattr(lazy, "array_namespace", lambda meta: "cupy")
    return da.ones(2)


def test_tasks_may_hold_their_share_of_a_gpu_but_no_more_than_the_cap_or_the_host(monkeypatch):
    gpu = SimpleNamespace(memory=8 * 10**9, integrated=False)
    x = on_gpus(monkeypatch, gpu, gpu)
    assert [lazy._memory(x, n, 10**9) for n in (2, 4)] == [8 * 10**9, 4 * 10**9]
    workers = [{"memory_limit": 10**9, "nthreads": 1, "resources": {}}] * 4
    assert lazy._distributed(workers, x).task_bytes == 2 * 10**9
    capped = [SimpleNamespace(memory_limit=cap, started_here=True) for cap in (10**9, 10**8)]
    assert lazy._distributed(workers, x, capped[0]).task_bytes == 10**9 // 2
    assert lazy._distributed(workers, da.ones(2), capped[1]).task_bytes == 10**8 // 2
    x = on_gpus(monkeypatch, SimpleNamespace(memory=8 * 10**9, integrated=True))
    assert [lazy._memory(x, n, 10**9) for n in (1, 16)] == [10**9, 8 * 10**9 // 16]
    assert lazy._memory(on_gpus(monkeypatch), 1, 10**9) == 10**9  # no GPU here


def test_a_plan_leaves_workers_what_they_weigh_and_stays_below_where_dask_steps_in():
    def worker(memory, managed):
        return {
            "memory_limit": 500_000_000,
            "nthreads": 1,
            "resources": {"slot0": 1},
            "metrics": {"memory": memory, "managed_bytes": managed},
        }

    idle = lazy._distributed([worker(100_000_000, 0)] * 2, da.ones(2))
    assert idle.task_bytes == (500_000_000 - 2 * 2**26) // 2  # in steps: cut alike another time
    assert idle == lazy._distributed([worker(180_000_000, 70_000_000)] * 2, da.ones(2))
    side = Side(((0, 4000), (0, 4000)), itemsize=8)
    assert plan_product(side, side, idle, 10**9).peak <= idle.most_bytes < 0.7 * 500_000_000
    with pytest.raises(DoesNotFitError, match=r"a task may hold 200 B; .* start workers of more"):
        plan_product(side, side, Machine(2, 2, 10**6, 1e-3, 200), 10**9)


@pytest.mark.cluster
def test_operands_from_a_file_beyond_the_limit_on_a_cluster(client, thin, tmp_path):
    zarr = pytest.importorskip("zarr")
    a = integers((96, 80))
    stored = zarr.create_array(tmp_path / "a.zarr", shape=a.shape, chunks=(16, 16), dtype="f4")
    stored[:] = a
    x = da.from_zarr(stored, chunks=(16, 16))
    c = multiply(x, x.T, memory_limit=10_000)
    job = tasks(c)[(c.name, 0, 0)].args[0]
    assert all(isinstance(job.sources[piece.buffer], lazy_tasks.Made) for piece in job.left)
    same(c, a, a.T)


def received(client):
    """Bytes that all workers have received from others so far."""
    logs = client.run(lambda dask_worker: [e["total"] for e in dask_worker.transfer_incoming_log])
    return sum(map(sum, logs.values()))


@pytest.mark.cluster
def test_fewer_bytes_move_than_in_dasks_own_product(client):
    ours = theirs = 0
    for seed, chunk in enumerate((128, 96)):
        a, b = integers((512, 512), seed, "f8"), integers((512, 512), seed + 1, "f8")
        for own in (False, True):
            x, y = (da.from_array(z, chunk).map_blocks(np.copy).persist() for z in (a, b))
            wait([x, y])
            before = received(client)
            c = (x @ y if own else multiply(x, y)).persist()
            wait(c)
            moved = received(client) - before
            ours, theirs = (ours, theirs + moved) if own else (ours + moved, theirs)
            np.testing.assert_array_equal(c.compute(), a @ b)
            del x, y, c
    assert 0 < 3 * ours <= 2 * theirs


TYPES = ("float16", "int32", "bfloat16", "float32", "float64", ">f8")
SHAPES = [((7, 5), "f4"), ((1, 9), "f4"), ((2, 2), "f4"), ((0, 3), "f4")]


@pytest.mark.cluster
@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "dtype"), [*SHAPES, *product([(5,), (3, 4, 5)], TYPES)])
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
        np.testing.assert_array_equal((back + a).persist().compute(), a + a)


@pytest.mark.cluster
def test_two_axes_on_one_dimension(cluster, client):
    array = from_dask(da.arange(11, chunks=4), td.Mesh(cluster, (2, 2)), (Shard(0), Shard(0)))
    assert array.to_dask().chunks == ((3, 3, 3, 2),)
    few = from_dask(da.arange(3, chunks=2), array.mesh, (Shard(0), Shard(0))).to_dask()
    assert few.chunks == ((1, 1, 1),)
    np.testing.assert_array_equal(few.compute(), np.arange(3))


@pytest.mark.cluster
def test_only_what_a_rank_needs_moves(cluster, client):
    a = integers((64, 64), dtype="f8")
    x = da.from_array(a, 64).map_blocks(np.copy).persist()
    wait(x)
    before = received(client)
    array = from_dask(x, td.Mesh(cluster, (4,)), (Shard(0),))
    assert received(client) - before <= a.nbytes
    before = received(client)
    array.to_dask().persist()
    assert received(client) == before


@pytest.mark.cluster
def test_blocks_live_as_long_as_the_dask_array(cluster, client):
    back = from_dask(da.ones((8, 8), chunks=3), td.Mesh(cluster, (2,)), (Shard(0),)).to_dask()
    more = (back * 2)[1:]
    del back
    assert more.sum().compute() == 2 * 7 * 8


@pytest.mark.cluster
def test_a_lost_block_is_made_again(cluster, client):
    a = integers((60, 40))
    array = from_dask(da.from_array(a, 16) + 1, td.Mesh(cluster, (4,)), (Shard(0),))
    back = array.to_dask()
    victim = cluster.run(on_worker.machine)[2]["pid"]
    os.kill(victim, signal.SIGKILL)
    np.testing.assert_array_equal(back.compute(), a + 1)
    np.testing.assert_array_equal(td.to_numpy(array, timeout=240), a + 1)


@pytest.mark.cluster
def test_what_cannot_change_hands(cluster, client):
    mesh = td.Mesh(cluster, (2, 2))
    x, grid = da.ones((8, 8), chunks=4), (Shard(0), Shard(1))
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
    with pytest.raises(PlacementError, match=r"x is a ShardedArray.*x\.to_dask\(\).*td\.from_dask"):
        multiply(a, x)


@pytest.mark.cluster
def test_what_another_client_persisted_is_refused(cluster):
    with Client(cluster.client.scheduler.address, set_as_default=False) as other:
        x = other.persist(da.ones((8, 8), chunks=4))
        with pytest.raises(PlacementError, match=r"persisted.*mesh\.cluster\.client\.persist"):
            from_dask(x + 1, td.Mesh(cluster, (2,)), (Shard(0),))


@pytest.mark.cluster
def test_blocks_that_do_not_fit_are_refused(cluster, client, monkeypatch):
    monkeypatch.setattr(cluster, "memory_limits", (700,) * cluster.slots)
    x, mesh = da.ones((8, 8), chunks=(4, 8)), td.Mesh(cluster, (2,))
    assert from_dask(x, mesh, (Shard(0),)).shape == (8, 8)  # 256 bytes, a chunk each
    with pytest.raises(DoesNotFitError, match=r"in parts and put together, 512 B|1\.024 kB"):
        from_dask(x, mesh, (Replicate(),))
    monkeypatch.setattr(cluster, "memory_limits", (100,) * cluster.slots)
    with pytest.raises(DoesNotFitError, match="a worker may hold 100 B"):
        from_dask(x, mesh, (Shard(0),))


GUIDE = Path(lazy.__file__).parents[1].joinpath("COMING_FROM_DASK.md").read_text("utf-8")


@pytest.mark.cluster
def test_the_guide_runs_from_top_to_bottom(tmp_path):
    code = re.findall(r"^```python\n(.*?)^```", GUIDE, re.M | re.S)
    assert len(code) == GUIDE.count("```") / 2 == 3
    script = tmp_path / "guide.py"
    script.write_text("\n".join(code))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    means = re.findall(r"^37\d\.\d+$", done.stdout, re.M)  # 1500 products of 1/4
    assert len(means) >= 2  # the workers import the script too
    assert " 0 bytes between workers" in done.stdout
