"""A training that changes its layout at a checkpoint is the training that never did."""

import os
import shutil
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from oracles.drawn_layouts import SCHEDULES, Layout, dealt, drawn_layouts
from oracles.single_gpt import TEXT, assert_single

import tiledask as td
from tiledask.distributed.checkpoints import open_checkpoint, save_checkpoint, steps_in
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.training import GPT, saved, train
from tiledask.distributed.training.states import States
from tiledask.errors import CheckpointError, ConfigError
from tiledask.tile.optimizers import SGD, Adam, AdamW

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, BATCH = 4, 5
SMALL = GPT(59, hidden=8, layers=2, heads=2, sequence=4)
MODELS = {
    "GPT-2": GPT(59, hidden=12, layers=3, heads=3, sequence=6),
    "GPT-2 tied": GPT(59, 12, 4, 3, 6, tied=True),
    "Llama": GPT(53, 12, 4, 3, 6, kv_heads=1, ffn=17, gated=True),
    "Llama tied": GPT(59, 16, 3, 4, 5, kv_heads=2, ffn=7, gated=True, tied=True),
}
RULES = {
    "SGD": SGD(0.1, momentum=0.9),
    "Adam": Adam(1e-2, tiny=1e-6),
    "AdamW": AdamW(1e-2, tiny=1e-6, weight_decay=0.1),
}
"""``tiny`` above the rounding of gradients that are all but zero: Adam would make steps of it."""


# -- pairs of layouts, drawn -----------------------------------------------------------------------


class Pair(NamedTuple):
    """One training, its two layouts, and after how many steps the second takes over."""

    model: str
    rule: str
    split: int
    before: Layout
    after: Layout

    def __str__(self):
        return f"{self.model},{self.rule}: {self.before} -{self.split}- {self.after}"


def drawn_pairs(count, seed):
    """Trainings that change from one random layout to another, after a random step."""
    draw = Random(seed)
    models, rules = dealt(draw, MODELS, count), dealt(draw, RULES, count)
    splits = dealt(draw, range(1, STEPS), count)
    sides = iter(drawn_layouts(draw, [MODELS[name].layers for name in models for _ in range(2)]))
    return [
        Pair(*drawn, next(sides), next(sides)) for drawn in zip(models, rules, splits, strict=True)
    ]


PAIRS = drawn_pairs(4, seed=2515)
"""The seed of few ranks whose pairs have everything."""
MORE = [pytest.param(pair, marks=pytest.mark.slow) for pair in drawn_pairs(10, seed=139)]


def run(model, layout, rule, steps=STEPS, **options):
    ranks = options.pop("ranks", layout.shape)
    return train(
        model,
        TEXT,
        ranks,
        steps=steps,
        batch=BATCH,
        rule=rule,
        **{"dtype": "float64", "timeout": 120.0} | layout.options | options,
    )


def test_the_pairs_have_everything():
    sides = [side for pair in PAIRS for side in (pair.before, pair.after)]
    for which in ("before", "after"):
        half = [getattr(pair, which) for pair in PAIRS]
        assert {side.zero for side in half} == {0, 1, 2, 3}
        assert {side.schedule for side in half} == set(SCHEDULES)
        assert {side.sequence_parallel for side in half} == {False, True}
    assert {pair.model for pair in PAIRS} == set(MODELS)
    assert {pair.rule for pair in PAIRS} == set(RULES)
    assert {pair.split for pair in PAIRS} == set(range(1, STEPS))
    assert {side.microbatches for side in sides} == {1, 2, 3, 4}
    assert any(0 in side.cut for side in sides)
    assert {side.zero for side in sides if side.shape[0] > 1} == {0, 1, 2, 3}
    assert any(side.sequence_parallel and side.shape[1] > 1 for side in sides)
    assert any(side.shape[2] > 1 for side in sides)
    assert any(side.shape[axis] > 2 for axis in range(3) for side in sides)
    assert all(pair.before != pair.after for pair in PAIRS)


@pytest.mark.long
@pytest.mark.parametrize("pair", [*PAIRS, *MORE], ids=str)
def test_the_layout_changes_and_the_losses_do_not(pair, tmp_path):
    """Both are the single device's, so also those of a training that never changed."""
    model, rule = MODELS[pair.model], RULES[pair.rule]
    first = run(model, pair.before, rule, pair.split, folder=tmp_path)
    then = run(model, pair.after, rule, folder=tmp_path)
    assert (len(first.losses), then.first, len(then.losses)) == (
        pair.split,
        pair.split,
        STEPS - pair.split,
    )
    for got in (first, then):
        assert_single(got, BATCH, rule)


