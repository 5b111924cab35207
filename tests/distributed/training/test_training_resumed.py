"""A training that changes its layout at a checkpoint is the training that never did."""

from random import Random

import pytest
from oracles.drawn_layouts import BATCH, MODELS, RULES, Layout, dealt, drawn_layouts, run
from oracles.single_gpt import TEXT, assert_single

import tiledask as td
from tiledask.distributed.checkpoints import open_checkpoint, steps_in
from tiledask.distributed.training import GPT, train
from tiledask.errors import CheckpointError, ConfigError
from tiledask.plan.program.count import calls

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 4
SMALL = GPT(59, hidden=8, layers=2, heads=2, sequence=4)


def drawn_pairs(count, seed):
    """(model, rule, after how many steps the layout changes, from which to which)."""
    draw = Random(seed)
    models, rules = dealt(draw, MODELS, count), dealt(draw, RULES, count)
    splits = dealt(draw, range(1, STEPS), count)
    sides = iter(drawn_layouts(draw, [MODELS[name].layers for name in models for _ in range(2)]))
    drawn = zip(models, rules, splits, strict=True)
    return [(*each, next(sides), next(sides)) for each in drawn]


PAIRS = drawn_pairs(4, seed=29)
"""The seed of few ranks whose pairs have everything."""
MORE = [pytest.param(*pair, marks=pytest.mark.slow) for pair in drawn_pairs(10, seed=139)]


@pytest.mark.few(2)
@pytest.mark.parametrize(("model", "rule", "split", "before", "after"), [*PAIRS, *MORE], ids=str)
def test_the_layout_changes_and_the_losses_do_not(model, rule, split, before, after, tmp_path):
    """Both are the single device's, so also those of a training that never changed."""
    first = run(model, rule, before, steps=split, folder=tmp_path)
    then = run(model, rule, after, steps=STEPS, folder=tmp_path)
    assert len(first.losses) == then.first == split == STEPS - len(then.losses)
    for got in (first, then):
        assert_single(got, BATCH, RULES[rule])


def test_what_is_done_is_not_done_again(tmp_path):
    layout = Layout((2, 2, 1), "1f1b", (2,), 3, 2, True)
    for _ in range(2):
        got = run("GPT-2 tied", "Adam", layout, steps=3, folder=tmp_path, save_every=2)
    assert repr(got).startswith("Trained(0 steps on 4 ranks (dp=2, tp=2, pp=1), no loss")
    assert steps_in(tmp_path) == (2, 3)
    with pytest.raises(ConfigError, match="checkpoint of step 3, past the last of 2"):
        run("GPT-2 tied", "Adam", layout, steps=2, folder=tmp_path)


@pytest.mark.parametrize(
    ("shape", "zero"), [((2, 1, 2), 1), ((3, 2, 1), 3), ((1, 2, 2), 0)], ids=str
)
def test_a_checkpoint_is_gathered_as_its_program_says(shape, zero, tmp_path):
    """Label, kind and bytes of every call; what the index and the barriers take comes on top."""
    told = {"batch": 4, "dtype": "float64", "zero": zero}
    got = train(SMALL, TEXT, shape, steps=2, folder=tmp_path, **told)
    assert open_checkpoint(tmp_path).about["loss"] == pytest.approx(got.losses[-1], rel=1e-12)
    for rank in range(got.end.ranks):
        said = [(c.label, c.kind, c.sent, c.received) for c in calls(got.end, rank)]
        done = [
            (r.label, r.kind, r.sent, r.received)
            for r in got.records.where("end/", rank=rank)
            if "checkpoint" not in r.label
        ]
        assert done == said


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
