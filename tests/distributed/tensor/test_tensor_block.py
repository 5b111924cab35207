"""A decoder block over ranks: the single device's, and the collectives of a layer as published.

Holds `tiledask.distributed.tensor.block`.
"""

import numpy as np
import pytest
from oracles.gradients import draw
from oracles.tensor_cases import RANKS, assert_calls, assert_close, check, spread

import tiledask as td
from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.plan.collectives import layers as plan
from tiledask.plan.collectives.layers import Stream
from tiledask.plan.products.placement import Shard
from tiledask.tile import layers as tile

B, S, H, INNER = 2, 7, 8, 11
HEADS = tile.Heads(4, 2, 4)


def parameters(gated, fused, bias=True, heads=HEADS, hidden=H, inner=INNER):
    """Of a block, by name."""
    if gated:
        feed = tile.swiglu_mlp_parameters(hidden, inner, fused, bias)
    else:
        feed = tile.mlp_parameters(hidden, inner, bias)
    norms = {"w": tile.Parameter((hidden,), "ones")}
    if not gated:
        norms["b"] = tile.Parameter((hidden,), "zeros")
    made = {f"{n}.{k}": p for n in ("norm_1", "norm_2") for k, p in norms.items()}
    attention = tile.self_attention_parameters(hidden, heads, fused, bias)
    made |= {f"attention.{k}": p for k, p in attention.items()}
    return made | {f"mlp.{k}": p for k, p in feed.items()}


def drawn(made):
    """At random, norms near one."""
    arrays = draw(*(p.shape for p in made.values()), seed=4)
    return {n: (a / 3 + n.startswith("norm")) for n, a in zip(made, arrays, strict=True)}


def inside(weights, name):
    return {n[len(name) + 1 :]: w for n, w in weights.items() if n.startswith(f"{name}.")}


def on_one_device(x, dy, weights, gated, heads, angles):
    """(y, dx, gradients): the oracle."""
    norm, norm_grad = (
        (tile.rms_norm, tile.rms_norm_grad) if gated else (tile.layer_norm, tile.layer_norm_grad)
    )
    feed, feed_grad = (
        (tile.swiglu_mlp, tile.swiglu_mlp_grad) if gated else (tile.mlp, tile.mlp_grad)
    )
    parts = {name: inside(weights, name) for name in ("norm_1", "attention", "norm_2", "mlp")}
    a, kept_1 = norm(x, *parts["norm_1"].values())
    a, kept_a = tile.self_attention(a, parts["attention"], heads, angles)
    x2 = x + a
    m, kept_2 = norm(x2, *parts["norm_2"].values())
    m, kept_m = feed(m, parts["mlp"])
    grads = {}
    dm, grads["mlp"] = feed_grad(dy, kept_m, parts["mlp"])
    d, *of_norm = norm_grad(dm, kept_2, *parts["norm_2"].values())
    grads["norm_2"] = dict(zip("wb", of_norm, strict=False))
    dx2 = dy + d
    da, grads["attention"] = tile.self_attention_grad(dx2, kept_a, parts["attention"])
    d, *of_norm = norm_grad(da, kept_1, *parts["norm_1"].values())
    grads["norm_1"] = dict(zip("wb", of_norm, strict=False))
    flat = {f"{name}.{n}": g for name, found in grads.items() for n, g in found.items()}
    return {"y": x2 + m, "dx": dx2 + d, **flat}


def check_block(t, gated=True, fused=True, sequence=False, regather=False, heads=HEADS):
    weights = drawn(parameters(gated, fused, heads=heads))
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    angles = tile.rotary_angles(np.arange(S), heads.width, dtype="float64")
    block = T.DecoderBlock(heads, gated, regather=regather)

    def program(group):
        mine = T.shard_weights(group, weights, T.block_layout(heads, INNER, t))
        y, kept = T.decoder_block(group, spread(group, x, sequence), mine, block, angles)
        dx, grads = T.decoder_block_grad(group, spread(group, dy, sequence), kept, mine, block)
        return {"y": y, "dx": dx, **grads}

    stream = Stream(B, S, H, t, sequence, regather)
    planned = plan.decoder_block(
        stream, heads.query, heads.kv, heads.width, fused, gated, norm_bias=True, bias=True
    )
    if gated:
        planned = plan.decoder_block(stream, heads.query, heads.kv, heads.width, fused, bias=True)
    expected = on_one_device(x, dy, weights, gated, heads, angles)
    return check(t, program, expected, planned)


