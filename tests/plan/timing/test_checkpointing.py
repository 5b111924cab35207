"""The best interval is the best: no other costs less, in the formula and in a run that is drawn."""

import random

import pytest

from tiledask.errors import ConfigError
from tiledask.plan.timing.checkpointing import Checkpointing, checkpoint_interval


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


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"losses are more than 0 s apart, got 1\.0 and 0"):
        checkpoint_interval(1.0, 0)
    with pytest.raises(ConfigError, match=r"of 1 device or more; got 1\.0, 0\.0 and 1"):
        Checkpointing(1.0, bandwidth=0.0, mtbf=1.0)
    assert Checkpointing(0.0, bandwidth=1.0, mtbf=1.0).saving == 0
