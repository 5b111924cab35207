"""Arrays over workers: they come back as they went, wrong ones are refused.

Holds `tiledask.distributed.arrays.creation` and `tiledask.distributed.arrays.redistribute`.
"""

import numpy as np
import pytest

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.distributed.arrays import array as arrays_module
from tiledask.distributed.arrays import creation
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Shards

TOLD = Shards(4, (((0, 3),), ((3, 4),)))

pytestmark = pytest.mark.cluster


def arrays():
    """(array, mesh, placements): types, fewer rows than ranks, dimensions, strides, orders."""
    for dtype in ("float32", "float64", "float16", "int32"):
        for placements in ((Shard(0), Shard(1)), (Shard(1), Replicate())):
            yield (np.arange(7 * 5).reshape(7, 5) % 11).astype(dtype), (2, 2), placements
    for shape in ((1, 1), (3, 1), (1, 9), (4, 4)):
        yield np.random.default_rng(0).standard_normal(shape), (4,), (Shard(0),)
    a = np.arange(48.0).reshape(6, 8)
    for view in (a.T, a[::2, 1::3]):
        yield view, (2, 2), (Shard(0), Shard(1))
    yield np.arange(5.0), (2, 2), (Shard(0), Replicate())
    yield np.arange(60.0).reshape(3, 4, 5), (2, 2), (Shard(2), Shard(0))
    yield np.arange(4, dtype=">f8"), (2,), (Shard(0),)
    yield np.array(7.0), (2,), (Replicate(),)


def test_arrays_come_back_as_they_went(cluster, monkeypatch):
    for slab in (creation.SLAB, 1):  # files are read a row at a time
        monkeypatch.setattr(creation, "SLAB", slab)
        for a, mesh, placements in arrays():
            array = td.distribute(a, td.Mesh(cluster, mesh), placements)
            np.testing.assert_array_equal(back := td.to_numpy(array), a)
            assert back.dtype == array.dtype == a.dtype.newbyteorder("=")
            assert (array.shape, array.nbytes) == (a.shape, a.nbytes)
            assert Replicate() in placements or sum(array.block_bytes) == a.nbytes
    assert repr(array) == "ShardedArray( float64, mesh (2,), Replicate())"


