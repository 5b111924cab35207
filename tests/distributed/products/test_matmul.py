"""The distributed product: right for every placement, counted to the byte, within its memory."""

import os
import random
import signal
import threading
from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest
from oracles.apart import apart
from oracles.waiting import wait_until

import tiledask as td
from tiledask import Replicate, Shard
from tiledask.distributed.cluster.tasks import slot_on
from tiledask.distributed.products.rates import rates_of
from tiledask.errors import (
    ClusterLostError,
    DeadlineError,
    DoesNotFitError,
    KernelError,
    PlacementError,
)
from tiledask.plan.products.product import algorithms
from tiledask.plan.products.product_plan import AHEAD, RUNTIME

pytestmark = pytest.mark.cluster

GRID = (Shard(0), Shard(1))


def integers(shape, seed=0, dtype="f4"):
    """Small integers: sums are exact in every order, and in every type."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(td.tile.as_dtype(dtype))


def multiply(cluster, mesh, m, k, n, **options):
    a, b = integers((m, k), 1), integers((k, n), 2)
    return product_of(cluster, mesh, a, b, GRID, GRID, **options)


def product_of(cluster, mesh, a, b, placed_a, placed_b, **options):
    """The product, exact, counted to the byte and to the message, within its memory."""
    mesh = td.Mesh(cluster, mesh)
    c = td.matmul(td.distribute(a, mesh, placed_a), td.distribute(b, mesh, placed_b), **options)
    right = (a.astype("f8") @ b.astype("f8")).astype(a.dtype)
    np.testing.assert_array_equal(td.to_numpy(c), right)
    assert c.dtype == a.dtype
    assert c.traffic.predicted == c.traffic.measured
    assert c.memory.measured.peak <= c.memory.predicted.peak
    return c


def on_grid(cluster, *arrays):
    """These, in blocks on a mesh of 2 x 2."""
    mesh = td.Mesh(cluster, (2, 2))
    return [td.distribute(x, mesh, GRID) for x in arrays]


@pytest.fixture(params=[1, 2, 4])
def hosts(request, cluster):
    """Blocks are read from memory, as messages, or both."""
    with apart(cluster, request.param) if request.param > 1 else nullcontext():
        yield request.param


@pytest.mark.few(1)
@pytest.mark.parametrize("tile", [(4, 5, 2), 3, 64])
@pytest.mark.parametrize("algorithm", ["summa", "row_parallel", "2.5d"])
def test_tile_bytes_are_counted_by_the_kernel_that_ran_on_the_worker(cluster, algorithm, tile):
    m, k, n = 23, 18, 21
    options = {"kernel": "tiled", "tile": tile, "algorithm": algorithm}
    c = multiply(cluster, (2, 2), m, k, n, **options)
    one = td.tile.traffic(m, n, k, tile, 4)
    assert c.tiles.flops == one.flops
    if algorithm == "summa":
        blocks = [(rows, columns) for rows in (12, 11) for columns in (11, 10)]
        formula = [td.tile.traffic(*block, k, tile, 4) for block in blocks]
        assert c.tiles.loaded == sum(each.loaded for each in formula)
    assert multiply(cluster, (2, 2), m, k, n, **options).tiles == c.tiles


def test_a_product_that_goes_with_a_worker_is_named_and_its_operands_multiply_again(cluster):
    a, b = integers((40, 40), 1), integers((40, 40), 2)
    A, B = on_grid(cluster, a, b)
    made = [td.matmul(A, B, algorithm=name) for name in ("summa", "row_parallel", "2.5d")]
    made += [td.redistribute(A, [Replicate(), Replicate()])]
    os.kill(cluster.run(os.getpid)[0], signal.SIGKILL)
    for c in made:
        for use in (
            td.to_numpy,
            lambda c: c @ c,
            lambda c: td.redistribute(c, [Shard(0)] * c.mesh.ndim),
        ):
            with pytest.raises(ClusterLostError, match="make its array again"):
                use(c)
    np.testing.assert_array_equal(td.to_numpy(A @ B), a @ b)
    keys = {str(block.key) for c in made for block in c.blocks}
    del made, c
    tasks = cluster.given.scheduler.tasks
    wait_until(lambda: keys.isdisjoint(map(str, [*tasks])), "what was lost to be let go", 20)


def test_measured_memory_stays_within_the_prediction(cluster):
    n = 1024
    a, b = on_grid(cluster, *(integers((n, n), seed) for seed in (1, 2)))
    predicted, measured = td.matmul(a, b, algorithm="summa", panel=128).memory
    block = (n // 2) ** 2 * 4
    # ranks 0 and 3 have A and B of the same half of k, and fetch both of the other half;
    # ranks 1 and 2 have A of one half and B of the other, and always fetch one of the two
    for rank, fetched in enumerate((2, 1, 1, 2)):
        held = 3 * block + AHEAD * fetched * 128 * (n // 2) * 4
        assert predicted.per_place[rank] == held + RUNTIME + held // 50
    assert 3 * block <= measured.peak <= predicted.peak  # two operands and a result were there
    assert {row.tensor for row in measured.rows} == {"A", "B", "process growth"}


def test_products_that_make_no_sense(cluster, monkeypatch):
    """What the plan's own refusals (test_product_plan) do not say."""
    plain = np.ones((4, 4))
    a, integral, cube = on_grid(cluster, plain, plain.astype(int), np.ones((2, 3, 4)))
    few = r"needs least, .* allowed are 1 kB.*What would fit: memory_limit="
    many = r"A is a ndarray.*td\.distribute.*td\.tile\.matmul"
    for error, words, call in (
        (PlacementError, "A is int64 and B is int64, the kernel", lambda: integral @ integral),
        (PlacementError, "no algorithm 'canon'", lambda: td.matmul(a, a, algorithm="canon")),
        (PlacementError, "3 dimensions", lambda: cube.T),
        (DoesNotFitError, few, lambda: td.matmul(a, a, memory_limit="1kB")),
        (KernelError, "there is no kernel 'nonsense'", lambda: td.matmul(a, a, kernel="nonsense")),
        (TypeError, many, lambda: td.matmul(plain, plain)),
        (TypeError, "sharded arrays has no out", lambda: td.matmul(a, a, out="c.npy")),
    ):
        with pytest.raises(error, match=words):
            call()
    monkeypatch.setattr(cluster, "memory_limits", (100,) * cluster.slots)
    with pytest.raises(DoesNotFitError, match="allowed are 100 B"):  # what the workers have
        a @ a


