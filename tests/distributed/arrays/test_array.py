"""Arrays over workers: they come back as they went, wrong ones are refused.

Holds `tiledask.distributed.arrays.creation`, `tiledask.distributed.arrays.mesh` and
`tiledask.distributed.arrays.redistribute`.
"""

import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.errors import DoesNotFitError, PlacementError

pytestmark = pytest.mark.cluster


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("placements", [(Shard(0), Shard(1)), (Shard(1), Replicate())])
def test_round_trip(cluster, dtype, placements):
    a = (np.arange(7 * 5).reshape(7, 5) % 11).astype(dtype)
    array = td.distribute(a, td.Mesh(cluster, (2, 2)), placements)
    back = td.to_numpy(array)
    np.testing.assert_array_equal(back, a)
    assert back.dtype == array.dtype == a.dtype
    assert array.shape == (7, 5)
    assert array.nbytes == a.nbytes


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 9), (4, 4)])
def test_fewer_rows_than_ranks_leave_some_blocks_empty(cluster, shape):
    a = np.random.default_rng(0).standard_normal(shape)
    array = td.distribute(a, td.Mesh(cluster, (4,)), (Shard(0),))
    np.testing.assert_array_equal(td.to_numpy(array), a)
    assert sum(array.block_bytes) == a.nbytes


@pytest.mark.parametrize("maker", ["creation", "dask_arrays"])
def test_whoever_makes_an_array_brings_along_what_multiplies_it(maker):
    code = f"""
        from tiledask.distributed.arrays import {maker}
        from tiledask.distributed.arrays.array import operators
        assert operators["@"].__name__ == "matmul"
    """
    subprocess.run([sys.executable, "-c", dedent(code)], check=True)


def test_vectors_and_cubes(cluster):
    mesh = td.Mesh(cluster, (2, 2))
    vector, cube = np.arange(5.0), np.arange(60.0).reshape(3, 4, 5)
    for a, placements in ((vector, (Shard(0), Replicate())), (cube, (Shard(2), Shard(0)))):
        np.testing.assert_array_equal(td.to_numpy(td.distribute(a, mesh, placements)), a)


def test_two_axes_may_split_one_dimension(cluster):
    a = np.arange(11.0).reshape(11, 1)
    array = td.distribute(a, td.Mesh(cluster, (2, 2)), (Shard(0), Shard(0)))
    assert [n // 8 for n in array.block_bytes] == [3, 3, 3, 2]
    np.testing.assert_array_equal(td.to_numpy(array), a)


def test_changing_the_original_changes_nothing(cluster):
    a = np.ones((4, 4))
    array = td.distribute(a, td.Mesh(cluster, (2,)), (Shard(0),))
    a[:] = 7
    assert (td.to_numpy(array) == 1).all()


def test_transposed_and_strided_originals(cluster):
    a = np.arange(48.0).reshape(6, 8)
    for view in (a.T, a[::2, 1::3]):
        array = td.distribute(view, td.Mesh(cluster, (2, 2)), (Shard(0), Shard(1)))
        np.testing.assert_array_equal(td.to_numpy(array), view)


def test_blocks_can_be_made_where_they_live(cluster):
    def block(index):
        rows, columns = np.ogrid[index]
        return rows * 10 + columns

    array = td.from_function(block, (7, 5), "float64", td.Mesh(cluster, (3,)), (Shard(0),))
    np.testing.assert_array_equal(td.to_numpy(array), np.add.outer(np.arange(7) * 10, np.arange(5)))


def test_a_block_of_the_wrong_shape_is_refused(cluster):
    with pytest.raises(PlacementError, match=r"gave a block of shape \(1, 1\)"):
        td.from_function(
            lambda index: np.ones((1, 1)), (8, 8), "f8", td.Mesh(cluster, (2,)), (Shard(0),)
        )


@pytest.mark.parametrize(
    ("a", "placements", "message"),
    [
        (np.ones((4, 4)), (Partial(), Replicate()), "partial sums are not unique"),
        (np.ones((4, 4)), (Shard(0),), "2 axes .* got 1"),
        (np.ones((4, 4)), (Shard(0), Shard(5)), r"Shard\(5\) needs a dimension"),
        (np.ones(4, complex), (Shard(0), Replicate()), "dtype complex128"),
        (np.array(["a"]), (Shard(0), Replicate()), "dtype <U1"),
        (np.array([None]), (Shard(0), Replicate()), "dtype object"),
    ],
)
def test_what_cannot_be_distributed(cluster, a, placements, message):
    with pytest.raises(PlacementError, match=message):
        td.distribute(a, td.Mesh(cluster, (2, 2)), placements)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 3), r"9 ranks, the cluster has 4 slots.*start_cluster\(workers=9\)"),
        ((0,), "whole numbers of 1 or more"),
        ((), "whole numbers of 1 or more"),
        ((2.0,), "whole numbers of 1 or more"),
        ((True, 2), "whole numbers of 1 or more"),
    ],
)
def test_meshes_that_do_not_exist(cluster, shape, message):
    with pytest.raises(PlacementError, match=message):
        td.Mesh(cluster, shape)


