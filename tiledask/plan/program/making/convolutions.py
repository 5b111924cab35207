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

    def out(self, axis: int, extent: int) -> int:
        """How many windows there are along an axis of ``extent``."""
        reach = (self.size[axis] - 1) * self.dilation[axis] + 1
        return (extent + sum(self.padding[axis]) - reach) // self.stride[axis] + 1

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
        """The output channels of the rows of w that are here, of all of x; or, by a ``split``, the
        output rows of this rank's rows. ``summed``: whether dw and db then are, over the ranks.
        ``label`` comes before those of the halos."""
        tape, names = self.tape, [name for name in "wb" if self.weights.has(unit, name)]
        here, rows, read = self._windows(x, window, split, label)
        w, *b = (self.weights.weight(unit, name) for name in names)
        args, columns = here.args("stride", "padding", "dilation"), here.out(1, x.shape[3])
        y = tape.value("y", (x.shape[0], w.shape[0], rows, columns))
        self._computed(y, "conv2d", (read, w, *b), y, **args, product=_product(y, w))
        dy = yield y
        args["product"], dx = _product(dy, w), tape.value("dx", read.shape)
        w, *b = (self.weights.weight(unit, name) for name in names)
        self._computed(dy, "conv2d_grad_input", (dy, read, w), dx, like=1, **args)
        if split:
            dx = self._given_back(dx, x, split, label)
        found = {n: tape.value(f"d{n}", g.shape) for n, g in zip(names, (w, *b), strict=True)}
        args = here.args("size") | args
        self._computed(dy, "conv2d_grad_weight", (dy, read), *found.values(), **args)
        if summed and split and self.ranks > 1:
            found = self.summed_small(found, "backward/dw db")
        self._bring(unit, found)
        return [(x, dx if split else self.reduce_output(dx, "backward/dx"))]

    @layer
    def pool(
        self, x: Value, window: WindowTerms, split: RowSplit | None = None, label: str = ""
    ) -> Written:
        """Means of windows: of all rows, or by a ``split`` the output rows of this rank's rows."""
        here, rows, read = self._windows(x, window, split, label)
        y = self.tape.value("y", (*read.shape[:ROWS], rows, window.out(1, x.shape[3])))
        args = here.args("size", "stride", "padding")
        self._computed(y, "avg_pool2d", (read,), y, **args)
        dy = yield y
        dx = self.tape.value("dx", read.shape)
        self._computed(dy, "avg_pool2d_grad", (dy,), dx, **args, image=read.shape[ROWS:])
        return [(x, self._given_back(dx, x, split, label) if split else dx)]

    # -- rows and halos -------------------------------------------------------------------------

    def _windows(
        self, x: Value, window: WindowTerms, split: RowSplit | None, label: str
    ) -> tuple[WindowTerms, int, Value]:
        """(this rank's windows, how many rows of them, the rows that they read): zeros above and
        below only where they reach beyond the image."""
        if not split:
            return window, window.out(0, x.shape[ROWS]), x
        slab, at, wider = split.slabs[self.rank], split.local(self.rank), x
        if split.strips:
            wider = self._halo("halo_exchange", x, f"{label}forward/halo", split, self._held(split))
        read = self._part(wider, ROWS, (at.start, at.stop, wider.shape[ROWS]))
        here = window._replace(padding=((slab.above, slab.below), window.padding[1]))
        return here, split.out[self.rank], read

    def _held(self, split: RowSplit) -> int:
        """How many rows this rank has with their halos."""
        return sum(split.widths(self.rank)) + split.rows[self.rank]

    def _given_back(self, d: Value, x: Value, split: RowSplit, label: str) -> Value:
        """dx of the own rows for that of the rows that were read."""
        at, held, dx = split.local(self.rank), self._held(split), d
        if held != d.shape[ROWS]:  # zeros elsewhere
            args: dict[str, Any] = {"dim": ROWS, "at": (at.start, at.stop, held)}
            dx = self.tape.make("part_grad", (d,), "dx", _resized(d, ROWS, held), **args)
        if split.strips:
            label = f"{label}backward/halo"
            dx = self._halo("halo_reduce", dx, label, split, x.shape[ROWS])
        return dx

    def _halo(self, kind: str, x: Value, label: str, split: RowSplit, rows: int) -> Value:
        ends = {"before": split.before, "after": split.after, "extents": split.rows}
        return self.along(kind, x, label, ROWS, split.rows, rows, **ends)

    # -- on one rank ----------------------------------------------------------------------------

    @layer
    def flat(self, x: Value) -> Written:
        """[images, all that an image has]."""
        y = self.tape.value("y", (x.shape[0], prod(x.shape[1:])))
        self.tape.do("reshape", (x,), (y,), shape=y.shape)
        dy = yield y
        dx = self.tape.value("y", x.shape)
        self.tape.do("reshape", (dy,), (dx,), shape=x.shape)
        return [(x, dx)]

    def own(self, x: Value, dim: int, counts: tuple[int, ...]) -> Value:
        """This rank's part, of ``counts`` by rank along ``dim``, of what all have. No rule: of a
        gradient, or of what has none."""
        return self._part(x, dim, ("part", self.axis, counts), counts[self.rank])

    def _part(self, x: Value, dim: int, at: tuple[Any, ...], extent: int | None = None) -> Value:
        """Indices ``at`` (start, stop, of how many) along ``dim``."""
        extent = at[1] - at[0] if extent is None else extent
        if extent == x.shape[dim]:
            return x
        args: dict[str, Any] = {"dim": dim, "at": at}
        return self.tape.make("part", (x,), "part", _resized(x, dim, extent), x.itemsize, **args)

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


def _resized(x: Value, dim: int, extent: int) -> tuple[int, ...]:
    return (*x.shape[:dim], extent, *x.shape[dim + 1 :])
