"""Collectives on paper: moves that do what they are for, and bytes that agree with closed forms."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.closed_collectives import bytes_of

from tiledask.errors import ConfigError
from tiledask.plan.collectives.algorithms import MADE_FROM, rounds
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.rows import halo_strips, halo_widths
from tiledask.plan.products.traffic import Traffic

ALGORITHMS = "ring", "tree", "direct"
EVERY = list(product(MADE_FROM, ALGORITHMS))


def replayed(kind, algorithm, n, root=0):
    """What every rank has after the rounds: chunk -> bag of contributions, like (rank, chunk)."""
    chunks = {  # of rank r at first
        "all_gather": lambda r: [r],
        "barrier": lambda r: [r],
        "broadcast": lambda r: range(n) if r == root else [],
        "all_to_all": lambda r: range(n * r, n * r + n),
    }.get(kind, lambda r: range(n))
    has = [{c: [(r, c)] for c in chunks(r)} for r in range(n)]
    for moves in rounds(kind, algorithm, n, root):
        # what is sent in a round was there before it
        posted = [(m, [list(has[m.source][c]) for c in m.chunks]) for m in moves]
        for move, parts in posted:
            for chunk, part in zip(move.chunks, parts, strict=True):
                mine = has[move.destination]
                mine[chunk] = sorted(mine[chunk] + part) if move.adds else part
    return has


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_collective_brings_what_it_is_for(algorithm, n):
    everyone = lambda c: [(r, c) for r in range(n)]  # noqa: E731
    gathered = replayed("all_gather", algorithm, n)
    assert all(has == {c: [(c, c)] for c in range(n)} for has in gathered)
    scattered = replayed("reduce_scatter", algorithm, n)
    assert all(has[r] == everyone(r) for r, has in enumerate(scattered))
    reduced = replayed("all_reduce", algorithm, n)
    assert all(has[c] == everyone(c) for has in reduced for c in range(n))
    for root in range(n):
        told = replayed("broadcast", algorithm, n, root)
        assert all(has == {c: [(root, c)] for c in range(n)} for has in told)
        summed = replayed("reduce", algorithm, n, root)[root]
        assert all(summed[c] == everyone(c) for c in range(n))
    dealt = replayed("all_to_all", algorithm, n)
    assert all(has[n * s + d] == [(s, n * s + d)] for d, has in enumerate(dealt) for s in range(n))


@given(st.data(), st.sampled_from(EVERY), st.integers(1, 9), st.sampled_from([1, 2, 8]))
def test_moves_carry_what_the_closed_forms_say(data, which, n, itemsize):
    kind, algorithm = which
    size, root = n * n if kind == "all_to_all" else n, data.draw(st.integers(0, n - 1))
    counts = data.draw(st.lists(st.integers(0, 7), min_size=size, max_size=size))
    counted = cost(kind, algorithm, tuple(counts), itemsize, root)
    sizes = [c * itemsize for c in counts]
    assert kind != "barrier" or not any(counted.sent)
    assert (counted.sent, counted.received) == bytes_of(kind, algorithm, sizes, root)


@pytest.mark.parametrize(("n", "most"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_rounds(n, most):
    lengths = {"ring": n - 1, "tree": most, "direct": 1}
    for name, length in lengths.items():
        assert len(rounds("all_gather", name, n)) == length
        assert len(rounds("all_reduce", name, n)) == 2 * length
    assert len(rounds("broadcast", "tree", n)) == most
    assert all(len(rounds(kind, name, 1)) == 0 for kind, name in EVERY)


def test_messages_that_nobody_needs_are_left_out():
    few = cost("all_reduce", "direct", even(1, 4), 8)
    assert [few.of_rank(r) for r in range(4)] == [(24, 24, 3), *[(8, 8, 1)] * 3]
    assert cost("all_reduce", "ring", (0, 0, 0), 8) == Traffic.of(3)
    # but an all_gather must say that there is nothing
    empty = cost("all_gather", "ring", (0, 0, 0), 8)
    assert [empty.of_rank(r) for r in range(3)] == [(0, 0, 2)] * 3


def test_sums_under_way_may_be_wider():
    wide = cost("all_reduce", "ring", (6, 6), 2, sum_itemsize=4)
    assert wide.sent == (6 * 4 + 6 * 2,) * 2


@given(st.lists(st.integers(0, 6), min_size=1, max_size=7), st.integers(0, 5), st.integers(0, 5))
def test_halos_against_row_by_row(extents, before, after):
    owner = [r for r, rows in enumerate(extents) for _ in range(rows)]
    expected, start = [], 0
    for rank, rows in enumerate(extents):
        around = range(max(0, start - before), min(len(owner), start + rows + after))
        mine = [(owner[row], rank, row) for row in around if rows and owner[row] != rank]
        assert len(mine) == sum(halo_widths(extents, rank, before, after))
        expected += mine
        start += rows
    strips = halo_strips(extents, before, after)
    found = [(s.source, s.destination, row) for s in strips for row in range(*s.region[0])]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rounds("gather", "ring", 4), "no collective 'gather'; there are all_gather"),
        (lambda: rounds("all_reduce", "star", 4), "no algorithm 'star'; there are ring"),
        (lambda: rounds("broadcast", "tree", 4, root=4), r"root 4 is none of the .* ranks 0\.\.3"),
        (lambda: halo_strips([1, 2], -1, 0), "before=-1"),
    ],
)
def test_what_does_not_exist_is_said(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
