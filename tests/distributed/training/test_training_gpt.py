"""A small GPT under every layout and schedule is one device's; halves, scaling, checkpoints.

In float64 the comparison is exact to 1e-10, overflows and clipping included; the losses of halves
are golden values.
"""

from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest
from oracles.drawn_layouts import BATCH, MODELS, RULES, Layout, dealt, drawn_layouts, run
from oracles.planned_calls import assert_planned
from oracles.planted_trainings import in_gradients
from oracles.single_gpt import TEXT, assert_single, reference

import tiledask as td
from tiledask.distributed.checkpoints import open_checkpoint, steps_in
from tiledask.distributed.training import GPT, train
from tiledask.errors import ConfigError
from tiledask.lab.sweep import schedule_on
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.plan.program.count import calls
from tiledask.tile.optimizers import SGD, Adam, LossScale

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPT(59, hidden=16, layers=3, heads=4, sequence=8)
RULE = SGD(0.1, momentum=0.9)


def check(shape, model=SMALL, batch=7, **options):
    """A training that has the single device's losses and weights, and the predicted traffic."""
    usual = {"steps": 2, "microbatches": 2, "dtype": "float64", "timeout": 240, "progress": False}
    got = train(model, TEXT, shape, batch=batch, rule=RULE, **usual | options)
    assert list(got.weights) == [f"{u}.{n}" for u in model.units for n in model.parameters(u)]
    assert_single(got, batch, RULE)
    return got


EVERY = [s for s in product((1, 2, 4, 8), repeat=3) if prod(s) <= 8]
"""All 20 layouts of 1, 2, 4 and 8 ranks."""


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", EVERY, ids=str)
def test_every_layout_is_the_single_device(shape):
    """Without a pipeline two micro-batches are as many as any: their gradients are added up."""
    options = {"sequence_parallel": shape[1] in (2, 8), "schedule": ("1f1b", "gpipe")[shape[0] % 2]}
    check(shape, microbatches=4 if shape[2] > 1 else 2, **options)


@pytest.mark.parametrize("gated", [True, False])
def test_norms_and_angles_are_those_that_are_asked_for(gated):
    model = replace(SMALL, gated=gated, eps=0.5, base=20.0)
    usual = check((1, 1, 1), replace(model, eps=None, base=10_000.0))
    got = check((1, 2, 2), model, recompute=True)
    assert abs(got.losses - usual.losses).min() > 1e-3


DEEP = {
    "GPT-2": GPT(59, hidden=16, layers=4, heads=4, sequence=8),
    "Llama tied": GPT(59, 16, 4, 4, 8, kv_heads=1, gated=True, tied=True),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("model", DEEP)
@pytest.mark.parametrize("name", [*td.schedules])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1), {}),
        ((2, 2), {"zero": 3, "sequence_parallel": True, "recompute": True}),
        ((1, 4), {"zero": 1, "recompute": True}),
    ],
    ids=str,
)
def test_every_schedule_trains_what_one_device_does(name, shape, options, model):
    """Those that split backwards too, and with blocks' forwards done again; those that have a stage
    on several ranks, which sum its gradients."""
    options |= {"schedule": (schedule := schedule_on(name, 2, 4)), "microbatches": 4}
    check((*shape, schedule.devices), DEEP[model], batch=8, steps=3, **options)


STEPS = 5
SCALE = LossScale(2.0**10, interval=2)
TINY = GPT(59, hidden=8, layers=1, heads=2, sequence=4)
USUAL = {"batch": 9, "timeout": 240, "progress": False}


def drawn(count, seed):
    """(model, rule, steps before the layout changes, in which step a gradient overflows (-1: none)
    and whether on the last rank, both layouts)."""
    draw = Random(seed)
    models, rules = dealt(draw, MODELS, count), dealt(draw, RULES, count)
    splits, faults = dealt(draw, range(1, STEPS), count), dealt(draw, range(-1, STEPS), count)
    last = dealt(draw, (False, True), count)
    sides = iter(drawn_layouts(draw, [MODELS[name].layers for name in models for _ in range(2)]))
    drawn = zip(models, rules, splits, faults, last, strict=True)
    return [(*each, next(sides), next(sides)) for each in drawn]


def assert_gathered(got):
    """A checkpoint is gathered as its program says: label, kind and bytes of every call; what the
    index and the barriers take comes on top."""
    for rank in range(got.end.ranks):
        said = [(c.label, c.kind, c.sent, c.received) for c in calls(got.end, rank)]
        ended = [r for r in got.records.where("end/", rank=rank) if "checkpoint" not in r.label]
        assert [(r.label, r.kind, r.sent, r.received) for r in ended] == said


CASES = drawn(4, seed=29)
MORE = [pytest.param(*case, marks=pytest.mark.slow) for case in drawn(14, seed=139)]


