"""Partitions whose stages have several devices, against every cut and every number of replicas; and
what PipeDream found for VGG-16.

Holds `tiledask.plan.splitting.replicated`.
"""

import random
from fractions import Fraction
from itertools import pairwise, product

import pytest

import tiledask as td
from tiledask.errors import PartitionError
from tiledask.plan.splitting.partition import contiguous_splits, partition


def seconds(bounds, replicas, costs, weights, sends):
    """Exact, from the definition: of each stage, for a micro-batch."""
    sends = [*map(Fraction, sends), 0]
    return [
        max(
            (sum(map(Fraction, costs[a:b])) + sends[b - 1]) / r,
            Fraction(2 * (r - 1), r) * sum(map(Fraction, weights[a:b])),
        )
        for (a, b), r in zip(pairwise(bounds), replicas, strict=True)
    ]


def oracle(costs, devices, stages=None, weights=None, communication=None):
    """The best of all: least bottleneck, fewest devices, fewest stages, longest first stages."""
    n, found = len(costs), []
    given = weights or [0] * n, communication or [0] * (n - 1)
    for p in range(1, min(n, devices) + 1) if stages is None else [stages]:
        for bounds in contiguous_splits(n, p):
            for replicas in product(range(1, devices - p + 2), repeat=p):
                if sum(replicas) <= devices:
                    slowest = max(seconds(bounds, replicas, costs, *given))
                    found.append((slowest, sum(replicas), p, [-b for b in bounds], replicas))
    return min(found)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
def test_equals_every_cut_and_every_number_of_replicas(seed):
    draw = random.Random(seed)
    for _ in range(60):
        layers, devices = draw.randint(1, 6), draw.randint(1, 6)
        numbers = draw.choice([lambda: draw.randint(0, 6), draw.random, lambda: 1 / 3])
        problem = {"costs": [numbers() for _ in range(layers)], "devices": devices}
        if draw.random() < 0.7:
            problem["weights"] = [draw.choice([0, 0.5, 2]) * numbers() for _ in range(layers)]
        if draw.random() < 0.5:
            problem["communication"] = [numbers() for _ in range(layers - 1)]
        if draw.random() < 0.5:
            problem["stages"] = draw.randint(1, min(layers, devices))
        slowest, used, _, bounds, replicas = oracle(**problem)
        cut = partition(**problem)
        assert (cut.bounds, cut.replicas) == (tuple(-b for b in bounds), replicas), problem
        assert cut.bottleneck == pytest.approx(float(slowest), rel=1e-14), problem
        assert (cut.devices, len(cut.device_times)) == (used, used)


def test_the_simulated_pipeline_takes_the_bottleneck_for_each_microbatch():
    """Forward and backward cost 1 and 2 of 3; a step of 60 micro-batches more takes 60 bottlenecks
    more."""
    cut = partition([3, 6, 9, 3, 3], stages=2, devices=4)
    assert (cut.bounds, cut.replicas, cut.times) == ((0, 3, 5), (3, 1), (6, 6))
    assert cut.device_times == (6, 6, 6, 6)
    stages = [sum(cut.costs[layer] for layer in layers) for layers in cut.layers]

    def makespan(m):
        schedule = td.schedule("1f1b", cut.stages, m, replicas=cut.replicas)
        return td.simulate(schedule, [t / 3 for t in stages], [2 * t / 3 for t in stages]).makespan

    assert makespan(90) - makespan(30) == 60 * cut.bottleneck


def vgg_16(pictures=64, itemsize=4):
    """(multiply-adds of a forward, bytes of weights, bytes to the next layer) by layer, of images
    of 224 x 224 (Simonyan and Zisserman, arXiv 1409.1556, configuration D)."""
    channels, rows = 3, []
    for side, wide, convolutions in (
        (224, 64, 2),
        (112, 128, 2),
        (56, 256, 3),
        (28, 512, 3),
        (14, 512, 3),
    ):
        for n in range(convolutions):
            pooled = side // 2 if n == convolutions - 1 else side
            weights = 9 * channels * wide + wide
            rows.append((9 * channels * wide * side**2, weights, wide * pooled**2))
            channels = wide
    rows += [(a * b, a * b + b, b) for a, b in pairwise((7 * 7 * 512, 4096, 4096, 1000))]
    return [(macs * pictures, w * itemsize, out * pictures * itemsize) for macs, w, out in rows]


@pytest.mark.parametrize("bandwidth", [5e9, 8e9, 12e9, 16e9])
def test_vgg_16_on_16_devices_is_pipedreams_15_1(bandwidth):
    """Its Table 1: convolutions on 15 workers, the dense layers, 89 % of the weights, on one."""
    layers = vgg_16()
    macs, sizes, outs = zip(*layers, strict=True)
    assert sum(sizes) == 4 * 138_357_544
    assert sum(sizes[13:]) > 0.89 * sum(sizes)
    seconds = [6 * each / 10e12 for each in macs]  # forward and backward at 10 TFLOP/s
    cut = partition(
        seconds,
        devices=16,
        weights=[size / bandwidth for size in sizes],
        communication=[2 * out / bandwidth for out in outs[:-1]],
    )
    assert cut.replicas == (15, 1)
    assert cut.bounds[1] <= 13
    free = partition(seconds, devices=16)
    assert (free.replicas, free.stages) == ((16,), 1)  # data parallelism, if sums took no time


def test_says_how_many_each_stage_has():
    cut = partition([4, 4, 4, 1, 3], stages=2, devices=4, weights=1)
    assert repr(cut) == "Partition(3 x [1-3] [4-5], bottleneck 4)"
    page = cut._repr_html_()
    assert "<th>devices</th><th>time of a micro-batch</th>" in page
    assert "<td>[1-3]</td><td>3</td><td>3</td><td>4</td>" in page
    assert "micro-batch" not in partition(5, 2)._repr_html_()
    with pytest.raises(
        PartitionError, match=r"layers of 3 x \[1-3\] \[4-5\] are on up to 3 devices"
    ):
        _ = cut.place
    with pytest.raises(PartitionError, match=r"one device each, and those of .* have up to 3"):
        td.judge(cut)
    alone = partition([1, 1], devices=2, weights=9)
    assert (str(alone), alone.place, alone.replicas) == ("[1][2]", (0, 1), (1, 1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "is into stages=, or over devices= of which a stage may have several"),
        ({"stages": 2, "weights": 1}, "weights= are summed over these"),
        ({"devices": 0}, "devices must be a whole number of 1 or more, got 0"),
        ({"devices": 2, "stages": 3}, "3 stages are more than 2 devices; use 3 devices, or 2"),
        ({"devices": 9, "stages": 5}, "4 layers are fewer than 5 stages; use at most 4"),
        ({"devices": 2, "speeds": [1, 2], "chunks": 2}, "leave out speeds and chunks, or devices"),
        ({"devices": 2, "memory": [1] * 4, "capacity": 9}, "leave out memory and capacity, or"),
        ({"devices": 2, "weights": [1]}, "got 1 weights values where 4 are needed"),
        ({"devices": 2, "weights": -1}, "weights number 1 must be a finite number, 0 or more"),
        ({"costs": 301, "devices": 2}, "for 1 to 300 of them, got 301; put layers"),
        ({"costs": [], "devices": 2}, "for 1 to 300 of them, got 0"),
    ],
)
def test_refuses(options, words):
    with pytest.raises(PartitionError, match=words):
        partition(**{"costs": [1, 2, 3, 4]} | options)
