"""The block of a pipeline's stages: every gradient is the transpose of the derivative.

The adjoint identity <dy, f'(x) v> = <f'(x)^T dy, v>, with f'(x) v by central differences in
float64, checks a gradient in one line, and against the function itself.
"""

import numpy as np
import pytest

from tiledask.distributed.pipelines import feed_forward as F
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


@pytest.mark.parametrize("count", [None, 100])
def test_mean_square(draw, count):
    y, target = draw(6, 5), draw(6, 5)
    dy = F.mean_square_grad(y, target, count)
    assert is_adjoint(lambda y: F.mean_square(y, target, count), y, 1.0, dy, draw)


@pytest.mark.parametrize("tokens", [1, 7])
def test_block_and_gradients(draw, xp, tokens):
    block = F.mlp_init(3, width=4, hidden=10, dtype="float64", xp=xp.__name__)
    x, dy = draw(tokens, 4), draw(tokens, 4)
    given = [to_numpy(array).copy() for array in (x, dy, *block.values())]
    y, saved = F.mlp_forward(block, x)
    h = gelu(x @ block["w1"] + block["b1"])
    np.testing.assert_allclose(to_numpy(y), to_numpy(x + h @ block["w2"] + block["b2"]))
    dx, kept = F.mlp_backward_input(block, saved, dy)
    grads = F.mlp_backward_weight(kept)
    assert is_adjoint(lambda x: F.mlp_forward(block, x)[0], x, dy, dx, draw)
    assert list(grads) == list(block)
    for name, grad in grads.items():

        def through(w, name=name):
            return F.mlp_forward({**block, name: w}, x)[0]

        assert is_adjoint(through, block[name], dy, grad, draw), name
    for old, new in zip(given, (x, dy, *block.values()), strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))


def test_many_blocks_in_a_row_keep_their_values_near_one():
    y = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    for seed in range(24):
        y, saved = F.mlp_forward(F.mlp_init(seed, 64, 256), y)
        assert {x.dtype.name for x in (y, *saved.values())} == {"float32"}
    assert 0.5 < y.std() < 3
