"""Convolution and pooling: against loops, as transposes, split three ways, and d2l's LeNet.

Holds `tiledask.tile.layers.convolution.conv` and `tiledask.tile.layers.convolution.pooling`.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.gradients import assert_gradients, assert_transpose, draw

from tiledask.errors import KernelError
from tiledask.tile import layers as L

pytestmark = pytest.mark.usefixtures("one_thread")


def sides(padding):
    padding = (padding, padding) if isinstance(padding, int) else padding
    return [(p, p) if isinstance(p, int) else p for p in padding]


def conv_by_loops(x, w, b, stride=(1, 1), padding=0, dilation=(1, 1), groups=1):
    """One multiplication at a time; elements outside of x count as zeros."""
    (above, below), (left, right) = sides(padding)
    n, _, h, width = x.shape
    o, per_group, kh, kw = w.shape
    oh = (h + above + below - (kh - 1) * dilation[0] - 1) // stride[0] + 1
    ow = (width + left + right - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    y = np.zeros((n, o, oh, ow))
    for m, k, i, j in np.ndindex(y.shape):
        terms = [b[k]]
        for q, r, s in np.ndindex(per_group, kh, kw):
            channel = k // (o // groups) * per_group + q
            row = i * stride[0] + r * dilation[0] - above
            column = j * stride[1] + s * dilation[1] - left
            if 0 <= row < h and 0 <= column < width:
                terms.append(x[m, channel, row, column] * w[k, q, r, s])
        y[m, k, i, j] = math.fsum(terms)
    return y


def pool_by_loops(x, size, stride, padding, how):
    (above, below), (left, right) = sides(padding)
    n, c, h, w = x.shape
    oh = (h + above + below - size[0]) // stride[0] + 1
    ow = (w + left + right - size[1]) // stride[1] + 1
    y = np.zeros((n, c, oh, ow))
    for m, k, i, j in np.ndindex(y.shape):
        rows = range(i * stride[0] - above, i * stride[0] - above + size[0])
        columns = range(j * stride[1] - left, j * stride[1] - left + size[1])
        inside = [x[m, k, r, s] for r in rows for s in columns if 0 <= r < h and 0 <= s < w]
        y[m, k, i, j] = how(inside)
    return y


# -- convolution -----------------------------------------------------------------------------------

PADS = st.integers(0, 2)
ONE_OR_TWO = st.tuples(st.integers(1, 3), st.integers(1, 2))


@pytest.mark.long
@given(
    n=st.integers(1, 2),
    groups=st.integers(1, 3),
    per=st.integers(1, 2),
    out=st.integers(1, 2),
    image=st.tuples(st.integers(1, 6), st.integers(1, 5)),
    size=st.tuples(*[st.integers(1, 3)] * 2),
    stride=ONE_OR_TWO,
    dilation=ONE_OR_TWO,
    above=PADS,
    below=PADS,
    left=PADS,
    right=PADS,
)
@settings(max_examples=80, deadline=None)
def test_convolution_is_its_definition_and_its_backward_the_transpose(
    n, groups, per, out, image, size, stride, dilation, above, below, left, right
):
    padding = ((above, below), (left, right))
    assume(
        all(
            (k - 1) * d + 1 <= e + sum(p)
            for k, d, e, p in zip(size, dilation, image, padding, strict=True)
        )
    )
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, w, b = draw((n, groups * per, *image), (groups * out, per, *size), (groups * out,))
    y, kept = L.conv2d(x, w, b, **options)
    np.testing.assert_allclose(y, conv_by_loops(x, w, b, **options), rtol=1e-12, atol=1e-12)
    (dy,) = draw(y.shape, seed=1)
    assert_transpose(
        lambda x: L.conv2d(x, w, **options)[0], lambda d: L.conv2d_grad_input(d, kept, w), x, dy
    )
    assert_transpose(
        lambda w: L.conv2d(x, w, **options)[0], lambda d: L.conv2d_grad_weight(d, kept)[0], w, dy
    )
    np.testing.assert_allclose(L.conv2d_grad_weight(dy, kept)[1], dy.sum((0, 2, 3)), atol=1e-12)


def test_pixels_that_no_window_reaches_have_no_gradient():
    x, w = draw((1, 1, 6, 6), (1, 1, 3, 3))
    y, kept = L.conv2d(x, w, stride=2)
    dx = L.conv2d_grad_input(np.ones_like(y), kept, w)
    assert y.shape == (1, 1, 2, 2)
    assert not dx[:, :, 5].any()
    assert not dx[:, :, :, 5].any()


@pytest.mark.parametrize("cuts", [(0, 4, 10), (0, 3, 6, 8, 10), (0, 1, 2, 10)])
def test_split_by_output_channels(cuts):
    x, w, b = draw((2, 3, 5, 4), (10, 3, 3, 3), (10,))
    y, kept = L.conv2d(x, w, b, padding=1)
    (dy,) = draw(y.shape, seed=1)
    dx, dw, db = L.conv2d_grad(dy, kept, w, b)
    parts = [L.conv2d(x, w[i:j], b[i:j], padding=1) for i, j in pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate([y for y, _ in parts], axis=1), y, atol=1e-13)
    grads = [
        L.conv2d_grad(dy[:, i:j], kept, w[i:j], b[i:j])
        for (i, j), (_, kept) in zip(pairwise(cuts), parts, strict=True)
    ]
    np.testing.assert_allclose(sum(g[0] for g in grads), dx, atol=1e-12)  # the all-reduce
    np.testing.assert_allclose(np.concatenate([g[1] for g in grads]), dw, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([g[2] for g in grads]), db, atol=1e-12)


@pytest.mark.parametrize("cuts", [(0, 3, 6), (0, 2, 3, 5, 6)])
def test_split_by_input_channels(cuts):
    x, w = draw((2, 6, 5, 4), (4, 6, 3, 3))
    y, kept = L.conv2d(x, w, stride=2)
    (dy,) = draw(y.shape, seed=1)
    dx, dw, _ = L.conv2d_grad(dy, kept, w)
    parts = [L.conv2d(x[:, i:j], w[:, i:j], stride=2) for i, j in pairwise(cuts)]
    np.testing.assert_allclose(sum(y for y, _ in parts), y, atol=1e-12)  # the all-reduce
    grads = [
        L.conv2d_grad(dy, kept, w[:, i:j])
        for (i, j), (_, kept) in zip(pairwise(cuts), parts, strict=True)
    ]
    np.testing.assert_allclose(np.concatenate([g[0] for g in grads], axis=1), dx, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([g[1] for g in grads], axis=1), dw, atol=1e-12)


@pytest.mark.parametrize("cuts", [(0, 6, 11), (0, 3, 6, 9, 11), (0, 1, 11)])
def test_split_in_space_with_halos(cuts):
    """3x3, padded by 1: each device has a row of its neighbours, and zeros at the edges only."""
    x, w, b = draw((2, 3, 11, 5), (4, 3, 3, 3), (4,))
    y, kept = L.conv2d(x, w, b, padding=1)
    (dy,) = draw(y.shape, seed=1)
    dx, dw, db = L.conv2d_grad(dy, kept, w, b)
    ys, dx_sum, dw_sum, db_sum = [], np.zeros_like(x), 0, 0
    for first, end in pairwise(cuts):
        rows = slice(max(first - 1, 0), min(end + 1, 11))
        padding = ((int(first == 0), int(end == 11)), (1, 1))
        y_part, kept = L.conv2d(x[:, :, rows], w, b, padding=padding)
        grads = L.conv2d_grad(dy[:, :, first:end], kept, w, b)
        dx_sum[:, :, rows] += grads[0]  # a halo's gradient goes back to its owner
        ys, dw_sum, db_sum = [*ys, y_part], dw_sum + grads[1], db_sum + grads[2]
    np.testing.assert_allclose(np.concatenate(ys, axis=2), y, atol=1e-13)
    np.testing.assert_allclose(dx_sum, dx, atol=1e-13)
    np.testing.assert_allclose(dw_sum, dw, atol=1e-12)
    np.testing.assert_allclose(db_sum, db, atol=1e-12)


def test_zeros_in_place_of_a_halo_are_seen():
    """The planted fault: each part padded on all sides has the right shape and wrong rows."""
    x, w = draw((1, 1, 8, 4), (1, 1, 3, 3))
    y, _ = L.conv2d(x, w, padding=1)
    wrong = np.concatenate(
        [L.conv2d(x[:, :, at], w, padding=1)[0] for at in (slice(4), slice(4, 8))], axis=2
    )
    assert wrong.shape == y.shape
    assert abs(wrong - y).max(axis=(0, 1, 3))[3:5].min() > 0.1
    np.testing.assert_allclose(np.delete(wrong, [3, 4], 2), np.delete(y, [3, 4], 2), atol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: L.conv2d(x, np.ones((1, 2, 7, 1)), padding=1),
            r"a window of 7 rows \(size 7, dilation 1\) and 4 \+ 1 \+ 1 rows; use 1 more of",
        ),
        (
            lambda x: L.conv2d(x, np.ones((1, 2, 1, 3)), dilation=(1, 3)),
            r"a window of 7 columns \(size 3, dilation 3\) and 5 \+ 0 \+ 0 columns; use 2 more",
        ),
        (
            lambda x: L.conv2d(x, np.ones((3, 1, 1, 1)), groups=2),
            "groups divide both channels, got groups=2, 2 input and 3 output channels",
        ),
        (
            lambda x: L.conv2d(x, np.ones((3, 3, 1, 1))),
            r"w must be \[any, 2, any, any\] \(.* of x over 1 groups, .*\), got \[3, 3, 1, 1\]",
        ),
        (lambda x: L.conv2d(x[0], np.ones((3, 2, 1, 1))), r"x must be \[any, any, any, any\]"),
        (lambda x: L.conv2d(x, np.ones((3, 2, 1, 1)), np.ones(2)), r"b must be \[3\] .* got \[2\]"),
        (
            lambda x: L.conv2d(x, np.ones((3, 2, 1, 1)), stride=0),
            "stride is an integer or two, 1 or more, got 0",
        ),
        (
            lambda x: L.conv2d(x, np.ones((3, 2, 1, 1)), padding=((-1, 0), (0, 0))),
            r"padding is an integer or two, 0 or more, got \(-1, 0\)",
        ),
        (
            lambda x: L.conv2d(x, np.ones((3, 2, 1, 1)), padding=(1, 1, 1, 1)),
            r"padding is an integer, .rows, columns. or .*got \(1, 1, 1, 1\)",
        ),
        (lambda x: L.max_pool2d(x, 2, padding=2), "padding 2 and size 2"),
        (lambda x: L.avg_pool2d(x, (5, 1)), r"a window of 5 rows .* and 4 \+ 0 \+ 0 rows"),
    ],
)
def test_errors(call, message):
    with pytest.raises(KernelError, match=message):
        call(np.ones((1, 2, 4, 5)))


# -- pooling ---------------------------------------------------------------------------------------


@pytest.mark.long
@given(
    image=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    size=st.tuples(*[st.integers(1, 3)] * 2),
    stride=ONE_OR_TWO,
    above=PADS,
    below=PADS,
    left=PADS,
    right=PADS,
)
@settings(max_examples=60, deadline=None)
def test_pooling_is_its_definition(image, size, stride, above, below, left, right):
    padding = ((above, below), (left, right))
    assume(all(max(p) < k <= e + sum(p) for k, e, p in zip(size, image, padding, strict=True)))
    x = draw((2, 2, *image), seed=1)[0]
    largest, kept = L.max_pool2d(x, size, stride, padding)
    np.testing.assert_array_equal(largest, pool_by_loops(x, size, stride, padding, max))
    mean, kept_mean = L.avg_pool2d(x, size, stride, padding)
    expected = pool_by_loops(x, size, stride, padding, lambda v: math.fsum(v) / math.prod(size))
    np.testing.assert_allclose(mean, expected, atol=1e-14)
    (dy,) = draw(mean.shape, seed=1)
    assert_transpose(
        lambda x: L.avg_pool2d(x, size, stride, padding)[0],
        lambda d: L.avg_pool2d_grad(d, kept_mean),
        x,
        dy,
    )
    dx = L.max_pool2d_grad(dy, kept)
    assert float((dx * x).sum()) == pytest.approx(float((dy * largest).sum()), abs=1e-12)


def test_of_equal_elements_the_first_gets_the_gradient():
    y, kept = L.max_pool2d(np.zeros((1, 1, 2, 2)), 2)
    assert L.max_pool2d_grad(np.ones_like(y), kept).tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]


def test_padding_never_wins():
    y, _ = L.max_pool2d(np.full((1, 1, 3, 3), -5.0), 3, 1, 1)
    assert (y == -5).all()


def test_windows_of_more_than_256_elements():
    x = np.arange(289.0).reshape(1, 1, 17, 17)
    y, kept = L.max_pool2d(x, 17)
    dx = L.max_pool2d_grad(np.ones_like(y), kept)
    assert np.flatnonzero(dx).tolist() == [288]


def test_what_pooling_keeps_is_small():
    x = np.ones((2, 3, 8, 8), np.float32)
    assert L.bytes_kept(L.max_pool2d(x, 2)[1]) == 2 * 3 * 16  # a byte each
    assert L.bytes_kept(L.avg_pool2d(x, 2)[1]) == 0


# -- LeNet -----------------------------------------------------------------------------------------

LENET = (
    {f"{n}1": p for n, p in L.conv2d_parameters(1, 20, (3, 3)).items()}
    | {f"{n}2": p for n, p in L.conv2d_parameters(20, 50, (5, 5)).items()}
    | L.matrix("3", 800, 128, bias=True)
    | L.matrix("4", 128, 10, bias=True)
)
"""d2l's, "Training on Multiple GPUs": 28 x 28 grey pixels, ten classes."""


