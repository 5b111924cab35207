"""Watching a training: what its ranks report, its bar, what it came to."""

from dataclasses import replace

import pytest

import tiledask as td
from tiledask.distributed.training import GPT, train
from tiledask.distributed.training.run import configured, run_training
from tiledask.plan.program.making.training import end_program, step_program
from tiledask.tile.datasets import load_text

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = load_text("tales")
MODEL = GPT(50, hidden=8, layers=2, heads=2, sequence=8, tied=True)
STEPS, BATCH = 4, 6


@pytest.mark.parametrize(
    ("shape", "options"),
    [((1, 1, 1), {}), ((2, 2, 1), {"zero": 3}), ((2, 1, 2), {"zero": 1, "clip": 0.5})],
    ids=str,
)
def test_every_step_is_reported_with_what_the_records_say_of_it(shape, options):
    config, rows = configured(MODEL, shape, batch=BATCH, microbatches=2, **options), []
    config = replace(config.on(TEXT), steps=STEPS)
    programs = step_program(config, shape), end_program(config, shape, saved=False)
    got = run_training(config, *programs, None, 240.0, lambda event: rows.extend(event["spans"]))
    frame = got.to_frame()
    for step in range(STEPS):
        mine = [row[3:] for row in rows if row[2] == step]
        assert len(mine) == len(got.held)
        losses, sent, messages, barriers, ends = zip(*mine, strict=True)
        assert sum(losses) == pytest.approx(got.losses[step], rel=1e-13)
        assert (sum(sent), sum(messages), max(barriers)) == (*frame.loc[step][1:4],)
        assert max(ends) > 0


@pytest.mark.cluster
def test_whoever_watches_hears_how_far_it_is(cluster):
    told = []
    mesh, say = td.Mesh(cluster, (2, 1, 1)), lambda *done: told.append(done)
    train(MODEL, TEXT, mesh, steps=STEPS, batch=BATCH, progress=say)
    assert {of for _, of in told} == {2 * STEPS}
    assert told == sorted(told)
    assert told[-1][0] == 2 * STEPS


def test_the_result_says_what_it_is():
    got = train(MODEL, TEXT, (1, 2, 2), steps=STEPS, batch=BATCH, microbatches=2, progress=False)
    sent = {axes: total.sent for axes, total in got.records.where(step=0).totals("axes").items()}
    assert sent.keys() == {(1,), (2,)}
    assert sum(sent.values()) == got.to_frame()["bytes_sent"].iloc[0] == got.program.traffic.total
    assert repr(got).startswith(f"Trained({STEPS} steps on 4 ranks (dp=1, tp=2, pp=2), loss ")
