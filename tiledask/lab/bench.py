"""Compare with peers on this machine: the same product, the same run, interleaved, medians.

round 1   one process | td.matmul | dask.array        every way once per round, so that a
round 2   one process | td.matmul | dask.array ...    slow minute slows all of them
"""

import argparse
import json
import os
import platform
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np
from rich.console import Console
from rich.table import Table

import tiledask as td
from tiledask.dist.cluster import Cluster
from tiledask.dist.counters import counting
from tiledask.lab.doctor import examine
from tiledask.lab.product import GRID
from tiledask.lab.report import library_versions
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["main", "measure"]

Way = Callable[[], int]
"""Runs the product once; bytes moved between workers."""


def ways(n: int, cluster: Cluster) -> dict[str, Way]:
    """The product of two n x n float32 matrices, every way; operands are on the workers."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    mesh = td.Mesh(cluster, (cluster.slots, 1))
    A, B = (td.distribute(x, mesh, GRID) for x in (a, b))
    rows = td.distribute(a, mesh, (td.Shard(0), td.Replicate()))
    whole = td.distribute(b, mesh, (td.Replicate(), td.Replicate()))
    expected = a @ b

    def check(c: np.ndarray) -> None:
        np.testing.assert_allclose(c, expected, atol=n * np.finfo(np.float32).eps * 20)

    def one_process() -> int:
        a @ b
        return 0

    def ours(left: Any, right: Any, **options: Any) -> Way:
        check(td.to_numpy(td.matmul(left, right, **options)))
        return lambda: td.matmul(left, right, **options).traffic.measured.total

    def dask_array(chunks: Any) -> Way:
        with warnings.catch_warnings():  # of a large graph: only here, before any clock runs
            warnings.simplefilter("ignore", UserWarning)
            x, y = (cluster.client.persist(da.from_array(v, chunks=chunks)) for v in (a, b))
        check((x @ y).compute())

        def run() -> int:
            with counting(cluster) as counted:
                product = cluster.client.persist(x @ y)
                cluster.wait(list(product.dask.values()), "dask.array's product")
            return counted.traffic.total

        return run

    return {
        "one process, all cores": one_process,
        "td.matmul, summa": ours(A, B),
        "td.matmul, summa, tiled 512": ours(A, B, kernel="tiled", tile=512),
        "td.matmul, rows of A, B replicated": ours(rows, whole),
        "dask.array, automatic chunks": dask_array("auto"),
        f"dask.array, chunks of {n // 4}": dask_array(n // 4),
    }


def measure(n: int, rounds: int, cluster: Cluster) -> list[dict[str, Any]]:
    """A row per way: median seconds, speed against one process, bytes moved."""
    found = ways(n, cluster)
    seconds: dict[str, list[float]] = {name: [] for name in found}
    moved: dict[str, int] = {}
    for _ in range(rounds):
        for name, way in found.items():
            begun = perf_counter()
            moved[name] = way()
            seconds[name].append(perf_counter() - begun)
    alone = median(seconds["one process, all cores"])
    return [
        {"n": n, "way": name, "seconds": median(seconds[name]), "rounds": rounds,
         "speed against one process": alone / median(seconds[name]), "bytes moved": moved[name]}
        for name in found
    ]  # fmt: skip


def task_overhead(cluster: Cluster, tasks: int = 300) -> float:
    """Seconds per task that does nothing, client and scheduler included."""
    begun = perf_counter()
    cluster.wait(
        [cluster.submit(i % cluster.slots, int, name="nothing") for i in range(tasks)], "tasks"
    )
    return (perf_counter() - begun) / tasks


def main() -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args()
    console, rows = Console(), []
    with td.start_cluster() as cluster:
        overhead = task_overhead(cluster)
        for n in args.sizes:
            with console.status(f"{n} x {n} x {n} float32, {args.rounds} rounds"):
                rows += measure(n, args.rounds, cluster)
    console.print(_table(rows, args.rounds))
    console.print(f"overhead of one task: {format_seconds(overhead)}")
    if args.record:
        _record(Path(args.record), rows, overhead)
    return 0


def _table(rows: list[dict[str, Any]], rounds: int) -> Table:
    table = Table(title=f"n x n x n float32 products, medians of {rounds} interleaved rounds")
    for name in ("n", "way", "time", "speed against one process", "moved between workers"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        table.add_row(
            str(row["n"]), row["way"], format_seconds(row["seconds"]),
            f"{row['speed against one process']:.2f}", format_bytes(row["bytes moved"]),
            end_section=row["way"].startswith("dask.array, chunks of"),
        )  # fmt: skip
    return table


def _record(path: Path, rows: list[dict[str, Any]], overhead: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "command": "python -m tiledask.lab.bench --record FILE.json",
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {f.name: f.found.replace(os.getcwd(), ".") for f in examine()},
        "processor": platform.processor() or platform.machine(),
        "versions": library_versions(),
        "seconds per empty task": overhead,
        "rows": rows,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
