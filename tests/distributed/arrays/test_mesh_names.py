"""Names of a mesh's axes: sizes, groups of rank functions, what arrays say, what is refused.

Holds `tiledask.distributed.arrays.mesh` beside test_array.py.
"""

import numpy as np
import pytest

import tiledask as td
from tiledask import Replicate, Shard
from tiledask.errors import ConfigError, PlacementError

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def mesh(cluster):
    return td.Mesh(cluster, (2, 2), names=("dp", "tp"))


def test_a_mesh_says_its_names(cluster, mesh):
    assert (repr(mesh), repr(td.Mesh(cluster, (2, 2)))) == ("Mesh((dp=2, tp=2))", "Mesh((2, 2))")
    assert td.Mesh(cluster, 4, names="tp").names == ("tp",)
    assert td.Mesh(cluster, (2, 2)) != mesh == td.Mesh(cluster, (2, 2), ["dp", "tp"])


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


NAMES = [("tp", "tp"), ("tp",), "dp", ("dp", "tp", "pp"), ("dp", ""), ("dp", 1)]


def test_names_that_do_not_go(cluster):
    for names in NAMES:
        with pytest.raises(PlacementError, match="takes 2 different names of its axes, or none"):
            td.Mesh(cluster, (2, 2), names=names)
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=8, layers=1, heads=1, sequence=8)
    other = td.Mesh(cluster, (2, 1, 1), names=("pp", "dp", "tp"))
    with pytest.raises(ConfigError, match=r"\(dp, tp, pp\) in this order, got one of pp, dp, tp"):
        td.train(model, text, other, steps=1, batch=2)
