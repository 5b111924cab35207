"""Names of a mesh's axes, and what PyTorch's DTensor can be asked: shapes, bytes, values, errors.

Holds `tiledask.distributed.arrays.mesh` beside test_array.py.
"""

from math import prod

import numpy as np
import pytest

import tiledask as td
from tiledask import Partial, Replicate, Shard
from tiledask.errors import ConfigError, PlacementError

pytestmark = pytest.mark.cluster

AVG = Partial("avg")


@pytest.fixture(scope="module")
def mesh(cluster):
    return td.Mesh(cluster, (2, 2), names=("dp", "tp"))


def part(index, at):
    """Another on each rank."""
    rows, columns = np.ogrid[index]
    return (rows * 10 + columns + 1) * (1 + at[0] + 4 * at[1])


def whole(shape, factor):
    return (np.add.outer(np.arange(shape[0]) * 10, np.arange(shape[1])) + 1.0) * factor


# -- names -----------------------------------------------------------------------------------------


def test_axes_are_asked_by_name_and_number(cluster, mesh):
    assert (mesh.size("dp"), mesh.size("tp"), mesh.size(1), mesh.size(), mesh.ndim) == (
        2,
        2,
        2,
        4,
        2,
    )
    wide = td.Mesh(cluster, (1, 4), ("dp", "tp"))
    assert (wide.size("tp"), wide["tp"].size(), wide["tp"].shape, wide["tp"].ndim) == (
        4,
        4,
        (4,),
        1,
    )
    assert wide["tp"].size("tp") == wide["tp"].size(0) == 4
    assert (repr(mesh), repr(mesh["tp"])) == ("Mesh((dp=2, tp=2))", "Mesh((dp=2, tp=2))['tp']")
    assert repr(td.Mesh(cluster, (2, 2))) == "Mesh((2, 2))"
    assert mesh["dp", "tp"] is mesh
    assert td.Mesh(cluster, 4, names="tp").names == ("tp",)
    assert td.Mesh(cluster, (2, 2)) != mesh == td.Mesh(cluster, (2, 2), ["dp", "tp"])


def test_a_submesh_places_along_its_axes_and_replicates_along_the_others(mesh):
    x = np.arange(35.0).reshape(7, 5)
    along = td.distribute(x, mesh["tp"], Shard(1))
    same = td.distribute(x, mesh, (Replicate(), Shard(1)))
    assert (along.tiling, along.mesh) == (same.tiling, mesh)
    for rank in range(4):
        np.testing.assert_array_equal(along.to_local(rank), same.to_local(rank))
    rows = td.from_function(lambda index: x[index], x.shape, "f8", mesh["dp"], (Shard(0),))
    assert rows.placements == (Shard(0), Replicate())
    np.testing.assert_array_equal(rows.full_tensor(), x)
    np.testing.assert_array_equal(
        td.to_numpy(td.from_dask(rows.to_dask(), mesh["dp"], Shard(1))), x
    )


def test_arrays_and_products_say_the_names(mesh):
    a = td.distribute(np.ones((4, 4)), mesh, (Shard(0), Shard(1)))
    c = a @ a
    assert c.mesh == mesh
    assert repr(c) == "ShardedArray(4x4 float64, mesh (dp=2, tp=2), Shard(0), Shard(1))"
    assert "<td>(dp=1, tp=0)</td>" in c._repr_html_()
    assert a.T.mesh == a.redistribute((Shard(1), Replicate())).mesh == mesh


def test_rank_functions_have_groups_by_name(mesh):
    def members(rank):
        return rank.group("tp").members, rank.group("dp").members, rank.group(("dp", "tp")).size

    found = td.run_ranks(members, mesh).results
    assert found == [
        ((0, 1), (0, 2), 4),
        ((0, 1), (1, 3), 4),
        ((2, 3), (0, 2), 4),
        ((2, 3), (1, 3), 4),
    ]
    with pytest.raises(ConfigError, match=r"axes 0\.\.1, 'dp', 'tp'; got 'pp'"):
        td.run_ranks(lambda rank: rank.group("pp"), mesh)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("tp", "tp"),
            r"\(2, 2\) takes 2 different names of its axes, or none; got \('tp', 'tp'\)",
        ),
        (("tp",), "takes 2 different names"),
        ("dp", "takes 2 different names"),
        (("dp", "tp", "pp"), "takes 2 different names"),
        (("dp", ""), "takes 2 different names"),
        (("dp", 1), "takes 2 different names"),
    ],
)
def test_names_that_do_not_go(cluster, names, message):
    with pytest.raises(PlacementError, match=message):
        td.Mesh(cluster, (2, 2), names=names)


