"""Convolutions and pooling over the ranks of a group, written into a program.

    conv             y [.., mine, ..] of all x                       dx is a sum over the ranks
      in rows        own rows of the image, and halos                dw and db are sums
    pool             in rows: halos only where windows cross

An array is [images, channels, rows, columns]. What has no number is made of zeros, not computed.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tiledask.plan.collectives.rows import RowSplit
from tiledask.plan.program.making.layers import TensorLayers
from tiledask.plan.program.making.tape import Tape, Value, Written, layer

__all__ = ["WindowTerms", "conv", "flat", "part", "pool"]

ROWS = 2
"""The dimension of an image's rows."""


class WindowTerms(NamedTuple):
    """Windows over rows and columns, as kernels take them."""

    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """((above, below), (left, right))."""
    dilation: tuple[int, int] = (1, 1)

    def out(self, *image: int) -> tuple[int, ...]:
        """How many windows there are over rows, and over columns."""
        each = zip(image, self.padding, self.size, self.dilation, self.stride, strict=True)
        reach = ((n + sum(ends) - (k - 1) * d - 1, step) for n, ends, k, d, step in each)
        return tuple(max(0, last // step + 1) for last, step in reach)

    def args(self, *names: str) -> dict[str, Any]:
        """Some of it by name, without what is usual."""
        usual = self._field_defaults
        return {n: v for n in names if (v := getattr(self, n)) != usual.get(n)}


@layer
def conv(
    layers: TensorLayers,
    x: Value,
    unit: str,
    window: WindowTerms,
    split: RowSplit | None = None,
    label: str = "",
    summed: bool = True,
) -> Written:
    """The output channels of the w that is here, of all of x; or, by a ``split``, the output rows
    of this rank's rows. ``summed``: whether dw and db then are, over the ranks. A unit's weights
    are w and, if there is one, b."""
    tape, weight = layers.tape, layers.weights.weight
    names = [name for name in "wb" if name in layers.weights.shapes[unit]]
    here, read = _windows(layers, x, window, split, label)
    w, *b = (weight(unit, name) for name in names)
    args = here.args("stride", "padding", "dilation")
    y = tape.value("y", (x.shape[0], w.shape[0], *here.out(*read.shape[ROWS:])))
    out, *each = w.shape
    args["product"] = out, prod(each), prod(y.shape) // max(1, out)
    _computed(tape, y, "conv2d", (read, w, *b), y, **args)
    dy = yield y
    dx, (w, *b) = tape.value("dx", read.shape), (weight(unit, name) for name in names)
    _computed(tape, dy, "conv2d_grad_input", (dy, read, w), dx, like=1, **args)
    if split:
        dx = _given_back(layers, dx, x, split, label)
    found = {n: tape.value(f"d{n}", g.shape) for n, g in zip(names, (w, *b), strict=True)}
    args = here.args("size") | args
    _computed(tape, dy, "conv2d_grad_weight", (dy, read), *found.values(), **args)
    if summed and split:
        found = tape.sum_small(found, None, "backward/dw db", (layers.axis,), layers.ranks, "tp")
    layers.weights.bring(unit, found)
    return [(x, dx if split else layers.reduce_output(dx, "backward/dx"))]


@layer
def pool(
    layers: TensorLayers,
    x: Value,
    window: WindowTerms,
    split: RowSplit | None = None,
    label: str = "",
) -> Written:
    """Means of windows: of all rows, or by a ``split`` the output rows of this rank's rows."""
    tape, (here, read) = layers.tape, _windows(layers, x, window, split, label)
    args, image = here.args("size", "stride", "padding"), read.shape[ROWS:]
    y = tape.value("y", (*read.shape[:ROWS], *here.out(*image)))
    _computed(tape, y, "avg_pool2d", (read,), y, **args)
    dy = yield y
    dx = tape.value("dx", read.shape)
    _computed(tape, dy, "avg_pool2d_grad", (dy,), dx, **args, image=image)
    return [(x, _given_back(layers, dx, x, split, label) if split else dx)]


# -- rows and halos -----------------------------------------------------------------------------


def _windows(
    layers: TensorLayers, x: Value, window: WindowTerms, split: RowSplit | None, label: str
) -> tuple[WindowTerms, Value]:
    """(this rank's windows, the rows that they read)."""
    if not split:
        return window, x
    rank, (start, stop) = layers.rank, split.local[layers.rank]
    if split.strips:
        held, name = x.shape[ROWS] + sum(split.widths[rank]), f"{label}forward/halo"
        ends = {"before": split.before, "after": split.after, "extents": split.rows}
        x = layers.along("halo_exchange", x, name, ROWS, split.rows, held, **ends)
    read = part(layers.tape, x, ROWS, (start, stop, x.shape[ROWS]), stop - start)
    return window._replace(padding=(split.zeros[rank], window.padding[1])), read


def _given_back(layers: TensorLayers, d: Value, x: Value, split: RowSplit, label: str) -> Value:
    """dx of the own rows for that of the rows that were read."""
    (start, stop), held = split.local[layers.rank], sum(split.widths[layers.rank])
    held += split.rows[layers.rank]
    if held != d.shape[ROWS]:  # zeros elsewhere
        args: dict[str, Any] = {"dim": ROWS, "at": (start, stop, held)}
        d = layers.tape.make("part_grad", (d,), "dx", d.resized(ROWS, held), **args)
    if split.strips:
        rows, name = x.shape[ROWS], f"{label}backward/halo"
        ends = {"before": split.before, "after": split.after, "extents": split.rows}
        d = layers.along("halo_reduce", d, name, ROWS, split.rows, rows, **ends)
    return d


# -- on one rank --------------------------------------------------------------------------------


@layer
def flat(layers: TensorLayers, x: Value) -> Written:
    """[images, all that an image has]."""
    tape, shape = layers.tape, (x.shape[0], prod(x.shape[1:]))
    dy = yield tape.make("reshape", (x,), "y", shape, shape=shape)
    return [(x, tape.make("reshape", (dy,), "y", x.shape, shape=x.shape))]


def part(tape: Tape, x: Value, dim: int, at: tuple[Any, ...], extent: int) -> Value:
    """``extent`` indices ``at`` along ``dim``; without a rule: of a gradient, for instance."""
    if extent == x.shape[dim]:
        return x
    args: dict[str, Any] = {"dim": dim, "at": at}
    return tape.make("part", (x,), "part", x.resized(dim, extent), x.itemsize, **args)


def _computed(
    tape: Tape, of: Value, kernel: str, reads: Sequence[Value], *made: Value, like: int = 0,
    **args: Any,
) -> None:  # fmt: skip
    """What a kernel makes; zeros where ``of``, from which it is made, has no number."""
    if of.size:
        tape.do(kernel, reads, made, **args)
        return
    for y in made:
        tape.do("zeros", (reads[like],), (y,), shape=y.shape)
