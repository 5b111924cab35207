"""What a training takes: saves and what is lost between them; days, device-hours and money."""

import random

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.timing.budget import MTBF, budget, checkpoint_interval, checkpointing


def drawn(said, work: float, seed: int) -> float:
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
    fit, n = td.fits("gpt2", td.Layout(), "1xA100-40GB"), td.load_model("gpt2").parameters
    shared = td.fits("gpt2", td.Layout(dp=2, zero=1), "2xA100-40GB").checkpointing()
    assert (fit.checkpointing().state_bytes, shared.state_bytes) == (14 * n, 8 * n)
    assert shared.between_failures == MTBF / 2
    assert fit.checkpointing(mtbf=7_200.0, bandwidth=2e9, restart=5.0).restarting == 5 / 7_200
    adapters = td.fits("gpt2", td.Layout(), "1xA100-40GB", recipe="lora").checkpointing()
    assert adapters.state_bytes < 14 * n / 100
    with pytest.raises(ConfigError, match="it serves, and this is for training"):
        td.fits("gpt2", td.Layout(), "1xA100-40GB", recipe="fp16-weights").checkpointing()


def test_money_is_hours_and_hours_are_days():
    step = td.estimate_step("llama-2-7b", td.Layout(dp=8, microbatches=4, zero=1), "8xA100-80GB")
    cost = step.budget(3e11, price=2.0, stretch=1.25)
    seconds = 3e11 / (step.layout.sequences * step.sequence) * step.total * 1.25
    assert cost.days * 86_400 == pytest.approx(seconds)
    assert cost.device_hours == pytest.approx(cost.days * 24 * 8)
    assert cost.cost == pytest.approx(2 * cost.device_hours)


def test_the_ends_of_what_can_be():
    hopeless = checkpointing(1e9, 1.0, mtbf=1.0, restart=1e6)
    assert (hopeless.stretch, hopeless.to_dict()["stretch"]) == (float("inf"), None)
    assert checkpointing(0.0, 1.0, bandwidth=1.0).saving == 0
    with pytest.raises(ConfigError, match=r"losses are more than 0 s apart, got 1\.0 and 0"):
        checkpoint_interval(1.0, 0)
    with pytest.raises(ConfigError, match="restart must be finite and"):
        checkpointing(1.0, 1.0, restart=-1.0)
    for wrong in (-1, float("nan"), True, "15T"):
        with pytest.raises(ConfigError, match="must be a number of 0 or more"):
            budget(1.0, 1.0, 1, (0.1, 0.1), wrong)
