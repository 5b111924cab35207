"""Orders that are found: the optimum is that of trying every order, the automatic ones are as good
as their authors' and keep their limits."""

import re
from itertools import permutations, product

import numpy as np
import pytest

from tiledask import (
    Action,
    Schedule,
    memory_over_time,
    optimal_schedule,
    schedule,
    simulate,
    validate,
)
from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.validate import most_kept


def best_of_all(kinds, limit, *times):
    """Of all orders of two micro-batches on two stages, one per device, that can run."""
    best, one = np.inf, permutations([(k, i) for k in kinds for i in range(2)])
    own = [o for o in one if all("".join(k for k, j in o if j == i) == kinds for i in range(2))]
    for orders in product(own, repeat=2):
        rows = [[Action(k, s, i) for k, i in order] for s, order in enumerate(orders)]
        try:
            built = validate(Schedule.of(rows, range(2)), memory_limit=limit)
        except ScheduleError:
            continue
        best = min(best, simulate(built, *times).makespan)
    return best


@pytest.mark.few(2)
@pytest.mark.parametrize(("kinds", "limit"), [("FB", None), ("FB", 1), ("FIW", None), ("FIW", 1)])
def test_it_is_the_best_of_every_order(kinds, limit):
    rng = np.random.default_rng(8)
    for _ in range(4):
        forward, backward = rng.integers(1, 9, (2, 2, 2)).tolist()
        latency = float(rng.integers(0, 5)) / 4
        times = forward, backward, latency
        tried = best_of_all(kinds, limit, *times)
        best = optimal_schedule(2, 2, *times, split=kinds == "FIW", memory_limit=limit)
        assert best.proven
        assert best.makespan == best.least == tried
        again = simulate(best.schedule, *times)
        assert again.lower_bound <= again.makespan == tried


@pytest.mark.parametrize("scale", [np.pi, 1e-9, 1e-5, 1e9 / 7])
def test_times_that_are_no_fractions_are_nearly_exact(scale):
    times = [[scale, 2.5 * scale], [3 * scale, scale / 3], 0.1 * scale]
    best = optimal_schedule(2, 2, *times)
    assert best.makespan == pytest.approx(best_of_all("FB", None, *times), rel=1e-9)
    assert best.makespan * (1 - 1e-5) < best.least <= best.makespan


@pytest.mark.parametrize(
    ("options", "makespan"),
    [
        ({"memory_limit": 4}, 33.0),
        ({"latency": 0.25, "memory_limit": 4}, 37.0),  # 1F1B is the best that 4 activations allow
        ({"latency": 0.25, "memory_limit": 7}, 34.5),  # eager 1F1B and GPipe
        ({"split": True, "memory_limit": 4}, 27.0),
    ],
)
def test_four_stages_of_eight_micro_batches(options, makespan):
    best = optimal_schedule(4, 8, 1.0, 2.0, timeout=240, **options)
    assert (best.makespan, best.proven) == (makespan, True)
    if "memory_limit" in options:
        assert max(most_kept(best.schedule)[0]) <= options["memory_limit"]
    assert best.schedule.microbatches == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_limit": 0}, "at least 1, or one for each of 2 devices; got 0"),
        ({"memory_limit": [1, 2, 3]}, "one for each of 2 devices; got [1, 2, 3]"),
        ({"place": (0, 0), "memory_limit": 1}, "keeps within [1] activations"),
        ({"timeout": 1e-9}, "was found within 1e-09 s; give it a longer timeout="),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ScheduleError, match=re.escape(words)):
        optimal_schedule(2, 2, **options)


@pytest.mark.parametrize(
    ("p", "m", "F", "I", "W", "c", "limit", "span"),
    [(4, 8, 1, 3, 2, 1, 6, 61), (8, 20, 1, 3, 2, 1, 16, 147), (4, 8, 2, 1, 0.5, 0.3, 4, 39.3)],
)
def test_auto_is_as_good_as_its_authors_program(p, m, F, I, W, c, limit, span):
    """The longest span that zb.py of sail-sg/zero-bubble-pipeline-parallelism finds."""
    times = {"forward": F, "backward_input": I, "backward_weight": W, "latency": c}
    t = simulate(schedule("zb-auto", p, m, **times, memory_limit=limit, weight_part=0.4), **times)
    assert m * (F + I + W) / (1 - t.span_bubble) == pytest.approx(span)


@pytest.mark.parametrize("limit", [1.0, 1.5, 2.0, 3.0, 4.0, 5.4, 8.0])
@pytest.mark.parametrize("times", [(1, 1, 1, 0.0), (2, 1, 0.5, 0.3), (1, 3, 2, 1)])
def test_auto_stays_within_its_memory(limit, times):
    names = "forward", "backward_input", "backward_weight", "latency"
    times = dict(zip(names, times, strict=True))
    for p, m in product(range(1, 6), (1, 3, 8)):
        built = schedule("zb-auto", p, m, **times, memory_limit=limit, weight_part=0.4)
        validate(built, p, m)
        assert max(memory_over_time(simulate(built), 1.0, 0.4).peaks) <= limit + 1e-9


@pytest.mark.parametrize("p", range(1, 7))
def test_zb_v_attains_the_lower_bound(p):
    """(p-1) F + m (time of both chunks): no order is faster on the last device."""
    for m in (2 * p - 1, 2 * p, 5 * p):
        built = schedule("zb-v", 2 * p, m)
        t = simulate(built, 1.0, 2.0)
        assert t.makespan == (p - 1) + 6 * m
        assert t.span_bubble == pytest.approx(0.0, abs=1e-12)
        assert max(most_kept(built)[0]) == min(2 * p, 2 * m)
