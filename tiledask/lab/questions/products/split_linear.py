"""One linear layer Y = X A, split over ranks by each of five methods, forward and backward.

columns   Y = [X A1 | X A2]         concatenated          dX is summed
rows      Y = X1 A1 + X2 A2         Y is summed           nothing
copies    Y = [X1 A; X2 A]          A is on every rank    dA is summed
layers    A is on rank 0            Y goes to the next    dY comes back
blocks    A, X and Y in blocks on a grid: SUMMA, whose panels come again in the backward

Each program gets X, A, dY and the results of one device. It returns the bytes of A that its rank
held, and whether Y, dX and dA are the same bits.
"""

from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.plan.collectives.panels import Panel, panels
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.products.regions import slices
from tiledask.tile import layers as tile
from tiledask.tile import to_numpy

__all__ = ["METHODS", "SplitMethod", "Whole", "grid_of", "whole_of"]


class Whole(NamedTuple):
    """The layer on one device."""

    x: np.ndarray
    a: np.ndarray
    dy: np.ndarray
    y: np.ndarray
    dx: np.ndarray
    da: np.ndarray


def whole_of(rows: int, inner: int, columns: int) -> Whole:
    """Of small whole numbers: float32 sums them without rounding, in any order."""
    rng = np.random.default_rng(4)
    x, a, dy = (
        rng.integers(-3, 4, shape).astype(np.float32)
        for shape in ((rows, inner), (inner, columns), (rows, columns))
    )
    return Whole(x, a, dy, x @ a, dy @ a.T, x.T @ dy)


def grid_of(ranks: int) -> tuple[int, int]:
    """The most square grid of ``ranks``, not taller than wide.

    >>> grid_of(2), grid_of(4), grid_of(6)
    ((1, 2), (2, 2), (2, 3))
    """
    p = next(p for p in range(isqrt(ranks), 0, -1) if ranks % p == 0)
    return p, ranks // p


Held = tuple[int, bool]
"""(bytes of A on this rank, whether its parts of Y, dX and dA are one device's)."""


def _here(rank: Any, whole: Whole) -> Whole:
    """The same on the rank's device."""
    return Whole(*map(rank.on_device, whole))


def _columns(rank: Any, whole: Whole) -> Held:
    group, whole = rank.group(), _here(rank, whole)
    a = T.shard(group, whole.a, 1)
    y, kept = T.column_linear(group, T.replicate(whole.x), a)
    dx, da, _ = T.column_linear_grad(group, T.shard(group, whole.dy, 1), kept, a)
    return a.local.nbytes, _same(group, (y, whole.y), (dx, whole.dx), (da, whole.da))


def _rows(rank: Any, whole: Whole) -> Held:
    group, whole = rank.group(), _here(rank, whole)
    a = T.shard(group, whole.a, 0)
    y, kept = T.row_linear(group, T.shard(group, whole.x, 1), a)
    dx, da, _ = T.row_linear_grad(group, T.replicate(whole.dy), kept, a)
    return a.local.nbytes, _same(group, (y, whole.y), (dx, whole.dx), (da, whole.da))


def _copies(rank: Any, whole: Whole) -> Held:
    group, whole = rank.group(), _here(rank, whole)
    x, dy = T.shard(group, whole.x, 0), T.shard(group, whole.dy, 0)
    y, _ = tile.linear(x.local, whole.a)
    dx = tile.linear_grad_input(dy.local, whole.a)
    mine, _ = tile.linear_grad_weight(dy.local, x.local)
    with group.label("copies", "backward"):
        da = group.all_reduce(mine)
    parts = ((dy.like(y), whole.y), (x.like(dx), whole.dx), (T.replicate(da), whole.da))
    return whole.a.nbytes, _same(group, *parts)