@pytest.mark.few(7)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("t", RANKS)
def test_block(t, fused, gated):
    check_block(t, gated, fused)


@pytest.mark.long
@pytest.mark.few(7)
@pytest.mark.parametrize("regather", [False, True])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("t", [2, 3, 4, 8])
def test_block_of_sharded_tokens(t, fused, gated, regather):
    check_block(t, gated, fused, True, regather)


# -- barriers and elements of a layer and step -----------------------------------------------------

NO_SHARING = tile.Heads(8, 8, 2)
"""No kv head is on two ranks, so that only the layer's own collectives are there."""


def elements(done, t):
    """Received by all ranks together, without the norms' weights, in units of b s h."""
    received = sum(r.received for r in done.records if "norm" not in r.label)
    return received / 8 / (B * S * H), (t - 1) / t * t


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("t", range(2, 9))
def test_four_barriers_if_fused_and_seven_if_not(t):
    fused, apart = (check_block(t, fused=f, heads=NO_SHARING) for f in (True, False))
    assert fused.records.barriers == {None: 4}
    assert apart.records.barriers == {None: 7}
    for done, count in ((fused, (2, 2)), (apart, (2, 5))):
        mine = done.records.where(rank=t - 1)
        assert tuple(len(mine.where(way)) for way in ("forward", "backward")) == count
    moved, unit = elements(fused, t)
    assert moved == pytest.approx(8 * unit, rel=1e-15)  # 4 all_reduces of 2 b s h (t-1)/t
    assert elements(apart, t)[0] == pytest.approx(14 * unit, rel=1e-15)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("t", range(2, 9))
def test_sharded_tokens_move_8_or_10(t):
    """b s h (t-1)/t elements a rank: as many as without, if the gathered input is kept."""
    for regather, expected in ((False, 8), (True, 10)):
        done = check_block(t, sequence=True, regather=regather, heads=NO_SHARING)
        moved, unit = elements(done, t)
        assert moved == pytest.approx(expected * unit, rel=1e-15)
        own = [r for r in done.records.where(rank=0) if "norm" not in r.label]
        assert len(own) == expected
        assert {r.kind for r in own} == {"all_gather", "reduce_scatter"}
        assert len(done.records.where("norm", rank=0)) == 2


def test_block_of_either_library(xp):
    """NumPy's arrays, then CuPy's: what comes out lies where the weights do."""
    weights = drawn(parameters(True, True))
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    there = {name: xp.asarray(w) for name, w in weights.items()}

    def program(group):
        mine = T.shard_weights(group, there, T.block_layout(HEADS, INNER, 3))
        y, kept = T.decoder_block(group, T.replicate(xp.asarray(x)), mine, T.DecoderBlock(HEADS))
        back = T.replicate(xp.asarray(dy))
        dx, grads = T.decoder_block_grad(group, back, kept, mine, T.DecoderBlock(HEADS))
        assert all(isinstance(g.local, xp.ndarray) for g in (y, dx, *grads.values()))
        return {"y": y, "dx": dx, **grads}

    planned = plan.decoder_block(Stream(B, S, H, 3), 4, 2, 4, bias=True)
    check(3, program, on_one_device(x, dy, weights, True, HEADS, None), planned)


def test_planned_and_counted_side_by_side():
    """Multi-query attention on 4 ranks: four sums of b s h, and one of the kv head's gradient."""
    heads = tile.Heads(4, 1, 4)
    done = check_block(4, heads=heads)
    planned = plan.decoder_block(Stream(B, S, H, 4), 4, 1, 4, bias=True)
    table = T.compared(done.records, planned.calls, itemsize=8)
    assert table["equal"].all()
    assert len(table) == 5
    assert table["counted_bytes"].tolist() == [4 * 2 * 84 * 8] * 4 + [4 * 2 * 2 * 4 * (H + 1) * 6]
    other = T.compared(done.records, planned.inside("layer 0").calls, itemsize=8)
    assert len(other) == 10
    assert not other["equal"].any()
    half = T.compared(done.records, planned.calls, itemsize=4)
    assert not half["equal"].any()


# -- on workers ------------------------------------------------------------------------------------