def test_a_mesh_of_one_axis_may_be_a_number(cluster):
    assert td.Mesh(cluster, 3).shape == (3,)


def test_a_block_that_no_worker_can_hold_is_refused_before_it_is_made(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "memory_limit", 1000)
    mesh = td.Mesh(cluster, (4,))
    message = r"has 1\.024 kB, a worker may hold 1 kB .*; shard it over at least 2 times as many"
    with pytest.raises(DoesNotFitError, match=message):
        td.distribute(np.ones((8, 64)), mesh, (td.Shard(0),))
    with pytest.raises(DoesNotFitError, match=message):
        td.from_function(lambda index: 1 / 0, (8, 64), "f8", mesh, (td.Shard(0),))
    td.distribute(np.ones((7, 17)), mesh, (td.Shard(0),))


def test_it_says_what_it_is(cluster):
    array = td.distribute(np.ones((4, 6), "f4"), td.Mesh(cluster, (2,)), (Shard(1),))
    assert repr(array) == "ShardedArray(4x6 float32, mesh (2,), Shard(1))"
    assert "0:4 x 3:6" in array._repr_html_()


# -- collectives ----------------------------------------------------------------------------------


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


def partial_array(cluster, ranks, shape=(6, 5)):
    rng = np.random.default_rng(3)
    x = rng.integers(-4, 5, (shape[0], 8)).astype("f8")
    w = rng.integers(-4, 5, (8, shape[1])).astype("f8")
    mesh = td.Mesh(cluster, (ranks,))
    product = td.distribute(x, mesh, (Shard(1),)) @ td.distribute(w, mesh, (Shard(0),))
    assert product.placements == (Partial(),)
    return product, x @ w


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
    product, expected = partial_array(cluster, ranks)
    whole = td.redistribute(product, target)
    np.testing.assert_array_equal(td.to_numpy(whole), expected)
    assert whole.made_by == name
    assert whole.traffic.predicted == whole.traffic.measured
    # nccl-tests PERFORMANCE.md: (n-1)/n of the array a rank, twice that for an all_reduce
    assert whole.traffic.measured.total == factor * (ranks - 1) * expected.nbytes


def test_addends_are_summed_on_the_way_home_too(cluster):
    product, expected = partial_array(cluster, 3)
    np.testing.assert_array_equal(td.to_numpy(product), expected)


def test_the_second_move_is_counted_like_the_first(cluster):
    array = td.distribute(np.ones((8, 8)), td.Mesh(cluster, (2,)), (Shard(0),))
    totals = [td.redistribute(array, Replicate()).traffic.measured.total for _ in range(2)]
    assert totals == [512, 512]


def test_an_array_cannot_become_addends(cluster):
    array = td.distribute(np.ones((8, 8)), td.Mesh(cluster, (2,)), (Shard(0),))
    with pytest.raises(PlacementError, match="partial sums are not unique"):
        td.redistribute(array, Partial())


# -- what must not be silently wrong --------------------------------------------------------------


