"""Layers of images: convolution, and means of windows; windows, and what they hold summed back.

    unfold   x [n, c, h, w] -> [n, c, kh, kw, oh, ow]      every window's elements, a view
    fold     [n, c, kh, kw, oh, ow] -> [n, c, h, w]        each element, summed over its windows

    columns [c kh kw, oh ow n]     every window of every image as a column, copied
    y [o, oh ow n] = w [o, c kh kw] @ columns

Convolution as this field has it: w is not mirrored. Images come last inside, so that a copy moves
a row of windows of all images at once; outside they come first. The columns are made again for the
backward; x is all that is saved.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.plan.whole import is_whole, whole_rule
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import Saved, layer
from tiledask.tile.layers.operands import rounded, wide
from tiledask.tile.layers.random import Parameter

__all__ = ["avg_pool2d", "avg_pool2d_grad", "conv2d", "conv2d_grad", "conv2d_grad_input"]
__all__ += ["conv2d_grad_weight", "conv2d_parameters", "windows"]

Pair = int | tuple[int, int]
"""Rows and columns; an integer stands for both."""
Sides = int | tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]
"""Rows and columns added: everywhere, (rows, columns), or ((above, below), (left, right))."""


@dataclass(frozen=True)
class Windows:
    """The geometry of windows, by rows and columns. Made by `windows`."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: tuple[int, int]

    def out(self, image: tuple[int, int]) -> tuple[int, int]:
        """How many windows there are down and across an image of (h, w).

        Raises KernelError if a window is larger than the image with its padding.

        >>> windows(5, stride=2, padding=(0, (1, 1))).out((5, 8))
        (1, 3)
        """
        reach = [(size - 1) * step + 1 for size, step in zip(self.size, self.dilation, strict=True)]
        padded = [extent + sum(sides) for extent, sides in zip(image, self.padding, strict=True)]
        if reach[0] > padded[0] or reach[1] > padded[1]:
            raise KernelError(
                f"a window fits into the padded image, got one of {reach[0]} x {reach[1]} and an "
                f"image of {padded[0]} x {padded[1]}; use more padding or a smaller window"
            )
        (down, across), (rows, columns) = self.stride, padded
        return (rows - reach[0]) // down + 1, (columns - reach[1]) // across + 1

    def unfold(self, x: Array) -> Array:
        """A view [a, kh, kw, oh, ow, z] of x [a, h, w, z] with its padding; only read it."""
        oh, ow = self.out(x.shape[1:3])
        (above, below), (left, right) = self.padding
        (a, h, w, z), xp, padded = x.shape, array_namespace(x), x
        if above + below + left + right:
            padded = xp.zeros((a, h + above + below, w + left + right, z), x.dtype)
            padded[:, above : above + h, left : left + w] = x
        first, down, across, last = padded.strides
        (dy, dx), (sy, sx) = self.dilation, self.stride
        strides = first, down * dy, across * dx, down * sy, across * sx, last
        return xp.lib.stride_tricks.as_strided(padded, (a, *self.size, oh, ow, z), strides)

    def fold(self, parts: Array, image: tuple[int, int]) -> Array:
        """[a, h, w, z] for parts [a, kh, kw, oh, ow, z], the transpose of `unfold`."""
        (above, below), (left, right) = self.padding
        (h, w), (a, _, _, oh, ow, z) = image, parts.shape
        shape = (a, h + above + below, w + left + right, z)
        total = array_namespace(parts).zeros(shape, parts.dtype)
        (dy, dx), (sy, sx) = self.dilation, self.stride
        for i, j in np.ndindex(*self.size):  # of a window, and where windows have it
            rows = slice(i * dy, i * dy + sy * (oh - 1) + 1, sy)
            columns = slice(j * dx, j * dx + sx * (ow - 1) + 1, sx)
            total[:, rows, columns] += parts[:, i, j]
        return total[:, above : above + h, left : left + w]


def windows(size: Pair, stride: Pair = 1, padding: Sides = 0, dilation: Pair = 1) -> Windows:
    """`Windows` from integers or pairs. Padding may differ on each side, for a device that has an
    image's upper rows and adds zeros above only; what no window reaches is left out at the end.

    >>> windows(3, padding=((1, 0), (1, 1))).out((4, 4))
    (3, 4)
    """
    above, left = padding if isinstance(padding, Iterable) else (padding, padding)
    sides = _pair("padding", above, 0), _pair("padding", left, 0)
    size, stride = _pair("size", size, 1), _pair("stride", stride, 1)
    return Windows(size, stride, sides, _pair("dilation", dilation, 1))


