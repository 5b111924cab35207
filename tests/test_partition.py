"""Partition against an exhaustive oracle, and the judge against every rule there is."""

import math
import random
import re
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import PartitionError
from tiledask.plan.judge import judge
from tiledask.plan.minmax import prefix_sums
from tiledask.plan.partition import (
    Partition,
    contiguous_splits,
    count_contiguous_splits,
    partition,
)


def oracle(costs, stages, speeds=None, memory=None, capacity=None):
    """The best split by looking at all: least bottleneck, most even, longest first stages."""
    costs = [Fraction(c) for c in costs]
    speeds = [Fraction(v) for v in speeds or [1] * stages]
    best = None
    for bounds in contiguous_splits(len(costs), stages):
        cuts = list(pairwise(bounds))
        if memory and any(
            sum(memory[a:b]) > room for (a, b), room in zip(cuts, capacity, strict=True)
        ):
            continue
        times = [sum(costs[a:b]) / v for (a, b), v in zip(cuts, speeds, strict=True)]
        key = (max(times), sum(t * t for t in times), [-b for b in bounds])
        best = min(best, (key, bounds)) if best else (key, bounds)
    return best


@st.composite
def problems(draw):
    layers = draw(st.integers(1, 8))
    stages = draw(st.integers(1, layers))
    costs = draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    speeds = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=stages, max_size=stages))
    if draw(st.booleans()):
        return costs, stages, speeds, None, None
    memory = draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    capacity = draw(st.lists(st.integers(3, 20), min_size=stages, max_size=stages))
    return costs, stages, speeds, memory, capacity


@settings(max_examples=400, deadline=None)
@given(problems())
def test_equals_the_oracle_to_the_bound_or_both_find_nothing(problem):
    best = oracle(*problem)
    if best is None:
        with pytest.raises(PartitionError, match=r"fits on no device|no contiguous split"):
            partition(*problem)
        return
    cut = partition(*problem)
    assert cut.bounds == best[1]
    assert cut.bottleneck == best[0][0]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_rounding_decides(data):
    """With awkward fractions the optimum is that of exact arithmetic."""
    floats = st.floats(0, 1, allow_subnormal=False) | st.sampled_from([0.1, 0.2, 0.3, 1 / 3, 1e16])
    costs = data.draw(st.lists(floats, min_size=2, max_size=7))
    stages = data.draw(st.integers(1, len(costs)))
    positive = st.floats(0.1, 10)
    speeds = data.draw(st.lists(positive, min_size=stages, max_size=stages))
    cut = partition(costs, stages, speeds)
    times = [
        sum(map(Fraction, costs[a:b])) / Fraction(v)
        for (a, b), v in zip(pairwise(cut.bounds), speeds, strict=True)
    ]
    assert max(times) == oracle(costs, stages, speeds)[0][0]


def test_brute_force_over_1771_splits_of_24_layers():
    costs = [random.Random(7).randint(1, 30) for _ in range(24)]
    bounds = list(contiguous_splits(24, 4))
    assert len(bounds) == len(set(bounds)) == count_contiguous_splits(24, 4) == 1771
    assert partition(costs, 4).bounds == oracle(costs, 4)[1]
    equal = [b for b in bounds if max(np.diff(b)) == 6]
    assert equal == [(0, 6, 12, 18, 24)] == [partition([1.0] * 24, 4).bounds]


def test_a_device_too_slow_or_small_for_a_large_layer_makes_gaps_and_is_still_exact():
    # device 1 cannot take layer 3, so device 0 must stop early and device 2 start there
    memory = [1, 1, 10, 1, 1]
    cut = partition([1] * 5, 3, memory=memory, capacity=[4, 1, 12])
    assert cut.sizes == (1, 1, 3)


