"""Halves, loss scaling, clipping and ZeRO: one device's training, and the planner's bytes.

In float64 the comparison is exact to 1e-10, overflows and clipping included; the losses of halves
are golden values.

Holds `tiledask.distributed.training.trainer`, `tiledask.plan.collectives.shards` and
`tiledask.plan.program.making.zero`.
"""

from collections import defaultdict
from random import Random

import numpy as np
import pytest
from oracles.drawn_layouts import BATCH, MODELS, RULES, Layout, dealt, drawn_layouts, run
from oracles.planned_calls import assert_planned
from oracles.planted_trainings import in_gradients
from oracles.single_gpt import TEXT, assert_single, reference

import tiledask as td
from tiledask.distributed.training import GPT
from tiledask.distributed.training.trainer import Trainer
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.tile.optimizers import SGD, Adam, LossScale

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = LossScale(2.0**10, interval=2)


def drawn_cases(count, seed):
    """(model, rule, layout) of trainings."""
    draw = Random(seed)
    models, rules = dealt(draw, MODELS, count), dealt(draw, RULES, count)
    layouts = drawn_layouts(draw, [MODELS[name].layers for name in models])
    return [*zip(models, rules, layouts, strict=True)]


CASES = drawn_cases(4, seed=27997)
"""The seed of few ranks whose cases have everything."""
MORE = [pytest.param(*case, marks=pytest.mark.slow) for case in drawn_cases(8, seed=115)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("model", "rule", "layout"), [*CASES, *MORE], ids=str)
def test_the_norm_is_one_device_s(model, rule, layout):
    """Shards, replicas, shared kv heads and a table on two stages: each number counts once."""
    clip = 0.5
    alone = reference(MODELS[model], 3, BATCH, RULES[rule], clip=clip)
    assert alone.norms.min() > clip  # or nothing is clipped
    assert_single(run(model, rule, layout, clip=clip, steps=3), BATCH, RULES[rule], clip=clip)