def lenet(w, x, targets, bend="relu"):
    """(loss, gradient of x, those of all weights, outputs of the layers before the last)."""
    kept, outputs, bend = [], [], L.find_activation(bend)

    def through(f, *operands, **options):
        nonlocal x
        x, k = f(x, *operands, **options)
        kept.append(k)

    for n in "12":
        through(L.conv2d, w[f"w{n}"], w[f"b{n}"])
        through(bend.forward)
        through(L.avg_pool2d, 2)
        outputs.append(x)
    through(L.flatten)
    through(L.linear, w["w3"], w["b3"])
    through(bend.forward)
    outputs.append(x)
    through(L.linear, w["w4"], w["b4"])
    loss, k = L.cross_entropy(x, targets)

    d, grads = L.cross_entropy_grad(1.0, k), {}
    d, grads["w4"], grads["b4"] = L.linear_grad(d, kept.pop(), w["w4"], w["b4"])
    d = bend.grad(d, kept.pop())
    d, grads["w3"], grads["b3"] = L.linear_grad(d, kept.pop(), w["w3"], w["b3"])
    d = L.flatten_grad(d, kept.pop())
    for n in "21":
        d = bend.grad(L.avg_pool2d_grad(d, kept.pop()), kept.pop())
        d, grads[f"w{n}"], grads[f"b{n}"] = L.conv2d_grad(d, kept.pop(), w[f"w{n}"], w[f"b{n}"])
    return loss, d, grads, outputs


