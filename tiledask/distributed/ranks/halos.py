"""Rows that neighbours lend each other along one dimension, and the sums that go back.

own rows            . . . . | . . . .        widened: each gets copies of rows beyond its ends
with before=after=1 . . . . .                folded: the copies' values go back and are added
                          . . . . .
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import PlacementError
from tiledask.plan.collectives.halo import Strip, halo_strips, halo_widths

__all__ = ["Halo", "folded", "widened"]


class Halo(NamedTuple):
    """Which rows are lent."""

    dim: int
    before: int
    after: int
    extents: tuple[int, ...] | None
    """Rows of every rank, if they are said."""

    def calling(self, group: Any, kind: str, x: np.ndarray, label: str | None) -> Any:
        """The Exchange of such a call."""
        shape = (*x.shape[: self.dim], "any", *x.shape[self.dim + 1 :])
        return group.calling(kind, x, label=label, shape=shape, **self._asdict())


def widened(group: Any, x: np.ndarray, halo: Halo, label: str | None) -> np.ndarray:
    """``x`` with its halos; see `Group.halo_exchange`."""
    dim, before, after, extents = halo
    rows = _rows(group, x.shape[dim], before, after, extents)
    me, first = group.rank, sum(rows[: group.rank])
    strips = halo_strips(rows, before, after)
    with halo.calling(group, "halo_exchange", x, label) as exchange:
        exchange.terms = rows, _row_bytes(x, dim), before, after
        out = [(s.destination, [_part(x, dim, s, first)]) for s in strips if s.source == me]
        into = [s for s in strips if s.destination == me]
        came = exchange.swap(out, [s.source for s in into])
        got = {s: part for s, (part,) in zip(into, came, strict=True)}
        ordered = sorted(got, key=lambda strip: strip.start)
        ahead = [got[s] for s in ordered if s.start < first]
        behind = [got[s] for s in ordered if s.start >= first]
        return np.concatenate([*ahead, x, *behind], axis=dim)


def folded(group: Any, y: np.ndarray, halo: Halo, label: str | None) -> np.ndarray:
    """The own rows of ``y`` with others' added; see `Group.halo_reduce`."""
    dim, before, after, extents = halo
    me = group.rank
    if extents is None:
        lent = (before if me else 0) + (after if me < group.size - 1 else 0)
        rows = _rows(group, y.shape[dim] - lent, before, after, None)
    else:
        rows = _rows(group, extents[me], before, after, extents)
    ahead, behind = halo_widths(rows, me, before, after)
    if y.shape[dim] != ahead + rows[me] + behind:
        raise PlacementError(
            f"rank {me} of the group has {rows[me]} rows and halos of {ahead} and {behind}, so it "
            f"brings {ahead + rows[me] + behind} along dim {dim}; got an array of {y.shape}"
        )
    first = sum(rows[:me])
    strips = halo_strips(rows, before, after)
    with halo.calling(group, "halo_reduce", y, label) as exchange:
        exchange.terms = rows, _row_bytes(y, dim), before, after
        back = [s for s in strips if s.destination == me]
        out = [(s.source, [_part(y, dim, s, first - ahead)]) for s in back]
        into = sorted((s for s in strips if s.source == me), key=lambda each: each.destination)
        own = _part(y, dim, Strip(me, me, first, first + rows[me]), first - ahead).copy()
        came = exchange.swap(out, [s.destination for s in into])
        for strip, (part,) in zip(into, came, strict=True):
            place = _part(own, dim, strip, first)
            np.add(place, part, out=place)
    return own


def _rows(
    group: Any, mine: int, before: int, after: int, extents: Sequence[int] | None
) -> tuple[int, ...]:
    """Rows of every rank; without ``extents`` as if all had as many, which for neighbours with
    enough rows comes to the same."""
    if extents is not None:
        if len(extents) != group.size or extents[group.rank] != mine:
            raise PlacementError(
                f"extents say how many rows each of the group's {group.size} ranks has, and that "
                f"rank {group.rank} has {mine}; got {tuple(extents)}"
            )
        return tuple(extents)
    wanted = max(after if group.rank else 0, before if group.rank < group.size - 1 else 0)
    if mine < wanted or (mine == 0 and group.size > 1):
        raise PlacementError(
            f"rank {group.rank} of the group has {mine} rows, and its neighbours' halos need "
            f"{max(wanted, 1)} of it; pass extents= (the rows of every rank), and they get the "
            f"others from those behind it"
        )
    ranks: int = group.size
    return (mine,) * ranks


def _row_bytes(x: np.ndarray, dim: int) -> int:
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    return int(np.prod(shape, dtype=np.int64)) * x.itemsize


def _part(x: np.ndarray, dim: int, strip: Strip, first: int) -> np.ndarray:
    """The rows of ``strip`` in an array whose first row is row ``first`` of the whole."""
    return x[(slice(None),) * dim + (slice(strip.start - first, strip.stop - first),)]