OVERFLOWS = [
    (Layout((2, 2, 2), "1f1b", (1, 2), 0, 2, False), "GPT-2"),
    (Layout((2, 2, 2), "gpipe", (2, 1), 1, 2, True), "Llama tied"),
    (Layout((2, 1, 2), "interleaved", (1, 0, 0, 1), 2, 3, False), "GPT-2 tied"),
    (Layout((3, 2, 1), "1f1b", (3,), 3, 1, False), "GPT-2"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize(("layout", "model"), OVERFLOWS, ids=str)
def test_an_overflow_of_one_rank_leaves_the_step_out_on_all(monkeypatch, layout, model, which):
    """In one number of one shard: of the table on the first rank, of the logits on the last."""
    at, unit = (0, 0, 0), "embedding"
    if which == "last":
        at = tuple(n - 1 for n in layout.shape)
        unit = "embedding" if MODELS[model].tied else "head"
        if unit == "head" and layout.shape[1] > 1:
            unit = f"layer {MODELS[model].layers - 1}"
    spoken, honest = defaultdict(list), Trainer._guard

    def overheard(self, *reads):
        factor, _ = honest(self, *reads)
        spoken[self].append((np.isnan(factor), self.scale))
        return factor, _

    monkeypatch.setattr(Trainer, "_guard", overheard)
    in_gradients(monkeypatch, at, unit, 1, (np.inf, np.nan)[which == "last"])
    options = {"clip": 0.5, "scale": SCALE}
    got = run(model, "Adam", layout, steps=5, **options)
    assert got.skipped == [1]
    assert_single(got, BATCH, RULES["Adam"], overflows=(1,), **options)
    assert got.scales.tolist() == [2.0**10, 2.0**10, 2.0**9, 2.0**9, 2.0**10]
    one, *others = spoken.values()
    assert len(others) + 1 == np.prod(layout.shape)
    assert all(said == one for said in others)
    assert [left_out for left_out, _ in one] == [False, True, False, False, False]


@pytest.mark.few(1)
@pytest.mark.parametrize("split", [1, 2, 3, 4])
def test_a_training_goes_on_with_its_scale_and_its_count(monkeypatch, tmp_path, split):
    """Grown after 2 good steps, fallen in step 2: wherever it is cut, the same 5 scales, and
    Adam's count of the steps that were taken."""
    layouts = (
        Layout((2, 1, 2), "interleaved", (1, 0, 0, 1), 3, 2, True),
        Layout((1, 3, 2), "1f1b", (1, 1), 0, 3, False),
    )
    options, scales, first = {"clip": 0.5, "scale": SCALE}, [], 0
    for layout, steps in zip(layouts, (split, 5), strict=True):
        with monkeypatch.context() as patch:
            in_gradients(patch, (0, 0, 0), "embedding", 2 - first, np.inf)
            got = run("GPT-2 tied", "Adam", layout, steps=steps, folder=tmp_path, **options)
        scales, first = [*scales, *got.scales], steps
    assert scales == [2.0**10, 2.0**10, 2.0**11, 2.0**10, 2.0**10]
    assert_single(got, BATCH, RULES["Adam"], overflows=(2,), **options)


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_workers_do_what_threads_do_to_the_bit(cluster, dtype, tmp_path):
    """Halves as they travel between processes and lie in a checkpoint; steps that are left out."""
    scale = LossScale(2.0**24, backoff=2.0**-12) if dtype == "float16" else None
    options = {"dtype": dtype, "clip": 0.5, "scale": scale}
    case = "Llama tied", "AdamW", Layout((2, 1, 2), "1f1b", (2, 1), 3, 2, False)
    threads = run(*case, steps=5, **options)
    assert threads.skipped == ([0] if scale else [])
    options |= {"ranks": td.Mesh(cluster, (2, 1, 2)), "folder": tmp_path}
    before, workers = (run(*case, steps=steps, **options) for steps in (2, 5))
    for name in ("losses", "scales", "norms"):
        both = np.concatenate([getattr(before, name), getattr(workers, name)])
        assert np.array_equal(both, getattr(threads, name), equal_nan=True)  # of an overflow: NaN
    for name, w in threads.weights.items():
        assert w.tobytes() == workers.weights[name].tobytes(), name


# -- what is kept ----------------------------------------------------------------------------------

MODEL = GPT(59, hidden=8, layers=1, heads=2, sequence=4)
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
    how = {"steps": 3, "batch": 9, "timeout": 240, "progress": False} | options
    how |= {"zero": stage, "dtype": dtype, "recipe": recipe, "rule": rule}
    return td.train(MODEL, TEXT, (ranks, 1, 1), **how)


@pytest.mark.few(4)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", KEPT)
def test_weights_are_the_plain_replicas_to_the_bit(name, stage):
    got, other = kept(name, stage, 4), kept(name, 0, 4)
    assert got.losses.tolist() == other.losses.tolist()
    assert all(w.tobytes() == other.weights[n].tobytes() for n, w in got.weights.items())


@pytest.mark.few(8)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", [name for name, of in KEPT.items() if of[1]])
def test_bytes_held_are_the_planners(name, stage, ranks):
    """Momentum is sharded from ZeRO-1 on, gradients from 2, weights from 3."""
    got, recipe = kept(name, stage, ranks, steps=1), td.load_recipe(name)
    planned = state_bytes(MODEL.size, recipe, stage, ranks)
    assert {tensor: max(held[tensor] for held in got.held) for tensor in got.held[0]} == planned
    for state in recipe.states:
        copies = 1 if state.sharded(stage) and ranks > 1 else ranks
        assert sum(h[state.tensor] for h in got.held) == state.bytes * MODEL.size * copies


def test_gradients_in_single_precision_travel_so():
    """mixed-adam-18 sums over dp in float32: twice the bytes, and no sum that overflows."""
    sent = {}
    for name, dtype in {"mixed-adam-16": "float16", "mixed-adam-18": "float32"}.items():
        got = kept(name, 0, 2, steps=1)
        assert_planned(got)
        rows = got.records.where("gradients", rank=0)
        sent[name] = sum(r.sent for r in rows)
        assert {r.dtype for r in rows} == {dtype}
    assert sent["mixed-adam-18"] == 2 * sent["mixed-adam-16"] > 0


def test_masters_keep_what_halves_lose():
    """Steps far below a half's spacing: without masters no weight of 1 ever moves."""
    options = {"steps": 8, "batch": 4, "dtype": "float16", "rule": SGD(1e-3), "progress": False}
    masters, none = (
        td.train(MODEL, TEXT, (1, 1, 1), recipe=recipe, **options).weights["layer 0.norm_1.w"]
        for recipe in (None, "fp16-sgd")
    )
    assert min(masters.tolist()) < 1.0
    assert set(none.tolist()) == {1.0}
