"""The best interval is the best: no other costs less, in the formula and in a run that is drawn."""

import random

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.timing.checkpointing import (
    MTBF,
    RESTART,
    STORAGE,
    Checkpointing,
    checkpoint_interval,
)


@pytest.mark.parametrize(("cost", "mtbf"), [(0.5, 3600.0), (30.0, 20_000.0), (0.001, 60.0)])
def test_no_other_interval_costs_less(cost, mtbf):
    def share(interval):
        return cost / interval + interval / 2 / mtbf

    best = checkpoint_interval(cost, mtbf)
    assert share(best) <= min(share(best * k / 100) for k in range(10, 1000))
    assert share(2 * best) == pytest.approx(1.25 * share(best)) == pytest.approx(share(best / 2))


def test_a_run_that_loses_at_random_takes_what_is_said():
    """Work of 200 hours, saved every interval; losses come at exponential times."""
    said = Checkpointing(60.0, bandwidth=1.0, mtbf=20 * 36_000.0, devices=20, restart=30.0)
    draw = random.Random(0)
    work, wall, saved = 720_000.0, 0.0, 0.0
    failure = draw.expovariate(1 / said.between_failures)
    while saved < work:
        end = wall + said.interval + said.cost
        if failure < end:
            wall = failure + said.restart
            failure = wall + draw.expovariate(1 / said.between_failures)
        else:
            wall, saved = end, saved + said.interval
    lost = wall / work - 1
    assert lost == pytest.approx(said.saving + said.lost, rel=0.25)


def drawn(said: Checkpointing, work: float, seed: int) -> float:
    """Wall over work where failures come at exponential times, in saves and restarts too."""
    draw, wall, saved = random.Random(seed), 0.0, 0.0
    while saved < work:
        left = draw.expovariate(1 / said.between_failures)
        segment = said.interval + said.cost
        whole = int(left // segment)
        if saved + whole * said.interval >= work:
            return (wall + (work - saved) / said.interval * segment) / work
        wall, saved = wall + left, saved + whole * said.interval
        while (again := draw.expovariate(1 / said.between_failures)) < said.restart:
            wall += again
        wall += said.restart
    return wall / work


@pytest.mark.parametrize(("steps", "mtbf"), [(None, 3600.0), (30, 300.0)])
def test_the_whole_sum_is_what_a_drawn_run_takes_where_losses_are_many_too(steps, mtbf):
    said = Checkpointing(6.0, bandwidth=1.0, mtbf=mtbf, restart=20.0, step=2.0 * bool(steps))
    assert said.steps == steps
    found = sum(drawn(said, 3_000 * mtbf, seed) for seed in range(3)) / 3
    assert found == pytest.approx(said.stretch, rel=0.03)


def test_a_plan_says_what_its_ranks_save_and_what_is_given_is_taken():
    """GPT-2 with Adam: 2 + 12 bytes a parameter beside gradients; half the moments on each of 2."""
    fit = td.fits("gpt2", td.Layout(), "1xA100-40GB")
    saved = fit.checkpointing()
    assert saved.state_bytes == 14 * td.load_model("gpt2").parameters
    assert (saved.mtbf, saved.bandwidth, saved.restart) == (MTBF, STORAGE, RESTART)
    assert "as in Llama 3's training" in saved.line
    shared = td.fits("gpt2", td.Layout(dp=2, zero=1), "2xA100-40GB").checkpointing()
    assert shared.state_bytes == 8 * td.load_model("gpt2").parameters
    assert shared.between_failures == MTBF / 2
    given = fit.checkpointing(mtbf=7_200.0, bandwidth=2e9, restart=5.0)
    assert given.line.endswith("more time in all")
    assert "lost every 2.0 h;" in given.line
    assert given.restarting == 5 / 7_200
    (best,) = td.search("gpt2", "2xA100-40GB", 16)[:1]
    assert best.checkpointing().step == best.step.total
    adapters = td.fits("gpt2", td.Layout(), "1xA100-40GB", recipe="lora").checkpointing()
    assert adapters.state_bytes < saved.state_bytes / 100
    with pytest.raises(ConfigError, match="it serves, and this is for training"):
        td.fits("gpt2", td.Layout(), "1xA100-40GB", recipe="fp16-weights").checkpointing()


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="mtbf must be finite and above 0, got inf"):
        Checkpointing(1.0, mtbf=float("inf"))
    with pytest.raises(ConfigError, match=r"restart must be finite and 0 or more, got -1\.0"):
        Checkpointing(1.0, restart=-1.0)
    assert Checkpointing(1e9, mtbf=1.0, restart=1e6).stretch == float("inf")
    assert Checkpointing(0.0, mtbf=100.0, restart=0.0).stretch == 1.0
    with pytest.raises(ConfigError, match=r"losses are more than 0 s apart, got 1\.0 and 0"):
        checkpoint_interval(1.0, 0)
    with pytest.raises(ConfigError, match=r"bandwidth must be finite and above 0, got 0\.0"):
        Checkpointing(1.0, bandwidth=0.0, mtbf=1.0)
    assert Checkpointing(0.0, bandwidth=1.0, mtbf=1.0).saving == 0
