"""Arrays over meshes of workers: they come back as they went, move as predicted, or are refused.

Hosts are said to be several here; tests/distributed/connecting has some that are.
"""

import operator
from itertools import permutations

import dask.array as da
import numpy as np
import pytest

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.distributed.arrays import array as arrays_module
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.products.placement import Shards

pytestmark = pytest.mark.cluster

TOLD = Shards(4, (((0, 3),), ((3, 4),)))


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
    yield np.arange(11.0).reshape(11, 1), (2, 2), (Shard(0), Shard(0))
    yield np.arange(60.0).reshape(3, 4, 5), (2, 2), (Shard(2), Shard(0))
    yield np.arange(4, dtype=">f8"), (2,), (Shard(0),)
    yield np.array(7.0), (2,), (Replicate(),)


def test_arrays_come_back_as_they_went(cluster):
    for a, mesh, placements in arrays():
        array, right = td.distribute(a, td.Mesh(cluster, mesh), placements), a.copy()
        a += 1  # of the original nothing is kept
        np.testing.assert_array_equal(back := td.to_numpy(array), right)
        assert back.dtype == array.dtype == a.dtype.newbyteorder("=")
        assert (array.shape, array.nbytes) == (a.shape, a.nbytes)
        assert Replicate() in placements or sum(array.block_bytes) == a.nbytes
    assert repr(array) == "ShardedArray( float64, mesh (2,), Replicate())"


def test_blocks_can_be_made_where_they_live_and_are_cast(cluster):
    whole, mesh = np.arange(7)[:, None] * 10.0 + np.arange(5), td.Mesh(cluster, (3,))
    array = td.from_function(lambda index: whole[index], (7, 5), "f4", mesh, (Shard(0),))
    np.testing.assert_array_equal(td.to_numpy(array), whole)
    assert {block.dtype.str for block in cluster.gather(array.blocks, "blocks")} == {"<f4"}


def refused(cluster):
    """(words of the error, the call): PlacementErrors, then TypeErrors."""
    mesh, two, ones = td.Mesh(cluster, (2, 2)), td.Mesh(cluster, (2,)), np.ones((4, 4))
    grid, even = (Shard(0), Shard(1)), "arrays on workers are sharded evenly"
    x = td.distribute(ones, td.Mesh(cluster, (np.int64(2),)), Shard(0))
    for a, placements, words in (
        (ones, (Partial(), Replicate()), "partial sums are not unique"),
        (ones, (Shard(0, TOLD), Replicate()), even),
        (ones, (Shard(0),), "2 axes .* got 1"),
        (ones, (Shard(0), Shard(5)), r"Shard\(5\) needs a dimension"),
        (np.ones((4, 4), complex), grid, r"complex128; .* \.real and"),
        (np.full((4, 4), "a"), grid, "dtype <U1"),
        (np.full((4, 4), None), grid, "dtype object"),
        (np.ma.masked_array(ones, mask=np.eye(4)), grid, "masked.*filled"),
    ):
        yield words, td.distribute, a, mesh, placements
    for value, dtype, words in (
        (np.ones((1, 1)), "f8", r"gave a block of shape \(1, 1\)"),
        (np.full((2, 2), 1j), "f8", r"of complex128 .* a type that float64 holds"),
        (np.full((2, 2), 1.7), "i4", "of float64 .* a type that int32 holds"),
    ):
        yield words, td.from_function, lambda index, v=value: v, (4, 2), dtype, two, Shard(0)
    yield "partial sums are not unique", td.redistribute, x, Partial()
    yield even, td.redistribute, x, Shard(0, TOLD)
    yield r"on a mesh, got Cluster; td\.Mesh", td.distribute, ones, cluster, Shard(0)
    yield "moves a sharded array, got ndarray", td.redistribute, ones, Shard(0)
    yield "unsupported operand", operator.matmul, ones, x


def test_what_is_no_array_or_mesh_or_placement_is_refused(cluster):
    cases = list(refused(cluster))
    for i, (words, call, *given) in enumerate(cases):
        with pytest.raises(PlacementError if i < len(cases) - 3 else TypeError, match=words):
            call(*given)


