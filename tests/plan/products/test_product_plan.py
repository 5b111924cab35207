"""Plans executed in loops on plain arrays: the right product, panels, the bytes.

No cluster: every rank has its own block and the pieces its plan lists, nothing else.

Holds `tiledask.plan.products.product` and `tiledask.plan.products.product_plan`.
"""

from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.product import algorithms, grids
from tiledask.plan.products.traffic import Traffic

GRID = (Shard(0), Shard(1))
PANELLED = [name for name in algorithms if "panel" in algorithms[name].options]


@cache
def integers(shape, seed=0):
    """Small integers: sums are exact in every order."""
    made = np.random.default_rng(seed).integers(-4, 5, shape).astype(float)
    made.flags.writeable = False
    return made


def square(n, mesh, *placements):
    return Tiling((n, n), mesh, placements)


def within(region, block):
    """The index of ``region`` in an array that holds ``block``; the block must hold all of it."""
    for (start, stop), (first, last) in zip(region, block, strict=True):
        assert first <= start < stop <= last, f"{region} is not in {block}"
    return tuple(
        slice(start - first, stop - first)
        for (start, stop), (first, _) in zip(region, block, strict=True)
    )


def everywhere(region):
    return tuple(slice(start, stop) for start, stop in region)


def regions(tiling):
    return list(tiling.regions)


def cut(array, tiling, seed):
    """The block of every rank; along Partial() axes random addends that sum to ``array``."""
    partial = [axis for axis, p in enumerate(tiling.placements) if p == Partial()]
    which = list(product(*(range(tiling.mesh[axis]) for axis in partial)))
    addends = {at: integers(array.shape, seed + i) for i, at in enumerate(which)}
    addends[which[0]] = array - sum(addends[at] for at in which[1:])
    return [
        addends[tuple(at[axis] for axis in partial)][everywhere(region)].copy()
        for at, region in zip(tiling.coordinates, tiling.regions, strict=True)
    ]


def assemble(blocks, tiling):
    """The array that ``blocks`` are: addends summed, copies compared, every element there."""
    out, addends = np.zeros(tiling.shape), np.zeros(tiling.shape, int)
    for block, at, region in zip(blocks, tiling.coordinates, tiling.regions, strict=True):
        first = [0 if p == Replicate() else i for i, p in zip(at, tiling.placements, strict=True)]
        assert np.array_equal(block, blocks[tiling.rank(first)])
        if tuple(first) == at:
            out[everywhere(region)] += block
            addends[everywhere(region)] += 1
    sizes = zip(tiling.mesh, tiling.placements, strict=True)
    assert (addends == prod(size for size, p in sizes if p == Partial())).all()
    return out


def execute(plan, a, b):
    """A @ B as the ranks of ``plan`` make it, from their blocks and the pieces it lists."""
    blocks_a, blocks_b = cut(a, plan.a, 100), cut(b, plan.b, 200)
    held_a, held_b, made = regions(plan.a), regions(plan.b), regions(plan.work)
    lead, parts = a.ndim - 1, []
    for rank, panels in enumerate(plan.panels):
        part = np.zeros([stop - start for start, stop in made[rank]])
        for panel in panels:
            for of_a, of_b in product(panel.a, panel.b):
                assert of_a.destination == of_b.destination == rank
                left = blocks_a[of_a.source][within(of_a.region, held_a[of_a.source])]
                right = blocks_b[of_b.source][within(of_b.region, held_b[of_b.source])]
                rows, columns = of_a.region[:lead], of_b.region[1:]
                part[within((*rows, *columns), made[rank])] += left @ right
        parts.append(part)
    if plan.sums:
        kept = regions(plan.result)
        sums = [np.zeros([stop - start for start, stop in region]) for region in kept]
        for rank, pieces in enumerate(plan.partials):
            for p in pieces:
                assert p.destination == rank
                addend = parts[p.source][within(p.region, made[p.source])]
                sums[rank][within(p.region, kept[rank])] += addend
        parts = sums
    else:
        assert regions(plan.result) == made
    return assemble(parts, plan.result)


def check_panels(plan):
    """Panels do not overlap in k, and are as deep as is said; both sides have something in them."""
    for rank, panels in enumerate(plan.panels):
        turns = np.zeros(plan.a.shape[-1], int)
        for panel in panels:
            assert panel.a
            assert panel.b
            turns[slice(*panel.depth)] += 1
        assert turns.max(initial=0) <= 1
        assert plan.extents(rank)[2] == turns.sum()


