"""Placed blocks: who holds what, and what would be silently wrong raises, with words that help."""

import re

import numpy as np
import pytest
from oracles.gradients import draw
from oracles.tensor_cases import RANKS

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import KernelError, PlacementError
from tiledask.plan.collectives.shards import deal_heads, side_by_side
from tiledask.plan.products.placement import Shards, even_shards
from tiledask.tile import layers as tile

X = np.arange(24.0).reshape(2, 3, 4)
W, IDS = np.ones((4, 8)), np.zeros((2, 3), int)
WHOLE, PARTIAL = T.replicate(X), T.partial(X)
MIXED = side_by_side(*[even_shards(4, 4)] * 2)
UNEVEN = Shards(4, (((0, 2),), ((2, 3),), ((3, 4),), ()))
SHARED = Shards(4, (((0, 2),), ((1, 3),), ((3, 4),), ()))
cut = T.shard


def feed(g, w_gate_up, w_down):
    return T.swiglu_mlp(g, WHOLE, {"w_gate_up": w_gate_up, "w_down": w_down})


def attend(g):
    cut_through = {n: cut(g, np.ones((4, 6)), 1) for n in ("wq", "wk", "wv")}
    weights = cut_through | {"wo": cut(g, np.ones((6, 4)), 0)}
    return T.self_attention(g, WHOLE, weights, tile.Heads(3, 3, 2))


def rows(g, w, b=None, shards=None):
    return T.row_linear(g, cut(g, X, -1, shards), w, b)


def whole_mlp(g):
    return {"w_1": cut(g, W, 1), "w_2": cut(g, W.T, 0)}


REFUSED = [
    ("4 times too large", lambda g: T.g(g, WHOLE)),
    ("must be Partial, got Shard", lambda g: T.g(g, cut(g, X, 1))),
    ("every rank has its own rows of w", lambda g: T.row_linear(g, WHOLE, cut(g, W, 0))),
    ("use row_linear", lambda g: T.column_linear(g, cut(g, X, -1), cut(g, W, 1))),
    ("sum a Partial first", lambda g: T.column_linear(g, PARTIAL, cut(g, W, 1))),
    ("along another dimension", lambda g: T.column_linear(g, WHOLE, cut(g, W, 0))),
    (r"shard\(group, w, 1\)", lambda g: T.column_linear(g, WHOLE, T.replicate(W))),
    ("added once, after the sum", lambda g: rows(g, cut(g, W, 0), cut(g, W[0], 0))),
    ("take mlp_layout", lambda g: feed(g, cut(g, W, 1), T.replicate(W.T))),
    (r"larger by ln 4 = 1\.3863", lambda g: T.cross_entropy(g, WHOLE, IDS)),
    ("along another dimension", lambda g: T.cross_entropy(g, cut(g, X, 1), IDS)),
    (r"replicate\(x\)", lambda g: T.column_linear(g, X, W)),
    ("not one behind the other", lambda g: T.column_linear(g, cut(g, W.T, 0, MIXED), cut(g, W, 1))),
    ("take mlp_layout", lambda g: feed(g, cut(g, W, 1), cut(g, W.T[:4], 0))),
    ("take attention_layout", attend),
    ("they must be alike", lambda g: rows(g, cut(g, W, 0, UNEVEN))),
    ("scale is none of its weights", lambda g: T.mlp(g, WHOLE, whole_mlp(g) | {"scale": WHOLE})),
    ("w_2 is missing", lambda g: T.mlp(g, WHOLE, {"w_1": cut(g, W, 1)})),
    (r"tokens are 0 \.\. 7, got 9", lambda g: T.embedding(g, IDS + 9, cut(g, W.T, 0))),
    ("counted several times", lambda g: rows(g, cut(g, W, 0, SHARED), shards=SHARED)),
]


@pytest.mark.parametrize(("words", "program"), REFUSED)
def test_what_would_be_silently_wrong_is_refused_before_any_collective(words, program):
    def one(rank):
        with pytest.raises((KernelError, PlacementError)) as caught:
            program(rank.group())
        return str(caught.value)

    done = run_threads(one, 4)
    assert not len(done.records)
    assert re.search(words, done.results[0]), done.results[0]
    assert len(done.results[0]) < 500


