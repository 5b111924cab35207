"""Pooling: the largest, or the mean, of each window, channel by channel."""

from math import prod

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array
from tiledask.tile.layers.by_name import op
from tiledask.tile.layers.convolution.im2col import Pair, Sides, Windows, windows
from tiledask.tile.layers.operands import check_floats, check_shape, rounded, wide

__all__ = ["avg_pool2d", "avg_pool2d_grad", "max_pool2d", "max_pool2d_grad"]


@op
def max_pool2d(x: Array, size: Pair, stride: Pair = 1, padding: Sides = 0) -> tuple[Array, Array]:
    """[n, c, oh, ow] for x [n, c, h, w], a window every ``stride``.

    Padding never wins. Of equal elements the first does, and gets the whole gradient. And the
    largest element's number in its window, row by row.

    >>> import numpy as np
    >>> max_pool2d(np.arange(16.0).reshape(1, 1, 4, 4), 2, 2)[0].tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    xp = check_floats(x=x)
    view = _unfolded(x, _geometry(size, stride, padding), fill=-np.inf)
    channels, kh, kw, oh, ow = view.shape
    flat = view.reshape(channels, kh * kw, oh, ow)
    winner = wide(flat).argmax(axis=1)
    y = xp.take_along_axis(flat, winner[:, None], axis=1).reshape(*x.shape[:2], oh, ow)
    return y, winner.astype(np.uint8 if kh * kw <= 256 else np.int64).reshape(y.shape)


@op
def max_pool2d_grad(
    dy: Array,
    winner: Array,
    image: tuple[int, int],
    size: Pair,
    stride: Pair = 1,
    padding: Sides = 0,
) -> Array:
    """dx: dy where the largest element was, summed where windows overlap."""
    xp, geometry = check_floats(dy=dy), _geometry(size, stride, padding)
    hot = xp.arange(prod(geometry.size))[:, None, None] == winner[:, :, None]
    return _folded(wide(dy)[:, :, None] * hot, dy, geometry, image)


@op
def avg_pool2d(x: Array, size: Pair, stride: Pair = 1, padding: Sides = 0) -> Array:
    """[n, c, oh, ow] for x [n, c, h, w], a window every ``stride``.

    Padding counts, as zeros, so that every window is divided by its size, as PyTorch does it by
    default; TensorFlow divides by the elements that are inside of the image.

    >>> import numpy as np
    >>> avg_pool2d(np.arange(16.0).reshape(1, 1, 4, 4), 2, 2).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    check_floats(x=x)
    geometry = _geometry(size, stride, padding)
    view = _unfolded(wide(x), geometry)
    # element by element of the window: several times faster than a sum over two axes of the view
    parts = [view[:, i, j] for i in range(geometry.size[0]) for j in range(geometry.size[1])]
    y = sum(parts[1:], start=parts[0]) / prod(geometry.size)
    return rounded(y.reshape(*x.shape[:2], *y.shape[1:]), x)


@op
def avg_pool2d_grad(
    dy: Array,
    image: tuple[int, int],
    size: Pair,
    stride: Pair = 1,
    padding: Sides = 0,
) -> Array:
    """dx: each window's dy over its size, summed where windows overlap."""
    xp, geometry = check_floats(dy=dy), _geometry(size, stride, padding)
    n, c, oh, ow = dy.shape
    each = wide(dy)[:, :, None] / prod(geometry.size)
    return _folded(xp.broadcast_to(each, (n, c, prod(geometry.size), oh, ow)), dy, geometry, image)


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