def test_axes_that_are_not_there(cluster, mesh):
    bare, x = td.Mesh(cluster, (2, 2)), np.ones((4, 4))
    for call, message in (
        (lambda: mesh["pp"], "the mesh has no axis 'pp', it has axes 'dp', 'tp'"),
        (lambda: mesh.size(2), "no axis 2, it has axes 'dp', 'tp'"),
        (lambda: mesh["tp"].size("dp"), "no axis 'dp', it has axes 'tp'"),
        (lambda: mesh["tp", "dp"], r"in the order of the mesh, \('dp', 'tp'\); got \('tp', 'dp'\)"),
        (lambda: mesh["tp", "tp"], "different axes"),
        (lambda: mesh[()], "different axes"),
        (lambda: bare["tp"], r"axes 0\.\.1 without names; td\.Mesh\(cluster, \(2, 2\), names="),
        (lambda: bare.size(True), "no axis True"),
        (
            lambda: td.distribute(x, mesh["tp"], (Shard(0), Shard(1))),
            "one placement for each of its 1",
        ),
    ):
        with pytest.raises(PlacementError, match=message):
            call()
    with pytest.raises(ConfigError, match=r"got Submesh; .*rank\.group\(axis\) in the function"):
        td.run_ranks(len, mesh["tp"])
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=8, layers=1, heads=1, sequence=8)
    other = td.Mesh(cluster, (2, 1, 1), names=("pp", "dp", "tp"))
    with pytest.raises(ConfigError, match=r"\(dp, tp, pp\) in this order, got one of pp, dp, tp"):
        td.train(model, text, other, steps=1, batch=2)


# -- methods ---------------------------------------------------------------------------------------


def test_redistribute_to_local_and_full_tensor_are_what_the_functions_give(mesh):
    x = np.random.default_rng(0).standard_normal((7, 5))
    a = td.distribute(x, mesh, (Shard(0), Shard(1)))
    b = a.redistribute((Replicate(), Shard(0)))
    assert (b.made_by, b.placements) == ("all_gather+all_to_all", (Replicate(), Shard(0)))
    assert b.traffic.predicted == b.traffic.measured
    np.testing.assert_array_equal(b.full_tensor(), x)
    for rank, at in enumerate(a.tiling.coordinates()):
        rows, columns = (slice(*ends) for ends in a.tiling.region(at))
        block = a.to_local(rank)
        np.testing.assert_array_equal(block, x[rows, columns])
        block[...] = 7  # a copy, to write into
    np.testing.assert_array_equal(a.full_tensor(), x)
    for rank in (4, -1, 1.0, True, (0, 1)):
        with pytest.raises(
            PlacementError, match=r"number of a rank, 0 to 3 on a mesh \(dp=2, tp=2\)"
        ):
            a.to_local(rank)


def test_to_local_gives_a_partial_sum_as_it_is(mesh):
    x = np.arange(16.0).reshape(4, 4)
    a = td.distribute(x, mesh["tp"], Shard(1))
    c = td.matmul(a, td.distribute(x, mesh["tp"], Shard(0)), algorithm="local")
    assert c.placements == (Replicate(), Partial())
    np.testing.assert_allclose(c.to_local(0), x[:, :2] @ x[:2])
    np.testing.assert_allclose(c.to_local(0) + c.to_local(1), x @ x)


# -- the mean --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("placements", "factor"),
    [
        ((AVG, Replicate()), None),
        ((AVG, AVG), (1 + 2 + 5 + 6) / 4),
        ((AVG, Partial()), (1 + 2 + 5 + 6) / 2),
        ((Partial(), Partial()), 1 + 2 + 5 + 6),
        ((Shard(0), AVG), None),
    ],
)
def test_the_whole_is_the_mean_over_the_ranks(mesh, placements, factor, dtype):
    """The same for all who add up: here, by a reduce_scatter, by an all_reduce, axis by axis."""
    shape = (4, 4)
    made = part if factor else (lambda index, at: part(index, (0, 1)) * (1 + 2 * at[axis]))
    axis = next(n for n, p in enumerate(placements) if isinstance(p, Partial))
    a = td.from_function(made, shape, dtype, mesh, placements)
    wanted = whole(shape, factor or 5 * (1 + 3) / 2)
    loose = {"rtol": 2e-2 if dtype == "bfloat16" else 2e-3 if dtype == "float16" else 1e-6}
    found = a.full_tensor()
    assert found.dtype == a.dtype
    np.testing.assert_allclose(found.astype("f8"), wanted, **loose)
    for target in (
        [Replicate()] * 2,
        [Shard(1) if isinstance(p, Partial) else p for p in placements],
        [p if n else Replicate() for n, p in enumerate(placements)],
    ):
        b = a.redistribute(target)
        assert b.traffic.predicted == b.traffic.measured
        assert b.placements == tuple(target)
        np.testing.assert_allclose(b.full_tensor().astype("f8"), wanted, **loose)


