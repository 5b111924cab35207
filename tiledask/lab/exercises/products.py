"""Products on workers: where operands lie, by which algorithm; the bytes that move are counted."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
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
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.products.product import (
    GRID_AXES,
    algorithms,
    gather,
    grids,
    options_of,
    plan_product,
)
from tiledask.plan.products.product_plan import ProductPlan

__all__ = ["choreography", "fewest_bytes"]

MB = 1_000_000
Placements = tuple[Placement, ...]
Pair = tuple[Placements, Placements]
"""Placements of both operands, one per mesh axis."""


def _at(pair: Pair, mesh: tuple[int, ...], *operands: Any) -> list[Tiling]:
    return [Tiling(each.shape, mesh, at) for each, at in zip(operands, pair, strict=True)]


def _summed(placements: Placements) -> Placements:
    """As a product lies once its partial sums are added up."""
    return tuple(Shard(0) if isinstance(p, Partial) else p for p in placements)


def moved(plan: ProductPlan, itemsize: int) -> int:
    """The bytes that ``plan`` moves, with the sum of what it leaves partial."""
    target = plan.result.replaced(*_summed(plan.result.placements))
    sums = redistribution(plan.result, target) if target != plan.result else []
    return plan.traffic(itemsize).total + traffic_of(plan.ranks, sums, itemsize).total


def held(plan: ProductPlan, dtype: np.dtype, tensors: str = "") -> Ledger:
    """Blocks, fetched panels and partial sums on every rank; of ``tensors`` alone, if given."""
    rows = (row for row in ledger_of(plan, dtype).rows if row.tensor != "runtime")
    return Ledger.of(row for row in rows if not tensors or row.tensor in tensors)


def fewest(plans: Iterable[ProductPlan], dtype: np.dtype, limit: int, tensors: str = "") -> int:
    """The fewest bytes that any of ``plans`` within ``limit`` moves."""
    return min(moved(p, dtype.itemsize) for p in plans if held(p, dtype, tensors).peak <= limit)


def _judged(
    cluster: Cluster,
    operands: tuple[np.ndarray, np.ndarray],
    plan: ProductPlan,
    names: str,
    ledger: Ledger,
    limit: int,
    least: int,
    **arguments: Any,
) -> list[Target]:
    """What a product holds by its plan, what moves when it is run, as counted, and its numbers."""
    (a, b), over = operands, Mesh(cluster, plan.a.mesh)
    each = zip(operands, (plan.a, plan.b), strict=True)
    C = matmul(*(distribute(x, over, tiling.placements) for x, tiling in each), **arguments)
    received = C.traffic.measured.total
    if any(isinstance(p, Partial) for p in C.placements):
        C = redistribute(C, _summed(C.placements))
        received += C.traffic.measured.total
    rank, known = ledger.binding[0], dict(zip("ABC", names, strict=True))
    tensors = {known.get(n, n): size for n, size in ledger.by_tensor(rank).items() if size}
    parts = ", ".join(f"{name} {size / MB:.4g}" for name, size in tensors.items())
    panels = [(rank, panel) for rank, mine in enumerate(plan.panels) for panel in mine]
    of_a, of_b = (
        a.itemsize * sum(p.size for r, panel in panels for p in getattr(panel, of) if p.source != r)
        for of in "ab"
    )
    moves = (
        f"{of_a / MB:.4g} MB of {names[0]} move, {of_b / MB:.4g} of {names[1]} and "
        f"{(moved(plan, a.itemsize) - of_a - of_b) / MB:.4g} of partial sums of {names[2]}"
    )
    wrong = np.argwhere(to_numpy(C) != a @ b)
    first = [f"{names[2]}[{i}, {j}] is wrong" for i, j in wrong[:1]]
    fullest, best = f"rank {rank} holds {parts} MB", least / MB
    return [
        Target("MB on the fullest worker", limit / MB, ledger.peak / MB, where=fullest),
        Target("MB between workers", best, received / MB, best, where=moves),
        none_wrong(f"wrong numbers in {names[2]}", first, len(wrong)),
    ]


# -- placements ------------------------------------------------------------------------------------


def _pair(answer: Any) -> Pair | None:
    x, a = map(tuple, answer)
    return (x, a) if all(isinstance(p, Shard | Replicate | Partial) for p in x + a) else None


def _owners(pair: Pair | None, x: Any, a: Any, mesh: tuple[int, ...], **_: Any) -> Figure:
    start: Placements = (Shard(0), Shard(1))[: len(mesh)]
    tilings = _at(pair or (start, start), mesh, x, a)
    return plots.owners(dict(zip("XA", tilings, strict=True)), title="Who owns which block")


@exercise("fewest-bytes", _pair, _owners)
def fewest_bytes(
    pair: Pair, cluster: Cluster, x: np.ndarray, a: np.ndarray, mesh: tuple[int, ...], limit: int
) -> list[Target]:
    """Choose placements of X and A so that Y = X A moves the fewest bytes between workers.

    Partial sums that are left are added up with Partial() -> Shard(0), and those bytes count."""
    plan = gather(*_at(pair, mesh, x, a))
    each = list(product((Replicate(), Shard(0), Shard(1)), repeat=len(mesh)))
    plans = (gather(*_at(both, mesh, x, a)) for both in product(each, each))
    least = fewest(plans, x.dtype, limit, "AB")
    both = held(plan, x.dtype, "AB")
    return _judged(cluster, (x, a), plan, "XAY", both, limit, least, algorithm="gather")


# -- an algorithm ----------------------------------------------------------------------------------

NARROW = 16
"""Columns of a panel where everything is tried: the width changes the memory, not the bytes."""


def _arguments(answer: Any) -> dict[str, Any] | None:
    given = dict(answer)
    if given["algorithm"] not in algorithms:
        raise ConfigError(
            f"no algorithm {given['algorithm']!r}; td.algorithms has {', '.join(algorithms)}"
        )
    return given if set(given) <= {"algorithm", "panel", "grid", "replication"} else None


def _planned(
    given: dict[str, Any] | None, a: Any, b: Any, mesh: Any, placements: Pair, **_: Any
) -> Figure:
    at = _at(placements, mesh, a, b)
    if given is None:
        return plots.owners(dict(zip("AB", at, strict=True)), title="How A and B lie", roots=True)
    return plots.traffic_matrix(plan_of(given, at).traffic(a.itemsize), title="As planned")


def plan_of(given: dict[str, Any], at: list[Tiling]) -> ProductPlan:
    options = {name: value for name, value in given.items() if name != "algorithm"}
    return plan_product(given["algorithm"], *at, **options)


def by_every_algorithm(a: Tiling, b: Tiling) -> Iterator[ProductPlan]:
    """The plans of every algorithm on every grid that it takes, with narrow panels."""
    for name in algorithms:
        takes = options_of(name)
        panel = NARROW if "panel" in takes else None
        for grid in grids(a.ranks, GRID_AXES[name]) if "grid" in takes else (None,):
            with suppress(PlacementError):  # not as they lie
                yield plan_product(name, a, b, panel=panel, grid=grid)


@exercise("choreography", _arguments, _planned)
def choreography(
    given: dict[str, Any],
    cluster: Cluster,
    a: np.ndarray,
    b: np.ndarray,
    mesh: tuple[int, ...],
    placements: Pair,
    limit: int,
) -> list[Target]:
    """Choose algorithm and options of td.matmul so that C = A B moves the fewest bytes, and no
    worker holds too much of A, B, C, fetched panels and partial sums, as planned."""
    at = _at(placements, mesh, a, b)
    plan = plan_of(given, at)
    least = fewest(by_every_algorithm(*at), a.dtype, limit)
    return _judged(cluster, (a, b), plan, "ABC", held(plan, a.dtype), limit, least, **given)
