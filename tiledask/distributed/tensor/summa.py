"""A linear layer on a grid of ranks: x, w and y in blocks, none of them anywhere in full.

grid of p x q ranks      x [tokens/p, in/q]   w [in/p, out/q]   y [tokens/p, out/q]

    for each panel of ``in``:                     (where the cuts of x's columns and w's rows are)
        its columns of x  --broadcast along the row of ranks-->
        its rows of w     --broadcast along the column of ranks-->       y += x panel @ w panel

The backward goes through the same panels: what was broadcast to be used comes once more, and what
was used to make y gets its gradient as a sum that ends at the panel's owner. With a third axis
(2.5-D) each of d such grids has a d-th of the tokens and its own copy of w, whose gradient is then
summed along that axis. The program of it is written in plan/program/making/grid_layers.py.

Sources: van de Geijn and Watts 1997, SUMMA, Concurrency 9(4); for layers and their gradients Xu et
al., Optimus, arXiv:2104.05343, and Wang et al., Tesseract, arXiv:2105.14500.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.layer_programs import KeptLayer, LayerRule, backward, forward
from tiledask.distributed.tensor.placed import Placed, Weights, block_of, fits, refuse
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Placement, Replicate, Shard, Tiling

__all__ = ["RankGrid", "summa_linear", "summa_linear_grad"]


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

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return prod(self.mesh)

    @property
    def rank(self) -> int:
        """This rank's number in the mesh, row by row."""
        return int(np.ravel_multi_index(self.place, self.mesh))

    @property
    def owner(self) -> Any:
        """This rank, of the run."""
        return self.row.owner

    @property
    def bound(self) -> dict[Any, Any]:
        """What layers have bound to these groups."""
        groups = tuple((group.axes, group.members) for group in self._axes)
        found: dict[Any, Any] = self.row.bound.setdefault(groups, {})
        return found

    def among(self, numbers: Sequence[int]) -> Group:
        """The group along an axis whose ranks have these numbers in the mesh."""
        (axis,) = np.flatnonzero(np.diff(np.unravel_index(numbers[:2], self.mesh)).ravel())
        return self._axes[axis]

    def placements(self, operand: str, ndim: int) -> tuple[Placement, ...]:
        """How "x" (and y), "w" or "b" is placed: one placement for each axis of the mesh."""
        along: dict[str, tuple[Placement, ...]] = {
            "x": (Shard(0), Shard(0), Shard(ndim - 1)),  # tokens, tokens, columns
            "w": (Replicate(), Shard(0), Shard(1)),
            "b": (Replicate(), Replicate(), Shard(0)),
        }
        return along[operand][-len(self.mesh) :]

    def block(self, operand: str, whole: Any) -> Placed:
        """This rank's block, copied, of "x" (or y), "w" or "b", which it has in full."""
        tiling = self.tiling(operand, whole.shape)
        return Placed(block_of(whole, tiling, self.place), tiling)

    def tiling(self, operand: str, shape: Sequence[int]) -> Tiling:
        """Who has which block of such an operand."""
        return Tiling(tuple(shape), self.mesh, self.placements(operand, len(shape)))


def summa_linear(
    grid: RankGrid, x: Placed, w: Placed, b: Placed | None = None
) -> tuple[Placed, KeptLayer]:
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
    return forward(_summa, grid, (x,), {"w": w, "b": b})


def summa_linear_grad(
    grid: RankGrid, dy: Placed, kept: KeptLayer, w: Placed, b: Placed | None = None
) -> tuple[Placed, Placed, Placed | None]:
    """(dx, dw, db), in blocks as x, w and b are."""
    _check_block(grid, "dy", "x", dy, kept.rule.y.tiling)
    dx, grads = backward(grid, dy, kept, {"w": w, "b": b})
    return dx, grads["w"], grads["b"]


def _summa(grid: RankGrid, given: tuple[Placed], of: Weights) -> LayerRule:
    (x,), w, b = given, of["w"], of["b"]
    if x.ndim < 2 or w.ndim != 2:
        raise PlacementError(
            f"a linear layer has x [.., in] and w [in, out], got {list(x.shape)} and "
            f"{list(w.shape)}"
        )
    inputs, outputs = w.shape
    _check_block(grid, "x", "x", x, grid.tiling("x", (*x.shape[:-1], inputs)))
    _check_block(grid, "w", "w", w, grid.tiling("w", w.shape))
    if b is not None:
        _check_block(grid, "b", "b", b, grid.tiling("b", (outputs,)))
    y = Placed(None, grid.tiling("x", (*x.shape[:-1], outputs)))
    return LayerRule("summa_linear", y, {"label": "summa_linear", "inputs": inputs}, "summa_linear")


def _check_block(grid: RankGrid, name: str, operand: str, block: Placed, wanted: Tiling) -> None:
    if block.tiling != wanted:
        refuse(
            f"summa_linear on a grid {grid.mesh}",
            f"it takes {name} as {list(wanted.shape)} under {wanted.placements}, got "
            f"{list(block.shape)} under {block.placements} on {block.tiling.mesh}; cut it by "
            f"grid.block({operand!r}, whole)",
        )
    fits(grid, "summa_linear", name, block)
