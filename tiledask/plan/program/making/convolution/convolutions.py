"""Convolutions and pooling over the ranks of a group, written into a program: forward only.

    conv_by_output   y [.., mine, ..] of all x                       dx is a sum over the ranks
    conv_by_input    y is a sum over the ranks, of x [.., mine, ..]
    conv_pair        both, one after the other: a sum forward, and one backward
    conv_in_rows     own rows of the image, and halos                dw and db are sums
    pool_in_rows     own rows, and halos only where windows cross

An array is [images, channels, rows, columns]. What has no number is made of zeros, not computed.
"""

from math import prod
from typing import Any, NamedTuple

from tiledask.plan.collectives.rows import RowSplit
from tiledask.plan.program.making.layers import TensorLayers
from tiledask.plan.program.making.writer import Gradients, Value

__all__ = ["ConvolutionLayers", "WindowTerms"]

ROWS = 2
"""The dimension of an image's rows."""


class WindowTerms(NamedTuple):
    """Windows over rows and columns, as kernels are told of them."""

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

    def told(self, *names: str) -> dict[str, Any]:
        """Some of it by name, without what is usual."""
        usual = self._field_defaults
        return {n: v for n in names if (v := getattr(self, n)) != usual.get(n)}


class ConvolutionLayers(TensorLayers):
    """The layers of some images on one rank of a group."""

    # -- by channels ----------------------------------------------------------------------------

    def conv_by_output(
        self,
        x: Value,
        unit: str,
        window: WindowTerms,
        w: str = "w",
        groups: int = 1,
        label: str = "backward/dx",
    ) -> Value:
        """The output channels of the rows of w that are here."""
        y = self._convolved(x, unit, w, self._bias(unit, w), window, groups)

        def rule(dy: Value) -> Gradients:
            dx = self._dx_of(dy, x, unit, w, window, groups)
            self._weights_of(dy, x, unit, w, self._bias(unit, w), window, groups)
            return [(x, self.leave(dx, label))]

        return self.writer.on_tape(y, rule)

    def conv_by_input(
        self, x: Value, unit: str, window: WindowTerms, w: str = "w", label: str = "forward/y"
    ) -> Value:
        """All output channels, of the input channels that are here; b is added once."""
        writer, b = self.writer, self._bias(unit, w)
        made = self.leave(self._convolved(x, unit, w, "", window, 1), label)
        y = made
        if b:
            y = writer.value("y", made.shape)
            writer.do("add_channels", (made, self.weights.weight(unit, b)), (y,))

        def rule(dy: Value) -> Gradients:
            dx = self._dx_of(dy, x, unit, w, window, 1)
            self._weights_of(dy, x, unit, w, "", window, 1)
            if b:
                db = writer.value("db", dy.shape[1:2])
                writer.do("channel_sums", (dy,), (db,))
                self.weights.gradient(unit, b, db)
            return [(x, dx)]

        return writer.on_tape(y, rule)

    def conv_pair(
        self, x: Value, unit: str, windows: tuple[WindowTerms, WindowTerms], activation: str
    ) -> Value:
        """By output channels, an activation, and by input channels: the same ones."""
        first, second = windows
        h = self.conv_by_output(x, unit, first, "first.w", label="first/backward/dx")
        z = self.through(activation, h, h.shape[-1])
        return self.conv_by_input(z, unit, second, "second.w", "second/forward/y")

    # -- by rows of the image -------------------------------------------------------------------

    def conv_in_rows(
        self,
        x: Value,
        unit: str,
        window: WindowTerms,
        split: RowSplit,
        groups: int = 1,
        label: str = "",
        summed: bool = True,
    ) -> Value:
        """The output rows of this rank's rows; ``summed``: whether dw and db are, over the ranks.
        ``label`` comes before those of the halos."""
        b, here = self._bias(unit, "w"), self._padded(window, split)
        read = self._read(x, split, label)
        rows = split.out[self.rank]
        y = self._convolved(read, unit, "w", b, here, groups, rows)

        def rule(dy: Value) -> Gradients:
            d = self._dx_of(dy, read, unit, "w", here, groups)
            dx = self._given_back(d, x, split, label)
            self._weights_of(dy, read, unit, "w", b, here, groups, summed)
            return [(x, dx)]

        return self.writer.on_tape(y, rule)

    def pool_in_rows(
        self, x: Value, kernel: str, window: WindowTerms, split: RowSplit, label: str = ""
    ) -> Value:
        """The output rows of this rank's rows of "max_pool2d" or "avg_pool2d"."""
        read, here = self._read(x, split, label), self._padded(window, split)
        y, kept = self._pooled(read, kernel, here, split.out[self.rank])

        def rule(dy: Value) -> Gradients:
            d = self._pool_dx(dy, read, kernel, here, kept)
            return [(x, self._given_back(d, x, split, label))]

        return self.writer.on_tape(y, rule)

    def _padded(self, window: WindowTerms, split: RowSplit) -> WindowTerms:
        """Zeros above and below only where this rank's windows reach beyond the image."""
        slab = split.slabs[self.rank]
        return window._replace(padding=((slab.above, slab.below), window.padding[1]))

    def _read(self, x: Value, split: RowSplit, label: str) -> Value:
        """The rows that this rank's windows read."""
        wider, at = x, split.local(self.rank)
        if split.strips:
            ahead, behind = split.widths(self.rank)
            shape = _with_rows(x, ahead + split.rows[self.rank] + behind)
            wider = self._halo(x, f"{label}forward/halo", split, shape)
        return self._part(wider, ROWS, (at.start, at.stop, wider.shape[ROWS]))

    def _given_back(self, d: Value, x: Value, split: RowSplit, label: str) -> Value:
        """dx of the own rows for that of the rows that were read."""
        (ahead, behind), at = split.widths(self.rank), split.local(self.rank)
        held = ahead + split.rows[self.rank] + behind
        dx = self._put(d, ROWS, (at.start, at.stop, held))
        if split.strips:
            dx = self._halo(dx, f"{label}backward/halo", split, x.shape, back=True)
        return dx

    def _halo(
        self, x: Value, label: str, split: RowSplit, shape: tuple[int, ...], back: bool = False
    ) -> Value:
        row = prod(x.shape[:ROWS] + x.shape[ROWS + 1 :])
        return self.writer.halo(
            x, label, (self.axis,), shape, counts=tuple(row * n for n in split.rows), dim=ROWS,
            extents=split.rows, before=split.before, after=split.after, back=back, stream="tp",
        )  # fmt: skip

    # -- on one rank ----------------------------------------------------------------------------

    def pool(self, x: Value, kernel: str, window: WindowTerms) -> Value:
        """ "max_pool2d" or "avg_pool2d" of all rows."""
        y, kept = self._pooled(x, kernel, window)
        return self.writer.on_tape(y, lambda d: [(x, self._pool_dx(d, x, kernel, window, kept))])

    def flat(self, x: Value) -> Value:
        """[images, all that an image has]."""
        writer = self.writer
        y = self._shaped(x, (x.shape[0], prod(x.shape[1:])))
        return writer.on_tape(y, lambda dy: [(x, self._shaped(dy, x.shape))])

    def own(self, x: Value, dim: int, counts: tuple[int, ...]) -> Value:
        """This rank's part, of ``counts`` by rank along ``dim``, of what all have. No rule: of a
        gradient, or of what has none."""
        return self._part(x, dim, ("part", self.axis, counts), counts[self.rank])

    def _shaped(self, x: Value, shape: tuple[int, ...]) -> Value:
        y = self.writer.value("y", shape)
        self.writer.do("reshape", (x,), (y,), shape=shape)
        return y

    def _part(self, x: Value, dim: int, at: tuple[Any, ...], extent: int | None = None) -> Value:
        """Indices ``at`` (start, stop, of how many) along ``dim``."""
        extent = at[1] - at[0] if extent is None else extent
        if extent == x.shape[dim]:
            return x
        y = self.writer.value("part", (*x.shape[:dim], extent, *x.shape[dim + 1 :]), x.itemsize)
        self.writer.do("part", (x,), (y,), dim=dim, at=at)
        return y

    def _put(self, d: Value, dim: int, at: tuple[int, int, int]) -> Value:
        """``d`` at its indices, and zeros elsewhere."""
        if at[2] == d.shape[dim]:
            return d
        y = self.writer.value("dx", (*d.shape[:dim], at[2], *d.shape[dim + 1 :]))
        self.writer.do("part_grad", (d,), (y,), dim=dim, at=at)
        return y

    def _zeros(self, like: Value, y: Value) -> Value:
        self.writer.do("zeros", (like,), (y,), shape=y.shape)
        return y

    def _convolved(
        self,
        x: Value,
        unit: str,
        w: str,
        b: str,
        window: WindowTerms,
        groups: int,
        rows: int | None = None,
    ) -> Value:
        """w over the windows of x, + b; ``rows``: of the output, where the ranks' split says so."""
        weight = self.weights.weight(unit, w)
        rows = window.out(0, x.shape[ROWS]) if rows is None else rows
        shape = x.shape[0], weight.shape[0], rows, window.out(1, x.shape[3])
        y = self.writer.value("y", shape)
        if not y.size:
            return self._zeros(x, y)
        reads = [x, weight] + ([self.weights.weight(unit, b)] if b else [])
        told = window.told("stride", "padding", "dilation") | _grouped(groups)
        product = self._product(y, unit, w, groups)
        self.writer.do("conv2d", reads, (y,), **told, product=product)
        return y

    def _dx_of(
        self, dy: Value, x: Value, unit: str, w: str, window: WindowTerms, groups: int
    ) -> Value:
        dx = self.writer.value("dx", x.shape)
        if not dy.size:
            return self._zeros(x, dx)
        told = window.told("stride", "padding", "dilation") | _grouped(groups)
        product = self._product(dy, unit, w, groups)
        reads = dy, x, self.weights.weight(unit, w)
        self.writer.do("conv2d_grad_input", reads, (dx,), **told, product=product)
        return dx

    def _weights_of(
        self,
        dy: Value,
        x: Value,
        unit: str,
        w: str,
        b: str,
        window: WindowTerms,
        groups: int,
        summed: bool = False,
    ) -> None:
        """The gradients of w, and of b if it is named; ``summed`` over the ranks."""
        writer, names = self.writer, [w, *([b] if b else [])]
        shapes = [self.weights.weight(unit, name).shape for name in names]
        found = [writer.value(f"d{n[-1]}", s) for n, s in zip(names, shapes, strict=True)]
        if dy.size:
            told = window.told("size", "stride", "padding", "dilation") | _grouped(groups)
            told["product"] = self._product(dy, unit, w, groups)
            writer.do("conv2d_grad_weight", (dy, x), found, **told)
        else:
            found = [self._zeros(dy, g) for g in found]
        if summed and self.ranks > 1:
            items = tuple(zip(names, shapes, strict=True))
            packed = writer.value("packed", (sum(g.size for g in found),), items=items)
            writer.do("pack", found, (packed,))
            total = self._summed_small(packed, "backward/dw db")
            found = [Value(f"{total.name}[{n}]", s, total.itemsize) for n, s in items]
        for name, g in zip(names, found, strict=True):
            self.weights.gradient(unit, name, g)

    def _product(self, y: Value, unit: str, w: str, groups: int) -> tuple[int, int, int]:
        """(m, k, n) of the products of all groups, one behind the other."""
        out, *window = self.weights.weight(unit, w).shape
        return out, prod(window), prod(y.shape) // out

    def _pooled(
        self, x: Value, kernel: str, window: WindowTerms, rows: int | None = None
    ) -> tuple[Value, list[Value]]:
        """(y, what its gradient needs besides)."""
        rows = window.out(0, x.shape[ROWS]) if rows is None else rows
        y = self.writer.value("y", (*x.shape[:ROWS], rows, window.out(1, x.shape[3])))
        if not y.size:
            return self._zeros(x, y), []
        small = 1 if prod(window.size) <= 256 else 8
        kept = [self.writer.value("winner", y.shape, small)] * (kernel == "max_pool2d")
        self.writer.do(kernel, (x,), (y, *kept), **window.told("size", "stride", "padding"))
        return y, kept

    def _pool_dx(
        self, dy: Value, x: Value, kernel: str, window: WindowTerms, kept: list[Value]
    ) -> Value:
        dx = self.writer.value("dx", x.shape)
        if not dy.size:
            return self._zeros(dy, dx)
        told = window.told("size", "stride", "padding") | {"image": x.shape[ROWS:]}
        self.writer.do(f"{kernel}_grad", (dy, *kept), (dx,), **told)
        return dx


def _with_rows(x: Value, rows: int) -> tuple[int, ...]:
    return (*x.shape[:ROWS], rows, *x.shape[ROWS + 1 :])


def _grouped(groups: int) -> dict[str, int]:
    return {"groups": groups} if groups != 1 else {}