def test_blocks_are_cast_to_what_was_asked(cluster):
    mesh = td.Mesh(cluster, (2,))
    x = td.from_function(lambda index: np.ones((2, 3), "f8"), (4, 3), "f4", mesh, Shard(0))
    kinds = [cluster.submit(0, lambda block: block.dtype.str, x.blocks[0])]
    assert cluster.gather(kinds, "dtype") == ["<f4"]


@pytest.mark.parametrize(("value", "dtype"), [(1j, "f8"), (1.7, "i4")])
def test_blocks_that_would_lose_their_values_are_refused(cluster, value, dtype):
    with pytest.raises(PlacementError, match="which would lose"):
        td.from_function(
            lambda index: np.full((2, 2), value), (4, 2), dtype, td.Mesh(cluster, (2,)), Shard(0)
        )


def test_masked_arrays_are_refused(cluster):
    masked = np.ma.masked_array(np.ones((4, 4)), mask=np.eye(4))
    with pytest.raises(PlacementError, match=r"masked.*filled"):
        td.distribute(masked, td.Mesh(cluster, (2,)), Shard(0))


def test_foreign_byte_order_comes_back_native(cluster):
    array = td.distribute(np.arange(4, dtype=">f8"), td.Mesh(cluster, (2,)), Shard(0))
    assert array.dtype.isnative
    np.testing.assert_array_equal(td.to_numpy(array), np.arange(4.0))


def test_the_sign_of_zero_survives_a_move(cluster):
    array = td.distribute(np.full((4, 1), -0.0), td.Mesh(cluster, (2,)), Shard(0))
    assert np.signbit(td.to_numpy(td.redistribute(array, Replicate()))).all()


def test_addends_are_added_in_rank_order(cluster):
    mesh = td.Mesh(cluster, (3,))
    row = np.array([[1.0, 1e16, -1e16]])  # 0 in this order, 1 in the other
    product = td.distribute(row, mesh, Shard(1)) @ td.distribute(np.ones((3, 1)), mesh, Shard(0))
    for target in (Replicate(), Shard(0)):
        assert td.to_numpy(td.redistribute(product, target))[0, 0] == (1.0 + 1e16) - 1e16
    assert td.to_numpy(product)[0, 0] == (1.0 + 1e16) - 1e16


def test_the_longest_free_dimension_is_scattered():
    from tiledask.distributed.arrays.redistribute import _reduced
    from tiledask.plan.products.placement import Tiling

    tiling = Tiling((3, 9), (2,), (Partial(),))
    assert _reduced(tiling, tiling.replaced(Replicate())).placements == (Shard(1),)


def test_a_piece_is_cut_once(cluster):
    from tiledask.distributed.arrays.redistribute import Sender

    x = td.distribute(np.ones((4, 4)), td.Mesh(cluster, (2,)), Shard(0))
    sender = Sender(cluster, "x")
    sent = [sender.send(x.blocks[0], (slice(0, 1), slice(0, 4))) for _ in range(3)]
    assert len({future.key for future in sent}) == 3
    assert len(sender._cut) == 1


def test_plain_things_are_not_meshes_or_sharded_arrays(cluster):
    with pytest.raises(TypeError, match=r"on a mesh, got Cluster; td\.Mesh"):
        td.distribute(np.ones(4), cluster, Shard(0))
    with pytest.raises(TypeError, match="a mesh is made of a cluster's slots, got NoneType"):
        td.Mesh(None, (2,))
    with pytest.raises(TypeError, match="redistribute moves a sharded array, got ndarray"):
        td.redistribute(np.ones(4), Shard(0))
    x = td.distribute(np.ones((4, 4)), td.Mesh(cluster, (np.int64(2),)), Shard(0))
    with pytest.raises(TypeError):
        np.ones((4, 4)) @ x


def test_huge_shapes_are_refused_by_arithmetic(cluster):
    with pytest.raises(DoesNotFitError):
        td.from_function(np.ones, (2**32, 2**33), "f8", td.Mesh(cluster, (2,)), Shard(0))
