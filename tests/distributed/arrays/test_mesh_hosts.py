"""Meshes on several hosts: which slots ranks have, and what moves between hosts.

Hosts are said to be several here; tests/distributed/connecting has some that are.
"""

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import PlacementError

pytestmark = pytest.mark.cluster
RNG = np.random.default_rng(0)
GRID = (td.Shard(0), td.Shard(1))


@pytest.fixture
def on_hosts(cluster, monkeypatch):
    """The session's four workers, told that they are on these hosts."""

    def told(hosts):
        monkeypatch.setattr(cluster, "hosts", tuple(hosts))
        return cluster

    return told


def test_names_say_which_axis_is_within_hosts(on_hosts):
    cluster = on_hosts("AABB")
    assert td.Mesh(cluster, (2, 2)).at == (0, 1, 2, 3)
    assert td.Mesh(cluster, (2, 2), ("tp", "pp")).at == (0, 2, 1, 3)
    assert td.Mesh(cluster, (2, 2), ("pp", "tp")).at == (0, 1, 2, 3)
    named = td.Mesh(cluster, (1, 2, 2), ("dp", "tp", "pp"))
    assert named.at == (0, 2, 1, 3)
    assert named.hosts == ("A", "B", "A", "B")
    assert td.Mesh(on_hosts("ABBB"), (3,)).at == (1, 2, 3)


def test_whoever_says_the_slots_has_them(on_hosts):
    cluster = on_hosts("AABB")
    assert td.Mesh(cluster, (2, 2), ("tp", "pp"), slots=range(4)).at == (0, 1, 2, 3)
    assert td.Mesh(cluster, (2,), slots=[3, 1]).at == (3, 1)
    for wrong in ((0,), (0, 0), (0, 4), (0, -1), (0, 1.5)):
        with pytest.raises(PlacementError, match=r"for each of the mesh's 2 ranks, from 0 to 3"):
            td.Mesh(cluster, (2,), slots=wrong)


@pytest.mark.parametrize("algorithm", sorted(td.algorithms))
def test_a_product_in_any_slots_is_the_same_and_moves_what_was_predicted(on_hosts, algorithm):
    cluster, made = on_hosts("AABB"), []
    a, b = RNG.standard_normal((24, 36)), RNG.standard_normal((36, 28))
    for slots in (range(4), (2, 0, 3, 1)):
        mesh = td.Mesh(cluster, (2, 2), slots=slots)
        A, B = (td.distribute(x, mesh, GRID) for x in (a, b))
        try:
            C = td.matmul(A, B, algorithm=algorithm)
        except PlacementError:  # local, which moves nothing
            assert algorithm == "local"
            return
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
    da = pytest.importorskip("dask.array")
    cluster, a = on_hosts("AABB"), RNG.standard_normal((9, 14))
    mesh = td.Mesh(cluster, (3,), slots=(3, 1, 2))
    A = td.distribute(a, mesh, [td.Shard(0)])
    for placement in (td.Shard(1), td.Replicate()):
        moved = td.redistribute(A, [placement])
        assert moved.traffic.predicted == moved.traffic.measured
        between = moved.traffic.measured.between_hosts
        assert between == moved.traffic.predicted.between_hosts
        assert 0 < between < moved.traffic.measured.total
        np.testing.assert_array_equal(td.to_numpy(moved), a)
    X = td.from_dask(da.from_array(a, chunks=4), mesh, [td.Shard(0)])
    np.testing.assert_array_equal(td.to_numpy(X), a)
    other = td.distribute(a.T, td.Mesh(cluster, (3,)), [td.Shard(0)])
    with pytest.raises(PlacementError, match=r"one slot, .*\(3, 1, 2\) and \(2, 3, 0\)|one slot"):
        A @ other


def test_schedules_and_rank_functions_say_what_went_between_hosts(on_hosts):
    cluster = on_hosts("AABB")
    schedule = td.schedule("1f1b", 4, 4)
    run = td.run_schedule(schedule, forward=0.001, backward=0.001, cluster=cluster)
    assert run.traffic.predicted == run.traffic.measured
    assert run.traffic.measured.between_hosts == run.traffic.predicted.between_hosts > 0
    assert "between 2 hosts" in repr(run)

    def ring(rank):
        return rank.group().all_gather(np.full(4, float(rank.index)), algorithm="ring")

    ranks = td.run_ranks(ring, td.Mesh(cluster, (4,), slots=(0, 2, 1, 3)))
    plain = td.run_ranks(ring, td.Mesh(cluster, (4,)))
    for there, here in zip(ranks.results, plain.results, strict=True):
        np.testing.assert_array_equal(there, here)
    assert ranks.traffic == plain.traffic
    assert ranks.traffic.between_hosts > plain.traffic.between_hosts > 0
    assert "between 2 hosts" in repr(ranks)
