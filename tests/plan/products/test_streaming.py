"""Plans of products in files: complete, within memory, exactly counted, and as fast as any.

Holds `tiledask.plan.products.stream_search`.
"""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ConfigError, DoesNotFitError
from tiledask.plan.products import stream_search
from tiledask.plan.products.stream_search import plan_stream
from tiledask.plan.products.streaming import Cuts, Problem, StorageLayout, plan_cuts


def elements(form, region):
    """What a read of ``region`` fetches, chunk by chunk, by looking at every row and column."""
    (ci, cj), ((top, bottom), (left, right)) = form.chunks or (1, 1), region
    down, across = {i // ci for i in range(top, bottom)}, {j // cj for j in range(left, right)}
    return len(down) * len(across), len(down) * len(across) * ci * cj


def problem(m, n, k, itemsize=4, chunks=(None, None, None), orders="CCC", **more):
    shapes = (m, k), (k, n), (m, n)
    forms = [
        StorageLayout(shape, itemsize, order, c)
        for shape, order, c in zip(shapes, orders, chunks, strict=True)
    ]
    return Problem(*forms, accumulator=max(4, itemsize), **more)


spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted).map(tuple)
chunk = st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 9)))


@given(region=st.tuples(spans, spans), chunks=chunk)
def test_a_read_fetches_every_chunk_that_it_touches(region, chunks):
    form = StorageLayout((12, 12), 4, chunks=chunks)
    count, size = elements(form, region)
    assert form.read_bytes(region) == 4 * size
    if chunks:
        assert form.calls(region) == count


def test_calls_are_the_contiguous_runs():
    assert StorageLayout((8, 8), 4).calls(((2, 5), (1, 7))) == 3
    assert StorageLayout((8, 8), 4).calls(((2, 5), (0, 8))) == 1
    assert StorageLayout((8, 8), 4, "F").calls(((2, 5), (1, 7))) == 6
    assert StorageLayout((8, 8), 4, "F").calls(((0, 8), (1, 7))) == 1


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
def test_a_plan_covers_c_once_within_its_memory(part, sizes, chunks, slots, room, itemsize):
    asked = problem(*sizes, itemsize, chunks, workspace=lambda m, n, k: 2 * m * k)
    limit = asked.memory(1, 1, 1) + room
    try:
        plan = plan_stream(asked, slots, limit)
    except DoesNotFitError:
        smallest = (min(pair) for pair in zip(asked.c.grid, sizes, strict=False))
        assert asked.memory(*smallest, 1) > limit
        return
    assert plan.ledger.peak <= limit
    covered = np.zeros(asked.c.shape, int)
    for tile in plan.tiles:
        (top, bottom), (left, right) = tile.region
        covered[top:bottom, left:right] += 1
        if asked.c.chunks:  # nobody else writes to a tile's chunks
            assert top % asked.c.chunks[0] == left % asked.c.chunks[1] == 0
    assert (covered == 1).all()
    k = sizes[2]
    assert plan.bytes_read == itemsize * sum(
        elements(form, region)[1]
        for tile in plan.tiles
        for start in range(0, k, plan.panel)
        for depth in [(start, min(k, start + plan.panel))]
        for form, region in ((asked.a, (tile.region[0], depth)), (asked.b, (depth, tile.region[1])))
    )
    assert plan.bytes_written == itemsize * sizes[0] * sizes[1]
    assert plan.panels == len(plan.tiles) * -(-k // plan.panel)
    assert plan.of(0).tiles == tuple(tile for tile in plan.tiles if tile.slot == 0)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("m", "n", "k", "slots", "limit"),
    [
        (90, 70, 50, 1, 30_000),
        (64, 64, 64, 2, 20_000),
        (200, 20, 40, 3, 12_000),
        (7, 300, 90, 4, 16_000),
        (33, 31, 500, 2, 40_000),
        (40, 40, 40, 5, 9_000),
    ],
)
def test_the_search_finds_what_trying_everything_finds(monkeypatch, m, n, k, slots, limit):
    # at these sizes the real setup costs would drown all else
    for name in ("CALL", "PANEL_SETUP"):
        monkeypatch.setattr(stream_search, name, getattr(stream_search, name) / 1000)
    asked = problem(m, n, k)
    limit += asked.memory(0, 0, 0)

    def seconds(p, q, w):
        tm, tn = -(-m // p), -(-n // q)
        fits = asked.memory(tm, tn, w) <= limit
        return stream_search._seconds(asked, (1, 1, 1), p, q, w, slots) if fits else inf

    best = min(
        seconds(p, q, w)
        for p, q, w in product(range(1, m + 1), range(1, n + 1), stream_search._widths(k, 1))
    )
    plan = plan_stream(asked, slots, limit)
    assert seconds(*plan.cuts.grid, plan.panel) <= 1.03 * best


def test_what_is_left_is_dealt_anew():
    plan = plan_cuts(problem(40, 40, 40), Cuts((0, 20, 40), (0, 20, 40), 8), 2, 10**9)
    first, second, third, _ = plan.cuts.regions
    left = plan.remaining({first: 40, second: 16, third: 40})
    assert {tile.region: tile.begin for tile in left.tiles} == {second: 16, _: 0}
    assert sorted(tile.slot for tile in left.tiles) == [0, 1]
    # the begun tile's partial sum is read too
    assert left.bytes_read == 4 * (20 * 20 + 2 * 20 * 24 + 2 * 20 * 40)
    assert "2 of them left" in repr(left)
    assert plan.remaining(dict.fromkeys(plan.cuts.regions, 40)).tiles == ()
    html = plan.remaining({((0, 20), (0, 20)): 40})._repr_html_()
    assert html.count("✓") == 1
    assert "20..40" in html
    assert "3 of them left" in html


BIG = (4096, 4096, 10)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan_stream(problem(10, 10, 10), 1, 10**6), r"at least 8\.38.* MB .* are 1 MB"),
        (
            lambda: plan_stream(problem(*BIG, chunks=(None, None, BIG[:2])), 1, 20_000_000),
            "smaller chunks",
        ),
        (
            lambda: plan_cuts(problem(*BIG), Cuts((0, 4096), (0, 4096), 10), 1, 20_000_000),
            "cut smaller",
        ),
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
