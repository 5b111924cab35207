"""The two-level product: td.matmul over workers that share a GPU, over GPUs, and from host memory.

in memory      A, B and C in blocks of rows with 1, 2, 4 workers, beside cupy.matmul alone
host memory    A, B and C in files in memory, a few panels at a time on the device, beside what the
               link or the GPU could do at best: max(bytes / link, FLOP / speed)
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from tiledask.lab.gpu.contest.clock import ContestClock, clock_for
from tiledask.lab.gpu.contest.rounds import Gemm
from tiledask.lab.gpu.contest.two_level import two_level
from tiledask.lab.gpu.part import GpuPart, Notes, PartTable
from tiledask.lab.gpu.parts.sizes import memory_of_device, shown, shrink
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.backend import namespace, probe, synchronize
from tiledask.tile.table import kernels

__all__ = ["PARTS", "run"]

_N = 32768
_ARRAYS = 10
"""Matrices that there is room for: A, B and C of the library alone and of the workers, sums of C
in float32, a panel, and a reference."""
_PANEL = 1024
_ROUNDS = 5
_SAMPLE = 16
"""Rows of C that are compared with float64."""


def run(notes: Notes, arrays: str = "cupy") -> None:
    """A row per number of workers, kernel and size; then the products of files."""
    clock = clock_for(arrays)
    n = _fitting(arrays)
    gpus = len(probe().devices) if arrays == "cupy" else 1
    precision = "bf16" if arrays == "cupy" else "fp32"
    wgmma = "wgmma_ws_persistent"
    asked = [(n, 1, 1, "blas"), (n, 2, 2, "blas"), (n, 4, 4, "blas")]
    if gpus > 1:
        asked += [(n, gpus, 1, "blas"), (n, 2 * gpus, 2, "blas")]
    if arrays == "cupy" and not kernels[wgmma].why_not:
        asked += [(n, 1, 1, wgmma), (n, 2, 2, wgmma)]
    larger = 2 * n  # a call takes its milliseconds whatever the size: here they weigh an eighth
    if n == _N and _ARRAYS * larger**2 * 2 <= 0.8 * memory_of_device(arrays):
        asked.insert(1, (larger, 1, 1, "blas"))
    asked += [(n // 4, 1, 1, "blas"), (n // 4, 2, 2, "blas")]
    if arrays == "numpy":
        asked = asked[1:2]
    for n_here, workers, per_gpu, kernel in asked:
        work = Gemm(n_here, n_here, n_here, precision)
        _in_memory(notes, work, workers, per_gpu, kernel, clock)
    for workers in dict.fromkeys((1, gpus)):
        _from_host(notes, n, workers, clock)


def _fitting(arrays: str) -> int:
    """The largest power of two, up to _N, of which everything fits into the device's memory."""
    if arrays == "numpy":
        return 512
    less, n = shrink(arrays), _N
    if less > 1:
        return _N // 2 // less
    while _ARRAYS * n * n * 2 > 0.8 * memory_of_device(arrays):
        n //= 2
    return n


