"""A decoder block over ranks: the single device's, and the collectives of a layer as planned.

Holds `tiledask.distributed.tensor.layers`.
"""

import numpy as np
import pytest
from oracles import closed_layers as plan
from oracles.closed_layers import Stream
from oracles.gradients import draw
from oracles.single_gpt import block, block_grad
from oracles.tensor_cases import LIES, RANKS, B, S, check, spread

import tiledask as td
from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.tile import layers as tile

H, INNER = 8, 11
HEADS = tile.Heads(4, 2, 4)
X, DY = draw((B, S, H), (B, S, H), seed=9)


def drawn(gated, fused, heads):
    """All parameters of a block at random, biases included; norms near one."""
    made = {f"{n}.w": tile.Parameter((H,)) for n in ("norm_1", "norm_2")}
    made |= {} if gated else {f"{n}.b": tile.Parameter((H,)) for n in ("norm_1", "norm_2")}
    attention = tile.self_attention_parameters(H, heads, fused, bias=True)
    if gated:
        feed = tile.swiglu_mlp_parameters(H, INNER, fused, bias=True)
    else:
        feed = tile.mlp_parameters(H, INNER, bias=True)
    made |= {f"attention.{n}": p for n, p in attention.items()}
    made |= {f"mlp.{n}": p for n, p in feed.items()}
    arrays = draw(*(p.shape for p in made.values()), seed=4)
    return {n: (a / 3 + n.startswith("norm")) for n, a in zip(made, arrays, strict=True)}


def on_one_device(weights, gated, heads, angles):
    y, kept = block(gated, X, weights, heads, angles)
    dx, grads = block_grad(gated, DY, kept, weights)
    return {"y": y, "dx": dx, **grads}


def planned(stream, heads, fused=True, gated=True):
    numbers = heads.query, heads.kv, heads.width
    return plan.decoder_block(
        stream, *numbers, fused=fused, gated=gated, norm_bias=not gated, bias=True
    )


def check_block(t, gated=True, fused=True, sequence=False, regather=False, heads=HEADS):
    weights = drawn(gated, fused, heads)
    angles = tile.rotary_angles(np.arange(S), heads.width, dtype="float64")
    one = T.DecoderBlock(heads, gated, regather=regather)

    def program(group):
        mine = T.shard_weights(group, weights, T.block_layout(heads, INNER, t))
        y, kept = T.decoder_block(group, spread(group, X, sequence), mine, one, angles)
        dx, grads = T.decoder_block_grad(group, spread(group, DY, sequence), kept, mine, one)
        return {"y": y, "dx": dx, **grads}

    stream = Stream(B, S, H, t, sequence, regather)
    expected = on_one_device(weights, gated, heads, angles)
    return check(t, program, expected, planned(stream, heads, fused, gated))


@pytest.mark.few(14)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("sequence", "regather"), LIES)
@pytest.mark.parametrize("t", RANKS)
def test_block(t, sequence, regather, fused, gated):
    check_block(t, gated, fused, sequence, regather)


def test_weights_that_no_block_has_are_not_left_out_in_silence():
    weights, one = drawn(True, True, HEADS), T.DecoderBlock(HEADS, True)

    def program(rank):
        group = rank.group()
        mine = T.shard_weights(group, weights, T.block_layout(HEADS, INNER, 2))
        T.decoder_block(group, T.replicate(X), mine | {"scale_1.gamma": mine["norm_1.w"]}, one)

    with pytest.raises(td.errors.ConfigError, match=r"scale_1\.gamma is none of them"):
        run_threads(program, 2)