@pytest.mark.parametrize(
    ("costs", "stages", "sizes"),
    [
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


def test_reads_as_people_count_and_knows_its_parts():
    cut = partition([1.0] * 7, 3)
    assert str(cut) == "[1-3][4-5][6-7]"
    assert cut.place == (0, 0, 0, 1, 1, 2, 2)
    assert cut.layers == (range(0, 3), range(3, 5), range(5, 7))
    assert cut == Partition((0, 3, 5, 7), (1.0,) * 7, (1.0,) * 3)
    assert sum(cut.sizes) == 7
    assert cut.stages == 3
    assert "[1-3]" in cut._repr_html_()


def test_a_thousand_layers_on_a_hundred_stages_meet_a_bound_that_none_beats():
    costs = [random.Random(1).randint(1, 10**6) for _ in range(1000)]
    cut = partition(costs, 100)
    bottleneck = int(cut.bottleneck)

    def stages_needed(limit):
        used, room = 1, limit
        for cost in costs:
            if cost > room:
                used, room = used + 1, limit
            room -= cost
        return used

    assert stages_needed(bottleneck) <= 100 < stages_needed(bottleneck - 1)


def test_infinite_capacity_is_no_limit():
    free = partition([3, 1, 2, 5], 2)
    assert partition([3, 1, 2, 5], 2, memory=[9, 9, 9, 9], capacity=math.inf) == free
    mixed = partition([3, 1, 2, 5], 2, memory=[1, 1, 1, 1], capacity=[1, math.inf])
    assert mixed.sizes == (1, 3)


def test_prefix_sums_do_not_wrap():
    assert prefix_sums([2**62, 2**62])[-1] == 2**63


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition([1, 1], 3), "2 layers are fewer than 3 stages"),
        (lambda: partition([1, math.nan], 1), "cost number 2 must be a finite number"),
        (lambda: partition([1, -1], 1), "cost number 2 .* got -1"),
        (lambda: partition([math.inf, 1], 1), "cost number 1"),
        (lambda: partition(["a", 1], 1), "cost number 1 .* got 'a'"),
        (lambda: partition("11", 1), "list of numbers"),
        (lambda: partition(5, 1), "list of numbers"),
        (lambda: partition([1, 1], 0), "stages must be a whole number of at least 1, got 0"),
        (lambda: partition([1, 1], 1.5), "stages must be a whole number"),
        (lambda: partition([1, 1], True), "stages must be a whole number"),
        (lambda: partition([1, 1], 2, speeds=[1]), "got 1 speed values where 2 are needed"),
        (lambda: partition([1, 1], 2, speeds=[1, 0]), "speed number 2 .* more than 0; got 0"),
        (lambda: partition([1, 1], 2, memory=[1, 1]), "go together"),
        (lambda: partition([1, 1], 2, capacity=3), "go together"),
        (lambda: partition([1, 1], 2, memory=[1], capacity=3), "got 1 memory values where 2"),
        (lambda: partition([1, 1], 2, memory=[1, 1], capacity=[3]), "got 1 capacity values"),
        (lambda: partition([1, 1], 2, memory=[1, 1], capacity=0), "capacity number 1"),
        (
            lambda: partition([1, 1], 2, memory=[1e9, 9e9], capacity=[8e9, 5e9]),
            "layer 2 needs 9 GB and the largest capacity is 8 GB",
        ),
        (
            lambda: partition([1] * 4, 2, memory=[3, 3, 3, 3], capacity=5),
            "keeps within 5 B per device; the smallest capacity that would do is 6 B",
        ),
        (
            lambda: partition([1] * 4, 2, memory=[3, 3, 3, 3], capacity=[4, 6]),
            r"4 B, 6 B; all of them 1\.5 times as large",
        ),
        (lambda: count_contiguous_splits(0, 1), "layers must be"),
        (lambda: list(contiguous_splits(3, 0)), "stages must be"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(PartitionError, match=message):
        call()


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_capacity_it_asks_for_is_enough_and_less_is_not(problem):
    costs, stages, _, memory, _ = problem
    if memory is None or sum(memory) == 0:
        return
    least = int(partition(memory, stages).bottleneck)
    partition(costs, stages, memory=memory, capacity=least)
    if least > 1:
        with pytest.raises(PartitionError):
            partition(costs, stages, memory=memory, capacity=least - 1)


# --- the judge -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "devices", "contiguous", "scattered", "chunks"),
    [(24, 4, 3, 23, 6), (12, 3, 2, 11, 4)],
)
def test_round_robin_is_not_layerwise_and_is_interleaving(
    layers, devices, contiguous, scattered, chunks
):
    verdict = judge([n % devices for n in range(layers)])
    assert not verdict
    assert verdict.rule == "not contiguous"
    assert verdict.crossings == scattered
    assert f"{scattered} times, against {contiguous} for a contiguous" in verdict.reason
    assert f"v = {chunks} chunks per device" in verdict.reason
    assert judge(partition([1.0] * layers, devices)).crossings == contiguous


def test_dealing_pairs_is_interleaving_with_fewer_chunks_and_a_jumble_is_not():
    pairs = judge([n // 2 % 4 for n in range(24)])
    assert "v = 3 chunks" in pairs.reason
    assert "interleaved" not in judge([0, 1, 0, 0, 1, 1]).reason


GOOD = "1-6 | 7-12 | 13-18 | 19-24"


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        "[1-6][7-12][13-18][19-24]",
        "[1-6], [7-12], [13-18], [19-24]",
        [range(1, 7), range(7, 13), range(13, 19), range(19, 25)],
        [n // 6 for n in range(24)],
        np.repeat(range(4), 6),
        partition([1.0] * 24, 4),
    ],
)
def test_every_way_of_writing_the_optimum_is_accepted(answer):
    verdict = judge(answer, devices=4, costs=[1.0] * 24)
    assert verdict
    assert verdict.best
    assert (verdict.rule, verdict.crossings, verdict.bottleneck, verdict.optimum) == ("", 3, 6, 6)


@pytest.mark.parametrize(
    ("answer", "rule", "words"),
    [
        (GOOD + " | 24", "unknown device", "names 5 devices and there are 4"),
        ("1-6 | 7-12 | 13-18 | 19-25", "unknown layer", "layer 25; the layers are 1 to 24"),
        ("0-6 | 7-12 | 13-18 | 19-24", "unknown layer", "layer 0"),
        ("1-6 | 6-12 | 13-18 | 19-24", "layer twice", "Layer 6 is on device 0 and again on"),
        ("1-6 | 7-12 | 13-18 | 19-22", "layer missing", "22 of 24 .* missing: 23, 24"),
        ("1-12 | 13-18 | 19-24", "idle device", "Device 3 has 0 of 24"),
        ("1-12 | | 13-18 | 19-24", "idle device", "Device 1 has 0 of 24"),
        ("1-5,7 | 6,8-12 | 13-18 | 19-24", "not contiguous", "spread over 1 to 7"),
        ("7-12 | 1-6 | 13-18 | 19-24", "out of order", "starts at layer 1 and device 0 at layer 7"),
        ("6-1 | 7-12 | 13-18 | 19-24", "out of order", "layer 6 before layer 1"),
        ([0] * 20, "layer missing", "20 of 24"),
    ],
)
def test_names_the_broken_rule(answer, rule, words):
    verdict = judge(answer, devices=4, costs=[1.0] * 24)
    assert not verdict.ok
    assert verdict.rule == rule
    assert re.search(words, verdict.reason)
    assert not verdict.best
    assert rule in verdict._repr_html_()


def test_over_memory_names_device_and_excess():
    verdict = judge("1-3 | 4", costs=[1] * 4, memory=[3e9] * 4, capacity=8e9)
    assert verdict.rule == "over memory"
    assert "hold 9 GB and has room for 8 GB; move at least 1 GB" in verdict.reason
    assert verdict.optimum == 2


def test_legal_but_slow_knows_the_optimum():
    verdict = judge("1-6 | 7-12 | 13-18 | 19-24", costs=[2] + [1] * 22 + [4])
    assert verdict
    assert not verdict.best
    assert (verdict.bottleneck, verdict.optimum) == (9, 7)
    assert "legal" in verdict._repr_html_()


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 9), st.data())
def test_crossings_and_bottleneck_by_counting(layers, data):
    place = data.draw(st.lists(st.integers(0, 2), min_size=layers, max_size=layers))
    if len(set(place)) < max(place) + 1:
        return
    costs = data.draw(st.lists(st.integers(0, 9), min_size=layers, max_size=layers))
    verdict = judge(place, costs=costs)
    assert verdict.crossings == sum(place[i] != place[i + 1] for i in range(layers - 1))
    sums = [sum(c for c, d in zip(costs, place, strict=True) if d == e) for e in set(place)]
    assert verdict.bottleneck == max(sums)
    assert verdict.ok == (place == sorted(place))


@pytest.mark.parametrize("answer", [3.5, None, [], [0.5, 1], ["a", "b"], [[1], ["x"]], [True, [1]]])
def test_refuses_what_is_no_assignment(answer):
    with pytest.raises(PartitionError, match=r"assignment|a layer is a whole number"):
        judge(answer, costs=[1, 1], devices=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: judge("1-x | 2", costs=[1, 1]), "cannot read '1-x'"),
        (lambda: judge("1-999999999 | 2", costs=[1, 1]), "1000000 at most"),
        (lambda: judge([0, -1], costs=[1, 1]), "counted from 0, got device -1"),
        (lambda: judge([0, 1], layers=3, costs=[1, 1]), "2 costs do not describe 3 layers"),
        (lambda: judge([0, 1], devices=0), "devices must be"),
        (lambda: judge("1 | 2 | ", layers=2), "2 layers are fewer than 3 stages"),
    ],
)
def test_refuses_questions_without_an_answer(call, message):
    with pytest.raises(PartitionError, match=message):
        call()
