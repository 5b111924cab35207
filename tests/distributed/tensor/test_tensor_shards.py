"""Who holds what: shards, layouts, weights drawn in parts, and checkpoints under another layout."""

import numpy as np
import pytest
from oracles.gradients import draw
from oracles.tensor_cases import RANKS

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives.shards import deal_heads
from tiledask.tile import layers as tile

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


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("t", RANKS)
def test_a_checkpoint_of_t_ranks_is_read_by_any_other_number(t, fused):
    made = weights(fused)
    whole = dict(zip(made, draw(*(p.shape for p in made.values())), strict=True))
    saved = T.put_together(dealt(t, whole))
    again = T.put_together(dealt(9 - t, saved))
    for name, w in whole.items():
        assert saved[name].tobytes() == again[name].tobytes() == w.tobytes()


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


def test_what_cannot_be_put_together_or_dealt_is_refused():
    """A kv head of two ranks, of which one took a step by its own part of the gradient."""
    made = tile.self_attention_parameters(6, HEADS)
    whole = tile.initialise(made, 0, dtype="float64")
    layout = T.attention_layout(HEADS, 4)
    results = run_threads(lambda rank: T.shard_weights(rank.group(), whole, layout), 4).results
    T.put_together(results)
    results[1]["wk"].local[:, 0] += 0.125
    unknown = lambda rank: T.shard_weights(rank.group(), {"w_3": np.ones(2)}, T.mlp_layout(4, 2))  # noqa: E731
    for words, call in (
        (r"ranks 0 and 1 both hold .* differ .* 0\.125", lambda: T.put_together(results)),
        ("differ there by up to 1", lambda: T.whole_of([*map(T.replicate, np.eye(2))])),
        ("pass those of all 4 ranks", lambda: T.whole_of([r["wq"] for r in results[:2]])),
        ("does not say how w_3 is placed; it knows w_1, ", lambda: run_threads(unknown, 2)),
        ("kv heads divide query heads; got 10 query and 4 kv", lambda: deal_heads(10, 4, 2)),
    ):
        with pytest.raises(PlacementError, match=words):
            call()
