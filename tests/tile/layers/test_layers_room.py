"""All layers by one rule: gradients, element types, what is kept, and nothing passed in changed.

A case is a layer with operands of given shapes. The same checks run over all of them: against
finite differences and the adjoint identity in float64, and in halves against float64.

Holds `tiledask.tile.layers.elementwise`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from oracles.gradients import assert_gradients

from tiledask.tile import array_namespace, as_dtype, to_numpy
from tiledask.tile import layers as L

HALVES = ["float16", "bfloat16"]
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


@dataclass(frozen=True)
class Case:
    """A layer whose operands are floats of these shapes, by name."""

    shapes: dict[str, tuple[int, ...]]
    forward: Callable
    """operands -> (y, kept)"""
    backward: Callable
    """(dy, kept, operands) -> a gradient for each operand"""
    roundings: int = 4
    """How many times eps a half's result may be away from float64's, of the largest element."""

    def operands(self, xp, dtype="float64", seed=0):
        rng = np.random.default_rng(seed)
        drawn = [rng.standard_normal(shape) for shape in self.shapes.values()]
        return [xp.asarray(x.astype(as_dtype(dtype))) for x in drawn]

    def passed(self, xp, dtype="float64"):
        """(operands, y, kept, dy)."""
        operands = self.operands(xp, dtype)
        y, kept = self.forward(*operands)
        drawn = np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)
        return operands, y, kept, xp.asarray(drawn) if y.ndim else 1.75

    def assert_gradients(self, xp):
        operands, _, kept, dy = self.passed(xp)
        grads = self.backward(dy, kept, *operands)
        assert_gradients(lambda *ops: self.forward(*ops)[0], operands, dy, grads)


def plain(f, grad, weights=True, **options):
    """Forward and backward of the room's convention, for operands x, weights..."""

    def backward(dy, kept, x, *ws):
        found = grad(dy, kept, *ws) if weights else grad(dy, kept)
        return found if isinstance(found, tuple) else (found,)

    return lambda *ops: f(*ops, **options), backward


def named(f, grad, names, **options):
    """The same for layers with a dict of weights."""

    def backward(dy, kept, x, *ws):
        dx, grads = grad(dy, kept, dict(zip(names, ws, strict=True)))
        assert set(grads) == set(names)
        return dx, *(grads[name] for name in names)

    return lambda x, *ws: f(x, dict(zip(names, ws, strict=True)), **options), backward


def layer(parameters, x, f, grad, **options):
    shapes = {"x": x} | {name: p.shape for name, p in parameters.items()}
    return Case(shapes, *named(f, grad, list(parameters), **options), roundings=16)


def linear(x, out, bias):
    shapes = {"x": x, "w": (x[-1], out)} | ({"b": (out,)} if bias else {})
    return Case(shapes, L.linear, both(L.linear_grad, bias))


def norm(f, grad, x, bias):
    shapes = {"x": x, "w": x[-1:]} | ({"b": x[-1:]} if bias else {})
    backward = both(grad, bias) if f is L.layer_norm else lambda dy, kept, x, w: grad(dy, kept, w)
    return Case(shapes, f, backward)


def both(grad, bias):
    """dx, dw and db; without a bias there is no db."""

    def backward(dy, kept, x, w, b=None):
        dx, dw, db = grad(dy, kept, w, b)
        assert (db is None) == (not bias)
        return (dx, dw, db) if bias else (dx, dw)

    return backward


def attend(q, k, v, **options):
    forward, backward = plain(L.attention, L.attention_grad, weights=False, **options)
    return Case({"q": q, "k": k, "v": v}, forward, backward, roundings=8)


def conv(x, w, bias, **options):
    shapes = {"x": x, "w": w} | ({"b": w[:1]} if bias else {})
    return Case(
        shapes,
        lambda *ops: L.conv2d(*ops[:2], *ops[2:] or (None,), **options),
        both(L.conv2d_grad, bias),
    )


def loss(logits, targets, **options):
    targets = np.array(targets)

    def forward(z):
        return L.cross_entropy(z, array_namespace(z).asarray(targets), **options)

    return Case({"logits": logits}, forward, lambda dy, kept, z: (L.cross_entropy_grad(dy, kept),))


def table(rows, width, tokens, first):
    def forward(w):
        return L.embedding(array_namespace(w).asarray(np.array(tokens)), w, first)

    return Case(
        {"table": (rows, width)}, forward, lambda dy, kept, w: (L.embedding_grad(dy, kept),)
    )


def unary(f, grad, x, roundings=4, **options):
    return Case({"x": x}, *plain(f, grad, **options), roundings=roundings)


def turned(x, positions, width):
    def forward(x):
        module = array_namespace(x).__name__
        return L.rotate(x, L.rotary_angles(np.array(positions), width, 10.0, x.dtype, module))

    return Case({"x": x}, forward, lambda dy, kept, x: (L.rotate_grad(dy, kept),))


