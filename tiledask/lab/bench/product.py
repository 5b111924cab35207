"""`make bench-matmul`: td.matmul against one process's BLAS and against dask.array.

round 1   one process | td.matmul | every algorithm | dask.array, three chunkings
round 2   ...                      every way once per round: a slow minute slows all of them
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.rates import rates_of
from tiledask.lab.bench.peers import DaskArrays, Ran, count, dask_client
from tiledask.lab.bench.records import goals_table, record, resumed
from tiledask.lab.product_claims import GRID
from tiledask.plan.products.cost import break_even
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["WORKS", "ProductGoal", "main", "measure"]

ALONE = "one process, all cores"
OURS = "td.matmul"
BEST = "dask.array, best chunks"


@dataclass(frozen=True)
class ProductGoal:
    """A product to compare, and the speed it must reach against one process."""

    name: str
    shapes: tuple[tuple[int, int], ...]
    """Of the factors, multiplied from left to right."""
    dtype: str
    goal: float
    chunks: tuple[Any, ...]
    """Chunkings among which dask.array's best is sought; 1024 and "auto" always run."""


WORKS = {
    work.name: work
    for work in (
        ProductGoal("4096-f4", ((4096, 4096), (4096, 4096)), "f4", 0.85, (512, 2048, (2048, -1))),
        ProductGoal(
            "ffn-f4", ((4096, 4096), (4096, 16384), (16384, 4096)), "f4", 0.97, (2048, 4096, 8192)
        ),
        ProductGoal("8192-f4", ((8192, 8192), (8192, 8192)), "f4", 1.00, (2048, 4096, (4096, -1))),
        ProductGoal("8192-f8", ((8192, 8192), (8192, 8192)), "f8", 1.00, (2048, 4096, (4096, -1))),
    )
}

Start = Callable[[], tuple[Callable[[], Any], Callable[[Any], Ran]]]
"""Gets ready; (what the clock sees, what is asked about its result afterwards)."""


def _chain(first: Any, *rest: Any) -> Any:
    for factor in rest:
        first = first @ factor
    return first


def _square(cluster: Cluster, arrays: list[np.ndarray]) -> Iterator[tuple[str, Start]]:
    """A and B in row blocks, one per worker: the default, and by name every algorithm that is
    predicted to take at most a quarter longer than the fastest."""
    mesh = td.Mesh(cluster, (cluster.slots, 1))
    A, B = (td.distribute(x, mesh, GRID) for x in arrays)

    def way(**options: Any) -> Start:
        return lambda: (lambda: td.matmul(A, B, **options), lambda c: _facts([c]))

    yield OURS, way()
    choices = td.explain(A, B).choices
    fastest = min(choice.seconds for choice in choices)
    for choice in choices:
        if choice.seconds <= 1.25 * fastest:
            yield f"td.matmul, {choice.algorithm}", way(algorithm=choice.algorithm)


def _ffn(cluster: Cluster, arrays: list[np.ndarray]) -> Iterator[tuple[str, Start]]:
    """X replicated, A cut by columns, B by rows: nothing moves until the reduce-scatter."""
    line = td.Mesh(cluster, (cluster.slots,))
    placed = td.Replicate(), td.Shard(1), td.Shard(0)
    X, A, B = (td.distribute(x, line, [p]) for x, p in zip(arrays, placed, strict=True))

    def both() -> list[Any]:
        first = td.matmul(X, A)
        return [first, td.matmul(first, B, algorithm="row_parallel")]

    yield OURS, lambda: (both, _facts)


def _facts(products: list[Any]) -> Ran:
    """Facts of a chain of products, whose earlier results stay in memory."""
    moved = sum(c.traffic.measured.total for c in products)
    held, peak = 0, 0
    for c in products:
        grown = max(r.bytes for r in c.memory.measured.rows if r.tensor == "process growth")
        peak, held = max(peak, held + grown), held + max(c.block_bytes)
    spent = tuple(
        {name: value for name, value in vars(rank).items() if name != "spans"}
        for c in products
        for rank in c.spent
    )
    return Ran(moved, peak, spent, " then ".join(c.made_by for c in products))


def _dask(client: Any, arrays: list[np.ndarray], work: ProductGoal) -> dict[str, Start]:
    """dask.array at 1024, at its automatic chunks, and at the fastest found by trying."""
    names = {"auto": "automatic chunks", 1024: "chunks of 1024"}
    found: dict[Any, tuple[float, DaskArrays]] = {}
    for chunks in (1024, "auto", *work.chunks):
        peer = DaskArrays.of(client, arrays, chunks, _chain)
        seconds = []
        for _ in range(2):
            begun = perf_counter()
            peer.run()
            seconds.append(perf_counter() - begun)
        found[chunks] = (min(seconds), peer)
        best = min(found, key=lambda c: found[c][0])
        for other in [c for c in found if c not in (best, *names)]:
            del found[other]  # its operands leave the workers
    ways = {f"dask.array, {names[c]}": found[c][1] for c in names}
    ways[f"{BEST} ({best})"] = found[best][1]

    def way(peer: DaskArrays) -> Start:
        def start() -> tuple[Callable, Callable]:
            finish = count(client)
            return peer.run, lambda _: finish()

        return start

    return {name: way(peer) for name, peer in ways.items()}