@pytest.mark.parametrize(
    ("model", "rule", "split", "fault", "last", "before", "after"), [*CASES, *MORE], ids=str
)
def test_any_training_in_any_layouts_is_one_devices(
    monkeypatch, tmp_path, model, rule, split, fault, last, before, after
):
    """Shards, replicas, shared kv heads and a table on two stages count once in the norm that is
    clipped; an overflow in one number of one shard leaves the step out on all ranks; another layout
    goes on with weights, states, scale and count."""
    options, overflows = {"clip": 0.5, "scale": SCALE}, (fault,) if fault >= 0 else ()
    right = reference(MODELS[model], STEPS, BATCH, RULES[rule], overflows=overflows, **options)
    assert np.nanmin(right.norms) > 0.5  # or nothing is clipped
    first = 0
    for layout, steps in ((before, split), (after, STEPS)):
        at, unit = (0, 0, 0), "embedding"
        if last and (MODELS[model].tied or layout.shape[1] == 1):
            at = tuple(n - 1 for n in layout.shape)
            unit = "embedding" if MODELS[model].tied else "head"
        with monkeypatch.context() as patch:
            in_gradients(patch, at, unit, fault - first, np.nan if last else np.inf)
            got = run(model, rule, layout, steps=steps, folder=tmp_path, **options)
        assert (got.config.first, got.config.first + len(got.losses)) == (first, steps)
        assert got.skipped == [step for step in overflows if first <= step < steps]
        assert_single(got, BATCH, RULES[rule], overflows=overflows, **options)
        assert_gathered(got)
        loss = open_checkpoint(tmp_path).about()["loss"]
        assert loss == pytest.approx(got.losses[-1], rel=1e-12)
        first = steps


def test_what_is_done_is_not_done_again(tmp_path):
    layout = Layout((2, 2, 1), "1f1b", (2,), 3, 2, True)
    for _ in range(2):
        got = run("GPT-2 tied", "Adam", layout, steps=3, folder=tmp_path, save_every=2)
    assert repr(got).startswith("Trained(0 steps on 4 ranks (dp=2, tp=2, pp=1), no loss")
    assert steps_in(tmp_path) == (2, 3)
    with pytest.raises(ConfigError, match="checkpoint of step 3, past the last of 2"):
        run("GPT-2 tied", "Adam", layout, steps=2, folder=tmp_path)


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_workers_go_on_with_what_threads_have_saved_to_the_bit(cluster, dtype, tmp_path):
    """Halves as they travel between processes and lie in a checkpoint; steps that are left out."""
    scale = LossScale(2.0**24, backoff=2.0**-12) if dtype == "float16" else None
    case = "Llama tied", "AdamW", Layout((2, 1, 2), "1f1b", (2, 1), 3, 2, False)
    options = {"dtype": dtype, "clip": 0.5, "scale": scale}
    threads = run(*case, steps=5, **options)
    assert threads.skipped == ([0] if scale else [])
    options["folder"] = tmp_path
    before = run(*case, steps=2, **options)
    workers = run(*case, steps=5, ranks=td.Mesh(cluster, (2, 1, 2)), **options)
    for name in ("losses", "scales", "norms"):
        both = np.concatenate([getattr(before, name), getattr(workers, name)])
        assert np.array_equal(both, getattr(threads, name), equal_nan=True)  # of an overflow: NaN
    for name, w in threads.weights.items():
        assert w.tobytes() == workers.weights[name].tobytes(), name


KEPT = {
    "float64 Adam": ("float64", None, Adam(0.05)),
    "float64 momentum": ("float64", None, SGD(0.05, momentum=0.9)),
    "float64 SGD": ("float64", None, SGD(0.05)),
    "fp32-adam": ("float32", "fp32-adam", None),
    "mixed-adam-16": ("float16", "mixed-adam-16", None),
    "mixed-adam-18": ("bfloat16", "mixed-adam-18", None),
    "fp16-sgd": ("float16", "fp16-sgd", SGD(0.05)),
}
"""Type, recipe and rule of trainings."""


def kept(name, stage, ranks, **options):
    dtype, recipe, rule = KEPT[name]
    how = {"steps": 3, "zero": stage, "dtype": dtype, "recipe": recipe, "rule": rule} | options
    return train(TINY, TEXT, (ranks, 1, 1), **USUAL | how)


@pytest.mark.few(10)
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", KEPT)
def test_shards_are_the_plain_replicas_to_the_bit_and_the_planners_bytes(name, stage, ranks):
    """Momentum is sharded from ZeRO-1 on, gradients from 2, weights from 3."""
    got, plain = kept(name, stage, ranks), kept(name, 0, ranks)
    assert got.losses.tolist() == plain.losses.tolist()
    assert all(w.tobytes() == plain.weights[n].tobytes() for n, w in got.weights.items())
    for one, zero in ((got, stage), (plain, 0)) if KEPT[name][1] else ():
        recipe = td.load_recipe(name)
        planned = state_bytes(TINY.size, recipe, zero, ranks)
        assert {tensor: max(held[tensor] for held in one.held) for tensor in one.held[0]} == planned
        for state in recipe.states:
            copies = 1 if state.sharded(zero) and ranks > 1 else ranks
            assert sum(h[state.tensor] for h in one.held) == state.bytes * TINY.size * copies


def test_gradients_in_single_precision_travel_so():
    """mixed-adam-18 sums over dp in float32: twice the bytes, and no sum that overflows."""
    sent = {}
    for name in ("mixed-adam-16", "mixed-adam-18"):
        got = kept(name, 0, 2, steps=1)
        assert_planned(got)
        sent[name] = sum(r.sent for r in got.records.where("gradients", rank=0))
    assert sent["mixed-adam-18"] == 2 * sent["mixed-adam-16"] > 0


def test_masters_keep_what_halves_lose():
    """Steps far below a half's spacing: without masters no weight of 1 ever moves."""
    options = USUAL | {"steps": 8, "dtype": "float16", "rule": SGD(1e-3)}
    masters, none = (
        train(TINY, TEXT, (1, 1, 1), recipe=recipe, **options).weights["layer 0.norm_1.w"]
        for recipe in (None, "fp16-sgd")
    )
    assert min(masters.tolist()) < 1.0
    assert set(none.tolist()) == {1.0}
