"""A training that changes its layout at a checkpoint is the training that never did."""

import shutil
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from oracles.drawn_layouts import BATCH, MODELS, RULES, Layout, dealt, drawn_layouts, run
from oracles.single_gpt import TEXT, assert_single

import tiledask as td
from tiledask.distributed.checkpoints import open_checkpoint, save_checkpoint, steps_in
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.training import GPT, train
from tiledask.errors import CheckpointError, ConfigError
from tiledask.plan.program.count import calls
from tiledask.tile.optimizers import SGD

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 4
SMALL = GPT(59, hidden=8, layers=2, heads=2, sequence=4)


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


PAIRS = drawn_pairs(4, seed=29)
"""The seed of few ranks whose pairs have everything."""
MORE = [pytest.param(pair, marks=pytest.mark.slow) for pair in drawn_pairs(10, seed=139)]


@pytest.mark.few(2)
@pytest.mark.parametrize("pair", [*PAIRS, *MORE], ids=str)
def test_the_layout_changes_and_the_losses_do_not(pair, tmp_path):
    """Both are the single device's, so also those of a training that never changed."""
    first = run(pair.model, pair.rule, pair.before, steps=pair.split, folder=tmp_path)
    then = run(pair.model, pair.rule, pair.after, steps=STEPS, folder=tmp_path)
    assert len(first.losses) == then.first == pair.split == STEPS - len(then.losses)
    for got in (first, then):
        assert_single(got, BATCH, RULES[pair.rule])


def test_three_layouts_in_a_row(tmp_path):
    """Weights, and states of Adam, go through two checkpoints."""
    layouts = [
        Layout((2, 2, 1), "1f1b", (2,), 3, 2, True),
        Layout((1, 1, 2), "interleaved", (1, 0, 0, 1), 0, 3, False),
        Layout((3, 1, 1), "gpipe", (2,), 2, 1, False),
    ]

    def go(layout, steps):
        return run("GPT-2 tied", "Adam", layout, steps=steps, folder=tmp_path)

    runs = [go(*each) for each in zip(layouts, (1, 3, STEPS), strict=True)]
    assert [(r.first, len(r.losses)) for r in runs] == [(0, 1), (1, 2), (3, 1)]
    assert steps_in(tmp_path) == (1, 3, STEPS)
    for got in runs:
        assert_single(got, BATCH, RULES["Adam"])
    again = go(layouts[0], STEPS)
    assert repr(again).startswith("Trained(0 steps on 4 ranks (dp=2, tp=2, pp=1), no loss")
    with pytest.raises(ConfigError, match="checkpoint of step 4, which is past the last of 3"):
        go(layouts[0], 3)


def test_a_checkpoint_says_what_the_loss_was(tmp_path):
    for steps, shape in ((1, (2, 1, 2)), (2, (1, 2, 3))):
        got = train(SMALL, TEXT, shape, steps=steps, batch=3, dtype="float64", folder=tmp_path)
        assert open_checkpoint(tmp_path).about["loss"] == pytest.approx(got.losses[-1], rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"shape": (2, 1, 2), "zero": 1}, {"shape": (3, 2, 1), "zero": 3}, {"shape": (1, 2, 2)}],
    ids=str,
)
def test_a_checkpoint_is_gathered_as_its_program_says(options, tmp_path):
    """Label, kind and bytes of every call; what the index and the barriers take comes on top."""
    shape = options.pop("shape")
    told = {"batch": 4, "dtype": "float32", **options}
    got = train(SMALL, TEXT, shape, steps=2, folder=tmp_path, **told)
    program = td.training_program(SMALL, shape, checkpoint=True, **told).check()
    for rank in range(program.ranks):
        said = [(c.label, c.kind, c.sent, c.received) for c in calls(program, rank)]
        done = [
            (r.label, r.kind, r.sent, r.received)
            for r in got.records
            if r.rank == rank and r.label.startswith("end/") and "checkpoint" not in r.label
        ]
        assert done == said


# -- what cannot be taken up -----------------------------------------------------------------------


def short(folder, steps, model=SMALL, shape=(1, 2, 1), **options):
    options = {"rule": RULES["Adam"], "dtype": "float64", "timeout": 240} | options
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


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"model": GPT(59, 8, 3, 2, 4)}, "layers is 2 there and 3 here"),
        ({"model": GPT(59, 8, 2, 4, 4)}, "heads is 2 there and 4 here"),
        ({"model": GPT(61, 8, 2, 2, 4)}, "vocabulary is 59 there and 61 here"),
        ({"model": GPT(59, 8, 2, 2, 5)}, "sequence is 4 there and 5 here"),
        ({"model": GPT(59, 8, 2, 2, 4, tied=True)}, "tied is False there and True here"),
        ({"model": GPT(59, 8, 2, 2, 4, gated=True)}, "gated is False there and True here"),
        ({"rule": SGD(0.1, momentum=0.9)}, "bytes of variance is 8 there and none here"),
        ({"dtype": "float32"}, "dtype is float64 there and float32 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
    ],
    ids=lambda value: value.split(" is ")[0] if isinstance(value, str) else "",
)
def test_another_training_is_refused(two_steps, other, words):
    """Most of these fit in shape, and would train on with wrong numbers."""
    message = refused(two_steps, words, **other)
    assert "step-00000002 to go on from step 1, or take another folder" in message


def flip(step):
    (path, *_) = sorted(step.glob("rank-0.bin"))
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


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "does not have its checksum"),
        (lambda step: (step / "index.json").unlink(), "cannot be read as a checkpoint's"),
        (without_an_array, "has no array 'variance of layer 1.mlp.w_1'"),
        (of_no_training, "was not written by a training"),
    ],
    ids=["a bit", "no index", "no array", "no training"],
)
def test_a_damaged_checkpoint_is_refused(two_steps, tmp_path, damage, words):
    """The message says what to remove."""
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "step-00000002"
    damage(newest)
    message = refused(tmp_path, words, shapes=((1, 1, 1), (1, 1, 2)))
    assert f"remove {newest} to go on from step 1" in message


# -- on workers ------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_workers_take_up_what_threads_have_written(cluster, tmp_path):
    before = Layout((2, 3, 1), "1f1b", (3,), 3, 2, True)
    after = Layout((2, 1, 2), "interleaved", (1, 1, 0, 1), 1, 3, False)
    options = {"folder": tmp_path, "ranks": td.Mesh(cluster, after.shape)}
    first = run("Llama tied", "AdamW", before, steps=2, folder=tmp_path)
    then = run("Llama tied", "AdamW", after, steps=STEPS, **options)
    for got in (first, then):
        assert_single(got, BATCH, RULES["AdamW"])
    with pytest.raises(CheckpointError, match="seed is 0 there and 7 here"):
        run("Llama tied", "AdamW", after, steps=6, seed=7, **options)
