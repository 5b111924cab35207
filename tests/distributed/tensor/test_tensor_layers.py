"""Feed-forward, attention, norms, embedding and loss over ranks: as on one device; as planned.

Holds `tiledask.distributed.tensor.attention`, `tiledask.distributed.tensor.cross_entropy`,
`tiledask.distributed.tensor.embedding`, `tiledask.distributed.tensor.mlp`,
`tiledask.distributed.tensor.named_linear` and `tiledask.distributed.tensor.norms`.
"""

import numpy as np
import pytest
from oracles.gradients import draw, inner
from oracles.tensor_cases import RANKS, assert_close, check, spread

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import KernelError
from tiledask.plan.collectives import layers as plan
from tiledask.plan.collectives.layers import LayerCalls, Stream
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile

B, S, H = 2, 7, 6
LIES = [(False, False), (True, False), (True, True)]
"""(sequence, regather)."""


def drawn(parameters, seed=0):
    """All of them at random, biases included."""
    names = list(parameters)
    arrays = draw(*(parameters[name].shape for name in names), seed=seed)
    return {name: array / 2 for name, array in zip(names, arrays, strict=True)}


# -- feed-forward ----------------------------------------------------------------------------------


def feed_forward(kind, inner):
    """(weights, y, dx, gradients, x, dy, layer, its gradient)."""
    if kind in ("relu", "gelu"):
        whole = drawn(tile.mlp_parameters(H, inner))
    else:
        whole = drawn(tile.swiglu_mlp_parameters(H, inner, kind == "fused", bias=True))
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    if kind in ("relu", "gelu"):
        y, kept = tile.mlp(x, whole, kind)
        dx, grads = tile.mlp_grad(dy, kept, whole)
    else:
        y, kept = tile.swiglu_mlp(x, whole)
        dx, grads = tile.swiglu_mlp_grad(dy, kept, whole)
    return whole, x, dy, {"y": y, "dx": dx, **grads}


def check_feed_forward(t, kind, inner, sequence, regather):
    whole, x, dy, expected = feed_forward(kind, inner)
    plain = kind in ("relu", "gelu")

    def program(group):
        layout = T.mlp_layout(inner, t) if plain else T.swiglu_layout(inner, t)
        mine, x_in = T.shard_weights(group, whole, layout), spread(group, x, sequence)
        if plain:
            y, kept = T.mlp(group, x_in, mine, kind, regather=regather)
            dx, grads = T.mlp_grad(group, spread(group, dy, sequence), kept, mine)
        else:
            y, kept = T.swiglu_mlp(group, x_in, mine, regather=regather)
            dx, grads = T.swiglu_mlp_grad(group, spread(group, dy, sequence), kept, mine)
        assert y.placement == dx.placement == x_in.placement
        return {"y": y, "dx": dx, **grads}

    stream = Stream(B, S, H, t, sequence, regather)
    planned = plan.mlp(stream) if plain else plan.swiglu_mlp(stream, kind == "fused")
    check(t, program, expected, planned)


@pytest.mark.few(7)
@pytest.mark.parametrize("kind", ["gelu", "relu", "fused", "apart"])
@pytest.mark.parametrize("t", RANKS)
def test_feed_forward(t, kind):
    """16 inner columns; 17, a prime; 3, fewer than ranks."""
    for width in (16, 17, 3):
        check_feed_forward(t, kind, width, False, False)


@pytest.mark.few(6)
@pytest.mark.parametrize("regather", [False, True])
@pytest.mark.parametrize("kind", ["gelu", "fused", "apart"])
@pytest.mark.parametrize("t", [2, 3, 4, 8])
def test_feed_forward_of_sharded_tokens(t, kind, regather):
    check_feed_forward(t, kind, 17, True, regather)


# -- attention -------------------------------------------------------------------------------------

HEADS = {
    "multi-head": tile.Heads(8, 8, 4),
    "grouped": tile.Heads(8, 2, 4),
    "multi-query": tile.Heads(8, 1, 4),
    "10 heads": tile.Heads(10, 10, 2),
    "10 over 5": tile.Heads(10, 5, 2),
    "6 over 2": tile.Heads(6, 2, 4),
    "3 heads": tile.Heads(3, 1, 4),
}


