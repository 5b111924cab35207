"""The two-level product: td.matmul over workers that share a GPU, over GPUs, and from host memory.

in memory      A, B and C in blocks of rows with 1, 2, 4 workers, beside the library alone, in turn
host memory    A, B and C in files in memory, a few panels at a time on the device, beside what the
               link or the GPU could do at best: max(bytes / link, FLOP / speed)
"""

import os
import time
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pytest
from gpu.contest import Gemm, error_of, reference
from gpu.devices import LESS, memory_of, on, release

import tiledask as td
from tiledask.tile.backend import accumulator, as_dtype, namespace, probe, synchronize
from tiledask.tile.table import kernels

pytestmark = pytest.mark.cluster

N = 32768
MATRICES = 10
"""That there is room for: A, B and C of the library alone and of the workers, sums of C in
float32, a panel, and a reference."""
PANEL = 128
"""Rows that one generator draws, whoever holds them; blocks are of so many, or several times."""
WGMMA = "wgmma_ws_persistent"
# size, workers, workers a GPU, kernel; the larger one weighs a call's milliseconds an eighth
SHARED = [(N, 1, 1, "blas"), (2 * N, 1, 1, "blas"), (N, 2, 2, "blas"), (N, 4, 4, "blas"),
          (N, 1, 1, WGMMA), (N, 2, 2, WGMMA), (N // 4, 1, 1, "blas"), (N // 4, 2, 2, "blas"),
          (N, 2, 1, "blas"), (N, 4, 2, "blas")]  # fmt: skip


def panels(seed, columns, dtype, arrays):
    """(region) -> standard normal numbers, the same however the rows are shared out."""

    def drawn(region):
        xp, rows = namespace(arrays), region[0]
        out = xp.empty((rows.stop - rows.start, columns), as_dtype(dtype))
        for first in range(rows.start, rows.stop, PANEL):
            rng = xp.random.default_rng(seed * 2**20 + first // PANEL)
            panel = rng.standard_normal((PANEL, columns), dtype=accumulator(out.dtype))
            out[first - rows.start :][:PANEL] = panel[: rows.stop - first]
        return out[:, region[1]]

    return drawn


def seconds(call, x):
    begun = time.perf_counter()
    call()
    synchronize(x)
    return time.perf_counter() - begun


@pytest.mark.parametrize(
    ("arrays", "n", "workers", "per_gpu", "kernel"), on(SHARED, [(N // 2, 2, 2, "blas")])
)
def test_in_memory(note, on_workers, arrays, n, workers, per_gpu, kernel):
    n, gpus = n // LESS[arrays], -(-workers // per_gpu)
    if arrays == "cupy":
        if kernels[kernel].why_not or gpus > len(probe().devices):
            pytest.skip(kernels[kernel].why_not or f"it takes {gpus} GPUs")
        if MATRICES * n * n * 2 > 0.8 * memory_of(arrays):
            pytest.skip("the GPU is too small for it")
    work = Gemm(n, n, n, "bf16" if arrays == "cupy" else "fp32")
    xp, dtype, whole = namespace(arrays), work.dtype.name, (slice(0, n), slice(0, n))
    release(arrays)
    draw = [panels(seed, n, dtype, arrays) for seed in (0, 1)]
    a, b, out = draw[0](whole), draw[1](whole), xp.empty((n, n), work.dtype)
    mesh = td.Mesh(on_workers(arrays, workers, per_gpu), (workers,))
    A, B = (td.from_function(one, (n, n), dtype, mesh, (td.Shard(0),)) for one in draw)
    made = td.matmul(A, B, kernel=kernel)
    error = error_of(xp.asarray(td.to_numpy(made)), reference(a, b, arrays, 0), arrays)
    runs = (lambda: xp.matmul(a, b, out=out)), (lambda: td.matmul(A, B, kernel=kernel))
    rounds = [[seconds(run, out) for run in runs] for _ in range(6 if arrays == "cupy" else 2)]
    alone, ours = map(median, zip(*rounds[1:], strict=True))  # the first one warms up
    ratio = alone / ours / gpus
    goal = {"goal": "two-level", "reached": ratio} if (n, kernel) == (N, "blas") else {}
    many = f"{workers} worker{'s' * (workers > 1)} on {gpus} GPU{'s' * (gpus > 1)}"
    moved, held = made.traffic, made.memory
    note(
        f"{work}, {many}, {kernel}",
        "timed" if error <= work.limit else "wrong",
        **{"kernel": kernel, "shape": [n] * 3, "precision": work.precision, "workers": workers},
        **{"gpus": gpus, "work": str(work), "error": error, "error limit": work.limit},
        **{"algorithm": made.made_by, "rounds": len(rounds) - 1, "seconds": ours},
        **{"alone, median": alone, "TFLOP/s": work.flops / ours / 1e12},
        **{"bytes moved, predicted": moved.predicted.total, "bytes moved": moved.measured.total},
        **{"peak bytes, predicted": held.predicted.peak},
        **{"peak bytes": held.measured and held.measured.peak, "ratio": ratio, **goal},
    )
    assert error <= work.limit
    assert moved.measured.total == moved.predicted.total


# -- from host memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(("arrays", "workers"), on([(1,), (2,)], [(2,)]))
def test_from_host_memory(note, on_workers, tmp_path, arrays, workers):
    work = Gemm(*[N // LESS[arrays]] * 3, "fp16" if arrays == "cupy" else "fp32")
    n, dtype = work.n, work.dtype
    if arrays == "cupy" and workers > len(probe().devices):
        pytest.skip(f"it takes {workers} GPUs")
    need, shared = 8 * n * n * dtype.itemsize, Path("/dev/shm")
    if psutil.virtual_memory().available < need:
        pytest.skip(f"it takes {need / 1e9:.0f} GB of host memory")
    in_memory = os.access(shared, os.W_OK) and psutil.disk_usage(str(shared)).free > need
    folder = shared if in_memory else tmp_path
    paths = [folder / f"tiledask-{os.getpid()}-{name}.npy" for name in "ABC"]
    try:
        a, b = (written(path, n, dtype, seed) for seed, path in enumerate(paths[:2]))
        release(arrays)
        limit = max(n * n * dtype.itemsize, 3 * n * 8192)
        cluster, files = on_workers(arrays, workers), [td.open_array(p) for p in paths[:2]]
        how = {"cluster": cluster, "memory_limit": limit, "overwrite": True, "progress": False}
        runs = [td.matmul(*files, out=paths[2], timeout=240.0, **how) for _ in range(2)]
        rows, values = reference(a, b, "numpy", 2, stride=max(1, n // 16))
        off = np.load(paths[2], mmap_mode="r")[rows].astype("f8") - values
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    error = float(np.linalg.norm(off) / np.linalg.norm(values))
    made, took = runs[-1], [run.seconds for run in runs]
    read, held = made.bytes_read, made.memory
    best = bound(work, workers, read.measured, min(took)) if arrays == "cupy" else {}
    note(
        f"{dtype} {n} cubed from host memory, {workers} worker{'s' * (workers > 1)}",
        "timed" if error <= work.limit else "wrong",
        **{"shape": [n] * 3, "workers": workers, "precision": dtype.name, "in_memory": in_memory},
        **{"seconds": min(took), "all seconds": took, "error": error, "limit": work.limit},
        **{"bytes read, predicted": read.predicted, "bytes read": read.measured},
        **{"share of a worker": limit, "peak bytes, predicted": held.predicted.peak},
        **{"peak bytes": held.measured and held.measured.peak, **best},
    )
    assert error <= work.limit
    assert read.measured == read.predicted


def written(path, n, dtype, seed):
    """The matrix in the file ``path``: a panel of rows again and again, each time rolled on."""
    rng = np.random.default_rng(seed)
    panel = rng.standard_normal((min(n, 1024), n), np.float32).astype(dtype)
    found = np.lib.format.open_memmap(path, "w+", dtype, (n, n))
    for number, top in enumerate(range(0, n, len(panel))):
        found[top : top + len(panel)] = np.roll(panel, 17 * number, axis=1)[: n - top]
    return found


def bound(work, gpus, nbytes, took):
    """What could not be undercut: the bytes over the link, the operations at cupy.matmul's speed,
    each on all GPUs at once."""
    xp, side = namespace("cupy"), min(work.n, 8192)
    a, b, c = (xp.random.default_rng(i).standard_normal((side, side), "f4") for i in range(3))
    a, b, c = (each.astype(work.dtype) for each in (a, b, c))
    size = min(2**28, memory_of("cupy") // 8)
    x = xp.empty(size, "u1")
    pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(size), "u1", size)
    product = median(seconds(lambda: xp.matmul(a, b, out=c), c) for _ in range(5))
    copied = median(seconds(lambda: x.set(pinned), x) for _ in range(5))
    speed, link = 2 * side**3 / product, size / copied
    compute, moved = work.flops / speed / gpus, nbytes / link / gpus
    ratio = max(compute, moved) / took
    return {
        **{"FLOP/s alone": speed, "link bytes/s": link, "bound seconds": max(compute, moved)},
        **{"ratio": ratio, "bound by": "the GPU" if compute >= moved else "the link"},
        **({"goal": "host", "reached": ratio} if work.n == N else {}),
    }
