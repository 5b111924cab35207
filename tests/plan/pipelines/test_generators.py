"""Orders of the papers: rates, closed forms, memory, lower bounds, other programs' numbers.

Holds `tiledask.plan.pipelines.two_lanes`.
"""

from itertools import product

import pytest

from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import memory_over_time
from tiledask.plan.pipelines.two_lanes import zb_v
from tiledask.plan.pipelines.validate import peak_in_flight, validate
from tiledask.plan.pipelines.zb_auto import zb_auto


@pytest.mark.parametrize(
    ("p", "m", "F", "I", "W", "c", "limit", "span"),
    [(4, 8, 1, 3, 2, 1, 6, 61), (8, 20, 1, 3, 2, 1, 16, 147), (4, 8, 2, 1, 0.5, 0.3, 4, 39.3)],
)
def test_auto_is_as_good_as_its_authors_program(p, m, F, I, W, c, limit, span):
    """The longest span that zb.py of sail-sg/zero-bubble-pipeline-parallelism finds."""
    built = zb_auto(p, m, F, I, W, c, memory_limit=limit, weight_part=0.4)
    t = simulate(built, F, None, c, I, W)
    assert m * (F + I + W) / (1 - t.span_bubble) == pytest.approx(span)


@pytest.mark.parametrize("limit", [1.0, 1.5, 2.0, 3.0, 4.0, 5.4, 8.0])
@pytest.mark.parametrize("times", [(1, 1, 1, 0.0), (2, 1, 0.5, 0.3), (1, 3, 2, 1)])
def test_auto_stays_within_its_memory(limit, times):
    for p, m in product(range(1, 6), (1, 3, 8)):
        built = validate(zb_auto(p, m, *times, memory_limit=limit, weight_part=0.4), p, m)
        assert max(memory_over_time(simulate(built), 1.0, 0.4).peaks) <= limit + 1e-9


@pytest.mark.parametrize("p", range(1, 7))
def test_zb_v_attains_the_lower_bound(p):
    """(p-1) F + m (time of both chunks): no order is faster on the last device."""
    for m in (2 * p - 1, 2 * p, 5 * p):
        built = zb_v(2 * p, m)
        t = simulate(built, 1.0, 2.0)
        assert t.makespan == (p - 1) + 6 * m
        assert t.span_bubble == pytest.approx(0.0, abs=1e-12)
        assert max(peak_in_flight(built)) == min(2 * p, 2 * m)