MHA, GQA, MQA = L.Heads(3, 3, 2), L.Heads(4, 2, 2), L.Heads(3, 1, 4)
UNEVEN = L.Heads(3, 2, 2, kv_of=(0, 1, 1))
ONE = L.Heads(1, 1, 2)


def self_attention(heads, x, fused=False, bias=False, rotary=False, **options):
    parameters = L.self_attention_parameters(x[-1], heads, fused, bias)
    made = layer(parameters, x, L.self_attention, L.self_attention_grad, heads=heads, **options)
    if not rotary:
        return made

    def forward(x, *ws):
        module = array_namespace(x).__name__
        angles = L.rotary_angles(np.arange(5, 5 + x.shape[1]), heads.width, 10.0, x.dtype, module)
        weights = dict(zip(parameters, ws, strict=True))
        return L.self_attention(x, weights, heads, angles, **options)

    return Case(made.shapes, forward, made.backward, made.roundings)


UNEQUAL = ((2, 1), (0, 1))
CASES = {
    "linear": linear((7, 5), 3, bias=True),
    "linear without bias": linear((2, 3, 5), 2, bias=False),
    "linear of one row": linear((1, 1), 1, bias=True),
    "relu": unary(L.relu, L.relu_grad, (4, 5)),
    "gelu": unary(L.gelu, L.gelu_grad, (4, 5)),
    "silu": unary(L.silu, L.silu_grad, (4, 5)),
    "swiglu": Case({"gate": (3, 5), "up": (3, 5)}, *plain(L.swiglu, L.swiglu_grad, weights=False)),
    "softmax": unary(L.softmax, L.softmax_grad, (3, 2, 5)),
    "layer norm": norm(L.layer_norm, L.layer_norm_grad, (2, 3, 7), bias=True),
    "layer norm without bias": norm(L.layer_norm, L.layer_norm_grad, (1, 5), bias=False),
    "rms norm": norm(L.rms_norm, L.rms_norm_grad, (2, 3, 7), bias=False),
    "rms norm of one number": norm(L.rms_norm, L.rms_norm_grad, (4, 1), bias=False),
    "rotate": turned((2, 3, 4, 6), [0, 1, 7, 30], 6),
    "rotate a part of an odd head": turned((3, 2, 5), [4, 9], 4),
    "attention": attend((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
    "attention, grouped": attend((1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    "attention, one kv head": attend((2, 5, 3, 2), (2, 1, 3, 2), (2, 1, 3, 2)),
    "attention, any map": attend((1, 3, 3, 2), (1, 4, 3, 2), (1, 4, 3, 2), kv_of=(2, 0, 2)),
    "attention, both ways": attend((1, 2, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3), causal=False),
    "attention, scaled": attend((1, 2, 2, 3), (1, 1, 5, 3), (1, 1, 5, 3), scale=0.9),
    "attention of one token": attend((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    "self-attention": self_attention(MHA, (2, 3, 5), bias=True),
    "self-attention, fused": self_attention(GQA, (1, 3, 5), fused=True, bias=True),
    "self-attention, rotary": self_attention(GQA, (2, 3, 3), rotary=True),
    "self-attention, fused rotary": self_attention(MQA, (1, 3, 5), fused=True, rotary=True),
    "self-attention, uneven": self_attention(UNEVEN, (1, 4, 3), rotary=True),
    "self-attention, both ways": self_attention(ONE, (1, 3, 2), causal=False, scale=1.0),
    "mlp": layer(L.mlp_parameters(3, 7), (2, 2, 3), L.mlp, L.mlp_grad),
    "mlp, relu, no bias": layer(
        L.mlp_parameters(3, 5, False), (4, 3), L.mlp, L.mlp_grad, activation="relu"
    ),
    "mlp, silu": layer(L.mlp_parameters(2, 1), (1, 2), L.mlp, L.mlp_grad, activation="silu"),
    "swiglu mlp": layer(
        L.swiglu_mlp_parameters(3, 7, bias=True), (2, 3), L.swiglu_mlp, L.swiglu_mlp_grad
    ),
    "swiglu mlp, fused": layer(
        L.swiglu_mlp_parameters(3, 5, True, True), (2, 2, 3), L.swiglu_mlp, L.swiglu_mlp_grad
    ),
    "embedding": table(5, 3, [[0, 4, 4], [2, 0, 4]], 0),
    "embedding, some rows": table(3, 2, [0, 3, 4, 5, 9, 3], 3),
    "cross-entropy": loss((5, 7), [0, 6, 3, 3, 1]),
    "cross-entropy, smoothed": loss((2, 2, 5), [[0, 4], [-100, 1]], smoothing=0.1),
    "cross-entropy, summed": loss((3, 4), [2, 9, 0], ignore=9, count=1),
    "cross-entropy of one class": loss((2, 1), [0, 0], smoothing=0.3),
    "conv": conv((2, 3, 5, 4), (2, 3, 3, 2), bias=True),
    "conv, strided": conv((1, 2, 7, 6), (3, 2, 3, 3), bias=False, stride=(2, 3), padding=1),
    "conv, one-sided": conv((1, 1, 4, 5), (2, 1, 3, 3), bias=True, padding=((1, 0), (0, 2))),
    "conv, dilated": conv((1, 1, 7, 5), (1, 1, 3, 2), bias=True, dilation=(2, 3), padding=1),
    "conv, grouped": conv((2, 4, 3, 3), (6, 2, 2, 2), bias=True, groups=2),
    "conv, by channel": conv((1, 3, 4, 4), (3, 1, 3, 3), bias=False, groups=3, padding=1),
    "conv of a point": conv((3, 2, 1, 1), (2, 2, 1, 1), bias=True),
    "max pool": unary(L.max_pool2d, L.max_pool2d_grad, (2, 2, 5, 6), size=2),
    "max pool, overlapping": unary(
        L.max_pool2d, L.max_pool2d_grad, (1, 2, 5, 5), 8, size=3, stride=1, padding=1
    ),
    "mean pool": unary(L.avg_pool2d, L.avg_pool2d_grad, (2, 2, 5, 6), size=2),
    "mean pool, overlapping": unary(
        L.avg_pool2d, L.avg_pool2d_grad, (1, 2, 6, 5), size=(3, 2), stride=(1, 2), padding=UNEQUAL
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


# -- all of them -----------------------------------------------------------------------------------


def test_gradients(case, xp):
    case.assert_gradients(xp)


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
def test_other_element_types_compute_what_float64_does(case, xp, dtype):
    operands, y, kept, dy = case.passed(xp, dtype)
    exact = [xp.asarray(to_numpy(x).astype("f8")) for x in operands]
    expected_y, expected_kept = case.forward(*exact)
    exact_dy = dy if isinstance(dy, float) else xp.asarray(to_numpy(dy).astype("f8"))
    found = [y, *case.backward(dy, kept, *operands)]
    expected = [expected_y, *case.backward(exact_dy, expected_kept, *exact)]
    if y.ndim == 0 and dtype in HALVES:
        assert found[0].dtype == np.float32  # a loss is not rounded to halves
    else:
        assert found[0].dtype.name == dtype
    # of all results: a key bias has the gradient 0, a sum of numbers that are not
    largest = max(float(abs(want).max()) for want in expected)
    for got, want in zip(found, expected, strict=True):
        if got is not y:
            assert got.dtype.name == dtype
        got, want = to_numpy(got).astype("f8"), to_numpy(want)
        slack = case.roundings * EPS[dtype] * largest + 1e-7
        if dtype == "float32":
            slack *= 8  # sums are float32 too
        np.testing.assert_allclose(got, want, rtol=0, atol=slack)


def test_nothing_passed_in_is_changed_and_a_backward_runs_twice(case, xp):
    operands, _, kept, dy = case.passed(xp)
    arrays = [*operands, *flat(kept), *flat(dy)]
    drawn = case.operands(xp)  # as they were before the forward
    before = [to_numpy(x).copy() for x in [*drawn, *arrays[len(drawn) :]]]
    for one, two in zip(*(case.backward(dy, kept, *operands) for _ in range(2)), strict=True):
        # a GPU adds up the gradient of an embedding in no fixed order
        np.testing.assert_allclose(to_numpy(one), to_numpy(two), rtol=1e-12, atol=1e-14)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))


def test_weights_are_not_kept(case, xp):
    operands, _, kept, _ = case.passed(xp)
    held = {id(array) for array in flat(kept)}
    named = zip(case.shapes, operands, strict=True)
    assert not held & {id(x) for name, x in named if name[0] in "wb" or name == "table"}


def flat(kept):
    if isinstance(kept, dict):
        kept = tuple(kept.values())
    if isinstance(kept, tuple):
        for value in kept:
            yield from flat(value)
    elif hasattr(kept, "nbytes"):
        yield kept


# -- the checks above can fail ---------------------------------------------------------------------


def wrong(name, change):
    """The case with its gradients changed."""
    case = CASES[name]

    def backward(dy, kept, *operands):
        return change([*case.backward(dy, kept, *operands)], dy, kept)

    return replace(case, backward=backward)


FAULTS = {
    "dw twice": wrong("linear", lambda g, dy, kept: [g[0], 2 * g[1], g[2]]),
    "no sum over tokens": wrong("linear", lambda g, dy, kept: [g[0], g[1], dy[0]]),
    "one part in a hundred thousand": wrong("mlp", lambda g, dy, kept: [g[0] * (1 + 1e-5), *g[1:]]),
    "dk and dv exchanged": wrong("attention", lambda g, dy, kept: [g[0], g[2], g[1]]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_gradient_is_seen(fault):
    with pytest.raises(AssertionError):
        FAULTS[fault].assert_gradients(np)
