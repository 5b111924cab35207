"""Place matrices, or choose an algorithm, so that a product moves the fewest bytes; counted."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import ShardedArray, to_numpy
from tiledask.distributed.arrays.creation import distribute
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.arrays.redistribute import redistribute
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.matmul import matmul
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import RED
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

__all__ = [
    "bytes_planned",
    "cheapest_choreography",
    "choices",
    "fewest_bytes",
    "fewest_planned",
    "finished",
    "held",
    "moved",
    "parts_moved",
    "span",
    "wrong_numbers",
]

MB = 1_000_000
Pair = tuple[tuple[Placement, ...], tuple[Placement, ...]]
"""Placements of X and of A, one per mesh axis."""


def fewest_bytes(
    cluster: Cluster, x: np.ndarray, a: np.ndarray, *, mesh: tuple[int, ...], limit: int
) -> Exercise:
    """Choose placements of X and A so that Y = X A moves the fewest bytes between workers.

    ``limit``: bytes of X and A that a worker may hold when the product begins. Partial sums that
    the product leaves are added up with Partial() -> Shard(0), and those bytes count too. The
    answer is (placements of X, placements of A); it is run, and the bytes are those that workers
    received.
    """
    over, expected = Mesh(cluster, mesh), x @ a
    least = fewest_planned(x.shape, a.shape, mesh, x.dtype.itemsize, limit) / MB

    def measure(pair: Pair) -> list[Target]:
        X, A = (distribute(m, over, p) for m, p in zip((x, a), pair, strict=True))
        each = [sum(both) for both in zip(X.block_bytes, A.block_bytes, strict=True)]
        full, held = each.index(max(each)), max(each) / MB
        Y, moved = finished(matmul(X, A, algorithm="gather"))
        blocks = (
            f"worker {full + 1} has {X.block_bytes[full] / MB:g} MB of X and "
            f"{A.block_bytes[full] / MB:g} of A"
        )
        parts = parts_moved(gather(X.tiling, A.tiling), x.dtype.itemsize, ("X", "A", "Y"))
        return [
            Target("MB of X and A on the fullest worker", limit / MB, held, None, where=blocks),
            Target("MB between workers", least, moved / MB, least, where=parts),
            wrong_numbers("Y", to_numpy(Y) != expected),
        ]

    def figure(pair: Pair | None) -> Figure:
        cut = (Shard(0), Shard(1), *(Replicate() for _ in mesh))[: len(mesh)]
        none = cut, cut
        given = "blocks" if len(mesh) > 1 else "rows"
        title = "Who owns which block" + f" (not attempted: {given})" * (not pair)
        tilings = [Tiling(m.shape, mesh, p) for m, p in zip((x, a), pair or none, strict=True)]
        named = dict(zip(("X", "A"), tilings, strict=True))
        drawn = plots.owners(named, title=title)
        if pair and _held(*tilings, x.dtype.itemsize) > limit:
            sizes = [int(np.prod(t.block_shape((0,) * len(mesh)))) for t in tilings]
            panel = drawn.axes[sizes.index(max(sizes))]
            words = f"{panel.get_title(loc='left')}: too much on a worker"
            panel.set_title(words, loc="left", color=RED, gid="wrong size", fontsize=9.5)
        return drawn

    example, last = (
        (
            "((td.Shard(0), td.Replicate()), (td.Replicate(), td.Shard(1)))",
            "Treat the two axes one by one: along one of them the shared cut, along the other a "
            "cut of one matrix alone. Count what a worker holds, and what is summed.",
        )
        if len(mesh) > 1
        else (
            "((td.Shard(0),), (td.Shard(1),))",
            "Blocks of X move, or those of A, or partial sums of Y: which of the three matrices is "
            "the smallest? Choose the cuts so that it moves alone.",
        )
    )
    return Exercise(
        name="the fewest bytes",
        form=(
            f"two tuples, the placements of X and those of A, one for each axis of the mesh, for "
            f"example {example}"
        ),
        hints=(
            "Along one axis of the mesh, what moves if only rows of X are cut, if only columns of "
            "A are, and if the sum over k is?",
            "A cut that X and A share, columns of one and rows of the other, moves nothing before "
            "the product and leaves partial sums. How large is Y beside X and A?",
            last,
        ),
        measured=measure,
        drawn=figure,
        read=_pair,
    )


def parts_moved(plan: ProductPlan, itemsize: int, names: tuple[str, str, str]) -> str:
    """What ``plan`` moves of the operands and in partial sums of the product, in words."""
    left, right, out = names
    here = [(rank, panel) for rank, mine in enumerate(plan.panels) for panel in mine]
    fetched = {
        name: itemsize * sum(p.size for r, panel in here for p in of(panel) if p.source != r)
        for name, of in ((left, lambda panel: panel.a), (right, lambda panel: panel.b))
    }
    sums = moved(plan, itemsize) - sum(fetched.values())
    return (
        f"{fetched[left] / MB:.4g} MB of {left} move, {fetched[right] / MB:.4g} of {right} and "
        f"{sums / MB:.4g} of partial sums of {out}"
    )


def wrong_numbers(name: str, wrong: np.ndarray) -> Target:
    """The target that no element of a matrix is wrong; if some are, in which rows and columns."""
    rows, columns = np.nonzero(wrong)
    said = f"{name} is wrong in {span('row', rows)}, {span('column', columns)}"
    count = int(np.count_nonzero(wrong))
    return Target(f"wrong numbers in {name}", 0, count, 0, remarks=(said,))


def span(what: str, numbers: Sequence[int] | np.ndarray) -> str:
    """Numbers from the least to the largest, in words.

    >>> span("row", [4, 5, 6]), span("row", [4, 6]), span("row", [4])
    ('rows 4 to 6', 'rows 4, 6', 'row 4')
    """
    found = sorted({int(n) for n in numbers})
    if len(found) == 1:
        return f"{what} {found[0]}"
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"{what}s {found[0]} to {found[-1]}"
    more = ", ..." if len(found) > 6 else ""
    return f"{what}s {', '.join(map(str, found[:6]))}{more}"


def _pair(answer: Any) -> Pair | None:
    pair = tuple(answer) if isinstance(answer, tuple | list) else ()
    kinds = Shard | Replicate | Partial
    each = [p for p in pair if isinstance(p, tuple | list) and all(isinstance(q, kinds) for q in p)]
    return tuple(map(tuple, pair)) if len(pair) == len(each) == 2 else None


def finished(product: ShardedArray) -> tuple[ShardedArray, int]:
    """``product`` with its partial sums added up, and the bytes that both moved, as counted."""
    moved = product.traffic.measured.total
    if any(isinstance(p, Partial) for p in product.placements):
        product = redistribute(product, _summed(product.placements))
        moved += product.traffic.measured.total
    return product, moved


def moved(plan: ProductPlan, itemsize: int) -> int:
    """The bytes that ``plan`` moves, with the sum of what it leaves partial."""
    total = plan.traffic(itemsize).total
    if any(isinstance(p, Partial) for p in plan.result.placements):
        target = plan.result.replaced(*_summed(plan.result.placements))
        total += traffic_of(plan.ranks, redistribution(plan.result, target), itemsize).total
    return total


def _summed(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    return tuple(Shard(0) if isinstance(p, Partial) else p for p in placements)


def fewest_planned(
    x: tuple[int, int], a: tuple[int, int], mesh: tuple[int, ...], itemsize: int, limit: int
) -> int:
    """The fewest bytes that any placements within ``limit`` move, found by planning them all."""
    each = list(product((Replicate(), Shard(0), Shard(1)), repeat=len(mesh)))
    moved = [
        bytes_planned(tx, ta, itemsize)
        for tx, ta in product(
            (Tiling(x, mesh, p) for p in each), (Tiling(a, mesh, p) for p in each)
        )
        if _held(tx, ta, itemsize) <= limit
    ]
    if not moved:
        raise ConfigError(
            f"no placements on a mesh of {mesh} hold X {x} and A {a} in {limit:,} bytes a worker; "
            f"raise the limit"
        )
    return min(moved)


def _held(x: Tiling, a: Tiling, itemsize: int) -> int:
    """Bytes of both blocks on the fullest rank."""
    return itemsize * max(
        sum(int(np.prod(tiling.block_shape(at))) for tiling in (x, a)) for at in x.coordinates()
    )


def bytes_planned(x: Tiling, a: Tiling, itemsize: int) -> int:
    """Bytes between ranks for Y = X A, with the sum of what it leaves partial."""
    return moved(gather(x, a), itemsize)


NARROW = 16
"""Columns of a panel where everything is tried: the width changes the memory, not the bytes."""


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

    return Exercise(
        name="the cheapest choreography",
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