def test_what_a_worker_or_this_process_cannot_hold_is_refused_before_it_is_made(
    cluster, monkeypatch
):
    monkeypatch.setattr(cluster, "memory_limits", (1000,) * cluster.slots)
    mesh = td.Mesh(cluster, (4,))
    message = r"takes 1\.024 kB, a worker may hold 1 kB .*; shard it over at least 2 times as many"
    with pytest.raises(DoesNotFitError, match=message):
        td.distribute(np.ones((8, 64)), mesh, (td.Shard(0),))
    with pytest.raises(DoesNotFitError, match=message):
        td.from_function(lambda index: 1 / 0, (8, 64), "f8", mesh, (td.Shard(0),))
    array = td.distribute(np.ones((7, 17)), mesh, (td.Shard(0),))
    monkeypatch.setattr(arrays_module, "MEMORY_LIMIT", 700)
    with pytest.raises(DoesNotFitError, match=r"have 1\.224 kB.*may hold 700 B.*to_zarr"):
        td.to_numpy(array)


def partial_sums(cluster, ranks, x, w):
    mesh = td.Mesh(cluster, (ranks,))
    made = td.distribute(x, mesh, (Shard(1),)) @ td.distribute(w, mesh, (Shard(0),))
    assert made.placements == (Partial(),)
    return made


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_addends_are_summed(cluster, ranks):
    """By (n-1)/n of the array a rank, twice that for an all_reduce (nccl-tests PERFORMANCE.md)."""
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-4, 5, shape).astype("f8") for shape in ((6, 8), (8, 5)))
    for target in (Replicate(), Shard(0), Shard(1)):
        name, times = ("reduce_scatter", 1) if target != Replicate() else ("all_reduce", 2)
        whole = td.redistribute(partial_sums(cluster, ranks, x, w), target)
        np.testing.assert_array_equal(td.to_numpy(whole), x @ w)
        assert whole.made_by == name
        assert whole.traffic.predicted == whole.traffic.measured
        assert whole.traffic.measured.total == times * (ranks - 1) * (x @ w).nbytes


def test_addends_are_added_in_rank_order_and_the_sign_of_zero_survives(cluster):
    row = np.array([[1.0, 1e16, -1e16]])  # 0 in this order, 1 in the other
    sums = partial_sums(cluster, 3, row, np.ones((3, 1)))
    for found in (sums, *(td.redistribute(sums, to) for to in (Replicate(), Shard(0)))):
        assert td.to_numpy(found)[0, 0] == (1.0 + 1e16) - 1e16
    array = td.distribute(np.full((4, 1), -0.0), td.Mesh(cluster, (2,)), Shard(0))
    assert np.signbit(td.to_numpy(td.redistribute(array, Replicate()))).all()


RNG = np.random.default_rng(0)
GRID = (Shard(0), Shard(1))


@pytest.fixture
def on_hosts(cluster, monkeypatch):
    """The session's four workers, told that they are on these hosts."""

    def told(hosts):
        monkeypatch.setattr(cluster, "hosts", tuple(hosts))
        return cluster

    return told


def test_names_say_which_axis_is_within_hosts_and_slots_what_they_say(on_hosts):
    cluster = on_hosts("AABB")
    for shape, names, slots, at in (
        ((2, 2), (), (), (0, 1, 2, 3)),
        ((2, 2), ("tp", "pp"), (), (0, 2, 1, 3)),
        ((2, 2), ("pp", "tp"), (), (0, 1, 2, 3)),
        ((1, 2, 2), ("dp", "tp", "pp"), (), (0, 2, 1, 3)),
        ((2, 2), ("dp", "x"), (), (0, 1, 2, 3)),
        ((2, 2), ("x", "dp"), (), (0, 2, 1, 3)),
        ((2, 1, 2), ("pp", "dp", "tp"), (), (0, 1, 2, 3)),
        ((2, 2), ("tp", "pp"), range(4), (0, 1, 2, 3)),
        ((2,), (), [3, 1], (3, 1)),
    ):
        mesh = td.Mesh(cluster, shape, names, slots=slots)
        assert (mesh.at, mesh.hosts) == (at, tuple("AABB"[slot] for slot in at))
    assert td.Mesh(on_hosts("AAAA"), (2, 2), ("tp", "pp")).at == (0, 1, 2, 3)