def test_a_mean_moves_the_bytes_of_a_sum(mesh):
    both = [td.from_function(part, (6, 4), "f8", mesh["tp"], p) for p in (Partial(), AVG)]
    for target in ((Replicate(), Replicate()), (Replicate(), Shard(0)), (Shard(1), Shard(0))):
        total, mean = (a.redistribute(target) for a in both)
        assert total.traffic.measured == mean.traffic.measured == mean.traffic.predicted
        assert total.made_by == mean.made_by
        np.testing.assert_allclose(total.full_tensor(), 2 * mean.full_tensor())


def test_products_of_a_mean_are_a_mean_and_explained_as_those_of_a_sum(mesh):
    b = td.distribute(np.diag([1.0, 2, 3, 4]), mesh, (Replicate(), Replicate()))
    a, summed = (td.from_function(part, (6, 4), "f8", mesh["tp"], p) for p in (AVG, Partial()))
    c = a @ b
    assert c.placements == (Replicate(), AVG)
    np.testing.assert_allclose(c.full_tensor(), whole((6, 4), 3) * [1, 2, 3, 4])
    one, other = td.explain(a, b), td.explain(summed, b)
    for name in td.algorithms:
        assert (one[name].total, one[name].peak) == (other[name].total, other[name].peak)
    placed = [td.from_function(part, (6, 4), "f8", mesh, (Shard(1), p)) for p in (AVG, Partial())]
    mean, total = (td.matmul(each, b, algorithm="gather") for each in placed)
    assert mean.placements[1] == AVG
    assert mean.traffic.measured == total.traffic.measured == mean.traffic.predicted
    assert mean.traffic.measured.total > 0
    np.testing.assert_allclose(2 * mean.full_tensor(), total.full_tensor())
    with pytest.raises(PlacementError, match=r"A is Partial\('avg'\) along mesh axis 1, and summa"):
        td.matmul(a, b, algorithm="summa")


def test_what_is_whole_everywhere_is_the_mean_of_itself(mesh):
    x = np.random.default_rng(1).standard_normal((5, 4))
    for a in (
        td.distribute(x, mesh["tp"], AVG),
        td.distribute(x, mesh, (Replicate(), Replicate())).redistribute((Replicate(), AVG)),
        td.distribute(x, mesh["tp"], Shard(0)).redistribute((Replicate(), AVG)),
    ):
        assert a.placements == (Replicate(), AVG)
        assert (
            repr(a) == "ShardedArray(5x4 float64, mesh (dp=2, tp=2), Replicate(), Partial('avg'))"
        )
        np.testing.assert_array_equal(a.full_tensor(), x)
        assert prod(a.to_local(3).shape) == 20
    moved = td.distribute(x, mesh["tp"], Shard(0)).redistribute((Replicate(), AVG))
    assert moved.made_by == "all_gather"


def test_means_that_are_none(mesh):
    x = np.ones((4, 4))
    mean = td.distribute(x, mesh["tp"], AVG)
    total = td.from_function(part, (4, 4), "f8", mesh["tp"], Partial())
    for call, message in (
        (lambda: Partial("max"), "takes 'sum' or 'avg', got 'max': only of sums and means"),
        (lambda: Partial(2), "got 2"),
        (
            lambda: mean.redistribute((Replicate(), Partial())),
            r"from Partial\('avg'\) to Partial\(\)",
        ),
        (lambda: total.redistribute((Replicate(), AVG)), r"from Partial\(\) to Partial\('avg'\)"),
        (lambda: td.distribute(x.astype(int), mesh["tp"], AVG), "an array of int64 is no mean"),
        (lambda: mean.to_dask(), "has partial sums on its ranks"),
    ):
        with pytest.raises(PlacementError, match=message):
            call()
    with pytest.raises(PlacementError, match="layers add up; divide it, and say partial"):
        td.run_ranks(mean_into_a_layer, mesh)


def mean_into_a_layer(rank):
    y = td.tensor.Placed.of(np.ones(2), Partial("avg"), (2,))
    return td.tensor.g(rank.group("tp"), y)
