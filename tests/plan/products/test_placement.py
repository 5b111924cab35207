"""Who owns what: blocks cover the array once, pieces cover what is wanted."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask import Partial, Replicate, Shard, Tiling, Traffic
from tiledask.errors import PlacementError
from tiledask.plan.intervals import ends_of, even, split
from tiledask.plan.products.placement import Shards, even_shards
from tiledask.plan.products.regions import around, overlap, within
from tiledask.plan.products.traffic import collective, redistribution, traffic_of

CHOICES = (Shard(0), Shard(1), Replicate())


@st.composite
def tilings(draw):
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    shape = (draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    return Tiling(shape, mesh, tuple(draw(st.sampled_from(CHOICES)) for _ in mesh))


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 12))
def test_split_is_array_split(n, parts):
    expected = [len(part) for part in np.array_split(np.arange(n), parts)]
    assert [stop - start for start, stop in split(0, n, parts)] == expected
    assert [sum(b - a for a, b in part) for part in even_shards(n, parts).parts] == expected
    assert [bool(part) for part in even_shards(n, parts).parts] == [*map(bool, expected)]
    assert list(even(n, parts)) == expected
    assert list(zip(ends_of(expected), ends_of(expected)[1:], strict=False)) == split(0, n, parts)


@settings(deadline=None)
@given(tilings())
def test_every_element_has_as_many_owners_as_there_are_copies(tiling):
    owners = np.zeros(tiling.shape, int)
    for at in tiling.coordinates:
        owners[tuple(slice(*edge) for edge in tiling.region(at))] += 1
    sizes = zip(tiling.mesh, tiling.placements, strict=True)
    copies = np.prod([size for size, p in sizes if p == Replicate()], dtype=int)
    assert (owners == copies).all()
    assert [*tiling.coordinates] == [*np.ndindex(tiling.mesh)]
    assert traffic_of(tiling.ranks, redistribution(tiling, tiling), 4).total == 0


@settings(deadline=None)
@given(tilings(), st.data())
def test_an_exchange_brings_every_rank_its_block_once(source, data):
    target = source.replaced(*(data.draw(st.sampled_from(CHOICES)) for _ in source.mesh))
    pieces = redistribution(source, target)
    for rank, at in enumerate(target.coordinates):
        got, wanted = np.zeros((2, *source.shape), int)
        for piece in pieces:
            if piece.destination == rank:
                got[tuple(slice(*edge) for edge in piece.region)] += 1
                here = source.regions[piece.source]
                for (a, b), (start, stop) in zip(piece.region, here, strict=True):
                    assert start <= a < b <= stop  # the source has what it sends
        wanted[tuple(slice(*edge) for edge in target.region(at))] = 1
        assert np.array_equal(got, wanted)


TWO = Shards(3, (((0, 2),), ((1, 3),)))
WHOLE = Tiling((8, 8), (4,), (Replicate(),))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tiling((4, 4), (2, 2), (Shard(0),)), "2 axes .* got 1"),
        (lambda: Tiling((4, 4), (2,), (Shard(-1),)), r"Shard\(-1\) needs a dimension 0..1"),
        *((lambda d=d: Shard(d), "takes the number of a dim") for d in (True, "0", None)),
        (lambda: Tiling((4,), (2,), (Shard(0, TWO),)), r"do not fit .* even_shards\(4, 2\)"),
        (lambda: Tiling((3,), (2, 2), (Shard(0, TWO), Shard(0))), "do not fit .* several axes"),
        (lambda: redistribution(WHOLE, WHOLE.replaced(Partial())), "partial sums are not unique"),
    ],
)
def test_placements_that_do_not_fit(call, message):
    with pytest.raises(PlacementError, match=message):
        call()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))))
def test_traffic_counts_what_crosses(moves):
    traffic = Traffic.of(4, moves)
    table = np.zeros((2, 4, 4), int)
    for source, destination, size in moves:
        table[:, source, destination] += np.array([size, 1]) * (source != destination)
    assert np.array_equal([traffic.bytes, traffic.messages], table)
    assert (traffic.total, traffic.count) == tuple(table.sum(axis=(1, 2)))
    assert traffic.sent == tuple(table[0].sum(axis=1))
    assert traffic.received == tuple(table[0].sum(axis=0))
    assert traffic == Traffic.of(4, reversed(moves))
    assert traffic + traffic == Traffic.of(4, moves + moves)
    across = table[0, :2, 2:].sum() + table[0, 2:, :2].sum()
    assert (traffic.between_hosts, traffic.on("AABB").between_hosts) == (0, across)
    assert traffic.on("BxABA", slots=(2, 4, 0, 3)).between_hosts == across


def cells(*regions):
    return [cell for region in regions for cell in product(*(range(*ends) for ends in region))]


interval = st.tuples(st.integers(0, 5), st.integers(1, 5)).map(lambda at: (at[0], sum(at)))


@given(*2 * [st.tuples(interval, interval)], st.integers(0, 1))
def test_regions_are_their_cells(one, other, axis):
    both = overlap(one, other)
    shared = {*cells(one)} & {*cells(other)}
    assert {*cells(*[both] * bool(both))} == shared
    hole = tuple(other[d] if d == axis else one[d] for d in range(2))
    hole = overlap(one, hole) or ((0, 0), (0, 0))
    rest = cells(*around(one, hole))
    assert sorted(rest) == sorted({*cells(one)} - {*cells(hole)})
    block = np.empty([b - a for a, b in one], object)
    block[:] = np.array([*cells(one), None], object)[:-1].reshape(block.shape)
    assert {*block[within(both or ((0, 0), (0, 0)), one)].ravel()} == shared


def test_all_pairs_of_placements_have_a_name_or_an_error():
    for old, new in product((Shard(0), Shard(1), Replicate(), Partial()), repeat=2):
        tiling = Tiling((4, 4), (2,), (old,))
        if new != Partial() or old == Partial():
            moved = traffic_of(2, redistribution(tiling, tiling.replaced(new)), 1).total
            assert (collective(tiling, tiling.replaced(new)) != "none") == (moved > 0)
