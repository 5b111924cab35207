"""The heuristics of others against their published results, and against the exact optimum."""

import random
from itertools import pairwise

import pytest

from tiledask.errors import PartitionError
from tiledask.plan.splitting.heuristics import Misses, heuristics, misses
from tiledask.plan.splitting.partition import contiguous_splits, partition


def sums(costs, bounds):
    return [sum(costs[a:b]) for a, b in pairwise(bounds)]


@pytest.mark.parametrize(
    ("name", "costs", "stages", "bounds"),
    [
        # DeepSpeed's own tests of partition_balanced
        ("deepspeed", [0, 1, 2, 3, 3, 3], 4, (0, 3, 4, 5, 6)),
        ("deepspeed", [0.0, 1.1, 30, 3.0], 3, (0, 2, 3, 4)),
        ("deepspeed", [1] * 5, 4, (0, 2, 3, 4, 5)),
        ("deepspeed probing", [0, 1, 2, 3, 3, 3], 4, (0, 3, 4, 5, 6)),
        ("deepspeed probing", [0.0, 1.1, 30, 3.0], 3, (0, 2, 3, 4)),
        ("deepspeed", [1, 2, 1], 4, (0, 1, 2, 3, 3)),
        ("deepspeed probing", [1] * 5, 4, (0, 2, 4, 5, 5)),
        # torchgpipe's own tests of its block partition, and a fault of it
        ("torchgpipe", [0, 0], 2, (0, 1, 2)),
        ("torchgpipe", [1, 2, 3, 4, 5, 6], 2, (0, 4, 6)),
        ("torchgpipe", [4, 4, 9, 8], 3, (0, 3, 3, 4)),
        # the definition of each
        ("even", [9, 1, 1, 1, 1], 2, (0, 3, 5)),
        ("even", [1] * 24, 4, (0, 6, 12, 18, 24)),
        ("greedy", [1] * 6, 3, (0, 2, 4, 6)),
        ("greedy", [5, 1, 1], 3, (0, 0, 0, 3)),
    ],
)
def test_published_results(name, costs, stages, bounds):
    assert heuristics[name](costs, stages) == bounds


def test_torchgpipe_may_hand_a_layer_to_two_stages():
    costs = [13, 0, 0, 2, 2, 0, 2, 18, 14, 12, 2, 10, 6, 18]
    assert heuristics["torchgpipe"](costs, 13)[-4:] == (13, 14, 13, 14)
    assert misses([(costs, 13)])["torchgpipe"].empty == 1
    assert misses([([0, 0, 0], 2)])["even"] == Misses(1, 0, 0.0, 0.0, 0)
    for call, words in (
        (lambda: misses([([1, 1], 3)]), "2 layers are fewer than 3 stages"),
        (lambda: misses([]), "at least one case"),
        (lambda: heuristics["torchgpipe"]([1, 1], 3), "2 layers are fewer than 3 stages"),
    ):
        with pytest.raises(PartitionError, match=words):
            call()


def random_cases(number, seed):
    draw = random.Random(seed)
    for _ in range(number):
        layers = draw.randint(2, 14)
        whole = draw.random() < 0.5
        costs = [draw.randint(1, 20) if whole else draw.random() for _ in range(layers)]
        yield costs, draw.randint(2, layers)


@pytest.mark.long
@pytest.mark.few(len(heuristics))
@pytest.mark.parametrize("seed", range(10, 15))
@pytest.mark.parametrize("name", heuristics)
def test_no_layer_is_dropped_and_none_beats_the_optimum(name, seed):
    for costs, stages in random_cases(60, seed):
        bounds = heuristics[name](costs, stages)
        assert len(bounds) == stages + 1
        assert bounds[0] == 0
        assert bounds[-1] == len(costs)
        assert set().union(*(range(a, b) for a, b in pairwise(bounds))) == set(range(len(costs)))
        assert max(sums(costs, bounds)) >= partition(costs, stages).bottleneck * (1 - 1e-12)


@pytest.mark.long
def test_misses_by_counting_with_an_exhaustive_optimum():
    cases = [(c, k) for c, k in random_cases(200, seed=2) if len(c) < 9 and isinstance(c[0], int)]
    table = misses(cases)
    for name, split in heuristics.items():
        ratios, empty = [], 0
        for costs, stages in cases:
            best = min(max(sums(costs, b)) for b in contiguous_splits(len(costs), stages))
            bounds = split(costs, stages)
            ratios.append(max(sums(costs, bounds)) / best - 1)
            empty += len(set(bounds)) < stages + 1
        row = table[name]
        assert (row.cases, row.empty) == (len(cases), empty)
        assert row.missed == sum(x > 0 for x in ratios)
        assert row.worst == pytest.approx(max(ratios))
        assert row.average == pytest.approx(sum(ratios) / len(cases))


@pytest.mark.long
def test_the_order_of_the_heuristics_over_many_cases():
    table = misses(random_cases(600, seed=3))
    missed = {name: row.missed / row.cases for name, row in table.items()}
    assert missed["deepspeed"] < 0.1 < missed["torchgpipe"] < missed["even"] < missed["greedy"]
    assert table["even"].empty == table["deepspeed"].empty == 0 < table["torchgpipe"].empty
    assert all(row.worst > 0 for row in table.values())
