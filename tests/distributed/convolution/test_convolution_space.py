"""Convolution and pooling of images cut along rows: halos, gradients, refusals.

Holds `tiledask.distributed.convolution.space` and `tiledask.plan.collectives.rows`.
"""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.calls import assert_calls, assert_close
from oracles.gradients import draw
from test_convolution_channels import assert_parts, planned

import tiledask as td
from tiledask.distributed.convolution import space as S
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives import convolution as P
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import split_rows
from tiledask.tile import layers as L

pytestmark = pytest.mark.usefixtures("one_thread")


def cut(x, rows):
    """By rank, its rows of x [n, c, h, w]."""
    return np.split(x, list(accumulate(rows))[:-1], axis=2)


def conv_program(rank, x, w, b, dy, rows, options):
    r = rank.index
    y, kept = S.conv2d_in_rows(rank.group(), cut(x, rows)[r], w, b, rows=rows, **options)
    assert y.shape[2] == kept.split.out[r]
    dy = cut(dy, kept.split.out)[r]
    return y, *S.conv2d_in_rows_grad(rank.group(), dy, kept, w, b)


def check_conv(x, w, b, rows, run=run_threads, far=False, halo=True, **options):
    y, kept = L.conv2d(x, w, b, **options)
    (dy,) = draw(y.shape, seed=9)
    done = run(conv_program, len(rows), x, w, b, dy, rows, options | {"far": far, "halo": halo})
    grads = L.conv2d_grad(dy, kept, w, b)
    known = 4 - (b is None)
    assert_parts(
        [result[:known] for result in done.results], (y, *grads)[:known], (2, 2, None, None)[:known]
    )
    plan = planned(x, w, bias=b is not None, **options)
    assert_calls(done.records, P.in_rows(plan, rows, 8), len(rows))
    return done


@pytest.mark.parametrize(
    ("rows", "size", "options"),
    [
        (even(11, 4), 3, {"padding": 1}),
        (even(11, 4), 3, {}),
        (even(11, 4), 5, {"padding": 2}),
        (even(11, 4), (2, 3), {"stride": 2, "padding": ((1, 0), (0, 2))}),
        (even(12, 4), 3, {"dilation": 2, "padding": 2}),
        (even(12, 4), 3, {"padding": 1, "groups": 2}),
        (even(13, 3), 3, {"stride": 3, "padding": 1}),
        (even(3, 4), 3, {"padding": 1}),  # a rank without rows
        ((4, 0, 5, 0), 3, {"padding": 1}),
        ((1, 6, 4), 3, {"padding": 1}),
        ((2, 2), 1, {"stride": 4, "padding": 3}),  # windows of padding alone, ranks without output
        ((7,), 3, {"padding": 1}),
    ],
)
def test_convolution(rows, size, options):
    size = (size, size) if isinstance(size, int) else size
    x, w, b = draw((2, 4, sum(rows), 7), (6, 4 // options.get("groups", 1), *size), (6,))
    check_conv(x, w, b, rows, **options)


def test_11_rows_on_4_ranks_lend_one_row_each_way():
    """2 floor(k/2) n c w elements between two neighbours; an exchange, a sum, and dw's."""
    n, c, w, k = 2, 3, 5, 3
    done = check_conv(*draw((n, c, 11, w), (4, c, k, k), (4,)), even(11, 4), padding=1)
    for kind in ("halo_exchange", "halo_reduce"):
        sent = [r.sent for r in done.records.where(kind=kind)]
        assert sent == [8 * (k // 2) * n * c * w * neighbours for neighbours in (1, 2, 2, 1)]
    assert done.records.barriers == {None: 3}


@pytest.mark.parametrize("halo", [True, False])
def test_patches_need_no_halo(halo):
    x, w = draw((1, 2, 12, 4), (3, 2, 4, 4))
    done = check_conv(x, w, None, (4, 4, 4), stride=4, halo=halo)
    assert {r.kind for r in done.records} == {"all_reduce"}


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    size=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    above=st.integers(0, 3),
    below=st.integers(0, 3),
)
def test_any_rows_and_any_windows(rows, size, stride, dilation, above, below):
    """However thin the shards are: far=True borrows from whoever has the rows."""
    assume(sum(rows) and (size - 1) * dilation + 1 <= sum(rows) + above + below)
    x, w, b = draw((1, 2, sum(rows), 3), (2, 2, size, 2), (2,))
    padding = ((above, below), (0, 0))
    options = {"stride": (stride, 1), "dilation": (dilation, 1), "padding": padding}
    check_conv(x, w, b, tuple(rows), far=True, **options)


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    size=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 3)] * 2),
)
def test_who_reads_what(rows, size, stride, dilation, pads):
    """Against a list of every window's rows."""
    reach, h = (size - 1) * dilation + 1, sum(rows)
    assume(h and reach <= h + sum(pads))
    split = split_rows(rows, size, stride, pads, dilation)
    firsts = range(-pads[0], h + pads[1] - reach + 1, stride)
    assert sum(split.out) == len(firsts)
    assert split.before <= (reach - 1) // 2
    assert split.after <= reach // 2
    done = 0
    for made, slab in zip(split.out, split.slabs, strict=True):
        wanted = {r for first in firsts[done : done + made] for r in range(first, first + reach)}
        read = {*range(slab.start, slab.stop)}
        assert {r for r in wanted if 0 <= r < h} <= read
        if made:
            assert slab.above + len(read) + slab.below == max(wanted) + 1 - min(wanted)
        done += made


