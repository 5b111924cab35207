"""Convolutions and pooling over the ranks of a group, written into a program: forward only.

    conv             y [.., mine, ..] of all x                       dx is a sum over the ranks
      in rows        own rows of the image, and halos                dw and db are sums
    conv_by_input    y is a sum over the ranks, of x [.., mine, ..]
    pool             in rows: halos only where windows cross

An array is [images, channels, rows, columns]. What has no number is made of zeros, not computed.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tiledask.plan.collectives.rows import RowSplit
from tiledask.plan.program.making.layers import TensorLayers
from tiledask.plan.program.making.tape import Gradients, Value

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
        """How many windows there are along an axis of ``extent``.

        >>> WindowTerms((3, 3), (2, 1)).out(0, 7)
        3
        """
        reach = (self.size[axis] - 1) * self.dilation[axis] + 1
        return (extent + sum(self.padding[axis]) - reach) // self.stride[axis] + 1

    def args(self, *names: str) -> dict[str, Any]:
        """Some of it by name, without what is usual."""
        usual = self._field_defaults
        return {n: v for n in names if (v := getattr(self, n)) != usual.get(n)}


class ConvolutionLayers(TensorLayers):
    """The layers of some images on one rank of a group; weights are w and, if there is one, b."""

    def conv(
        self,
        x: Value,
        unit: str,
        window: WindowTerms,
        split: RowSplit | None = None,
        label: str = "",
        summed: bool = True,
    ) -> Value:
        """The output channels of the rows of w that are here, of all of x; or, by a ``split``, the
        output rows of this rank's rows. ``summed``: whether dw and db then are, over the ranks.
        ``label`` comes before those of the halos."""
        here, rows, read = self._windows(x, window, split, label)
        y = self._convolved(read, unit, here, rows)

        def rule(dy: Value) -> Gradients:
            dx = self._dx_of(dy, read, unit, here)
            if split:
                dx = self._given_back(dx, x, split, label)
            self._weights_of(dy, read, unit, here, summed=summed and split is not None)
            return [(x, dx if split else self.reduce_output(dx, "backward/dx"))]

        return self.tape.on_tape(y, rule)

    def conv_by_input(self, x: Value, unit: str, window: WindowTerms) -> Value:
        """All output channels, of the input channels that are here; b is added once."""
        tape, b = self.tape, self.weights.has(unit, "b")
        rows = window.out(0, x.shape[ROWS])
        y = self.reduce_output(self._convolved(x, unit, window, rows, bias=False), "forward/y")
        if b:
            y = tape.make("add_channels", (y, self.weights.weight(unit, "b")), "y", y.shape)

        def rule(dy: Value) -> Gradients:
            dx = self._dx_of(dy, x, unit, window)
            self._weights_of(dy, x, unit, window, bias=False)
            if b:
                db = tape.make("channel_sums", (dy,), "db", dy.shape[1:2])
                self.weights.gradient(unit, "b", db)
            return [(x, dx)]

        return tape.on_tape(y, rule)

    def pool(
        self, x: Value, window: WindowTerms, split: RowSplit | None = None, label: str = ""
    ) -> Value:
        """Means of windows: of all rows, or by a ``split`` the output rows of this rank's rows."""
        here, rows, read = self._windows(x, window, split, label)
        y = self.tape.value("y", (*read.shape[:ROWS], rows, window.out(1, x.shape[3])))
        args = here.args("size", "stride", "padding")
        self._computed(y, "avg_pool2d", (read,), y, **args)

        def rule(dy: Value) -> Gradients:
            dx = self.tape.value("dx", read.shape)
            image = read.shape[ROWS:]
            self._computed(dy, "avg_pool2d_grad", (dy,), dx, **args, image=image)
            return [(x, self._given_back(dx, x, split, label) if split else dx)]

        return self.tape.on_tape(y, rule)

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
            dx = self.tape.value("dx", _resized(d, ROWS, held))
            self.tape.do("part_grad", (d,), (dx,), dim=ROWS, at=(at.start, at.stop, held))
        if split.strips:
            label = f"{label}backward/halo"
            dx = self._halo("halo_reduce", dx, label, split, x.shape[ROWS])
        return dx

    def _halo(self, kind: str, x: Value, label: str, split: RowSplit, rows: int) -> Value:
        ends = {"before": split.before, "after": split.after, "extents": split.rows}
        return self.along(kind, x, label, ROWS, split.rows, rows, **ends)

    # -- on one rank ----------------------------------------------------------------------------

    def flat(self, x: Value) -> Value:
        """[images, all that an image has]."""

        def shaped(x: Value, shape: tuple[int, ...]) -> Value:
            y = self.tape.value("y", shape)
            self.tape.do("reshape", (x,), (y,), shape=shape)
            return y

        y = shaped(x, (x.shape[0], prod(x.shape[1:])))
        return self.tape.on_tape(y, lambda dy: [(x, shaped(dy, x.shape))])

    def own(self, x: Value, dim: int, counts: tuple[int, ...]) -> Value:
        """This rank's part, of ``counts`` by rank along ``dim``, of what all have. No rule: of a
        gradient, or of what has none."""
        return self._part(x, dim, ("part", self.axis, counts), counts[self.rank])

    def _part(self, x: Value, dim: int, at: tuple[Any, ...], extent: int | None = None) -> Value:
        """Indices ``at`` (start, stop, of how many) along ``dim``."""
        extent = at[1] - at[0] if extent is None else extent
        if extent == x.shape[dim]:
            return x
        y = self.tape.value("part", _resized(x, dim, extent), x.itemsize)
        self.tape.do("part", (x,), (y,), dim=dim, at=at)
        return y

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

    def _convolved(
        self, x: Value, unit: str, window: WindowTerms, rows: int, bias: bool = True
    ) -> Value:
        """w over the windows of x, + b; ``rows``: of the output."""
        w, b = self.weights.weight(unit, "w"), bias and self.weights.has(unit, "b")
        y = self.tape.value("y", (x.shape[0], w.shape[0], rows, window.out(1, x.shape[3])))
        reads = (x, w, self.weights.weight(unit, "b")) if b else (x, w)
        args = window.args("stride", "padding", "dilation") | {"product": _product(y, w)}
        self._computed(y, "conv2d", reads, y, **args)
        return y

    def _dx_of(self, dy: Value, x: Value, unit: str, window: WindowTerms) -> Value:
        dx, w = self.tape.value("dx", x.shape), self.weights.weight(unit, "w")
        args = window.args("stride", "padding", "dilation") | {"product": _product(dy, w)}
        self._computed(dy, "conv2d_grad_input", (dy, x, w), dx, like=1, **args)
        return dx

    def _weights_of(
        self,
        dy: Value,
        x: Value,
        unit: str,
        window: WindowTerms,
        bias: bool = True,
        summed: bool = False,
    ) -> None:
        """The gradients of w and b; ``summed`` over the ranks."""
        tape, names = self.tape, ["w", *(["b"] if bias and self.weights.has(unit, "b") else [])]
        weights = [self.weights.weight(unit, name) for name in names]
        found = {n: tape.value(f"d{n}", w.shape) for n, w in zip(names, weights, strict=True)}
        args = window.args("size", "stride", "padding", "dilation")
        args["product"] = _product(dy, weights[0])
        self._computed(dy, "conv2d_grad_weight", (dy, x), *found.values(), **args)
        if summed and self.ranks > 1:
            found = self.summed_small(found, "backward/dw db")
        self._bring(unit, found)


def _product(y: Value, w: Value) -> tuple[int, int, int]:
    """(m, k, n) of a convolution's products."""
    out, *window = w.shape
    return out, prod(window), prod(y.shape) // max(1, out)


def _resized(x: Value, dim: int, extent: int) -> tuple[int, ...]:
    return (*x.shape[:dim], extent, *x.shape[dim + 1 :])