@pytest.mark.parametrize("algorithm", sorted({*td.algorithms} - {"local"}))
def test_a_product_in_any_slots_is_the_same_and_moves_what_was_predicted(on_hosts, algorithm):
    cluster, made = on_hosts("AABB"), []
    a, b = RNG.standard_normal((24, 36)), RNG.standard_normal((36, 28))
    for slots in (range(4), (2, 0, 3, 1)):
        mesh = td.Mesh(cluster, (2, 2), slots=slots)
        A, B = (td.distribute(x, mesh, GRID) for x in (a, b))
        C = td.matmul(A, B, algorithm=algorithm)
        assert C.traffic.predicted == C.traffic.measured
        assert C.traffic.predicted.hosts == C.traffic.measured.hosts == tuple("AABB")
        between = C.traffic.measured.between_hosts
        assert between == C.traffic.predicted.between_hosts > 0
        assert C.mesh.at == tuple(slots)
        assert len(C.memory.measured.per_place) == 4
        made.append(td.to_numpy(C))
    np.testing.assert_array_equal(*made)
    np.testing.assert_allclose(made[0], a @ b, atol=1e-12)


def test_arrays_in_other_slots_are_moved_and_taken_from_dask(on_hosts):
    cluster, a = on_hosts("AABB"), RNG.standard_normal((9, 14))
    mesh = td.Mesh(cluster, (3,), slots=(3, 1, 2))
    A = td.distribute(a, mesh, [Shard(0)])
    for old, new in permutations((Shard(0), Shard(1), Replicate()), 2):
        moved = td.redistribute(td.redistribute(A, [old]), [new])
        assert moved.traffic.predicted == moved.traffic.measured
        between = moved.traffic.measured.between_hosts
        assert between == moved.traffic.predicted.between_hosts
        assert 0 < between < moved.traffic.measured.total or old == Replicate()
        np.testing.assert_array_equal(td.to_numpy(moved), a)
    X = td.from_dask(da.from_array(a, chunks=4), mesh, [Shard(0)])
    np.testing.assert_array_equal(td.to_numpy(X), a)
    with pytest.raises(PlacementError, match="one slot"):
        A @ td.distribute(a.T, td.Mesh(cluster, (3,)), [Shard(0)])


def test_a_mesh_its_arrays_and_rank_functions_have_its_names(cluster):
    mesh = td.Mesh(cluster, (2, 2), names=("dp", "tp"))
    assert (repr(mesh), repr(td.Mesh(cluster, (2, 2)))) == ("Mesh((dp=2, tp=2))", "Mesh((2, 2))")
    assert td.Mesh(cluster, 4, names="tp").names == ("tp",)
    assert td.Mesh(cluster, (2, 2)) != mesh == td.Mesh(cluster, (2, 2), ["dp", "tp"])
    a = td.distribute(np.ones((4, 4)), mesh, GRID)
    c = a @ a
    assert repr(c) == "ShardedArray(4x4 float64, mesh (dp=2, tp=2), Shard(0), Shard(1))"
    assert "<td>(dp=1, tp=0)</td><td>2:4 x 0:2</td>" in c._repr_html_()
    assert c.mesh == a.T.mesh == td.redistribute(a, (Shard(1), Replicate())).mesh == mesh

    def members(rank):
        return rank.group("tp").members, rank.group("dp").members, rank.group(("dp", "tp")).size

    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    found = td.run_ranks(members, mesh).results
    assert found == [(rows[i], columns[j], 4) for i in range(2) for j in range(2)]


def test_meshes_that_do_not_exist(cluster):
    named, slots = "takes 2 different names of its axes", r"each of the mesh's 2 ranks, from 0 to 3"
    for shape, options, message in (
        ((3, 3), {}, r"9 ranks, the cluster has 4 slots.*start_cluster\(workers=9\)"),
        *((shape, {}, "whole numbers of 1 or more") for shape in ((0,), (), (2.0,), (True, 2))),
        *(((2, 2), {"names": names}, named) for names in (("tp", "tp"), ("tp",), "dp", ("dp", 1))),
        *(((2,), {"slots": at}, slots) for at in ((0,), (0, 0), (0, 4), (0, -1), (0, 1.5))),
    ):
        with pytest.raises(PlacementError, match=message):
            td.Mesh(cluster, shape, **options)
    assert td.Mesh(cluster, 3).shape == (3,)
    with pytest.raises(TypeError, match="work needs a cluster, got NoneType"):
        td.Mesh(None, (2,))
