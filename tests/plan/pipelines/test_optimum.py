"""The solver's optimum is that of trying every order, and keeps its limits."""

import re
from itertools import permutations, product

import numpy as np
import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.optimum import optimal_schedule
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.validate import peak_in_flight, validate


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
        assert max(peak_in_flight(best.schedule)) <= options["memory_limit"]
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
