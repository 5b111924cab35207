"""Convolutions split by channels: results, gradients, transposes, and what they call.

Holds `tiledask.distributed.convolution.channels`, `tiledask.plan.collectives.convolution` and
`tiledask.tile.layers.convolution.im2col`.
"""

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


def conv(x, w, b, options):
    """(y, dx, dw, db, dy) of a single device."""
    y, kept = L.conv2d(x, w, b, **options)
    (dy,) = draw(y.shape, seed=9)
    return y, *L.conv2d_grad(dy, kept, w, b), dy


def planned(x, w, bias=True, stride=1, padding=0, dilation=1, groups=1):
    laid = td.tile.layers.windows(w.shape[2:], stride, padding, dilation)
    return P.Convolution(
        len(x),
        x.shape[1],
        len(w),
        x.shape[2:],
        laid.size,
        laid.stride,
        laid.padding,
        laid.dilation,
        groups,
        bias,
    )


def output_program(rank, x, w, b, dy, gather, options):
    w, b = C.part(rank.group(), w, 0), C.part(rank.group(), b, 0)
    y, kept = C.by_output(rank.group(), x, w, b, gather=gather, **options)
    dy = dy if gather else C.part(rank.group(), dy, 1)
    return y, *C.by_output_grad(rank.group(), dy, kept, w, b)


def input_program(rank, x, w, b, dy, options):
    x, w = C.part(rank.group(), x, 1), C.part(rank.group(), w, 1)
    y, kept = C.by_input(rank.group(), x, w, b, **options)
    return y, *C.by_input_grad(rank.group(), dy, kept, w, b)


def groups_program(rank, x, w, b, dy, groups, options):
    x, dy = (C.part(rank.group(), a, 1, groups=groups) for a in (x, dy))
    w, b = (C.part(rank.group(), a, 0, groups=groups) for a in (w, b))
    y, kept = C.by_groups(rank.group(), x, w, b, groups=groups, **options)
    return y, *C.by_groups_grad(rank.group(), dy, kept, w, b)


def joined(results, i, dim):
    return np.concatenate([result[i] for result in results], axis=dim)


def check_output(x, w, b, ranks, gather, run=run_threads, shape=None, **options):
    y, dx, dw, db, dy = conv(x, w, b, options)
    done = run(output_program, shape or ranks, x, w, b, dy, gather, options)
    for result in done.results:
        assert_close(result[1], dx)
        if gather:
            assert_close(result[0], y)
    if not gather:
        assert_close(joined(done.results, 0, 1), y)
    assert_close(joined(done.results, 2, 0), dw)
    assert_close(joined(done.results, 3, 0), db)
    assert_calls(done.records, P.by_output(planned(x, w, **options), ranks, 8, gather), ranks)
    return done


def check_input(x, w, b, ranks, run=run_threads, shape=None, **options):
    y, dx, dw, db, dy = conv(x, w, b, options)
    done = run(input_program, shape or ranks, x, w, b, dy, options)
    for result in done.results:
        assert_close(result[0], y)
        assert_close(result[3], db)
    assert_close(joined(done.results, 1, 1), dx)
    assert_close(joined(done.results, 2, 1), dw)
    assert_calls(done.records, P.by_input(planned(x, w, **options), ranks, 8), ranks)
    return done


OPTIONS = {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2)}


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize(("out", "ranks"), [(10, 4), (6, 4), (8, 4), (3, 4), (1, 3), (5, 1)])
def test_by_output_channels(out, ranks, gather):
    x, w, b = draw((2, 6, 7, 5), (out, 6, 3, 2), (out,))
    done = check_output(x, w, b, ranks, gather, **OPTIONS)
    assert done.records.barriers == ({None: 1 + gather} if ranks > 1 else {})


@pytest.mark.parametrize(("channels", "ranks"), [(10, 4), (6, 4), (8, 4), (3, 4), (1, 3), (5, 1)])
def test_by_input_channels(channels, ranks):
    x, w, b = draw((2, channels, 7, 5), (4, channels, 3, 2), (4,))
    done = check_input(x, w, b, ranks, **OPTIONS)
    assert done.records.barriers == ({None: 1} if ranks > 1 else {})


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 7),
    out=st.integers(1, 7),
    ranks=st.integers(1, 5),
    size=st.tuples(*[st.integers(1, 3)] * 2),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    gather=st.booleans(),
)
def test_any_channels_on_any_ranks(channels, out, ranks, size, stride, padding, gather):
    x, w, b = draw((2, channels, 5, 4), (out, channels, *size), (out,))
    check_output(x, w, b, ranks, gather, stride=stride, padding=padding)
    check_input(x, w, b, ranks, stride=stride, padding=padding)


