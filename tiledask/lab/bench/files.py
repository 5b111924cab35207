"""`make bench-files`: a product of matrices in files that workers of 1 GB could never hold.

One process with all cores over memory maps, td.matmul over .npy files, and dask.array from memory
maps into a memory map; the same files, one after the other, medians.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table

import tiledask as td
from tiledask.lab.bench.peers import Ran, count
from tiledask.lab.bench.records import record
from tiledask.plan.units import format_bytes, format_seconds, parse_bytes

__all__ = ["main", "measure"]

ALONE, OURS, DASK = "one process, memory maps", "td.matmul, .npy files", "dask.array, memory maps"


def measure(n: int, rounds: int, workers: int, memory: int, folder: Path) -> list[dict[str, Any]]:
    """A row per way: median seconds, bytes read, peak memory of the fullest worker."""
    for name, seed in (("a", 1), ("b", 2)):
        path = folder / f"{name}.npy"
        rng = np.random.default_rng(seed)
        out = np.lib.format.open_memmap(path, "w+", np.float32, (n, n))
        for row in range(0, n, 1024):
            out[row : row + 1024] = rng.standard_normal((min(1024, n - row), n), np.float32)
        out.flush()
    a, b = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "ab")
    ways: dict[str, Callable[[], Ran]] = {
        ALONE: lambda: _alone(a, b, folder / "alone.npy"),
        OURS: lambda: _ours(folder, workers, memory),
        DASK: lambda: _dask(a, b, folder / "dask.npy", workers, memory),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    facts: dict[str, Ran] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            facts[name] = way()
            seconds[name].append(facts[name].seconds)
    _agree(folder, n)
    alone = median(seconds[ALONE])
    return [
        {
            "way": name,
            "n": n,
            "seconds": median(seconds[name]),
            "all seconds": seconds[name],
            "speed against one process": alone / median(seconds[name]),
            "rounds": rounds,
            "bytes moved": facts[name].moved,
            "peak above idle": facts[name].peak,
            "bytes read": facts[name].read,
        }
        for name in ways
    ]


def _alone(a: np.ndarray, b: np.ndarray, path: Path) -> Ran:
    begun = perf_counter()
    out = np.lib.format.open_memmap(path, "w+", np.float32, (len(a), len(a)))
    np.matmul(a, b, out=out)
    out.flush()
    return Ran(seconds=perf_counter() - begun)


def _ours(folder: Path, workers: int, memory: int) -> Ran:
    a, b = (td.open_array(folder / f"{name}.npy") for name in "ab")
    with td.start_cluster(workers, device="cpu", memory_limit=memory, quiet=True) as cluster:
        begun = perf_counter()
        c = td.matmul(a, b, out=folder / "ours.npy", cluster=cluster, overwrite=True, timeout=3600)
        seconds = perf_counter() - begun
    return Ran(
        c.traffic.measured.total,
        c.memory.measured.peak,
        seconds=seconds,
        read=c.bytes_read.measured,
    )


def _dask(a: np.ndarray, b: np.ndarray, path: Path, workers: int, memory: int) -> Ran:
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=memory,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
        dask.config.set({"distributed.scheduler.worker-saturation": 1.1}),
    ):
        finish = count(client)
        begun = perf_counter()
        out = np.lib.format.open_memmap(path, "w+", np.float32, (len(a), len(a)))
        x, y = (_from_file(Path(m.filename), len(a)) for m in (a, b))
        da.store(x @ y, _File(str(path)), lock=False)
        out.flush()
        seconds = perf_counter() - begun
        ran = finish()
    return Ran(ran.moved, ran.peak, seconds=seconds)


def _from_file(path: Path, n: int) -> da.Array:
    """Chunks that each worker reads for itself: nothing of the file is in the graph."""
    size = 2048
    chunks = tuple(min(size, n - at) for at in range(0, n, size))

    def block(block_info: Any = None) -> np.ndarray:
        (r0, r1), (c0, c1) = block_info[None]["array-location"]
        return np.array(np.load(path, mmap_mode="r")[r0:r1, c0:c1])

    return da.map_blocks(
        block, chunks=(chunks, chunks), dtype=np.float32, meta=np.empty((0, 0), "f4")
    )


class _File:
    """What da.store writes to: the .npy file, opened where it is written."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __setitem__(self, where: Any, block: np.ndarray) -> None:
        np.load(self.path, mmap_mode="r+")[where] = block


def _agree(folder: Path, n: int) -> None:
    """All results are the same but for rounding; some rows of them are compared."""
    rows = np.linspace(0, n - 1, 64).astype(int)
    a, b = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "ab")
    expected = a[rows] @ b
    for name in ("alone", "ours", "dask"):
        found = np.load(folder / f"{name}.npy", mmap_mode="r")[rows]
        np.testing.assert_allclose(found, expected, atol=n * np.finfo(np.float32).eps * 20)


def main() -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=22528, help="n of n x n (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="1GB", help="of each worker (%(default)s)")
    parser.add_argument("--folder", help="where the files go (default: the system's temporary one)")
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args()
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="tiledask-bench-", dir=args.folder))
    try:
        rows = measure(args.size, args.rounds, args.workers, parse_bytes(args.memory), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    stored = format_bytes(3 * args.size**2 * 4)
    table = Table(
        title=f"{args.size}^3 float32, {stored} of files, {args.workers} workers of {args.memory}, "
        f"medians of {args.rounds}"
    )
    for name in ("way", "time", "/ one process", "read", "moved", "memory above idle"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        table.add_row(
            row["way"],
            format_seconds(row["seconds"]),
            f"{row['speed against one process']:.2f}",
            format_bytes(row["bytes read"]),
            format_bytes(row["bytes moved"]),
            format_bytes(row["peak above idle"]),
        )
    console.print(table)
    if args.record:
        record(Path(args.record), "tiledask.lab.bench.files", {"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
