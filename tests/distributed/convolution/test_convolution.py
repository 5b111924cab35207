"""Convolutions split by channels or rows: one device's results and gradients, the calls planned."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from oracles import closed_convolutions as P
from oracles.gradients import draw
from oracles.published_cases import load_cases
from oracles.tensor_cases import check as check_layer

from tiledask.distributed import tensor as T
from tiledask.distributed.convolution import conv2d, conv2d_grad
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import split_rows
from tiledask.plan.products.placement import Shards
from tiledask.tile import layers as L

pytestmark = pytest.mark.usefixtures("one_thread")


NAMES = ("y", "dx", "dw", "db")


def compared(program, x, w, b, ranks, *args, **options):
    """The run of a convolution over ranks: as on one device, and what its program calls."""
    y, kept = L.conv2d(x, w, b, **options)
    (dy,) = draw(y.shape, seed=9)
    expected = dict(zip(NAMES, (y, *L.conv2d_grad(dy, kept, w, b)), strict=True))
    if b is None:
        del expected["db"]
    over = lambda group: program(group, x, w, b, dy, *args, options)  # noqa: E731
    return check_layer(ranks, over, expected, None)


def by_output(group, x, w, b, dy, options):
    w, b = T.shard(group, w, 0), T.shard(group, b, 0)
    y, kept = conv2d(group, T.replicate(x), w, b, **options)
    grads = conv2d_grad(group, T.shard(group, dy, 1), kept, w, b)
    return dict(zip(NAMES, (y, *grads), strict=True))


OPTIONS = {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2)}


@pytest.mark.parametrize(("units", "ranks"), [(10, 4), (3, 4), (5, 1), (1, 3)])
def test_by_output_is_that_of_one_device(units, ranks):
    x, w, b = draw((2, 6, 7, 5), (units, 6, 3, 2), (units,))
    done = compared(by_output, x, w, b, ranks, **OPTIONS)
    P.assert_calls(done.records, P.by_output(x, ranks), ranks)


def shards(rows):
    """So many rows on each rank, one behind the other."""
    ends = [0, *accumulate(rows)]
    parts = tuple(((a, b),) if a < b else () for a, b in pairwise(ends))
    return Shards(ends[-1], parts)


def in_rows(group, x, w, b, dy, rows, options):
    w, b = T.replicate(w), b if b is None else T.replicate(b)
    y, kept = conv2d(group, T.shard(group, x, 2, shards(rows)), w, b, **options)
    grads = conv2d_grad(group, T.shard(group, dy, 2, y.shards), kept, w, b)
    return dict(zip(NAMES[: 4 - (b is None)], (y, *grads), strict=False))


def check_conv(x, w, b, rows, **options):
    done = compared(in_rows, x, w, b, len(rows), rows, **options)
    windows = L.windows(w.shape[2:], **options)
    P.assert_calls(done.records, P.in_rows(x, w, b is not None, rows, windows), len(rows))
    return done


def test_11_rows_on_4_ranks_lend_one_row_each_way():
    """2 floor(k/2) n c w elements between two neighbours; an exchange, a sum, and dw's."""
    n, c, w, k = 2, 3, 5, 3
    done = check_conv(*draw((n, c, 11, w), (4, c, k, k), (4,)), even(11, 4), padding=1)
    for kind in ("halo_exchange", "halo_reduce"):
        sent = [r.sent for r in done.records.where(kind=kind)]
        assert sent == [8 * (k // 2) * n * c * w * neighbours for neighbours in (1, 2, 2, 1)]
    assert done.records.barriers == {None: 3}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    *(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2)),
    *(st.integers(0, 3), st.integers(0, 3), st.booleans()),
)
@example(even(11, 4), 2, 2, 1, 1, 0, True)
@example(even(12, 4), 3, 1, 2, 2, 2, True)
@example(even(3, 4), 3, 1, 1, 1, 1, True)  # a rank without rows
@example((4, 0, 5, 0), 3, 1, 1, 1, 1, False)
@example((2, 2), 1, 4, 1, 3, 3, True)  # windows of padding alone, ranks without output
@example((4, 4, 4), 4, 4, 1, 0, 0, True)  # no halo
@example((7,), 3, 1, 1, 1, 1, False)
def test_any_rows_and_any_windows(rows, size, stride, dilation, above, below, bias):
    """However thin the shards are: rows are borrowed from whoever has them."""
    assume(sum(rows) and (size - 1) * dilation + 1 <= sum(rows) + above + below)
    x, w, b = draw((2, 2, sum(rows), 3), (3, 2, size, 2), (3,))
    padding = ((above, below), (1, 0))
    options = {"stride": (stride, 2), "dilation": (dilation, 1), "padding": padding}
    check_conv(x, w, b if bias else None, tuple(rows), **options)


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
    for made, ends, zeros in zip(split.out, split.reads, split.zeros, strict=True):
        wanted = {r for first in firsts[done : done + made] for r in range(first, first + reach)}
        read = {*range(*ends)}
        assert {r for r in wanted if 0 <= r < h} <= read
        if made:
            assert len(read) + sum(zeros) == max(wanted) + 1 - min(wanted)
        done += made


def test_a_padded_convolution_of_a_shard_keeps_its_shape():
    """Where another framework gives half of it."""
    case = next(c for c in load_cases("tensor_parallel.json") if c["id"] == "dtensor_conv_spatial")
    x, w, b = draw(case["inputs"]["x"], (8, 8, 3, 3), (8,))
    done = check_conv(x, w, b, even(x.shape[2], 2), padding=1)
    shape = T.whole_of([result["y"] for result in done.results]).shape
    assert list(shape) == case["expected"]["correct"] != case["expected"]["dtensor"]


X, W = draw((1, 3, 8, 5), (4, 3, 3, 3))
TALL = T.replicate(np.ones((4, 3, 9, 1)))
REFUSED = [
    ("w and b are sharded along their output", lambda g: (T.replicate(X), T.replicate(W))),
    ("x is sharded along its rows", lambda g: (T.shard(g, X, 2), T.shard(g, W, 0))),
    ("along another dimension", lambda g: (T.shard(g, X, 1), T.replicate(W))),
    ("they must be alike", lambda g: (T.replicate(X), T.shard(g, W[:, :2], 0))),
    (r"of 9 rows.*the 8 that", lambda g: (T.shard(g, X, 2), TALL)),
]


@pytest.mark.parametrize(("words", "operands"), REFUSED, ids=lambda each: str(each)[:20])
def test_refusals(words, operands):
    with pytest.raises(PlacementError, match=words):
        run_threads(lambda rank: conv2d(rank.group(), *operands(rank.group())), 2)
