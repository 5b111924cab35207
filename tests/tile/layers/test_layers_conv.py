"""Convolution and pooling: against loops, and as transposes.

Holds `tiledask.tile.layers.conv`.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.gradients import assert_transpose, draw

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


# -- pooling ---------------------------------------------------------------------------------------


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


# (the four digits of w's shape, other arguments, what is said)


def test_no_output_channel_gives_empty_outputs_and_zeros_for_x(xp):
    x, w, b = xp.ones((2, 3, 5, 4)), xp.ones((0, 3, 2, 2)), xp.ones(0)
    y, kept = L.conv2d(x, w, b)
    dx, dw, db = L.conv2d_grad(y, kept, w, b)
    assert (y.shape, dw.shape, db.shape) == ((2, 0, 4, 3), w.shape, (0,))
    assert dx.shape == x.shape
    assert not dx.any()
