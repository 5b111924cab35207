"""Meshes: names of their axes, which slots ranks have, and what moves between hosts.

Hosts are said to be several here; tests/distributed/connecting has some that are.
"""

from itertools import permutations
from math import prod

import dask.array as da
import numpy as np
import pytest

import tiledask as td
from tiledask import Replicate, Shard
from tiledask.distributed.arrays.hosts import arranged, crossings, heaviest_first
from tiledask.errors import PlacementError

RNG = np.random.default_rng(0)
GRID = (Shard(0), Shard(1))
CASES = [("AABB", (1, 2, 2)), ("AAABBB", (1, 2, 3)), ("AAAB", (2, 2)), ("AABBCC", (3, 2))]
CASES += [("ABBBCC", (2, 2)), ("ABBACC", (3, 2)), ("AABBBA", (2, 3)), ("ABCABC", (2, 3))]
UNEVEN = [("AAAB", (1, 2, 2)), ("AABBCCCC", (2, 4, 1)), ("ABBBBCCC", (2, 2, 2)), ("AAABBBCC", (8,))]


def whole_groups(hosts, shape, axis, slots):
    """How many groups of ranks along ``axis`` are on one host each; counted one by one."""
    at = np.moveaxis(np.reshape(slots, shape), axis, -1).reshape(-1, shape[axis])
    return sum(len({hosts[slot] for slot in group}) == 1 for group in at.tolist())


@pytest.mark.parametrize(("hosts", "shape"), [*CASES, *UNEVEN])
def test_ranks_have_slots_of_their_own_and_no_more_groups_could_be_within_hosts(hosts, shape):
    """Nor do axes cross hosts oftener than with ranks in order."""
    for within in permutations(range(len(shape))):
        slots = arranged(hosts, shape, within)
        assert len({*slots}) == len(slots) == prod(shape)
        assert {*slots} <= {*range(len(hosts))}
        plain = crossings([hosts[s] for s in range(len(slots))], shape)
        here = crossings([hosts[s] for s in slots], shape)
        assert [here[axis] for axis in within] <= [plain[axis] for axis in within]
    if (hosts, shape) in CASES:  # few enough to try all
        within = heaviest_first(len(shape), ("dp", "tp", "pp")[: len(shape)])
        found = arranged(hosts, shape, within)
        every = permutations(range(len(hosts)), prod(shape))
        best = max(whole_groups(hosts, shape, within[0], slots) for slots in every)
        assert whole_groups(hosts, shape, within[0], found) == best


@pytest.fixture
def on_hosts(cluster, monkeypatch):
    """The session's four workers, told that they are on these hosts."""

    def told(hosts):
        monkeypatch.setattr(cluster, "hosts", tuple(hosts))
        return cluster

    return told


@pytest.mark.cluster
def test_names_say_which_axis_is_within_hosts_and_slots_what_they_say(on_hosts):
    cluster = on_hosts("AABB")
    for shape, names, slots, at in (
        ((2, 2), (), (), (0, 1, 2, 3)),
        ((2, 2), ("tp", "pp"), (), (0, 2, 1, 3)),
        ((2, 2), ("pp", "tp"), (), (0, 1, 2, 3)),
        ((1, 2, 2), ("dp", "tp", "pp"), (), (0, 2, 1, 3)),
        ((2, 2), ("tp", "pp"), range(4), (0, 1, 2, 3)),
        ((2,), (), [3, 1], (3, 1)),
    ):
        mesh = td.Mesh(cluster, shape, names, slots=slots)
        assert (mesh.at, mesh.hosts) == (at, tuple("AABB"[slot] for slot in at))
    assert td.Mesh(on_hosts("ABBB"), (3,)).at == (1, 2, 3)


@pytest.mark.cluster
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


@pytest.mark.cluster
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


@pytest.mark.cluster
def test_a_mesh_its_arrays_and_rank_functions_have_its_names(cluster):
    mesh = td.Mesh(cluster, (2, 2), names=("dp", "tp"))
    assert (repr(mesh), repr(td.Mesh(cluster, (2, 2)))) == ("Mesh((dp=2, tp=2))", "Mesh((2, 2))")
    assert td.Mesh(cluster, 4, names="tp").names == ("tp",)
    assert td.Mesh(cluster, (2, 2)) != mesh == td.Mesh(cluster, (2, 2), ["dp", "tp"])
    a = td.distribute(np.ones((4, 4)), mesh, GRID)
    c = a @ a
    assert repr(c) == "ShardedArray(4x4 float64, mesh (dp=2, tp=2), Shard(0), Shard(1))"
    assert "<td>(dp=1, tp=0)</td><td>2:4 x 0:2</td>" in c._repr_html_()
    assert c.mesh == a.T.mesh == a.redistribute((Shard(1), Replicate())).mesh == mesh

    def members(rank):
        return rank.group("tp").members, rank.group("dp").members, rank.group(("dp", "tp")).size

    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    found = td.run_ranks(members, mesh).results
    assert found == [(rows[i], columns[j], 4) for i in range(2) for j in range(2)]


@pytest.mark.cluster
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
    with pytest.raises(TypeError, match="a mesh is made of a cluster's slots, got NoneType"):
        td.Mesh(None, (2,))
