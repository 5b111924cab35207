"""A GPT trained on one device, written out: no ranks, no micro-batches, no schedule."""

from functools import cache
from typing import NamedTuple

import numpy as np
from oracles.planned_calls import assert_planned

from tiledask.tile import layers as L
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import Adam, advance, begin

TEXT = load_text("tales")


def inside(weights, name):
    return {n[len(name) + 1 :]: w for n, w in weights.items() if n.startswith(f"{name}.")}


def norm(gated, x, w, eps=None):
    options = {} if eps is None else {"eps": eps}
    return (L.rms_norm if gated else L.layer_norm)(x, *(w[n] for n in "wb" if n in w), **options)


def norm_grad(gated, dy, kept, w):
    grad, names = L.rms_norm_grad if gated else L.layer_norm_grad, "w" if gated else "wb"
    dx, *grads = grad(dy, kept, *(w[n] for n in names))
    return dx, dict(zip(names, grads, strict=True))


def block(gated, x, w, heads, angles, eps=None):
    """(y, what is kept) of a decoder block."""
    feed = L.swiglu_mlp if gated else L.mlp
    a, k1 = norm(gated, x, inside(w, "norm_1"), eps)
    a, ka = L.self_attention(a, inside(w, "attention"), heads, angles)
    x = x + a
    f, k2 = norm(gated, x, inside(w, "norm_2"), eps)
    f, kf = feed(f, inside(w, "mlp"))
    return x + f, (k1, ka, k2, kf)


def block_grad(gated, dy, kept, w):
    """(dx, gradients by name)."""
    feed_grad = L.swiglu_mlp_grad if gated else L.mlp_grad
    k1, ka, k2, kf = kept
    grads = {}
    d, grads["mlp"] = feed_grad(dy, kf, inside(w, "mlp"))
    d, grads["norm_2"] = norm_grad(gated, d, k2, inside(w, "norm_2"))
    dx = dy + d
    d, grads["attention"] = L.self_attention_grad(dx, ka, inside(w, "attention"))
    d, grads["norm_1"] = norm_grad(gated, d, k1, inside(w, "norm_1"))
    return dx + d, {f"{part}.{n}": g for part, found in grads.items() for n, g in found.items()}


def gradient(model, weights, ids, targets):
    """(loss, gradients by name) of a whole batch."""
    heads, angles = L.Heads(*model.head_counts), None
    if model.gated:
        told = {"base": model.base, "dtype": "float64"}
        angles = L.rotary_angles(np.arange(model.sequence), heads.width, **told)
    x, of_table = L.embedding(ids, weights["embedding.table"])
    if not model.gated:
        x = x + weights["positions.table"]
    kept = []
    for n in range(model.layers):
        w = inside(weights, f"layer {n}")
        x, each = block(model.gated, x, w, heads, angles, model.eps)
        kept.append(each)
    matrix = weights["embedding.table"].T if model.tied else weights["head.w_head"]
    y, kn = norm(model.gated, x, inside(weights, "head.norm"), model.eps)
    loss, kl = L.cross_entropy(y @ matrix, targets)
    grads = {}

    def put(name, found):
        grads.update({f"{name}.{n}": g for n, g in found.items()})

    dz = L.cross_entropy_grad(1.0, kl)
    of_matrix = np.einsum("bsh,bsv->hv", y, dz)
    dx, found = norm_grad(model.gated, dz @ matrix.T, kn, inside(weights, "head.norm"))
    put("head.norm", found)
    for n in reversed(range(model.layers)):
        w = inside(weights, f"layer {n}")
        dx, found = block_grad(model.gated, dx, kept[n], w)
        put(f"layer {n}", found)
    if not model.gated:
        grads["positions.table"] = dx.sum(axis=0)
    grads["embedding.table"] = L.embedding_grad(dx, of_table)
    if model.tied:
        grads["embedding.table"] += of_matrix.T
    else:
        grads["head.w_head"] = of_matrix
    return float(loss), grads


class Single(NamedTuple):
    """What one device's training is, in float64."""

    losses: np.ndarray
    norms: np.ndarray
    scales: np.ndarray
    weights: dict


@cache
def reference(model, steps, batch, rule, clip=None, scale=None, overflows=()):
    """One device that clips to ``clip``, scales, and overflows in some steps."""
    weights, made = {}, []
    for unit in model.units:
        drawn = L.initialise(model.parameters(unit), 0, prefix=f"{unit}.", dtype="float64")
        weights |= {f"{unit}.{name}": w for name, w in drawn.items()}
    state = begin(weights, rule)
    for step in range(steps):
        loss, grads = gradient(model, state.weights, *TEXT.batch(0, step, batch, model.sequence))
        assert set(grads) == set(weights)
        by = scale.scale if scale else 1.0
        grads = {n: g * by for n, g in grads.items()}
        if step in overflows:
            grads["embedding.table"][0] = np.inf
        state, scale, norm = advance(state, rule, grads, scale, limit=clip)
        made.append((loss, norm, by))
    return Single(*np.array(made).reshape(-1, 3).T, state.weights)


def assert_single(got, batch, rule, tolerance=1e-10, **options):
    """A training has the single device's losses, norms, scales and weights, and the traffic that
    was planned."""
    steps = got.config.first + len(got.losses)
    losses, norms, scales, weights = reference(got.config.model, steps, batch, rule, **options)
    off = np.abs(got.losses / losses[got.config.first :] - 1)
    assert off.max(initial=0) <= tolerance, f"losses: step {int(np.argmax(off > tolerance))}: {off}"
    if len(got.norms):
        norms, near = norms[got.config.first :], {"rtol": tolerance, "equal_nan": True}
        mine, theirs = (np.where(np.isfinite(n), n, np.nan) for n in (got.norms, norms))
        np.testing.assert_allclose(mine, theirs, **near, err_msg="norms")
        assert np.array_equal(got.to_frame().norm, got.norms, equal_nan=True)
    if options.get("scale"):
        assert got.scales.tolist() == scales[got.config.first :].tolist(), "scales"
        assert got.to_frame().loss_scale.tolist() == got.scales.tolist()
    far, name = farthest(got.weights, weights, got.config.model, rule)
    assert far <= tolerance, f"{name}: {far:.2g}"
    assert_planned(got)


def farthest(got, weights, model, rule):
    """(how far, name) of the weight that is farthest from the reference's, over its largest number.

    A key's bias moves no loss: its gradient is rounded off zero, and of that Adam makes steps.
    """
    heads, far = L.Heads(*model.head_counts), []
    keys = slice(heads.query * heads.width, (heads.query + heads.kv) * heads.width)
    assert set(got) == set(weights)
    for name, w in weights.items():
        off = np.abs(got[name] - w)
        if name.endswith("bqkv") and isinstance(rule, Adam):
            off[keys] = 0
        far.append((off.max() / np.abs(w).max(), name))
    return max(far)
