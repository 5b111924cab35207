"""Convolutions split by channels: one device's results and gradients, and the calls planned.

Holds `tiledask.distributed.convolution.channels`, `tiledask.plan.collectives.convolution`,
`tiledask.plan.collectives.expected` and `tiledask.tile.layers.convolution.im2col`.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.calls import assert_calls, assert_close
from oracles.gradients import draw

import tiledask as td
from tiledask.distributed.convolution import channels as C
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives import convolution as P
from tiledask.tile import layers as L

pytestmark = pytest.mark.usefixtures("one_thread")

# name: forward, backward, what is planned, and the dimension that is cut of x, w, b and y
WAYS = {
    "by output": (C.by_output, C.by_output_grad, P.by_output, (None, 0, 0, 1)),
    "gathered": (
        partial(C.by_output, gather=True),
        C.by_output_grad,
        partial(P.by_output, gather=True),
        (None, 0, 0, None),
    ),
    "by input": (C.by_input, C.by_input_grad, P.by_input, (1, 1, None, None)),
    "by groups": (C.by_groups, C.by_groups_grad, P.by_groups, (1, 0, 0, 1)),
}
UNGROUPED = sorted(set(WAYS) - {"by groups"})


def planned(x, w, stride=1, padding=0, dilation=1, groups=1, bias=True):
    laid = td.tile.layers.windows(w.shape[2:], stride, padding, dilation)
    sizes = len(x), x.shape[1], len(w), x.shape[2:], laid.size
    return P.Convolution(*sizes, laid.stride, laid.padding, laid.dilation, groups, bias)


def program(rank, way, x, w, b, dy, options):
    forward, backward, _, dims = WAYS[way]
    group, groups = rank.group(), options.get("groups", 1)
    x, w, b, dy = (
        a if dim is None else C.part(group, a, dim, groups=groups)
        for a, dim in zip((x, w, b, dy), dims, strict=True)
    )
    y, kept = forward(group, x, w, b, **options)
    return y, *backward(group, dy, kept, w, b)


def assert_parts(results, expected, dims):
    """What every rank has is all of an expected array, or its part along a dimension."""
    for i, (whole, dim) in enumerate(zip(expected, dims, strict=True)):
        parts = [result[i] for result in results]
        for got in parts if dim is None else [np.concatenate(parts, axis=dim)]:
            assert_close(got, whole)


def check(way, x, w, b, ranks, run=run_threads, **options):
    y, kept = L.conv2d(x, w, b, **options)
    (dy,) = draw(y.shape, seed=9)
    done = run(program, ranks, way, x, w, b, dy, options)
    *_, plan, (of_x, of_w, of_b, of_y) = WAYS[way]
    assert_parts(done.results, (y, *L.conv2d_grad(dy, kept, w, b)), (of_y, of_x, of_w, of_b))
    assert_calls(done.records, plan(planned(x, w, **options), ranks, 8), ranks)


OPTIONS = {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2)}


@pytest.mark.parametrize("way", UNGROUPED)
@pytest.mark.parametrize(("units", "ranks"), [(10, 4), (6, 4), (8, 4), (3, 4), (1, 3), (5, 1)])
def test_every_way_is_that_of_one_device(way, units, ranks):
    sizes = (4, units) if way == "by input" else (units, 6)
    check(way, *draw((2, sizes[1], 7, 5), (*sizes, 3, 2), (sizes[0],)), ranks, **OPTIONS)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 7),
    out=st.integers(1, 7),
    ranks=st.integers(1, 5),
    size=st.tuples(*[st.integers(1, 3)] * 2),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
)
def test_any_channels_on_any_ranks(channels, out, ranks, size, stride, padding):
    x, w, b = draw((2, channels, 5, 4), (out, channels, *size), (out,))
    for way in UNGROUPED:
        check(way, x, w, b, ranks, stride=stride, padding=padding)


@pytest.mark.parametrize(("groups", "per", "ranks"), [(6, 1, 4), (4, 2, 4), (3, 2, 5), (2, 3, 1)])
def test_whole_groups(groups, per, ranks):
    x, w, b = draw((2, groups * per, 6, 5), (2 * groups, per, 3, 3), (2 * groups,))
    check("by groups", x, w, b, ranks, padding=1, groups=groups)


def pair_program(rank, x, first, second, dy, wanted):
    one = C.part(rank.group(), first[0], 0), C.part(rank.group(), first[1], 0)
    two = C.part(rank.group(), second[0], 1), second[1]
    options = {"padding": 1}, {"stride": 2}
    y, kept = C.in_pairs(rank.group(), x, one, two, options=options)
    dx, grads, others = C.in_pairs_grad(rank.group(), dy, kept, one, two, wanted=wanted)
    assert (dx is None) is not wanted
    return y, *grads, *others, *([dx] if wanted else [])


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("ranks", [1, 3, 4, 12])
def test_out_then_in_takes_one_all_reduce_each_way(ranks, wanted):
    """And none on the way back where nobody wants the gradient of the images."""
    x, *first = draw((2, 3, 7, 6), (10, 3, 3, 3), (10,))
    second = draw((5, 10, 3, 3), (5,), seed=1)
    h, kept_first = L.conv2d(x, *first, padding=1)
    z, bent = L.relu(h)
    y, kept_second = L.conv2d(z, *second, stride=2)
    (dy,) = draw(y.shape, seed=9)
    dz, *others = L.conv2d_grad(dy, kept_second, *second)
    dx, *grads = L.conv2d_grad(L.relu_grad(dz, bent), kept_first, *first)
    done = run_threads(pair_program, ranks, x, first, second, dy, wanted)
    expected, dims = (y, *grads, *others, dx), (None, 0, 0, 1, None, None)
    count = 5 + wanted
    assert_parts(done.results, expected[:count], dims[:count])
    plans = planned(x, first[0], padding=1), planned(z, second[0], stride=2)
    assert_calls(done.records, P.in_pairs(*plans, ranks, 8, dx=wanted), ranks)
    assert done.records.barriers == ({None: 1 + wanted} if ranks > 1 else {})


@pytest.mark.cluster
@pytest.mark.parametrize("way", ["gathered", "by input"])
def test_on_workers(cluster, way):
    def run(program, ranks, *args):
        return td.run_ranks(program, td.Mesh(cluster, (ranks,)), *args, timeout=240)

    check(way, *draw((2, 6, 7, 5), (10, 6, 3, 3), (10,)), 4, run, padding=1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, x, w: C.by_output(g, x, w, groups=2), "got 2; split whole groups with by_gro"),
        (lambda g, x, w: C.by_output(g, x, w[: g.rank * 2 + 1], gather=True), "rank [01] of 2 has"),
        (lambda g, x, w: C.by_groups(g, x, w, groups=3), "of 3 rank (0 of 2 has 2|1 of 2 has 1)"),
        (lambda g, x, w: C.part(g, x, 1, groups=2), "got groups=2 and 3 channels"),
    ],
)
def test_refusals(call, words):
    x, w = draw((1, 3, 5, 5), (4, 3, 3, 3))
    with pytest.raises(PlacementError, match=words):
        run_threads(lambda rank: call(rank.group(), x, w), 2)
