"""Choose how a product is computed so that the fewest bytes move in little memory; run, counted."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import to_numpy
from tiledask.distributed.arrays.creation import distribute
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.matmul import matmul
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.exercises.products.placements import (
    finished,
    moved,
    parts_moved,
    wrong_numbers,
)
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.placement import Placement, Tiling
from tiledask.plan.products.product import GRID_AXES, algorithms, grids, options_of, plan_product
from tiledask.plan.products.product_plan import ProductPlan

__all__ = ["cheapest_choreography", "choices", "held", "moved"]

MB = 1_000_000
NARROW = 16
"""Columns of a panel where everything is tried: the width changes the memory, not the bytes."""

Pair = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""Placements of A and of B, one per mesh axis."""


def cheapest_choreography(
    cluster: Cluster,
    a: np.ndarray,
    b: np.ndarray,
    *,
    mesh: tuple[int, ...],
    placements: Pair,
    limit: int,
) -> Exercise:
    """Choose algorithm and options of td.matmul so that C = A B moves the fewest bytes.

    ``placements``: where A and B are when it begins. ``limit``: bytes that a worker may hold of A,
    B, C, fetched panels and partial sums, as planned. Partial sums that the product leaves are
    added up with Partial() -> Shard(0), and those bytes count too. The answer is a dict of
    td.matmul's arguments; it is run, and the bytes are those that workers received.
    """
    over, expected = Mesh(cluster, mesh), a @ b
    at = tuple(Tiling(x.shape, mesh, p) for x, p in zip((a, b), placements, strict=True))
    least = _fewest(*at, a.dtype, limit) / MB

    def measure(answer: tuple[dict[str, Any], ProductPlan]) -> list[Target]:
        given, plan = answer
        A, B = (distribute(x, over, p) for x, p in zip((a, b), placements, strict=True))
        C, received = finished(matmul(A, B, **given))
        parts = parts_moved(plan, a.itemsize, ("A", "B", "C"))
        return [
            Target(
                "MB on the fullest worker",
                limit / MB,
                held(plan, a.dtype) / MB,
                None,
                where=_fullest(plan, a.dtype),
            ),
            Target("MB between workers", least, received / MB, least, where=parts),
            wrong_numbers("C", to_numpy(C) != expected),
        ]

    def figure(answer: Any) -> Figure:
        if answer is None:
            named = dict(zip(("A", "B"), at, strict=True))
            return plots.owners(named, title="How A and B lie (not attempted)", roots=True)
        _, plan = answer
        words = ", ".join(filter(None, (plan.algorithm, plan.options)))
        title = f"{words}, as planned\n{held(plan, a.dtype) / MB:.2f} MB on the fullest worker"
        return plots.traffic_matrix(plan.traffic(a.itemsize), title=title)

    (m, k), n, grid = a.shape, b.shape[1], " x ".join(map(str, mesh))
    lie = "; ".join(
        f"{name} is {', '.join(map(str, p))}" for name, p in zip("AB", placements, strict=True)
    )
    return Exercise(
        name="the cheapest choreography",
        question=(
            f"A is {m} x {k} and B {k} x {n} in {a.dtype}, on a mesh of {grid}: {lie}. Choose the "
            f"algorithm of td.matmul and its options, so that no worker holds more than "
            f"{limit / MB:g} MB of A, B, C, fetched panels and partial sums, and at most "
            f"{least:g} MB move between workers; partial sums that are left are summed, and count."
        ),
        form=(
            "a dict of td.matmul's arguments: algorithm, and where it takes them panel, grid or "
            "replication; for example {'algorithm': 'summa', 'panel': 100}"
        ),
        hints=(
            "Which of m, n and k is the long one, and what would each algorithm have to bring of A "
            "and B if it doesn't cut that one?",
            "Cutting k leaves partial sums of C: whole ones on every rank are too large here, "
            "those of a layer are smaller.",
            "Layers of 2 x 1 or of 1 x 2 ranks: one of them uses how A lies already. And a panel "
            "as wide as it comes may not fit: td.matmul takes its width.",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: _planned(answer, *at),
    )


def _planned(answer: Any, a: Tiling, b: Tiling) -> tuple[dict[str, Any], ProductPlan] | None:
    """td.matmul's arguments, and what is planned with them."""
    takes = ("algorithm", "panel", "grid", "replication")
    given = dict(answer) if isinstance(answer, Mapping) else {}
    if "algorithm" not in given or not set(given) <= set(takes):
        return None
    if given["algorithm"] not in algorithms:
        raise ConfigError(
            f"no algorithm {given['algorithm']!r}; td.algorithms has {', '.join(algorithms)}"
        )
    options = {name: value for name, value in given.items() if name != "algorithm"}
    return given, plan_product(given["algorithm"], a, b, **options)


def _fewest(a: Tiling, b: Tiling, dtype: np.dtype, limit: int) -> int:
    """The fewest bytes that any choice within ``limit`` moves, found by planning them all."""
    fitting = [moved(p, dtype.itemsize) for p in choices(a, b) if held(p, dtype) <= limit]
    if not fitting:
        raise ConfigError(
            f"no choice for A {a.shape} and B {b.shape} on a mesh of {a.mesh} stays within "
            f"{limit:,} bytes a worker; raise the limit"
        )
    return min(fitting)


def choices(a: Tiling, b: Tiling) -> Iterator[ProductPlan]:
    """The plan of every algorithm on every grid that it takes, with narrow panels."""
    for name in algorithms:
        takes = options_of(name)
        panel = NARROW if "panel" in takes else None
        shapes = grids(a.ranks, GRID_AXES[name]) if "grid" in takes else (None,)
        for grid in shapes:
            try:
                yield plan_product(name, a, b, panel=panel, grid=grid)
            except PlacementError:  # not as they lie
                continue


def _fullest(plan: ProductPlan, dtype: np.dtype) -> str:
    """What is held on the fullest rank, in words."""
    ledger = Ledger.of(row for row in ledger_of(plan, dtype).rows if row.tensor != "runtime")
    rank = ledger.binding[0]
    held = {name: size for name, size in ledger.by_tensor(rank).items() if size}
    parts = ", ".join(f"{name} {size / MB:.4g}" for name, size in held.items())
    return f"rank {rank} holds {parts} MB"


def held(plan: ProductPlan, dtype: np.dtype) -> int:
    """Bytes of blocks, fetched panels and partial sums on the fullest rank, at their most."""
    rows = ledger_of(plan, dtype).rows
    return Ledger.of(row for row in rows if row.tensor != "runtime").peak
