"""Feed-forward, attention, norms, embedding and loss over ranks: as on one device; as planned.

Holds `tiledask.distributed.tensor.layers`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from oracles import closed_layers as plan
from oracles.closed_layers import Stream
from oracles.gradients import draw, inner
from oracles.tensor_cases import LIES, RANKS, B, S, check, spread

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import KernelError
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile

H = 6


class Layer(NamedTuple):
    """A layer with weights, and what is passed beside x and them."""

    name: str
    parameters: dict
    args: tuple
    layout: Callable
    planned: Callable


def feed_forward(kind, width):
    if kind in tile.ACTIVATIONS:
        made, layout = tile.mlp_parameters(H, width), partial(T.mlp_layout, width)
        return Layer("mlp", made, (kind,), layout, plan.mlp)
    made = tile.swiglu_mlp_parameters(H, width, kind == "fused", bias=True)
    planned = partial(plan.swiglu_mlp, fused=kind == "fused")
    return Layer("swiglu_mlp", made, (), partial(T.mlp_layout, width), planned)


def attention(query, kv, width, fused, rotary=True):
    heads = tile.Heads(query, kv, width)
    angles = tile.rotary_angles(np.arange(S), width, dtype="float64") if rotary else None
    return Layer(
        "self_attention",
        tile.self_attention_parameters(H, heads, fused, bias=True),
        (heads, angles),
        partial(T.attention_layout, heads),
        lambda x: plan.self_attention(x, query, kv, width, fused=fused, bias=True),
    )


HEADS = [(8, 8, 4), (8, 2, 4), (8, 1, 4), (10, 10, 2), (10, 5, 2), (6, 2, 4), (3, 1, 4)]
"""(query, kv, width): one kv head for each, for several and for all; that do not divide."""
KINDS = [*tile.ACTIVATIONS, "fused", "apart"]
LAYERS = {f"{kind} {n}": feed_forward(kind, n) for kind in KINDS for n in (16, 17, 3)}
LAYERS |= {f"heads {each}": attention(*each, True) for each in HEADS}
LAYERS |= {f"heads {each} apart": attention(*each, False) for each in HEADS}
LAYERS |= {"no positions": attention(10, 5, 2, True, rotary=False)}


def check_layer(layer, t, sequence=False, regather=False):
    shapes = [p.shape for p in layer.parameters.values()]
    whole = dict(zip(layer.parameters, (w / 2 for w in draw(*shapes)), strict=True))
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    y, kept = getattr(tile, layer.name)(x, whole, *layer.args)
    dx, grads = getattr(tile, f"{layer.name}_grad")(dy, kept, whole)

    def program(group):
        mine = T.shard_weights(group, whole, layer.layout(t))
        x_in, dy_in = (spread(group, each, sequence) for each in (x, dy))
        y, kept = getattr(T, layer.name)(group, x_in, mine, *layer.args, regather=regather)
        dx, found = getattr(T, f"{layer.name}_grad")(group, dy_in, kept, mine)
        assert y.placement == dx.placement == x_in.placement
        assert {n: w.shards for n, w in found.items()} == {n: w.shards for n, w in mine.items()}
        return {"y": y, "dx": dx, **found}

    planned = layer.planned(Stream(B, S, H, t, sequence, regather))
    return check(t, program, {"y": y, "dx": dx, **grads}, planned)


@pytest.mark.few(50)
@pytest.mark.parametrize(("sequence", "regather"), LIES)
@pytest.mark.parametrize("t", RANKS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_that_of_one_device(name, t, sequence, regather):
    check_layer(LAYERS[name], t, sequence, regather)


def test_kv_heads_are_summed_only_where_they_are_shared():
    """8 query heads over 2 kv heads: on 4 ranks two pairs share one each; on 2 nobody shares."""
    four, two = (
        check_layer(LAYERS["heads (8, 2, 4)"], t).records.where("shared kv") for t in (4, 2)
    )
    assert [r.group for r in four] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert not len(two)


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
    logits = 3 * rng.standard_normal((B, S, vocabulary))
    targets = rng.integers(0, vocabulary, (B, S))
    targets.ravel()[:ignored] = -100
    loss, kept = tile.cross_entropy(logits, targets, smoothing, count=count)
    expected = {"loss": float(loss), "dz": tile.cross_entropy_grad(scale, kept)}

    def program(group):
        mine = T.shard(group, logits, -1)
        loss, kept = T.cross_entropy(group, mine, targets, smoothing, count=count)
        return {"loss": loss, "dz": T.cross_entropy_grad(group, scale, kept)}

    return check(t, program, expected, plan.cross_entropy(Stream(B, S, H, t), smoothing))


@pytest.mark.few(6)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("t", RANKS)
def test_loss(t, smoothing):
    for vocabulary in (16, 17, 3):
        check_loss(t, vocabulary, smoothing)
    check_loss(t, 11, smoothing, ignored=5)
    check_loss(t, 11, smoothing, ignored=5, count=40.0, scale=1024.0)
    check_loss(t, 11, smoothing, ignored=B * S, count=1.0)


def test_logits_far_from_zero():
    """The maximum is that of all ranks: with another, exp(800) is infinite on one."""
    logits = np.array([[0.0, -5.0, 800.0, 799.0]])
    expected = float(tile.cross_entropy(logits, np.array([1]))[0])

    def program(rank):
        mine = T.shard(rank.group(), logits, -1)
        return float(T.cross_entropy(rank.group(), mine, np.array([1]))[0])

    assert run_threads(program, 2).results == pytest.approx([expected] * 2, rel=1e-15)
