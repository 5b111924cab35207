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
    checkpointing,
)


@pytest.mark.parametrize(("cost", "mtbf"), [(0.5, 3600.0), (30.0, 20_000.0), (0.001, 60.0)])
def test_no_other_interval_costs_less(cost, mtbf):
    def share(interval):
        return cost / interval + interval / 2 / mtbf

    best = checkpoint_interval(cost, mtbf)
    assert share(best) <= min(share(best * k / 100) for k in range(10, 1000))
    assert share(2 * best) == pytest.approx(1.25 * share(best)) == pytest.approx(share(best / 2))


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


@pytest.mark.parametrize(("step", "mtbf"), [(3.0, 3600.0), (60.0, 300.0)])
def test_the_whole_sum_is_what_a_drawn_run_takes_where_losses_are_many_too(step, mtbf):
    said = checkpointing(6.0, step, bandwidth=1.0, mtbf=mtbf, restart=20.0)
    found = sum(drawn(said, 3_000 * mtbf, seed) for seed in range(3)) / 3
    assert found == pytest.approx(said.stretch, rel=0.03)
    if mtbf == 3600.0:  # few losses: Young's sum of them is near
        young = 1 + said.saving + said.redone + said.restarting
        assert young == pytest.approx(said.stretch, rel=0.03)


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
    own = best.fit.checkpointing(best.seconds)
    assert own.interval == own.steps * best.step.total
    adapters = td.fits("gpt2", td.Layout(), "1xA100-40GB", recipe="lora").checkpointing()
    assert adapters.state_bytes < saved.state_bytes / 100
    with pytest.raises(ConfigError, match="it serves, and this is for training"):
        td.fits("gpt2", td.Layout(), "1xA100-40GB", recipe="fp16-weights").checkpointing()


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"mtbf": float("inf")}, "mtbf must be finite and above 0, got inf"),
        ({"restart": -1.0}, r"restart must be finite and 0 or more, got -1\.0"),
        ({"bandwidth": 0.0}, r"bandwidth must be finite and above 0, got 0\.0"),
    ],
)
def test_what_cannot_be_is_refused(given, rule):
    with pytest.raises(ConfigError, match=rule):
        checkpointing(1.0, 1.0, **given)


def test_the_ends_of_what_can_be():
    assert checkpointing(1e9, 1.0, mtbf=1.0, restart=1e6).stretch == float("inf")
    assert checkpointing(1e9, 1.0, mtbf=1.0, restart=1e6).to_dict()["stretch"] is None
    assert checkpointing(0.0, 1.0, bandwidth=1.0).saving == 0
    with pytest.raises(ConfigError, match=r"losses are more than 0 s apart, got 1\.0 and 0"):
        checkpoint_interval(1.0, 0)
