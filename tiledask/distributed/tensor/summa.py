"""A linear layer on a grid of ranks: x, w and y in blocks, none of them anywhere in full.

grid of p x q ranks      x [tokens/p, in/q]   w [in/p, out/q]   y [tokens/p, out/q]

    for each panel of ``in``:                     (where the cuts of x's columns and w's rows are)
        its columns of x  --broadcast along the row of ranks-->
        its rows of w     --broadcast along the column of ranks-->       y += x panel @ w panel

The backward goes through the same panels: what was broadcast to be used comes once more, and what
was used to make y gets its gradient as a sum that ends at the panel's owner. With a third axis
(2.5-D) each of d such grids has a d-th of the tokens and its own copy of w, whose gradient is then
summed along that axis.

Sources: van de Geijn and Watts 1997, SUMMA, Concurrency 9(4); for layers and their gradients Xu et
al., Optimus, arXiv:2104.05343, and Wang et al., Tesseract, arXiv:2105.14500.
"""

from typing import Any, NamedTuple

from tiledask.distributed.ranks.group import Group
from tiledask.errors import PlacementError
from tiledask.plan.collectives.panels import Panel, panels
from tiledask.plan.products.placement import Placement, Replicate, Shard, Tiling
from tiledask.tile.backend import array_namespace
from tiledask.tile.layers.operands import by_token, multiply, rounded, wide

__all__ = ["GridBlock", "RankGrid", "summa_linear", "summa_linear_grad"]


class GridBlock(NamedTuple):
    """This rank's block of an array on a grid."""

    local: Any
    tiling: Tiling

    def like(self, local: Any) -> "GridBlock":
        """Another block of the same place."""
        return self._replace(local=local)


class RankGrid(NamedTuple):
    """Groups through this rank, along the axes of a mesh (p, q) or (d, p, q)."""

    row: Group
    """The q ranks of its row."""
    column: Group
    """The p ranks of its column."""
    depth: Group | None = None
    """The d ranks in its place of all grids; None for one grid."""

    @property
    def mesh(self) -> tuple[int, ...]:
        """(p, q) or (d, p, q)."""
        return tuple(group.size for group in self._axes)

    @property
    def place(self) -> tuple[int, ...]:
        """This rank's coordinates in the mesh."""
        return tuple(group.rank for group in self._axes)

    @property
    def _axes(self) -> tuple[Group, ...]:
        return tuple(group for group in (self.depth, self.column, self.row) if group is not None)

    def placements(self, operand: str, ndim: int) -> tuple[Placement, ...]:
        """How "x" (and y), "w" or "b" is placed: one placement for each axis of the mesh."""
        along: dict[str, tuple[Placement, ...]] = {
            "x": (Shard(0), Shard(0), Shard(ndim - 1)),  # tokens, tokens, columns
            "w": (Replicate(), Shard(0), Shard(1)),
            "b": (Replicate(), Replicate(), Shard(0)),
        }
        return along[operand][-len(self.mesh) :]

    def block(self, operand: str, whole: Any) -> GridBlock:
        """This rank's block, copied, of "x" (or y), "w" or "b", which it has in full."""
        tiling = Tiling(tuple(whole.shape), self.mesh, self.placements(operand, whole.ndim))
        region = tiling.region(self.place)
        return GridBlock(whole[tuple(slice(*at) for at in region)].copy(), tiling)