def block_on_a_worker(rank, weights, x, dy, fused, sequence):
    group = rank.group(1)
    heads = tile.Heads(6, 2, 4)
    mine = T.shard_weights(group, weights, T.block_layout(heads, INNER, group.size))
    block = T.DecoderBlock(heads)
    lies = (lambda a: T.shard(group, a, 1)) if sequence else T.replicate
    with rank.label("layer 0"), rank.step(0):
        y, kept = T.decoder_block(group, lies(x), mine, block)
        dx, grads = T.decoder_block_grad(group, lies(dy), kept, mine, block)
    return {"y": y, "dx": dx, **grads}


@pytest.mark.cluster
@pytest.mark.parametrize("sequence", [False, True])
def test_on_workers_as_on_threads_to_the_bit(cluster, sequence):
    """Tensor-parallel groups along the second axis of a mesh of 2 x 2 workers, and of 1 x 4."""
    heads = tile.Heads(6, 2, 4)
    weights = drawn(parameters(True, True, heads=heads))
    x, dy = draw((B, S, H), (B, S, H), seed=9)
    expected = on_one_device(x, dy, weights, True, heads, None)
    for shape in ((2, 2), (1, 4)):
        args = weights, x, dy, True, sequence
        done = td.run_ranks(block_on_a_worker, td.Mesh(cluster, shape), *args, timeout=60.0)
        threads = run_threads(block_on_a_worker, shape, *args, timeout=60.0)
        t = shape[1]
        planned = plan.decoder_block(Stream(B, S, H, t, sequence), 6, 2, 4, bias=True)
        for mine, theirs in zip(done.results, threads.results, strict=True):
            for name, block in mine.items():
                assert block.local.tobytes() == theirs[name].local.tobytes(), name
        for first in range(0, 4, t):
            for name, value in expected.items():
                got = T.whole_of([r[name] for r in done.results[first : first + t]])
                np.testing.assert_allclose(got, value, rtol=0, atol=1e-12 * np.abs(value).max())
        assert not len(done.records.mismatches)
        each = [sum(r in call.members for call in planned.calls) for r in range(t)]
        assert done.records.barriers == {0: max(each)}
        sent, received = plan.bytes_by_rank(planned.calls, t, 8)
        totals = done.records.where("layer 0/").totals("rank")
        assert [totals[r].sent for r in range(4)] == list(sent) * (4 // t)
        assert [totals[r].received for r in range(4)] == list(received) * (4 // t)


def ends_on_a_worker(rank, table, head, tokens, targets):
    """Embedding, output projection and loss; what all ranks find."""
    group = rank.group()
    mine = T.shard_weights(
        group, {"table": table, "w_head": head}, T.embedding_layout(50257, group.size)
    )
    x, kept_x = T.embedding(group, tokens, mine["table"], to=Shard(1))
    logits, kept = T.column_linear(group, x, mine["w_head"], regather=True, name="head")
    loss, kept_loss = T.cross_entropy(group, logits, targets, smoothing=0.1)
    dlogits = T.cross_entropy_grad(group, 1.0, kept_loss)
    dx, dhead, _ = T.column_linear_grad(group, dlogits, kept, mine["w_head"])
    return float(loss), dhead, T.embedding_grad(group, dx, kept_x, mine["table"])


@pytest.mark.cluster
def test_a_vocabulary_of_50257_on_four_workers(cluster):
    """Unpadded: 12565 classes on one, 12564 on three; with ignored targets and smoothing."""
    table, head = draw((50257, 4), (4, 50257))
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 50257, (2, 1, 5))
    targets[0, 2] = -100
    x, kept_x = tile.embedding(tokens, table)
    logits, kept = tile.linear(x, head)
    loss, kept_loss = tile.cross_entropy(logits, targets, 0.1)
    dx, dhead, _ = tile.linear_grad(tile.cross_entropy_grad(1.0, kept_loss), kept, head)
    args = table, head, tokens, targets
    done = td.run_ranks(ends_on_a_worker, td.Mesh(cluster, (4,)), *args, timeout=60.0)
    assert [r[0] for r in done.results] == [pytest.approx(float(loss), rel=1e-13)] * 4
    assert_close(T.whole_of([r[1] for r in done.results]), dhead)
    assert_close(T.whole_of([r[2] for r in done.results]), tile.embedding_grad(dx, kept_x))
    stream = Stream(1, 5, 4, 4, sequence=True, regather=True)
    planned = plan.embedding(stream).then(
        plan.column_linear(stream, "head"), plan.cross_entropy(stream, 0.1)
    )
    assert_calls(done, planned.calls, 4)
