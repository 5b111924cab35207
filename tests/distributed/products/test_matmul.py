"""The distributed product: right for every placement, counted to the byte, within its memory.

Holds `tiledask.distributed.cluster.counters`, `tiledask.distributed.products.panels`,
`tiledask.distributed.products.memory`, `tiledask.distributed.products.worker` and
`tiledask.lab.claims`.
"""

import os
import signal
import threading
from itertools import product

import numpy as np
import pytest
from oracles.apart import apart
from oracles.waiting import wait_until

import tiledask as td
from tiledask import Replicate, Shard
from tiledask.distributed.cluster import counters
from tiledask.distributed.cluster.counters import TO_MAKE_AGAIN
from tiledask.distributed.cluster.tasks import slot_on
from tiledask.distributed.products.rates import rates_of
from tiledask.distributed.transport import blocks
from tiledask.errors import DeadlineError, DoesNotFitError, KernelError, PlacementError
from tiledask.plan.products.product import algorithms
from tiledask.plan.products.product_plan import AHEAD, RUNTIME

pytestmark = pytest.mark.cluster

ALL = (Shard(0), Shard(1), Replicate())
GRID = (Shard(0), Shard(1))


def integers(shape, seed=0, dtype="f4"):
    """Small integers: sums are exact in every order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def multiply(cluster, mesh, m, k, n, placed_a=GRID, placed_b=GRID, dtype="f4", **options):
    a, b = integers((m, k), 1, dtype), integers((k, n), 2, dtype)
    return product_of(cluster, mesh, a, b, placed_a, placed_b, **options)


def product_of(cluster, mesh, a, b, placed_a, placed_b, **options):
    """The product, exact, counted to the byte and to the message, within its memory."""
    mesh = td.Mesh(cluster, mesh)
    c = td.matmul(td.distribute(a, mesh, placed_a), td.distribute(b, mesh, placed_b), **options)
    np.testing.assert_array_equal(td.to_numpy(c), a @ b)
    assert c.traffic.predicted == c.traffic.measured
    assert c.memory.measured.peak <= c.memory.predicted.peak
    return c


def on_grid(cluster, *arrays):
    """These, in blocks on a mesh of 2 x 2."""
    mesh = td.Mesh(cluster, (2, 2))
    return [td.distribute(x, mesh, GRID) for x in arrays]


@pytest.fixture(params=["memory", "mixed", "comm"])
def transport(request, cluster):
    """Every way to read another worker's blocks, whatever this machine would choose."""
    if request.param == "mixed":
        with apart(cluster):
            yield request.param
        return
    if request.param == "memory" and blocks.transport_of(cluster) != "memory":
        pytest.skip("workers cannot read each other's memory here")
    before, cluster.transport = cluster.transport, request.param
    yield request.param
    cluster.transport = before


