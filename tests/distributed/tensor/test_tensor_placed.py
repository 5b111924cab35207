"""Placed blocks: what would be silently wrong raises, with words that help.

Holds `tiledask.distributed.tensor.elementwise` and `tiledask.distributed.tensor.placed`.
"""

import re

import numpy as np
import pytest
from oracles.gradients import draw

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import Shards, even_shards, side_by_side
from tiledask.plan.products.placement import Partial, Shard
from tiledask.tile import layers as tile

T4 = 4


def refusal(program, t=T4, error=PlacementError):
    """The words with which ``program(group)`` is refused on every rank, before any collective."""

    def one(rank):
        with pytest.raises(error) as caught:
            program(rank.group())
        return str(caught.value)

    done = run_threads(one, t)
    assert not len(done.records)
    return done.results[0]


# -- what would be silently wrong ------------------------------------------------------------------

X = np.arange(24.0).reshape(2, 3, 4)
W = np.ones((4, 8))


def sharded(group, x, dim):
    return T.shard(group, x, dim)


REFUSED = {
    "gelu of partial sums": (
        lambda g: T.activate(T.partial(X), "gelu"),
        "gelu of a sum is not the sum of gelus",
    ),
    "relu of partial sums": (
        lambda g: T.activate(T.partial(X), "relu"),
        "relu of a sum is not the sum of relus",
    ),
    "swiglu of partial sums": (
        lambda g: T.swiglu(T.replicate(X), T.partial(X)),
        "a product of sums",
    ),
    "norm of partial sums": (
        lambda g: T.rms_norm(g, T.partial(X), T.replicate(np.ones(4))),
        "the norm of a sum",
    ),
    "norm of a part of the columns": (
        lambda g: T.layer_norm(g, sharded(g, X, -1), T.replicate(np.ones(4))),
        "the norm of its own part|that of its own part",
    ),
    "softmax of partial sums": (lambda g: T.softmax(T.partial(X)), "sum it first, by g"),
    "softmax of a part of the classes": (
        lambda g: T.softmax(sharded(g, X, -1)),
        "each rank would divide by its own part",
    ),
    "a bias on partial sums": (
        lambda g: T.add_bias(g, T.partial(X), T.replicate(np.ones(4))),
        "in the sum 4 times",
    ),
    "a residual on partial sums": (
        lambda g: T.add(T.replicate(X), T.partial(X)),
        "must have the same placement",
    ),
    "a sum of what is whole": (lambda g: T.g(g, T.replicate(X)), "4 times too large"),
    "a sum of parts": (lambda g: T.g(g, sharded(g, X, 1)), "a shard, not a partial sum"),
    "a scattered sum of what is whole": (
        lambda g: T.scattered(g, T.replicate(X), 1),
        "4 times too large",
    ),
    "a gather of what is whole": (lambda g: T.gathered(g, T.replicate(X)), "only shards are"),
    "rows of w and a whole x": (
        lambda g: T.row_linear(g, T.replicate(X), sharded(g, W, 0)),
        "every rank has its own rows of w",
    ),
    "columns of w and columns of x": (
        lambda g: T.column_linear(g, sharded(g, X, -1), sharded(g, W, 1)),
        "use row_linear",
    ),
    "columns of w and partial sums": (
        lambda g: T.column_linear(g, T.partial(X), sharded(g, W, 1)),
        "sum it first",
    ),
    "the rows of w as its columns": (
        lambda g: T.column_linear(g, T.replicate(X), sharded(g, W, 0)),
        "row_linear's",
    ),
    "a whole w": (
        lambda g: T.column_linear(g, T.replicate(X), T.replicate(W)),
        r"shard\(group, w, 1\)",
    ),
    "a sharded bias on rows": (
        lambda g: T.row_linear(g, sharded(g, X, -1), sharded(g, W, 0), sharded(g, np.ones(8), 0)),
        "added once, after the sum",
    ),
    "rows of w to what is not summed": (
        lambda g: T.row_linear(g, sharded(g, X, -1), sharded(g, W, 0), to=Partial()),
        "say to=Replicate",
    ),
    "a table's rows to what is not summed": (
        lambda g: T.embedding(g, np.zeros((2, 3), int), sharded(g, W, 0), to=Partial()),
        "say to=Replicate",
    ),
    "gate and up in one, and a whole w_down": (
        lambda g: T.swiglu_mlp(
            g, T.replicate(X), {"w_gate_up": sharded(g, W, 1), "w_down": T.replicate(W.T)}
        ),
        "is not sharded",
    ),
    "a shard that does not say of what": (
        lambda g: T.column_linear(g, T.replicate(X), T.Placed(W, Shard(1), (4, 8))),
        "is not sharded",
    ),
    "gathered logits": (
        lambda g: T.cross_entropy(g, T.replicate(X), np.zeros((2, 3), int)),
        r"larger by ln 4 = 1\.3863",
    ),
    "logits sharded along tokens": (
        lambda g: T.cross_entropy(g, sharded(g, X, 1), np.zeros((2, 3), int)),
        "along dimension -1",
    ),
    "a window across shards": (
        lambda g: T.check_window("conv2d", sharded(g, X, 1), 1, 3),
        "exchange halos of 1",
    ),
    "no placement": (lambda g: T.column_linear(g, X, W), r"replicate\(x\)"),
    "a whole array called a shard": (lambda g: T.sharded(g, W, 1, 8), "pass this rank's block"),
    "columns mixed up": (
        lambda g: T.gathered(g, T.shard(g, W, 1, side_by_side(*[even_shards(4, 4)] * 2))),
        "mix up its columns",
    ),
    "gate and up in the wrong place": (
        lambda g: T.swiglu_mlp(
            g, T.replicate(X), {"w_gate_up": sharded(g, W, 1), "w_down": sharded(g, W.T[:4], 0)}
        ),
        "take swiglu_layout",
    ),
    "heads cut through": (
        lambda g: T.self_attention(
            g,
            T.replicate(X),
            {n: sharded(g, np.ones((4, 6)), 1) for n in ("wq", "wk", "wv")}
            | {"wo": sharded(g, np.ones((6, 4)), 0)},
            tile.Heads(3, 3, 2),
        ),
        "take attention_layout",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    program, words = REFUSED[what]
    message = refusal(program)
    assert re.search(words, message), message
    assert len(message) < 500


def test_blocks_of_another_group_are_refused():
    """Of 2 x 2 ranks, w lies along the second axis; x is told to go along both."""

    def program(rank):
        w, x = T.shard(rank.group(1), W, 1), T.shard(rank.group(1), X, 1)
        for call in (
            lambda g: T.column_linear(g, T.replicate(X), w),
            lambda g: T.row_linear(g, T.shard(rank.group(1), X, 2), T.shard(rank.group(1), W, 0)),
            lambda g: T.gathered(g, x),
            lambda g: T.embedding(g, np.zeros(3, int), T.shard(rank.group(1), W, 0)),
        ):
            with pytest.raises(PlacementError, match=r"over 2 ranks .* of this group of 4 has"):
                call(rank.group())
        with pytest.raises(PlacementError, match=r"even_shards\(8, 4\)"):
            T.shard(rank.group(), W, 1, w.shards)
        return True

    done = run_threads(program, (2, 2))
    assert all(done.results)
    assert not len(done.records)


def test_what_several_ranks_hold_is_not_added_several_times():
    """A kv head that two ranks share, handed to a row-parallel layer."""
    shared = Shards(4, (((0, 3),), ((2, 4),)))
    message = refusal(
        lambda g: T.row_linear(g, T.shard(g, X, -1, shared), T.shard(g, W, 0, shared)), t=2
    )
    assert "together 5: what several ranks hold would be in the sum several times" in message


def test_gradients_are_checked_too():
    """An all_reduce of dy before row_linear's backward, declared for what it is: refused."""

    def program(group):
        w = T.shard(group, W, 0)
        _, kept = T.row_linear(group, T.shard(group, X, -1), w)
        for dy, words in (
            (T.partial(np.ones((2, 3, 8))), "t times too large"),
            (T.shard(group, np.ones((2, 3, 8)), 1), "t times too large"),
            (T.replicate(np.ones((2, 2, 8))), "must have the same placement"),
        ):
            with pytest.raises(PlacementError, match=words):
                T.row_linear_grad(group, dy, kept, w)
        w = T.shard(group, W, 1)
        _, kept = T.column_linear(group, T.replicate(X), w)
        with pytest.raises(PlacementError, match="must be Shard"):
            T.column_linear_grad(group, T.replicate(np.ones((2, 3, 8))), kept, w)
        return True

    assert all(run_threads(lambda rank: program(rank.group()), 4).results)


def test_what_may_be_done_on_shards_is_done():
    def program(rank):
        group = rank.group()
        x = T.shard(group, X, 1)
        T.check_window("conv2d", x, 1, 1)
        T.check_window("conv2d", x, 2, 3)
        total = T.add(x, x)
        return T.softmax(total)[0], T.add_bias(group, x, T.replicate(np.ones(4)))

    results = run_threads(program, 2).results
    np.testing.assert_allclose(T.whole_of([r[0] for r in results]), tile.softmax(2 * X)[0])
    np.testing.assert_array_equal(T.whole_of([r[1] for r in results]), X + 1)


def test_placements_say_what_they_are():
    def program(rank):
        x = T.shard(rank.group(), X, -2)
        assert (x.dim, x.shape, x.placement) == (1, (2, 3, 4), Shard(1))
        assert T.partial(X).placement == Partial()
        with pytest.raises(PlacementError, match="has none numbered 3"):
            T.shard(rank.group(), X, 3)
        with pytest.raises(PlacementError, match="has its shape"):
            x.like(X)
        return repr(x), str(x), repr(x.spec)

    assert run_threads(program, 2).results[0] == (
        "Placed(Shard(1) of [2, 3, 4], [2, 2, 4] here)",
        "Shard(1) of [2, 3, 4]",
        "Placed(Shard(1) of [2, 3, 4], nothing here)",
    )


def test_what_is_kept_is_counted():
    """Without sequence parallelism x is kept in full; with it, and gathered again, a t-th."""

    def program(rank, sequence, regather):
        group, x = rank.group(), np.ones((1, 8, 16))
        x = T.shard(group, x, 1) if sequence else T.replicate(x)
        kept = T.column_linear(group, x, T.shard(group, np.ones((16, 4)), 1), regather=regather)[1]
        return tile.bytes_kept(kept)

    kept = [
        run_threads(program, 4, *ways).results[0]
        for ways in ((False, False), (True, False), (True, True))
    ]
    assert kept == [8 * 16 * 8, 8 * 16 * 8, 2 * 16 * 8]


# -- what the refusals are for: done by hand, these are wrong --------------------------------------


@pytest.mark.parametrize("t", [2, 4, 8])
def test_gathered_logits_make_the_loss_larger_by_ln_t(t):
    (z,) = draw((5, 16))
    targets = np.arange(5) % 4
    rule = tile.LossRule(16)

    def program(rank):
        group, maximum = rank.group(), z.max(axis=-1)
        sums = group.all_reduce(tile.local_sums(z, targets, maximum, rule))
        sums[1] /= t  # the target's logit came t times as well; the rest is the denominator
        return float(tile.loss_of_sums(sums, targets, rule, 5))

    right = float(tile.cross_entropy(z, targets)[0])
    for wrong in run_threads(program, t).results:
        assert wrong - right == pytest.approx(np.log(t), rel=1e-12)


def test_a_matrix_split_along_its_rows_cannot_be_activated():
    """gelu(a) + gelu(b) is not gelu(a + b): by how much, for numbers as a layer has them."""
    a, b = draw((1000,), (1000,))
    gelu = lambda x: tile.gelu(x)[0]  # noqa: E731
    assert np.abs(gelu(a) + gelu(b) - gelu(a + b)).mean() > 0.2