def _pair(name: str, value: Any, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(pair) != 2 or not all(is_whole(v, least) for v in pair):
        raise KernelError(f"{name} must be {whole_rule(least)}, or two, got {value!r}")
    return int(pair[0]), int(pair[1])


# -- convolution -----------------------------------------------------------------------------------


def conv2d_parameters(channels: int, out: int, size: tuple[int, int]) -> dict[str, Parameter]:
    """w [out, channels, kh, kw] with deviations of 1/sqrt(what a window holds), and b [out].

    >>> {name: p.shape for name, p in conv2d_parameters(1, 20, (3, 3)).items()}
    {'w': (20, 1, 3, 3), 'b': (20,)}
    """
    w = Parameter((out, channels, *size), "normal", (channels * size[0] * size[1]) ** -0.5)
    return {"w": w, "b": Parameter((out,), "zeros")}


@layer("x:nchw w:ocyx b:o -> noqp", size=lambda given: given["w"].shape[2:])
def conv2d(
    x: Array,
    w: Array,
    b: Array | None = None,
    stride: Pair = 1,
    padding: Sides = 0,
    dilation: Pair = 1,
) -> Array:
    """[n, o, oh, ow] for x [n, c, h, w], w [o, c, kh, kw] and b [o], or no b.

    ``padding`` adds zeros: an integer, (rows, columns), or ((above, below), (left, right)).

    >>> x = np.arange(9.0).reshape(1, 1, 3, 3)
    >>> conv2d(x, np.ones((1, 1, 2, 2)))[0].tolist()
    [[[[8.0, 12.0], [20.0, 24.0]]]]
    """
    geometry = windows(w.shape[2:], stride, padding, dilation)
    shape = (w.shape[0], *geometry.out(x.shape[2:]), len(x))
    y = (_flat(wide(w)) @ _columns(x, geometry)).reshape(shape)
    if b is not None:
        y += wide(b)[:, None, None, None]
    return _images_first(rounded(y, x))


@conv2d.grad
def conv2d_grad_input(dy: Array, x: Array, w: Array, **window: Any) -> Array:
    """dx [n, c, h, w]: each window's share of dy through w, summed where windows overlap."""
    geometry = windows(w.shape[2:], **window)
    columns = _flat(wide(w)).T @ _flat(_images_last(dy))
    parts = columns.reshape(x.shape[1], *geometry.size, *dy.shape[2:], len(x))
    return _images_first(rounded(geometry.fold(parts, x.shape[2:]), dy))


@conv2d.grad
def conv2d_grad_weight(
    dy: Array, x: Array, size: Pair, bias: bool = True, **window: Any
) -> tuple[Array, Array | None]:
    """(dw [o, c, kh, kw], db [o]) of windows of ``size``; without a ``bias`` db is None."""
    geometry = windows(size, **window)
    dw = _flat(_images_last(dy)) @ _columns(x, geometry).T  # [o, c kh kw]
    dw = dw.reshape(dy.shape[1], x.shape[1], *geometry.size)
    return rounded(dw, dy), rounded(wide(dy).sum(axis=(0, 2, 3)), dy) if bias else None


def conv2d_grad(
    dy: Array, saved: Saved, w: Array, b: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """(dx, dw, db) of `conv2d`; db is None where b is."""
    with_bias = saved | {"bias": b is not None}
    return conv2d_grad_input(dy, saved, w), *conv2d_grad_weight(dy, with_bias)


def _columns(x: Array, geometry: Windows) -> Array:
    """[c kh kw, oh ow n]."""
    view = geometry.unfold(_images_last(x))
    return view.reshape(prod(view.shape[:3]), prod(view.shape[3:]))


def _flat(x: Array) -> Array:
    """[channels, the rest] for x [channels, ...]."""
    return x.reshape(x.shape[0], prod(x.shape[1:]))  # there may be none


def _images_last(x: Array) -> Array:
    """[c, h, w, n] for x [n, c, h, w], copied, in the type in which it is summed."""
    xp = array_namespace(x)
    return xp.ascontiguousarray(xp.moveaxis(wide(x), 0, -1))


def _images_first(y: Array) -> Array:
    """[n, c, h, w] for y [c, h, w, n], copied."""
    xp = array_namespace(y)
    return xp.ascontiguousarray(xp.moveaxis(y, -1, 0))


# -- pooling: the mean of each window, channel by channel ------------------------------------------


@layer("x:nchw -> ncqp", image=lambda given: given["x"].shape[2:])
def avg_pool2d(x: Array, size: Pair, stride: Pair | None = None, padding: Sides = 0) -> Array:
    """The mean of each window [n, c, oh, ow], for x [n, c, h, w]; side by side without stride.

    Padding counts, as zeros: every window is divided by its size, as PyTorch does it by default.

    >>> avg_pool2d(np.arange(16.0).reshape(1, 1, 4, 4), 2)[0].tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    geometry = windows(size, size if stride is None else stride, padding)
    view = geometry.unfold(wide(x).reshape(-1, *x.shape[2:], 1))
    # element by element of the window: several times faster than a sum over two axes of the view
    parts = [view[:, i, j] for i, j in np.ndindex(*geometry.size)]
    y = sum(parts[1:], start=parts[0]) / prod(geometry.size)
    return rounded(y.reshape(*x.shape[:2], *y.shape[1:3]), x)


@avg_pool2d.grad
def avg_pool2d_grad(
    dy: Array,
    image: tuple[int, int],
    size: Pair,
    stride: Pair | None = None,
    padding: Sides = 0,
) -> Array:
    """dx: each window's dy over its size, summed where windows overlap."""
    geometry = windows(size, size if stride is None else stride, padding)
    (n, c, *out), (kh, kw) = dy.shape, geometry.size
    each = (wide(dy) / (kh * kw)).reshape(n * c, 1, 1, *out, 1)
    parts = array_namespace(dy).broadcast_to(each, (n * c, kh, kw, *out, 1))
    return rounded(geometry.fold(parts, image), dy).reshape(n, c, *image)