def summa_linear(
    grid: RankGrid, x: GridBlock, w: GridBlock, b: GridBlock | None = None
) -> tuple[GridBlock, GridBlock]:
    """(y [.., out], kept) for x [.., in], w [in, out] and b [out], in blocks as the grid cuts them.

    y is placed as x is; keeps x's block. Raises PlacementError for blocks that do not go together.

    >>> import numpy as np
    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> def program(rank):
    ...     grid = RankGrid(row=rank.group(1), column=rank.group(0))
    ...     x, w = grid.block("x", np.ones((2, 2))), grid.block("w", np.ones((2, 2)))
    ...     return summa_linear(grid, x, w)[0].local.tolist()
    >>> run_threads(program, (2, 2)).results
    [[[2.0]], [[2.0]], [[2.0]], [[2.0]]]
    """
    if len(x.tiling.shape) < 2 or len(w.tiling.shape) != 2:
        raise PlacementError(
            f"a linear layer has x [.., in] and w [in, out], got {list(x.tiling.shape)} and "
            f"{list(w.tiling.shape)}"
        )
    inputs, outputs = w.tiling.shape
    _check_block(grid, "x", "x", x, (*x.tiling.shape[:-1], inputs))
    _check_block(grid, "w", "w", w, (inputs, outputs))
    if b is not None:
        _check_block(grid, "b", "b", b, (outputs,))
    flat, xp = by_token(x.local), array_namespace(x.local, w.local)
    y = xp.zeros((len(flat), w.local.shape[1]), wide(flat[:0]).dtype)
    with grid.row.label("summa_linear", "forward"):
        for panel in _panels(grid, w):
            y += multiply(_x_panel(grid, flat, panel), _w_panel(grid, w.local, panel))
    if b is not None:
        y += wide(b.local)
    y = rounded(y, x.local).reshape(*x.local.shape[:-1], y.shape[1])
    shape = (*x.tiling.shape[:-1], w.tiling.shape[1])
    return GridBlock(y, Tiling(shape, x.tiling.mesh, x.tiling.placements)), x


def summa_linear_grad(
    grid: RankGrid, dy: GridBlock, kept: GridBlock, w: GridBlock, b: GridBlock | None = None
) -> tuple[GridBlock, GridBlock, GridBlock | None]:
    """(dx, dw, db), in blocks as x, w and b are."""
    _check_block(grid, "dy", "x", dy, (*kept.tiling.shape[:-1], w.tiling.shape[1]))
    flat, d = by_token(kept.local), by_token(dy.local)
    xp = array_namespace(flat, d)
    dx, dw = xp.empty_like(flat), xp.empty_like(w.local)
    with grid.row.label("summa_linear", "backward"):
        for panel in _panels(grid, w):
            back = rounded(multiply(d, _w_panel(grid, w.local, panel).T), d)
            total = grid.row.reduce(back, panel.column)
            if total is not None:
                dx[:, panel.of_x] = total
            back = rounded(multiply(_x_panel(grid, flat, panel).T, d), d)
            total = grid.column.reduce(back, panel.row)
            if total is not None:
                dw[panel.of_w] = total
        db = None if b is None else grid.column.all_reduce(rounded(wide(d).sum(axis=0), d))
        if grid.depth is not None:
            dw = grid.depth.all_reduce(dw)
            db = None if b is None else grid.depth.all_reduce(db)
    dx = kept.like(dx.reshape(kept.local.shape))
    return dx, w.like(dw), None if b is None else b.like(db)


def _panels(grid: RankGrid, w: GridBlock) -> tuple[Panel, ...]:
    return tuple(panels(w.tiling.shape[0], grid.column.size, grid.row.size))


def _x_panel(grid: RankGrid, x: Any, panel: Panel) -> Any:
    """[tokens here, panel], from its owner in this row."""
    mine = x[:, panel.of_x] if grid.row.rank == panel.column else None
    return grid.row.broadcast(mine, panel.column)


def _w_panel(grid: RankGrid, w: Any, panel: Panel) -> Any:
    """[panel, out here], from its owner in this column."""
    mine = w[panel.of_w] if grid.column.rank == panel.row else None
    return grid.column.broadcast(mine, panel.row)


def _check_block(
    grid: RankGrid, name: str, operand: str, block: GridBlock, shape: tuple[int, ...]
) -> None:
    wanted = Tiling(shape, grid.mesh, grid.placements(operand, len(shape)))
    if block.tiling != wanted:
        raise PlacementError(
            f"summa_linear on a grid {grid.mesh} takes {name} as {list(wanted.shape)} under "
            f"{wanted.placements}, got {list(block.tiling.shape)} under {block.tiling.placements} "
            f"on {block.tiling.mesh}; cut it by grid.block({operand!r}, whole)"
        )
    here = wanted.block_shape(grid.place)
    if tuple(block.local.shape) != here:
        raise PlacementError(
            f"rank {grid.place} of the grid holds {list(here)} of {name} {list(shape)}, got "
            f"{list(block.local.shape)}; cut it by grid.block({operand!r}, whole)"
        )
