"""A convolution of what one rank holds, which may be nothing at all."""

from typing import Any, NamedTuple

from tiledask.tile import layers as L
from tiledask.tile.backend import array_namespace
from tiledask.tile.layers.convolution.im2col import windows

__all__ = ["Empty", "conv2d", "conv2d_grad"]


class Empty(NamedTuple):
    """What a convolution without an output keeps."""

    x: Any


def conv2d(
    x: Any, w: Any, b: Any = None, rows: int | None = None, **options: Any
) -> tuple[Any, Any]:
    """(y, kept) as of `tiledask.tile.layers.conv2d`; w may have no output channel.

    ``rows``: of the output, where the rank's share says how many: with 0 nothing is read.

    >>> import numpy as np
    >>> conv2d(np.ones((1, 2, 5, 5)), np.ones((0, 2, 3, 3)))[0].shape
    (1, 0, 3, 3)
    """
    if w.shape[0] and rows != 0:
        return L.conv2d(x, w, b, **options)
    window = windows(w.shape[2:], *(options.get(name, value) for name, value in _DEFAULTS.items()))
    # without a row to read a window need not fit into the rows there are
    image = (
        x.shape[2:] if rows is None else ((window.size[0] - 1) * window.dilation[0] + 1, x.shape[3])
    )
    oh, ow = window.out(image)
    shape = (len(x), w.shape[0], oh if rows is None else rows, ow)
    return array_namespace(x).zeros(shape, x.dtype), Empty(x)


def conv2d_grad(dy: Any, kept: Any, w: Any, b: Any = None) -> tuple[Any, Any, Any]:
    """(dx, dw, db); zeros where there was no output."""
    if not isinstance(kept, Empty):
        return L.conv2d_grad(dy, kept, w, b)
    xp = array_namespace(kept.x)
    return xp.zeros_like(kept.x), xp.zeros_like(w), None if b is None else xp.zeros_like(b)


_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1}
