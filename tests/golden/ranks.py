"""Golden values of many devices: product plans, and collectives on threads of this process."""

from typing import Any

import numpy as np

import tiledask as td
from golden.store import GoldenSet, bits, digest, moved, numbers
from golden.tile import dtype_of


def panels_of(plan: Any) -> list[Any]:
    """By rank the panels in their order: the interval of k, and which ranks' pieces."""
    return [
        [[each.depth, [p.source for p in each.a], [p.source for p in each.b]] for each in mine]
        for mine in plan.panels
    ]


def addends_of(plan: Any) -> list[Any]:
    """By rank the partial sums that it adds up, in their order."""
    return [[[p.source, p.region] for p in mine] for mine in plan.partials] if plan.sums else []


def records_of(done: Any, ranks: int) -> list[list[list[Any]]]:
    """By rank what was called, by kind: [kind, calls, sent, received, messages]."""
    found: list[dict[str, list[Any]]] = [{} for _ in range(ranks)]
    for row in done.records:
        counts = found[row.rank].setdefault(row.kind, [row.kind, 0, 0, 0, 0])
        for n, more in enumerate((1, row.sent, row.received, row.messages), 1):
            counts[n] += more
    return [[counts[kind] for kind in sorted(counts)] for counts in found]


def placement(name: str) -> Any:
    """Of "R", "P", "S0", "S1", ..."""
    if name == "R":
        return td.Replicate()
    return td.Partial() if name == "P" else td.Shard(int(name[1:]))


def tiling(shape: list[int], mesh: list[int], placements: list[str]) -> Any:
    return td.Tiling(tuple(shape), tuple(mesh), tuple(map(placement, placements)))


def planned(given: dict[str, Any]) -> Any:
    """Of each algorithm bytes and messages by rank, and its order."""
    m, k, n = given["extents"]
    a = tiling([m, k], given["mesh"], given["a"])
    b = tiling([k, n], given["mesh"], given["b"])
    found: dict[str, Any] = {}
    for name, algorithm in td.algorithms.items():
        panel = {"panel": given["panel"]} if "panel" in algorithm.options else {}
        try:
            plan = algorithm(a, b, **panel)
        except ValueError as refused:
            found[name] = type(refused).__name__
            continue
        traffic = plan.traffic(given["itemsize"], max(4, given["itemsize"]))
        by_rank = moved(traffic)
        if traffic.ranks > 4:
            by_rank |= {"sent": digest(traffic.sent), "received": digest(traffic.received)}
        found[name] = {
            "total": traffic.total,
            **by_rank,
            "order": digest(panels_of(plan), addends_of(plan)),
            "result": str(plan.result),
        }
    return found


def collectives(given: dict[str, Any]) -> Any:
    """Bits of the sums of every collective on threads, and bytes and messages of each."""
    n, dtype = given["ranks"], dtype_of(given["dtype"])

    def program(rank: Any) -> dict[str, Any]:
        group, found = rank.group(), {}
        x = (numbers(rank.index + 1, 7, n + 3) * 2.0 ** (3 * rank.index % 8)).astype(dtype)
        for op in ("sum", "max"):
            found[f"all_reduce {op}"] = group.all_reduce(x, op)
            found[f"reduce_scatter {op}"] = group.reduce_scatter(x, 1, op)
        found["all_gather"] = group.all_gather(x, 1)
        found["all_to_all"] = group.all_to_all(x, 1, 0)
        found["broadcast"] = group.broadcast(x)
        reduced = group.reduce(x)
        found["reduce"] = x if reduced is None else reduced
        found["halo_exchange"] = group.halo_exchange(x, 0, 1, 2, extents=(7,) * n)
        if n > 1:
            found["sendrecv"] = group.sendrecv(x, (rank.index + 1) % n, (rank.index - 1) % n)
        return found

    done = td.run_threads(program, n)
    names = done.results[0]
    return {
        "bits": {name: bits(*(np.asarray(r[name]) for r in done.results)) for name in names},
        "calls": records_of(done, n) if n <= 3 else digest(records_of(done, n)),
    }


SETS = (
    GoldenSet("product_plans", planned),
    GoldenSet("collectives", collectives),
)
