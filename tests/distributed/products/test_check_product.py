"""td.check_product: products that are right, and every planted fault that rounding is not."""

import numpy as np
import pytest

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.distributed.cluster.tasks import slot_on
from tiledask.errors import PlacementError
from tiledask.tile import as_dtype

pytestmark = pytest.mark.cluster

GRID = (Shard(0), Shard(1))


def drawn(cluster, m, k, n, dtype="float32", scale=1.0):
    rng, mesh = np.random.default_rng(0), td.Mesh(cluster, (2, 2))
    both = rng.standard_normal((m, k)), rng.standard_normal((k, n)) * scale
    return [td.distribute(x.astype(as_dtype(dtype)), mesh, GRID) for x in both]


def off_by(slot, key, size, dask_worker):
    if slot_on(dask_worker) == slot:
        block = dask_worker.data[key]
        block.setflags(write=True)
        block[3, 2] += size


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("dtype", "fault"), [("float64", 1e-9), ("float32", 0.5), ("float16", 50), ("bfloat16", 300)]
)
def test_a_product_is_right_and_a_planted_fault_is_seen_in_its_row(cluster, dtype, fault):
    A, B = drawn(cluster, 60, 50, 40, dtype)
    for algorithm in ("summa", "row_parallel"):
        C = td.matmul(A, B, algorithm=algorithm)
        assert td.check_product(A, B, C, seed=1)
    cluster.run(off_by, 3, str(C.blocks[3].key), fault)
    found = td.check_product(A, B, C)
    assert not found
    assert found.row == (C.tiling.regions[3][0][0] + 3,)
    assert str(found).startswith(f"wrong: row {found.row[0]} is off by ")


def test_any_right_product_is_within_rounding(cluster):
    for seed, (m, k, n) in enumerate([(1, 1, 1), (3, 700, 2), (300, 2, 300), (129, 257, 65)]):
        A, B = drawn(cluster, m, k, n, scale=10.0**seed)
        assert td.check_product(A, B, A @ B, seed=seed)


def test_batches_nan_and_partial_sums(cluster):
    mesh, ones = td.Mesh(cluster, (4,)), lambda *shape: np.ones(shape, "f4")
    placed = lambda placement, *arrays: [td.distribute(x, mesh, placement) for x in arrays]  # noqa: E731
    (A,), (B,) = placed(Shard(0), ones(3, 6, 8)), placed(Replicate(), ones(8, 5))
    assert td.check_product(A, B, A @ B)
    bad = 8 * ones(3, 6, 5)
    bad[1, 2, 3] = np.nan
    assert td.check_product(A, B, *placed(Shard(0), bad)).row == (1, 2)
    summed = td.matmul(*placed(Shard(1), ones(4, 8)), *placed(Shard(0), ones(8, 4)))
    assert summed.placements == (Partial(),)
    whole = td.redistribute(summed, [Shard(0)])
    assert td.check_product(*placed(Replicate(), ones(4, 8), ones(8, 4)), whole)
    with pytest.raises(PlacementError, match="not partial sums"):
        td.check_product(summed, B, summed)