def _in_memory(
    notes: Notes, work: Gemm, workers: int, per_gpu: int, kernel: str, clock: ContestClock
) -> None:
    gpus = -(-workers // per_gpu)
    many = f"{workers} worker{'s' * (workers > 1)} on {gpus} GPU{'s' * (gpus > 1)}"
    key = f"{work}, {many}, {kernel}"
    shape = [work.m, work.n, work.k]
    if notes.has(key) or notes.late(key, 30):
        return
    seconds = min(60.0, notes.left() / 3)
    notes.begin(
        key,
        seconds=min(notes.left(), seconds + 240),
        kernel=kernel,
        shape=shape,
        precision=work.precision,
        workers=workers,
        gpus=gpus,
    )
    notes.say(key)
    clock.release()
    shared = per_gpu if clock.arrays == "cupy" else None
    until = time.monotonic() + seconds
    with notes.failing(key):  # no GPU workers, no memory, a kernel that this type has not
        row = two_level(work, workers, clock, until, _ROUNDS, kernel=kernel, per_gpu=shared)
        if row["state"] == "timed":
            row["ratio"] = row["alone, median"] / row["seconds"] / gpus
            if work.m == _N and kernel == "blas":
                row |= {"goal": "two-level", "reached": row["ratio"]}
        notes.add(key, **row)


# -- from host memory ----------------------------------------------------------------------------


def _from_host(notes: Notes, n: int, workers: int, clock: ContestClock) -> None:
    import tiledask as td

    dtype = np.dtype("f2" if clock.arrays == "cupy" else "f4")
    key = f"{dtype} {n} cubed from host memory, {workers} worker{'s' * (workers > 1)}"
    if notes.has(key) or notes.late(key, 40):
        return
    need, nbytes = 4 * n * n * dtype.itemsize, n * n * dtype.itemsize
    folder = _in_host_memory(need) or notes.folder
    if psutil.virtual_memory().available < 2 * need:
        notes.add(key, "skipped", why=f"it takes {format_bytes(2 * need)} of host memory")
        return
    patience = min(notes.left() - 10, 240.0)
    notes.begin(
        key,
        seconds=patience + 5,
        shape=[n, n, n],
        workers=workers,
        precision=dtype.name,
        in_memory=folder != notes.folder,
    )
    notes.say(key)
    device = "cuda" if clock.arrays == "cupy" else "cpu"
    paths = [folder / f"tiledask-{os.getpid()}-{name}.npy" for name in "ABC"]
    with ExitStack() as end, notes.failing(key):
        for path in paths:
            end.callback(path.unlink, missing_ok=True)
        a, b = (_written(path, n, dtype, seed) for seed, path in enumerate(paths[:2]))
        clock.release()
        share = max(nbytes, 3 * n * 8192)
        with td.start_cluster(workers=workers, device=device, quiet=True, timeout=120) as cluster:
            files = [td.open_array(path) for path in paths[:2]]
            took = []
            until = time.monotonic() + patience / 3
            while len(took) < 3 and (len(took) < 2 or time.monotonic() < until):
                made = td.matmul(
                    *files,
                    out=paths[2],
                    cluster=cluster,
                    memory_limit=share,
                    overwrite=True,
                    timeout=patience,
                    progress=False,
                )
                took.append(made.seconds)
        error, limit = _error(a, b, paths[2], dtype)
        found = {
            "seconds": min(took),
            "all seconds": took,
            "error": error,
            "limit": limit,
            "bytes read, predicted": made.bytes_read.predicted,
            "bytes read": made.bytes_read.measured,
            "share of a worker": share,
            "peak bytes, predicted": made.memory.predicted.peak,
            "peak bytes": made.memory.measured and made.memory.measured.peak,
        }
        if not error <= limit:
            notes.add(key, "wrong", why=f"a relative error of {error:.2g}", **found)
        else:
            notes.add(key, "timed", **found, **_bound(n, dtype, workers, found, clock))


def _in_host_memory(need: int) -> Path | None:
    """A folder whose files lie in memory, with room for ``need`` bytes."""
    shared = Path("/dev/shm")
    with suppress(OSError):
        if os.access(shared, os.W_OK) and psutil.disk_usage(str(shared)).free > need:
            return shared
    return None


def _written(path: Path, n: int, dtype: np.dtype, seed: int) -> np.ndarray:
    """The matrix in the file ``path``: normal numbers, a panel of rows again and again, turned."""
    rng = np.random.default_rng(seed)
    panel = rng.standard_normal((min(n, _PANEL), n), np.float32).astype(dtype)
    found = np.lib.format.open_memmap(path, "w+", dtype, (n, n))
    for number, top in enumerate(range(0, n, len(panel))):
        found[top : top + len(panel)] = np.roll(panel, 17 * number, axis=1)[: n - top]
    return found


def _error(a: np.ndarray, b: np.ndarray, path: Path, dtype: np.dtype) -> tuple[float, float]:
    """(relative error of some rows of the result, what is right)."""
    rows = np.random.default_rng(2).integers(0, len(a), _SAMPLE)
    got, wide = np.load(path, mmap_mode="r")[rows].astype("f8"), a[rows].astype("f8")
    exact = np.empty_like(got)
    for left in range(0, b.shape[1], _PANEL):
        columns = slice(left, left + _PANEL)
        exact[:, columns] = wide @ b[:, columns].astype("f8")
    limit = Gemm(*a.shape, len(b), {2: "fp16", 4: "fp32"}[dtype.itemsize]).limit
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact)), limit


def _bound(
    n: int, dtype: np.dtype, gpus: int, found: dict[str, Any], clock: ContestClock
) -> dict[str, Any]:
    """What could not be undercut: the bytes over the link, the operations at cupy.matmul's speed,
    each on all GPUs at once."""
    if clock.arrays == "numpy":
        return {}
    xp = namespace("cupy")
    side = min(n, 8192)
    a, b = (
        xp.random.default_rng(i).standard_normal((side, side), dtype=np.float32).astype(dtype)
        for i in range(2)
    )
    c = xp.empty_like(a)
    speed = 2 * side**3 / _best(lambda: xp.matmul(a, b, out=c), c)
    nbytes = min(2**28, memory_of_device() // 8)
    x = xp.empty(nbytes, "u1")
    pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(nbytes), "u1", nbytes)
    link = nbytes / _best(lambda: x.set(pinned), x)
    compute, moved = 2 * n**3 / speed / gpus, found["bytes read"] / link / gpus
    bound = max(compute, moved)
    ratio = bound / found["seconds"]
    return {
        "FLOP/s alone": speed,
        "link bytes/s": link,
        "bound seconds": bound,
        "ratio": ratio,
        "bound by": "the GPU" if compute >= moved else "the link",
        **({"goal": "host", "reached": ratio} if n == _N else {}),
    }


def _best(call: Callable[[], Any], x: Any) -> float:
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        call()
        synchronize(x)
        times.append(time.perf_counter() - begun)
    return median(times[1:])


# -- for the page --------------------------------------------------------------------------------


def tables(rows: Sequence[dict[str, Any]]) -> list[PartTable]:
    """Times and ratios; bytes and peaks, predicted and counted."""
    timed = [row for row in rows if row["state"] == "timed"]
    others = [(row["key"], row["state"], "", "") for row in rows if row["state"] != "timed"]
    times = [
        (
            row["key"],
            format_seconds(row["seconds"]),
            f"{row['ratio']:.3f}" if row.get("ratio") else "-",
            row.get("algorithm", "streamed"),
        )
        for row in timed
    ]
    counted = [
        (
            row["key"],
            *(
                shown(row.get(f"bytes moved{said}", row.get(f"bytes read{said}")))
                for said in (", predicted", "")
            ),
            *(shown(row.get(f"peak bytes{said}")) for said in (", predicted", "")),
        )
        for row in timed
    ]
    head = ("product", "moved or read, predicted", "counted", "peak, predicted", "measured")
    speeds = ("product", "time", "speed / alone, or / bound", "by")
    return [
        PartTable(speeds, [*times, *others], "Times", left=(0, 3)),
        PartTable(head, counted, "Bytes: in all, and on the fullest worker"),
    ]


PARTS = (
    GpuPart(
        "product",
        "The two-level product on one GPU and several, in memory and from host memory.",
        5.0,
        ("cupy", "distributed", "dask_cuda"),
        run,
        tables,
    ),
)
