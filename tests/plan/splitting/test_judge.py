"""The judge: every way of writing an answer, every rule, and chunks and sends against partition().

Holds `tiledask.plan.splitting.partition`.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import PartitionError
from tiledask.plan.splitting.partition import contiguous_splits, judge, partition, stages_of

GOOD = "1-6 | 7-12 | 13-18 | 19-24"
DEALT = "1-3 | 4-6 | 7-9 | 10-12"
"""12 layers as 4 stages, 2 on each of 2 devices."""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_partition_is_judged_to_be_what_it_says(data):
    """Its own costs, speeds, sends and chunks are taken; given ones as well."""
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


@pytest.mark.parametrize("sends", [None, 0.5, [3, 1, 4, 1, 5]])
def test_every_split_has_the_bottleneck_that_counting_gives(sends):
    costs, speeds = [3, 1, 4, 1, 5, 9], [1, 2]
    between = sends if isinstance(sends, list) else [sends or 0] * 5
    seen = set()
    for bounds in contiguous_splits(6, 4):
        groups = [range(a + 1, b + 1) for a, b in pairwise(bounds)]
        times = [
            sum(costs[n - 1] for n in group) / speeds[s % 2]
            + (between[group[-1] - 1] if s < 3 else 0)
            for s, group in enumerate(groups)
        ]
        verdict = judge(groups, None, 2, costs, speeds, communication=sends, chunks=2)
        assert (verdict.ok, verdict.bottleneck) == (True, max(times))
        seen.add(verdict.bottleneck)
    assert min(seen) == verdict.optimum < max(seen)


def test_stages_devices_and_places_say_the_same():
    by_device, places = "1-3, 7-9 | 4-6, 10-12", [0, 0, 0, 1, 1, 1] * 2
    verdicts = [judge(a, 12, 2, chunks=2) for a in (DEALT, by_device, places)]
    assert all(v.ok and v.crossings == 3 and v.bottleneck == 3 for v in verdicts)
    assert stages_of([[1, 4], [2, 5]], 2, 2) == [[1], [2], [4], [5]]
    memory = [5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]  # shared by the chunks of a device
    assert judge(DEALT, 12, 2, memory=memory, capacity=10, chunks=2).ok
    verdict = judge("1-4 | 5-6 | 7-9 | 10-12", 12, 2, memory=memory, capacity=10, chunks=2)
    assert verdict.rule == "over memory"
    assert "Device 0 would hold 11 B" in verdict.reason


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
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


WRONG = [
    ("1-3 | 4-6 | 7-9 | 10-11 | 12", 2, "unknown device", "names 5 chunks and there are 4"),
    ("1-3 | 4-6 | 7-9 | 10-13", 2, "unknown layer", "Device 1, chunk 1 is given layer 13"),
    ("1-3 | 4-6 | 7-9 | 10-11", 2, "layer missing", "missing: 12"),
    ("1-3 | 7-9 | 4-6 | 10-12", 2, "out of order", "chunk 1 runs layer 4 after layer 7"),
    ([0, 1] * 6, 2, "not contiguous", "a device holds 2 of them"),
    ("6-1 | 7-12", 1, "out of order", "Device 0 runs layer 5 after layer 6"),
    ([0] * 10, 1, "layer missing", "missing: 11-12"),
    ([n % 2 for n in range(12)], 1, "not contiguous", "device 11 times, against 1 for a cont"),
]


@pytest.mark.parametrize(("answer", "chunks", "rule", "words"), WRONG)
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
