"""Partition against an exhaustive oracle, which tries every split there is."""

import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from tiledask.errors import PartitionError
from tiledask.plan.splitting.partition import contiguous_splits, partition


def stage_times(bounds, costs, speeds, sends):
    """Exact, from the definition: cost / speed, plus the sending after a stage's last layer."""
    sends = [*map(Fraction, sends), 0] if len(speeds) > 1 else [0] * len(costs)
    return [
        sum(map(Fraction, costs[a:b])) / Fraction(speeds[s % len(speeds)]) + sends[b - 1]
        for s, (a, b) in enumerate(pairwise(bounds))
    ]


def oracle(costs, stages, speeds=None, memory=None, capacity=None, communication=None, chunks=1):
    """The best split by looking at all: least bottleneck, most even, longest first stages."""
    devices = stages // chunks
    speeds, sends = speeds or [1] * devices, communication or [0] * (len(costs) - 1)
    best = None
    for bounds in contiguous_splits(len(costs), stages):
        if memory and any(
            sum(sum(map(Fraction, memory[a:b])) for a, b in list(pairwise(bounds))[d::devices])
            > capacity[d]
            for d in range(devices)
        ):
            continue
        times = stage_times(bounds, costs, speeds, sends)
        key = (max(times), sum(t * t for t in times), [-b for b in bounds])
        best = min(best, (key, bounds)) if best else (key, bounds)
    return best


def random_problem(draw, number, speed):
    """A problem small enough for the oracle, each option present or not."""
    layers, chunks = draw.randint(1, 9), draw.choice([1, 1, 2, 3])
    chunks = chunks if chunks <= layers else 1
    devices = draw.randint(1, layers // chunks)
    problem = {"costs": [number() for _ in range(layers)], "stages": devices * chunks}
    problem["chunks"] = chunks
    if draw.random() < 0.5:
        problem["speeds"] = [speed() for _ in range(devices)]
    if draw.random() < 0.5:
        problem["communication"] = [number() for _ in range(layers - 1)]
    if draw.random() < 0.5:
        problem["memory"] = memory = [number() for _ in range(layers)]
        fair = float(sum(map(Fraction, memory))) / devices + 1
        problem["capacity"] = [fair * draw.uniform(0.6, 2.5) for _ in range(devices)]
    return problem


def assert_best(problem):
    """`partition` finds what the oracle finds, as exact numbers; or both find nothing: None."""
    best = oracle(**problem)
    if best is None:
        with pytest.raises(PartitionError, match="no contiguous split"):
            partition(**problem)
        return None
    cut = partition(**problem)
    sends = problem.get("communication", [0] * (len(cut.costs) - 1))
    speeds = problem.get("speeds", [1] * cut.devices)
    assert max(stage_times(cut.bounds, problem["costs"], speeds, sends)) == best[0][0], problem
    return cut, best


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
def test_equals_the_oracle_to_the_bound_or_both_find_nothing(seed):
    draw, found = random.Random(seed), 0
    for _ in range(250):
        problem = random_problem(draw, lambda: draw.randint(0, 9), lambda: draw.choice([1, 2, 4]))
        if done := assert_best(problem):
            found += 1
            cut, best = done
            assert (cut.bounds, cut.bottleneck) == (best[1], best[0][0]), problem
            assert cut.stages == problem["stages"]
            assert min(cut.sizes) > 0
            assert len(cut.place) == len(problem["costs"])
            assert math.isclose(sum(cut.device_times), sum(cut.times))
    assert 150 < found < 250


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_no_rounding_decides(seed):
    """With awkward fractions the optimum is that of exact arithmetic."""
    draw = random.Random(100 + seed)

    def ragged():
        numbers = [draw.random(), draw.random() * 10.0 ** draw.randint(-300, 17)]
        numbers.append(draw.choice([0.1, 0.2, 0.3, 1 / 3, 0.0, 1e16]))
        return draw.choice([*numbers, Fraction(draw.randint(0, 20), draw.randint(1, 20))])

    def speed():
        return draw.choice([draw.uniform(0.1, 10), 1 / 3, Fraction(draw.randint(1, 9), 7)])

    for _ in range(150):
        assert_best(random_problem(draw, ragged, speed))


@pytest.mark.parametrize(
    ("costs", "stages", "sizes"),
    [
        ([0.5] + 22 * [1] + [2], 4, (7, 6, 6, 5)),
        ([3.0], 1, (1,)),
        ([1.0] * 5, 5, (1, 1, 1, 1, 1)),
        ([0.0, 0.0], 2, (1, 1)),
        ([0.1] * 25, 4, (7, 6, 6, 6)),  # equal decimals tie as equal whole numbers do
        (np.ones(6, np.float32), 3, (2, 2, 2)),
        (np.arange(1, 4), 2, (2, 1)),
        ([2**70, 1, 2**70], 2, (2, 1)),  # beyond 64-bit sums
    ],
)
def test_edges_and_ties(costs, stages, sizes):
    assert partition(costs, stages).sizes == sizes


def test_shared_capacities_that_leave_too_many_splits_are_refused():
    draw = random.Random(5)
    costs, memory = ([draw.random() for _ in range(60)] for _ in range(2))
    with pytest.raises(PartitionError, match="100,000 partial splits; use fewer"):
        partition(costs, 24, memory=memory, capacity=sum(memory) / 8 * 1.001, chunks=3)


def test_infinite_capacity_is_no_limit():
    free = partition([3, 1, 2, 5], 2)
    assert partition([3, 1, 2, 5], 2, memory=[9, 9, 9, 9], capacity=math.inf) == free
    mixed = partition([3, 1, 2, 5], 2, memory=[1, 1, 1, 1], capacity=[1, math.inf])
    assert mixed.sizes == (1, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition([1, 1], 3), "2 layers are fewer than 3 stages"),
        (lambda: partition([math.inf, 1], 1), "cost number 1"),
        (lambda: partition([1, 1], 2, memory=[1, 1]), "go together"),
        (
            lambda: partition([1] * 4, 4, memory=[3] * 4, capacity=5, chunks=2),
            "need 12 B, the largest 3 B, and the 2 devices have 10 B, the largest 5 B",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(PartitionError, match=message):
        call()