@pytest.mark.parametrize(("groups", "per", "ranks"), [(6, 1, 4), (4, 2, 4), (3, 2, 5), (2, 3, 1)])
def test_by_groups(groups, per, ranks):
    x, w, b = draw((2, groups * per, 6, 5), (2 * groups, per, 3, 3), (2 * groups,))
    y, dx, dw, db, dy = conv(x, w, b, {"padding": 1, "groups": groups})
    done = run_threads(groups_program, ranks, x, w, b, dy, groups, {"padding": 1})
    for i, (whole, dim) in enumerate([(y, 1), (dx, 1), (dw, 0), (db, 0)]):
        np.testing.assert_array_equal(joined(done.results, i, dim), whole)
    assert_calls(done.records, P.by_groups(planned(x, w, padding=1, groups=groups), ranks, 8), 1)
    assert len(done.records) == 0


def pair_program(rank, x, first, second, dy):
    one = C.part(rank.group(), first[0], 0), C.part(rank.group(), first[1], 0)
    two = C.part(rank.group(), second[0], 1), second[1]
    options = {"padding": 1}, {"stride": 2}
    y, kept = C.in_pairs(rank.group(), x, one, two, options=options)
    dx, grads, others = C.in_pairs_grad(rank.group(), dy, kept, one, two)
    return y, dx, *grads, *others


def pair_reference(x, first, second):
    h, kept_first = L.conv2d(x, *first, padding=1)
    z, bent = L.relu(h)
    y, kept_second = L.conv2d(z, *second, stride=2)
    (dy,) = draw(y.shape, seed=9)
    dz, *others = L.conv2d_grad(dy, kept_second, *second)
    dx, *grads = L.conv2d_grad(L.relu_grad(dz, bent), kept_first, *first)
    return (y, dx, *grads, *others), dy


@pytest.mark.parametrize("ranks", [1, 3, 4, 12])
def test_out_then_in_takes_one_all_reduce_each_way(ranks):
    x, w, b, v, c = draw((2, 3, 7, 6), (10, 3, 3, 3), (10,), (5, 10, 3, 3), (5,))
    expected, dy = pair_reference(x, (w, b), (v, c))
    done = run_threads(pair_program, ranks, x, (w, b), (v, c), dy)
    dims = [None, None, 0, 0, 1, None]
    for i, (whole, dim) in enumerate(zip(expected, dims, strict=True)):
        if dim is None:
            for result in done.results:
                assert_close(result[i], whole)
        else:
            assert_close(joined(done.results, i, dim), whole)
    first, second = planned(x, w, padding=1), planned(np.ones((2, 10, 7, 6)), v, stride=2)
    assert_calls(done.records, P.in_pairs(first, second, ranks, 8), ranks)
    assert done.records.barriers == ({None: 2} if ranks > 1 else {})


@pytest.mark.parametrize("gather", [True, False])
def test_the_backward_is_the_transpose(gather):
    """<y, dy> = <x, dx> = <w, dw>: a convolution without b is linear in each of them."""
    x, w = draw((2, 6, 7, 5), (10, 6, 3, 3))
    b = np.zeros(10)
    y, *_, dy = conv(x, w, b, {})
    done = run_threads(output_program, 4, x, w, b, dy, gather, {})
    y = done.results[0][0] if gather else joined(done.results, 0, 1)
    value = float((y * dy).sum())
    assert abs(value - (x * done.results[0][1]).sum()) <= 1e-13 * np.abs(y * dy).sum()
    assert abs(value - (w * joined(done.results, 2, 0)).sum()) <= 1e-13 * np.abs(y * dy).sum()


def test_d2l_gives_16_of_64_channels_to_each_of_4():
    slices = run_threads(lambda rank: C.own(rank.group(), 64), 4).results
    assert [s.stop - s.start for s in slices] == [16] * 4