POOLS = {
    "max": (S.max_pool2d_in_rows, S.max_pool2d_in_rows_grad, L.max_pool2d, L.max_pool2d_grad),
    "mean": (S.avg_pool2d_in_rows, S.avg_pool2d_in_rows_grad, L.avg_pool2d, L.avg_pool2d_grad),
}


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize(
    ("rows", "size", "stride", "padding"),
    [
        (even(11, 4), 2, None, 0),
        (even(12, 4), 3, 2, 1),
        (even(12, 3), 2, None, 0),
        ((5, 0, 3), 2, 1, 0),
        (even(9, 4), 3, 1, 1),
        (even(3, 4), 2, None, 0),
    ],
)
def test_pooling(name, rows, size, stride, padding, equal):
    """Of equal elements on both sides of a cut the first is the largest, on whichever rank."""
    pool, grad, whole_pool, whole_grad = POOLS[name]
    shape = (2, 3, sum(rows), 6)
    x = np.ones(shape) if equal else draw(shape)[0]
    y, kept = whole_pool(x, size, stride, padding)
    (dy,) = draw(y.shape, seed=9)

    def program(rank):
        mine = cut(x, rows)[rank.index]
        y, kept = pool(rank.group(), mine, size, stride, padding, rows=rows)
        return y, grad(rank.group(), cut(dy, kept.split.out)[rank.index], kept)

    done = run_threads(program, len(rows))
    assert_parts(done.results, (y, whole_grad(dy, kept)), (2, 2))
    assert_close(np.concatenate([result[0] for result in done.results], axis=2), y, 0)
    laid = kept.windows
    split = split_rows(rows, laid.size[0], laid.stride[0], laid.padding[0])
    assert_calls(done.records, P.pool_in_rows(split, 2, 3, 6, 8), len(rows))


def test_arrays_of_a_device(xp):
    """What comes back lies where what was passed lay."""
    x, w, b = (xp.asarray(a) for a in draw((2, 3, 11, 5), (4, 3, 3, 3), (4,)))
    rows, whole = even(11, 4), L.conv2d(x, w, b, padding=1)[0]

    def program(rank):
        first = sum(rows[: rank.index])
        mine = x[:, :, first : first + rows[rank.index]]
        y, kept = S.conv2d_in_rows(rank.group(), mine, w, b, rows=rows, padding=1)
        made = y, *S.conv2d_in_rows_grad(rank.group(), y, kept, w, b)
        made += (S.max_pool2d_in_rows(rank.group(), y, 2, rows=rows)[0],)
        assert all(isinstance(each, xp.ndarray) for each in made)
        return td.tile.to_numpy(y)

    y = np.concatenate(run_threads(program, 4).results, axis=2)
    assert_close(y, td.tile.to_numpy(whole))


@pytest.mark.cluster
def test_on_workers(cluster):
    def run(program, ranks, *args):
        return td.run_ranks(program, td.Mesh(cluster, (ranks,)), *args, timeout=240)

    x, w, b = draw((2, 4, 11, 7), (6, 4, 3, 3), (6,))
    check_conv(x, w, b, even(11, 4), run, padding=1)


@pytest.mark.parametrize(
    ("words", "held", "said", "size", "options"),
    [
        (
            r"windows of 3 rows on \(8, 8\) rows read 1 before and 1 after .*there are 0; use ha",
            *((8, 8), (8, 8), 3),
            {"padding": 1, "halo": False},
        ),
        (
            "windows of 7 rows need 3 behind those of rank 0, and its neighbour, rank 1, has 2; "
            "use fewer ranks, or far=True",
            *((4, 2, 5), (4, 2, 5), 7),
            {"padding": ((3, 3), (0, 0))},
        ),
        (r"rank [01] has 4; got \(3, 5\)", (4, 4), (3, 5), 3, {"padding": 1}),
        (
            r"has 9 rows .*\(4, 3\) rows and padding of \(0, 1\) have 8",
            *((4, 3), (4, 3), 9),
            {"padding": ((0, 1), (0, 0))},
        ),
    ],
    ids=["padding without halos", "a thin neighbour", "other rows", "a window too large"],
)
def test_refusals(words, held, said, size, options):
    """Of the first, DTensor returns [4, 8, 16, 8] for [4, 8, 16, 16] without a word."""
    x, w = draw((1, 1, sum(held), 4), (1, 1, size, 1))

    def program(rank):
        S.conv2d_in_rows(rank.group(), cut(x, held)[rank.index], w, rows=said, **options)

    with pytest.raises(PlacementError, match=words):
        run_threads(program, len(held))
