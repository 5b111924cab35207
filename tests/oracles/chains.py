"""A small chain of layers, and batches for it."""

from functools import partial

import numpy as np

from tiledask.distributed.data_parallel.chain import Layer, sizes
from tiledask.tile import layers as L


def forward(weights, x, last):
    y, kept = L.linear(x, weights["w"], weights["b"])
    y, bend = (y, None) if last else L.gelu(y)
    return y, (kept, bend)


def backward(weights, dy, kept, last):
    dy = dy if last else L.gelu_grad(dy, kept[1])
    dx, dw, db = L.linear_grad(dy, kept[0], weights["w"], weights["b"])
    return dx, {"w": dw, "b": db}


def dense(name, rows, columns, last=False):
    return Layer(
        name,
        L.matrix("", rows, columns, bias=True),
        partial(forward, last=last),
        partial(backward, last=last),
    )


LAYERS = (dense("in", 5, 7), dense("middle", 7, 3), dense("out", 3, 4, last=True))
SIZES = sizes(LAYERS)


def batch(samples, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((samples, 5)).astype(dtype), rng.integers(0, 4, samples)


def parts(samples):
    """By rank, its samples of a batch."""
    return np.split(np.arange(sum(samples)), np.cumsum(samples)[:-1])