def check_attention(t, heads, fused, sequence=False, regather=False, causal=True, rotary=True):
    whole = drawn(tile.self_attention_parameters(H, heads, fused, bias=True))
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    angles = tile.rotary_angles(np.arange(S), heads.width, dtype="float64") if rotary else None
    y, kept = tile.self_attention(x, whole, heads, angles, causal)
    dx, grads = tile.self_attention_grad(dy, kept, whole)

    def program(group):
        mine = T.shard_weights(group, whole, T.attention_layout(heads, t))
        x_in, dy_in = (spread(group, each, sequence) for each in (x, dy))
        y, kept = T.self_attention(group, x_in, mine, heads, angles, causal, regather=regather)
        dx, found = T.self_attention_grad(group, dy_in, kept, mine)
        assert y.placement == dx.placement == x_in.placement
        assert {n: w.shards for n, w in found.items()} == {n: w.shards for n, w in mine.items()}
        return {"y": y, "dx": dx, **found}

    stream = Stream(B, S, H, t, sequence, regather)
    planned = plan.self_attention(stream, heads.query, heads.kv, heads.width, fused, bias=True)
    return check(t, program, {"y": y, "dx": dx, **grads}, planned)


@pytest.mark.few(8)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("t", RANKS)
def test_attention(t, kind, fused):
    check_attention(t, HEADS[kind], fused)


@pytest.mark.parametrize(("causal", "rotary"), [(True, False), (False, True), (False, False)])
def test_attention_without_a_mask_or_positions(causal, rotary):
    check_attention(4, HEADS["10 over 5"], True, causal=causal, rotary=rotary)


@pytest.mark.few(6)
@pytest.mark.parametrize("regather", [False, True])
@pytest.mark.parametrize("kind", ["10 over 5", "multi-query", "3 heads"])
@pytest.mark.parametrize("t", [2, 4, 5])
def test_attention_of_sharded_tokens(t, kind, regather):
    for fused in (True, False):
        check_attention(t, HEADS[kind], fused, True, regather)


def test_kv_heads_are_summed_only_where_they_are_shared():
    """8 query heads over 2 kv heads: on 4 ranks two pairs share one each; on 2 nobody shares."""
    done = check_attention(4, HEADS["grouped"], True)
    sums = done.records.where("shared kv")
    assert {r.group for r in sums} == {(0, 1), (2, 3)}
    assert len(sums) == 4
    assert not len(check_attention(2, HEADS["grouped"], True).records.where("shared kv"))


# -- norms -----------------------------------------------------------------------------------------


@pytest.mark.few(6)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("t", RANKS)
def test_norms(t, sequence):
    """7 tokens: uneven on all but one and seven ranks, and none at all on the eighth."""
    x, w, b, dy = draw((B, S, H), (H,), (H,), (B, S, H))
    y, kept = tile.layer_norm(x, w, b)
    dx, dw, db = tile.layer_norm_grad(dy, kept, w, b)
    y_2, kept = tile.rms_norm(x, w)
    dx_2, dw_2 = tile.rms_norm_grad(dy, kept, w)
    stream = Stream(B, S, H, t, sequence)

    def program(group):
        x_in, dy_in = (spread(group, each, sequence) for each in (x, dy))
        w_in, b_in = T.replicate(w), T.replicate(b)
        y, kept = T.layer_norm(group, x_in, w_in, b_in)
        dx, dw, db = T.layer_norm_grad(group, dy_in, kept, w_in, b_in)
        y_2, kept = T.rms_norm(group, x_in, w_in)
        dx_2, dw_2 = T.rms_norm_grad(group, dy_in, kept, w_in)
        assert dw.placement == db.placement == dw_2.placement == Replicate()
        return {"y": y, "dx": dx, "dw": dw, "db": db, "y 2": y_2, "dx 2": dx_2, "dw 2": dw_2}

    expected = {"y": y, "dx": dx, "dw": dw, "db": db, "y 2": y_2, "dx 2": dx_2, "dw 2": dw_2}
    one, two = plan.norm(stream, True, "layer_norm"), plan.norm(stream, False, "rms_norm")
    check(t, program, expected, LayerCalls((), one.backward + two.backward))


# -- embedding and loss ----------------------------------------------------------------------------


@pytest.mark.few(6)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("t", RANKS)
def test_embedding(t, sequence):
    for vocabulary in (12, 13, 3):
        table, dy = draw((vocabulary, H), (B, S, H))
        tokens = np.random.default_rng(t).integers(0, vocabulary, (B, S))
        y, kept = tile.embedding(tokens, table)
        expected = {"y": y, "dtable": tile.embedding_grad(dy, kept)}

        def program(group, tokens=tokens, table=table, dy=dy):
            mine = T.shard(group, table, 0)
            to = Shard(1) if sequence else Replicate()
            y, kept = T.embedding(group, tokens, mine, to=to)
            dtable = T.embedding_grad(group, spread(group, dy, sequence), kept, mine)
            return {"y": y, "dtable": dtable}

        done = check(t, program, expected, plan.embedding(Stream(B, S, H, t, sequence)))
        y, dtable = (T.whole_of([r[name] for r in done.results]) for name in ("y", "dtable"))
        assert inner(dy, y) == pytest.approx(inner(dtable, table), rel=1e-12, abs=1e-12)


