"""A layer that ranks call is a program: what it keeps, and ranks that call different ones.

Holds `tiledask.distributed.tensor.run_layer` and `tiledask.plan.program.making.layer`.
"""

import pickle

import numpy as np
import pytest

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import CollectiveError

X, W = np.arange(12.0).reshape(3, 4), np.arange(24.0).reshape(4, 6)


def test_what_is_kept_serves_twice_and_travels_and_weights_are_those_of_the_gradient():
    def program(rank):
        group, dy = rank.group(), np.ones((3, 6))
        w = T.shard(group, W, 0)
        _, kept = T.row_linear(group, T.shard(group, X, 1), w)
        there = pickle.loads(pickle.dumps(kept))
        group.bound.clear()
        found = [T.row_linear_grad(group, T.replicate(dy), k, w) for k in (kept, there, kept)]
        for dx, dw, db in found:
            assert db is None
            assert (dx.local == (dy @ W.T)[:, 2 * rank.index :][:, :2]).all()
            assert (dw.local == (X.T @ dy)[2 * rank.index :][:2]).all()
        twice = T.row_linear_grad(group, T.replicate(dy), kept, w.like(2 * w.local))[0]
        return (twice.local == 2 * found[0][0].local).all()

    assert all(run_threads(program, 2).results)


def test_ranks_that_call_different_layers_are_told():
    def program(rank):
        group = rank.group()
        x = T.shard(group, X[: 3 - rank.index], 1)
        T.row_linear(group, x, T.shard(group, W, 0))

    with pytest.raises(CollectiveError, match="shape"):
        run_threads(program, 2)
