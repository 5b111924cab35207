"""Feed-forward, attention, decoder blocks, embedding and loss over ranks: as on one device, and
as planned.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from oracles import closed_layers as plan
from oracles.closed_layers import Stream
from oracles.gradients import draw
from oracles.single_gpt import block, block_grad
from oracles.tensor_cases import LIES, RANKS, B, S, check, spread

from tiledask.distributed import tensor as T
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile

H = 6


class Layer(NamedTuple):
    """A layer with weights: its layout and calls, and (forward, backward) on one device and over
    ranks."""

    parameters: dict
    layout: Callable
    planned: Callable
    one: tuple
    over: tuple


def both(module, name, *args):
    forward = getattr(module, name)
    return lambda *given, **how: forward(*given, *args, **how), getattr(module, f"{name}_grad")


def feed_forward(kind, width):
    made, planned, name, args = tile.mlp_parameters(H, width), plan.mlp, "mlp", (kind,)
    if kind not in tile.ACTIVATIONS:
        made = tile.swiglu_mlp_parameters(H, width, kind == "fused", bias=True)
        planned, name, args = partial(plan.swiglu_mlp, fused=kind == "fused"), "swiglu_mlp", ()
    layout = partial(T.mlp_layout, width)
    return Layer(made, layout, planned, both(tile, name, *args), both(T, name, *args))


def attention(query, kv, width, fused, rotary=True):
    heads = tile.Heads(query, kv, width)
    angles = tile.rotary_angles(np.arange(S), width, dtype="float64") if rotary else None
    return Layer(
        tile.self_attention_parameters(H, heads, fused, bias=True),
        partial(T.attention_layout, heads),
        lambda x: plan.self_attention(x, query, kv, width, fused=fused, bias=True),
        *(both(module, "self_attention", heads, angles) for module in (tile, T)),
    )


def decoder_block(gated, fused):
    attends, feeds = attention(4, 2, 4, fused), feed_forward("fused" if fused else "apart", 11)
    if not gated:
        feeds = Layer(tile.mlp_parameters(H, 11, bias=True), *feeds[1:])
    kinds, heads = "w" if gated else "wb", tile.Heads(4, 2, 4)
    made = {f"norm_{i}.{kind}": tile.Parameter((H,)) for i in (1, 2) for kind in kinds}
    for name, layer in (("attention", attends), ("mlp", feeds)):
        made |= {f"{name}.{n}": p for n, p in layer.parameters.items()}
    angles = tile.rotary_angles(np.arange(S), 4, dtype="float64")
    how = {"fused": fused, "gated": gated, "norm_bias": not gated, "bias": True}

    def over(group, x, w, regather):
        return T.decoder_block(group, x, w, T.DecoderBlock(heads, gated, regather), angles)

    return Layer(
        made,
        lambda t: T.block_layout(heads, 11, t),
        lambda x: plan.decoder_block(x, 4, 2, 4, **how),
        (lambda x, w: block(gated, x, w, heads, angles), partial(block_grad, gated)),
        (over, partial(T.decoder_block_grad, block=None)),
    )


HEADS = [(8, 8, 4), (8, 2, 4), (8, 1, 4), (10, 10, 2), (10, 5, 2), (6, 2, 4), (3, 1, 4)]
"""(query, kv, width): one kv head for each, for several and for all; that do not divide."""
KINDS = [*tile.ACTIVATIONS, "fused", "apart"]
LAYERS = {f"{kind} {n}": feed_forward(kind, n) for kind in KINDS for n in (16, 17, 3)}
LAYERS |= {f"heads {each}": attention(*each, True) for each in HEADS}
LAYERS |= {f"heads {each} apart": attention(*each, False) for each in HEADS}
LAYERS |= {"no positions": attention(10, 5, 2, True, rotary=False)}
LAYERS |= {f"block {each}": decoder_block(*each) for each in product((False, True), repeat=2)}


def check_layer(layer, t, sequence=False, regather=False):
    arrays = draw(*(p.shape for p in layer.parameters.values()))
    named = zip(layer.parameters, arrays, strict=True)
    whole = {name: w / 2 + name.startswith("norm") for name, w in named}
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    (one, one_grad), (over, over_grad) = layer.one, layer.over
    y, kept = one(x, whole)
    dx, grads = one_grad(dy, kept, whole)

    def program(group):
        mine = T.shard_weights(group, whole, layer.layout(t))
        x_in, dy_in = (spread(group, each, sequence) for each in (x, dy))
        y, kept = over(group, x_in, mine, regather=regather)
        dx, found = over_grad(group, dy_in, kept, mine)
        assert y.placement == dx.placement == x_in.placement
        assert {n: w.shards for n, w in found.items()} == {n: w.shards for n, w in mine.items()}
        return {"y": y, "dx": dx, **found}

    planned = layer.planned(Stream(B, S, H, t, sequence, regather))
    return check(t, program, {"y": y, "dx": dx, **grads}, planned)


@pytest.mark.few(60)
@pytest.mark.parametrize(("sequence", "regather"), LIES)
@pytest.mark.parametrize("t", RANKS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_that_of_one_device(name, t, sequence, regather):
    check_layer(LAYERS[name], t, sequence, regather)


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

        check(t, program, expected, plan.embedding(Stream(B, S, H, t, sequence)))


def check_loss(t, vocabulary, smoothing=0.0, ignored=0, count=None, scale=1.0, size=3.0):
    rng = np.random.default_rng(vocabulary)
    logits = size * rng.standard_normal((B, S, vocabulary))
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
    # the maximum is that of all ranks: with another, exp(800) is infinite on one
    check_loss(t, 11, smoothing, size=800.0)
