"""What the tasks of a lazy product do: add up x[:, k] @ y[k, :] in place, k ascending.

No task changes what it receives, so any scheduler may run one twice or keep what it likes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
from dask._task_spec import Task

from tiledask.distributed.products.lazy_plan import SLAB
from tiledask.distributed.products.panels import matrices
from tiledask.plan.products.regions import Region, slices
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import accumulator, array_namespace, as_dtype, on_device

__all__ = ["BlockPiece", "LazyTileJob", "Made", "add_up", "multiply_tile"]

THICK = 128
"""Rows (columns) from which a block goes to BLAS as it is."""


@dataclass(frozen=True)
class Made:
    """A block that is made within the task that uses it."""

    task: Task
    needs: tuple[tuple[Any, int], ...]
    """The keys that it depends on, and as which of its inputs the product's task receives each."""
    within: tuple[slice, ...]
    """The part of it that is used."""


@dataclass(frozen=True)
class BlockPiece:
    """What a task uses of one block."""

    source: int | Made
    """Which of the task's inputs it is, or how it is made."""
    across: Region
    """Where it lies within the tile."""
    k: tuple[int, int]
    """Where it lies along k."""


@dataclass(frozen=True)
class LazyTileJob:
    """What one task multiplies."""

    shape: tuple[int, ...]
    """Extents of the tile."""
    final: tuple[int, ...] | None
    """The shape to leave it in, rounded to ``dtype``; None where it is added to later."""
    dtype: str
    left: tuple[BlockPiece, ...]
    right: tuple[BlockPiece, ...]
    bands: tuple[tuple[int, int], ...]
    """The intervals of k that are multiplied at once."""
    kernel: str
    tile: Any


def multiply_tile(job: LazyTileJob, before: Any, *inputs: Any) -> Any:
    """The tile of C, or ``before`` and what is to be added to it; k ascending."""
    left, right = _Panels(job.left, inputs, False), _Panels(job.right, inputs, True)
    dtype = as_dtype(job.dtype)
    for band in job.bands:
        left.advance(*band)
        right.advance(*band)
        first = band == job.bands[0]
        with on_device(left.sample):
            if first:
                c = left.empty(job.shape, accumulator(dtype)) if before is None else before.copy()
            _multiply_band(job, band, left, right, c, add=before is not None or not first)
    return c if job.final is None else _finished(c, dtype, job.final)


def _multiply_band(
    job: LazyTileJob, band: tuple[int, int], left: "_Panels", right: "_Panels", c: Any, add: bool
) -> None:
    """None, once c holds the product of one interval of k, or that is added to it.

    A function of its own, so that no name holds a block of this band while the next are made.
    """
    step = band[1] - band[0] if left.direct and right.direct else SLAB
    for k in pairwise([*range(*band, step), band[1]]):
        for (rows, x), (columns, y) in product(left.arrays(*k), right.arrays(*k)):
            for x2, c2 in matrices(x, c[slices((*rows, *columns))]):
                tile_matmul(x2, y.T, job.kernel, job.tile, out=c2, beta=float(add))
        add = True


def add_up(dtype: str, final: tuple[int, ...] | None, first: Any, *others: Any) -> Any:
    """Products of several panels, added up in order."""
    with on_device(first):
        total = first.copy()
        for other in others:
            total += other
    return total if final is None else _finished(total, as_dtype(dtype), final)


def _finished(c: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    with on_device(c):
        c = c.astype(dtype, copy=False).reshape(shape)
    return c if shape else c[()]


class _Panels:
    """The pieces of one operand that are in use while k goes on, seen with k as last dimension."""

    def __init__(self, pieces: Sequence[BlockPiece], inputs: Sequence[Any], turned: bool) -> None:
        self.waiting = sorted(pieces, key=lambda piece: piece.k, reverse=True)
        self.inputs, self.turned = inputs, turned
        ends = zip(*(piece.across for piece in pieces), strict=True)
        self.shape = tuple(max(stop for _, stop in dimension) for dimension in ends)
        self.depth = max(p.k[1] for p in pieces) - min(p.k[0] for p in pieces)
        self.held: list[tuple[BlockPiece, Any]] = []
        self.room: Any = None
        self.direct = False
        """BLAS can take the pieces as they are."""

    @property
    def sample(self) -> Any:
        return self.held[0][1]

    def empty(self, shape: tuple[int, ...], dtype: np.dtype, order: str = "C") -> Any:
        return array_namespace(self.sample).empty(shape, dtype, order=order)

    def advance(self, start: int, stop: int) -> None:
        """Drops what ends by ``start``, then takes up what begins before ``stop``."""
        self.held = [(piece, x) for piece, x in self.held if piece.k[1] > start]
        while self.waiting and self.waiting[-1].k[0] < stop:
            piece = self.waiting.pop()
            self.held.append((piece, self._array(piece)))
        thick = len(self.held) == 1 or prod(self.shape) >= THICK * len(self.held)
        self.direct = thick and all(
            piece.k[0] <= start and stop <= piece.k[1] and getattr(x.flags, "aligned", True)
            for piece, x in self.held
        )

    def _array(self, piece: BlockPiece) -> Any:
        source = piece.source
        if isinstance(source, Made):
            x = source.task({need: self.inputs[i] for need, i in source.needs})[source.within]
        else:
            x = self.inputs[source]
        return x[None] if x.ndim == 1 else x.T if self.turned else x

    def arrays(self, start: int, stop: int) -> Iterator[tuple[Region, Any]]:
        """(where it lies in the tile, array [..., start:stop]): the pieces, or all in one."""
        if self.direct:
            for piece, x in self.held:
                yield piece.across, x[..., start - piece.k[0] : stop - piece.k[0]]
            return
        if self.room is None:
            shape = (*self.shape, min(SLAB, self.depth))
            order = "F" if self.turned else "C"  # as the blocks are, so that runs are copied
            self.room = self.empty(shape, self.sample.dtype, order)
        packed = self.room[..., : stop - start]
        for piece, x in self.held:
            a, b = max(start, piece.k[0]), min(stop, piece.k[1])
            if a < b:
                place = packed[slices((*piece.across, (a - start, b - start)))]
                place[...] = x[..., a - piece.k[0] : b - piece.k[0]]
        yield tuple((0, extent) for extent in self.shape), packed