@pytest.mark.parametrize("kernel", ["smem_tiled", "cublas"])
def test_a_gpu_kernel_on_cpu_workers_is_refused_before_anything_runs(cluster, tmp_path, kernel):
    x = np.zeros((4, 4), "f4")
    (a,), lazy = on_grid(cluster, x), da.from_array(x, chunks=2)
    np.save(tmp_path / "a.npy", x)
    stored = td.open_array(tmp_path / "a.npy")
    for product in (
        lambda: td.matmul(a, a, kernel=kernel),
        lambda: td.explain(a, a, kernel=kernel),
        lambda: td.matmul(lazy, lazy, kernel=kernel),
        lambda: td.matmul(stored, stored, kernel=kernel, out=tmp_path / "c.npy", cluster=cluster),
    ):
        with pytest.raises(KernelError, match=f"'{kernel}' takes cupy arrays, got numpy"):
            product()
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


MOVING = [name for name in td.algorithms if name != "local"]
MESHES = [(4,), (1, 4), (2, 2), (3, 1), (2, 1, 2)]


def drawn(rng, name):
    """(mesh, A, B, their placements, options): anything that the algorithm multiplies."""
    mesh, few = rng.choice(MESHES), lambda: rng.choice((1, 2, 5, 13, rng.randint(1, 40)))
    lead = [few() for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    vector = lead and name != "column_parallel" and rng.random() < 0.2
    k, n, dtype = few(), few(), rng.choice(("f2", "bfloat16", "f4", "f8"))
    a, b = (integers(s, k + n, dtype) for s in ((*lead, k), (k, *[n] * (not vector))))
    placed = ([rng.choice([*map(Shard, range(x.ndim)), Replicate()]) for _ in mesh] for x in (a, b))
    options = {"algorithm": name}
    if "panel" in algorithms[name].options:
        options["panel"] = rng.choice((None, 1, 3, 1000))
    return mesh, a, b, *placed, options


@pytest.mark.few(3 * len(MOVING))
@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("seed", range(12))
def test_any_product_is_exact_counted_and_within_its_memory(cluster, hosts, name, seed):
    rng = random.Random(f"{hosts} {name} {seed}")
    for _ in range(3):
        *given, options = drawn(rng, name)
        assert product_of(cluster, *given, **options).made_by == name


def test_halves_are_summed_in_float32(cluster):
    a = np.ones((4, 4096), "f2")  # in halves 2048 + 1 is 2048
    placed = [Shard(1)], [Shard(0)]
    product_of(cluster, (4,), a, a.T.copy(), *placed, algorithm="row_parallel", panel=16)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MOVING)