def check_accounts(plan):
    """Traffic, messages and the largest panel, counted piece by piece."""
    moves = []
    for rank, panels in enumerate(plan.panels):
        largest = 0
        for panel in panels:
            others = [p for p in (*panel.a, *panel.b) if p.source != rank]
            moves += [(p.source, rank, p.size * 2) for p in others]
            largest = max(largest, sum(p.size for p in others))
        assert plan.held(rank) == largest
    for rank, addends in enumerate(plan.partials):
        moves += [(p.source, rank, p.size * 4) for p in addends if p.source != rank]
    assert plan.traffic(2, 4) == Traffic.of(plan.ranks, moves)


def along(tiling, placement, summed):
    """What a placement does to a product: cut k, cut m or n, leave addends, or nothing."""
    if isinstance(placement, Shard):
        return "k" if placement.dim == summed else "c"
    return "+" if placement == Partial() else "="


def pairs(a, b):
    """Per mesh axis, what A's and B's placements do."""
    return [
        along(a, of_a, len(a.shape) - 1) + along(b, of_b, 0)
        for of_a, of_b in zip(a.placements, b.placements, strict=True)
    ]


LOCAL = {"==", "c=", "=c", "kk", "+=", "=+"}
"""Pairs of placements that multiply where they lie."""


def refused(name, a, b):
    """Whether ``name`` has to refuse, by the rules alone.

    An algorithm that refuses operands says so here: a PlacementError out of `check` means that
    this function does not know of it.
    """
    if name in ("local", "gather"):
        if a.mesh != b.mesh:
            return True
        mixed = any("+" in pair and "=" not in pair for pair in pairs(a, b))
        return mixed or (name == "local" and not set(pairs(a, b)) <= LOCAL)
    shapeless = len(a.shape) == len(b.shape) == 1
    return (
        Partial() in (*a.placements, *b.placements)
        or (name == "column_parallel" and len(b.shape) == 1)
        or (algorithms[name].axes and shapeless)
    )


def check(name, a, b, **options):
    """Plan it and hold every law there is; the Plan, or None where it is rightly refused."""
    if refused(name, a, b):
        with pytest.raises(PlacementError):
            algorithms[name](a, b, **options)
        return None
    x, y = integers(a.shape, 1), integers(b.shape, 2)
    plan = algorithms[name](a, b, **options)
    np.testing.assert_array_equal(execute(plan, x, y), x @ y)
    check_panels(plan)
    check_accounts(plan)
    return plan


MESHES = "1 2 3 4 7 11 14 22 23 32 41 33 25 111 222 213 124 322 234 333 2122"
MESHES = [tuple(map(int, mesh)) for mesh in MESHES.split(" ")]
SIZES = st.integers(1, 9)


@st.composite
def placed(draw, shape, mesh, partial):
    choices = [*(Shard(dim) for dim in range(len(shape))), Replicate()]
    choices += [Partial()] if partial else []
    return Tiling(shape, mesh, tuple(draw(st.sampled_from(choices)) for _ in mesh))


@st.composite
def operands(draw):
    """Tilings that multiply: vectors, matrices, batches, on one mesh or on two of as many ranks."""
    mesh = draw(st.sampled_from(MESHES))
    k = draw(SIZES)
    rows, columns = draw(st.lists(SIZES, max_size=3)), draw(st.lists(SIZES, max_size=1))
    partial = draw(st.sampled_from([False, False, True]))
    other = draw(st.sampled_from([mesh] * 5 + [(prod(mesh),), mesh[::-1]]))
    return (draw(placed((*rows, k), mesh, partial)), draw(placed((k, *columns), other, partial)))


@st.composite
def choices(draw, name, ranks):
    """Options of ``name``, or none."""
    options = {}
    if name in PANELLED:
        options["panel"] = draw(st.sampled_from([None, 1, 2, 3, 5]))
    if algorithms[name].axes:
        options["grid"] = draw(st.sampled_from([None, *grids(ranks, algorithms[name].axes)]))
    return options


@pytest.mark.few(4)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", algorithms)
@settings(max_examples=40, deadline=None)
@given(operands(), st.data())
def test_every_law_of_every_plan(name, part, tilings, data):
    a, b = tilings
    check(name, a, b, **data.draw(choices(name, a.ranks)))


