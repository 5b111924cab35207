"""The block of a pipeline's stages: its definition, and gradients that are its derivatives'."""

import numpy as np
import pytest
from oracles.gradients import assert_gradients, draw

import tiledask as td
from tiledask.tile import gelu, to_numpy


@pytest.mark.parametrize("tokens", [1, 7])
def test_blocks_and_gradients(xp, tokens):
    stage = td.stages.FeedForward((3, 4), width=4, hidden=10, dtype="float64")
    weights = stage.init(xp.__name__)
    x, dy = (xp.asarray(each) for each in draw((tokens, 4), (tokens, 4)))
    operands = [x, *(w for layer in weights for w in layer.values())]
    given = [to_numpy(array).copy() for array in (dy, *operands)]

    def forward(x, *flat):
        arrays = iter(flat)
        return stage.forward([{name: next(arrays) for name in layer} for layer in weights], x)[0]

    y, saved = stage.forward(weights, x)
    expected = x
    for layer in weights:
        h = gelu(expected @ layer["w1"] + layer["b1"])
        expected = expected + h @ layer["w2"] + layer["b2"]
    np.testing.assert_allclose(to_numpy(y), to_numpy(expected))
    dx, kept = stage.backward_input(weights, saved, dy)
    grads = stage.backward_weight(kept)
    assert [[*layer] for layer in grads] == [[*layer] for layer in weights]
    grads = [dx, *(grad for layer in grads for grad in layer.values())]
    assert_gradients(forward, operands, dy, grads)
    for old, new in zip(given, (dy, *operands), strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))
