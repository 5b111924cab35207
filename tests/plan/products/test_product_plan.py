"""Plans executed in loops on plain arrays: the right product, panels, the bytes, the times.

No cluster: every rank has its own block and the pieces its plan lists, nothing else.
"""

from dataclasses import replace
from itertools import product
from math import inf, prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tiledask import Partial, Replicate, Shard, Tiling, Traffic, algorithms
from tiledask.errors import PlacementError
from tiledask.plan.products.cost import MachineRates, product_seconds
from tiledask.plan.products.product import grids

GRID, COPIES = (Shard(0), Shard(1)), (Replicate(), Replicate())


def integers(shape, seed):
    """Small integers: sums are exact in every order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def square(n, mesh, *placements):
    return Tiling((n, n), mesh, placements)


def within(region, block):
    """The index of ``region`` in an array that holds ``block``; the block must hold all of it."""
    for (start, stop), (first, last) in zip(region, block, strict=True):
        assert first <= start < stop <= last, f"{region} is not in {block}"
    pairs = zip(region, block, strict=True)
    return tuple(slice(a - first, b - first) for (a, b), (first, _) in pairs)


def everywhere(region):
    return tuple(slice(start, stop) for start, stop in region)


def assemble(blocks, tiling):
    """The array that ``blocks`` are: addends summed, copies compared, every element there."""
    out, addends = np.zeros(tiling.shape), np.zeros(tiling.shape, int)
    for block, at, region in zip(blocks, tiling.coordinates, tiling.regions, strict=True):
        first = [0 if p == Replicate() else i for i, p in zip(at, tiling.placements, strict=True)]
        assert np.array_equal(block, blocks[tiling.coordinates.index(tuple(first))])
        if tuple(first) == at:
            out[everywhere(region)] += block
            addends[everywhere(region)] += 1
    sizes = zip(tiling.mesh, tiling.placements, strict=True)
    assert (addends == prod(size for size, p in sizes if p == Partial())).all()
    return out


def execute(plan, a, b):
    """A @ B as the ranks of ``plan`` make it, from their blocks and the pieces it lists."""
    made, lead, parts = plan.work.regions, a.ndim - 1, []

    def piece(p, x, regions):
        return x[everywhere(regions[p.source])][within(p.region, regions[p.source])]

    for rank, panels in enumerate(plan.panels):
        part = np.zeros([stop - start for start, stop in made[rank]])
        for panel in panels:
            for of_a, of_b in product(panel.a, panel.b):
                assert of_a.destination == of_b.destination == rank
                here = within((*of_a.region[:lead], *of_b.region[1:]), made[rank])
                part[here] += piece(of_a, a, plan.a.regions) @ piece(of_b, b, plan.b.regions)
        parts.append(part)
    if not plan.sums:
        assert plan.result.regions == made
        return assemble(parts, plan.result)
    sums = [np.zeros([stop - start for start, stop in region]) for region in plan.result.regions]
    for rank, pieces in enumerate(plan.partials):
        for p in pieces:
            assert p.destination == rank
            addend = parts[p.source][within(p.region, made[p.source])]
            sums[rank][within(p.region, plan.result.regions[rank])] += addend
    return assemble(sums, plan.result)


def check_accounts(plan):
    """Panels are disjoint in k; traffic, messages and the largest panel, counted piece by piece."""
    moves = []
    for rank, panels in enumerate(plan.panels):
        turns, largest = np.zeros(plan.a.shape[-1], int), 0
        for panel in panels:
            assert panel.a
            assert panel.b
            turns[slice(*panel.depth)] += 1
            others = [p for p in (*panel.a, *panel.b) if p.source != rank]
            moves += [(p.source, rank, p.size * 2) for p in others]
            largest = max(largest, sum(p.size for p in others))
        assert turns.max(initial=0) <= 1
        assert plan.extents(rank)[2] == turns.sum()
        assert plan.held(rank) == largest
    for rank, addends in enumerate(plan.partials):
        moves += [(p.source, rank, p.size * 4) for p in addends if p.source != rank]
    assert plan.traffic(2, 4) == Traffic.of(plan.ranks, moves)


def stays(a, of_a, of_b):
    """Whether a rank multiplies what it holds, along an axis on which A and B are placed so."""
    along_k = of_a == Shard(len(a.shape) - 1), of_b == Shard(0)
    return all(along_k) or (not any(along_k) and Replicate() in (of_a, of_b))


def refused(name, a, b):
    """Whether ``name`` has to refuse, by the rules alone."""
    if Partial() in (*a.placements, *b.placements):
        return True
    if name in ("local", "gather"):
        pairs = zip(a.placements, b.placements, strict=False)
        moves = name == "local" and not all(stays(a, *pair) for pair in pairs)
        return a.mesh != b.mesh or moves
    on_grid = "grid" in algorithms[name].options
    return len(b.shape) == 1 and (name == "column_parallel" or (on_grid and len(a.shape) == 1))


def check(name, a, b, **options):
    """Plan it and hold every law there is; the Plan, or None where it is rightly refused."""
    if refused(name, a, b):
        with pytest.raises(PlacementError):
            algorithms[name](a, b, **options)
        return None
    x, y = integers(a.shape, 1), integers(b.shape, 2)
    plan = algorithms[name](a, b, **options)
    np.testing.assert_array_equal(execute(plan, x, y), x @ y)
    check_accounts(plan)
    return plan


MESHES = "1 2 3 4 7 11 14 22 23 32 41 33 25 111 222 213 124 322 234 333 2122"
MESHES = [tuple(map(int, mesh)) for mesh in MESHES.split(" ")]
SIZES = st.integers(1, 9)


@st.composite
def placed(draw, shape, mesh):
    choices = [*(Shard(dim) for dim in range(len(shape))), Replicate()]
    return Tiling(shape, mesh, tuple(draw(st.sampled_from(choices)) for _ in mesh))


@st.composite
def operands(draw):
    """Tilings that multiply: vectors, matrices, batches, on one mesh or on two of as many ranks."""
    mesh, k = draw(st.sampled_from(MESHES)), draw(SIZES)
    rows, columns = draw(st.lists(SIZES, max_size=3)), draw(st.lists(SIZES, max_size=1))
    other = draw(st.sampled_from([mesh] * 5 + [(prod(mesh),), mesh[::-1]]))
    return draw(placed((*rows, k), mesh)), draw(placed((k, *columns), other))


@st.composite
def choices(draw, name, ranks):
    """Options of ``name``, or none."""
    of = algorithms[name]
    values = {"panel": [None, 1, 2, 3, 5], "grid": [None, *grids(ranks, len(of.cuts) or 1)]}
    return {option: draw(st.sampled_from(values[option])) for option in of.options}


@pytest.mark.few(4)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", algorithms)
@settings(max_examples=40, deadline=None)
@given(operands(), st.data())
def test_every_law_of_every_plan(name, part, tilings, data):
    a, b = tilings
    check(name, a, b, **data.draw(choices(name, a.ranks)))


def test_where_products_of_batches_and_vectors_lie():
    weights = square(8, (2, 2), *GRID)
    for tokens, dims in (((4, 6, 8), (0, 0)), ((3, 6, 8), (2, 2))):
        tokens = Tiling(tokens, (2, 2), (Shard(1), Shard(2)))
        assert check("summa", tokens, weights).result.placements == tokens.placements
        few = check("row_parallel", tokens, weights)
        assert few.result.placements == tuple(map(Shard, dims))
    vector = Tiling((7,), (3,), (Shard(0),))
    plan = check("row_parallel", vector, vector)
    assert plan.result == Tiling((), (3,), (Replicate(),))
    assert plan.traffic(1).received == (2, 2, 2)  # an all-reduce of one number
    split = check("local", square(16, (4,), Shard(1)), square(16, (4,), Shard(0)))
    assert split.result.placements == (Partial(),)


T = square(8, (2, 2), *GRID)


@pytest.mark.parametrize(
    ("name", "a", "b", "options", "message"),
    [
        ("summa", T, T, {"width": 2}, "summa has no option width; it takes panel, grid"),
        ("local", T, T, {"panel": 2}, "local has no option panel; it takes none at all"),
        *(("summa", T, T, {"panel": n}, "1 or more columns of A") for n in (0, True)),
        *(
            ("summa", T, T, {"grid": grid}, r"4 ranks .* 2 extents .* example \(2, 2\)")
            for grid in ((2, 3), (2, 2, 1), (-2, -2), (2.0, 2), (True, 4), 4, "22")
        ),
        ("3d", T, T, {"grid": (2, 2)}, r"3d on 4 ranks needs a grid of 3 extents .*\(2, 2, 1\)"),
        ("local", T, T, {}, r"axis 0: Shard\(0\) @ Shard\(0\) cannot .* lies; .*'gather'"),
        ("local", T, square(8, (4,), Shard(0)), {}, r"A lies on \(2, 2\) and B on \(4,\); dist"),
        ("summa", Tiling((), (2, 2), COPIES), T, {}, r"A \(\) and B \(8, 8\) do not multiply"),
        ("summa", T, Tiling((7, 2), (2, 2), GRID), {}, "do not multiply: .*transpose"),
        ("summa", T, T.replaced(COPIES[0], Partial()), {}, r"B is Partial\(\) along mesh axis 1"),
    ],
)
def test_what_is_no_product_is_refused(name, a, b, options, message):
    with pytest.raises(PlacementError, match=message):
        algorithms[name](a, b, **options)


# -- times, one rate at a time ---------------------------------------------------------------------

# nothing takes time; a test slows down what it looks at
NAMES = ("flops", "touch", "call", "read", "message", "run", "task", "overlapped")
FREE = MachineRates(**dict(zip(NAMES, (inf, inf, 0, inf, 0, 0, 0, False), strict=True)))


def stretches(region, block):
    """Runs of consecutive addresses of ``region`` in a row-major array that is ``block``."""
    shape = [stop - start for start, stop in block]
    where = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(region, block, strict=True))
    addresses = np.arange(prod(shape)).reshape(shape)[where].ravel()
    return 1 + int((np.diff(addresses) != 1).sum())


def slowest(plan, **rates):
    return product_seconds(plan, 1, 1, replace(FREE, **rates))[0]


def strided(plan, rank):
    """Stretches of all that a rank reads."""
    read = [(piece, plan.a) for panel in plan.panels[rank] for piece in panel.a]
    read += [(piece, plan.b) for panel in plan.panels[rank] for piece in panel.b]
    read += [(piece, plan.work) for piece in plan.partials[rank]]
    others = ((piece, t.regions[piece.source]) for piece, t in read if piece.source != rank)
    return sum(stretches(piece.region, block) for piece, block in others)


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(4))
@settings(max_examples=60, deadline=None)
@given(operands(), st.data(), st.sampled_from([*algorithms]))
def test_every_rate_counts_what_it_says(part, tilings, data, name):
    a, b = tilings
    assume(not refused(name, a, b))
    plan = algorithms[name](a, b, **data.draw(choices(name, a.ranks)))
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
    assert slowest(plan, task=1.0) == plan.ranks * (2 if plan.sums else 1)
    seconds, busy = product_seconds(
        plan, 4, 8, replace(FREE, flops=1.0, touch=8.0, read=4.0, overlapped=True)
    )
    if not plan.sums:
        sides = zip(extents, map(len, plan.panels), strict=True)
        work = [2 * m * n * k + ((m + n) * k * 4 + 16 * m * n * p) / 8 for (m, n, k), p in sides]
        assert seconds == max(map(max, zip(work, traffic.received, strict=True)))
        assert busy == tuple(work)
