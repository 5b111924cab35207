"""Convolutions of arrays that say how they lie: every way, as one device does it, or refused.

Holds `tiledask.plan.collectives.expected`.
"""

import numpy as np
import pytest
from oracles import placed_convolution as C
from oracles.calls import assert_calls, assert_close
from oracles.gradients import draw

from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.tensor.placed import partial, replicate, shard
from tiledask.distributed.tensor.shards import whole_of
from tiledask.errors import PlacementError
from tiledask.plan.collectives import convolution as P
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.expected import all_reduced
from tiledask.plan.collectives.shards import Shards, even_shards
from tiledask.tile import layers as L

pytestmark = pytest.mark.usefixtures("one_thread")


def lay(group, x, dim, shards=None):
    return replicate(x) if dim is None else shard(group, x, dim, shards)


def conv_program(rank, x, w, b, dims, options):
    """(y, dx, dw, db) as they lie, with dy like y."""
    group, groups = rank.group(), options.get("groups", 1)
    x_dim, w_dim = dims
    rows = 0 if w_dim == 0 else None

    def cut(a, dim):
        shards = None
        if groups > 1 and dim is not None:  # whole groups
            shards = even_shards(groups, group.size).scaled(a.shape[dim] // groups)
        return lay(group, a, dim, shards)

    mine = cut(x, x_dim), cut(w, w_dim), cut(b, rows)
    y, kept = C.conv2d(group, *mine, **options)
    (dy,) = draw(y.shape, seed=9)
    dy = lay(group, dy, y.dim, y.shards)
    return y, *C.conv2d_grad(group, dy, kept, *mine[1:])


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize(("dims", "way"), C.WAYS.items())
def test_every_way_is_that_of_one_device(dims, way, ranks):
    groups = 4 if way == "by groups" else 1
    x, w, b = draw((5, 8, 11, 6), (8, 8 // groups, 3, 3), (8,))
    options = {"padding": 1, "stride": (1, 2), "groups": groups}
    y, kept = L.conv2d(x, w, b, **options)
    (dy,) = draw(y.shape, seed=9)
    expected = y, *L.conv2d_grad(dy, kept, w, b)
    done = run_threads(conv_program, ranks, x, w, b, dims, options)
    for i, whole in enumerate(expected):
        blocks = [result[i] for result in done.results]
        assert_close(whole_of(blocks), whole)
    y, dx, dw, db = done.results[0]
    assert (dx.dim, dw.dim) == dims
    assert db.dim == (0 if dims[1] == 0 else None)
    out = {
        "everywhere": None,
        "images": 0,
        "by output": 1,
        "by input": None,
        "by groups": 1,
        "in rows": 2,
    }
    assert y.dim == out[way]
    conv = P.Convolution(5, 8, 8, (11, 6), (3, 3), (1, 2), ((1, 1), (1, 1)), groups=groups)
    calls = {
        "everywhere": (),
        "by groups": (),
        "by output": P.by_output(conv, ranks, 8),
        "by input": P.by_input(conv, ranks, 8),
        "in rows": P.in_rows(conv, even(11, ranks), 8),
        "images": all_reduced("backward/dw db", conv.parameters, ranks, 8),
    }
    assert_calls(done.records, calls[way], ranks)


@pytest.mark.parametrize("dim", [None, 0, 1, 2])
@pytest.mark.parametrize("name", ["max", "avg"])
def test_pooling_lies_as_its_images(name, dim):
    (x,) = draw((5, 6, 11, 4))
    pool, grad = getattr(C, f"{name}_pool2d"), getattr(C, f"{name}_pool2d_grad")
    y, kept = getattr(L, f"{name}_pool2d")(x, 3, 2, 1)
    (dy,) = draw(y.shape, seed=9)
    dx = getattr(L, f"{name}_pool2d_grad")(dy, kept)

    def program(rank):
        group = rank.group()
        y, kept = pool(group, lay(group, x, dim), 3, 2, 1)
        return y, grad(group, lay(group, dy, y.dim, y.shards), kept)

    results = run_threads(program, 4).results
    assert_close(whole_of([r[0] for r in results]), y)
    assert_close(whole_of([r[1] for r in results]), dx)
    assert results[0][0].dim == results[0][1].dim == dim


def test_two_layers_and_a_pooling_know_each_others_rows():
    x, w, v = draw((2, 3, 13, 6), (4, 3, 3, 3), (2, 4, 2, 2))
    y = L.conv2d(L.max_pool2d(L.conv2d(x, w, padding=1)[0], 2)[0], v)[0]

    def program(rank):
        group = rank.group()
        h, _ = C.conv2d(group, shard(group, x, 2), replicate(w), padding=1)
        h, _ = C.max_pool2d(group, h, 2)
        return C.conv2d(group, h, replicate(v))[0]

    assert_close(whole_of(run_threads(program, 4).results), y)


REFUSED = [
    ((2, None), {"padding": 1, "halo": False}, "windows of 3 rows .*there are 0; use halo=True"),
    ((3, None), {"padding": 1}, r"x is Shard\(3\) of \[2, 4, 8, 8\] .*along \(none, none\)"),
    ((1, None), {}, r"x is Shard\(1\) .*shard it so"),
    ((None, 1), {}, r"w is Shard\(1\)"),
    ((2, 0), {}, "gather one of them"),
    ((None, 0), {"groups": 2}, "with groups=2: a rank has whole groups of both"),
    ((1, 0), {}, "with groups=1: channels of x meet the columns of w"),
]


@pytest.mark.parametrize(("dims", "options", "words"), REFUSED)
def test_what_would_be_wrong_is_refused(dims, options, words):
    x, w, b = draw((2, 4, 8, 8), (4, 4, 3, 3), (4,))
    with pytest.raises(PlacementError, match=words):
        run_threads(conv_program, 2, x, w, b, dims, options)


def test_other_refusals():
    x, w, b = draw((2, 4, 8, 8), (4, 4, 3, 3), (4,))

    def refused(words, program):
        with pytest.raises(PlacementError, match=words):
            run_threads(lambda rank: program(rank.group()), 2)

    other = Shards(4, (((0, 1),), ((1, 4),)))
    refused(
        "x must be Replicate or Shard, got Partial", lambda g: C.conv2d(g, partial(x), replicate(w))
    )
    refused("x with its placement, got ndarray", lambda g: C.conv2d(g, x, replicate(w)))
    refused("shard both alike", lambda g: C.conv2d(g, shard(g, x, 1), shard(g, w, 1, other)))
    refused(
        "a rank has whole groups: of 4 with 4 channels of x that is 4 as 0..2",
        lambda g: C.conv2d(g, shard(g, x, 1, other), shard(g, w[:, :1], 0, other), groups=4),
    )
    refused(
        "b is placed as the rows of w",
        lambda g: C.conv2d(g, replicate(x), shard(g, w, 0), replicate(b)),
    )
    refused("windows cross its columns", lambda g: C.max_pool2d(g, shard(g, x, 3), 2))

    def other_gradient(g):
        y, kept = C.conv2d(g, shard(g, x, 2), replicate(w), padding=1)
        return C.conv2d_grad(g, shard(g, np.ones(y.shape), 1), kept, replicate(w))

    refused("dy and y must have the same placement", other_gradient)


def test_an_x_that_is_taken_for_all_of_it_is_noticed(monkeypatch):
    """Planted: DTensor's fault, a convolution that takes a rank's rows for the image."""
    monkeypatch.setitem(C.WAYS, (2, None), "everywhere")
    with pytest.raises((AssertionError, PlacementError)):
        test_every_way_is_that_of_one_device((2, None), "in rows", 4)