def test_blocks_of_another_group_are_refused():
    """Of 2 x 2 ranks, w lies along the second axis; x is told to go along both."""

    def program(rank):
        g, own = rank.group(), rank.group(1)
        for call in (
            lambda: T.column_linear(g, T.replicate(X), cut(own, W, 1)),
            lambda: T.row_linear(g, cut(own, X, 2), cut(own, W, 0)),
            lambda: T.embedding(g, IDS, cut(own, W, 0)),
        ):
            with pytest.raises(PlacementError, match=r"over 2 ranks.* of this group of 4 has"):
                call()
        with pytest.raises(PlacementError, match=r"even_shards\(8, 4\)"):
            cut(g, W, 1, cut(own, W, 1).shards)

    assert not len(run_threads(program, (2, 2)).records)


def test_gradients_are_checked_too():
    """An all_reduce of dy before row_linear's backward, declared for what it is: refused."""
    dy = np.ones((2, 3, 8))

    def program(rank):
        g = rank.group()
        by_rows, by_columns = cut(g, W, 0), cut(g, W, 1)
        _, kept = T.row_linear(g, cut(g, X, -1), by_rows)
        for bad, words in (
            (T.partial(dy), "t times too large"),
            (cut(g, dy, 1), "t times too large"),
            (T.replicate(dy[:, :2]), "must have the same placement"),
        ):
            with pytest.raises(PlacementError, match=words):
                T.row_linear_grad(g, bad, kept, by_rows)
        _, kept = T.column_linear(g, T.replicate(X), by_columns)
        with pytest.raises(PlacementError, match="must be Shard"):
            T.column_linear_grad(g, T.replicate(dy), kept, by_columns)

    run_threads(program, 4)


HEADS = tile.Heads(10, 5, 2)
INNER = 17


def weights(fused):
    attends = tile.self_attention_parameters(6, HEADS, fused, bias=True)
    feeds = tile.swiglu_mlp_parameters(6, INNER, fused, bias=True)
    made = {f"attention.{name}": w for name, w in attends.items()}
    made |= {f"mlp.{name}": w for name, w in feeds.items()}
    return made | {"norm_1.w": tile.Parameter((6,), "ones")}


def dealt(t, whole):
    program = lambda rank: T.shard_weights(rank.group(), whole, T.block_layout(HEADS, INNER, t))  # noqa: E731
    return run_threads(program, t).results


def put_together(by_rank):
    return {name: T.whole_of([weights[name] for weights in by_rank]) for name in by_rank[0]}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("t", RANKS)
def test_a_checkpoint_of_t_ranks_is_read_by_any_other_number(t, fused):
    made = weights(fused)
    whole = dict(zip(made, draw(*(p.shape for p in made.values())), strict=True))
    saved = put_together(dealt(t, whole))
    again = put_together(dealt(9 - t, saved))
    for name, w in whole.items():
        assert saved[name].tobytes() == again[name].tobytes() == w.tobytes()


def test_what_cannot_be_put_together_or_dealt_is_refused():
    """A kv head of two ranks, of which one took a step by its own part of the gradient."""
    made = tile.self_attention_parameters(6, HEADS)
    whole = tile.initialise(made, 0, dtype="float64")
    layout = T.attention_layout(HEADS, 4)
    results = run_threads(lambda rank: T.shard_weights(rank.group(), whole, layout), 4).results
    put_together(results)
    results[1]["wk"].local[:, 0] += 0.125
    unknown = lambda rank: T.shard_weights(rank.group(), {"w_3": np.ones(2)}, T.mlp_layout(4, 2))  # noqa: E731
    for words, call in (
        (
            r"ranks 0 and 1 both hold .* differ .* 0\.125",
            lambda: put_together(results),
        ),
        ("differ there by up to 1", lambda: T.whole_of([*map(T.replicate, np.eye(2))])),
        ("pass those of all 4 ranks", lambda: T.whole_of([r["wq"] for r in results[:2]])),
        ("does not say how w_3 is placed; it knows w_1, ", lambda: run_threads(unknown, 2)),
        ("kv heads divide query heads; got 10 query and 4 kv", lambda: deal_heads(10, 4, 2)),
    ):
        with pytest.raises(PlacementError, match=words):
            call()
