"""Zero-bubble orders: figures, the paper's rates, closed forms, memory, and any p and m."""

from itertools import product

import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.zb_auto import zb_auto
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.spans import memory_over_time
from tiledask.plan.pipelines.validate import validate

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
    [(4, 8, 1, 3, 2, 1, 6, 63), (8, 20, 1, 3, 2, 1, 16, 152), (4, 8, 2, 1, 0.5, 0.3, 4, 39.3)],
)
def test_auto_is_near_its_authors_program(p, m, F, I, W, c, limit, span):
    """zb.py of sail-sg/zero-bubble-pipeline-parallelism finds longest spans of 61, 147 and 39.3."""
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


def test_more_memory_helps_up_to_the_plateau():
    """arXiv 2401.10241, appendix B: floor(((p-1)(I+2c) + pF) / F) = 15 for p = 8, F = I = 1."""
    over = {
        limit: span_over_work(zb_auto(8, 24, memory_limit=limit, weight_part=0.4), 1.0, 1.0, 1.0)
        for limit in (8, 14, 15, 16, 22)
    }
    assert over == pytest.approx({8: 7.0, 14: 1.0, 15: 0.0, 16: 0.0, 22: 0.0}, abs=1e-9)
    warmup = [a.kind for a in zb_auto(8, 24, memory_limit=99).actions(0)].index("I")
    assert warmup == 15


@pytest.mark.parametrize("limit", [1.0, 1.5, 2.0, 3.0, 4.0, 5.4, 8.0])
@pytest.mark.parametrize(
    ("F", "I", "W", "c"), [(1.0, 1.0, 1.0, 0.0), (2.0, 1.0, 0.5, 0.3), (1.0, 3.0, 2.0, 1.0)]
)
def test_auto_stays_within_its_memory(limit, F, I, W, c):
    for p, m in product(range(1, 6), (1, 3, 8)):
        built = validate(zb_auto(p, m, F, I, W, c, memory_limit=limit, weight_part=0.4), p, m)
        assert max(peak_memory(built, 1.0, 0.4)) <= limit + 1e-9


def test_auto_plans_with_the_times_of_each_stage():
    F, W = [1.0, 2.0, 1.0, 2.0], [0.5, 1.0, 0.5, 1.0]
    times = {"forward": F, "backward_input": F, "backward_weight": W}
    rates = [
        simulate(built, **times).span_bubble
        for built in (zb_auto(4, 12, **times, memory_limit=8), zb_auto(4, 12, memory_limit=8))
    ]
    assert rates[0] == pytest.approx(0.25)  # the slow stages, twice the others, never wait
    assert rates[1] > 0.27


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zb_auto(2, 2, memory_limit=0.9), "takes 1 of memory and the limit is 0.9"),
        (lambda: zb_auto(2, 2, memory_limit=1, weight_part=2), "weight_part is at most activation"),
        (lambda: zb_auto(2, 2, forward=[1, 2, 3]), "forward must be .* 2 numbers"),
        (lambda: zb_auto(4, 4, latency=-1), "finite and 0 or more seconds, got -1"),
        (lambda: interleaved_zero_bubble(6, 2, devices=4), "use 4 or 8 stages"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ScheduleError, match=message):
        call()