def test_alternating_layers_take_one_all_reduce_less_than_layers():
    """Alpa's count for 4 convolutions is 3 (tests/shard_parallel/test_conv.py): two pairs take 2
    forward and 2 backward, and the images need no gradient."""
    x, *weights = draw((2, 3, 6, 5), *[(8, 3, 3, 3), (8, 8, 3, 3), (8, 8, 3, 3), (4, 8, 3, 3)])

    def program(rank):
        parts = [C.part(rank.group(), w, i % 2) for i, w in enumerate(weights)]
        pairs = [((parts[i], None), (parts[i + 1], None)) for i in (0, 2)]
        same = ({"padding": 1}, {"padding": 1})
        y, kept = x, []
        for first, second in pairs:
            y, k = C.in_pairs(rank.group(), y, first, second, options=same)
            kept.append(k)
        dy = y
        for i in (1, 0):
            dy, *_ = C.in_pairs_grad(rank.group(), dy, kept[i], *pairs[i], wanted=i > 0)
        assert dy is None
        return y

    done = run_threads(program, 4)
    y = x
    for i, w in enumerate(weights):
        y = L.conv2d(y if i % 2 == 0 else np.maximum(y, 0), w, padding=1)[0]
    assert_close(done.results[0], y)
    totals = done.records.where(rank=0).totals("kind")
    assert {kind: total.calls for kind, total in totals.items()} == {"all_reduce": 3}


@pytest.mark.cluster
def test_on_workers(cluster):
    x, w, b = draw((2, 6, 7, 5), (10, 6, 3, 3), (10,))
    mesh = td.Mesh(cluster, (4,))

    def run(program, shape, *args):
        return td.run_ranks(program, mesh, *args, timeout=60.0)

    check_output(x, w, b, 4, True, run, padding=1)
    check_input(x, w, b, 4, run, padding=1)


def test_along_one_axis_of_a_mesh():
    """Two groups of two ranks, each with other images."""
    x, w, b = draw((4, 3, 5, 4), (5, 3, 3, 3), (5,))
    y, _ = L.conv2d(x, w, b)

    def program(rank):
        mine = x[2 * rank.coordinates[0] :][:2]
        group = rank.group(1)
        parts = C.part(group, w, 0), C.part(group, b, 0)
        return C.by_output(group, mine, *parts, gather=True)[0]

    for r, got in enumerate(run_threads(program, (2, 2)).results):
        assert_close(got, y[2 * (r // 2) :][:2])


# -- refusals and planted faults -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda g, x, w: C.by_output(g, x, w, groups=2),
            "got 2; split whole groups with by_gro",
        ),
        (
            lambda g, x, w: C.by_output(g, x, w[: g.rank * 2 + 1], gather=True),
            "rank [01] of 2 has 2",
        ),
        (
            lambda g, x, w: C.by_groups(g, x, w, groups=3),
            "of 3 rank (0 of 2 has 2|1 of 2 has 1), got 3 input",
        ),
        (lambda g, x, w: C.part(g, x, 1, groups=2), "got groups=2 and 3 channels"),
    ],
)
def test_refusals(call, words):
    x, w = draw((1, 3, 5, 5), (4, 3, 3, 3))
    with pytest.raises(PlacementError, match=words):
        run_threads(lambda rank: call(rank.group(), x, w), 2)


def test_a_missing_all_reduce_of_dx_is_noticed(monkeypatch):
    """Planted: the gradient of the input is this rank's part only."""
    monkeypatch.setattr(
        C, "by_output_grad", lambda group, dy, kept, w, b: C.conv2d_grad(dy, kept.conv, w, b)
    )
    with pytest.raises(AssertionError):
        test_by_output_channels(10, 4, False)


def test_an_offset_added_on_every_rank_is_noticed(monkeypatch):
    """Planted: b goes into each rank's part, so that the sum has it four times."""
    honest = C.by_input

    def wrong(group, x, w, b, **options):
        return honest(group, x, w, b * group.size, **options)

    monkeypatch.setattr(C, "by_input", wrong)
    with pytest.raises(AssertionError, match="of the largest element"):
        test_by_input_channels(10, 4)


def test_a_collective_too_much_is_noticed(monkeypatch):
    """Planted: y is gathered although nobody asked."""
    honest = C.by_output
    monkeypatch.setattr(
        C,
        "by_output",
        lambda group, x, w, b, gather, **o: (
            group.barrier(),
            honest(group, x, w, b, gather=gather, **o),
        )[1],
    )
    with pytest.raises(AssertionError, match="rank 0"):
        test_by_output_channels(10, 4, False)
