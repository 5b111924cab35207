"""Linear and feed-forward layers, and norms: loops, and splits over devices by inner columns.

Holds `tiledask.tile.layers.linear`, `tiledask.tile.layers.mlp` and `tiledask.tile.layers.norms`.
"""

import itertools
import math

import numpy as np
import pytest
from oracles.gradients import assert_transpose, draw

from tiledask.errors import KernelError
from tiledask.tile import functions
from tiledask.tile import layers as L
from tiledask.tile.layers.mlp import activated_linear

CUTS = [(0, 4, 8), (0, 1, 2, 8), (0, 3, 5, 7, 8)]


# -- linear ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leading", [(1,), (7,), (2, 5)])
def test_linear_by_definition(leading):
    x, w, b = draw((*leading, 5), (5, 3), (3,))
    y, _ = L.linear(x, w, b)
    for place in np.ndindex(leading):
        for j in range(3):
            expected = math.fsum([*(x[place][i] * w[i, j] for i in range(5)), b[j]])
            assert y[place][j] == pytest.approx(expected, rel=1e-13, abs=1e-13)
    np.testing.assert_allclose(y, functions.linear(x, w, b), rtol=1e-14, atol=1e-14)


def test_linear_backward_is_the_transpose():
    x, w, dy = draw((2, 3, 5), (5, 4), (2, 3, 4))
    assert_transpose(lambda x: L.linear(x, w)[0], lambda d: L.linear_grad_input(d, w), x, dy)
    assert_transpose(lambda w: L.linear(x, w)[0], lambda d: L.linear_grad_weight(d, x)[0], w, dy)


@pytest.mark.parametrize("cuts", CUTS)
def test_linear_split_by_columns_and_by_rows(cuts):
    x, w, dy = draw((3, 8), (8, 8), (3, 8))
    y, kept = L.linear(x, w)
    dx, dw, _ = L.linear_grad(dy, kept, w)
    spans = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    columns = [L.linear(x, w[:, at])[0] for at in spans]
    np.testing.assert_allclose(np.concatenate(columns, axis=-1), y, rtol=1e-13)
    backs = [L.linear_grad(dy[:, at], x, w[:, at]) for at in spans]
    np.testing.assert_allclose(sum(back[0] for back in backs), dx, atol=1e-13)
    np.testing.assert_allclose(np.concatenate([b[1] for b in backs], axis=1), dw, atol=1e-13)
    rows = [L.linear(x[:, at], w[at])[0] for at in spans]
    np.testing.assert_allclose(sum(rows), y, atol=1e-13)
    backs = [L.linear_grad(dy, x[:, at], w[at]) for at in spans]
    np.testing.assert_allclose(np.concatenate([b[0] for b in backs], axis=1), dx, atol=1e-13)
    np.testing.assert_allclose(np.concatenate([b[1] for b in backs], axis=0), dw, atol=1e-13)


# -- feed-forward ----------------------------------------------------------------------------------


def weights_of(parameters, seed=0):
    w = L.initialise(parameters, seed, dtype="float64")
    return {n: draw(a.shape, seed=1)[0] if n[0] == "b" else a for n, a in w.items()}


def test_mlp_is_the_residual_block_without_its_residual():
    ours = weights_of(L.mlp_parameters(4, 10))
    theirs = {name.replace("_", ""): w for name, w in ours.items()}
    x, dy = draw((6, 4), (6, 4))
    y, kept = L.mlp(x, ours)
    expected, saved = functions.mlp_forward(theirs, x)
    np.testing.assert_allclose(y, expected - x, atol=1e-14)
    dx, grads = L.mlp_grad(dy, kept, ours)
    expected, for_weights = functions.mlp_backward_input(theirs, saved, dy)
    np.testing.assert_allclose(dx, expected - dy, atol=1e-14)
    for name, grad in functions.mlp_backward_weight(for_weights).items():
        np.testing.assert_allclose(grads[f"{name[0]}_{name[1]}"], grad, atol=1e-14)


def test_swiglu_by_definition():
    w, (x,) = weights_of(L.swiglu_mlp_parameters(3, 5, bias=True)), draw((4, 3))
    y, _ = L.swiglu_mlp(x, w)
    for n in range(4):
        inner = []
        for j in range(5):
            gate = math.fsum([*(x[n] * w["w_gate"][:, j]), w["b_gate"][j]])
            up = math.fsum([*(x[n] * w["w_up"][:, j]), w["b_up"][j]])
            inner.append(gate / (1 + math.exp(-gate)) * up)
        for j in range(3):
            expected = math.fsum([*(inner * w["w_down"][:, j]), w["b_down"][j]])
            assert y[n, j] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_fused_and_separate_are_one_layer(bias):
    w, (x, dy) = weights_of(L.swiglu_mlp_parameters(3, 7, bias=bias)), draw((2, 4, 3), (2, 4, 3))
    fused = L.fuse_gate_up(w)
    assert set(fused) == {"w_gate_up", "w_down"} | ({"b_gate_up", "b_down"} if bias else set())
    (y, kept), (y_fused, kept_fused) = L.swiglu_mlp(x, w), L.swiglu_mlp(x, fused)
    np.testing.assert_allclose(y_fused, y, rtol=1e-13, atol=1e-14)
    dx, grads = L.swiglu_mlp_grad(dy, kept, w)
    dx_fused, grads_fused = L.swiglu_mlp_grad(dy, kept_fused, fused)
    np.testing.assert_allclose(dx_fused, dx, atol=1e-13)
    for name, grad in L.fuse_gate_up(grads).items():
        np.testing.assert_allclose(grads_fused[name], grad, atol=1e-13)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("gated", [False, True])