def _layers(rank: Any, whole: Whole) -> Held:
    """Rank 0 has the layer, rank 1 what comes behind it, and the others other layers."""
    group, whole = rank.group(), _here(rank, whole)
    with group.label("layers", "forward"):
        if group.rank == 0:
            y, _ = tile.linear(whole.x, whole.a)
            group.send(y, 1)
        elif group.rank == 1:
            y = group.recv(0)
    with group.label("layers", "backward"):
        if group.rank == 0:
            dx, da, _ = tile.linear_grad(group.recv(1), whole.x, whole.a, None)
            return whole.a.nbytes, _equal(dx, whole.dx) and _equal(da, whole.da)
        if group.rank == 1:
            group.send(whole.dy, 0)
            return 0, _equal(y, whole.y)
    return 0, True


def _blocks(rank: Any, whole: Whole) -> Held:
    """SUMMA: a panel of X goes along the row of ranks, one of A along the column, and is used."""
    row, column, whole = rank.group(1), rank.group(0), _here(rank, whole)
    cut = list(panels(whole.x.shape[1], column.size, row.size))
    x, a = _block(rank, whole.x), _block(rank, whole.a)
    y, dy = np.zeros_like(_block(rank, whole.y)), _block(rank, whole.dy)

    def brought(panel: Panel) -> tuple[Any, Any]:
        of_x = x[:, panel.of_x] if row.rank == panel.column else None
        of_a = a[panel.of_w] if column.rank == panel.row else None
        return row.broadcast(of_x, panel.column), column.broadcast(of_a, panel.row)

    with row.label("blocks", "forward"):
        for of_x, of_a in map(brought, cut):
            y += of_x @ of_a
    dx, da = np.zeros_like(x), np.zeros_like(a)
    with row.label("blocks", "backward"):
        for panel in cut:
            of_x, of_a = brought(panel)
            of_dx = row.reduce(dy @ of_a.T, panel.column)
            of_da = column.reduce(of_x.T @ dy, panel.row)
            if of_dx is not None:
                dx[:, panel.of_x] = of_dx
            if of_da is not None:
                da[panel.of_w] = of_da
    pairs = (y, whole.y), (dx, whole.dx), (da, whole.da)
    return a.nbytes, all(_equal(made, _block(rank, right)) for made, right in pairs)


def _block(rank: Any, whole: Any) -> Any:
    """This rank's block, copied, of a matrix that it has in full."""
    grid = rank.group(0).size, rank.group(1).size
    tiling = Tiling(whole.shape, grid, (Shard(0), Shard(1)))
    return whole[slices(tiling.region((rank.group(0).rank, rank.group(1).rank)))].copy()


def _equal(a: Any, b: Any) -> bool:
    return np.array_equal(to_numpy(a), to_numpy(b))


def _same(group: Any, *pairs: tuple[T.Placed, np.ndarray]) -> bool:
    """Whether each block is its part of the whole beside it."""
    return all(
        _equal(made.local, whole if made.dim is None else T.shard(group, whole, made.dim).local)
        for made, whole in pairs
    )


class SplitMethod(NamedTuple):
    """One way to split the layer, and what it moves by formula: bytes that all n ranks send."""

    program: Callable[[Any, Whole], Held]
    cut: Callable[[int, int, int], tuple[int, int]]
    """(inner, columns, ranks) -> the largest block of A on a rank."""
    forward: str
    backward: str


def _most(extent: int, parts: int) -> int:
    return -(-extent // parts)


METHODS = {
    "columns of A": SplitMethod(
        _columns, lambda k, n, p: (k, _most(n, p)), "nothing", "all-reduce of dX"
    ),
    "rows of A": SplitMethod(_rows, lambda k, n, p: (_most(k, p), n), "all-reduce of Y", "nothing"),
    "rows of X": SplitMethod(_copies, lambda k, n, p: (k, n), "nothing", "all-reduce of dA"),
    "whole layers": SplitMethod(_layers, lambda k, n, p: (k, n), "Y to the next GPU", "dY back"),
    "blocks of A": SplitMethod(
        _blocks,
        lambda k, n, p: (_most(k, grid_of(p)[0]), _most(n, grid_of(p)[1])),
        "panels of X and A",
        "panels of X and A again, sums of dX and dA",
    ),
}
