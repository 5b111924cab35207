"""Halves with masters, loss scaling and clipping in a training, under every kind of layout."""

from dataclasses import replace

import numpy as np
import pytest
from oracles.planned_calls import assert_planned
from oracles.single_gpt import TEXT, farthest, gradient

from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.training import GPT, stages, train
from tiledask.distributed.training.grad_norm import Guard
from tiledask.errors import ConfigError, DivergedError
from tiledask.lab.precision import acceptable
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.tile import layers as L
from tiledask.tile.optimizers import SGD, Adam, LossScale, advance, begin

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPT(59, hidden=16, layers=2, heads=4, sequence=8)
TIED = GPT(59, hidden=16, layers=2, heads=4, sequence=8, tied=True)
SHARED = GPT(59, hidden=16, layers=2, heads=4, sequence=8, kv_heads=2, ffn=27, gated=True)
LAYOUTS = [
    (SMALL, (1, 1, 1), {}),
    (SMALL, (3, 1, 1), {"zero": 1}),
    (SMALL, (2, 2, 1), {"zero": 2, "sequence_parallel": True}),
    (SMALL, (2, 1, 2), {"zero": 3}),
    (SMALL, (1, 3, 2), {}),
    (TIED, (1, 2, 2), {}),
    (TIED, (2, 1, 2), {"zero": 1}),
    (SHARED, (1, 3, 1), {"sequence_parallel": True}),
    (SHARED, (2, 4, 1), {"zero": 3}),
]
"""Norms that tensor ranks share, kv heads that they share, a table that stages share."""
NAMES = [f"{'x'.join(map(str, shape))}-{'-'.join(o) or 'plain'}" for _, shape, o in LAYOUTS]
RULE = SGD(0.5, momentum=0.9)
CLIP = 0.3
BATCH, STEPS = 7, 4


def run(model=SMALL, shape=(1, 1, 1), **options):
    usual = {"steps": STEPS, "batch": BATCH, "microbatches": 2, "rule": RULE, "dtype": "float64"}
    return train(model, TEXT, shape, **usual | {"timeout": 60.0} | options)


REFERENCES = {}


def clipped(model):
    """(losses, norms, weights) of one device that clips, in float64."""
    if model not in REFERENCES:
        weights = {}
        for unit in model.units:
            drawn = L.initialise(model.parameters(unit), 0, prefix=f"{unit}.", dtype="float64")
            weights |= {f"{unit}.{name}": w for name, w in drawn.items()}
        state, losses, norms = begin(weights, RULE), [], []
        for step in range(STEPS):
            batch = TEXT.batch(0, step, BATCH, model.sequence)
            loss, grads = gradient(model, state.weights, *batch)
            state, _, norm = advance(state, RULE, grads, limit=CLIP)
            losses.append(loss)
            norms.append(norm)
        REFERENCES[model] = np.array(losses), np.array(norms), state.weights
    return REFERENCES[model]


def check_clipped(got, tolerance=1e-10):
    losses, norms, weights = clipped(got.model)
    assert norms.min() > CLIP  # or nothing is clipped
    assert np.abs(got.norms / norms - 1).max() <= tolerance, "another norm"
    assert np.abs(got.losses / losses - 1).max() <= tolerance, "another loss"
    far, name = farthest(got.weights, weights, got.model, RULE)
    assert far <= tolerance, name


# -- clipping and scaling change nothing that they should not --------------------------------------


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize(("model", "shape", "options"), LAYOUTS, ids=NAMES)
def test_clipping_is_that_of_a_single_device(model, shape, options):
    """Each number counts once in the norm, wherever it lies and however many ranks have it."""
    got = run(model, shape, clip=CLIP, **options)
    check_clipped(got)
    assert_planned(got)
    assert got.to_frame().norm.tolist() == got.norms.tolist()


@pytest.mark.long
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_scaled_loss_is_the_same_training(zero):
    """A power of two scales gradients without rounding them."""
    got = run(shape=(2, 1, 1), zero=zero, clip=CLIP, scale=LossScale(2.0**20, interval=2))
    check_clipped(got)
    assert got.scales.tolist() == [2.0**20, 2.0**20, 2.0**21, 2.0**21]
    assert got.to_frame().loss_scale.tolist() == got.scales.tolist()
    assert got.skipped == []


