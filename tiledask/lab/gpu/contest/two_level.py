"""The two-level product on one device: td.matmul over workers that share it, beside the library
alone, turn by turn."""

import os
import time
from statistics import median
from typing import Any

from tiledask.lab.gpu.contest.clock import ContestClock
from tiledask.lab.gpu.contest.rounds import Gemm, error_of, reference
from tiledask.tile.backend import accumulator, as_dtype, namespace, synchronize

__all__ = ["two_level"]

_PANEL = 256
"""Rows that one generator draws: whoever holds them draws the same."""
_PATIENCE = 120.0


def two_level(
    work: Gemm,
    workers: int,
    clock: ContestClock,
    until: float,
    rounds: int,
    *,
    kernel: str = "blas",
    per_gpu: int | None = None,
) -> dict[str, Any]:
    """Seconds of td.matmul and of the library alone, in turn, as facts of a row.

    Wall-clock time, from the call until the result is there; operands and result stay in the
    device's memory, blocks of rows of A, B and C with each worker. Beside the times are the bytes
    that moved and the most that a worker held, predicted and counted. ``kernel`` is that of the
    workers, ``per_gpu`` as `td.start_cluster` takes it.
    """
    import tiledask as td

    xp, shapes = namespace(clock.arrays), ((work.m, work.k), (work.k, work.n))
    panels = [_Panels(work.dtype.name, i, s[1], clock.arrays) for i, s in enumerate(shapes)]
    a, b = (
        draw(tuple(slice(0, extent) for extent in shape))
        for draw, shape in zip(panels, shapes, strict=True)
    )
    out = xp.empty((work.m, work.n), work.dtype)
    right = reference(a, b, clock.arrays, 0)
    device, threads = ("cuda", 1) if clock.arrays == "cupy" else ("cpu", _threads(workers))
    options = {"device": device, "threads": threads, "per_gpu": per_gpu, "timeout": _PATIENCE}
    mine: list[float] = []
    alone: list[float] = []
    with td.start_cluster(workers=workers, quiet=True, **options) as cluster:
        mesh, rows = td.Mesh(cluster, (workers,)), (td.Shard(0),)
        A, B = (
            td.from_function(draw, shape, work.dtype.name, mesh, rows, timeout=_PATIENCE)
            for draw, shape in zip(panels, shapes, strict=True)
        )

        def product() -> Any:
            return td.matmul(A, B, kernel=kernel, timeout=_PATIENCE)

        error = error_of(xp.asarray(td.to_numpy(product())), right, clock.arrays)
        found = {"work": str(work), "error": error, "error limit": work.limit}
        if not error <= work.limit:
            return found | {"state": "wrong", "why": f"a relative error of {error:.2g}"}
        for turn in range(-1, rounds):  # the first one warms up
            if turn > 0 and time.monotonic() > until:
                break
            times = _seconds(lambda: xp.matmul(a, b, out=out), out), _seconds(product, out)
            if turn >= 0:
                alone.append(times[0])
                mine.append(times[1])
        last = product()
    moved, held = last.traffic, last.memory
    return found | {
        "state": "timed",
        "algorithm": last.made_by,
        "bytes moved, predicted": moved.predicted.total,
        "bytes moved": moved.measured and moved.measured.total,
        "peak bytes, predicted": held.predicted.peak,
        "peak bytes": held.measured and held.measured.peak,
        "rounds": len(mine),
        "seconds": median(mine),
        "alone, median": median(alone),
        "TFLOP/s": work.flops / median(mine) / 1e12,
    }


def _seconds(product: Any, out: Any) -> float:
    begun = time.perf_counter()
    product()
    synchronize(out)
    return time.perf_counter() - begun


def _threads(workers: int) -> int:
    """BLAS threads of a CPU worker, so that all of them have as many cores as one process."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // workers)


class _Panels:
    """Standard normal numbers of whole rows, the same however the rows are shared out."""

    def __init__(self, dtype: str, seed: int, columns: int, arrays: str) -> None:
        self.dtype, self.seed, self.columns, self.arrays = dtype, seed, columns, arrays

    def __call__(self, region: tuple[slice, ...]) -> Any:
        xp, (rows, columns) = namespace(self.arrays), region
        out = xp.empty((rows.stop - rows.start, self.columns), as_dtype(self.dtype))
        wide = accumulator(out.dtype)
        for first in range(rows.start - rows.start % _PANEL, rows.stop, _PANEL):
            rng = xp.random.default_rng(self.seed * 2**20 + first // _PANEL)
            panel = rng.standard_normal((_PANEL, self.columns), dtype=wide)
            low, high = max(first, rows.start), min(first + _PANEL, rows.stop)
            part = panel[low - first : high - first].astype(out.dtype, copy=False)
            out[low - rows.start : high - rows.start] = part
        return out[:, columns]
