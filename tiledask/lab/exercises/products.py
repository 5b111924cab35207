"""Tasks and products to place on workers, so that little is to do and little moves; counted."""

import time
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from distributed import get_worker

from tiledask.distributed.arrays.array import ShardedArray, to_numpy
from tiledask.distributed.arrays.creation import distribute
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.arrays.redistribute import redistribute
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.matmul import matmul
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import exercise, none_wrong, span, whole_numbers
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

__all__ = ["choreography", "fewest_bytes", "tasks_on_slots"]

MB = 1_000_000

# -- tasks on slots --------------------------------------------------------------------------------

UNITS = (7, 7, 6, 6, 5, 5, 4, 4, 4)
"""Lengths of nine tasks. Longest first, each to the slot with the least to do, gives 15; 12 is
possible. That rule is never further off: Graham, "Bounds on multiprocessing timing anomalies",
1969, (4/3 - 1/12) x 12 on 4 machines."""
UNIT = 0.05
"""Seconds of one unit."""


@exercise("tasks-on-slots", read=lambda answer: whole_numbers(answer, len(UNITS), 0, 3))
def tasks_on_slots(places: tuple[int, ...], cluster: Cluster) -> list[Target]:
    """Place each task in a slot so that the fullest slot has as little to do as can be."""
    tries = [
        cluster.submit(slot, _nap, n, UNIT, name=f"nap_{n}")
        for slot, n in zip(places, UNITS, strict=True)
    ]
    done = cluster.gather(tries, "the tasks of the exercise", cancel=True)
    load = [sum(n for slot, n in done if slot == s) for s in range(cluster.slots)]
    full, free = load.index(max(load)), load.index(min(load))
    mine = ", ".join(str(task) for task, slot in enumerate(places) if slot == full)
    where = f"slot {full} has tasks {mine}, slot {free} only {min(load)} units"
    best = least_load(UNITS, cluster.slots)
    return [Target("units in the fullest slot", best, max(load), best, where=where)]


def _nap(units: int, unit: float) -> tuple[int, int]:
    """(the slot whose worker did it, the units that it did)."""
    time.sleep(units * unit)
    return int(get_worker().name), units


def least_load(units: tuple[int, ...], slots: int) -> int:
    """The smallest possible load of the fullest slot, found by trying every placement.

    >>> least_load((3, 3, 2, 2, 2), slots=2)
    6
    """
    loads = {(0,) * slots}
    for n in units:  # slots are alike: sorted loads are all that matters of a placement
        loads = {
            tuple(sorted((*load[:s], load[s] + n, *load[s + 1 :])))
            for load in loads
            for s in range(slots)
        }
    return min(max(load) for load in loads)


# -- placements ------------------------------------------------------------------------------------

