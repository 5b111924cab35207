"""What watching costs is counted, and who is only busy is no alarm; ten minutes by its command.

Holds `tiledask.lab.faults.watching`.
"""

import pytest

from tiledask.lab.faults.watching import KINDS, WatchingCost, alarms, cost


def test_the_share_is_of_all_that_watches():
    assert WatchingCost(10.0, 0.05, 0.03, 0.02).share == pytest.approx(0.01)


@pytest.mark.cluster
@pytest.mark.slow
def test_watching_costs_something():
    spent = cost(2048, products=2)
    assert spent.workers > 0.2
    assert min(spent.thread, spent.processes, spent.register) > 0
    assert spent.share < 0.2  # 0.005 of larger products on a quiet machine


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_busy_is_not_taken_for_frozen(kind):
    found = alarms(kind, 10.0)
    assert found.seconds >= 10.0
    assert (found.thread, found.processes) == (0, 0)
