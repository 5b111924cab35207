"""Layer functions: every gradient is the transpose of the derivative, on NumPy and on CuPy.

The adjoint identity <dy, f'(x) v> = <f'(x)^T dy, v>, with f'(x) v by central differences in
float64, checks a gradient in one line, and against the function itself.
"""

import math

import numpy as np
import pytest

from tiledask.tile import functions as F
from tiledask.tile import to_numpy


@pytest.fixture
def draw(xp):
    """Standard normal float64 arrays of the shapes given, the same on NumPy and CuPy."""
    rng = np.random.default_rng(0)

    def arrays(*shapes):
        drawn = [xp.asarray(rng.standard_normal(shape)) for shape in shapes]
        return drawn if len(drawn) > 1 else drawn[0]

    return arrays


def inner(x, y):
    return float((x * y).sum())


def is_adjoint(f, x, dy, dx, draw, step=1e-5):
    """<dy, f'(x) v> equals <dx, v> for random directions v."""
    directions = [draw(x.shape) for _ in range(3)]
    return all(
        inner(dy, f(x + step * v) - f(x - step * v)) / (2 * step)
        == pytest.approx(inner(dx, v), rel=1e-7, abs=1e-7)
        for v in directions
    )


@pytest.mark.parametrize("leading", [(1,), (7,), (2, 5)])
def test_linear(draw, leading):
    x, w, b, dy = draw((*leading, 4), (4, 3), (3,), (*leading, 3))
    expected = np.einsum("...i,ij->...j", to_numpy(x), to_numpy(w)) + to_numpy(b)
    np.testing.assert_allclose(to_numpy(F.linear(x, w, b)), expected)
    dw, db = F.linear_grad_weight(dy, x)
    assert is_adjoint(lambda x: F.linear(x, w, b), x, dy, F.linear_grad_input(dy, w), draw)
    assert is_adjoint(lambda w: F.linear(x, w, b), w, dy, dw, draw)
    assert is_adjoint(lambda b: F.linear(x, w, b), b, dy, db, draw)


def test_gelu_is_within_its_stated_distance_of_the_exact_one(xp):
    x = np.linspace(-9, 9, 10_001)
    exact = np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x.tolist()])
    distance = abs(to_numpy(F.gelu(xp.asarray(x))) - exact).max()
    assert 1e-4 < distance < 5e-4


def test_gelu_of_large_values_stays_finite(xp):
    x = xp.asarray(np.array([-1e4, 1e4], np.float32))
    assert to_numpy(F.gelu(x)).tolist() == [0.0, 1e4]
    assert to_numpy(F.gelu_grad(xp.ones_like(x), x)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("count", [None, 100])
def test_mean_square(draw, count):
    y, target = draw((6, 5), (6, 5))
    dy = F.mean_square_grad(y, target, count)
    assert is_adjoint(lambda y: F.mean_square(y, target, count), y, 1.0, dy, draw)


# -- the residual block --------------------------------------------------------------------------


@pytest.fixture
def block(xp):
    return F.mlp_init(3, width=4, hidden=10, dtype="float64", xp=xp.__name__)


def mlp_backward(weights, x, dy):
    """(dx, gradients) of one block."""
    _, saved = F.mlp_forward(weights, x)
    dx, kept = F.mlp_backward_input(weights, saved, dy)
    return dx, F.mlp_backward_weight(kept)


@pytest.mark.parametrize("tokens", [1, 7])
def test_block_gradients(draw, block, tokens):
    x, dy = draw((tokens, 4), (tokens, 4))
    dx, grads = mlp_backward(block, x, dy)
    assert is_adjoint(lambda x: F.mlp_forward(block, x)[0], x, dy, dx, draw)
    assert list(grads) == list(block)
    for name, grad in grads.items():

        def through(w, name=name):
            return F.mlp_forward({**block, name: w}, x)[0]

        assert grad.shape == block[name].shape
        assert is_adjoint(through, block[name], dy, grad, draw), name


def test_block_is_what_its_picture_says(draw, block, xp):
    x = draw((5, 4))
    h = F.gelu(x @ block["w1"] + block["b1"])
    expected = x + h @ block["w2"] + block["b2"]
    np.testing.assert_allclose(to_numpy(F.mlp_forward(block, x)[0]), to_numpy(expected))


def test_nothing_passed_in_is_changed(draw, block):
    x, dy = draw((5, 4), (5, 4))
    _, saved = F.mlp_forward(block, x)
    arrays = [x, dy, *block.values(), *saved.values()]
    before = [to_numpy(v).copy() for v in arrays]
    _, again = F.mlp_forward(block, x)
    _, for_weights = F.mlp_backward_input(block, again, dy)
    F.mlp_backward_weight(for_weights)
    for old, new in zip(before, [*arrays[:-2], *again.values()], strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_element_types_are_kept(xp, dtype):
    weights = F.mlp_init(0, 4, 8, dtype, xp.__name__)
    x = xp.ones((3, 4), dtype)
    y, saved = F.mlp_forward(weights, x)
    dx, kept = F.mlp_backward_input(weights, saved, y)
    loss = F.mean_square(y, x)
    arrays = [y, dx, loss, F.mean_square_grad(y, x), *saved.values(), *kept.values()]
    arrays += [*weights.values(), *F.mlp_backward_weight(kept).values()]
    assert {str(v.dtype) for v in arrays} == {dtype}


def test_weights_follow_from_the_seed_alone(xp):
    one, same, other = (F.mlp_init(seed, 4, 8, xp=xp.__name__) for seed in (5, 5, 6))
    numpy_one = F.mlp_init(5, 4, 8)
    for name in one:
        np.testing.assert_array_equal(to_numpy(one[name]), to_numpy(same[name]))
        np.testing.assert_array_equal(to_numpy(one[name]), numpy_one[name])
        assert not np.array_equal(to_numpy(one[name]), to_numpy(other[name]))
    wide = F.mlp_init(5, 4, 8, "float64")
    for name, w in numpy_one.items():
        np.testing.assert_array_equal(w, wide[name].astype("float32"))


def test_many_blocks_in_a_row_keep_their_values_near_one():
    y = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    for seed in range(24):
        y, _ = F.mlp_forward(F.mlp_init(seed, 64, 256), y)
    assert 0.5 < y.std() < 3


# -- the checks above can fail -------------------------------------------------------------------

FAULTS = {
    "w is not transposed": lambda dy, x, w: dy @ w,
    "the sign": lambda dy, x, w: -dy @ w.T,
    "one part in a million": lambda dy, x, w: (1 + 1e-6) * (dy @ w.T),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_gradient_is_seen(draw, fault):
    x, w, b, dy = draw((7, 4), (4, 4), (4,), (7, 4))
    wrong = FAULTS[fault](dy, x, w)
    assert not is_adjoint(lambda x: F.linear(x, w, b), x, dy, wrong, draw)
