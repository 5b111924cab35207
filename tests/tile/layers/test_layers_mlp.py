"""Linear and feed-forward layers, and norms: loops, and splits over devices by inner columns."""

import math

import numpy as np
import pytest
from oracles.gradients import draw

from tiledask.tile import gelu
from tiledask.tile import layers as L

# -- feed-forward ----------------------------------------------------------------------------------


def weights_of(parameters, seed=0):
    w = L.initialise(parameters, seed, dtype="float64")
    return {n: draw(a.shape, seed=1)[0] if n[0] == "b" else a for n, a in w.items()}


@pytest.mark.parametrize("bias", [True, False])
def test_fused_and_separate_are_one_layer(bias):
    w, (x,) = weights_of(L.swiglu_mlp_parameters(3, 7, bias=bias)), draw((2, 4, 3))
    fused = L.fuse_gate_up(w)
    assert set(fused) == {"w_gate_up", "w_down"} | ({"b_gate_up", "b_down"} if bias else set())
    y, y_fused = (L.swiglu_mlp(x, weights)[0] for weights in (w, fused))
    np.testing.assert_allclose(y_fused, y, rtol=1e-13, atol=1e-14)


# -- norms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 13])
def test_norms_by_definition(width):
    x, w, b = draw((3, width), (width,), (width,))
    rms, layer = L.rms_norm(x, w, eps=0.25)[0], L.layer_norm(x, w, b, eps=0.25)[0]
    for n in range(3):
        mean = math.fsum(x[n]) / width
        root = math.sqrt(math.fsum(x[n] ** 2) / width + 0.25)
        deviation = math.sqrt(math.fsum((x[n] - mean) ** 2) / width + 0.25)
        np.testing.assert_allclose(rms[n], x[n] / root * w, rtol=1e-13)
        expected = (x[n] - mean) / deviation * w + b
        np.testing.assert_allclose(layer[n], expected, rtol=1e-12, atol=1e-14)


def test_a_constant_token_has_no_deviation():
    x = np.full((1, 4), 7.0)
    y, kept = L.layer_norm(x, np.ones(4), np.zeros(4))
    assert y.tolist() == [[0.0] * 4]
    assert np.isfinite(L.layer_norm_grad(np.ones((1, 4)), kept, np.ones(4))[0]).all()


# -- one product for both ------------------------------------------------------------------------


def bent(x, w, b, activation):
    """(g, what its gradient reads) of a feed-forward layer."""
    weights = {"w_1": w, "w_2": w.T} | ({} if b is None else {"b_1": b})
    saved = L.mlp(x, weights, activation)[1]
    return saved["g"], saved["bent"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (0, 7)])
def test_bending_in_the_product_is_bending_after_it(shape, bias):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape), rng.standard_normal((7, 11))
    b = rng.standard_normal(11) if bias else None
    for activation in ("gelu", "relu", "silu"):
        g, saved = bent(x, w, b, activation)
        plain, plain_saved = L.ACTIVATIONS[activation](L.linear(x, w, b)[0])
        np.testing.assert_allclose(g, plain, rtol=1e-13)
        assert saved.keys() == plain_saved.keys()
        for name, value in saved.items():
            np.testing.assert_allclose(value, plain_saved[name], rtol=1e-13)


def test_halves_are_bent_before_they_are_rounded():
    """GELU of the rounded sum differs from the rounded GELU; only the latter is the nearest."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((64, 32), (32, 48)))
    g, saved = bent(x, w, None, "gelu")
    exact = gelu(x.astype("f8") @ w.astype("f8"))
    twice = L.gelu(saved["x"])[0].astype("f8")
    step = np.spacing(abs(exact).astype(np.float16)).astype("f8")  # half of it is the nearest
    once, rounded_first = (np.quantile(abs(y - exact) / step, 0.9) for y in (g.astype("f8"), twice))
    assert once < 0.5 < 1.5 < rounded_first
    np.testing.assert_array_equal(saved["x"], L.linear(x, w)[0])