Pair = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""Placements of X and of A, one per mesh axis."""


def _pair(answer: Any) -> Pair | None:
    pair = tuple(answer) if isinstance(answer, tuple | list) else ()
    kinds = Shard | Replicate | Partial
    each = [p for p in pair if isinstance(p, tuple | list) and all(isinstance(q, kinds) for q in p)]
    return (tuple(pair[0]), tuple(pair[1])) if len(pair) == len(each) == 2 else None


def _owners(
    pair: Pair | None, cluster: Cluster, x: np.ndarray, a: np.ndarray, mesh: Any, limit: int
) -> Figure:
    each: list[Placement] = [Shard(0), Shard(1), *(Replicate() for _ in mesh)]
    cut = tuple(each[: len(mesh)])
    both = zip((x, a), pair or (cut, cut), strict=True)
    tilings = [Tiling(matrix.shape, mesh, placed) for matrix, placed in both]
    title = "Who owns which block" + " (not attempted)" * (not pair)
    return plots.owners(dict(zip(("X", "A"), tilings, strict=True)), title=title)


@exercise("fewest-bytes", read=_pair, draw=_owners)
def fewest_bytes(
    pair: Pair, cluster: Cluster, x: np.ndarray, a: np.ndarray, mesh: tuple[int, ...], limit: int
) -> list[Target]:
    """Choose placements of X and A so that Y = X A moves the fewest bytes between workers.

    Partial sums that are left are added up with Partial() -> Shard(0), and those bytes count."""
    over = Mesh(cluster, mesh)
    X, A = (distribute(m, over, p) for m, p in zip((x, a), pair, strict=True))
    each = [sum(both) for both in zip(X.block_bytes, A.block_bytes, strict=True)]
    full = each.index(max(each))
    Y, received = _summed_up(matmul(X, A, algorithm="gather"))
    least = fewest_planned(x.shape, a.shape, mesh, x.dtype.itemsize, limit) / MB
    blocks = (
        f"worker {full + 1} has {X.block_bytes[full] / MB:g} MB of X and "
        f"{A.block_bytes[full] / MB:g} of A"
    )
    here = "MB of X and A on the fullest worker"
    parts = _parts(gather(X.tiling, A.tiling), x.dtype.itemsize, ("X", "A", "Y"))
    return [
        Target(here, limit / MB, max(each) / MB, where=blocks),
        Target("MB between workers", least, received / MB, least, where=parts),
        _wrong_numbers("Y", to_numpy(Y) != x @ a),
    ]


def _summed_up(made: ShardedArray) -> tuple[ShardedArray, int]:
    """A product with its partial sums added up, and the bytes that both moved, as counted."""
    received = made.traffic.measured.total
    if any(isinstance(p, Partial) for p in made.placements):
        made = redistribute(made, _rows(made.placements))
        received += made.traffic.measured.total
    return made, received


def moved(plan: ProductPlan, itemsize: int) -> int:
    """The bytes that ``plan`` moves, with the sum of what it leaves partial."""
    total = plan.traffic(itemsize).total
    if any(isinstance(p, Partial) for p in plan.result.placements):
        target = plan.result.replaced(*_rows(plan.result.placements))
        total += traffic_of(plan.ranks, redistribution(plan.result, target), itemsize).total
    return total


def _rows(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    return tuple(Shard(0) if isinstance(p, Partial) else p for p in placements)


def _parts(plan: ProductPlan, itemsize: int, names: tuple[str, str, str]) -> str:
    """What ``plan`` moves of the operands and in partial sums of the product, in words."""
    each = [(rank, panel) for rank, mine in enumerate(plan.panels) for panel in mine]
    of_a, of_b = (
        itemsize * sum(p.size for r, panel in each for p in getattr(panel, of) if p.source != r)
        for of in "ab"
    )
    sums = moved(plan, itemsize) - of_a - of_b
    return (
        f"{of_a / MB:.4g} MB of {names[0]} move, {of_b / MB:.4g} of {names[1]} and "
        f"{sums / MB:.4g} of partial sums of {names[2]}"
    )


def _wrong_numbers(name: str, wrong: np.ndarray) -> Target:
    """The target that no element of a matrix is wrong."""
    rows, columns = np.nonzero(wrong)
    said = [f"{name} is wrong in {span('row', rows)}, {span('column', columns)}"] * len(rows[:1])
    return none_wrong(f"wrong numbers in {name}", said, len(rows))


def fewest_planned(
    x: tuple[int, ...], a: tuple[int, ...], mesh: tuple[int, ...], itemsize: int, limit: int
) -> int:
    """The fewest bytes that any placements within ``limit`` move, found by planning them all."""
    kinds: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    each = list(product(kinds, repeat=len(mesh)))
    pairs = product((Tiling(x, mesh, p) for p in each), (Tiling(a, mesh, p) for p in each))
    return min(
        moved(gather(*pair), itemsize)
        for pair in pairs
        if itemsize
        * max(sum(int(np.prod(t.block_shape(at))) for t in pair) for at in pair[0].coordinates())
        <= limit
    )


# -- an algorithm ----------------------------------------------------------------------------------

NARROW = 16
"""Columns of a panel where everything is tried: the width changes the memory, not the bytes."""


def _arguments(answer: Any) -> dict[str, Any] | None:
    given = dict(answer) if isinstance(answer, Mapping) else {}
    known = {"algorithm", "panel", "grid", "replication"}
    if "algorithm" not in given or not set(given) <= known:
        return None
    if given["algorithm"] not in algorithms:
        raise ConfigError(
            f"no algorithm {given['algorithm']!r}; td.algorithms has {', '.join(algorithms)}"
        )
    return given


def _planned(given: dict[str, Any], a: Tiling, b: Tiling) -> ProductPlan:
    return plan_product(
        given["algorithm"], a, b, **{k: v for k, v in given.items() if k != "algorithm"}
    )


def _tilings(a: np.ndarray, b: np.ndarray, mesh: Any, placements: Pair) -> list[Tiling]:
    return [Tiling(m.shape, mesh, p) for m, p in zip((a, b), placements, strict=True)]


def _as_planned(
    given: dict[str, Any] | None,
    cluster: Cluster,
    a: np.ndarray,
    b: np.ndarray,
    mesh: Any,
    placements: Pair,
    limit: int,
) -> Figure:
    at = _tilings(a, b, mesh, placements)
    if given is None:
        named = dict(zip("AB", at, strict=True))
        return plots.owners(named, title="How A and B lie (not attempted)", roots=True)
    plan = _planned(given, *at)
    title = f"{plan.algorithm}: {held(plan, a.dtype) / MB:.2f} MB on the fullest worker, as planned"
    return plots.traffic_matrix(plan.traffic(a.itemsize), title=title)


@exercise("choreography", read=_arguments, draw=_as_planned)
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
    at = _tilings(a, b, mesh, placements)
    plan, over = _planned(given, *at), Mesh(cluster, mesh)
    A, B = (distribute(x, over, p) for x, p in zip((a, b), placements, strict=True))
    C, received = _summed_up(matmul(A, B, **given))
    least = fewest_of(at[0], at[1], a.dtype, limit) / MB
    ledger = _ledger(plan, a.dtype)
    rank = ledger.binding[0]
    tensors = {name: size for name, size in ledger.by_tensor(rank).items() if size}
    parts = ", ".join(f"{name} {size / MB:.4g}" for name, size in tensors.items())
    fullest = f"rank {rank} holds {parts} MB"
    moves = _parts(plan, a.itemsize, ("A", "B", "C"))
    return [
        Target("MB on the fullest worker", limit / MB, ledger.peak / MB, where=fullest),
        Target("MB between workers", least, received / MB, least, where=moves),
        _wrong_numbers("C", to_numpy(C) != a @ b),
    ]


def _ledger(plan: ProductPlan, dtype: np.dtype) -> Ledger:
    return Ledger.of(row for row in ledger_of(plan, dtype).rows if row.tensor != "runtime")


def held(plan: ProductPlan, dtype: np.dtype) -> int:
    """Bytes of blocks, fetched panels and partial sums on the fullest rank, at their most."""
    return _ledger(plan, dtype).peak


def fewest_of(a: Tiling, b: Tiling, dtype: np.dtype, limit: int) -> int:
    """The fewest bytes that any choice within ``limit`` moves, found by planning them all: every
    algorithm on every grid that it takes, with narrow panels."""
    found = []
    for name in algorithms:
        takes = options_of(name)
        panel = NARROW if "panel" in takes else None
        for grid in grids(a.ranks, GRID_AXES[name]) if "grid" in takes else (None,):
            try:
                plan = plan_product(name, a, b, panel=panel, grid=grid)
            except PlacementError:  # not as they lie
                continue
            if held(plan, dtype) <= limit:
                found.append(moved(plan, dtype.itemsize))
    return min(found)
