"""Layers over ranks: as on one device, to the last digits; collectives as planned; what is kept."""

import pickle
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import closed_layers as plan
from oracles.closed_layers import Stream
from oracles.gradients import draw
from oracles.single_gpt import block, block_grad
from oracles.tensor_cases import LIES, RANKS, B, S, check, spread

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.plan.products.placement import Replicate, Shard, Shards
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


def attention(query, kv, width, fused):
    heads = tile.Heads(query, kv, width)
    return Layer(
        tile.self_attention_parameters(H, heads, fused, bias=True),
        partial(T.attention_layout, heads),
        lambda x: plan.self_attention(x, query, kv, width, fused=fused, bias=True),
        *(both(module, "self_attention", heads) for module in (tile, T)),
    )


def decoder_block(gated, fused):
    attends, feeds = attention(4, 2, 4, fused), feed_forward("fused" if fused else "apart", 11)
    if not gated:
        feeds = Layer(tile.mlp_parameters(H, 11, bias=True), *feeds[1:])
    kinds, heads = "w" if gated else "wb", tile.Heads(4, 2, 4)
    made = {f"norm_{i}.{kind}": tile.Parameter((H,)) for i in (1, 2) for kind in kinds}
    for name, layer in (("attention", attends), ("mlp", feeds)):
        made |= {f"{name}.{n}": p for n, p in layer.parameters.items()}
    how = {"fused": fused, "gated": gated, "norm_bias": not gated, "bias": True}

    def over(group, x, w, regather=False):
        return T.decoder_block(group, x, w, heads, gated, regather)

    return Layer(
        made,
        lambda t: T.block_layout(heads, 11, t),
        lambda x: plan.decoder_block(x, 4, 2, 4, **how),
        (lambda x, w: block(gated, x, w, heads, None), partial(block_grad, gated)),
        (over, T.decoder_block_grad),
    )


HEADS = [(8, 8, 4), (8, 2, 4), (8, 1, 4), (10, 10, 2), (10, 5, 2), (6, 2, 4), (3, 1, 4)]
"""(query, kv, width): one kv head for each, for several and for all; that do not divide."""
KINDS = [*tile.ACTIVATIONS, "fused", "apart"]
LAYERS = {f"{kind} {n}": feed_forward(kind, n) for kind in KINDS for n in (16, 17, 3)}
LAYERS |= {f"heads {each}": attention(*each, True) for each in HEADS}
LAYERS |= {f"heads {each} apart": attention(*each, False) for each in HEADS}
LAYERS |= {f"block {each}": decoder_block(*each) for each in product((False, True), repeat=2)}


