"""The big batch's gradient; ZeRO 1, 2 and 3: the plain replica's weights, the planner's bytes.

Holds `tiledask.distributed.data_parallel.chain`, `tiledask.distributed.data_parallel.flat`,
`tiledask.distributed.data_parallel.zero`, `tiledask.plan.collectives.data_parallel` and
`tiledask.plan.fitting.states`.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.calls import assert_calls, assert_close
from oracles.chains import LAYERS, SIZES, batch, parts

import tiledask as td
from tiledask.distributed.data_parallel import zero
from tiledask.distributed.data_parallel.chain import Layer, gradients, initial_weights
from tiledask.distributed.data_parallel.flat import Packing
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives import data_parallel as D
from tiledask.plan.collectives.cost import even
from tiledask.plan.fitting.states import Item, Share, state_rows
from tiledask.tile import layers as L
from tiledask.tile.optimizers import SGD, Adam, rule_for

pytestmark = pytest.mark.usefixtures("one_thread")


# -- averaging -------------------------------------------------------------------------------------


def mean_program(rank, samples, counted, bucket_bytes):
    """The mean of the gradients of all samples, of which each rank has some."""
    group, (x, classes) = rank.group(), batch(sum(samples))
    mine, total = parts(samples)[rank.index], sum(samples)
    count = max(1, len(mine))
    _, grads = gradients(LAYERS, initial_weights(LAYERS), x[mine], classes[mine], count)
    if counted:
        with group.label("samples"):
            total = int(group.all_reduce(np.asarray(len(mine))))
    packing = Packing.of(grads := by_name(grads))
    flat = packing.pack(grads) * (len(mine) / total)
    for i, (start, stop) in enumerate(D.buckets(flat.size, flat.itemsize, bucket_bytes)):
        with group.label(f"bucket {i}"):
            flat[start:stop] = group.all_reduce(flat[start:stop])
    return packing.unpack(flat)


def by_name(weights):
    return {f"{layer}.{n}": w for layer, each in weights.items() for n, w in each.items()}


def check_mean(samples, counted=False, bucket_bytes=25_000_000):
    _, grads = gradients(LAYERS, initial_weights(LAYERS), *batch(sum(samples)))
    done = run_threads(mean_program, len(samples), samples, counted, bucket_bytes)
    for result in done.results:
        for name, g in by_name(grads).items():
            assert_close(result[name], g)
    elements, ranks = sum(SIZES.values()), len(samples)
    calls = D.averaging(elements, ranks, 8, bucket_bytes, counts_samples=counted)
    assert_calls(done.records, calls, ranks)


@pytest.mark.parametrize("samples", [(4, 4, 4), (3, 3, 2), (1, 0, 6, 2), (1, 1, 0, 0, 0), (5,)])
@pytest.mark.parametrize("counted", [False, True])
def test_the_mean_is_that_of_the_big_batch(samples, counted):
    check_mean(samples, counted)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(sum), st.integers(8, 700))
def test_any_samples_in_any_buckets(samples, bucket_bytes):
    check_mean(tuple(samples), bucket_bytes=bucket_bytes)


def test_a_gradient_that_is_missing_or_unknown_is_refused():
    packing = Packing.of({"w": np.ones((2, 2)), "b": np.ones(2)})
    with pytest.raises(PlacementError, match="of 'b' \\(2,\\) was said, and this is missing"):
        packing.pack({"w": np.ones((2, 2))})
    with pytest.raises(PlacementError, match="of 'c' nothing was said, and this is \\(3,\\)"):
        packing.pack({"w": np.ones((2, 2)), "b": np.ones(2), "c": np.ones(3)})
    with pytest.raises(ConfigError, match="a number of 8 bytes or more, got 4 bytes"):
        D.buckets(10, 8, 4)


# -- ZeRO ------------------------------------------------------------------------------------------

WHOLE = td.load_recipe("fp32-adam")
DOUBLE = replace(WHOLE, name="fp64-adam", states=tuple(replace(s, bytes=8) for s in WHOLE.states))
RECIPES = {
    "fp64-adam": DOUBLE,
    "fp64-momentum": replace(DOUBLE, states=DOUBLE.states[:3]),
    "fp64-sgd": replace(DOUBLE, states=DOUBLE.states[:2]),
    "fp32-adam": WHOLE,
    "mixed-adam-16": td.load_recipe("mixed-adam-16"),
    "mixed-adam-18": td.load_recipe("mixed-adam-18"),
    "fp16-sgd": td.load_recipe("fp16-sgd"),
}
STEPS = 4


def types(recipe):
    return {s.tensor: s.bytes for s in recipe.states}


def train(rank, recipe, stage, samples, algorithm, scale=1.0, steps=STEPS):
    """(loss of each step by part, weights, bytes held)."""
    dtype = f"float{8 * types(recipe)['weights']}"
    options = {"rule": rule_for(recipe, 0.05), "scale": scale, "algorithm": algorithm}
    weights = initial_weights(LAYERS)
    mine = zero.Zero(rank.group(), LAYERS, weights, recipe, stage, **options)
    losses = []
    for number in range(steps):
        x, classes = batch(sum(samples), number, dtype)
        here = parts(samples)[rank.index]
        with rank.step(number):
            losses.append(mine.step(x[here], classes[here], sum(samples)))
    return losses, mine.whole(), mine.held


def run_zero(recipe, stage, samples, algorithm=None, run=run_threads, scale=1.0, steps=STEPS):
    done = run(train, len(samples), RECIPES[recipe], stage, samples, algorithm, scale, steps)
    for _, weights, _ in done.results:  # all ranks agree
        assert_same(weights, done.results[0][1])
    return done


def assert_same(weights, others):
    for name, w in by_name(weights).items():
        np.testing.assert_array_equal(w, by_name(others)[name])


def all_numbers(weights):
    return np.concatenate([w.ravel() for w in by_name(weights).values()])


def single(samples, rule=None):
    """Losses and weights of a single device with the whole batch, without any of zero.py."""
    weights = initial_weights(LAYERS)
    rule, losses = rule or Adam(0.05), []
    states = {
        layer: {n: dict.fromkeys(rule.keeps, 0 * w) for n, w in each.items()}
        for layer, each in weights.items()
    }
    for number in range(STEPS):
        loss, grads = gradients(LAYERS, weights, *batch(sum(samples), number))
        losses.append(loss)
        for layer, each in weights.items():
            for n, w in each.items():
                each[n], states[layer][n] = rule.step(
                    w, grads[layer][n], states[layer][n], number + 1
                )
    return losses, weights


plain_replicas = cache(partial(run_zero, stage=0))
"""The training that all stages of ZeRO are compared with."""


@pytest.mark.long
@pytest.mark.few(7)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_are_the_plain_replicas_to_the_bit(recipe, stage):
    samples, scale = (3, 3, 2, 1), 2.0**7 if "16" in recipe else 1.0
    plain = plain_replicas(recipe, samples=samples, scale=scale)
    dealt = run_zero(recipe, stage, samples, scale=scale)
    assert_same(dealt.results[0][1], plain.results[0][1])
    assert [r[0] for r in dealt.results] == [r[0] for r in plain.results]


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize("samples", [(3, 3, 2), (1, 0, 4), (1, 1, 1, 0, 0, 0, 0), (6,)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_training_is_that_of_a_single_device(stage, samples):
    done = run_zero("fp64-adam", stage, samples)
    losses, weights = single(samples)
    np.testing.assert_allclose(np.sum([r[0] for r in done.results], axis=0), losses, rtol=1e-13)
    assert_close(all_numbers(done.results[0][1]), all_numbers(weights), 1e-12)


@pytest.mark.parametrize(
    ("recipe", "rule"), [("fp64-momentum", SGD(0.05, momentum=0.9)), ("fp64-sgd", SGD(0.05))]
)
def test_other_optimizers_are_those_of_a_single_device(recipe, rule):
    done = run_zero(recipe, 3, (3, 2))
    assert_close(all_numbers(done.results[0][1]), all_numbers(single((3, 2), rule)[1]), 1e-13)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_loss_scale_is_taken_out_again(stage):
    """A power of two changes no digit of a float64; Adam alone would not notice it."""
    plain, scaled = (run_zero("fp64-sgd", stage, (3, 2), scale=scale) for scale in (1.0, 2.0**7))
    assert_same(scaled.results[0][1], plain.results[0][1])


@pytest.mark.few(3)
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_other_orders_of_summation(stage, algorithm):
    """On a ring each chunk is summed in its own order: the plain replica's weights to 1e-12."""
    samples = (2, 3, 1, 2, 2)
    plain = plain_replicas("fp64-adam", samples=samples, algorithm="direct").results[0][1]
    dealt = run_zero("fp64-adam", stage, samples, algorithm).results[0][1]
    assert_close(all_numbers(dealt), all_numbers(plain), 1e-12)