def test_a_token_outside_of_the_vocabulary_is_an_error_on_every_rank():
    def program(rank):
        table = T.shard(rank.group(), np.ones((5, 2)), 0)
        with pytest.raises(KernelError, match=r"tokens are 0 \.\. 4, got 5"):
            T.embedding(rank.group(), np.array([1, 5]), table)
        return True

    assert all(run_threads(program, 7).results)


def check_loss(t, vocabulary, smoothing=0.0, ignored=0, count=None, scale=1.0):
    rng = np.random.default_rng(vocabulary)
    logits, targets = (
        3 * rng.standard_normal((B, S, vocabulary)),
        rng.integers(0, vocabulary, (B, S)),
    )
    targets.ravel()[:ignored] = -100
    loss, kept = tile.cross_entropy(logits, targets, smoothing, count=count)
    expected = {"loss": float(loss), "dz": tile.cross_entropy_grad(scale, kept)}

    def program(group):
        mine = T.shard(group, logits, -1)
        loss, kept = T.cross_entropy(group, mine, targets, smoothing, count=count)
        return {"loss": loss, "dz": T.cross_entropy_grad(group, scale, kept)}

    return check(t, program, expected, plan.cross_entropy(Stream(B, S, H, t), smoothing))


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("t", RANKS)
def test_loss(t, smoothing):
    for vocabulary in (16, 17, 3):
        check_loss(t, vocabulary, smoothing)
    check_loss(t, 11, smoothing, ignored=5)
    check_loss(t, 11, smoothing, ignored=5, count=40.0, scale=1024.0)
    check_loss(t, 11, smoothing, ignored=B * S, count=1.0)


def test_gpt_2s_vocabulary_unpadded_over_four():
    done = check_loss(4, 50257, smoothing=0.1)
    moved = sum(r.received for r in done.records)
    gathered = 4 * 3 / 4 * B * S * 50257 * 8  # what all ranks would get to have all logits
    assert moved == 4 * 2 * 3 / 4 * 4 * B * S * 8  # a maximum and three sums of each token
    assert gathered / moved > 6000


def check_far_logits():
    logits = np.array([[0.0, -5.0, 800.0, 799.0]])
    expected = float(tile.cross_entropy(logits, np.array([1]))[0])

    def program(rank):
        mine = T.shard(rank.group(), logits, -1)
        return float(T.cross_entropy(rank.group(), mine, np.array([1]))[0])

    assert run_threads(program, 2).results == pytest.approx([expected] * 2, rel=1e-15)


def test_logits_far_from_zero():
    """The maximum is that of all ranks: with another, exp(800) is infinite on one."""
    check_far_logits()


# -- embedding to loss: a model in small -----------------------------------------------------------


@pytest.mark.parametrize("sequence", [False, True])
def test_embedding_head_and_loss_together(sequence):
    """13 words on 4 ranks: the gradient of both matrices through all of it."""
    vocabulary, t = 13, 4
    table, head = draw((vocabulary, H), (H, vocabulary))
    tokens, targets = np.random.default_rng(3).integers(0, vocabulary, (2, B, S))
    x, kept_x = tile.embedding(tokens, table)
    logits, kept = tile.linear(x, head)
    loss, kept_loss = tile.cross_entropy(logits, targets)
    dx, dhead, _ = tile.linear_grad(tile.cross_entropy_grad(1.0, kept_loss), kept, head)
    expected = {"loss": float(loss), "head": dhead, "table": tile.embedding_grad(dx, kept_x)}

    def program(group):
        mine = T.shard_weights(
            group, {"table": table, "w_head": head}, T.embedding_layout(vocabulary, t)
        )
        to = Shard(1) if sequence else Replicate()
        x, kept_x = T.embedding(group, tokens, mine["table"], to=to)
        logits, kept = T.column_linear(group, x, mine["w_head"], name="head")
        loss, kept_loss = T.cross_entropy(group, logits, targets)
        dlogits = T.cross_entropy_grad(group, 1.0, kept_loss)
        dx, dhead, _ = T.column_linear_grad(group, dlogits, kept, mine["w_head"])
        return {
            "loss": loss,
            "head": dhead,
            "table": T.embedding_grad(group, dx, kept_x, mine["table"]),
        }

    stream = Stream(B, S, H, t, sequence)
    planned = plan.embedding(stream).then(
        plan.column_linear(stream, "head"), plan.cross_entropy(stream)
    )
    check(t, program, expected, planned)


def test_the_tolerance_is_tight():
    with pytest.raises(AssertionError, match="off by"):
        assert_close(np.ones(3) + 3e-12, np.ones(3))
