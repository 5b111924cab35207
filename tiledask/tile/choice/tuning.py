"""Tiles measured on the device at hand, beside the order that the arithmetic predicts."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from types import ModuleType
from typing import NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.plan.tables import Part, Printable, table
from tiledask.plan.whole import whole_number
from tiledask.tile.backend import accumulator, as_dtype, namespace
from tiledask.tile.levels import Tile, as_tile, traffic
from tiledask.tile.product import matmul
from tiledask.tile.progress import showing
from tiledask.tile.table import kernels, lookup

__all__ = ["Trial", "Tuning", "tune"]

_EXTENTS = (32, 64, 128, 256, 512, 1024)
"""Of the square tiles of "tiled" that are measured."""


class Trial(NamedTuple):
    """One tile, predicted and measured."""

    tile: Tile
    predicted: int  # Bytes that tiles load and store
    measured: float  # Seconds: the median of the rounds


@dataclass(frozen=True, repr=False)
class Tuning(Printable):
    """What `tune` measured, the fastest tile first."""

    kernel: str
    m: int
    n: int
    k: int
    dtype: str
    trials: tuple[Trial, ...]

    def printed(self) -> Iterator[Part]:
        """The tiles and their places in both orders."""
        order = sorted(trial.predicted for trial in self.trials)
        rows = [
            {
                "tile": "x".join(map(str, trial.tile)),
                "predicted": trial.predicted,
                "place predicted": order.index(trial.predicted) + 1,
                "measured": trial.measured,
                "GFLOP/s": 2 * self.m * self.n * self.k / trial.measured / 1e9,
            }
            for trial in self.trials
        ]
        title = f"{self.kernel}, {self.m} x {self.n} x {self.k} in {self.dtype}"
        found = table(rows, title, predicted="bytes", measured="seconds")
        yield replace(found, below="the bytes are predicted, not the time")

    __repr__ = Printable.to_text


def tune(
    kernel: str,
    m: int,
    n: int,
    k: int,
    dtype: str = "float32",
    candidates: Sequence[int | Tile] | None = None,
    *,
    repeats: int = 5,
    seed: int = 0,
    progress: bool = True,
) -> Tuning:
    """Measure tiles of ``kernel`` in a product [m, k] x [k, n], here.

    ``candidates`` are tiles; by default all that the kernel is built for. Each of ``repeats``
    rounds draws fresh normal numbers and runs every tile once, after one run that is not timed;
    the medians count. GPUs are timed by CUDA events.

    What is predicted is the bytes between the tiles' memory and the next, and so an order, no time.
    """
    whole_number("repeats", repeats, 1, error=KernelError)
    found, kind = lookup(kernel), as_dtype(dtype)
    if found.tile is None:
        having = ", ".join(name for name, each in kernels.items() if each.tile)
        raise KernelError(f"kernel {kernel!r} has no tile to choose; those that have: {having}")
    if found.why_not:
        raise KernelError(f"kernel {kernel!r} cannot run here: {found.why_not}")
    if candidates is None:
        candidates = found.tiles or (found.tile, *_EXTENTS)
    predicted = {
        tile: traffic(m, n, k, tile, kind.itemsize).total for tile in map(as_tile, candidates)
    }
    if not predicted:
        raise KernelError("there is no tile to measure: candidates is empty; give one or more")
    xp, times = namespace(found.arrays), {tile: list[float]() for tile in predicted}
    rng, out = xp.random.default_rng(seed), xp.empty((m, n), kind)

    def look() -> tuple[int, int, str]:
        return sum(map(len, times.values())), len(times) * repeats, ""

    with showing("measuring tiles", look, "runs", after=0.0) if progress else nullcontext():
        for _ in range(repeats):
            # generators know no halves
            a, b = (
                rng.standard_normal(shape, dtype=accumulator(kind)).astype(kind)
                for shape in ((m, k), (k, n))
            )
            for tile, seconds in times.items():
                run = partial(matmul, a, b, kernel, tile, out)
                if not seconds:
                    run()
                seconds.append(_seconds(run, xp))
    trials = [Trial(tile, predicted[tile], median(seconds)) for tile, seconds in times.items()]
    return Tuning(kernel, m, n, k, kind.name, tuple(sorted(trials, key=lambda t: t.measured)))


def _seconds(run: Callable[[], object], xp: ModuleType) -> float:
    """How long ``run`` takes; on a GPU by its own events."""
    if xp is np:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = xp.cuda.Event(), xp.cuda.Event()
    begin.record()
    run()
    end.record()
    end.synchronize()
    milliseconds: float = xp.cuda.get_elapsed_time(begin, end)
    return milliseconds / 1e3
