"""A product panel by panel: what comes next is fetched while what is there is multiplied.

    fetch      [panel 1][panel 2]     [panel 3]        a thread of its own, into two buffers in turn
    multiply   [panel 0][panel 1][panel 2]             C += A panel @ B panel

           b0 | b1            pieces of B [k, n]
    a0   [ C   C ]            every piece of A [..., k] with every piece of B,
    a1   [ C   C ]            each into its place in C

Panels are multiplied in their order, whatever arrives when: the same plan gives the same bits.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from math import prod
from time import time
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


def prefetched(
    panels: Sequence[P],
    fetches: Callable[[P], bool],
    fetch: Callable[[P, Any], T],
    buffers: Sequence[Any],
    waited: Callable[[float, float], None] = lambda begun, end: None,
) -> Generator[tuple[P, T], None, None]:
    """Each panel in order, and what ``fetch(panel, buffer)`` gave.

    As many panels as there are buffers are fetched ahead; the buffer of one is used again when
    the caller asks for the next. A panel that ``fetches`` nothing gets no buffer. ``waited`` is
    given from when to when the caller waited for a panel.

    >>> list(prefetched([3, 4, 5], bool, lambda panel, buffer: buffer + str(panel), "xy"))
    [(3, 'x3'), (4, 'y4'), (5, 'x5')]
    """
    ahead = iter([panel for panel in panels if fetches(panel)])
    with ThreadPoolExecutor(1, "fetch") as thread:
        coming = deque(
            (thread.submit(fetch, panel, buffer), buffer)
            for buffer, panel in zip(buffers, ahead, strict=False)
        )
        try:
            for panel in panels:
                if not fetches(panel):
                    yield panel, fetch(panel, None)
                    continue
                (future, buffer), begun = coming.popleft(), time()
                found = future.result()
                waited(begun, time())
                yield panel, found
                del future, found  # on a GPU they are memory that the next panel takes
                for following in islice(ahead, 1):
                    coming.append((thread.submit(fetch, following, buffer), buffer))
        finally:
            for future, _ in coming:
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