def measure(work: ProductGoal, rounds: int, cluster: Cluster, client: Any) -> list[dict[str, Any]]:
    """A row per way: median seconds, speed against one process, bytes moved, peak memory."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(work.dtype) for shape in work.shapes]
    ours = _square if len(arrays) == 2 else _ffn
    ways = {
        ALONE: lambda: (lambda: _chain(*arrays), lambda _: Ran()),
        **dict(ours(cluster, arrays)),
        **_dask(client, arrays, work),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    facts: dict[str, Ran] = {}
    for turn in range(-1, rounds):  # the first one warms up
        for name in ways if turn % 2 else reversed(ways):
            run, ask = ways[name]()
            begun = perf_counter()
            result = run()
            took = perf_counter() - begun
            facts[name] = ask(result)
            del result
            if turn >= 0:
                seconds[name].append(took)
    alone = median(seconds[ALONE])
    return [
        {
            "work": work.name,
            "way": name,
            "seconds": median(seconds[name]),
            "rounds": rounds,
            "all seconds": [round(s, 4) for s in seconds[name]],
            "speed against one process": alone / median(seconds[name]),
            "bytes moved": facts[name].moved,
            "peak above operands": facts[name].peak,
            "algorithm": facts[name].algorithm,
            "spent": facts[name].spent,
        }
        for name in ways
    ]


def goals(work: ProductGoal, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached for ``work``, and what was."""
    by_way = {row["way"]: row for row in rows}
    ours = by_way[OURS]
    best = next(row for name, row in by_way.items() if name.startswith(BEST))
    named = [r for name, r in by_way.items() if name.startswith(OURS + ",")]
    against = (
        ("speed / one process", by_way[ALONE]["seconds"] / ours["seconds"], work.goal),
        (
            "speed / dask.array 1024",
            by_way["dask.array, chunks of 1024"]["seconds"] / ours["seconds"],
            3.5,
        ),
        (
            "speed / dask.array auto",
            by_way["dask.array, automatic chunks"]["seconds"] / ours["seconds"],
            1.5,
        ),
        ("speed / dask.array best", best["seconds"] / ours["seconds"], 1.3),
    )
    found = [(what, value, goal, value >= goal) for what, value, goal in against]
    if named:
        fastest = min(r["seconds"] for r in named)
        ratio = fastest / ours["seconds"]
        found.append(("speed / best algorithm by name", ratio, 0.9, ratio >= 0.9))
    for what, key, goal in (
        ("bytes / dask.array best", "bytes moved", 2 / 3),
        ("memory / dask.array best", "peak above operands", 1 / 2),
    ):
        if best[key]:  # dask.array moves nothing where it leaves all to one worker
            ratio = ours[key] / best[key]
            found.append((what, ratio, goal, ratio <= goal))
    return [
        {"work": work.name, "goal": what, "reached": value, "wanted": goal, "met": met}
        for what, value, goal, met in found
    ]


@contextmanager
def both_clusters(workers: int) -> Iterator[tuple[Cluster, Any]]:
    with (
        td.start_cluster(workers=workers, device="cpu", quiet=True) as cluster,
        dask_client(workers) as client,
    ):
        yield cluster, client


def main() -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", nargs="+", default=["4096-f4"], choices=[*WORKS, "all"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args()
    console, rows, reached = Console(), [], []
    with (
        resumed("product", console.print) as known,
        both_clusters(args.workers) as (cluster, client),
    ):
        rates = rates_of(cluster, "f4")
        pays = break_even(args.workers, 4, rates)
        for work in WORKS.values():
            if work.name in args.works or "all" in args.works:
                with console.status(f"{work.name}, {args.rounds} rounds"):
                    ask = partial(measure, work, args.rounds, cluster, client)
                    found = known.once(
                        ask, work=work.name, rounds=args.rounds, workers=args.workers
                    )
                rows += found
                reached += goals(work, found)
                console.print(_table(work, found))
                ours = next(row for row in found if row["way"] == OURS)
                slowest = max(ours["spent"], key=lambda s: s["multiply"])
                parts = ", ".join(
                    f"{kind} {format_seconds(value)}" for kind, value in slowest.items()
                )
                console.print(
                    f"where the last {OURS} spent its time (its slowest product and rank): {parts}"
                )
    if args.record:
        facts = {"rates": vars(rates), "pays from n": pays, "goals": reached, "rows": rows}
        record(Path(args.record), "tiledask.lab.bench.product", facts)
    console.print(goals_table(reached))
    console.print(
        f"One task costs {format_seconds(rates.task)}, a question to all workers "
        f"{format_seconds(rates.request)}; a float32 product over {args.workers} workers pays "
        f"from about n = {pays}."
    )
    return 0


def _table(work: ProductGoal, rows: list[dict[str, Any]]) -> Table:
    shape = " @ ".join("x".join(map(str, s)) for s in work.shapes)
    table = Table(title=f"{work.name}: {shape}, medians of {rows[0]['rounds']} interleaved rounds")
    for name in ("way", "time", "/ one process", "moved", "memory above operands"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        chosen = f" ({row['algorithm']})" if row["way"] == OURS else ""
        table.add_row(
            row["way"] + chosen,
            format_seconds(row["seconds"]),
            f"{row['speed against one process']:.2f}",
            format_bytes(row["bytes moved"]),
            format_bytes(row["peak above operands"]) if row["way"] != ALONE else "",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())
