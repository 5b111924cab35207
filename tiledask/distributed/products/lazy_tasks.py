"""What the tasks of a lazy product do: each goes through its line, x[:, k] @ y[k, :] by bands of k.

No task changes what it receives, so any scheduler may run one twice or keep what it likes.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from dask._task_spec import Task
from dask.context import thread_state
from distributed import get_worker

from tiledask.distributed.products.lazy_plan import SLAB
from tiledask.distributed.products.line import Held, ProductLine, cut
from tiledask.distributed.products.verifying.tiles import RowCheck, TileCheck
from tiledask.distributed.transport.mailbox import CancelledError
from tiledask.errors import DamagedBlockError
from tiledask.plan.products.regions import Region, extents_of, region_size, within
from tiledask.plan.program.instructions import Fetch
from tiledask.plan.program.making.of_product import once
from tiledask.plan.program.making.of_tile import TilePiece, tile_role
from tiledask.tile.backend import accumulator, array_namespace, as_dtype, on_device
from tiledask.tile.backend import to_numpy as off_device

__all__ = ["LazyTileJob", "Made", "add_up", "multiply_tile"]

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
class LazyTileJob:
    """What one task multiplies."""

    left: tuple[TilePiece, ...]
    right: tuple[TilePiece, ...]
    sources: Mapping[str, int | Made]
    """By a piece's buffer, which of the task's inputs it is, or how it is made."""
    region: Region
    """The tile, counted from its own start."""
    final: tuple[int, ...] | None
    """The shape to leave it in, rounded to ``dtype``; None where it is added to later."""
    dtype: str
    bands: tuple[tuple[int, int], ...]
    """The intervals of k that are multiplied at once."""
    kernel: str
    tile: Any
    verified: Region | None = None
    """Where the tile lies in C, if it is asked whether it is right."""


def multiply_tile(job: LazyTileJob, before: Any, *inputs: Any) -> Any:
    """The tile of C, or ``before`` and what is to be added to it; k ascending."""
    check = TileCheck() if job.verified else None
    line = _TaskLine(job, before, inputs, check)
    found = line.result()
    if line.off is None:
        return found
    second = _TaskLine(job, before, inputs, TileCheck())
    again, where = second.result(), f"the tile {job.verified} of a lazy product"
    if same := off_device(found).tobytes() == off_device(again).tobytes():
        second = _TaskLine(job, before, inputs, RowCheck(job.region, line.off))
        second.result()  # in float64, whether that was rounding
    if second.off is not None:
        raise DamagedBlockError(
            f"{where} was multiplied wrong twice; memory or processor of that machine are at "
            f"fault, or the kernel {job.kernel!r}: use another"
        )
    if not same:
        words = f"{where} was multiplied wrong, and again: now it is right"
        warnings.warn(words, UserWarning, stacklevel=2)
    return again


class _TaskLine(ProductLine):
    """A task's way through its line: some blocks are made there, its tile is what it returns."""

    def __init__(
        self, job: LazyTileJob, before: Any, inputs: tuple[Any, ...], check: TileCheck | None
    ) -> None:
        self.dtype = as_dtype(job.dtype)
        adds, size = before is not None, self.dtype.itemsize
        role = tile_role(job.left, job.right, job.region, job.bands, size, adds)
        super().__init__(once([role], "tile"), job.kernel, job.tile)
        self.job, self.inputs, self.before, self.c = job, inputs, before, before
        self.tile_check = check
        depth = min(SLAB, max(stop - start for start, stop in job.bands))
        self.sides = _Side(job.region[:-1], True, depth), _Side(job.region[-1:], False, depth)

    def result(self) -> Any:
        """The tile, once the line was gone through."""
        sources = self.job.sources.items()
        given = {name: self.inputs[at] for name, at in sources if not isinstance(at, Made)}
        self.go({**{name: _matrix(name, x) for name, x in given.items()}, "C": None})
        self.off = None if self.tile_check is None else self.tile_check.off(self.c)
        final = self.job.final
        return self.c if final is None else _finished(self.c, self.dtype, final)

    def check(self) -> None:
        """Raise CancelledError if this is a task of Dask's that nobody waits for any more."""
        with suppress(ValueError):  # on no worker
            task = get_worker().state.tasks.get(thread_state.key)
            if task is None or task.state == "cancelled":
                raise CancelledError(f"{thread_state.key} was cancelled")

    def fetch(self, each: Fetch) -> Callable[[Any], Any]:
        return partial(self._make, each.buffer)

    def _make(self, name: str, _: Any) -> Any:
        made = self.job.sources[name]
        assert isinstance(made, Made)  # what is given is not fetched
        return _matrix(
            name, made.task({need: self.inputs[i] for need, i in made.needs})[made.within]
        )

    def place(self, room: Any, region: Region, like: Any) -> Any:
        if self.c is None:
            self.c = array_namespace(like).empty(extents_of(region), accumulator(self.dtype))
        elif self.c is self.before:
            self.c = self.before.copy()  # whoever made it may need it again
        return self.c

    def pairs(self, a: Held, b: Held) -> Iterator[tuple[Held, Held]]:
        """Some of their k at a time, packed together where BLAS cannot take the pieces so.

        How a block came, aligned or not, changes no sum: the next time it may come otherwise.
        """
        ends = [region[-1] for region, _ in a]
        band = min(ends)[0], max(stop for _, stop in ends)
        (x, y), left, right = self.sides, self.sides[0].ready(a, band), self.sides[1].ready(b, band)
        for k in pairwise([*range(*band, SLAB), band[1]]):
            yield x.at(a, k, left), y.at(b, k, right)


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


def _matrix(name: str, x: Any) -> Any:
    """A block of x as [..., k], of y as [k, n]."""
    return x if x.ndim > 1 else x[None] if name[0] == "x" else x[:, None]


def _aligned(x: Any) -> Any:
    """``x``, and if BLAS could not take it, a copy in the same order: what another worker sent."""
    return x if getattr(x.flags, "aligned", True) else x.copy(order="K")


class _Side:
    """One operand of a tile, whose pieces are packed where they are thin."""

    def __init__(self, across: Region, first: bool, depth: int) -> None:
        self.across, self.first = across, first
        shape = extents_of(across)
        self.shape = (*shape, depth) if first else (depth, *shape)
        self.room: Any = None

    def ready(self, pieces: Held, band: tuple[int, int]) -> bool:
        """Whether BLAS can take them as they are."""
        thick = len(pieces) == 1 or region_size(self.across) >= THICK * len(pieces)
        along = -1 if self.first else 0
        return thick and all(region[along] == band for region, _ in pieces)

    def at(self, pieces: Held, k: tuple[int, int], ready: bool) -> Held:
        """What the pieces have of ``k``, as they are or all in one."""
        box = (*self.across, k) if self.first else (k, *self.across)
        here = list(cut(pieces, box))
        if ready:
            return [(region, _aligned(x)) for region, x in here]
        if self.room is None:
            sample = pieces[0][1]
            self.room = array_namespace(sample).empty(self.shape, sample.dtype)
        packed = self.room[..., : k[1] - k[0]] if self.first else self.room[: k[1] - k[0]]
        for region, x in here:
            packed[within(region, box)] = x
        return [(box, packed)]
