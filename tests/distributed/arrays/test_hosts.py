"""Ranks onto hosts: against every assignment of small meshes, and in words.

Holds `tiledask.distributed.arrays.hosts`.
"""

from itertools import permutations
from math import prod

import numpy as np
import pytest

from tiledask.distributed.arrays.hosts import (
    arranged,
    crossings,
    heaviest_first,
)
from tiledask.plan.products.traffic import Traffic

CASES = [
    ("AABB", (1, 2, 2)),
    ("AAABBB", (1, 2, 3)),
    ("AAAB", (2, 2)),
    ("AABBCCCC"[:6], (3, 2)),
    ("ABBBCC", (2, 2)),
    ("ABBACC", (3, 2)),
    ("AABBBA", (2, 3)),
    ("ABCABC", (2, 3)),
]
UNEVEN = [("AAAB", (1, 2, 2)), ("AABBCCCC", (2, 4, 1)), ("ABBBBCCC", (2, 2, 2)), ("AAABBBCC", (8,))]


def whole_groups(hosts, shape, axis, slots):
    """How many groups of ranks along ``axis`` are on one host each; counted one by one."""
    at = np.moveaxis(np.reshape(slots, shape), axis, -1).reshape(-1, shape[axis])
    return sum(len({hosts[slot] for slot in group}) == 1 for group in at.tolist())


@pytest.mark.parametrize(("hosts", "shape"), CASES)
def test_no_assignment_has_more_groups_of_the_heaviest_axis_within_hosts(hosts, shape):
    within = heaviest_first(len(shape), ("dp", "tp", "pp")[: len(shape)])
    found = arranged(hosts, shape, within)
    best = max(
        whole_groups(hosts, shape, within[0], slots)
        for slots in permutations(range(len(hosts)), prod(shape))
    )
    assert whole_groups(hosts, shape, within[0], found) == best


@pytest.mark.parametrize(("hosts", "shape"), [*CASES, *UNEVEN])
def test_ranks_have_slots_of_their_own_and_cross_no_oftener_than_in_order(hosts, shape):
    for within in permutations(range(len(shape))):
        slots = arranged(hosts, shape, within)
        assert len({*slots}) == len(slots) == prod(shape)
        assert {*slots} <= {*range(len(hosts))}
        plain = crossings([hosts[s] for s in range(len(slots))], shape)
        here = crossings([hosts[s] for s in slots], shape)
        assert [here[axis] for axis in within] <= [plain[axis] for axis in within]


def test_one_host_and_even_rows_leave_ranks_in_order():
    assert arranged("A" * 8, (2, 2, 2), (1, 2, 0)) == tuple(range(8))
    assert arranged("AABB", (2, 2), (1, 0)) == (0, 1, 2, 3)
    assert arranged("AABB", (2, 2), (0, 1)) == (0, 2, 1, 3)


def test_traffic_between_hosts_is_counted_by_rank_and_by_slot():
    moved = Traffic.of(3, [(0, 1, 5), (1, 2, 7), (2, 0, 11)])
    assert moved.between_hosts == 0
    assert moved.on("AAA").between_hosts == 0
    assert moved.on("AAB").between_hosts == 18
    assert moved.on("ABAA", slots=(3, 0, 2)).between_hosts == 0
    spread = moved.on("ABAA", slots=(1, 0, 2))
    assert (spread.between_hosts, spread.total, spread.ranks) == (16, 23, 4)
    assert spread.bytes[1, 0] == 5
    assert "23 bytes in 3 messages among 4 ranks, 16 bytes between 2 hosts" in repr(spread)
    assert "16 bytes between 2 hosts" in repr(spread)
    assert "hosts" not in repr(moved)
    assert "hosts" not in repr(moved.on("AAA"))
    assert (spread + Traffic.of(4)).between_hosts == 16
