"""What a training refuses to begin, and in which words; absurd sizes that it does not refuse.

Holds `tiledask.distributed.training.gpt` and `tiledask.distributed.training.run`.
"""

import numpy as np
import pytest
from oracles.single_gpt import TEXT, assert_single

import tiledask as td
from tiledask.distributed.training import GPT, train
from tiledask.errors import CheckpointError, ConfigError, PartitionError, ScheduleError
from tiledask.tile.optimizers import SGD

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPT(59, hidden=8, layers=2, heads=2, sequence=4)


def said(value):
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ""


def go(shape=(1, 1, 1), model=SMALL, data=TEXT, **options):
    options = {"steps": 1, "batch": 2, "timeout": 240, "progress": False} | options
    return train(model, data, shape, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 2.0}, r"steps must be a whole number of 0 or more, got 2\.0"),
        ({"batch": 0}, "batch must be a whole number of 1 or more, got 0"),
        ({"seed": 1.5}, r"seed must be a whole number, got 1\.5"),
        ({"shape": (1, 0, 1)}, "tp must be a whole number of 1 or more, got 0"),
        ({"shape": None}, r"a mesh \(dp, tp, pp\), three numbers; got \(None,\)"),
        ({"model": None}, r"model is tiledask.GPT\(vocabulary, hidden, layers, heads, sequence\)"),
        ({"data": "tales"}, r"data is load_text\(name\), or what has vocabulary and batch"),
        ({"rule": "adam"}, r"rule is SGD\(rate\), Adam\(rate\) or AdamW\(rate\), got 'adam'"),
        ({"scale": 1024}, r"scale is LossScale\(65536\.0\), .*LossScale.static.*, got 1024"),
        ({"schedule": None}, "schedule is a name, or a Schedule, got None"),
        ({"cut": 2}, "a cut is the number of layers of each stage, got 2"),
        ({"cut": (1, 1)}, r"has 1 stages, the cut \(1, 1\) has 2"),
        ({"clip": float("nan")}, "clipped to a norm above 0, got nan"),
        ({"shape": (2, 2)}, r"a mesh \(dp, tp, pp\), three numbers; got \(2, 2\)"),
        ({"model": GPT(49, 16, 2, 4, 8)}, "50 different tokens, the model 49"),
        ({"shape": (1, 1, 2), "cut": (2,)}, r"has 2 stages, the cut \(2,\) has 1"),
        ({"zero": 4}, "ZeRO has stages 1, 2 and 3, and 0 for none; got 4"),
        ({"dtype": "int8"}, "dtype is one of float32, float64, float16, bfloat16"),
        (
            {"dtype": "float16", "recipe": "fp32-adam"},
            r"keeps weights of 4 B .* a number in float16 has 2 B",
        ),
        (
            {"dtype": "float16", "recipe": "mixed-adam-16", "rule": SGD(0.5, momentum=0.9)},
            "SGD uses gradients, momentum, weights, beside master",
        ),
        ({"recipe": "mixed-adam-20", "dtype": "float16"}, "keeps fp32 gradients, gradients, mast"),
    ],
    ids=said,
)
def test_what_makes_no_sense_is_said(options, words):
    with pytest.raises(ConfigError, match=words):
        go(**options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eps": 0}, "a GPT's eps is a number above 0, got 0"),
        ({"base": "10"}, "a GPT's base is a number above 0, got '10'"),
        ({"heads": 0}, "a GPT's heads must be a whole number of 1 or more, got 0"),
        ({"tied": 1}, "a GPT's tied is True or False, got 1"),
        ({"hidden": 15, "heads": 4}, "hidden is a multiple of heads=4; got hidden=15, heads=4"),
        ({"heads": 4, "kv_heads": 3}, "heads=4 is a multiple of kv_heads=3"),
        (
            {"heads": 8, "gated": True},
            "hidden / heads is even; got hidden=8, heads=8",
        ),
    ],
    ids=said,
)
def test_a_model_that_cannot_be_is_said(changes, words):
    usual = {"vocabulary": 59, "hidden": 8, "layers": 2, "heads": 2, "sequence": 4}
    with pytest.raises(ConfigError, match=words):
        GPT(**usual | changes)


CHUNKS = td.schedule("interleaved", 4, 4, devices=2)


