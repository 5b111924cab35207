"""Linear layers over ranks: as on one device, to the last digits; collectives as planned; what is
kept.
"""

import pickle

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import closed_layers as plan
from oracles.closed_layers import Stream
from oracles.gradients import draw
from oracles.tensor_cases import LIES, RANKS, B, S, check, spread

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.plan.products.placement import Replicate, Shard, Shards
from tiledask.tile import layers as tile


def reference(inputs, outputs, tokens=S):
    x, w, b, dy = draw((B, tokens, inputs), (inputs, outputs), (outputs,), (B, tokens, outputs))
    y, kept = tile.linear(x, w, b)
    made = y, *tile.linear_grad(dy, kept, w, b)
    return (x, w, b, dy), dict(zip(("y", "dx", "dw", "db"), made, strict=True))


def by_columns(group, operands, sequence=False, regather=False):
    x, w, b, dy = operands
    w, b = T.shard(group, w, 1), T.shard(group, b, 0)
    y, kept = T.column_linear(group, spread(group, x, sequence), w, b, regather=regather)
    dx, dw, db = T.column_linear_grad(group, T.shard(group, dy, -1), kept, w, b)
    assert (dw.shards, db.shards) == (w.shards, b.shards)
    assert dx.dim == (1 if sequence else None)
    return {"y": y, "dx": dx, "dw": dw, "db": db}


def by_rows(group, operands, sequence=False):
    x, w, b, dy = operands
    w, b = T.shard(group, w, 0), T.replicate(b)
    to = Shard(1) if sequence else Replicate()
    y, kept = T.row_linear(group, T.shard(group, x, -1), w, b, to=to)
    dx, dw, db = T.row_linear_grad(group, spread(group, dy, sequence), kept, w, b)
    assert (y.placement, dw.placement, db.placement) == (to, Shard(0), Replicate())
    return {"y": y, "dx": dx, "dw": dw, "db": db}


def check_linear(t, inputs, outputs, sequence, regather, tokens=S):
    operands, expected = reference(inputs, outputs, tokens)
    planned = plan.column_linear(Stream(B, tokens, inputs, t, sequence, regather))
    check(t, lambda g: by_columns(g, operands, sequence, regather), expected, planned)
    planned = plan.row_linear(Stream(B, tokens, outputs, t, sequence))
    check(t, lambda g: by_rows(g, operands, sequence), expected, planned)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RANKS), *[st.integers(1, 16)] * 3, st.sampled_from(LIES))
@example(4, 8, 16, 7, LIES[2])  # all even but the tokens
@example(8, 3, 2, 1, LIES[1])  # fewer than ranks
def test_any_sizes_on_any_ranks(t, inputs, outputs, tokens, lies):
    check_linear(t, inputs, outputs, *lies, tokens)


def test_uneven_cuts_of_ones_own():
    """Tokens 5, 0, 2 and columns 1, 4, 2 on three ranks."""
    tokens = Shards(7, (((0, 5),), (), ((5, 7),)))
    columns = Shards(7, (((0, 1),), ((1, 5),), ((5, 7),)))
    (x, w, b, dy), expected = reference(5, 7)

    def program(group):
        mine = T.shard(group, w, 1, columns), T.shard(group, b, 0, columns)
        y, kept = T.column_linear(group, T.shard(group, x, 1, tokens), *mine)
        dx, dw, db = T.column_linear_grad(group, T.shard(group, dy, -1, columns), kept, *mine)
        assert dx.local.shape[1] == (5, 0, 2)[group.rank]
        return {"y": y, "dx": dx, "dw": dw, "db": db}

    check(3, program, expected, None)


def test_g_adds_up_and_gathered_joins():
    ys, z = draw(*[(3, 5)] * 4, seed=1), draw((3, 5), seed=2)[0]

    def program(rank):
        group = rank.group()
        total = T.g(group, T.partial(ys[rank.index]))
        return total.local, T.gathered(group, T.shard(group, z, 1)).local

    for total, joined in run_threads(program, 4).results:
        np.testing.assert_allclose(total, sum(ys), rtol=1e-13)
        np.testing.assert_array_equal(joined, z)


XS, WS = np.arange(12.0).reshape(3, 4), np.arange(24.0).reshape(4, 6)


def test_what_is_kept_serves_twice_and_travels_and_weights_are_those_of_the_gradient():
    def program(rank):
        group, dy = rank.group(), np.ones((3, 6))
        w = T.shard(group, WS, 0)
        _, kept = T.row_linear(group, T.shard(group, XS, 1), w)
        there = pickle.loads(pickle.dumps(kept))
        group.bound.clear()
        found = [T.row_linear_grad(group, T.replicate(dy), k, w) for k in (kept, there, kept)]
        for dx, dw, db in found:
            assert db is None
            assert (dx.local == (dy @ WS.T)[:, 2 * rank.index :][:, :2]).all()
            assert (dw.local == (XS.T @ dy)[2 * rank.index :][:2]).all()
        twice = T.row_linear_grad(group, T.replicate(dy), kept, w.like(2 * w.local))[0]
        return (twice.local == 2 * found[0][0].local).all()

    assert all(run_threads(program, 2).results)