@pytest.mark.long
def test_lenet_has_the_parameters_and_boundaries_of_the_book():
    assert sum(p.size for p in LENET.values()) == 129_068
    x = draw((256, 1, 28, 28), seed=1)[0].astype("f4")
    loss, _, _, outputs = lenet(
        L.initialise(LENET, 0), x, np.random.default_rng(2).integers(0, 10, 256)
    )
    assert [y.nbytes for y in outputs] == [3_461_120, 819_200, 131_072]
    assert float(loss) == pytest.approx(math.log(10), abs=0.5)


@pytest.mark.long
def test_lenet_gradients():
    """With gelu: among thousands of relus, one is always at its kink."""
    w = L.initialise(LENET, 3, dtype="float64")
    x, targets = draw((2, 1, 28, 28), seed=1)[0], np.array([3, 7])
    _, dx, grads, _ = lenet(w, x, targets, "gelu")
    names = ["b1", "b4"]  # small enough for every element
    assert_gradients(
        lambda *ws: lenet({**w, **dict(zip(names, ws, strict=True))}, x, targets, "gelu")[0],
        [w[n] for n in names],
        1.0,
        [grads[n] for n in names],
    )
    for name, grad in {**grads, "x": dx}.items():
        value = x if name == "x" else w[name]
        v, step = draw(value.shape, seed=5)[0], 1e-5

        def loss(moved, name=name):
            return lenet({**w, name: moved}, moved if name == "x" else x, targets, "gelu")[0]

        slope = float(loss(value + step * v) - loss(value - step * v)) / (2 * step)
        assert slope == pytest.approx(float((grad * v).sum()), rel=1e-7, abs=1e-8), name


@pytest.mark.long
def test_lenet_learns():
    """Four images of four classes, by plain gradient descent: the loss goes to nothing."""
    w, rng = L.initialise(LENET, 0), np.random.default_rng(1)
    x, targets = rng.standard_normal((4, 1, 28, 28)).astype("f4"), np.array([0, 3, 5, 9])
    losses = []
    for _ in range(40):
        loss, _, grads, _ = lenet(w, x, targets)
        losses.append(float(loss))
        w = {name: value - np.float32(0.1) * grads[name] for name, value in w.items()}
    assert losses[0] > 1.5
    assert losses[-1] < 0.1