def test_what_nobody_asks_for_is_not_exchanged():
    got = run(shape=(1, 2, 1))
    assert not len(got.norms)
    assert not len(got.records.where("norm", kind="all_reduce", rank=0).where("update"))
    assert "norm" not in got.to_frame()


# -- halves ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("model", "shape", "options"), LAYOUTS[2::2], ids=NAMES[2::2])
def test_halves_are_one_device_s_but_for_round_off(dtype, model, shape, options):
    options = options | {"dtype": dtype, "rule": SGD(0.1, momentum=0.9), "clip": 1.0}
    alone, split = (run(model, s, **options) for s in ((1, 1, 1), shape))
    ranks = shape[0] * shape[1]
    for step, (a, b) in enumerate(zip(alone.losses, split.losses, strict=True), 1):
        said = acceptable(a, b, step, dtype, max(ranks, 2), model.layers)
        assert said.grade == "round-off", said
    assert split.losses[-1] < split.losses[0] - 0.05
    assert split.weights["head.norm.w"].dtype.name == dtype
    assert_planned(split)


def test_bytes_are_those_of_the_planners_recipe():
    """16 B a parameter with gradients in halves, 18 B with gradients in single precision."""
    for name, each in (("mixed-adam-16", 16), ("mixed-adam-18", 18)):
        got = run(dtype="bfloat16", recipe=name, rule=None, steps=1)
        assert got.held == [{s.tensor: s.bytes * SMALL.size for s in load_recipe(name).states}]
        assert sum(got.held[0].values()) == each * SMALL.size
    dealt = run(
        shape=(4, 1, 1), dtype="float16", recipe="mixed-adam-16", rule=None, steps=1, zero=3
    )
    assert sum(sum(h.values()) for h in dealt.held) == 16 * SMALL.size


@pytest.mark.long
def test_gradients_in_single_precision_travel_so():
    """mixed-adam-18 sums over dp in float32: twice the bytes, and no sum that overflows."""
    sent = {}
    for name in ("mixed-adam-16", "mixed-adam-18"):
        got = run(shape=(2, 1, 1), dtype="float16", recipe=name, rule=None, steps=1)
        assert_planned(got)
        rows = got.records.where("gradients", rank=0)
        sent[name] = sum(r.sent for r in rows)
        assert {r.dtype for r in rows} == {"float16" if name[-1] == "6" else "float32"}
    assert sent["mixed-adam-18"] == 2 * sent["mixed-adam-16"] > 0


@pytest.mark.long
def test_masters_keep_what_halves_lose():
    """Steps far below a half's spacing: without masters no weight of 1 ever moves."""
    options = {"dtype": "float16", "rule": SGD(1e-3), "steps": 8, "batch": 4}
    lost = run(recipe="fp16-sgd", **options)
    kept = run(**options)
    assert "master weights" not in lost.held[0]
    assert "master weights" in kept.held[0]
    single = run(**options | {"dtype": "float32"})
    moved = np.abs(single.weights["layer 0.norm_1.w"] - 1).max()
    assert 8 * 2.0**-15 < moved < 8 * 2.0**-12  # of eight steps; one is below half a spacing
    assert set(lost.weights["layer 0.norm_1.w"].tolist()) == {1.0}
    assert min(kept.weights["layer 0.norm_1.w"].tolist()) == 1 - 2.0**-11


def asked(rank, mine):
    """(what a Guard says, its scale afterwards) on each rank, with that rank's squares."""
    guard = Guard(rank.group(), LossScale(8.0), 1.0)
    return guard.factor(mine[rank.index]), guard.loss_scale


@pytest.mark.parametrize("mine", [(4.0, np.inf, 9.0), (np.nan, 1.0, 1.0)])
def test_one_rank_s_overflow_is_everybody_s(mine):
    assert run_threads(asked, 3, mine).results == [(None, 4.0)] * 3


def test_one_norm_for_all():
    """(576 + 64 + 0)^(1/2) is 25.3 of the scaled loss, and 3.16 of the loss."""
    by = 1 / np.sqrt(10)
    assert run_threads(asked, 3, (576.0, 64.0, 0.0)).results == [(pytest.approx(by), 8.0)] * 3
    assert run_threads(asked, 2, (1.0, 1.0)).results == [(1.0, 8.0)] * 2


