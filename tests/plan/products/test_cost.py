"""Times of plans, one rate at a time."""

import random
from contextlib import suppress
from dataclasses import replace
from math import inf, prod

import numpy as np
import pytest

from tiledask.errors import PlacementError
from tiledask.plan.products.cost import MachineRates, ProductCost, cost
from tiledask.plan.products.placement import Replicate, Shard, Tiling
from tiledask.plan.products.product import algorithms

COPIES = (Shard(0), Shard(1), Replicate())
MESHES = [(1,), (2,), (3,), (8,), (2, 2), (2, 3), (4, 2), (2, 2, 2), (4, 4), (3, 3, 3)]

# nothing takes time; a test slows down what it looks at
NAMES = ("flops", "touch", "call", "read", "message", "run", "task", "request", "overlapped")
FREE, ROUND = (
    MachineRates(**dict(zip(NAMES, rates, strict=True)))
    for rates in ((inf, inf, 0, inf, 0, 0, 0, 0, False), (2, 8, 0.5, 4, 0.25, 0.125, 1, 0.5, False))
)


def plans(count, seed):
    """``count`` plans of any algorithm, placement and ragged shape."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        mesh, top = draw.choice(MESHES), draw.choice([4, 12, 40])
        m, n, k = (draw.randint(1, top) for _ in range(3))
        placed = [draw.choices(COPIES, k=len(mesh)) for _ in "ab"]
        a, b = (Tiling(s, mesh, p) for s, p in zip(((m, k), (k, n)), placed, strict=True))
        of = draw.choice(list(algorithms.values()))
        options = {"panel": draw.randint(1, 9)} if "panel" in of.options else {}
        with suppress(PlacementError):
            found.append(of(a, b, **options))
    return found


def stretches(region, block):
    """Runs of consecutive addresses of ``region`` in a row-major array that is ``block``."""
    shape = [stop - start for start, stop in block]
    where = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(region, block, strict=True))
    addresses = np.arange(prod(shape)).reshape(shape)[where].ravel()
    return 1 + int((np.diff(addresses) != 1).sum())


def slowest(plan, **rates):
    found = cost(plan, 1, 1, replace(FREE, **rates))
    assert found.total == pytest.approx(found.multiply + found.read + found.sum + found.overhead)
    return found.total


def strided(plan, rank):
    """Stretches of all that a rank reads."""
    read = [(piece, plan.a) for panel in plan.panels[rank] for piece in panel.a]
    read += [(piece, plan.b) for panel in plan.panels[rank] for piece in panel.b]
    read += [(piece, plan.work) for piece in plan.partials[rank]]
    others = ((piece, t.regions[piece.source]) for piece, t in read if piece.source != rank)
    return sum(stretches(piece.region, block) for piece, block in others)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(7, 11))
def test_every_rate_counts_what_it_says(seed):
    for plan in plans(40, seed):
        traffic, ranks = plan.traffic(1), range(plan.ranks)
        extents = [plan.extents(rank) for rank in ranks]
        assert slowest(plan) == 0
        assert slowest(plan, read=1.0) == max(traffic.received)
        assert slowest(plan, message=1.0) == max(traffic.messages.sum(axis=0))
        assert slowest(plan, flops=1.0) == max(2 * prod(sides) for sides in extents)
        assert slowest(plan, run=1.0) == max(strided(plan, rank) for rank in ranks)
        pairs = [sum(len(p.a) * len(p.b) for p in panels) for panels in plan.panels]
        assert slowest(plan, call=1.0) == max(pairs)
        passes = [
            (m + n) * k + 2 * m * n * len(panels) + 2 * sum(p.size for p in addends)
            for (m, n, k), panels, addends in zip(extents, plan.panels, plan.partials, strict=True)
        ]
        assert slowest(plan, touch=1.0) == max(passes)
        assert slowest(plan, task=1.0) == plan.ranks * (3 if plan.sums else 1)
        assert slowest(plan, request=1.0) == (3 if plan.sums else 2)


def test_seconds_by_hand():
    t = Tiling((4, 4), (2,), (Shard(0),))
    # 2 panels of (2 x 2) (2 x 4): 32 FLOP, 12 elements of 4 bytes, C twice 8 of 8; 1 call
    multiply = 2 * (32 / 2 + (12 * 4 + 16 * 8) / 8 + 0.5)
    read = 0.25 + 0.125 + 8 * 4 / 4  # one piece, whole rows
    overhead = 2 * 1.0 + 2 * 0.5
    gather, total = algorithms["gather"](t, t), multiply + read + overhead
    parts = multiply, read, 0.0, overhead, total, 2 * (multiply,)
    assert cost(gather, 4, 8, ROUND) == ProductCost(*parts)
    beside = replace(ROUND, overlapped=True)
    assert cost(gather, 4, 8, beside).total == multiply + overhead
    slow = replace(beside, read=0.01)
    assert cost(gather, 4, 8, slow).total == 0.25 + 0.125 + 3200 + overhead