def test_devices_with_some_inner_columns_add_up(cuts, gated):
    made = L.swiglu_mlp_parameters if gated else L.mlp_parameters
    f, grad = (L.swiglu_mlp, L.swiglu_mlp_grad) if gated else (L.mlp, L.mlp_grad)
    last = "w_down" if gated else "w_2"
    w, (x, dy) = weights_of(made(3, 8, bias=False)), draw((5, 3), (5, 3))
    y, kept = f(x, w)
    dx, grads = grad(dy, kept, w)
    ys, dxs, parts = [], [], []
    for a, b in itertools.pairwise(cuts):
        mine = {n: v[a:b] if n == last else v[:, a:b] for n, v in w.items()}
        y_part, kept = f(x, mine)
        dx_part, grads_part = grad(dy, kept, mine)
        ys.append(y_part), dxs.append(dx_part), parts.append(grads_part)
    np.testing.assert_allclose(sum(ys), y, atol=1e-13)
    np.testing.assert_allclose(sum(dxs), dx, atol=1e-13)
    for name, whole in grads.items():
        joined = np.concatenate([p[name] for p in parts], axis=0 if name == last else 1)
        np.testing.assert_allclose(joined, whole, atol=1e-13)


def test_splitting_the_first_matrix_by_rows_is_another_function():
    """gelu(a + b) is not gelu(a) + gelu(b): inputs are split for the second matrix only."""
    w, (x,) = weights_of(L.mlp_parameters(4, 6, bias=False)), draw((5, 4))
    y, _ = L.mlp(x, w)
    halves = [L.mlp(x[:, at], {**w, "w_1": w["w_1"][at]})[0] for at in (slice(2), slice(2, 4))]
    assert abs(sum(halves) - y).max() > 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: L.mlp(np.ones((1, 2)), {"w_1": np.ones((2, 2))}),
            "w_1, w_2, and biases with b for w, got w_1; w_2 missing",
        ),
        (lambda: L.swiglu_mlp(np.ones((1, 2)), {}), "got none; w_gate, w_up, w_down missing"),
        (
            lambda: L.swiglu_mlp(
                np.ones((1, 2)), {"w_gate_up": np.ones((2, 5)), "w_down": np.ones((2, 2))}
            ),
            "as many columns of gate as of up, got 5 together",
        ),
        (
            lambda: L.mlp(np.ones((1, 2)), weights_of(L.mlp_parameters(2, 2)), "gelu_new"),
            "relu, gelu, silu, got 'gelu_new'",
        ),
        (
            lambda: L.mlp(np.ones((1, 2)), {"w_1": np.ones((2, 4)), "w_2": np.ones((3, 2))}),
            r"w must be \[4, any\] .* got \[3, 2\]",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(KernelError, match=message):
        call()


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


def test_norms_ignore_scale_and_layer_norm_a_shift():
    x, w, dy = draw((3, 6), (6,), (3, 6))
    np.testing.assert_allclose(L.rms_norm(10 * x, w, 0.0)[0], L.rms_norm(x, w, 0.0)[0], rtol=1e-13)
    y, kept = L.layer_norm(x, w, eps=0.0)
    np.testing.assert_allclose(L.layer_norm(x + 5, w, eps=0.0)[0], y, rtol=1e-11)
    dx = L.layer_norm_grad(dy, kept, w)[0]
    assert abs(dx.sum(-1)).max() < 1e-13  # no derivative along a shift
    assert abs((dx * x).sum(-1)).max() < 1e-12  # nor along a scale


def test_tokens_in_parts_add_up_to_the_gradient_of_the_weights():
    x, w, b, dy = draw((7, 5), (5,), (5,), (7, 5))
    _, kept = L.layer_norm(x, w, b)
    _, dw, db = L.layer_norm_grad(dy, kept, w, b)
    parts = [
        L.layer_norm_grad(dy[at], L.layer_norm(x[at], w, b)[1], w, b)
        for at in (slice(3), slice(3, 7))
    ]
    np.testing.assert_allclose(sum(p[1] for p in parts), dw, atol=1e-14)
    np.testing.assert_allclose(sum(p[2] for p in parts), db, atol=1e-14)


# -- one product for both ------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (0, 7)])
def test_bending_in_the_product_is_bending_after_it(shape, bias):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape), rng.standard_normal((7, 11))
    b = rng.standard_normal(11) if bias else None
    for activation in ("gelu", "relu", "silu"):
        g, kept = activated_linear(x, w, b, activation)
        z = L.linear(x, w, b)[0]
        plain, plain_kept = L.ACTIVATIONS[activation].forward(z)
        np.testing.assert_allclose(g, plain, rtol=1e-13)
        np.testing.assert_allclose(kept, plain_kept, rtol=1e-13)


def test_halves_are_bent_before_they_are_rounded():
    """GELU of the rounded sum differs from the rounded GELU; only the latter is the nearest."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((64, 32), (32, 48)))
    g, z = activated_linear(x, w, None, "gelu")
    exact = functions.gelu(x.astype("f8") @ w.astype("f8"))
    twice = L.gelu(z)[0].astype("f8")
    step = np.spacing(abs(exact).astype(np.float16)).astype("f8")  # half of it is the nearest
    bent, rounded_first = (np.quantile(abs(y - exact) / step, 0.9) for y in (g.astype("f8"), twice))
    assert bent < 0.5 < 1.5 < rounded_first
    np.testing.assert_array_equal(z, L.linear(x, w)[0])


def test_shapes_that_do_not_go_together_are_refused_there_too():
    with pytest.raises(KernelError, match="as many rows as x has columns"):
        activated_linear(np.ones((2, 3)), np.ones((4, 5)), None, "gelu")
    with pytest.raises(KernelError, match="one for each column of w"):
        activated_linear(np.ones((2, 3)), np.ones((3, 5)), np.ones(4), "gelu")
