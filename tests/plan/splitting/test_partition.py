"""Partition against an exhaustive oracle, which tries every split there is; and the judge."""

import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask import contiguous_splits, judge, partition
from tiledask.errors import PartitionError
from tiledask.plan.splitting.partition import stages_of


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
        if memory:
            kept = [sum(map(Fraction, memory[a:b])) for a, b in pairwise(bounds)]
            if any(sum(kept[d::devices]) > capacity[d] for d in range(devices)):
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
        rooms = [fair * draw.choice([draw.uniform(0.6, 2.5), math.inf]) for _ in range(devices)]
        problem["capacity"] = rooms
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
        ([0.0, 0.0], 2, (1, 1)),
        ([0.1] * 25, 4, (7, 6, 6, 6)),  # equal decimals tie as equal whole numbers do
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


# -- the judge -------------------------------------------------------------------------------------

GOOD = "1-6 | 7-12 | 13-18 | 19-24"
DEALT = "1-3 | 4-6 | 7-9 | 10-12"
"""12 layers as 4 stages, 2 on each of 2 devices."""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_partition_is_judged_to_be_what_it_says(data):
    devices, chunks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    stages = devices * chunks
    costs = data.draw(st.lists(st.integers(1, 9), min_size=stages, max_size=stages + 5))
    speeds = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=devices, max_size=devices))
    sends = data.draw(st.sampled_from([None, 0.5, list(range(len(costs) - 1))]))
    cut = partition(costs, stages, speeds, communication=sends, chunks=chunks)
    given_them = judge(cut, None, devices, costs, speeds, None, None, sends, chunks)
    for verdict in (judge(cut), given_them):
        assert verdict.ok, verdict
        assert (verdict.bottleneck, verdict.optimum) == (cut.bottleneck, cut.bottleneck)
        assert verdict.crossings == sum(a != b for a, b in pairwise(cut.place))


def test_stages_devices_and_places_say_the_same():
    by_device, places = "1-3, 7-9 | 4-6, 10-12", [0, 0, 0, 1, 1, 1] * 2
    verdicts = [judge(a, 12, 2, chunks=2) for a in (DEALT, by_device, places)]
    assert all(v.ok and v.crossings == 3 and v.bottleneck == 3 for v in verdicts)
    assert stages_of([[1, 4], [2, 5]], 2, 2) == [[1], [2], [4], [5]]
    memory = [5] + [1] * 11  # shared by the chunks of a device
    assert judge(DEALT, 12, 2, memory=memory, capacity=10, chunks=2).ok
    verdict = judge("1-4 | 5-6 | 7-9 | 10-12", 12, 2, memory=memory, capacity=10, chunks=2)
    assert verdict.rule == "over memory"
    assert "Device 0 would hold 11 B" in verdict.reason


def test_every_way_of_writing_the_optimum_is_accepted():
    ranges = [range(1, 7), range(7, 13), range(13, 19), range(19, 25)]
    for answer in (GOOD, ranges, np.repeat(range(4), 6), partition([1.0] * 24, 4)):
        found = judge(answer, devices=4, costs=[1.0] * 24)
        assert (found.ok, found.best, found.rule) == (True, True, ""), answer
        assert (found.crossings, found.bottleneck, found.optimum) == (3, 6, 6)


@pytest.mark.parametrize(
    ("answer", "chunks", "rule", "words"),
    [
        ("1-3 | 4-6 | 7-9 | 10-11 | 12", 2, "unknown device", "names 5 chunks and there are 4"),
        ("1-3 | 4-6 | 7-9 | 10-13", 2, "unknown layer", "Device 1, chunk 1 is given layer 13"),
        ("1-3 | 4-6 | 7-9 | 10-11", 2, "layer missing", "missing: 12"),
        ("1-3 | 7-9 | 4-6 | 10-12", 2, "out of order", "chunk 1 runs layer 4 after layer 7"),
        ([0, 1] * 6, 2, "not contiguous", "a device holds 2 of them"),
        ("6-1 | 7-12", 1, "out of order", "Device 0 runs layer 5 after layer 6"),
        ([0] * 10, 1, "layer missing", "missing: 11-12"),
        ([n % 2 for n in range(12)], 1, "not contiguous", "device 11 times, against 1 for a cont"),
    ],
)
def test_refuses_each_in_its_own_words(answer, chunks, rule, words):
    verdict = judge(answer, 12, 2, chunks=chunks)
    assert (verdict.ok, verdict.best, verdict.rule) == (False, False, rule)
    assert words in verdict.reason


def test_over_memory_and_slow_know_the_optimum():
    verdict = judge("1-3 | 4", costs=[1] * 4, memory=[3e9] * 4, capacity=8e9)
    assert (verdict.rule, verdict.optimum) == ("over memory", 2)
    assert "hold 9 GB and has room for 8 GB; move at least 1 GB" in verdict.reason
    verdict = judge(GOOD, costs=[2] + [1] * 22 + [4])
    assert (verdict.ok, verdict.best) == (True, False)
    assert (verdict.bottleneck, verdict.optimum) == (9, 7)


@pytest.mark.parametrize("bad", [3.5, None, [], [0.5, 1], ["a", "b"], [[1], ["x"]], [0, -1]])
def test_what_is_no_assignment_is_refused(bad):
    with pytest.raises(PartitionError, match=r"no assignment|a layer must be"):
        judge(bad, costs=[1, 1], devices=2)
