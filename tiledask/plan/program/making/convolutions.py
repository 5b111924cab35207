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
from tiledask.plan.program.making.tape import Value, Written, layer

__all__ = ["ConvolutionLayers", "WindowTerms"]

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


class ConvolutionLayers(TensorLayers):
    """The layers of some images on one rank of a group; weights are w and, if there is one, b."""

    @layer
    def conv(
        self,
        x: Value,
        unit: str,
        window: WindowTerms,
        split: RowSplit | None = None,
        label: str = "",
        summed: bool = True,
    ) -> Written:
        """The output channels of the w that is here, of all of x; or, by a ``split``, the output
        rows of this rank's rows. ``summed``: whether dw and db then are, over the ranks."""
        names = [name for name in "wb" if self.weights.has(unit, name)]
        here, read = self._windows(x, window, split, label)
        w, *b = (self.weights.weight(unit, name) for name in names)
        args = here.args("stride", "padding", "dilation")
        y = self.tape.value("y", (x.shape[0], w.shape[0], *here.out(*read.shape[ROWS:])))
        self._computed(y, "conv2d", (read, w, *b), y, **args, product=_product(y, w))
        dy = yield y
        args["product"], dx = _product(dy, w), self.tape.value("dx", read.shape)
        w, *b = (self.weights.weight(unit, name) for name in names)
        self._computed(dy, "conv2d_grad_input", (dy, read, w), dx, like=1, **args)
        if split:
            dx = self._given_back(dx, x, split, label)
        found = {n: self.tape.value(f"d{n}", g.shape) for n, g in zip(names, (w, *b), strict=True)}
        args = here.args("size") | args
        self._computed(dy, "conv2d_grad_weight", (dy, read), *found.values(), **args)
        if summed and split:
            found = self.summed_small(found, "backward/dw db")
        self.weights.bring(unit, found)
        return [(x, dx if split else self.reduce_output(dx, "backward/dx"))]

    @layer
    def pool(
        self, x: Value, window: WindowTerms, split: RowSplit | None = None, label: str = ""
    ) -> Written:
        """Means of windows: of all rows, or by a ``split`` the output rows of this rank's rows."""
        here, read = self._windows(x, window, split, label)
        args, image = here.args("size", "stride", "padding"), read.shape[ROWS:]
        y = self.tape.value("y", (*read.shape[:ROWS], *here.out(*image)))
        self._computed(y, "avg_pool2d", (read,), y, **args)
        dy = yield y
        dx = self.tape.value("dx", read.shape)
        self._computed(dy, "avg_pool2d_grad", (dy,), dx, **args, image=image)
        return [(x, self._given_back(dx, x, split, label) if split else dx)]

    # -- rows and halos -------------------------------------------------------------------------

    def _windows(
        self, x: Value, window: WindowTerms, split: RowSplit | None, label: str
    ) -> tuple[WindowTerms, Value]:
        """(this rank's windows, the rows that they read)."""
        if not split:
            return window, x
        slab, at = split.slabs[self.rank], split.local(self.rank)
        if split.strips:
            held = x.shape[ROWS] + sum(split.widths(self.rank))
            x = self._halo("halo_exchange", x, f"{label}forward/halo", split, held)
        read = self.part(x, ROWS, (at.start, at.stop, x.shape[ROWS]), at.stop - at.start)
        return window._replace(padding=((slab.above, slab.below), window.padding[1])), read

    def _given_back(self, d: Value, x: Value, split: RowSplit, label: str) -> Value:
        """dx of the own rows for that of the rows that were read."""
        at, held = split.local(self.rank), split.rows[self.rank] + sum(split.widths(self.rank))
        if held != d.shape[ROWS]:  # zeros elsewhere
            args: dict[str, Any] = {"dim": ROWS, "at": (at.start, at.stop, held)}
            d = self.tape.make("part_grad", (d,), "dx", d.resized(ROWS, held), **args)
        if split.strips:
            d = self._halo("halo_reduce", d, f"{label}backward/halo", split, x.shape[ROWS])
        return d

    def _halo(self, kind: str, x: Value, label: str, split: RowSplit, rows: int) -> Value:
        ends = {"before": split.before, "after": split.after, "extents": split.rows}
        return self.along(kind, x, label, ROWS, split.rows, rows, **ends)

    # -- on one rank ----------------------------------------------------------------------------

    @layer
    def flat(self, x: Value) -> Written:
        """[images, all that an image has]."""
        shape = x.shape[0], prod(x.shape[1:])
        dy = yield self.tape.make("reshape", (x,), "y", shape, shape=shape)
        return [(x, self.tape.make("reshape", (dy,), "y", x.shape, shape=x.shape))]

    def part(self, x: Value, dim: int, at: tuple[Any, ...], extent: int) -> Value:
        """``extent`` indices ``at`` along ``dim``; without a rule: of a gradient, for instance."""
        if extent == x.shape[dim]:
            return x
        args: dict[str, Any] = {"dim": dim, "at": at}
        return self.tape.make("part", (x,), "part", x.resized(dim, extent), x.itemsize, **args)

    def _computed(
        self, part: Value, kernel: str, reads: Sequence[Value], *made: Value, like: int = 0,
        **args: Any,
    ) -> None:  # fmt: skip
        """What a kernel makes; zeros where ``part``, of which it is made, has no number."""
        if part.size:
            self.tape.do(kernel, reads, made, **args)
            return
        for y in made:
            self.tape.do("zeros", (reads[like],), (y,), shape=y.shape)


def _product(y: Value, w: Value) -> tuple[int, int, int]:
    """(m, k, n) of a convolution's products."""
    out, *window = w.shape
    return out, prod(window), prod(y.shape) // max(1, out)
