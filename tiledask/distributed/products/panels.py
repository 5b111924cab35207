"""A product panel by panel: what comes next is fetched while what is there is multiplied.

    fetch      [panel 1][panel 2]     [panel 3]        a thread of its own, into two buffers in turn
    multiply   [panel 0][panel 1][panel 2]             C += A panel @ B panel

           b0 | b1            pieces of B [k, n]
    a0   [ C   C ]            every piece of A [..., k] with every piece of B,
    a1   [ C   C ]            each into its place in C

Panels are multiplied in their order, whatever arrives when: the same plan gives the same bits.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice, pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np

from tiledask.plan.products.regions import Region, within
from tiledask.tile import TileTraffic
from tiledask.tile.backend import namespace, on_device
from tiledask.tile.product import accumulate

__all__ = ["Held", "finish", "multiply_pieces", "place_in", "prefetched"]

Held = list[tuple[Region, Any]]
"""Pieces of an operand: where each lies in the whole array, and its numbers."""
P = TypeVar("P")
T = TypeVar("T")


@contextmanager
def prefetched(
    panels: Iterable[P], fetch: Callable[[P, Any], T], buffers: Sequence[Any]
) -> Iterator[Iterator[T]]:
    """What ``fetch(panel, buffer)`` gives for each panel, in order; the first are fetched at once.

    As many panels as there are buffers are fetched ahead; the buffer of one is used again when
    the caller asks for the next.

    >>> with prefetched([3, 4, 5], lambda panel, buffer: buffer + str(panel), "xy") as coming:
    ...     list(coming)
    ['x3', 'y4', 'x5']
    """
    ahead = iter(panels)
    with ThreadPoolExecutor(1, "fetch") as thread:
        fetching = deque(
            (thread.submit(fetch, panel, buffer), buffer)
            for buffer, panel in zip(buffers, ahead, strict=False)
        )

        def each() -> Iterator[T]:
            while fetching:
                future, buffer = fetching.popleft()
                yield future.result()
                del future  # on a GPU it holds memory that the next panel takes
                for following in islice(ahead, 1):
                    fetching.append((thread.submit(fetch, following, buffer), buffer))

        try:
            yield each()
        finally:
            for future, _ in fetching:
                future.cancel()


def multiply_pieces(
    a: Held,
    b: Held,
    c: Any,
    region: Region,
    strips: Sequence[Region],
    kernel: str,
    tile: Any,
    adds: bool,
) -> list[TileTraffic | None]:
    """What each local product loaded, once the ``strips`` of C hold A @ B, or it was added to them.

    ``c`` has ``region``; ``a`` and ``b`` are the pieces of one panel.
    """
    lead, loaded = len(a[0][0]) - 1, list[TileTraffic | None]()
    with on_device(a[0][1]):
        for strip in strips:
            for region_a, x in _cut(a, (*strip[:lead], None)):
                for region_b, y in _cut(b, (None, *strip[lead:])):
                    z = c[place_in((*region_a[:-1], *region_b[1:]), region)]
                    if y.ndim == 1:
                        y, z = y[:, None], z[..., None]
                    if x.ndim == 1:
                        x, z = x[None], z[None]
                    for part, there in _matrices(x, z):
                        loaded.append(accumulate(part, y, there, kernel, tile, beta=float(adds)))
    finish(c)
    return loaded


def place_in(region: Region, whole: Region) -> tuple[Any, ...]:
    """``region`` as an index that gives a view, of an array without dimensions too."""
    return *within(region, whole), ...


def finish(x: Any) -> None:
    """None, once what this thread began on the GPU of ``x`` is done; copies beside it go on."""
    if not isinstance(x, np.ndarray):
        with x.device:
            namespace("cupy").cuda.get_current_stream().synchronize()


def _cut(pieces: Held, ends: tuple[Any, ...]) -> Iterator[tuple[Region, Any]]:
    """Views of pieces within ``ends``, (start, stop) per dimension or None for all of it."""
    for region, x in pieces:
        both = tuple(
            own if limits is None else (max(own[0], limits[0]), min(own[1], limits[1]))
            for own, limits in zip(region, ends, strict=True)
        )
        if all(start < stop for start, stop in both):
            yield both, x[within(both, region)]


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
