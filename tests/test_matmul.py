"""The distributed product: right for every placement, counted to the byte, within its memory."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.dist import worker as on_worker
from tiledask.dist.matmul import RUNTIME, _multiply
from tiledask.errors import DeadlineError, DoesNotFitError, KernelError, PlacementError

pytestmark = pytest.mark.cluster

ALL = (Shard(0), Shard(1), Replicate())
GRID = (Shard(0), Shard(1))


def integers(shape, seed=0, dtype="f4"):
    """Small integers: sums are exact in every order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def multiply(cluster, mesh, m, k, n, placed_a, placed_b, dtype="f4", **options):
    a, b = integers((m, k), 1, dtype), integers((k, n), 2, dtype)
    mesh = td.Mesh(cluster, mesh)
    c = td.matmul(td.distribute(a, mesh, placed_a), td.distribute(b, mesh, placed_b), **options)
    np.testing.assert_array_equal(td.to_numpy(c), a @ b)
    assert c.traffic.predicted == c.traffic.measured
    return c


@pytest.mark.parametrize("placed_a", list(product(ALL, ALL)))
def test_every_placement_on_a_grid(cluster, placed_a):
    for placed_b in ((Shard(0), Shard(1)), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        multiply(cluster, (2, 2), 7, 5, 6, placed_a, placed_b)


@pytest.mark.parametrize("mesh", [(1, 1), (1, 4), (4, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 3), (13, 2, 9), (31, 17, 8)])
def test_summa_on_any_mesh_and_ragged_shape(cluster, mesh, sizes):
    c = multiply(cluster, mesh, *sizes, GRID, GRID)
    # where an axis has one rank, the shard along it is everything and yet nothing moves
    assert c.made_by == "summa"
    assert c.placements == GRID


def test_summa_moves_what_its_formula_says(cluster):
    n, (p, q) = 48, (2, 2)
    c = multiply(cluster, (p, q), n, n, n, GRID, GRID)
    # per rank (q-1)/q of a block row of A and (p-1)/p of a block column of B
    each = (n // p) * n * (q - 1) // q * 4 + n * (n // q) * (p - 1) // p * 4
    assert c.traffic.measured.received == (each,) * 4
    assert c.traffic.measured.count == 4 * ((q - 1) + (p - 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_column_parallel_moves_nothing(cluster, ranks):
    c = multiply(cluster, (ranks,), 5, 7, 10, (Replicate(),), (Shard(1),))
    assert (c.made_by, c.placements, c.traffic.measured.total) == ("local", (Shard(1),), 0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_row_parallel_leaves_addends(cluster, ranks):
    c = multiply(cluster, (ranks,), 5, 7, 10, (Shard(1),), (Shard(0),))
    assert (c.made_by, c.placements, c.traffic.measured.total) == ("local", (Partial(),), 0)


def test_gather_fetches_what_is_missing(cluster):
    c = multiply(cluster, (4,), 8, 8, 8, (Shard(0),), (Shard(0),))
    assert (c.made_by, c.placements) == ("gather", (Shard(0),))
    assert c.traffic.measured.total == 3 * 8 * 8 * 4  # each rank lacks 3/4 of B


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("kernel", "tile"), [("blas", None), ("tiled", 3), ("tiled", (4, 5, 2)), ("loops", None)]
)
def test_every_kernel_gives_the_same_bytes_between_workers(cluster, kernel, tile, dtype):
    c = multiply(cluster, (2, 2), 9, 10, 11, GRID, GRID, dtype, kernel=kernel, tile=tile)
    plain = multiply(cluster, (2, 2), 9, 10, 11, GRID, GRID, dtype)
    assert c.traffic.measured == plain.traffic.measured


def test_repeated_products_are_counted_alike_and_give_the_same_bits(cluster):
    rng = np.random.default_rng(4)
    mesh = td.Mesh(cluster, (2, 2))
    a, b = (td.distribute(rng.standard_normal((65, 65)), mesh, GRID) for _ in range(2))
    first, second = td.matmul(a, b), a @ b
    assert first.traffic.measured == second.traffic.measured
    assert td.to_numpy(first).tobytes() == td.to_numpy(second).tobytes()


def test_a_product_survives_the_death_of_a_worker(cluster):
    rng = np.random.default_rng(5)
    mesh = td.Mesh(cluster, (2, 2))
    a, b = (td.distribute(rng.standard_normal((1500, 1500)), mesh, GRID) for _ in range(2))
    expected = td.to_numpy(td.matmul(a, b, kernel="tiled", tile=64))
    victim = cluster.run(on_worker.machine)[3]["pid"]
    killer = threading.Timer(0.25, os.kill, (victim, signal.SIGKILL))
    killer.start()
    c = td.matmul(a, b, kernel="tiled", tile=64, timeout=60)
    killer.join()
    assert td.to_numpy(c, timeout=60).tobytes() == expected.tobytes()
    assert cluster.run(on_worker.machine)[3]["pid"] != victim


def test_measured_memory_stays_within_the_prediction(cluster):
    n = 1024
    mesh = td.Mesh(cluster, (2, 2))
    a, b = (td.distribute(integers((n, n), seed), mesh, GRID) for seed in (1, 2))
    c = td.matmul(a, b)
    predicted, measured = c.memory
    block = (n // 2) ** 2 * 4
    held = 5 * block + td.tile.workspace(n // 2, n // 2, n, 4, accumulate=True)
    assert predicted.per_place == dict.fromkeys(range(4), held + RUNTIME + held // 50)
    assert measured.peak <= predicted.peak
    assert measured.peak >= 3 * block  # two operands and a result were there


def test_a_plan_that_does_not_fit_is_refused_before_it_runs(cluster):
    mesh = td.Mesh(cluster, (2, 2))
    a = td.distribute(np.ones((64, 64)), mesh, GRID)
    with pytest.raises(DoesNotFitError, match=r"would hold .* allowed are 1 kB.*mesh of at least"):
        td.matmul(a, a, memory_limit="1kB")


def wrong(cluster):
    mesh, line = td.Mesh(cluster, (2, 2)), td.Mesh(cluster, (4,))
    a = td.distribute(np.ones((4, 6)), mesh, GRID)
    yield "6 columns and B .* 4 rows", lambda: a @ a
    b = td.distribute(np.ones((6, 4), "f4"), mesh, GRID)
    yield "A is float64 and B is float32", lambda: a @ b
    b = td.distribute(np.ones((6, 4), int), mesh, GRID)
    yield "B is int64, products are floating point", lambda: a @ b
    b = td.distribute(np.ones((6, 4)), line, (Shard(0),))
    yield "distribute both on one mesh", lambda: a @ b
    b = td.distribute(np.ones(6), mesh, (Shard(0), Replicate()))
    yield "B has 1 dimensions, a product needs 2", lambda: a @ b
    b = td.distribute(np.ones((6, 4)), mesh, GRID)
    yield (
        "no algorithm 'cannon'; td.algorithms has local",
        lambda: td.matmul(a, b, algorithm="cannon"),
    )
    yield "cannot be multiplied where it lies", lambda: td.matmul(a, b, algorithm="local")
    c = td.distribute(np.ones((6, 4)), mesh, (Shard(1), Shard(0)))
    yield "summa needs A and B on a 2-D mesh", lambda: td.matmul(a, c, algorithm="summa")
    x = td.distribute(np.ones((6, 8)), line, (Shard(1),))
    w = td.distribute(np.ones((8, 6)), line, (Shard(0),))
    yield "multiply before the addends are summed", lambda: (x @ w) @ x


def test_products_that_make_no_sense(cluster):
    for message, call in wrong(cluster):
        with pytest.raises(PlacementError, match=message):
            call()


def test_plain_arrays_are_sent_to_the_right_function(cluster):
    with pytest.raises(TypeError, match=r"A is a ndarray.*td\.distribute.*td\.tile\.matmul"):
        td.matmul(np.ones((2, 2)), np.ones((2, 2)))


def test_an_unknown_kernel_is_named(cluster):
    a = td.distribute(np.ones((4, 4)), td.Mesh(cluster, (2, 2)), GRID)
    with pytest.raises(KernelError, match="nonsense"):
        td.matmul(a, a, kernel="nonsense")


def test_the_deadline_reaches_the_product(cluster):
    a = td.distribute(np.ones((1500, 1500)), td.Mesh(cluster, (2, 2)), GRID)
    with pytest.raises(DeadlineError, match=r"after 0\.5 s"):
        td.matmul(a, a, kernel="tiled", tile=16, timeout=0.5)


def test_what_the_workers_have_is_the_limit(cluster, monkeypatch):
    a = td.distribute(np.ones((64, 64)), td.Mesh(cluster, (2, 2)), GRID)
    monkeypatch.setattr(cluster, "memory_limit", 1000)
    with pytest.raises(DoesNotFitError, match="allowed are 1 kB"):
        td.matmul(a, a)


def test_rows_of_a_win_over_columns_of_b(cluster):
    c = multiply(cluster, (4,), 8, 8, 8, (Shard(0),), (Shard(1),))
    assert (c.made_by, c.placements) == ("gather", (Shard(0),))


def test_the_measured_ledger_has_both_operands(cluster):
    c = multiply(cluster, (2, 2), 8, 8, 8, GRID, GRID)
    assert {row.tensor for row in c.memory.measured.rows} == {"A", "B", "process growth"}


def test_the_summed_dimension_is_taken_in_ascending_order():
    a, b = np.array([[1.0, 1e16, -1e16]]), np.ones((3, 1))
    whole = (slice(None), slice(None))
    parts = [(0, ((0, 1), (k, k + 1)), whole) for k in range(3)] + [(1, ((0, 3), (0, 1)), whole)]
    blocks = [*(a[:, k : k + 1] for k in range(3)), b]
    for order in ((0, 1, 2, 3), (2, 1, 0, 3)):
        c = _multiply(
            ((0, 1), (0, 1)), "<f8", [parts[i] for i in order], "blas", None, "numpy",
            *(blocks[i] for i in order),
        )  # fmt: skip
        assert c[0, 0] == (1.0 + 1e16) - 1e16


def test_float16_has_its_kernels(cluster):
    a = td.distribute(np.ones((8, 8), "f2"), td.Mesh(cluster, (2, 2)), GRID)
    with pytest.raises(PlacementError, match=r"'blas' takes float32, float64, A and B are float16"):
        td.matmul(a, a)
    np.testing.assert_array_equal(td.to_numpy(td.matmul(a, a, kernel="tiled")), np.full((8, 8), 8))


def test_threads_that_multiply_at_once_are_counted_apart(cluster):
    mesh = td.Mesh(cluster, (2, 2))
    operands = [td.distribute(integers((16 * n, 16 * n), n), mesh, GRID) for n in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        products = list(pool.map(lambda x: td.matmul(x, x), operands))
    assert all(c.traffic.predicted == c.traffic.measured for c in products)
