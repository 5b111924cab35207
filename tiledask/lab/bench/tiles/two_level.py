"""The two-level product on one device: td.matmul over 1, 2, 4 workers that share it, beside the
library alone, turn by turn."""

import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

from tiledask.lab.bench.tiles.clock import ContestClock
from tiledask.lab.bench.tiles.rounds import Gemm, error_of, reference
from tiledask.tile.backend import accumulator, as_dtype, namespace, synchronize

__all__ = ["ALONE", "two_level"]

ALONE = "alone"
_PANEL = 256
"""Rows that one generator draws: whoever holds them draws the same."""
_PATIENCE = 120.0


def two_level(
    work: Gemm,
    workers: Sequence[int],
    clock: ContestClock,
    until: float,
    rounds: int,
    *,
    kernel: str = "blas",
    per_gpu: int | None = None,
) -> list[dict[str, Any]]:
    """A row per number of workers: seconds of td.matmul and of the library alone, in turn.

    Wall-clock time, from the call until the result is there; operands and result stay in the
    device's memory, blocks of rows of A, B and C with each worker. Beside the times are the bytes
    that moved and the most that a worker held, predicted and counted. ``kernel`` is that of the
    workers, ``per_gpu`` as `td.start_cluster` takes it.
    """
    rows = []
    for count in workers:
        head = {
            "work": str(work),
            "way": f"td.matmul, {count} worker{'s' * (count > 1)}",
            "workers": count,
            "all seconds": [],
            f"{ALONE}, all seconds": [],
        }
        if find_spec("distributed") is None:
            why = "no Dask here: pip install 'tiledask[gpu]' brings it"
            rows.append(head | {"state": "skipped", "why": why})
        elif time.monotonic() > until:
            rows.append(head | {"state": "left out", "why": "its part of the time was over"})
        else:
            rows.append(head | _measured(work, count, clock, until, rounds, kernel, per_gpu))
    return rows


def _measured(
    work: Gemm,
    count: int,
    clock: ContestClock,
    until: float,
    rounds: int,
    kernel: str,
    per_gpu: int | None,
) -> dict[str, Any]:
    import tiledask as td

    xp, dtype = namespace(clock.arrays), work.dtype.name
    a, b = (
        _Panels(dtype, seed, shape[1], clock.arrays)(tuple(slice(0, extent) for extent in shape))
        for seed, shape in enumerate(((work.m, work.k), (work.k, work.n)))
    )
    out = xp.empty((work.m, work.n), work.dtype)
    right = reference(a, b, clock.arrays, 0)
    device, threads = ("cuda", 1) if clock.arrays == "cupy" else ("cpu", _threads(count))
    mine: list[float] = []
    alone: list[float] = []
    try:
        with td.start_cluster(
            workers=count,
            device=device,
            threads=threads,
            quiet=True,
            timeout=_PATIENCE,
            per_gpu=per_gpu,
        ) as cluster:
            mesh = td.Mesh(cluster, (count,))
            A, B = (
                td.from_function(
                    _Panels(dtype, seed, shape[1], clock.arrays),
                    shape,
                    dtype,
                    mesh,
                    (td.Shard(0),),
                    timeout=_PATIENCE,
                )
                for seed, shape in enumerate(((work.m, work.k), (work.k, work.n)))
            )

            def product() -> Any:
                return td.matmul(A, B, kernel=kernel, timeout=_PATIENCE)

            error = error_of(xp.asarray(td.to_numpy(product())), right, clock.arrays)
            if not error <= work.limit:
                return {
                    "state": "wrong",
                    "error": error,
                    "error limit": work.limit,
                    "why": f"a relative error of {error:.2g}, at most {work.limit:.2g} is right",
                }
            for turn in range(-1, rounds):  # the first one warms up
                if turn > 0 and time.monotonic() > until:
                    break
                times = (
                    _seconds(lambda: xp.matmul(a, b, out=out), out),
                    _seconds(product, out),
                )
                if turn >= 0:
                    alone.append(times[0])
                    mine.append(times[1])
            last = product()
    except Exception as error:  # no GPU workers, no memory, a kernel that this type has not
        return {"state": "failed", "why": f"{type(error).__name__}: {error}"}
    return {
        "state": "timed",
        "why": "",
        "error": error,
        "error limit": work.limit,
        "algorithm": last.made_by,
        **_counted(last),
        "rounds": len(mine),
        "all seconds": mine,
        f"{ALONE}, all seconds": alone,
        "min": min(mine),
        "median": median(mine),
        "max": max(mine),
        f"{ALONE}, median": median(alone),
        "TFLOP/s": work.flops / median(mine) / 1e12,
    }


def _counted(made: Any) -> dict[str, Any]:
    """Bytes between workers, and at most on one of them; None where a worker did not say."""
    moved, held = made.traffic, made.memory
    return {
        "bytes moved, predicted": moved.predicted.total,
        "bytes moved": moved.measured and moved.measured.total,
        "peak bytes, predicted": held.predicted.peak,
        "peak bytes": held.measured and held.measured.peak,
        "seconds by rank": [
            {name: value for name, value in vars(rank).items() if name != "spans"}
            for rank in made.spent
        ],
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
