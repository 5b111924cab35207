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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice, pairwise, product
from math import prod
from typing import Any, TypeVar

import numpy as np

from tiledask.plan.products.regions import Region, overlap, within
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
    """What ``fetch(panel, buffer)`` gives for each panel, in order, as many fetched ahead as there
    are buffers; the buffer of one is used again when the caller asks for the next.

    >>> with prefetched([3, 4, 5], lambda panel, buffer: buffer + str(panel), "xy") as coming:
    ...     list(coming)
    ['x3', 'y4', 'x5']
    """
    ahead, fetching = iter(panels), deque[tuple[Future[T], Any]]()
    with ThreadPoolExecutor(1, "fetch") as thread:

        def begin(buffer: Any) -> None:
            for panel in islice(ahead, 1):
                fetching.append((thread.submit(fetch, panel, buffer), buffer))

        def each() -> Iterator[T]:
            while fetching:
                future, buffer = fetching.popleft()
                yield future.result()
                del future  # on a GPU it holds memory that the next panel takes
                begin(buffer)

        for buffer in buffers:
            begin(buffer)
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
        for strip, (of_a, x), (of_b, y) in product(strips, a, b):
            if (part := overlap((*of_a[:-1], *of_b[1:]), strip)) is None:
                continue
            left = x[place_in((*part[:lead], of_a[-1]), of_a)]
            right, z = y[place_in((of_b[0], *part[lead:]), of_b)], c[place_in(part, region)]
            if y.ndim == 1:
                right, z = right[:, None], z[..., None]
            if x.ndim == 1:
                left, z = left[None], z[None]
            for rows, there in _matrices(left, z):
                loaded.append(accumulate(rows, right, there, kernel, tile, beta=float(adds)))
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
