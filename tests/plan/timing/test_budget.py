"""Days, device-hours and money: one from the other, with a band that is as wide as the error."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.timing.budget import budget
from tiledask.plan.units import format_count


def test_money_is_hours_and_hours_are_days():
    step = td.estimate_step("llama-2-7b", td.Layout(dp=8, microbatches=4, zero=1), "8xA100-80GB")
    cost = step.budget(3e11, price=2.0, stretch=1.25)
    assert cost.days == pytest.approx(step.budget(3e11).days * 1.25)
    assert cost.device_hours == pytest.approx(cost.days * 24 * 8)
    assert cost.cost == pytest.approx(2 * cost.device_hours)
    low, high = (format_count(cost.cost * (1 + e * step.error)) for e in (-1, 1))
    assert cost.line.endswith(f"at 2 an hour ({low} to {high})")
    seconds = 3e11 / (step.layout.sequences * step.sequence) * step.total * 1.25
    assert cost.days * 86_400 == pytest.approx(seconds)


@pytest.mark.parametrize("wrong", [-1, float("nan"), True, "15T"])
def test_what_is_no_number_is_refused(wrong):
    with pytest.raises(ConfigError, match="tokens must be a number of 0 or more"):
        budget(wrong, 1.0, 1, 0.1)
    with pytest.raises(ConfigError, match="price must be a number of 0 or more"):
        budget(1.0, 1.0, 1, 0.1, price=wrong)