@pytest.mark.long
def test_three_layouts_in_a_row(tmp_path):
    """Weights, and states of Adam, go through two checkpoints."""
    model, rule = MODELS["GPT-2 tied"], RULES["Adam"]
    layouts = [
        Layout((2, 2, 1), "1f1b", (4,), 3, 2, True),
        Layout((1, 1, 2), "interleaved", (1, 0, 2, 1), 0, 3, False),
        Layout((3, 1, 1), "gpipe", (4,), 2, 1, False),
    ]
    runs = [
        run(model, layout, rule, steps, folder=tmp_path)
        for layout, steps in zip(layouts, (1, 3, STEPS), strict=True)
    ]
    assert [(r.first, len(r.losses)) for r in runs] == [(0, 1), (1, 2), (3, 1)]
    assert steps_in(tmp_path) == (1, 3, STEPS)
    for got in runs:
        assert_single(got, BATCH, rule)
    again = run(model, layouts[0], rule, folder=tmp_path)
    assert repr(again).startswith("Trained(0 steps on 4 ranks (dp=2, tp=2, pp=1), no loss")
    with pytest.raises(ConfigError, match="checkpoint of step 4, which is past the last of 3"):
        run(model, layouts[0], rule, 3, folder=tmp_path)


@pytest.mark.long
def test_a_checkpoint_says_what_the_loss_was(tmp_path):
    for steps, shape in ((1, (2, 1, 2)), (2, (1, 2, 3))):
        got = train(SMALL, TEXT, shape, steps=steps, batch=3, dtype="float64", folder=tmp_path)
        assert open_checkpoint(tmp_path).about["loss"] == pytest.approx(got.losses[-1], rel=1e-12)


# -- what cannot be taken up -----------------------------------------------------------------------


def short(folder, steps, model=SMALL, shape=(1, 2, 1), **options):
    options = {"rule": RULES["Adam"], "dtype": "float64", "timeout": 60.0} | options
    return train(model, TEXT, shape, steps=steps, batch=2, folder=folder, **options)


@pytest.fixture(scope="module")
def two_steps(one_thread, tmp_path_factory):
    """A folder with checkpoints of step 1 and step 2; nobody writes into it."""
    folder = tmp_path_factory.mktemp("two_steps")
    short(folder, 1)
    short(folder, 2)
    return folder


def refused(folder, words, shapes=((2, 1, 1),), **options):
    """Under each layout, and nothing is written."""
    there = steps_in(folder)
    for shape in shapes:
        with pytest.raises(CheckpointError, match=words) as caught:
            short(folder, 3, shape=shape, **options)
    assert steps_in(folder) == there
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"model": GPT(59, 8, 3, 2, 4)}, "layers is 2 there and 3 here"),
        ({"model": GPT(59, 8, 1, 2, 4)}, "layers is 2 there and 1 here"),
        ({"model": GPT(59, 8, 2, 4, 4)}, "heads is 2 there and 4 here"),
        ({"model": GPT(61, 8, 2, 2, 4)}, "vocabulary is 59 there and 61 here"),
        ({"model": GPT(59, 8, 2, 2, 5)}, "sequence is 4 there and 5 here"),
        ({"model": GPT(59, 8, 2, 2, 4, tied=True)}, "tied is False there and True here"),
        ({"model": GPT(59, 8, 2, 2, 4, gated=True)}, "gated is False there and True here"),
        ({"rule": SGD(0.1, momentum=0.9)}, "bytes of variance is 8 there and none here"),
        ({"rule": SGD(0.1)}, "bytes of momentum is 8 there and none here"),
        ({"dtype": "float32"}, "dtype is float64 there and float32 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
    ],
    ids=lambda value: value.split(" is ")[0] if isinstance(value, str) else "",
)
def test_another_training_is_refused(two_steps, other, words):
    """Most of these fit in shape, and would train on with wrong numbers."""
    message = refused(two_steps, words, **other)
    assert "step-00000002 to go on from step 1, or take another folder" in message


@pytest.mark.long
def test_states_that_were_not_kept_are_refused(tmp_path):
    short(tmp_path, 1, rule=SGD(0.1))
    message = refused(tmp_path, "bytes of momentum is none there and 8 here")
    assert "step-00000001 to begin anew" in message


@pytest.mark.long
def test_what_may_change(tmp_path):
    """A rate, a rule of the same states; and a model said in other words is the same."""
    short(tmp_path, 1)
    same = GPT(59, 8, 2, 2, 4, kv_heads=2, ffn=32)
    assert short(tmp_path, 2, same, rule=AdamW(1e-3)).first == 1


def damaged_file(step):
    (path, *_) = sorted(step.glob("rank-0-*.npy"))
    return path


def cut_short(step):
    path = damaged_file(step)
    os.truncate(path, path.stat().st_size - 8)


def flip(step):
    path = damaged_file(step)
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


def without_an_array(step):
    """Written whole, by a program that left the variance of one weight out."""
    whole = open_checkpoint(step.parent, 2)
    arrays = whole.read()
    del arrays["variance of layer 1.mlp.w_1"]
    shutil.rmtree(step)
    run_threads(lambda rank: save_checkpoint(rank, step.parent, 2, arrays, about=whole.about), 1)