@pytest.mark.long
@pytest.mark.few(16)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("recipe", ["fp32-adam", "mixed-adam-16", "fp16-sgd"])
def test_bytes_held_are_the_planners(recipe, stage, ranks):
    done = run_zero(recipe, stage, (2,) * ranks, steps=1)
    held = [r[2] for r in done.results]
    total = sum(SIZES.values())
    item = Item("chain", 1, Share(total), Share(), max(SIZES.values()))
    layout = td.Layout(dp=ranks, zero=stage)
    rows = {row.tensor: row.bytes for row in state_rows(layout, RECIPES[recipe], 0, (item,))}
    assert {tensor: max(h[tensor] for h in held) for tensor in held[0]} == rows
    for state in RECIPES[recipe].states:
        copies = 1 if state.sharded(stage) and ranks > 1 else ranks
        assert sum(h[state.tensor] for h in held) == state.bytes * total * copies


def step_calls(recipe, stage, ranks, algorithm=None):
    b = types(RECIPES[recipe])
    return D.zero_step(SIZES, ranks, stage, b["weights"], b["gradients"], algorithm=algorithm)


@pytest.mark.few(4)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("recipe", "algorithm"), [("fp64-adam", "ring"), ("mixed-adam-18", None)])
def test_traffic_is_the_predicted(recipe, algorithm, stage):
    samples = (2, 1, 3, 2)
    done = run_zero(recipe, stage, samples, algorithm)
    calls = step_calls(recipe, stage, 4, algorithm)
    for number in range(STEPS):
        assert_calls(done.records.where(step=number), calls, 4)
    assert done.records.barriers.get(0) == len(calls) == (3, 6, 6, 9)[stage]


