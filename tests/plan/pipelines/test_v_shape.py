"""V-shaped orders: published makespans and memory, lower bounds, any p and m.

Holds `tiledask.plan.pipelines.generators.lanes` and
`tiledask.plan.pipelines.generators.v_shape`.
"""

import pytest

from tiledask.plan.pipelines.generators.v_shape import v_half, v_min, zb_v
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.validate import peak_in_flight

GENERATORS = {
    "zb_v": lambda p, m: zb_v(2 * p, m),
    "v_half": lambda p, m: v_half(2 * p, m),
    "v_min": lambda p, m: v_min(2 * p, m),
}


def equal_chunks(built: Schedule):
    """The Timeline at F = I = W = 1 for each chunk."""
    return simulate(built, 1.0, 2.0)


@pytest.mark.parametrize("p", range(1, 7))
def test_zb_v_attains_the_lower_bound(p):
    """(p-1) F + m (time of both chunks): no order is faster on the last device."""
    for m in (2 * p - 1, 2 * p, 5 * p):
        built = zb_v(2 * p, m)
        t = equal_chunks(built)
        assert t.makespan == (p - 1) + 6 * m
        assert t.span_bubble == pytest.approx(0.0, abs=1e-12)
        assert max(peak_in_flight(built)) == min(2 * p, 2 * m)


@pytest.mark.parametrize("p", range(1, 9))
def test_v_schedules_trade_time_for_memory(p):
    for m in (1, 2, 5, 12):
        assert max(peak_in_flight(v_half(2 * p, m))) <= min(2 * m, p + 2 + p % 2)
        assert max(peak_in_flight(v_min(2 * p, m))) <= min(2 * m, 2 * p // 3 + 3)
    built = [build(2 * p, 4 * p) for build in (v_min, v_half, zb_v)]
    low, middle, high = (max(peak_in_flight(s)) for s in built)
    assert p < 3 or low <= middle <= high == 2 * p
    times = [equal_chunks(s).makespan for s in built]
    assert p < 3 or times == sorted(times, reverse=True)
