"""The block of a pipeline's stages: every gradient is the transpose of the derivative.

The adjoint identity <dy, f'(x) v> = <f'(x)^T dy, v>, with f'(x) v by central differences in
float64, checks a gradient in one line, and against the function itself.
"""

import numpy as np
import pytest

import tiledask as td
from tiledask.tile import gelu, to_numpy


@pytest.fixture
def draw(xp):
    rng = np.random.default_rng(0)
    return lambda *shape: xp.asarray(rng.standard_normal(shape))


def is_adjoint(f, x, dy, dx, draw, step=1e-5):
    """<dy, f'(x) v> equals <dx, v> for random directions v."""
    directions = [draw(*x.shape) for _ in range(3)]
    return all(
        float((dy * (f(x + step * v) - f(x - step * v))).sum()) / (2 * step)
        == pytest.approx(float((dx * v).sum()), rel=1e-7, abs=1e-7)
        for v in directions
    )


@pytest.mark.parametrize("tokens", [1, 7])
def test_blocks_and_gradients(draw, xp, tokens):
    stage = td.stages.FeedForward((3, 4), width=4, hidden=10, dtype="float64")
    weights, x, dy = stage.init(xp.__name__), draw(tokens, 4), draw(tokens, 4)
    arrays = x, dy, *(w for layer in weights for w in layer.values())
    given = [to_numpy(array).copy() for array in arrays]
    y, saved = stage.forward(weights, x)
    expected = x
    for layer in weights:
        h = gelu(expected @ layer["w1"] + layer["b1"])
        expected = expected + h @ layer["w2"] + layer["b2"]
    np.testing.assert_allclose(to_numpy(y), to_numpy(expected))
    dx, kept = stage.backward_input(weights, saved, dy)
    assert is_adjoint(lambda x: stage.forward(weights, x)[0], x, dy, dx, draw)
    for n, grads in enumerate(stage.backward_weight(kept)):
        assert list(grads) == list(weights[n])
        for name, grad in grads.items():

            def through(w, n=n, name=name):
                changed = [*weights[:n], {**weights[n], name: w}, *weights[n + 1 :]]
                return stage.forward(changed, x)[0]

            assert is_adjoint(through, weights[n][name], dy, grad, draw), name
    for old, new in zip(given, arrays, strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))