@pytest.mark.few(1)
@pytest.mark.parametrize("placed_a", list(product(ALL, ALL)))
def test_every_placement_on_a_grid(cluster, placed_a):
    for placed_b in ((Shard(0), Shard(1)), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        multiply(cluster, (2, 2), 7, 5, 6, placed_a, placed_b)


@pytest.mark.few(1)
@pytest.mark.parametrize("tile", [(4, 5, 2), 3, 64])
@pytest.mark.parametrize("algorithm", ["summa", "row_parallel", "2.5d"])
def test_tile_bytes_are_counted_by_the_kernel_that_ran_on_the_worker(cluster, algorithm, tile):
    m, k, n = 23, 18, 21
    options = {"kernel": "tiled", "tile": tile, "algorithm": algorithm}
    c = multiply(cluster, (2, 2), m, k, n, GRID, GRID, **options)
    one = td.tile.traffic(m, n, k, tile, 4)
    assert c.tiles.flops == one.flops
    if algorithm == "summa":
        blocks = [(rows, columns) for rows in (12, 11) for columns in (11, 10)]
        formula = [td.tile.traffic(*block, k, tile, 4) for block in blocks]
        assert c.tiles.loaded == sum(each.loaded for each in formula)
    assert multiply(cluster, (2, 2), m, k, n, GRID, GRID, **options).tiles == c.tiles


@pytest.mark.parametrize("name", ["summa", "row_parallel", "2.5d"])
def test_a_result_that_is_lost_later_is_made_again(cluster, name):
    a, b = integers((40, 40), 1), integers((40, 40), 2)
    A, B = on_grid(cluster, a, b)
    c = td.matmul(A, B, algorithm=name)
    moved = td.redistribute(c, [Replicate()] * c.mesh.ndim)
    del A, B, c  # nobody wants the operands any more: they have to be made again, too
    os.kill(cluster.run(os.getpid)[0], signal.SIGKILL)
    np.testing.assert_array_equal(td.to_numpy(moved, timeout=240), a @ b)


def test_measured_memory_stays_within_the_prediction(cluster):
    n = 1024
    a, b = on_grid(cluster, *(integers((n, n), seed) for seed in (1, 2)))
    c = td.matmul(a, b, algorithm="summa", panel=128)
    predicted, measured = c.memory
    block = (n // 2) ** 2 * 4
    # ranks 0 and 3 have A and B of the same half of k, and fetch both of the other half;
    # ranks 1 and 2 have A of one half and B of the other, and always fetch one of the two
    for rank, fetched in enumerate((2, 1, 1, 2)):
        held = 3 * block + AHEAD * fetched * 128 * (n // 2) * 4
        assert predicted.per_place[rank] == held + RUNTIME + held // 50
    assert measured.peak <= predicted.peak
    assert measured.peak >= 3 * block  # two operands and a result were there
    assert {row.tensor for row in measured.rows} == {"A", "B", "process growth"}


def wrong(cluster):
    """What the plan's own refusals (test_product_plan) do not say."""
    plain = np.ones((4, 4))
    a, integral, cube = on_grid(cluster, plain, plain.astype(int), np.ones((2, 3, 4)))
    yield "A is int64 and B is int64, the kernel", lambda: integral @ integral
    yield "no algorithm 'canon'", lambda: td.matmul(a, a, algorithm="canon")
    yield "3 dimensions", lambda: cube.T
    least = r"needs least, .* allowed are 1 kB.*What would fit: memory_limit="
    yield least, lambda: td.matmul(a, a, memory_limit="1kB"), DoesNotFitError
    yield "there is no kernel 'nonsense'", lambda: td.matmul(a, a, kernel="nonsense"), KernelError
    words = r"A is a ndarray.*td\.distribute.*td\.tile\.matmul"
    yield words, lambda: td.matmul(plain, plain), TypeError
    yield "sharded arrays has no out", lambda: td.matmul(a, a, out="c.npy"), TypeError


def test_products_that_make_no_sense(cluster, monkeypatch):
    for message, call, *error in wrong(cluster):
        with pytest.raises(*(error or [PlacementError]), match=message):
            call()
    (a,) = on_grid(cluster, np.ones((64, 64)))
    monkeypatch.setattr(cluster, "memory_limits", (1000,) * cluster.slots)
    with pytest.raises(DoesNotFitError, match="allowed are 1 kB"):  # what the workers have
        td.matmul(a, a)


MOVING = [name for name in td.algorithms if name != "local"]
SHAPES = [(1, 1, 1), (1, 9, 5), (6, 1, 7), (13, 30, 11), (64, 33, 1)]
MESHES = [(4,), (1, 4), (2, 2), (3, 1), (2, 1, 2)]


@pytest.mark.few(2 * len(MOVING) + 1)
@pytest.mark.parametrize("case", range(len(MESHES) * len(SHAPES)))
@pytest.mark.parametrize("name", MOVING)
def test_every_algorithm_on_every_mesh(cluster, transport, name, case):
    """Cases that follow each other differ in both, and all of them are every pair."""
    mesh, (m, k, n) = MESHES[case % 5], SHAPES[(case + case // 5) % 5]
    placed = (Shard(0), Shard(1), Replicate())[: len(mesh)]
    c = multiply(cluster, mesh, m, k, n, placed, placed, algorithm=name)
    assert c.made_by == name


@pytest.mark.few(2)
@pytest.mark.parametrize("panel", [1, 3, 1000])
@pytest.mark.parametrize("name", [n for n, each in algorithms.items() if "panel" in each.options])
def test_any_panel_width(cluster, name, panel):
    c = multiply(cluster, (2, 2), 10, 17, 9, GRID, GRID, algorithm=name, panel=panel)
    whole = multiply(cluster, (2, 2), 10, 17, 9, GRID, GRID, algorithm=name)
    assert c.traffic.measured.total == whole.traffic.measured.total
    assert c.traffic.measured.count >= whole.traffic.measured.count


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["summa", "row_parallel", "gather"])
def test_every_type(cluster, name, dtype, transport):
    dtype = td.tile.as_dtype(dtype)
    a, b = (integers((12, 12), seed).astype(dtype) for seed in (1, 2))
    c = product_of(cluster, (2, 2), a, b, GRID, GRID, algorithm=name)
    assert c.dtype == dtype
    if dtype == "float16" and name == "row_parallel":  # there 2048 + 1 is 2048
        a = np.ones((4, 4096), "f2")
        c = product_of(
            cluster, (4,), a, a.T.copy(), [Shard(1)], [Shard(0)], algorithm=name, panel=16
        )
        assert (td.to_numpy(c) == 4096).all()


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["summa", "cannon", "row_parallel", "gather"])
def test_transposed_operands_are_not_copied(cluster, name, transport):
    a, b = integers((9, 14), 1), integers((9, 11), 2)
    A, B = on_grid(cluster, a, b)
    c = td.matmul(A.T, B, algorithm=name)
    np.testing.assert_array_equal(td.to_numpy(c), a.T @ b)
    assert c.traffic.predicted == c.traffic.measured
    strides = [block.strides for block in cluster.gather(A.T.blocks, "blocks")]
    assert all(s[0] == 4 for s in strides)
    np.testing.assert_array_equal(td.to_numpy(A.T), a.T)


PLACES = (Shard(0), Replicate())


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MOVING)
def test_vectors_and_batches(cluster, name, transport):
    matrix, vector, batch = integers((10, 10), 1), integers(10, 2), integers((3, 5, 10), 3)
    mesh = (2, 2)
    product_of(cluster, mesh, batch, matrix, GRID, GRID, algorithm=name)
    product_of(cluster, mesh, batch, matrix, (Shard(1), Shard(2)), GRID, algorithm=name)
    product_of(cluster, mesh, vector, matrix, PLACES, GRID, algorithm=name)
    if name != "column_parallel":
        product_of(cluster, mesh, matrix, vector, GRID, PLACES, algorithm=name)
        product_of(cluster, mesh, batch, vector, GRID, PLACES, algorithm=name)


def test_operands_on_two_arrangements_of_the_same_ranks(cluster):
    a, b = integers((8, 12), 1), integers((12, 10), 2)
    A, (B,) = td.distribute(a, td.Mesh(cluster, (4,)), [Shard(0)]), on_grid(cluster, b)
    c = td.matmul(A, B, algorithm="summa")
    np.testing.assert_array_equal(td.to_numpy(c), a @ b)
    assert c.traffic.predicted == c.traffic.measured


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MOVING)
def test_the_same_plan_gives_the_same_bits_by_every_transport(cluster, name, monkeypatch):
    rng = np.random.default_rng(7)
    a, b = on_grid(cluster, *(rng.standard_normal((130, 130), "f4") for _ in range(2)))
    bits = set()

    def multiplied():
        c = td.matmul(a, b, algorithm=name, panel=16 if name == "summa" else None)
        assert c.traffic.measured == c.traffic.predicted
        bits.add(td.to_numpy(c).tobytes())

    for way in [blocks.transport_of(cluster), "comm"] * 2:
        monkeypatch.setattr(cluster, "transport", way)
        multiplied()
    with apart(cluster):
        multiplied()
    assert len(bits) == 1


def idle(cluster):
    """Per slot: (exchanges, threads that fetch, tasks that run) that an operation left behind."""

    def state(dask_worker):
        fetching = [each for each in threading.enumerate() if each.name.startswith("fetch")]
        return len(blocks.exchanges), len(fetching), dask_worker.state.executing_count

    return cluster.run(state)


def blocks_held(cluster):
    """Per slot, the results in Dask's memory; anchors are empty and stay with their array."""
    return cluster.run(
        lambda dask_worker: sum(not key.startswith(f"{TO_MAKE_AGAIN}-") for key in dask_worker.data)
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("stop", [0.3, 0.8])
def test_a_cancelled_product_leaves_nothing_behind(cluster, stop):
    (a,) = on_grid(cluster, np.ones((2000, 2000)))
    held = blocks_held(cluster)
    with pytest.raises(DeadlineError, match=r"4 of 4 tasks not done after 0\.\d+ s"):
        td.matmul(a, a, algorithm="summa", kernel="tiled", tile=24, panel=48, timeout=stop)

    def left():  # an earlier array may go meanwhile
        blocks = zip(blocks_held(cluster), held, strict=True)
        return [state for state in idle(cluster) if any(state)], [n - m for n, m in blocks if n > m]

    try:
        wait_until(lambda: left() == ([], []), "workers to drop what was cancelled")
    except AssertionError as error:
        held_now = cluster.run(lambda dask_worker: sorted(dask_worker.data))
        raise AssertionError(f"left: {left()}; in memory: {held_now}") from error
    multiply(cluster, (2, 2), 40, 40, 40, GRID, GRID, algorithm="2.5d")
    assert idle(cluster) == [(0, 0, 0)] * 4


def test_a_worker_that_freezes_before_the_counting_costs_no_result(cluster, monkeypatch):
    (a,), right = on_grid(cluster, integers((12, 12))), integers((12, 12)) @ integers((12, 12))
    call_run, pid = cluster.run, cluster.run(os.getpid)[2]
    blocks.transport_of(cluster)
    rates_of(cluster, integers((1, 1)).dtype)  # measured before: these ask the workers too

    def run(function, *args, **options):
        if function in (blocks.end_exchange, counters._report):
            os.kill(pid, signal.SIGSTOP)
        return call_run(function, *args, **options)

    monkeypatch.setattr(counters, "ANSWER", 0.5, raising=False)
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "run", run)
        try:
            with pytest.warns(RuntimeWarning, match=r"the result is there, what moved.*0\.5 s"):
                made = td.matmul(a, a)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert made.traffic.predicted.total > 0
    assert made.traffic.measured is None
    assert getattr(made.memory, "measured", None) is None
    np.testing.assert_array_equal(td.to_numpy(made), right)
    multiply(cluster, (2, 2), 9, 9, 9)


def test_smaller_panels_are_taken_where_memory_is_short(cluster):
    (a,) = on_grid(cluster, integers((1024, 1024)))
    wide = td.explain(a, a)["summa"]
    narrow = td.explain(a, a, memory_limit=wide.peak - 300_000)["summa"]
    assert narrow.fits
    assert narrow.options != wide.options
    c = td.matmul(a, a, algorithm="summa", memory_limit=wide.peak - 300_000)
    assert c.memory.measured.peak <= c.memory.predicted.peak <= wide.peak - 300_000


def test_the_choice_is_what_explain_says(cluster):
    (a,) = on_grid(cluster, integers((60, 60)))
    found = td.explain(a, a)
    c = a @ a
    assert c.made_by == found.chosen
    row = found[found.chosen]
    assert row.total == c.traffic.measured.total
    assert row.messages == c.traffic.measured.count
    assert row.received == max(c.traffic.measured.received)
    assert row.peak == c.memory.predicted.peak
    text, html = repr(found), found._repr_html_()
    assert all(name in text and name in html for name in td.algorithms)
    assert "Not worth distributing" in text
    assert max(map(len, text.splitlines())) < 200


def test_a_block_that_lies_unaligned_changes_no_bit(cluster):
    """As one that Dask had put on disk."""

    def shift(slot, key, dask_worker):
        if slot_on(dask_worker) == slot:
            block = dask_worker.data[key]
            raw = np.empty(block.nbytes + 1, np.uint8)[1:]
            raw[:] = block.reshape(-1).view(np.uint8)
            dask_worker.data[key] = raw.view(block.dtype).reshape(block.shape)

    rng = np.random.default_rng(7)
    a, b = on_grid(cluster, *(rng.standard_normal(n).astype("f4") for n in ((60, 50), (50, 40))))
    expected = td.to_numpy(td.matmul(a, b)).tobytes()
    cluster.run(shift, 1, str(b.blocks[1].key))
    assert td.to_numpy(td.matmul(a, b)).tobytes() == expected
