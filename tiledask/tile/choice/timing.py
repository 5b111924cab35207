"""Seconds of a product by one tile after another: fresh numbers, and a deadline."""

import time
from contextlib import nullcontext

import numpy as np

from tiledask.errors import DeadlineError, KernelError
from tiledask.tile.backend import accumulator, as_dtype, namespace, synchronize
from tiledask.tile.cuda.hopper_tile import AnyTile, HopperTile
from tiledask.tile.product import matmul
from tiledask.tile.progress import showing
from tiledask.tile.table import kernels

__all__ = ["Runs", "by", "measure"]

Measured = tuple[dict[AnyTile, list[float]], list[tuple[AnyTile, str]]]
"""(seconds of each tile in each round, (tile, why) of those without any)."""


class Runs:
    """One product after another on fresh numbers, and how long each takes."""

    def __init__(self, kernel: str, m: int, n: int, k: int, dtype: str, seed: int) -> None:
        info = kernels[kernel]
        self.kernel, self.shapes, self.dtype = kernel, ((m, k), (k, n)), as_dtype(dtype)
        self.xp = namespace(info.arrays)
        self.rng = self.xp.random.default_rng(seed)
        self.out = self.xp.empty((m, n), self.dtype)
        rounded = info.tf32 and dtype not in info.dtypes
        self.precision = "tf32" if rounded else None
        self.draw()

    def draw(self) -> None:
        wide = accumulator(self.dtype)  # generators know no halves
        self.a, self.b = (
            self.rng.standard_normal(shape, dtype=wide).astype(self.dtype) for shape in self.shapes
        )

    def once(self, tile: AnyTile) -> None:
        matmul(self.a, self.b, self.kernel, tile, self.out, precision=self.precision)
        synchronize(self.out)

    def seconds(self, tile: AnyTile) -> float:
        if self.xp is np:
            begun = time.perf_counter()
            self.once(tile)
            return time.perf_counter() - begun
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        matmul(self.a, self.b, self.kernel, tile, self.out, precision=self.precision)
        end.record()
        end.synchronize()
        milliseconds: float = self.xp.cuda.get_elapsed_time(begin, end)
        return milliseconds / 1e3


def measure(
    run: Runs, tiles: list[AnyTile], repeats: int, deadline: float, progress: bool
) -> Measured:
    """Seconds of each tile in each round, and why some have none."""
    times: dict[AnyTile, list[float]] = {tile: [] for tile in tiles}
    failed: dict[AnyTile, str] = {}
    end = time.monotonic() + deadline
    done: list[str] = []

    def look() -> tuple[int, int | None, str]:
        return len(done), len(tiles) * repeats, f"measured {done[-1]}" if done else ""

    shown = showing("measuring tiles", look, "runs", after=0.0) if progress else nullcontext()
    with shown:
        for number in range(repeats):
            if number:
                run.draw()
            for tile in [tile for tile in tiles if tile not in failed]:
                if time.monotonic() > end:
                    return _left(times, failed, deadline)
                try:
                    if not number:
                        run.once(tile)
                    times[tile].append(run.seconds(tile))
                except KernelError as error:
                    failed[tile] = str(error)
                done.append(by(tile))
    return _left(times, failed, deadline)


def _left(
    times: dict[AnyTile, list[float]], failed: dict[AnyTile, str], deadline: float
) -> Measured:
    found = {tile: seconds for tile, seconds in times.items() if seconds}
    late = f"the deadline of {deadline:g} s had passed"
    missing = [(tile, failed.get(tile, late)) for tile in times if tile not in found]
    if found:
        return found, missing
    if failed:
        raise KernelError(
            "no tile can be measured: "
            + "; ".join(f"{by(tile)}: {why}" for tile, why in failed.items())
        )
    raise DeadlineError(
        f"waited {deadline:g} s for a first tile to be measured, and none was; raise deadline, or "
        f"measure a smaller product"
    )


def by(tile: AnyTile) -> str:
    """(64, 64, 8) as "64x64x8"."""
    return tile.name if isinstance(tile, HopperTile) else "x".join(map(str, tile))