def test_transposed_operands_on_two_arrangements_of_the_ranks_are_not_copied(cluster, name, hosts):
    a, b = integers((9, 14), 1), integers((9, 11), 2)
    X, B = on_grid(cluster, a, b)
    rows = td.distribute(a, td.Mesh(cluster, (4,)), [Shard(0)])
    for x in (X,) if name in ("column_parallel", "row_parallel", "gather") else (X, rows):
        c = td.matmul(x.T, B, algorithm=name)
        np.testing.assert_array_equal(td.to_numpy(c), a.T @ b)
        assert c.traffic.predicted == c.traffic.measured
        assert all(y.strides[0] == 4 for y in cluster.gather(x.T.blocks, "blocks"))


def misalign(slot, key, dask_worker):
    """A block lies unaligned, as one that Dask had put on disk."""
    if slot_on(dask_worker) == slot:
        block = dask_worker.data[key]
        raw = np.empty(block.nbytes + 1, np.uint8)[1:]
        raw[:] = block.reshape(-1).view(np.uint8)
        dask_worker.data[key] = raw.view(block.dtype).reshape(block.shape)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MOVING)
def test_the_same_plan_gives_the_same_bits_however_blocks_are_read(cluster, name):
    rng = np.random.default_rng(7)
    a, b = on_grid(cluster, *(rng.standard_normal((130, 130), "f4") for _ in range(2)))
    bits = set()
    for hosts in (1, 4, 1, 4, 2, 1):
        with apart(cluster, hosts) if hosts > 1 else nullcontext():
            c = td.matmul(a, b, algorithm=name, panel=16 if name == "summa" else None)
            assert c.traffic.measured == c.traffic.predicted
            bits.add(td.to_numpy(c).tobytes())
        if hosts == 2:
            cluster.run(misalign, 1, str(b.blocks[1].key))
    assert len(bits) == 1


def left_behind(cluster):
    """Per slot: (threads that fetch, tasks that run, results in Dask's memory)."""

    def state(dask_worker):
        fetching = [each for each in threading.enumerate() if each.name.startswith("fetch")]
        return len(fetching), dask_worker.state.executing_count, len(dask_worker.data)

    return cluster.run(state)


@pytest.mark.few(1)
@pytest.mark.parametrize("stop", [0.3, 0.8])
def test_a_cancelled_product_leaves_nothing_behind(cluster, stop):
    (a,) = on_grid(cluster, np.ones((2000, 2000)))
    before = left_behind(cluster)
    with pytest.raises(DeadlineError, match="4 of 4 tasks not done after"):
        td.matmul(a, a, algorithm="summa", kernel="tiled", tile=24, panel=48, timeout=stop)

    def dropped():  # an earlier array may go meanwhile
        both = zip(left_behind(cluster), before, strict=True)
        return all(not any(now[:2]) and now[2] <= then[2] for now, then in both)

    wait_until(dropped, "workers to drop what was cancelled")
    multiply(cluster, (2, 2), 40, 40, 40, algorithm="2.5d")
    assert not any(any(now[:2]) for now in left_behind(cluster))


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rates_are_possible_and_measured_once(cluster, dtype):
    rates = rates_of(cluster, dtype)
    assert rates.run >= 0  # of memory that lies together: nothing, where copying is that fast
    for name in ("flops", "touch", "call", "read", "message", "task"):
        assert 0 < getattr(rates, name) < np.inf, name
    assert rates_of(cluster, td.tile.as_dtype(dtype)) is rates


def test_the_choice_is_what_explain_says_with_narrower_panels_where_memory_is_short(cluster):
    (a,) = on_grid(cluster, integers((60, 60)))
    found = td.explain(a, a)
    c = a @ a
    assert c.made_by == found.chosen
    row, moved = found[found.chosen], c.traffic.measured
    said = row.traffic.total, row.traffic.count, row.received, row.peak
    assert said == (moved.total, moved.count, max(moved.received), c.memory.predicted.peak)
    text, html = repr(found), found._repr_html_()
    assert all(name in text and name in html for name in td.algorithms)
    (a,) = on_grid(cluster, integers((1024, 1024)))
    wide = td.explain(a, a)["summa"]
    narrow = td.explain(a, a, memory_limit=wide.peak - 300_000)["summa"]
    assert narrow.fits
    assert narrow.options != wide.options
    c = td.matmul(a, a, algorithm="summa", memory_limit=wide.peak - 300_000)
    assert c.memory.measured.peak <= c.memory.predicted.peak <= wide.peak - 300_000
