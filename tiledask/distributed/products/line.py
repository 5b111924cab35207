"""The one engine of products: whoever multiplies goes through a line of a product's program.

    sources    other ranks' blocks   files   blocks made in the task        fetch
    kernel     C (+)= A panel @ B panel, as few local products as can be     do multiply
    sinks      a block               a file with records   a key of Dask    keep

           b0 | b1            pieces of B [k, n]
    a0   [ C   C ]            every piece of A [..., k] with every piece of B,
    a1   [ C   C ]            each into its place in C

Panels come in the program's order, whatever arrives when: the same program gives the same bits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from time import time
from typing import Any

import numpy as np

from tiledask.distributed.programs.prefetch import PrefetchRunner
from tiledask.plan.products.regions import Region, slices, within
from tiledask.plan.program.instructions import Do, Fetch, Instructions, Keep, ProgramPart
from tiledask.tile import TileTraffic
from tiledask.tile.backend import namespace, on_device
from tiledask.tile.product import accumulate

__all__ = ["Held", "ProductLine", "cut", "finish", "place_in"]

Held = list[tuple[Region, Any]]
"""Pieces of an operand: where each lies in the whole array, and its numbers."""


class ProductLine:
    """A way through a line that is alone. Who inherits says where its fetches read, and what
    becomes of C."""

    def __init__(self, program: Instructions, kernel: str, tile: Any) -> None:
        self.program, self.role = program, program.role(0)
        self.kernel, self.tile = kernel, tile
        self.loaded: list[TileTraffic | None] = []
        """What each local product loaded."""

    def go(
        self,
        stays: Mapping[str, Any],
        waited: Callable[[float, float], None] = lambda begun, end: None,
    ) -> None:
        """None, once the line was gone through. ``stays``: what its buffers that stay begin with;
        ``waited`` hears from when to when the products waited for what is fetched."""
        PrefetchRunner(self.program, stays, self.bind, self, waited).run()

    def bind(self, each: Do, part: ProgramPart, told: dict[str, Any]) -> Callable[..., None]:
        return partial(getattr(self, each.kernel), **told)

    def multiply(
        self,
        *arrays: Any,
        a: tuple[tuple[Region, Region], ...],
        b: tuple[tuple[Region, Region], ...],
        c: Region,
        into: tuple[Region, ...],
        adds: bool,
    ) -> None:
        """C (+)= A @ B for the pieces of one panel: of each, which part of what is read (() for all
        of it), and where that lies."""
        self.check()
        begun, (*pieces, room) = time(), arrays
        held = _held(a, pieces[: len(a)]), _held(b, pieces[len(a) :])
        with on_device(pieces[0]):
            out = self.place(room, c, pieces[0])
            for x, y in self.pairs(*held):
                for strip in into:
                    self.loaded += self._products(x, y, out, c, strip, adds)
                adds = True
        finish(out)
        self.multiplied(begun)

    def _products(
        self, a: Held, b: Held, c: Any, region: Region, strip: Region, adds: bool
    ) -> Iterator[TileTraffic | None]:
        """What each local product loaded, once the ``strip`` of C, which has ``region``, holds
        A @ B, or that was added to it."""
        rows = len(a[0][0]) - 1
        for region_a, x in cut(a, (*strip[:rows], None)):
            for region_b, y in cut(b, (None, *strip[rows:])):
                z = c[place_in((*region_a[:-1], *region_b[1:]), region)]
                if y.ndim == 1:
                    y, z = y[:, None], z[..., None]
                if x.ndim == 1:
                    x, z = x[None], z[None]
                for part, there in _matrices(x, z):
                    yield accumulate(part, y, there, self.kernel, self.tile, beta=float(adds))

    # -- what those who inherit say ---------------------------------------------------------------

    def fetch(self, each: Fetch) -> Callable[[Any], Any]:
        """From what its buffer holds to what is there afterwards: the source."""
        raise NotImplementedError

    def keep(self, each: Keep) -> Callable[[Any], None]:
        """Takes what is kept: the sink."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises if the product is over."""

    def place(self, room: Any, region: Region, like: Any) -> Any:
        """The array of C's ``region``, which is summed in ``room``; beside ``like``."""
        return room

    def pairs(self, a: Held, b: Held) -> Iterable[tuple[Held, Held]]:
        """What is multiplied one after the other for a panel of these pieces."""
        return ((a, b),)

    def multiplied(self, begun: float) -> None:
        """Hears of each panel that is multiplied."""


def _held(told: Sequence[tuple[Region, Region]], arrays: Sequence[Any]) -> Held:
    pairs = zip(told, arrays, strict=True)
    return [(region, x[slices(ends)] if ends else x) for (ends, region), x in pairs]


def place_in(region: Region, whole: Region) -> tuple[Any, ...]:
    """``region`` as an index that gives a view, of an array without dimensions too."""
    return *within(region, whole), ...


def cut(pieces: Held, ends: tuple[Any, ...]) -> Iterator[tuple[Region, Any]]:
    """Views of pieces within ``ends``, (start, stop) per dimension or None for all of it."""
    for region, x in pieces:
        both = tuple(
            own if limits is None else (max(own[0], limits[0]), min(own[1], limits[1]))
            for own, limits in zip(region, ends, strict=True)
        )
        if all(start < stop for start, stop in both):
            yield both, x[within(both, region)]


def finish(x: Any) -> None:
    """None, once what this thread began on the GPU of ``x`` is done; copies beside it go on."""
    if not isinstance(x, np.ndarray):
        with x.device:
            namespace("cupy").cuda.get_current_stream().synchronize()


def _matrices(x: Any, c: Any) -> Iterator[tuple[Any, Any]]:
    """Views of two dimensions that together are x [..., k] and c [..., n]; nothing is copied."""
    if c.ndim == 2:
        yield x, c
    elif _one_stride(x) and _one_stride(c):
        rows = prod(c.shape[:-1])
        yield x.reshape(rows, x.shape[-1]), c.reshape(rows, c.shape[-1])
    else:
        for inner in zip(x, c, strict=True):
            yield from _matrices(*inner)


def _one_stride(x: Any) -> bool:
    """Whether it is equally far from each row to the next, over all dimensions but the last."""
    steps = [(n, s) for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True) if n > 1]
    return all(outer == n * s for (_, outer), (n, s) in pairwise(steps))