# -- steps that are left out -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("model", "shape", "options"), LAYOUTS[1::2], ids=NAMES[1::2])
def test_an_overflow_anywhere_leaves_the_step_out_everywhere(model, shape, options):
    scale = LossScale(2.0**22, interval=3, backoff=0.25)
    got = run(model, shape, dtype="float16", scale=scale, steps=6, **options)
    assert got.skipped[:2] == [0, 1]
    assert len(got.skipped) < 6
    assert got.scales[:3].tolist() == [2.0**22, 2.0**20, 2.0**18]
    assert_planned(got)
    assert f"{len(got.skipped)} left out" in repr(got)


@pytest.mark.long
def test_a_step_that_is_left_out_changes_nothing(tmp_path):
    """Not the weights, not the moments, not the count of steps that Adam divides by."""
    options = {"dtype": "float16", "rule": Adam(1e-2), "shape": (1, 2, 1)}
    twice = LossScale(2.0**24, interval=2000, backoff=2.0**-8)
    got = run(steps=5, scale=twice, **options)
    assert got.skipped == [0]

    class Later:
        vocabulary = TEXT.vocabulary

        def batch(self, seed, step, *rest):
            return TEXT.batch(seed, step + 1, *rest)

    without = train(
        SMALL,
        Later(),
        (1, 2, 1),
        steps=4,
        batch=BATCH,
        microbatches=2,
        rule=Adam(1e-2),
        dtype="float16",
        scale=replace(twice, scale=2.0**16),
    )
    assert got.losses[1:].tolist() == without.losses.tolist()
    for name, w in without.weights.items():
        assert np.array_equal(got.weights[name], w), name


@pytest.mark.long
def test_the_scale_goes_on_where_it_was(tmp_path):
    options = {"dtype": "float16", "rule": Adam(1e-2), "scale": LossScale(2.0**22, interval=3)}
    through = run(steps=9, **options)
    run(steps=4, shape=(1, 2, 1), folder=tmp_path, **options)
    then = run(steps=9, shape=(2, 1, 1), zero=2, folder=tmp_path, **options)
    assert then.first == 4
    assert then.scales.tolist() == through.scales[4:].tolist()
    assert len(set(through.scales[4:])) > 1  # or nothing is seen
    assert acceptable(through.losses[-1], then.losses[-1], 9, "float16", 2, 2)


@pytest.mark.long
def test_a_run_that_cannot_be_saved_says_so():
    with pytest.raises(DivergedError, match="3 steps in a row overflowed at the static scale"):
        run(shape=(2, 1, 1), dtype="float16", scale=LossScale.static(2.0**30, patience=3), steps=9)


def test_refusals():
    with pytest.raises(ConfigError, match="dtype is one of float32, float64, float16, bfloat16"):
        run(dtype="int8")
    with pytest.raises(ConfigError, match=r"keeps weights of 4 B .* a number in float16 has 2 B"):
        run(dtype="float16", recipe="fp32-adam")
    with pytest.raises(ConfigError, match="SGD uses gradients, momentum, weights, beside master"):
        run(dtype="float16", recipe="mixed-adam-16")
    with pytest.raises(ConfigError, match="clipped to a norm above 0, got -1"):
        run(clip=-1)


# -- planted faults --------------------------------------------------------------------------------


@pytest.mark.long
def test_numbers_that_are_counted_twice_are_noticed(monkeypatch):
    monkeypatch.setattr(stages.Stages, "_counted", lambda self, unit: None)
    for model, shape in ((SMALL, (1, 2, 1)), (TIED, (1, 1, 2)), (SHARED, (1, 4, 1))):
        with pytest.raises(AssertionError, match="another norm"):
            check_clipped(run(model, shape, clip=CLIP))


@pytest.mark.long
def test_a_scale_that_is_not_divided_out_is_noticed(monkeypatch):
    monkeypatch.setattr(stages, "head_grad", lambda flow, kept, w, scale: HEAD(flow, kept, w))
    with pytest.raises(AssertionError, match="another norm"):
        check_clipped(run(clip=CLIP, scale=LossScale(2.0**20)))


HEAD = stages.head_grad
