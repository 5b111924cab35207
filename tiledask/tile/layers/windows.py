"""The windows of an image, as a view, and the transpose: what windows hold, summed back.

unfold   x [n, c, h, w] -> [n, c, kh, kw, oh, ow]      every window's elements
fold     [n, c, kh, kw, oh, ow] -> [n, c, h, w]        each element, summed over its windows
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.plan.whole import is_whole, whole_rule
from tiledask.tile.backend import Array, array_namespace

__all__ = ["Pair", "Sides", "Windows", "windows"]

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
        found = []
        for axis, name in enumerate(("rows", "columns")):
            (before, after), size = self.padding[axis], self.size[axis]
            reach = (size - 1) * self.dilation[axis] + 1
            extent = image[axis] + before + after
            if reach > extent:
                raise KernelError(
                    f"a window must fit into the padded image, got a window of {reach} {name} "
                    f"(size {size}, dilation {self.dilation[axis]}) and {image[axis]} + {before} + "
                    f"{after} {name}; use {reach - extent} more of padding or a smaller window"
                )
            found.append((extent - reach) // self.stride[axis] + 1)
        return found[0], found[1]

    def unfold(self, x: Array, fill: float = 0.0) -> Array:
        """A view [a, kh, kw, oh, ow, z] of x [a, h, w, z] padded with ``fill``; only read it."""
        oh, ow = self.out(x.shape[1:3])
        (above, below), (left, right) = self.padding
        padded = x
        if above + below + left + right:
            a, h, w, z = x.shape
            shape = (a, h + above + below, w + left + right, z)
            padded = array_namespace(x).full(shape, fill, x.dtype)
            padded[:, above : above + h, left : left + w] = x
        first, down, across, last = padded.strides
        (dy, dx), (sy, sx) = self.dilation, self.stride
        return array_namespace(x).lib.stride_tricks.as_strided(
            padded,
            (x.shape[0], *self.size, oh, ow, x.shape[3]),
            (first, down * dy, across * dx, down * sy, across * sx, last),
        )

    def fold(self, parts: Array, image: tuple[int, int]) -> Array:
        """[a, h, w, z] for parts [a, kh, kw, oh, ow, z], the transpose of `unfold`."""
        (above, below), (left, right) = self.padding
        h, w = image
        shape = (parts.shape[0], h + above + below, w + left + right, parts.shape[5])
        total = array_namespace(parts).zeros(shape, parts.dtype)
        oh, ow = parts.shape[3:5]
        (dy, dx), (sy, sx) = self.dilation, self.stride
        for i, j in np.ndindex(*self.size):  # of a window, and where windows have it
            rows = slice(i * dy, i * dy + sy * (oh - 1) + 1, sy)
            columns = slice(j * dx, j * dx + sx * (ow - 1) + 1, sx)
            total[:, rows, columns] += parts[:, i, j]
        return total[:, above : above + h, left : left + w]


def windows(size: Pair, stride: Pair = 1, padding: Sides = 0, dilation: Pair = 1) -> Windows:
    """`Windows` from integers or pairs. Raises KernelError for what is not positive.

    Padding may differ on each side, for a device that has an image's upper rows and adds zeros
    above only. Windows begin every ``stride``; rows and columns that no window reaches are left
    out at the end.

    >>> windows(3, padding=((1, 0), (1, 1))).out((4, 4))
    (3, 4)
    """
    size, stride = _pair("size", size, 1), _pair("stride", stride, 1)
    axes = tuple(padding) if isinstance(padding, Iterable) else (padding, padding)
    if len(axes) != 2:
        raise KernelError(
            f"padding is an integer, (rows, columns) or ((above, below), (left, right)), got "
            f"{padding!r}"
        )
    sides = _pair("padding", axes[0], 0), _pair("padding", axes[1], 0)
    return Windows(size, stride, sides, _pair("dilation", dilation, 1))


def _pair(name: str, value: Any, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(pair) != 2 or not all(is_whole(v, least) for v in pair):
        raise KernelError(f"{name} must be {whole_rule(least)}, or two, got {value!r}")
    return int(pair[0]), int(pair[1])