LEFT_OUT = td.schedule("gpipe", 2, 2, forward_only=True)
CUTS = [
    (2, {"schedule": "interleaved", "microbatches": 4}, ConfigError, r"'interleaved', 4, 4, devi"),
    (2, {"schedule": CHUNKS, "microbatches": 6}, ConfigError, "and microbatches= says 6; leave"),
    (3, {"schedule": CHUNKS}, ConfigError, "a schedule of 3 devices, got Schedule.* on 2 devices"),
    (2, {"schedule": td.schedule("gpipe", 3, 2)}, ConfigError, "takes a schedule of 2 devices"),
    (2, {"schedule": LEFT_OUT}, ConfigError, "has no backwards, so nothing is learned"),
    (1, {"schedule": "zigzag"}, ScheduleError, "no schedule 'zigzag'; there are"),
    (3, {"cut": (3, -1, 0)}, PartitionError, "give each stage 0 or more that add up to 2"),
    (2, {"cut": (2, 2)}, PartitionError, "stages of 2, 2 layers are 4 together, the model has"),
]


@pytest.mark.parametrize(("pp", "options", "error", "words"), CUTS)
def test_schedules_and_cuts_that_ranks_cannot_carry_out(pp, options, error, words):
    with pytest.raises(error, match=words):
        go((1, 1, pp), **options)


class Wrong:
    """Rows of data, changed on their way."""

    vocabulary = TEXT.vocabulary

    def __init__(self, change):
        self.change = change

    def batch(self, seed, step, size, sequence, rows):
        return self.change(TEXT, seed, step, size, sequence, rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text, *asked: text.batch(*asked[:-1]), r"are \(1, 4\), got \(2, 4\) and \(2, 4\)"),
        (
            lambda text, *asked: (text.batch(*asked)[0], text.batch(*asked)[1][:, 1:]),
            r"are \(1, 4\), got \(1, 4\) and \(1, 3\)",
        ),
    ],
    ids=["all rows for each", "targets cut short"],
)
def test_data_that_gives_other_rows_than_asked_is_refused(change, words):
    """All rows on both copies would be a loss twice as large, without a word."""
    with pytest.raises(ConfigError, match=words):
        go((2, 1, 1), data=Wrong(change))


# -- a folder for checkpoints ----------------------------------------------------------------------


def test_a_folder_that_cannot_be_one_is_refused_before_the_training(tmp_path):
    file = tmp_path / "file"
    file.touch()
    trained = []
    data = Wrong(lambda text, *asked: trained.append(1) or text.batch(*asked))
    with pytest.raises(CheckpointError, match=r"file cannot be one \(File exists\); name another"):
        go(data=data, folder=file)
    with pytest.raises(CheckpointError, match=r"cannot be one \(Not a directory\)"):
        go(data=data, folder=file / "inside")
    assert not trained


# -- absurd, and right -----------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("shape", "model", "batch", "options"),
    [
        ((8, 1, 1), SMALL, 1, {"zero": 3, "microbatches": 3}),
        ((1, 1, 8), SMALL, 3, {"microbatches": 5}),
        ((1, 4, 1), GPT(53, 10, 1, 10, 3, ffn=7), 2, {"sequence_parallel": True}),
        ((1, 8, 1), GPT(59, 8, 1, 4, 3, kv_heads=1, ffn=5, gated=True), 2, {}),
        ((1, 8, 1), GPT(97, 6, 1, 3, 1, ffn=1), 1, {"sequence_parallel": True}),
        ((1, 3, 2), GPT(59, 10, 2, 5, 2), 4, {"microbatches": 2}),
    ],
    ids=["a row, 8 dp", "8 stages", "10 heads, 4", "a kv head", "few tokens", "10 columns, 3"],
)
def test_sizes_that_do_not_fit_are_right_all_the_same(shape, model, batch, options):
    rule = SGD(0.1, momentum=0.9)
    got = go(shape, model, steps=2, batch=batch, rule=rule, dtype="float64", **options)
    assert_single(got, batch, rule)


def test_no_steps_leave_what_was_drawn():
    got = go((2, 1, 2), steps=0, zero=3)
    assert not len(got.losses)
    again = go((1, 2, 1), steps=0)
    assert all(np.array_equal(w, again.weights[name]) for name, w in got.weights.items())
    assert list(got.to_frame().columns) == ["loss", "bytes_sent", "messages", "barriers"]