def test_zero_1_and_2_carry_what_an_all_reduce_does_and_3_half_as_much_again():
    for ranks in (2, 3, 4, 7):
        sent = [
            sum(sum(c.cost.sent) for c in step_calls("fp64-adam", stage, ranks))
            for stage in range(4)
        ]
        assert sent[0] == sent[1] == sent[2] == 2 * (ranks - 1) * 8 * sum(SIZES.values())
        assert 2 * sent[3] == 3 * sent[0]


@pytest.mark.long
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 9))
def test_shards_are_even_in_every_layer_and_altogether(layers, ranks):
    dealt = D.shards(layers, ranks)
    assert [sum(e) for e in dealt] == layers
    assert all(max(e) - min(e) <= 1 for e in dealt)
    assert tuple(map(sum, zip(*dealt, strict=True))) == even(sum(layers), ranks)


def test_half_precision_without_a_master_loses_small_updates():
    """1 - 2^-12 is 1 in float16; a master in float32 remembers it."""
    layers = [Layer("only", {"w": L.Parameter((1,))}, None, None)]

    def program(rank, recipe):
        mine = zero.Zero(
            rank.group(), layers, {"only": {"w": np.ones(1)}}, recipe, 0, rule=SGD(1.0)
        )
        for mine.steps in range(1, 5):
            mine.arrays["gradients"]["only"] = np.float16([2.0**-12])
            mine._update("only")
        return mine.arrays["weights"]["only"].item()

    mixed, moments = RECIPES["mixed-adam-16"], Adam().keeps
    states = tuple(s for s in mixed.states if s.tensor not in moments)
    with_master = replace(mixed, states=states)
    assert run_threads(program, 1, RECIPES["fp16-sgd"]).results == [1.0]
    assert run_threads(program, 1, with_master).results == [1 - 2.0**-10]


@pytest.mark.cluster
def test_on_workers(cluster):
    def run(program, ranks, *args):
        return td.run_ranks(program, td.Mesh(cluster, (ranks,)), *args, timeout=60.0)

    samples = (3, 0, 2, 1)
    done = run_zero("mixed-adam-16", 3, samples, run=run)
    assert_same(done.results[0][1], run_zero("mixed-adam-16", 0, samples).results[0][1])
    assert_calls(done.records.where(step=1), step_calls("mixed-adam-16", 3, 4), 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zero": 4}, "stages 1, 2 and 3, and 0 for none; got 4"),
        ({"recipe": "mixed-adam-20"}, "'mixed-adam-20' keeps fp32 gradients, gradients, mast"),
        ({"recipe": "fp32-adam", "rule": SGD()}, "and SGD uses gradients, weights, beside"),
        ({"weights": {"in": {}}}, "each of the 3 layers, got those of 'in'; 'middle' is"),
    ],
    ids=str,
)
def test_refusals(options, words):
    options = {"weights": initial_weights(LAYERS)} | options
    with pytest.raises(ConfigError, match=words):
        run_threads(lambda rank: zero.Zero(rank.group(), LAYERS, **options), 1)


def test_a_stage_that_is_not_planned_is_refused():
    with pytest.raises(ConfigError, match="got 4"):
        D.zero_step(SIZES, 2, 4, 4, 4)