@pytest.mark.parametrize(
    ("name", "mesh", "of_a", "of_b", "of_c"),
    [
        ("column_parallel", (4,), "0", "1", "1"),
        ("row_parallel", (2, 2), "01", "01", "00"),
        ("cannon", (2, 2), "01", "01", "01"),
        ("3d", (2, 2, 2), "01R", "01R", "010"),
        ("local", (4,), "0", "R", "0"),
        ("local", (4,), "1", "0", "P"),
        ("local", (2, 2), "01", "R0", "0P"),
        ("gather", (2, 2), "01", "10", "0P"),
    ],
)
def test_where_the_product_lies(name, mesh, of_a, of_b, of_c):
    words = {"0": Shard(0), "1": Shard(1), "R": Replicate(), "P": Partial()}
    a, b, c = (tuple(words[letter] for letter in text) for text in (of_a, of_b, of_c))
    plan = check(name, square(16, mesh, *a), square(16, mesh, *b))
    assert (plan.result.mesh, plan.result.placements) == (mesh, c)
    tokens = Tiling((4, 6, 8), (2, 2), (Shard(1), Shard(2)))
    weights = square(8, (2, 2), *GRID)
    assert check("summa", tokens, weights).result.placements == (Shard(1), Shard(2))
    assert check("row_parallel", tokens, weights).result.placements == (Shard(0), Shard(0))
    few = Tiling((3, 6, 8), (2, 2), (Shard(1), Shard(2)))
    assert check("row_parallel", few, weights).result.placements == (Shard(2), Shard(2))
    vector = Tiling((7,), (3,), (Shard(0),))
    plan = check("row_parallel", vector, vector)
    assert plan.result == Tiling((), (3,), (Replicate(),))
    assert received(plan) == (2, 2, 2)  # an all-reduce of one number


def received(plan):
    """Elements that reach each rank."""
    return plan.traffic(1).received


def per_rank(plan):
    """Elements that reach each rank, where that is the same for all; messages likewise."""
    traffic = plan.traffic(1)
    (elements,), (messages,) = set(traffic.received), set(traffic.messages.sum(axis=0).tolist())
    return elements, messages


M, N, K = 144, 48, 144  # every extent below divides them, and panels of 2 every block
SQUARES = [(2, 2), (3, 3), (4, 4)]
RECTANGLES = [*SQUARES, (1, 4), (4, 1), (2, 3), (3, 2), (2, 4)]


def on(mesh, *placements):
    """A [M, K] and B [K, N] under the same placements."""
    return Tiling((M, K), mesh, placements), Tiling((K, N), mesh, placements)


@pytest.mark.parametrize(("p", "q"), RECTANGLES)
def test_summa_receives_a_row_of_a_and_a_column_of_b(p, q):
    a, b = on((p, q), *GRID)
    elements = M // p * K * (q - 1) // q + K * N // q * (p - 1) // p
    panels = K // 2
    messages = panels * (q - 1) // q + panels * (p - 1) // p
    assert per_rank(algorithms["summa"](a, b, panel=2)) == (elements, messages)
    assert received(algorithms["cannon"](a, b)) == (elements,) * p * q


T = square(8, (2, 2), *GRID)
VECTOR = Tiling((8,), (2, 2), (Shard(0), Shard(0)))
NUMBER = Tiling((), (2, 2), (Replicate(), Replicate()))


def shaped(*shape):
    return Tiling(shape, (2, 2), GRID)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("summa", {"width": 2}, r"summa has no option width; it takes panel, grid"),
        ("local", {"panel": 2}, r"local has no option panel; it takes none at all"),
        *(("summa", {"panel": n}, "1 or more columns of A") for n in (0, True, 2.5, "3")),
        *(
            ("summa", {"grid": grid}, r"4 ranks .* 2 extents .* is 4, got .* example \(2, 2\)")
            for grid in ((2, 3), (2, 2, 1), (-2, -2), (2.0, 2), (True, 4), 4, "22")
        ),
        ("3d", {"grid": (2, 2)}, r"3d on 4 ranks needs a grid of 3 extents .*\(2, 2, 1\)"),
        ("2.5d", {"replication": 2}, r"2.5d has no option replication; it takes panel, grid"),
    ],
)
def test_options_that_cannot_be(name, options, message):
    with pytest.raises(PlacementError, match=message):
        algorithms[name](T, T, **options)


@pytest.mark.parametrize(
    ("name", "a", "b", "message"),
    [
        ("local", T, T, r"axis 0: Shard\(0\) @ Shard\(0\) cannot .* lies; .*'gather'"),
        ("local", T, square(8, (4,), Shard(0)), r"A lies on \(2, 2\) and B on \(4,\); distribute"),
        ("column_parallel", T, VECTOR, r"B \(8,\) has none; use row_parallel or gather"),
        ("summa", NUMBER, T, r"A \(\) and B \(8, 8\) do not multiply"),
        ("summa", T, shaped(7, 2), r"A \(8, 8\) and B \(7, 2\) do not multiply: .*transpose"),
    ],
)
def test_operands_that_do_not_multiply(name, a, b, message):
    with pytest.raises(PlacementError, match=message):
        algorithms[name](a, b)
