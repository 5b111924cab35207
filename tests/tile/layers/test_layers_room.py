"""All layers by one rule: gradients, element types, what is kept, and nothing passed in changed.

A case is a layer with operands of given shapes. The same checks run over all of them: against
finite differences and the adjoint identity in float64, and in halves against float64.

Holds `tiledask.tile.layers.positionwise` and `tiledask.tile.layers.by_name`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from oracles.gradients import assert_gradients

from tiledask.tile import array_namespace, as_dtype, to_numpy
from tiledask.tile import layers as L
from tiledask.tile.layers.by_name import RankPart

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


@dataclass(frozen=True)
class Case:
    """A layer whose operands are floats of these shapes, by name."""

    shapes: dict[str, tuple[int, ...]]
    forward: Callable
    """operands -> (y, saved)"""
    backward: Callable
    """(dy, saved, operands) -> a gradient for each operand"""
    roundings: int = 4
    """How many times eps a half's result may be away from float64's, of the largest element."""

    def operands(self, xp, dtype="float64"):
        rng = np.random.default_rng(0)
        drawn = [rng.standard_normal(shape) for shape in self.shapes.values()]
        return [xp.asarray(x.astype(as_dtype(dtype))) for x in drawn]

    def passed(self, xp, dtype="float64"):
        """(operands, y, saved, dy)."""
        operands = self.operands(xp, dtype)
        y, saved = self.forward(*operands)
        drawn = np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)
        return operands, y, saved, xp.asarray(drawn) if y.ndim else 1.75


def given(options, x):
    """Options of a layer; what goes with an operand is made of it: its angles, its targets."""
    return {n: v(x) if callable(v) else v for n, v in options.items()}


def case(f, shapes, roundings=4, **options):
    grad, first = getattr(L, f"{f.__name__}_grad"), len(shapes) - len({*shapes} & {"w", "b"})

    def backward(dy, saved, *operands):
        found = grad(dy, saved, *operands[first:])
        found = found if isinstance(found, tuple) else (found,)
        return [g for g in found if g is not None]  # db, where there is no b

    return Case(shapes, lambda x, *rest: f(x, *rest, **given(options, x)), backward, roundings)


def composite(f, parameters, x, **options):
    """A layer with a dict of weights."""
    grad = getattr(L, f"{f.__name__}_grad")

    def named(weights):
        return dict(zip(parameters, weights, strict=True))

    def backward(dy, saved, _, *weights):
        dx, grads = grad(dy, saved, named(weights))
        assert set(grads) == set(parameters)
        return [dx, *(grads[name] for name in parameters)]

    shapes = {"x": x} | {name: p.shape for name, p in parameters.items()}
    return Case(shapes, lambda x, *w: f(x, named(w), **given(options, x)), backward, roundings=16)


def attend(qkv, heads, kv_of):
    return case(L.attention, {"qkv": qkv}, 8, heads=heads, kv_of=kv_of)


def self_attention(heads, x, fused=False, bias=False, **options):
    parameters = L.self_attention_parameters(x[-1], heads, fused, bias)
    return composite(L.self_attention, parameters, x, heads=heads, **options)


def conv(x, w, bias=True, **options):
    return case(L.conv2d, {"x": x, "w": w, **({"b": w[:1]} if bias else {})}, **options)


def loss(logits, targets, **options):
    def on(x):
        return array_namespace(x).asarray(np.array(targets))

    return case(L.cross_entropy, {"logits": logits}, targets=on, **options)


def table(shape, tokens, first):
    def forward(w):
        part = RankPart(first, first + len(w), 10)
        return L.embedding(array_namespace(w).asarray(np.array(tokens)), w, part)

    return Case({"table": shape}, forward, lambda dy, saved, w: [L.embedding_grad(dy, saved)])


def angles(positions, width):
    def of(x):
        module = array_namespace(x).__name__
        return L.rotary_angles(np.array(positions), width, 10.0, x.dtype, module)

    return {"angles": of}


MHA, GQA, MQA = L.Heads(3, 3, 2), L.Heads(4, 2, 2), L.Heads(3, 1, 4)
X = {"x": (4, 5)}
CASES = {
    "linear": case(L.linear, {"x": (7, 5), "w": (5, 3), "b": (3,)}),
    "linear without bias": case(L.linear, {"x": (2, 3, 5), "w": (5, 2)}),
    **{f.__name__: case(f, X) for f in (L.relu, L.gelu)},
    "swiglu": case(L.swiglu, {"gate": (3, 5), "up": (3, 5)}),
    "layer norm": case(L.layer_norm, {"x": (2, 3, 7), "w": (7,), "b": (7,)}),
    "layer norm without bias": case(L.layer_norm, {"x": (1, 5), "w": (5,)}),
    "rms norm": case(L.rms_norm, {"x": (2, 3, 7), "w": (7,)}),
    "rotate a part of odd heads": case(
        L.rotate, {"qkv": (3, 2, 20)}, heads=(2, 1, 5), **angles([4, 9], 4)
    ),
    "attention, grouped": attend((1, 3, 16), (4, 2, 2), (0, 0, 1, 1)),
    "attention, any map": attend((1, 3, 22), (3, 4, 2), (2, 0, 2)),
    "self-attention": self_attention(MHA, (2, 3, 5), bias=True),
    "self-attention, fused": self_attention(GQA, (1, 3, 5), fused=True, bias=True),
    "self-attention, rotary": self_attention(GQA, (2, 3, 3), **angles([5, 6, 7], 2)),
    "self-attention, fused rotary": self_attention(MQA, (1, 3, 5), True, **angles([5, 6, 9], 4)),
    "mlp": composite(L.mlp, L.mlp_parameters(3, 7), (2, 2, 3)),
    "mlp, relu": composite(L.mlp, L.mlp_parameters(3, 5, False), (4, 3), activation="relu"),
    "swiglu mlp": composite(L.swiglu_mlp, L.swiglu_mlp_parameters(3, 7, bias=True), (2, 3)),
    "swiglu, fused": composite(L.swiglu_mlp, L.swiglu_mlp_parameters(3, 5, True, True), (2, 2, 3)),
    "embedding": table((5, 3), [[0, 4, 4], [2, 0, 4]], 0),
    "embedding, some rows": table((3, 2), [0, 3, 4, 5, 9, 3], 3),
    "cross-entropy": loss((5, 7), [0, 6, 3, 3, 1]),
    "cross-entropy, ignored": loss((2, 2, 5), [[0, 4], [-100, 1]]),
    "cross-entropy, summed": loss((3, 4), [2, 3, 0], count=1),
    "conv": conv((2, 3, 5, 4), (2, 3, 3, 2)),
    "conv, strided": conv((1, 2, 7, 6), (3, 2, 3, 3), bias=False, stride=(2, 3), padding=1),
    "conv, one-sided": conv((1, 1, 4, 5), (2, 1, 3, 3), padding=((1, 0), (0, 2))),
    "conv, dilated": conv((1, 1, 7, 5), (1, 1, 3, 2), dilation=(2, 3), padding=1),
    "mean pool": case(L.avg_pool2d, {"x": (2, 2, 5, 6)}, size=2),
    "mean pool, overlapping": case(
        L.avg_pool2d, {"x": (1, 2, 6, 5)}, size=(3, 2), stride=(1, 2), padding=((2, 1), (0, 1))
    ),
}


@pytest.fixture(params=CASES)
def each(request):
    return CASES[request.param]


def test_gradients(each, xp):
    operands, _, saved, dy = each.passed(xp)
    grads = each.backward(dy, saved, *operands)
    assert_gradients(lambda *ops: each.forward(*ops)[0], operands, dy, grads)


@pytest.mark.parametrize("dtype", EPS)
def test_other_element_types_compute_what_float64_does(each, xp, dtype):
    operands, y, saved, dy = each.passed(xp, dtype)
    exact = [xp.asarray(to_numpy(x).astype("f8")) for x in operands]
    expected_y, expected_saved = each.forward(*exact)
    exact_dy = dy if isinstance(dy, float) else xp.asarray(to_numpy(dy).astype("f8"))
    found = [y, *each.backward(dy, saved, *operands)]
    expected = [expected_y, *each.backward(exact_dy, expected_saved, *exact)]
    # a loss is not rounded to halves
    types = ["float32" if y.ndim == 0 else dtype, *[dtype] * (len(found) - 1)]
    # of all results: a key bias has the gradient 0, a sum of numbers that are not
    largest = max(float(abs(want).max()) for want in expected)
    slack = each.roundings * EPS[dtype] * largest * (8 if dtype == "float32" else 1) + 1e-7
    for got, want, kind in zip(found, expected, types, strict=True):
        assert got.dtype.name == kind
        np.testing.assert_allclose(to_numpy(got).astype("f8"), to_numpy(want), rtol=0, atol=slack)


def test_nothing_passed_in_is_changed_and_no_weight_is_saved(each, xp):
    operands, _, saved, dy = each.passed(xp)
    held, named = {id(array) for array in flat(saved)}, zip(each.shapes, operands, strict=True)
    assert not held & {id(x) for name, x in named if name[0] in "wb" or name == "table"}
    arrays = [*operands, *flat(saved), *flat(dy)]
    drawn = each.operands(xp)  # as they were before the forward
    before = [to_numpy(x).copy() for x in [*drawn, *arrays[len(drawn) :]]]
    for one, two in zip(*(each.backward(dy, saved, *operands) for _ in range(2)), strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(two))
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))


def flat(saved):
    if isinstance(saved, dict | tuple):
        for value in saved.values() if isinstance(saved, dict) else saved:
            yield from flat(value)
    elif hasattr(saved, "nbytes"):
        yield saved
