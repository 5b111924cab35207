"""Place two matrices so that their product moves the fewest bytes; run and counted."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from tiledask.distributed.arrays.array import ShardedArray, to_numpy
from tiledask.distributed.arrays.creation import distribute
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.arrays.redistribute import redistribute
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.matmul import matmul
from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import RED
from tiledask.plan.products.comms import redistribution, traffic_of
from tiledask.plan.products.placement import Partial, Placement, Replicate, Shard, Tiling
from tiledask.plan.products.product import gather
from tiledask.plan.products.product_plan import ProductPlan

__all__ = [
    "bytes_planned",
    "fewest_bytes",
    "fewest_planned",
    "finished",
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

    shapes = f"X is {x.shape[0]} x {x.shape[1]} and A {a.shape[0]} x {a.shape[1]} in {x.dtype}"
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
        question=(
            f"{shapes}, on a mesh of {' x '.join(map(str, mesh))}. Choose placements of both for "
            f"Y = X A by algorithm='gather'. No worker may hold more than {limit / MB:g} MB of X "
            f"and A together when the product begins. If partial sums are left, they are summed "
            f"with Partial() -> Shard(0), and those bytes count. At most {least:g} MB may move "
            f"between workers."
        ),
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
