"""The layers as a person calls them: y and what the backward reads, saved; made of the kernels.

y, saved         = f(x, weights..., options)
dx, dweights...  = f_grad(dy, saved, weights...)
"""

from math import prod
from typing import Any

from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers import norms, rotary
from tiledask.tile.layers.activations import ACTIVATIONS, gated, gated_grad
from tiledask.tile.layers.attention import attend, attend_grad, normalise, normalise_grad
from tiledask.tile.layers.by_name import Saved, layer
from tiledask.tile.layers.convolution import conv, pooling
from tiledask.tile.layers.convolution.im2col import Pair, Sides
from tiledask.tile.layers.embedding import embed, embed_grad
from tiledask.tile.layers.linear import linear as affine
from tiledask.tile.layers.linear import linear_grad_input, linear_grad_weight

relu, relu_grad = ACTIVATIONS["relu"].forward, ACTIVATIONS["relu"].grad
gelu, gelu_grad = ACTIVATIONS["gelu"].forward, ACTIVATIONS["gelu"].grad
silu, silu_grad = ACTIVATIONS["silu"].forward, ACTIVATIONS["silu"].grad
swiglu, swiglu_grad = layer(gated, gated_grad)
layer_norm, layer_norm_grad = layer(norms.layer_norm, norms.layer_norm_grad, "inverse mean")
rms_norm, rms_norm_grad = layer(norms.rms_norm, norms.rms_norm_grad, "inverse")
softmax, softmax_grad = layer(normalise, normalise_grad)
attention, attention_grad = layer(attend, attend_grad, "p")
rotate, rotate_grad = layer(rotary.rotate, rotary.rotate_grad)
linear, _ = layer(affine, linear_grad_weight)
embedding, embedding_grad = layer(
    embed, embed_grad, also=lambda _, table, *more, **options: {"rows": len(table)}
)
_max_pool2d, max_pool2d_grad = layer(
    pooling.max_pool2d,
    pooling.max_pool2d_grad,
    "winner",
    also=lambda x, *more, **options: {"image": x.shape[2:]},
)
_avg_pool2d, avg_pool2d_grad = layer(
    pooling.avg_pool2d,
    pooling.avg_pool2d_grad,
    also=lambda x, *more, **options: {"image": x.shape[2:]},
)


def linear_grad(
    dy: Array, saved: Saved, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array]:
    """(dx, dw, db) of `linear`; db is None where b is.

    >>> import numpy as np
    >>> x, w = np.ones((2, 3)), np.ones((3, 1))
    >>> dx, dw, db = linear_grad(np.ones((2, 1)), linear(x, w)[1], w)
    >>> dx.shape, dw.tolist(), db
    ((2, 3), [[2.0], [2.0], [2.0]], None)
    """
    dw, db = linear_grad_weight(dy, **saved)
    return linear_grad_input(dy, w), dw, None if b is None else db


def conv2d(x: Array, w: Array, b: Array | None = None, **options: Any) -> tuple[Array, Saved]:
    """(y [n, o, oh, ow], saved) for x [n, c, h, w], w [o, c/groups, kh, kw] and b [o], or no b.

    The options are those of `tiledask.tile.layers.convolution.conv.conv2d`: stride, padding,
    dilation and groups.
    """
    return conv.conv2d(x, w, b, **options), {"x": x, "size": w.shape[2:], **options}


def conv2d_grad(
    dy: Array, saved: Saved, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array]:
    """(dx, dw, db) of `conv2d`; db is None where b is."""
    dw, db = conv2d_grad_weight(dy, saved)
    return conv2d_grad_input(dy, saved, w), dw, None if b is None else db


def conv2d_grad_input(dy: Array, saved: Saved, w: Array) -> Array:
    """dx of `conv2d`, the half of the backward that the layer before waits for."""
    told = {name: value for name, value in saved.items() if name != "size"}
    return conv.conv2d_grad_input(dy, w=w, **told)


def conv2d_grad_weight(dy: Array, saved: Saved) -> tuple[Array, Array]:
    """(dw, db) of `conv2d`."""
    return conv.conv2d_grad_weight(dy, **saved)


def max_pool2d(
    x: Array, size: Pair, stride: Pair | None = None, padding: Sides = 0
) -> tuple[Array, Saved]:
    """(the largest of each window, saved); windows are side by side without ``stride``."""
    return _max_pool2d(x, size, size if stride is None else stride, padding)


def avg_pool2d(
    x: Array, size: Pair, stride: Pair | None = None, padding: Sides = 0
) -> tuple[Array, Saved]:
    """(the mean of each window, saved); windows are side by side without ``stride``."""
    return _avg_pool2d(x, size, size if stride is None else stride, padding)


def flatten(x: Array) -> tuple[Array, tuple[int, ...]]:
    """(x as [n, the rest], saved); saves the shape.

    >>> import numpy as np
    >>> flatten(np.ones((2, 3, 4, 5)))[0].shape
    (2, 60)
    """
    array_namespace(x)
    return x.reshape(len(x), prod(x.shape[1:])), x.shape


def flatten_grad(dy: Array, saved: tuple[int, ...]) -> Array:
    """dx of `flatten`: dy in the shape of x."""
    return dy.reshape(saved)
