"""One product in tiles: a loop to repair."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from tiledask.errors import RuleError
from tiledask.lab.exercises.exercise import (
    calling,
    exercise,
    instance,
    none_wrong,
)
from tiledask.lab.judging import Target
from tiledask.tile import Tile, traffic

__all__ = ["repaired_kernel"]

SHAPES = ((4, 6, 8), (7, 5, 3), (1, 1, 1), (1, 9, 4), (10, 1, 7), (13, 11, 9))
"""(m, n, k): tiles divide the first, and leave rests of the others."""
TILES = ((2, 3, 4), (4, 4, 4), (5, 2, 3), (16, 16, 16))


@exercise("repaired-kernel", instance(Callable))
def repaired_kernel(kernel: Callable[..., Any]) -> list[Target]:
    """Write a function (a, b, (tm, tn, tk)) -> a @ b that multiplies tile by tile, or repair one.

    It is run on whole numbers, whose sums are exact, in shapes that the tile divides and shapes
    that it does not. Every product of tiles is seen: none may be larger than the tile, and as many
    bytes are loaded as the formula of `td.tile.traffic` says."""
    elements, off, sums, large, loads = 0, 0, [], [], []
    for (m, n, k), tile in product(SHAPES, TILES):
        rng = np.random.default_rng([m, n, k])
        a, b = (rng.integers(1, 10, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c, log = _run(kernel, a, b, tile)
        at, wrong = f"for {a.shape} @ {b.shape} in tiles of {tile}", np.argwhere(c != a @ b)
        if len(wrong):
            elements += len(wrong)
            (top, left), (low, right) = wrong.min(0), wrong.max(0)
            place = f"rows {top} to {low}, columns {left} to {right}"
            # what is wrong in a part of C says more than what is wrong everywhere
            sums.append((len(wrong) == c.size, f"C is wrong in {place}, {at}"))
        limits = ((tile[0], tile[2]), (tile[2], tile[1]))
        large += [
            f"{x} @ {y} is larger than a tile {at}"
            for x, y in log
            if len(x) != 2 or len(y) != 2 or (np.array([x, y]) > limits).any()
        ]
        wanted = traffic(m, n, k, tile, a.itemsize).loaded
        loaded = sum(a.itemsize * int(np.prod(shape)) for both in log for shape in both)
        off += abs(loaded - wanted)
        if loaded != wanted:
            side = "many" if loaded > wanted else "few; what is counted is @, np.matmul and np.dot"
            loads.append(f"{loaded:,} bytes are loaded, of {wanted:,} by the formula: too {side}")
    located = [said for _, said in sorted(sums)[:1]]
    return [
        none_wrong("wrong elements of C", located, elements),
        none_wrong("products larger than a tile", large[:1], len(large)),
        none_wrong("bytes loaded beside the formula", loads[:1], off),
    ]


def _run(
    kernel: Callable[..., Any], a: np.ndarray, b: np.ndarray, tile: Tile
) -> tuple[np.ndarray, list[Any]]:
    """(what a kernel returns, the shapes of both operands of each product that it made)."""
    log: list[Any] = []

    class CountedOperand(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            if ufunc is np.matmul:
                log.append(tuple(np.shape(x) for x in inputs))
            if "out" in options:
                options["out"] = tuple(map(plain, options["out"]))
            return getattr(ufunc, method)(*map(plain, inputs), **options)

        def __array_function__(self, called: Any, types: Any, args: Any, options: Any) -> Any:
            if called is np.dot:  # of matrices the same
                return np.matmul(*args, **options)
            return super().__array_function__(called, types, args, options)

        def dot(self, other: Any, out: Any = None) -> Any:
            return np.matmul(self, other, out=out)

    def plain(x: Any) -> Any:
        return x.view(np.ndarray) if isinstance(x, CountedOperand) else x

    with calling(kernel, f"for {a.shape} @ {b.shape} in tiles of {tile}"):
        c = np.asarray(kernel(*(x.copy().view(CountedOperand) for x in (a, b)), tile))
    if c.shape != (len(a), b.shape[1]):
        raise RuleError(f"{a.shape} @ {b.shape} is {(len(a), b.shape[1])}; got {c.shape} back")
    return c, log