@pytest.mark.few(60)
@pytest.mark.parametrize(("sequence", "regather"), LIES)
@pytest.mark.parametrize("t", RANKS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_that_of_one_device(name, t, sequence, regather):
    parameters, layout, planned, (one, one_grad), (over, over_grad) = LAYERS[name]
    regather = {"regather": True} if regather and name.startswith("block") else {}
    named = zip(parameters, draw(*(p.shape for p in parameters.values())), strict=True)
    whole = {name: w / 2 + name.startswith("norm") for name, w in named}
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    y, kept = one(x, whole)
    dx, grads = one_grad(dy, kept, whole)

    def program(group):
        mine = T.shard_weights(group, whole, layout(t))
        x_in, dy_in = (spread(group, each, sequence) for each in (x, dy))
        y, kept = over(group, x_in, mine, **regather)
        dx, found = over_grad(group, dy_in, kept, mine)
        assert y.placement == dx.placement == x_in.placement
        assert {n: w.shards for n, w in found.items()} == {n: w.shards for n, w in mine.items()}
        return {"y": y, "dx": dx, **found}

    calls = planned(Stream(B, S, H, t, sequence, bool(regather)))
    check(t, program, {"y": y, "dx": dx, **grads}, calls)


# -- embedding and loss ----------------------------------------------------------------------------


@pytest.mark.few(6)
@pytest.mark.parametrize("t", RANKS)
def test_embedding(t):
    for vocabulary in (12, 13, 3):
        table, dy = draw((vocabulary, H), (B, S, H))
        tokens = np.random.default_rng(t).integers(0, vocabulary, (B, S))
        y, kept = tile.embedding(tokens, table)
        expected = {"y": y, "dtable": tile.embedding_grad(dy, kept)}

        def program(group, tokens=tokens, table=table, dy=dy):
            mine = T.shard(group, table, 0)
            y, kept = T.embedding(group, tokens, mine)
            dtable = T.embedding_grad(group, T.replicate(dy), kept, mine)
            return {"y": y, "dtable": dtable}

        check(t, program, expected, plan.embedding(Stream(B, S, H, t)))


def check_loss(t, vocabulary, ignored=0, scale=1.0, size=3.0):
    rng = np.random.default_rng(vocabulary)
    logits = size * rng.standard_normal((B, S, vocabulary))
    targets = rng.integers(0, vocabulary, (B, S))
    targets.ravel()[:ignored] = -100
    loss, kept = tile.cross_entropy(logits, targets)
    expected = {"loss": float(loss), "dz": tile.cross_entropy_grad(scale, kept)}

    def program(group):
        mine = T.shard(group, logits, -1)
        loss, kept = T.cross_entropy(group, mine, targets)
        return {"loss": loss, "dz": T.cross_entropy_grad(group, scale, kept)}

    check(t, program, expected, plan.cross_entropy(Stream(B, S, H, t)))


@pytest.mark.few(6)
@pytest.mark.parametrize("t", RANKS)
def test_loss(t):
    for vocabulary in (16, 17, 3):
        check_loss(t, vocabulary)
    check_loss(t, 11, ignored=5, scale=1024.0)
    # the maximum is that of all ranks: with another, exp(800) is infinite on one
    check_loss(t, 11, size=800.0)


# -- linear ----------------------------------------------------------------------------------------


def check_linear(t, inputs, outputs, sequence, tokens=S, lies=None, columns=None):
    """By columns and by rows; ``lies``, ``columns``: uneven cuts of the tokens and of w."""
    x, w, b, dy = draw((B, tokens, inputs), (inputs, outputs), (outputs,), (B, tokens, outputs))
    y, kept = tile.linear(x, w, b)
    dx, dw, db = tile.linear_grad(dy, kept, w, b)
    expected = {"y": y, "dx": dx, "dw": dw, "db": db}

    def by_columns(group):
        mine = T.shard(group, w, 1, columns), T.shard(group, b, 0, columns)
        x_in = T.shard(group, x, 1, lies) if sequence else T.replicate(x)
        y, kept = T.column_linear(group, x_in, *mine)
        dx, dw, db = T.column_linear_grad(group, T.shard(group, dy, -1, columns), kept, *mine)
        assert (dw.shards, db.shards, dx.placement) == (*(z.shards for z in mine), x_in.placement)
        assert dx.local.shape == x_in.local.shape
        return {"y": y, "dx": dx, "dw": dw, "db": db}

    def by_rows(group):
        mine = T.shard(group, w, 0), T.replicate(b)
        y, kept = T.row_linear(group, T.shard(group, x, -1), *mine)
        dx, dw, db = T.row_linear_grad(group, T.replicate(dy), kept, *mine)
        assert (y.placement, dw.placement, db.placement) == (Replicate(), Shard(0), Replicate())
        return {"y": y, "dx": dx, "dw": dw, "db": db}

    planned = plan.column_linear(Stream(B, tokens, inputs, t, sequence))
    check(t, by_columns, expected, None if lies else planned)
    check(t, by_rows, expected, plan.row_linear(Stream(B, tokens, outputs, t)))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RANKS), *[st.integers(1, 16)] * 3, st.booleans())
@example(4, 8, 16, 7, True)  # all even but the tokens
@example(8, 3, 2, 1, True)  # fewer than ranks
def test_any_sizes_on_any_ranks(t, inputs, outputs, tokens, sequence):
    check_linear(t, inputs, outputs, sequence, tokens)


def test_uneven_cuts_of_ones_own():
    """Tokens 5, 0, 2 and columns 1, 4, 2 on three ranks."""
    tokens = Shards(7, (((0, 5),), (), ((5, 7),)))
    columns = Shards(7, (((0, 1),), ((1, 5),), ((5, 7),)))
    check_linear(3, 5, 7, True, lies=tokens, columns=columns)


def test_g_adds_up():
    ys = draw(*[(3, 5)] * 4, seed=1)
    program = lambda rank: T.g(rank.group(), T.partial(ys[rank.index])).local  # noqa: E731
    for total in run_threads(program, 4).results:
        np.testing.assert_allclose(total, sum(ys), rtol=1e-13)


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
        twice = T.row_linear_grad(group, T.replicate(dy), kept, T.Placed(2 * w.local, w.tiling))[0]
        return (twice.local == 2 * found[0][0].local).all()

    assert all(run_threads(program, 2).results)
