"""What the tasks of a lazy product do: each goes through its line, x[:, k] @ y[k, :] by bands of k.

No task changes what it receives, so any scheduler may run one twice or keep what it likes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Task

from tiledask.distributed.products.lazy_plan import SLAB
from tiledask.distributed.products.panels import matrices
from tiledask.distributed.programs.runner import LineRunner
from tiledask.plan.products.regions import Region, slices
from tiledask.plan.program.instructions import Do, Fetch, Keep, ProgramPart
from tiledask.plan.program.making.of_tile import TilePiece, tile_line
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
    return _Tile(job, before, inputs).result()


class _Tile:
    """A task's way through its line: blocks that are made there, and its product."""

    def __init__(self, job: LazyTileJob, before: Any, inputs: tuple[Any, ...]) -> None:
        self.job, self.before, self.inputs = job, before, inputs
        self.dtype, self.c = as_dtype(job.dtype), before
        self.made: dict[str, tuple[Made, bool]] = {}
        self.given: dict[str, Any] = {}
        left, right = self._named("x", job.left, False), self._named("y", job.right, True)
        self.line = tile_line(left, right, job.bands, self.dtype.itemsize, before is not None)
        self.operands = _Operand(job.left, False), _Operand(job.right, True)

    def _named(self, word: str, pieces: Sequence[BlockPiece], turned: bool) -> list[TilePiece]:
        found = []
        for n, piece in enumerate(pieces):
            name, made = f"{word}{n}", isinstance(piece.source, Made)
            if isinstance(piece.source, Made):
                self.made[name] = piece.source, turned
            else:
                self.given[name] = _turned(self.inputs[piece.source], turned)
            found.append(TilePiece(name, (*piece.across, piece.k), made))
        return found

    def result(self) -> Any:
        """The tile, once the line was gone through."""
        stays = {**self.given, "C": None}
        LineRunner(None, self.line, stays, self.bind, self).run()
        final = self.job.final
        return self.c if final is None else _finished(self.c, self.dtype, final)

    def fetch(self, each: Fetch) -> Callable[[Any], Any]:
        made, turned = self.made[each.buffer]
        needs = {need: self.inputs[i] for need, i in made.needs}
        return lambda _: _turned(made.task(needs)[made.within], turned)

    def keep(self, each: Keep) -> Callable[[Any], None]:
        raise NotImplementedError("a task of Dask keeps nothing: it returns its tile")

    def bind(self, each: Do, part: ProgramPart, told: dict[str, Any]) -> Callable[..., None]:
        return partial(self._multiply, **told)

    def _multiply(
        self,
        *arrays: Any,
        a: tuple[Region, ...],
        b: tuple[Region, ...],
        band: tuple[int, int],
        adds: bool,
    ) -> None:
        """None, once c holds the product of one interval of k, or that is added to it."""
        left, right = self.operands
        x = left.held(a, arrays[: len(a)], band)
        y = right.held(b, arrays[len(a) : len(a) + len(b)], band)
        sample = x.pieces[0][1]
        with on_device(sample):
            if self.c is None:
                wide = accumulator(self.dtype)
                self.c = array_namespace(sample).empty(self.job.shape, wide)
            elif self.c is self.before:
                self.c = self.before.copy()  # whoever made it may need it again
            step = band[1] - band[0] if x.direct and y.direct else SLAB
            for k in pairwise([*range(*band, step), band[1]]):
                for (rows, xs), (columns, ys) in product(left.arrays(x, *k), right.arrays(y, *k)):
                    for x2, c2 in matrices(xs, self.c[slices((*rows, *columns))]):
                        tile_matmul(
                            x2, ys.T, self.job.kernel, self.job.tile, out=c2, beta=float(adds)
                        )
                adds = True


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


def _turned(x: Any, turned: bool) -> Any:
    """A block with k as its last dimension."""
    return x[None] if x.ndim == 1 else x.T if turned else x


class _Band(NamedTuple):
    """The pieces of an operand that an interval of k takes."""

    pieces: list[tuple[Region, Any]]
    direct: bool
    """BLAS can take them as they are."""


class _Operand:
    """One operand, whose pieces are packed where they are thin."""

    def __init__(self, pieces: Sequence[BlockPiece], turned: bool) -> None:
        ends = zip(*(piece.across for piece in pieces), strict=True)
        self.shape = tuple(max(stop for _, stop in dimension) for dimension in ends)
        self.depth = max(p.k[1] for p in pieces) - min(p.k[0] for p in pieces)
        self.turned = turned
        self.room: Any = None

    def held(
        self, regions: Sequence[Region], arrays: Sequence[Any], band: tuple[int, int]
    ) -> _Band:
        pieces = list(zip(regions, arrays, strict=True))
        thick = len(pieces) == 1 or prod(self.shape) >= THICK * len(pieces)
        direct = thick and all(
            region[-1][0] <= band[0]
            and band[1] <= region[-1][1]
            and getattr(x.flags, "aligned", True)
            for region, x in pieces
        )
        return _Band(pieces, direct)

    def arrays(self, band: _Band, start: int, stop: int) -> Iterator[tuple[Region, Any]]:
        """(where it lies in the tile, array [..., start:stop]): the pieces, or all in one."""
        if band.direct:
            for (*across, (first, _)), x in band.pieces:
                yield tuple(across), x[..., start - first : stop - first]
            return
        if self.room is None:
            sample = band.pieces[0][1]
            shape = (*self.shape, min(SLAB, self.depth))
            order = "F" if self.turned else "C"  # as the blocks are, so that runs are copied
            self.room = array_namespace(sample).empty(shape, sample.dtype, order=order)
        packed = self.room[..., : stop - start]
        for (*across, (first, last)), x in band.pieces:
            a, b = max(start, first), min(stop, last)
            if a < b:
                place = packed[slices((*across, (a - start, b - start)))]
                place[...] = x[..., a - first : b - first]
        yield tuple((0, extent) for extent in self.shape), packed
