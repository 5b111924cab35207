"""The LeNet of Dive into Deep Learning's chapter on several GPUs, layer by layer.

images [n, 1, 28, 28]
conv1  W1 20x1x3x3   26x26   relu   mean of 2x2   ->   20 channels of 13x13
conv2  W2 50x20x5x5   9x9    relu   mean of 2x2   ->   50 channels of 4x4
fc1    W3 800x128            relu                 ->  128
fc2    W4 128x10                                  ->   10 classes

Zhang et al., Dive into Deep Learning, "Training on Multiple GPUs": the shapes of its `lenet`.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.convolution.local import conv2d, conv2d_grad
from tiledask.distributed.data_parallel.chain import Layer
from tiledask.plan.collectives.convolution import Boundary
from tiledask.tile import layers as L

__all__ = ["BATCH", "BOUNDARIES", "LENET", "flops", "samples"]

BATCH = 256
"""Images of d2l's minibatch."""
SIDE = 28
"""Rows and columns of an image."""
DENSE = 2
"""Number of the first layer without rows."""
SHAPES: dict[str, tuple[int, ...]] = {
    "conv1": (20, 1, 3, 3),
    "conv2": (50, 20, 5, 5),
    "fc1": (800, 128),
    "fc2": (128, 10),
}
OUT = {"conv1": (26, 26), "conv2": (9, 9), "fc1": (1, 1), "fc2": (1, 1)}
"""Rows and columns of what a layer's products make, before pooling."""
BOUNDARIES = (
    Boundary("conv1", 20, 13 * 13),
    Boundary("conv2", 50, 4 * 4),
    Boundary("fc1", 128),
    Boundary("fc2", 10),
)
"""What each layer gives the next."""


class KeptConvBlock(NamedTuple):
    """What a convolution with relu and pooling keeps."""

    conv: Any
    activation: Any
    pool: Any


class KeptDense(NamedTuple):
    """What a linear layer with or without relu keeps."""

    x: Any
    shape: tuple[int, ...]
    """The shape of what came in, before it was flattened."""
    activation: Any


def conv_forward(weights: Any, x: Any) -> tuple[Any, KeptConvBlock]:
    """The mean of 2x2 of relu of the convolution; some output channels suffice."""
    y, conv = conv2d(x, weights["w"], weights["b"])
    y, activation = L.relu(y)
    y, pool = L.avg_pool2d(y, 2)
    return y, KeptConvBlock(conv, activation, pool)


def conv_backward(
    weights: Any, dy: Any, kept: KeptConvBlock, first: bool
) -> tuple[Any, dict[str, Any]]:
    """(dx, gradients); the images of the ``first`` layer have none."""
    dy = L.relu_grad(L.avg_pool2d_grad(dy, kept.pool), kept.activation)
    if first and dy.shape[1]:
        dw, db = L.conv2d_grad_weight(dy, kept.conv)
        return None, {"w": dw, "b": db}
    dx, dw, db = conv2d_grad(dy, kept.conv, weights["w"], weights["b"])
    return dx, {"w": dw, "b": db}


def dense_forward(weights: Any, x: Any, activated: bool) -> tuple[Any, KeptDense]:
    """x w + b, and relu of it if ``activated``; some columns suffice."""
    flat, shape = L.flatten(x)
    y, kept = L.linear(flat, weights["w"], weights["b"])
    y, activation = L.relu(y) if activated else (y, None)
    return y, KeptDense(kept, shape, activation)


def dense_backward(weights: Any, dy: Any, kept: KeptDense) -> tuple[Any, dict[str, Any]]:
    """(dx, gradients)."""
    dy = dy if kept.activation is None else L.relu_grad(dy, kept.activation)
    dx, dw, db = L.linear_grad(dy, kept.x, weights["w"], weights["b"])
    return L.flatten_grad(dx, kept.shape), {"w": dw, "b": db}


def _conv(name: str) -> Layer:
    out, channels, rows, columns = SHAPES[name]
    backward = partial(conv_backward, first=name == "conv1")
    made = L.conv2d_parameters(channels, out, (rows, columns))
    return Layer(name, made, conv_forward, backward)


def _dense(name: str, activated: bool) -> Layer:
    rows, columns = SHAPES[name]
    made = L.matrix("", rows, columns, bias=True)
    return Layer(name, made, partial(dense_forward, activated=activated), dense_backward)


LENET = (_conv("conv1"), _conv("conv2"), _dense("fc1", True), _dense("fc2", False))
"""The layers, 129,068 parameters."""


def samples(count: int = BATCH, seed: int = 0, dtype: str = "float64") -> tuple[Any, Any]:
    """(images [count, 1, 28, 28], classes [count]) at random: nothing here depends on what
    they show.

    >>> samples(2)[0].shape
    (2, 1, 28, 28)
    """
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((count, 1, SIDE, SIDE)).astype(dtype)
    return images, rng.integers(0, 10, count)


def flops(name: str, images: int, units: int | None = None) -> int:
    """Floating-point operations of a layer's products, forward and backward.

    2 for each weight at each place: forward, again for dw, and again for dx, which the first layer
    does not need. ``units``: of the output channels or columns, default all.

    >>> flops("fc2", 256)
    1966080
    """
    shape = SHAPES[name]
    width, inner = (shape[0], shape[1:]) if len(shape) == 4 else (shape[1], shape[:1])
    places = images * OUT[name][0] * OUT[name][1]
    once = 2 * places * int(np.prod(inner)) * (width if units is None else units)
    return once * (2 if name == "conv1" else 3)
