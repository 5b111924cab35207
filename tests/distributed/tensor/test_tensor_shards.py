"""Who holds what: shards, layouts, weights drawn in parts, and checkpoints under another layout.

Holds `tiledask.distributed.tensor.weights` and `tiledask.plan.collectives.shards`.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.gradients import draw
from oracles.tensor_cases import RANKS

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import deal_heads
from tiledask.tile import layers as tile

# -- arithmetic ------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 9))
def test_heads_lie_with_those_they_look_at(kv, share, ranks):
    """By enumeration: each rank has exactly the kv heads of its query heads, and sharers agree."""
    query = kv * share
    heads, kvs = deal_heads(query, kv, ranks)
    kv_of = tile.shared_heads(query, kv)
    for rank in range(ranks):
        wanted = {kv_of[i] for i in heads.indices(rank)}
        assert set(kvs.indices(rank).tolist()) == wanted
    holders = {h: tuple(r for r in range(ranks) if h in kvs.indices(r)) for h in range(kv)}
    shared = {h: who for who, (start, stop) in kvs.shared() for h in range(start, stop)}
    assert shared == {h: who for h, who in holders.items() if len(who) > 1}


def test_what_is_no_sharding_is_refused():
    with pytest.raises(PlacementError, match="kv heads divide query heads; got 10 query and 4 kv"):
        deal_heads(10, 4, 2)


# -- weights ---------------------------------------------------------------------------------------

HEADS = tile.Heads(10, 5, 2)
INNER = 17


def weights(fused):
    made = {
        f"attention.{n}": p
        for n, p in tile.self_attention_parameters(6, HEADS, fused, bias=True).items()
    }
    feed = tile.swiglu_mlp_parameters(6, INNER, fused, bias=True)
    made |= {f"mlp.{n}": p for n, p in feed.items()}
    return made | {"norm_1.w": tile.Parameter((6,), "ones")}


def dealt(t, whole):
    program = lambda rank: T.shard_weights(rank.group(), whole, T.block_layout(HEADS, INNER, t))  # noqa: E731
    return run_threads(program, t).results


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("t", RANKS)
def test_a_checkpoint_of_t_ranks_is_read_by_any_other_number(t, fused):
    made = weights(fused)
    arrays = draw(*(p.shape for p in made.values()))
    whole = dict(zip(made, arrays, strict=True))
    saved = T.put_together(dealt(t, whole))
    assert all(saved[name].tobytes() == whole[name].tobytes() for name in whole)
    again = T.put_together(dealt(9 - t, saved))
    assert all(again[name].tobytes() == whole[name].tobytes() for name in whole)


def test_parts_are_drawn_as_the_whole_would_be():
    made = weights(True)
    whole = tile.initialise(made, 3, prefix="layer 0.", dtype="float64")

    def program(rank):
        layout = T.block_layout(HEADS, INNER, 4)
        return T.draw_sharded(rank.group(), made, layout, 3, "layer 0.", "float64")

    drawn = run_threads(program, 4).results
    for mine, theirs in zip(drawn, dealt(4, whole), strict=True):
        for name in whole:
            assert mine[name].local.tobytes() == theirs[name].local.tobytes()
            assert mine[name].spec == theirs[name].spec
    held = sum(w.local.nbytes for w in drawn[0].values())
    assert held < 0.4 * sum(w.nbytes for w in whole.values())


def test_copies_that_differ_are_not_put_together():
    """A kv head of two ranks, of which one took a step by its own part of the gradient."""
    made = tile.self_attention_parameters(6, HEADS)
    whole = tile.initialise(made, 0, dtype="float64")
    layout = T.attention_layout(HEADS, 4)
    results = run_threads(lambda rank: T.shard_weights(rank.group(), whole, layout), 4).results
    T.put_together(results)
    results[1]["wk"].local[:, 0] += 0.125
    with pytest.raises(PlacementError, match=r"ranks 0 and 1 both hold .* differ .* 0\.125"):
        T.put_together(results)
    with pytest.raises(PlacementError, match="differ there by up to 1"):
        T.whole_of([T.replicate(np.zeros(2)), T.replicate(np.ones(2))])
    with pytest.raises(PlacementError, match="pass those of all 4 ranks"):
        T.whole_of([r["wq"] for r in results[:2]])


def test_a_layout_that_does_not_know_a_weight_says_so():
    def program(rank):
        T.shard_weights(rank.group(), {"w_3": np.ones(2)}, T.mlp_layout(4, 2))

    with pytest.raises(PlacementError, match="does not say how w_3 is placed; it knows w_1, "):
        run_threads(program, 2)
