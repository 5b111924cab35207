"""An algorithm for one product on workers: the bytes that move are counted."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import to_numpy
from tiledask.distributed.arrays.creation import distribute
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.arrays.redistribute import redistribute
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.matmul import matmul
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import exercise, none_wrong
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.comms import redistribution, traffic_of
from tiledask.plan.products.placement import Partial, Placement, Shard, Tiling
from tiledask.plan.products.product import (
    GRID_AXES,
    algorithms,
    grids,
    options_of,
    plan_product,
)
from tiledask.plan.products.product_plan import ProductPlan

__all__ = ["choreography"]

MB = 1_000_000
NARROW = 16
"""Columns of a panel where everything is tried: the width changes the memory, not the bytes."""
Placements = tuple[Placement, ...]


def _summed(placements: Placements) -> Placements:
    """As a product lies once its partial sums are added up."""
    return tuple(Shard(0) if isinstance(p, Partial) else p for p in placements)


def moved(plan: ProductPlan, itemsize: int) -> int:
    """The bytes that ``plan`` moves, with the sum of what it leaves partial."""
    target = plan.result.replaced(*_summed(plan.result.placements))
    sums = redistribution(plan.result, target) if target != plan.result else []
    return plan.traffic(itemsize).total + traffic_of(plan.ranks, sums, itemsize).total


def held(plan: ProductPlan, dtype: np.dtype) -> Ledger:
    """Blocks, fetched panels and partial sums on every rank."""
    return Ledger.of(row for row in ledger_of(plan, dtype).rows if row.tensor != "runtime")


def by_every_algorithm(a: Tiling, b: Tiling) -> Iterator[ProductPlan]:
    """The plans of every algorithm on every grid that it takes, with narrow panels."""
    for name in algorithms:
        takes = options_of(name)
        panel = NARROW if "panel" in takes else None
        for grid in grids(a.ranks, GRID_AXES[name]) if "grid" in takes else (None,):
            with suppress(PlacementError):  # not as they lie
                yield plan_product(name, a, b, panel=panel, grid=grid)


def fewest(plans: Iterable[ProductPlan], dtype: np.dtype, limit: int) -> int:
    """The fewest bytes that any of ``plans`` within ``limit`` moves."""
    return min(moved(plan, dtype.itemsize) for plan in plans if held(plan, dtype).peak <= limit)


def _arguments(answer: Any) -> dict[str, Any] | None:
    given = dict(answer)
    if given["algorithm"] not in algorithms:
        raise ConfigError(
            f"no algorithm {given['algorithm']!r}; td.algorithms has {', '.join(algorithms)}"
        )
    return given if set(given) <= {"algorithm", "panel", "grid", "replication"} else None


def _plan(given: dict[str, Any], a: Any, b: Any, mesh: Any, placements: Any) -> ProductPlan:
    at = [Tiling(each.shape, mesh, p) for each, p in zip((a, b), placements, strict=True)]
    options = {name: value for name, value in given.items() if name != "algorithm"}
    return plan_product(given["algorithm"], *at, **options)


def _planned(given: Any, cluster: Any, limit: int, **how: Any) -> Figure:
    plan = _plan(given or {"algorithm": "gather"}, **how)
    return plots.traffic_matrix(
        plan.traffic(how["a"].itemsize), title=f"{plan.algorithm}, as planned"
    )


@exercise("choreography", _arguments, _planned)
def choreography(
    given: dict[str, Any],
    cluster: Cluster,
    a: np.ndarray,
    b: np.ndarray,
    mesh: tuple[int, ...],
    placements: tuple[Placements, Placements],
    limit: int,
) -> list[Target]:
    """Choose algorithm and options of td.matmul so that C = A B moves the fewest bytes, and no
    worker holds too much of A, B, C, fetched panels and partial sums, as planned."""
    plan, over = _plan(given, a, b, mesh, placements), Mesh(cluster, mesh)
    A, B = (distribute(x, over, p) for x, p in zip((a, b), placements, strict=True))
    C = matmul(A, B, **given)
    received = C.traffic.measured.total
    if any(isinstance(p, Partial) for p in C.placements):
        C = redistribute(C, _summed(C.placements))
        received += C.traffic.measured.total
    ledger, best = held(plan, a.dtype), fewest(by_every_algorithm(plan.a, plan.b), a.dtype, limit)
    rank = ledger.binding[0]
    tensors = {name: size for name, size in ledger.by_tensor(rank).items() if size}
    parts = ", ".join(f"{name} {size / MB:.4g}" for name, size in tensors.items())
    panels = [(r, panel) for r, mine in enumerate(plan.panels) for panel in mine]
    of_a, of_b = (
        a.itemsize * sum(p.size for r, panel in panels for p in getattr(panel, of) if p.source != r)
        for of in "ab"
    )
    sums = moved(plan, a.itemsize) - of_a - of_b
    moves = (
        f"{of_a / MB:.4g} MB of A move, {of_b / MB:.4g} of B and {sums / MB:.4g} of partial sums "
        f"of C"
    )
    wrong = np.argwhere(to_numpy(C) != a @ b)
    first = [f"C[{i}, {j}] is wrong" for i, j in wrong[:1]]
    fullest = f"rank {rank} holds {parts} MB"
    return [
        Target("MB on the fullest worker", limit / MB, ledger.peak / MB, why=fullest),
        Target("MB between workers", best / MB, received / MB, best / MB, why=moves),
        none_wrong("wrong numbers in C", first, len(wrong)),
    ]
