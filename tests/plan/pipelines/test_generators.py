"""Orders of the papers: rates, closed forms, memory, lower bounds, other programs' numbers.

Holds `tiledask.plan.pipelines.two_lanes`.
"""

from itertools import product

import pytest

from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import memory_over_time
from tiledask.plan.pipelines.two_lanes import chimera, dualpipe, zb_v
from tiledask.plan.pipelines.validate import peak_in_flight, validate
from tiledask.plan.pipelines.zb_auto import zb_auto

zb_h1, zb_h2, interleaved_zero_bubble = (
    schedules[name] for name in ("zb-h1", "zb-h2", "interleaved-zb")
)


def peak_memory(built: Schedule, activation: float, weight_part: float) -> tuple[float, ...]:
    return memory_over_time(simulate(built), activation, weight_part).peaks


def span_over_work(built: Schedule, F: float, I: float, W: float) -> float:
    """Seconds by which the longest span of a device exceeds its work."""
    t = simulate(built, F, backward_input=I, backward_weight=W)
    work = built.microbatches * (F + I + W)
    return work / (1 - t.span_bubble) - work


@pytest.mark.parametrize(
    ("p", "m", "F", "I", "W", "c", "limit", "span"),
    [(4, 8, 1, 3, 2, 1, 6, 61), (8, 20, 1, 3, 2, 1, 16, 147), (4, 8, 2, 1, 0.5, 0.3, 4, 39.3)],
)
def test_auto_is_as_good_as_its_authors_program(p, m, F, I, W, c, limit, span):
    """The longest span that zb.py of sail-sg/zero-bubble-pipeline-parallelism finds."""
    times = {"forward": F, "backward_input": I, "backward_weight": W, "latency": c}
    t = simulate(zb_auto(p, m, **times, memory_limit=limit, weight_part=0.4), **times)
    assert m * (F + I + W) / (1 - t.span_bubble) == pytest.approx(span)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 12), (5, 9), (8, 24)])
def test_closed_forms_of_the_bubble(p, m):
    for F, I, W in product((2.0, 3.0, 4.0), (2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0)):
        if W <= F:
            assert span_over_work(zb_h1(p, m), F, I, W) == pytest.approx((p - 1) * (F + I - W))
        if W <= F and W <= I:
            assert span_over_work(zb_h2(p, m), F, I, W) == pytest.approx((p - 1) * (F + I - 2 * W))


@pytest.mark.parametrize("limit", [1.0, 1.5, 2.0, 3.0, 4.0, 5.4, 8.0])
@pytest.mark.parametrize(
    ("F", "I", "W", "c"), [(1.0, 1.0, 1.0, 0.0), (2.0, 1.0, 0.5, 0.3), (1.0, 3.0, 2.0, 1.0)]
)
def test_auto_stays_within_its_memory(limit, F, I, W, c):
    for p, m in product(range(1, 6), (1, 3, 8)):
        built = validate(zb_auto(p, m, F, I, W, c, memory_limit=limit, weight_part=0.4), p, m)
        assert max(peak_memory(built, 1.0, 0.4)) <= limit + 1e-9


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


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_dualpipe_idles_as_its_table_says(p):
    """(PP/2 - 1)(F&B + B - 3W), for every even m from 2p on."""
    for m in range(2 * p, 3 * p + 1, 2):
        built = dualpipe(p, m)
        for pair in (2.5, 3.0):
            t = simulate(built, 1.0, 2.0, overlapped=pair)
            assert t.idle_per_device[p // 2] == pytest.approx((p / 2 - 1) * (pair + 2 - 3))
        assert max(peak_in_flight(built)) == p + 1


@pytest.mark.parametrize("p", range(1, 9))
def test_chimera(p):
    """(2m + p - 2) F with F = B (arXiv 2107.06925); between p/2 + 1 and p activations."""
    for m in range(1, 4 * p + 1):
        built = validate(chimera(p, m), memory_limit=p)
        if p % 2 == 0 == m % p:
            t = simulate(built, 1.0, 1.0)
            assert t.makespan == 2 * m + p - 2
            if m == p:
                assert (min(t.peak_in_flight), max(t.peak_in_flight)) == (p // 2 + 1, p)
