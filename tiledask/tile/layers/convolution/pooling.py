"""Pooling: the largest, or the mean, of each window, channel by channel; and flatten."""

from math import prod
from typing import NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.convolution.im2col import Pair, Sides, Windows, windows
from tiledask.tile.layers.operands import check_floats, check_shape, rounded, wide

__all__ = [
    "KeptMaxPool",
    "KeptMeanPool",
    "avg_pool2d",
    "avg_pool2d_grad",
    "flatten",
    "flatten_grad",
    "max_pool2d",
    "max_pool2d_grad",
]


class KeptMaxPool(NamedTuple):
    """What `max_pool2d` keeps."""

    winner: Array
    """[n, c, oh, ow] the largest element's number in its window, row by row."""
    windows: Windows
    image: tuple[int, int]


class KeptMeanPool(NamedTuple):
    """What `avg_pool2d` keeps: no array."""

    windows: Windows
    image: tuple[int, int]


def max_pool2d(
    x: Array, size: Pair, stride: Pair | None = None, padding: Sides = 0
) -> tuple[Array, KeptMaxPool]:
    """(y [n, c, oh, ow], kept) for x [n, c, h, w]; windows are side by side without ``stride``.

    Padding never wins. Of equal elements the first does, and gets the whole gradient.

    >>> import numpy as np
    >>> max_pool2d(np.arange(16.0).reshape(1, 1, 4, 4), 2)[0].tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    xp = check_floats(x=x)
    geometry = _geometry(size, stride, padding)
    view = _unfolded(x, geometry, fill=-np.inf)
    channels, kh, kw, oh, ow = view.shape
    flat = view.reshape(channels, kh * kw, oh, ow)
    winner = wide(flat).argmax(axis=1)
    y = xp.take_along_axis(flat, winner[:, None], axis=1).reshape(*x.shape[:2], oh, ow)
    small = np.uint8 if kh * kw <= 256 else np.int64
    return y, KeptMaxPool(winner.astype(small).reshape(y.shape), geometry, x.shape[2:])


def max_pool2d_grad(dy: Array, kept: KeptMaxPool) -> Array:
    """dx of `max_pool2d`: dy where the largest element was, summed where windows overlap."""
    xp = check_floats(dy=dy)
    winner, geometry, image = kept
    hot = xp.arange(prod(geometry.size))[:, None, None] == winner[:, :, None]
    return _folded(wide(dy)[:, :, None] * hot, dy, geometry, image)


def avg_pool2d(
    x: Array, size: Pair, stride: Pair | None = None, padding: Sides = 0
) -> tuple[Array, KeptMeanPool]:
    """(y [n, c, oh, ow], kept) for x [n, c, h, w]; windows are side by side without ``stride``.

    Padding counts, as zeros, so that every window is divided by its size, as PyTorch does it by
    default; TensorFlow divides by the elements that are inside of the image.

    >>> import numpy as np
    >>> avg_pool2d(np.arange(16.0).reshape(1, 1, 4, 4), 2)[0].tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    check_floats(x=x)
    geometry = _geometry(size, stride, padding)
    view = _unfolded(wide(x), geometry)
    # element by element of the window: several times faster than a sum over two axes of the view
    parts = [view[:, i, j] for i in range(geometry.size[0]) for j in range(geometry.size[1])]
    y = sum(parts[1:], start=parts[0]) / prod(geometry.size)
    return rounded(y.reshape(*x.shape[:2], *y.shape[1:]), x), KeptMeanPool(geometry, x.shape[2:])


def avg_pool2d_grad(dy: Array, kept: KeptMeanPool) -> Array:
    """dx of `avg_pool2d`: each window's dy over its size, summed where windows overlap."""
    xp = check_floats(dy=dy)
    geometry, image = kept
    n, c, oh, ow = dy.shape
    each = wide(dy)[:, :, None] / prod(geometry.size)
    return _folded(xp.broadcast_to(each, (n, c, prod(geometry.size), oh, ow)), dy, geometry, image)


def flatten(x: Array) -> tuple[Array, tuple[int, ...]]:
    """(x as [n, the rest], kept); keeps the shape.

    >>> import numpy as np
    >>> flatten(np.ones((2, 3, 4, 5)))[0].shape
    (2, 60)
    """
    array_namespace(x)
    return x.reshape(len(x), prod(x.shape[1:])), x.shape


def flatten_grad(dy: Array, kept: tuple[int, ...]) -> Array:
    """dx of `flatten`: dy in the shape of x."""
    return dy.reshape(kept)


def _geometry(size: Pair, stride: Pair | None, padding: Sides) -> Windows:
    geometry = windows(size, size if stride is None else stride, padding)
    for extent, sides in zip(geometry.size, geometry.padding, strict=True):
        if max(sides) >= extent:
            raise KernelError(
                f"a window holds some of the image, so padding is less than its size, got padding "
                f"{max(sides)} and size {extent}"
            )
    return geometry


def _unfolded(x: Array, geometry: Windows, fill: float = 0.0) -> Array:
    """[n c, kh, kw, oh, ow], a view."""
    check_shape("x", x, (None,) * 4, "images, channels, rows, columns")
    return geometry.unfold(x.reshape(-1, *x.shape[2:], 1), fill)[..., 0]


def _folded(parts: Array, dy: Array, geometry: Windows, image: tuple[int, int]) -> Array:
    """dx [n, c, h, w] for parts [n, c, kh kw, oh, ow]."""
    n, c, oh, ow = dy.shape
    dx = geometry.fold(parts.reshape(n * c, *geometry.size, oh, ow, 1), image)
    return rounded(dx, dy).reshape(n, c, *image)
