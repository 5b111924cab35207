"""Attention by heads: against loops, complex rotation, and split over devices by heads.

Holds `tiledask.tile.layers.attention` and `tiledask.tile.layers.composites`.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import one_layer
from oracles.gradients import draw

from tiledask.tile import layers as L
from tiledask.tile import to_numpy


def by_definition(q, k, v, kv_of, causal=True, scale=None):
    """A query, a key and a column at a time, in Python's floats."""
    b, heads, s, e = q.shape
    scale = 1 / math.sqrt(e) if scale is None else scale
    y = np.empty((b, heads, s, v.shape[-1]))
    for n, h, i in np.ndindex(b, heads, s):
        keys = range(min(k.shape[2], i + 1) if causal else k.shape[2])
        g = kv_of[h]
        weights = [math.exp(scale * math.fsum(q[n, h, i] * k[n, g, j])) for j in keys]
        for f in range(v.shape[-1]):
            seen = math.fsum(w * v[n, g, j, f] for w, j in zip(weights, keys, strict=True))
            y[n, h, i, f] = seen / math.fsum(weights)
    return y


# -- the core --------------------------------------------------------------------------------------


@given(
    b=st.integers(1, 2),
    heads=st.integers(1, 5),
    kv=st.integers(1, 3),
    s=st.integers(1, 5),
    t=st.integers(1, 5),
    e=st.integers(1, 3),
    f=st.integers(1, 3),
    causal=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_attention_is_its_definition(b, heads, kv, s, t, e, f, causal, data):
    kv_of = tuple(data.draw(st.lists(st.integers(0, kv - 1), min_size=heads, max_size=heads)))
    q, k, v = draw((b, heads, s, e), (b, kv, t, e), (b, kv, t, f))
    y, _ = L.attention(q, k, v, kv_of, causal)
    np.testing.assert_allclose(y, by_definition(q, k, v, kv_of, causal), rtol=1e-12, atol=1e-12)


def test_large_scores_do_not_overflow(xp):
    q = xp.asarray(np.full((1, 1, 2, 1), 300.0, np.float16))
    y, _ = L.attention(q, q, q, scale=1.0)  # scores of 90000, past float16's largest number
    assert to_numpy(y).ravel().tolist() == [300.0, 300.0]


# -- positions -------------------------------------------------------------------------------------


def test_rotation_is_a_complex_product():
    (x,) = draw((2, 3, 4, 7))
    positions = np.array([0, 3, 1000, 7])
    y, _ = L.rotate(x, L.rotary_angles(positions, 6, base=100.0, dtype="float64"))
    turn = np.exp(1j * positions[:, None] * 100.0 ** (-np.arange(3) / 3))
    expected = (x[..., :3] + 1j * x[..., 3:6]) * turn
    np.testing.assert_allclose(y[..., :3], expected.real, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(y[..., 3:6], expected.imag, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(y[..., 6], x[..., 6])


def test_angles_of_far_positions_are_right_in_float32():
    far = np.array([1_000_003])
    found = L.rotary_angles(far, 128)
    exact = L.rotary_angles(far, 128, dtype="float64")
    assert found.sin.dtype == np.float32
    assert abs(found.sin - exact.sin).max() < 1e-7


# -- the layer -------------------------------------------------------------------------------------


def weights_of(hidden, heads, bias=True):
    w = L.initialise(L.self_attention_parameters(hidden, heads, bias=bias), 0, dtype="float64")
    return {n: draw(a.shape, seed=ord(n[1]))[0] if n[0] == "b" else a for n, a in w.items()}


@pytest.mark.parametrize("kv_of", [(0, 0, 1, 1), (0, 1, 1, 1)])
def test_the_layer_is_its_projections(kv_of):
    """Equally many query heads by a kv head, as it is by default; or as a device holds them."""
    heads, hidden, s = L.Heads(4, 2, 3, () if kv_of == (0, 0, 1, 1) else kv_of), 5, 4
    w, (x,) = weights_of(hidden, heads), draw((2, s, hidden))
    angles = L.rotary_angles(np.arange(2, 2 + s), 2, dtype="float64")

    def head(name, h):
        columns = slice(3 * h, 3 * h + 3)
        part = x @ w[f"w{name}"][:, columns] + w[f"b{name}"][columns]
        return part if name == "v" else L.rotate(part, angles)[0]

    split = {
        n: np.stack([head(n, h) for h in range(c)], 1)
        for n, c in zip("qkv", (4, 2, 2), strict=True)
    }
    c = by_definition(split["q"], split["k"], split["v"], kv_of)
    expected = w["bo"] + sum(c[:, h] @ w["wo"][3 * h : 3 * h + 3] for h in range(4))
    np.testing.assert_allclose(L.self_attention(x, w, heads, angles)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("heads", [L.Heads(3, 3, 2), L.Heads(4, 2, 5), L.Heads(5, 1, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_fused_and_separate_are_one_layer(heads, bias):
    w, (x,) = weights_of(7, heads, bias), draw((2, 3, 7))
    fused = L.fuse_qkv(w)
    assert set(fused) == {"wqkv", "wo"} | ({"bqkv", "bo"} if bias else set())
    y, y_fused = (L.self_attention(x, weights, heads)[0] for weights in (w, fused))
    np.testing.assert_allclose(y_fused, y, rtol=1e-13, atol=1e-14)


def test_a_decoder_layer_is_made_of_these():
    """Against oracles/one_layer.py, whose layer is one long function: GPT-2's, in float64."""
    hidden, count, e, ffn = 6, 3, 2, 11
    shapes = one_layer.layer_shapes(hidden, count * e, ffn)
    w = dict(zip(shapes, draw(*shapes.values(), seed=4), strict=True))
    x, dy = draw((2, 5, hidden), (2, 5, hidden), seed=5)
    expected, saved = one_layer.layer_forward(w, x, count, lambda _, value: value)
    totals = {name: np.zeros(shape) for name, shape in shapes.items()}
    expected_dx = one_layer.layer_backward(
        w, totals, saved, [dy.copy()], count, lambda _, value: value, np.ndarray.__iadd__
    )

    heads, (g1, b1), (g2, b2) = L.Heads(count, count, e), w["norm1"], w["norm2"]
    at = {name: w[name] for name in w if name[1:] in "qkvo"}
    ff = {f"{name[0]}_{name[1]}": w[name] for name in ("w1", "b1", "w2", "b2")}
    a, kept1 = L.layer_norm(x, 1 + g1, b1)
    c, kept_at = L.self_attention(a, at, heads)
    m, kept2 = L.layer_norm(x + c, 1 + g2, b2)
    z, kept_ff = L.mlp(m, ff)
    np.testing.assert_allclose(x + c + z, expected, atol=1e-12)

    dm, grads = L.mlp_grad(dy, kept_ff, ff)
    d2, *grads["norm2"] = L.layer_norm_grad(dm, kept2, 1 + g2, b2)
    da, grads_at = L.self_attention_grad(dy + d2, kept_at, at)
    d1, *grads["norm1"] = L.layer_norm_grad(da, kept1, 1 + g1, b1)
    np.testing.assert_allclose(dy + d2 + d1, expected_dx, atol=1e-12)
    for name, grad in (grads | grads_at).items():
        np.testing.assert_allclose(grad, totals[name.replace("_", "")], atol=1e-11, err_msg=name)
