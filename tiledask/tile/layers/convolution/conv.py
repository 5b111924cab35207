"""Two-dimensional convolution (as this field says: w is not mirrored), by windows and BLAS.

    columns [g, c/g kh kw, oh ow n]     every window of every image as a column, copied
    y [g, o/g, oh ow n] = w [g, o/g, c/g kh kw] @ columns

Images come last inside, so that a copy moves a row of windows of all images at once and a group is
one product; outside they come first. Groups g split both channels: output channels of a group see
its input channels only. The columns are made again for the backward; x is all that is kept.
"""

from math import prod
from typing import Any

from tiledask.errors import KernelError
from tiledask.plan.whole import is_whole
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import op
from tiledask.tile.layers.convolution.im2col import Pair, Sides, Windows, windows
from tiledask.tile.layers.operands import check_floats, check_shape, rounded, wide
from tiledask.tile.layers.parameters import Parameter

__all__ = [
    "conv2d",
    "conv2d_grad_input",
    "conv2d_grad_weight",
    "conv2d_parameters",
]


def conv2d_parameters(
    channels: int, out: int, size: tuple[int, int], groups: int = 1, bias: bool = True
) -> dict[str, Parameter]:
    """w [out, channels/groups, kh, kw] with deviations of 1/sqrt(what a window holds), and b [out].

    >>> {name: p.shape for name, p in conv2d_parameters(1, 20, (3, 3)).items()}
    {'w': (20, 1, 3, 3), 'b': (20,)}
    """
    shape = (out, channels // groups, *size)
    w = Parameter(shape, "normal", (shape[1] * size[0] * size[1]) ** -0.5)
    return {"w": w, "b": Parameter((out,), "zeros")} if bias else {"w": w}


@op
def conv2d(
    x: Array,
    w: Array,
    b: Array | None = None,
    stride: Pair = 1,
    padding: Sides = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Array:
    """[n, o, oh, ow] for x [n, c, h, w], w [o, c/groups, kh, kw] and b [o], or no b.

    ``padding`` adds zeros: an integer, (rows, columns), or ((above, below), (left, right)). Raises
    KernelError for shapes that do not go together, and a window larger than the padded image.

    >>> import numpy as np
    >>> x = np.arange(9.0).reshape(1, 1, 3, 3)
    >>> conv2d(x, np.ones((1, 1, 2, 2))).tolist()
    [[[[8.0, 12.0], [20.0, 24.0]]]]
    """
    check_floats(x=x, w=w, b=b)
    check_shape("x", x, (None,) * 4, "images, channels, rows, columns")
    check_shape("w", w, (None,) * 4, "output channels, input channels of a group, rows, columns")
    if not is_whole(groups, 1) or x.shape[1] % groups or w.shape[0] % groups:
        raise KernelError(
            f"groups divide both channels, got groups={groups}, {x.shape[1]} input and "
            f"{w.shape[0]} output channels"
        )
    check_shape(
        "w",
        w,
        (None, x.shape[1] // groups, None, None),
        f"output channels, those of x over {groups} groups, rows, columns",
    )
    geometry = windows(w.shape[2:], stride, padding, dilation)
    shape = (w.shape[0], *geometry.out(x.shape[2:]), len(x))
    y = (_by_group(w, groups) @ _columns(x, geometry, groups)).reshape(shape)
    if b is not None:
        check_shape("b", b, (w.shape[0],), "one for each output channel")
        y += wide(b)[:, None, None, None]
    return _images_first(rounded(y, x))


@op
def conv2d_grad_input(dy: Array, x: Array, w: Array, groups: int = 1, **told: Any) -> Array:
    """dx [n, c, h, w]: each window's share of dy through w, summed where windows overlap."""
    check_floats(dy=dy, w=w)
    geometry = windows(w.shape[2:], **told)
    d = _by_group(_images_last(dy), groups)
    columns = _by_group(w, groups).swapaxes(-1, -2) @ d
    parts = columns.reshape(x.shape[1], *geometry.size, *dy.shape[2:], len(x))
    return _images_first(rounded(geometry.fold(parts, x.shape[2:]), dy))


@op
def conv2d_grad_weight(
    dy: Array, x: Array, size: Pair, groups: int = 1, **told: Any
) -> tuple[Array, Array]:
    """(dw [o, c/groups, kh, kw], db [o]) of windows of ``size``."""
    check_floats(dy=dy, x=x)
    geometry = windows(size, **told)
    d = _by_group(_images_last(dy), groups)
    dw = d @ _columns(x, geometry, groups).swapaxes(-1, -2)  # [g, o/g, c/g kh kw]
    dw = dw.reshape(dy.shape[1], x.shape[1] // groups, *geometry.size)
    return rounded(dw, dy), rounded(wide(dy).sum(axis=(0, 2, 3)), dy)


@op
def _add_channels(y: Array, b: Array) -> Array:
    return y + b[:, None, None]


@op
def _channel_sums(dy: Array) -> Array:
    return dy.sum(axis=(0, 2, 3))


def _columns(x: Array, geometry: Windows, groups: int) -> Array:
    """[g, c/g kh kw, oh ow n]."""
    view = geometry.unfold(_images_last(x))
    c, kh, kw, oh, ow, n = view.shape
    return view.reshape(groups, c // groups * kh * kw, oh * ow * n)


def _by_group(x: Array, groups: int) -> Array:
    """[g, channels / g, the rest] for x [channels, ...]."""
    return wide(x).reshape(groups, x.shape[0] // groups, prod(x.shape[1:]))  # there may be none


def _images_last(x: Array) -> Array:
    """[c, h, w, n] for x [n, c, h, w], copied, in the type in which it is summed."""
    xp = array_namespace(x)
    return xp.ascontiguousarray(xp.moveaxis(wide(x), 0, -1))


def _images_first(y: Array) -> Array:
    """[n, c, h, w] for y [c, h, w, n], copied."""
    xp = array_namespace(y)
    return xp.ascontiguousarray(xp.moveaxis(y, -1, 0))
