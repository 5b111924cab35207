"""What a training refuses to begin, to take up and to end with."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from oracles.planted_trainings import in_collectives
from oracles.single_gpt import TEXT

import tiledask as td
from tiledask import errors
from tiledask.distributed.checkpoints import open_checkpoint, save_checkpoint, steps_in
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.training import GPT, config, train
from tiledask.tile.optimizers import SGD, Adam

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPT(59, hidden=8, layers=2, heads=2, sequence=4)


def go(shape=(1, 1, 1), model=SMALL, data=TEXT, gpt=None, **options):
    """``gpt``: what the model has otherwise."""
    options = {"steps": 1, "batch": 2, "timeout": 240, "progress": False} | options
    return train(replace(model, **gpt) if gpt else model, data, shape, **options)


class Wrong:
    """Rows of data, changed on their way."""

    vocabulary = TEXT.vocabulary

    def __init__(self, batch):
        self.batch = batch


def cut_short(*asked):
    ids, targets = TEXT.batch(*asked)
    return ids, targets[:, 1:]


CHUNKS = td.schedule("interleaved", 4, 4, devices=2)
LEFT_OUT = td.schedule("gpipe", 2, 2, forward_only=True)
WIDE = replace(SMALL, hidden=256)
STUCK = td.Schedule.from_text("0F0,0B0,0F1,0B1; 1F1,1B1,1F0,1B0")
MOMENTUM = SGD(0.5, momentum=0.9)
REFUSED = [
    ({"seed": 1.5}, "seed"),
    ({"shape": None}, "three numbers"),
    ({"shape": (2, 2)}, "three numbers"),
    ({"model": None}, "GPT"),
    ({"model": GPT(49, 16, 2, 4, 8)}, "50 different tokens, the model 49"),
    ({"gpt": {"layers": 1.5}}, "layers"),
    ({"gpt": {"hidden": 15, "heads": 4}}, "multiple of heads=4"),
    ({"gpt": {"heads": 4, "kv_heads": 3}}, "multiple of kv_heads=3"),
    ({"gpt": {"heads": 8, "gated": True}}, "even"),
    ({"data": "tales"}, "load_text"),
    ({"rule": "adam"}, "AdamW"),
    ({"scale": 1024}, "LossScale"),
    ({"clip": float("nan")}, "norm above 0"),
    ({"zero": 4}, "ZeRO"),
    ({"dtype": "int8"}, "bfloat16"),
    ({"dtype": "float16", "recipe": "fp32-adam"}, "4 B"),
    ({"dtype": "float16", "recipe": "mixed-adam-16", "rule": MOMENTUM}, "SGD uses"),
    ({"dtype": "float16", "recipe": "mixed-adam-20"}, "fp32 gradients"),
    ({"save_every": 5}, "folder="),
    # all rows for each copy: a loss twice as large, without a word
    ({"shape": (2, 1, 1), "data": Wrong(lambda *asked: TEXT.batch(*asked[:-1]))}, "rows"),
    ({"data": Wrong(cut_short)}, "rows"),
    ({"schedule": None}, "schedule"),
    ({"shape": (1, 1, 2), "schedule": CHUNKS, "microbatches": 6}, "microbatches="),
    ({"shape": (1, 1, 3), "schedule": CHUNKS}, "pp=3"),
    ({"shape": (1, 1, 2), "schedule": LEFT_OUT}, "backwards"),
    ({"shape": (1, 1, 2), "schedule": "interleaved"}, "devices", errors.ScheduleError),
    ({"schedule": "zigzag"}, "zigzag", errors.ScheduleError),
    ({"shape": (1, 1, 2), "schedule": STUCK}, "deadlock", errors.ScheduleError),
    ({"cut": 2}, "cut"),
    ({"cut": (1, 1)}, "1 stages"),
    ({"shape": (1, 1, 3), "cut": (3, -1, 0)}, "add up to 2", errors.PartitionError),
    ({"shape": (1, 1, 2), "cut": (2, 2)}, "4 together", errors.PartitionError),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{[*case[0]]} {case[1]}")
def test_what_makes_no_sense_is_refused(case):
    options, word, *error = case
    with pytest.raises(*error or [errors.ConfigError], match=word):
        go(**options)


def test_an_order_that_nobody_looked_at_is_refused_as_a_program(monkeypatch):
    monkeypatch.setattr(config, "validate", lambda schedule: schedule)
    with pytest.raises(errors.ProgramError, match=r"deadlock: .* 0B.0: .*waits for rank 1"):
        go((1, 1, 2), schedule=STUCK)


@pytest.mark.parametrize(
    ("label", "shape", "words"),
    [
        ("/gradients", (2, 1, 2), "copies 0 and 1"),
        ("embedding/gradients", (2, 1, 1), "copies 0 and 1"),
        ("tied table", (1, 1, 2), "embedding.table is on several pipeline ranks"),
    ],
)
def test_weights_that_came_apart_are_refused(monkeypatch, label, shape, words):
    """Planted: what a rank has brought is taken for the sum."""
    in_collectives(monkeypatch, label, lambda runner, mine, total: mine)
    with pytest.raises(errors.PlacementError, match=words):
        go(shape, gpt={"tied": "tied" in label}, batch=4, steps=2)


@pytest.mark.cluster
def test_a_training_that_does_not_fit_is_refused_before_anything_runs(cluster, monkeypatch):
    mesh, tasks = td.Mesh(cluster, (2, 1, 1)), cluster.given.scheduler.tasks
    monkeypatch.setattr(cluster, "memory_limits", (40_000_000,) * cluster.slots)
    before, words = len(tasks), r"slot 0 leaves .*: workers with more memory"
    with pytest.raises(errors.DoesNotFitError, match=words):
        go(mesh, WIDE)
    assert len(tasks) == before
    assert len(go(mesh, WIDE, zero=1).losses) == 1


def short(folder, steps, **options):
    usual = {"shape": (1, 2, 1), "rule": Adam(1e-2), "dtype": "float64"}
    return go(folder=folder, steps=steps, **usual | options)


@pytest.fixture(scope="module")
def two_steps(one_thread, tmp_path_factory):
    """A folder with checkpoints of step 1 and step 2; nobody writes into it."""
    folder = tmp_path_factory.mktemp("two_steps")
    short(folder, 2, save_every=1)
    return folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpt": {"layers": 3}}, "layers is 2 there and 3 here"),
        ({"gpt": {"heads": 4}}, "heads is 2 there and 4 here"),
        ({"gpt": {"vocabulary": 61}}, "vocabulary is 59 there"),
        ({"gpt": {"sequence": 5}}, "sequence is 4 there"),
        ({"gpt": {"tied": True}}, "tied is False there"),
        ({"gpt": {"gated": True}}, "gated is False there"),
        ({"gpt": {"eps": 0.5}}, "eps is None there and 0.5 here"),
        ({"rule": MOMENTUM}, "variance is 8 there and none here"),
        ({"dtype": "float32"}, "dtype is float64 there"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
    ],
)
def test_another_training_is_refused(two_steps, options, words):
    """Most of these fit in shape, and would train on with wrong numbers."""
    with pytest.raises(errors.CheckpointError, match=words) as caught:
        short(two_steps, 3, shape=(2, 1, 1), **options)
    assert "step-00000002 to go on from step 1, or take another folder" in str(caught.value)
    assert steps_in(two_steps) == (1, 2)


def flip(step):
    path = step / "rank-0.zip"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


def written(step, arrays, about=None):
    shutil.rmtree(step)
    run_threads(lambda rank: save_checkpoint(rank, step.parent, 2, arrays, about=about), 1)


def without_an_array(step):
    """Written whole, by a program that left the variance of one weight out."""
    saved = open_checkpoint(step.parent, 2)
    arrays = saved.read()
    del arrays["variance of layer 1.mlp.w_1"]
    written(step, arrays, saved.about())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "is damaged"),
        (lambda step: (step / "index.zip").unlink(), "cannot be read"),
        (without_an_array, "has no array 'variance of layer 1.mlp.w_1'"),
        (lambda step: written(step, {"w": np.zeros(1)}), "was not written by a training"),
    ],
)
def test_a_damaged_checkpoint_is_refused(two_steps, tmp_path, damage, words):
    """The message says what to remove."""
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "step-00000002"
    damage(newest)
    with pytest.raises(errors.CheckpointError, match=words) as caught:
        short(tmp_path, 3, shape=(1, 1, 2))
    assert f"remove {newest} to go on from step 1" in str(caught.value)


def test_a_folder_that_cannot_be_one_is_refused_before_the_training(tmp_path):
    (tmp_path / "file").touch()
    data = Wrong(lambda *asked: pytest.fail("it was begun"))
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(errors.CheckpointError, match=f"{folder} cannot be written"):
            go(data=data, folder=folder)
