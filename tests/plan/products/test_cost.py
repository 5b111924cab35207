"""Times, one rate at a time; the least that must move, against all subsets and against plans."""

import random
from dataclasses import replace
from math import inf, prod

import numpy as np
import pytest

from tiledask.errors import PlacementError
from tiledask.plan.products.cost import MachineRates, ProductCost, cost, least_moved
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.product import algorithms, plan_product

GRID = (Shard(0), Shard(1))
COPIES = (*GRID, Replicate())
MESHES = [(1,), (2,), (3,), (8,), (2, 2), (2, 3), (4, 2), (2, 2, 2), (4, 4), (3, 3, 3), (6, 6)]
MESHES.append((4, 4, 4))

# nothing takes time; a test slows down what it looks at
NAMES = ("flops", "touch", "call", "read", "message", "run", "task", "request", "overlapped")
FREE, ROUND = (
    MachineRates(**dict(zip(NAMES, rates, strict=True)))
    for rates in ((inf, inf, 0, inf, 0, 0, 0, 0, False), (2, 8, 0.5, 4, 0.25, 0.125, 1, 0.5, False))
)


def plans(count, seed):
    """``count`` plans of any algorithm, placement and ragged shape."""
    draw = random.Random(seed)
    found = []
    while len(found) < count:
        mesh = draw.choice(MESHES)
        top = draw.choice([4, 12, 40])
        m, n, k = (draw.randint(1, top) for _ in range(3))
        choices = [*COPIES, Partial()]
        a, b = (
            Tiling(
                s, mesh, draw.choice([[draw.choice(choices) for _ in mesh], COPIES[: len(mesh)]])
            )
            for s in ((m, k), (k, n))
        )
        name = draw.choice(list(algorithms))
        options = {"panel": draw.randint(1, 9)} if "panel" in algorithms[name].options else {}
        try:
            found.append(plan_product(name, a, b, **options))
        except PlacementError:
            continue
    return found


def sizes(tiling):
    return [prod(tiling.block_shape(at)) for at in tiling.coordinates()]


def touched(m, n, k, work):
    """The bound on what ``work`` multiplications touch, by itself."""
    return least_moved(m, n, k, m * n * k / work, memory=inf, held=0)


@pytest.mark.parametrize(
    "box", [(1, 1, 1), (1, 1, 6), (1, 2, 5), (2, 2, 2), (1, 3, 3), (2, 2, 3), (3, 1, 4)]
)
def test_no_set_of_multiplications_touches_less(box):
    m, n, k = box
    sets = np.arange(1, 2 ** (m * n * k), dtype=np.uint32)
    done = ((sets[:, None] >> np.arange(m * n * k)) & 1).reshape(-1, m, n, k).astype(bool)
    of_matrices = sum(done.any(axis=axis).sum(axis=(1, 2)) for axis in (1, 2, 3))
    work = done.sum(axis=(1, 2, 3))
    for w in range(1, m * n * k + 1):
        fewest = of_matrices[work == w].min()
        assert touched(m, n, k, w) <= fewest + 1e-9
        if w == m * n * k:  # all of it, a square of full depth, a cube: nothing is given away
            assert touched(m, n, k, w) == pytest.approx(fewest)
    small, middle, _ = sorted(box)
    for w in (small**3, small * middle**2):
        assert touched(m, n, k, w) == pytest.approx(of_matrices[work == w].min())


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        # a cube of ranks: three faces of side 1200 / 4, less a 64th of each matrix
        ((1200, 1200, 1200, 64, inf, 3 * 1200**2 / 64), 3 * 300**2 - 3 * 1200**2 / 64),
        # 10^6 multiplications a rank in a memory of 50^2: 2 * 10^6 / 50, less 2 * 2500 / 5.196
        ((1000, 1000, 1000, 1000, 2500, 0), 40000 - 5000 / 27**0.5),
        # enough memory for the faces of a cube of side 100
        ((1000, 1000, 1000, 1000, 30000, 0), 30000),
        # one of two ranks does three quarters of 4 x 4 x 4: 2/3 of what 48 touch
        ((4, 4, 4, 2, inf, 0, 48), 2 / 3 * 3 * 48 ** (2 / 3)),
    ],
)
def test_known_values(arguments, least):
    assert least_moved(*arguments) == pytest.approx(least)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(6))
def test_every_plan_moves_at_least_that(seed):
    binding = 0
    for plan in plans(120, seed):
        m, n, k = plan.a.shape[0], plan.b.shape[1], plan.a.shape[1]
        blocks = list(zip(*map(sizes, (plan.a, plan.b, plan.result)), strict=True))
        extents = [plan.extents(rank) for rank in range(plan.ranks)]
        memory = max(
            a + b + rows * columns + max(plan.held(rank), c if plan.sums else 0)
            for rank, (a, b, c) in enumerate(blocks)
            for rows, columns, _ in [extents[rank]]
        )
        held = sum(map(sum, blocks)) / plan.ranks
        least = least_moved(m, n, k, plan.ranks, memory, held, max(map(prod, extents)))
        assert least <= max(plan.traffic(1).received) + 1e-6, plan
        binding += least > 0
    assert binding > 20


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


def per_rank(plan, of_operand, of_addend):
    """The largest sum over a rank's fetched pieces."""
    owned = [[t.region(at) for at in t.coordinates()] for t in (plan.a, plan.b, plan.work)]
    return max(
        sum(
            of_operand(p.region, blocks[p.source])
            for panel in plan.panels[rank]
            for pieces, blocks in ((panel.a, owned[0]), (panel.b, owned[1]))
            for p in pieces
            if p.source != rank
        )
        + sum(of_addend(p.region, owned[2][p.source]) for p in plan.summed[rank])
        for rank in range(plan.ranks)
    )


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
        assert slowest(plan, run=1.0) == per_rank(plan, stretches, stretches)
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
    gather, total = plan_product("gather", t, t), multiply + read + overhead
    assert cost(gather, 4, 8, ROUND) == ProductCost(
        multiply, read, 0.0, overhead, total, 2 * (multiply,)
    )
    beside = replace(ROUND, overlapped=True)
    assert cost(gather, 4, 8, beside).total == multiply + overhead
    slow = replace(beside, read=0.01)
    assert cost(gather, 4, 8, slow).total == 0.25 + 0.125 + 3200 + overhead