def test_two_axes_may_split_one_dimension_and_changing_the_original_changes_nothing(cluster):
    a = np.arange(11.0).reshape(11, 1)
    array = td.distribute(a, td.Mesh(cluster, (2, 2)), (Shard(0), Shard(0)))
    assert [n // 8 for n in array.block_bytes] == [3, 3, 3, 2]
    a[:] = 7
    np.testing.assert_array_equal(td.to_numpy(array)[:, 0], np.arange(11))


def test_blocks_can_be_made_where_they_live_and_are_cast(cluster):
    def block(index):
        rows, columns = np.ogrid[index]
        return rows * 10.0 + columns

    array = td.from_function(block, (7, 5), "f4", td.Mesh(cluster, (3,)), (Shard(0),))
    np.testing.assert_array_equal(td.to_numpy(array), np.add.outer(np.arange(7) * 10, np.arange(5)))
    assert {block.dtype.str for block in cluster.gather(array.blocks, "blocks")} == {"<f4"}


def refused(cluster):
    """(words of the error, the call): PlacementErrors, then TypeErrors."""
    mesh, two, ones = td.Mesh(cluster, (2, 2)), td.Mesh(cluster, (2,)), np.ones((4, 4))
    for a, placements, message in (
        (ones, (Partial(), Replicate()), "partial sums are not unique"),
        (ones, (Shard(0, TOLD), Replicate()), "arrays on workers are sharded evenly"),
        (ones, (Shard(0),), "2 axes .* got 1"),
        (ones, (Shard(0), Shard(5)), r"Shard\(5\) needs a dimension"),
        (np.ones(4, complex), (Shard(0), Replicate()), r"complex128; .* \.real and"),
        (np.array(["a"]), (Shard(0), Replicate()), "dtype <U1"),
        (np.array([None]), (Shard(0), Replicate()), "dtype object"),
        (np.ma.masked_array(ones, mask=np.eye(4)), (Shard(0), Shard(1)), "masked.*filled"),
    ):
        yield message, lambda a=a, placements=placements: td.distribute(a, mesh, placements)
    for value, dtype, message in (
        (np.ones((1, 1)), "f8", r"gave a block of shape \(1, 1\)"),
        (np.full((2, 2), 1j), "f8", r"of complex128 .* a type that float64 holds"),
        (np.full((2, 2), 1.7), "i4", "of float64 .* a type that int32 holds"),
    ):
        made = lambda index, value=value: value  # noqa: E731
        yield message, lambda made=made, d=dtype: td.from_function(made, (4, 2), d, two, Shard(0))
    x = td.distribute(ones, td.Mesh(cluster, (np.int64(2),)), Shard(0))
    yield "partial sums are not unique", lambda: td.redistribute(x, Partial())
    yield "arrays on workers are sharded evenly", lambda: td.redistribute(x, Shard(0, TOLD))
    yield r"on a mesh, got Cluster; td\.Mesh", lambda: td.distribute(ones, cluster, Shard(0))
    yield "moves a sharded array, got ndarray", lambda: td.redistribute(ones, Shard(0))
    yield "unsupported operand", lambda: ones @ x


def test_what_is_no_array_or_mesh_or_placement_is_refused(cluster):
    cases = list(refused(cluster))
    for i, (message, call) in enumerate(cases):
        with pytest.raises(PlacementError if i < len(cases) - 3 else TypeError, match=message):
            call()


def test_a_block_that_no_worker_can_hold_is_refused_before_it_is_made(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "memory_limits", (1000,) * cluster.slots)
    mesh = td.Mesh(cluster, (4,))
    message = r"has 1\.024 kB, a worker may hold 1 kB .*; shard it over at least 2 times as many"
    with pytest.raises(DoesNotFitError, match=message):
        td.distribute(np.ones((8, 64)), mesh, (td.Shard(0),))
    with pytest.raises(DoesNotFitError, match=message):
        td.from_function(lambda index: 1 / 0, (8, 64), "f8", mesh, (td.Shard(0),))
    td.distribute(np.ones((7, 17)), mesh, (td.Shard(0),))


def test_an_array_that_this_process_cannot_hold_is_not_collected(cluster, monkeypatch):
    array = td.distribute(np.ones((40, 6)), td.Mesh(cluster, (2,)), (Shard(0),))
    monkeypatch.setattr(arrays_module, "MEMORY_LIMIT", 2000)
    with pytest.raises(DoesNotFitError, match=r"have 2\.88 kB.*may hold 2 kB.*to_zarr"):
        td.to_numpy(array)


@pytest.mark.few(1)
@pytest.mark.parametrize("mesh", [(4,), (2, 2), (1, 3)])
def test_every_move_keeps_the_array_and_counts_its_bytes(cluster, mesh):
    a = np.random.default_rng(2).integers(-9, 9, (7, 10)).astype("f8")
    choices = (Shard(0), Shard(1), Replicate())
    mesh = td.Mesh(cluster, mesh)
    for old in choices:
        array = td.distribute(a, mesh, (old,) * len(mesh.shape))
        for new in choices:
            moved = td.redistribute(array, (*(old,) * (len(mesh.shape) - 1), new))
            np.testing.assert_array_equal(td.to_numpy(moved), a)
            assert moved.traffic.predicted == moved.traffic.measured


def partial_sums(cluster, ranks, x, w):
    mesh = td.Mesh(cluster, (ranks,))
    product = td.distribute(x, mesh, (Shard(1),)) @ td.distribute(w, mesh, (Shard(0),))
    assert product.placements == (Partial(),)
    return product


@pytest.mark.few(4)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("target", "name", "factor"),
    [
        (Replicate(), "all_reduce", 2),
        (Shard(0), "reduce_scatter", 1),
        (Shard(1), "reduce_scatter", 1),
    ],
)
def test_addends_are_summed(cluster, ranks, target, name, factor):
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-4, 5, shape).astype("f8") for shape in ((6, 8), (8, 5)))
    whole = td.redistribute(partial_sums(cluster, ranks, x, w), target)
    np.testing.assert_array_equal(td.to_numpy(whole), x @ w)
    assert whole.made_by == name
    assert whole.traffic.predicted == whole.traffic.measured
    # nccl-tests PERFORMANCE.md: (n-1)/n of the array a rank, twice that for an all_reduce
    assert whole.traffic.measured.total == factor * (ranks - 1) * (x @ w).nbytes


def test_addends_are_added_in_rank_order_and_the_sign_of_zero_survives(cluster):
    row = np.array([[1.0, 1e16, -1e16]])  # 0 in this order, 1 in the other
    product = partial_sums(cluster, 3, row, np.ones((3, 1)))
    for found in (product, *(td.redistribute(product, to) for to in (Replicate(), Shard(0)))):
        assert td.to_numpy(found)[0, 0] == (1.0 + 1e16) - 1e16
    array = td.distribute(np.full((4, 1), -0.0), td.Mesh(cluster, (2,)), Shard(0))
    assert np.signbit(td.to_numpy(td.redistribute(array, Replicate()))).all()
