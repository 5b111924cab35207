"""Plans of products in files: complete, within memory, exactly counted."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tiledask.errors import ConfigError, DoesNotFitError
from tiledask.plan.products.streaming import Cuts, Problem, plan_cuts, plan_stream, read_bytes


def elements(chunks, region):
    """What a read of ``region`` fetches, chunk by chunk, by looking at every row and column."""
    (ci, cj), ((top, bottom), (left, right)) = chunks, region
    down, across = {i // ci for i in range(top, bottom)}, {j // cj for j in range(left, right)}
    return len(down) * len(across) * ci * cj


def problem(m, n, k, itemsize=4, chunks=((1, 1),) * 3, **more):
    return Problem((m, n, k), itemsize, chunks, accumulator=max(4, itemsize), **more)


spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted).map(tuple)
chunk = st.one_of(st.just((1, 1)), st.tuples(st.integers(1, 9), st.integers(1, 9)))


@given(region=st.tuples(spans, spans), chunks=chunk)
def test_a_read_fetches_every_chunk_that_it_touches(region, chunks):
    assert read_bytes(region, chunks, 4) == 4 * elements(chunks, region)


extent = st.integers(1, 40)


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=50, deadline=None)
@given(
    sizes=st.tuples(extent, extent, extent),
    chunks=st.tuples(chunk, chunk, chunk),
    slots=st.integers(1, 5),
    room=st.integers(0, 30_000),
    itemsize=st.sampled_from([2, 4, 8]),
)
@example(sizes=(1, 1, 3), chunks=((1, 1),) * 3, slots=3, room=1000, itemsize=4)
def test_a_plan_covers_c_once_within_its_memory(part, sizes, chunks, slots, room, itemsize):
    asked = problem(*sizes, itemsize, chunks, workspace=lambda m, n, k: 2 * m * k)
    limit = sum(asked.classes(1, 1, 1).values()) + room
    try:
        plan = plan_stream(asked, slots, limit)
    except DoesNotFitError:
        smallest = (min(pair) for pair in zip(chunks[2], sizes, strict=False))
        assert sum(asked.classes(*smallest, 1).values()) > limit
        return
    assert plan.ledger.peak <= limit
    covered = np.zeros(sizes[:2], int)
    tiles = [tile for mine in plan.tiles for tile in mine]
    for (top, bottom), (left, right) in tiles:
        covered[top:bottom, left:right] += 1
        # nobody else writes to a tile's chunks
        assert top % chunks[2][0] == left % chunks[2][1] == 0
    assert (covered == 1).all()
    k, panel = sizes[2], plan.cuts.panel
    depths = [(start, min(k, start + panel)) for start in range(0, k, panel)]
    fetched = sum(
        elements(chunks[0], (rows, depth)) + elements(chunks[1], (depth, columns))
        for (rows, columns), depth in product(tiles, depths)
    )
    assert plan.bytes_read == itemsize * fetched
    if {*chunks} == {(1, 1)}:
        assert sum(map(bool, plan.tiles)) == min(slots, sizes[0] * sizes[1])


def test_what_a_slot_holds_by_hand():
    """A tile of 3 x 5 in float32, 2 pairs of panels of 7 in half precision ahead; of chunks of A, B
    and C 32, none and 6 elements, 3 copies of each."""
    halves = problem(9, 9, 9, 2, ((4, 8), (1, 1), (2, 3)), workspace=lambda m, n, k: m * n * k)
    *held, runtime = halves.classes(3, 5, 7).values()
    assert held == [4 * 15, 2 * 2 * 7 * (3 + 5), 105, 2 * 3 * (32 + 6)]
    assert runtime == 8 * 2**20 + sum(held) // 50


def test_tiles_are_as_large_as_memory_allows():
    """Half of the memory for a square tile and its panels leaves at least half of the rest."""
    asked = problem(4000, 4000, 4000)
    for limit in (20_000_000, 40_000_000, 80_000_000):
        plan = plan_stream(asked, 2, limit)
        assert plan.ledger.peak > 0.6 * limit
        rows, columns = plan.cuts.tile
        assert max(rows, columns) <= 2 * min(rows, columns)
        assert len([*plan.cuts.regions]) % 2 == 0


def test_what_is_left_is_dealt_anew():
    plan = plan_cuts(problem(40, 40, 40), Cuts((0, 20, 40), (0, 20, 40), 8), 2, 10**9)
    first, second, third, fourth = plan.cuts.regions
    left = plan.remaining({first, third})
    assert left.tiles == ((second,), (fourth,))
    assert left.bytes_read == 4 * 2 * 2 * 20 * 40
    assert plan.remaining({*plan.cuts.regions}).tiles == ((), ())


BIG = (4096, 4096, 10)
WIDE = problem(*BIG, chunks=((1, 1), (1, 1), BIG[:2]))
ONE = Cuts((0, 4096), (0, 4096), 10)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan_stream(problem(10, 10, 10), 1, 10**6), r"at least 8\.38.* MB .* are 1 MB"),
        (lambda: plan_stream(WIDE, 1, 20_000_000), "smaller chunks"),
        (lambda: plan_cuts(problem(*BIG), ONE, 1, 20_000_000), "cut smaller"),
        *(
            (lambda edges=edges: Cuts(edges, (0, 4), 1), "cuts|panel")
            for edges in ((0,), (0, 4, 2), (1, 4), (0, 4.0), (0, 0, 4))
        ),
        *((lambda p=p: Cuts((0, 4), (0, 4), p), "cuts|panel") for p in (0, True)),
    ],
)
def test_too_little_memory_and_cuts_that_are_none(call, words):
    with pytest.raises((DoesNotFitError, ConfigError), match=words):
        call()