def of_no_training(step):
    shutil.rmtree(step)
    run_threads(lambda rank: save_checkpoint(rank, step.parent, 2, {"w": np.zeros(1)}), 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_short, r"has \d+ bytes and .* needs \d+ of it"),
        (flip, "does not have its checksum"),
        (lambda step: damaged_file(step).unlink(), "cannot be read: No such file"),
        (lambda step: os.truncate(step / "index.json", 1000), "cannot be read as a checkpoint's"),
        (lambda step: (step / "index.json").unlink(), "cannot be read as a checkpoint's"),
        (without_an_array, "has no array 'variance of layer 1.mlp.w_1'"),
        (of_no_training, "was not written by a training"),
    ],
    ids=["cut short", "a bit", "a file gone", "half an index", "no index", "no array", "no train"],
)
def test_a_damaged_checkpoint_is_refused(two_steps, tmp_path, damage, words):
    """The message says what to remove."""
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "step-00000002"
    damage(newest)
    message = refused(tmp_path, words, shapes=((1, 1, 1), (1, 1, 2)))
    assert f"remove {newest} to go on from step 1" in message


@pytest.mark.long
def test_without_what_was_damaged_the_one_before_is_good(two_steps, tmp_path):
    """As where a save was killed between its pieces, which leaves a folder without an index."""
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    torn = (tmp_path / "step-00000002").rename(tmp_path / "step-00000002.unfinished")
    (torn / "index.json").unlink()
    assert steps_in(tmp_path) == (1,)
    again = short(tmp_path, 3, shape=(2, 1, 2), zero=2)
    assert again.first == 1
    assert_single(again, 2, RULES["Adam"])
    assert short(tmp_path, 3).first == 3


# -- on workers ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.cluster
def test_workers_take_up_what_threads_have_written(cluster, tmp_path):
    model, rule = MODELS["Llama tied"], RULES["AdamW"]
    before = Layout((2, 3, 1), "1f1b", (3,), 3, 2, True)
    after = Layout((2, 1, 2), "interleaved", (1, 1, 0, 1), 1, 3, False)
    first = run(model, before, rule, 2, folder=tmp_path)
    then = run(model, after, rule, folder=tmp_path, ranks=td.Mesh(cluster, after.shape))
    for got in (first, then):
        assert_single(got, BATCH, rule)
    with pytest.raises(CheckpointError, match="seed is 0 there and 7 here"):
        run(model, after, rule, 6, folder=tmp_path, ranks=td.Mesh(cluster, after.shape), seed=7)


# -- planted faults --------------------------------------------------------------------------------

SHARDED = (
    Layout((1, 2, 2), "gpipe", (1, 2), 0, 2, False),
    Layout((1, 3, 1), "1f1b", (3,), 0, 1, False),
)
"""59 rows of the table on 3 ranks are 20, 20 and 19."""


@pytest.fixture(scope="module")
def begun(one_thread, tmp_path_factory):
    """By rule: two steps under the first layout, and the folder that they left."""

    def begin(rule):
        folder = tmp_path_factory.mktemp("begun")
        return run(MODELS["GPT-2"], SHARDED[0], RULES[rule], 2, folder=folder), folder

    return cache(begin)


def go_on(begun, folder, rule="Adam", fault=None):
    """Two steps under one layout, then two under the other, with ``fault`` planted in these."""
    _, left = begun(rule)
    shutil.copytree(left, folder, dirs_exist_ok=True)
    model, rule = MODELS["GPT-2"], RULES[rule]
    with pytest.MonkeyPatch.context() as patch:
        if fault:
            fault(patch)
        then = run(model, SHARDED[1], rule, folder=folder)
    assert_single(then, BATCH, rule)


def dropped(tensor):
    honest = States.put
    keep = lambda self, t, name, arrays: None if t == tensor else honest(self, t, name, arrays)  # noqa: E731
    return lambda patch: patch.setattr(States, "put", keep)


def swapped_pieces(patch):
    """Ranks 0 and 1 read each other's, wherever these have one size and rank 2's another.

    Where all are swapped alike no loss moves: columns of the first matrix of a feed-forward and
    rows of its second may be in any order, as long as it is the same.
    """

    def swapped(shape, dim, shards, rank, honest=saved.sharded):
        a, b, *rest = shards.counts
        return honest(shape, dim, shards, 1 - rank if a == b not in rest and rank < 2 else rank)

    patch.setattr(saved, "sharded", swapped)


def steps_forgotten(patch):
    def forgets(stages, job, honest=saved.load):
        honest(stages, job)
        stages.states.steps = 0

    patch.setattr(saved, "load", forgets)


FAULTS = {
    "momentum dropped": ("SGD", dropped("momentum")),
    "variance dropped": ("Adam", dropped("variance")),
    "weights dropped": ("SGD", dropped("weights")),
    "pieces swapped": ("SGD", swapped_pieces),
    "steps of Adam forgotten": ("Adam", steps_forgotten),
}


@pytest.mark.long
def test_without_a_fault(begun, tmp_path):
    go_on(begun, tmp_path, "Adam")


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_noticed(name, begun, tmp_path):
    rule, fault = FAULTS[name]
    with pytest.raises(AssertionError, match="losses: step"):
        go_on(begun, tmp_path, rule, fault)
