"""Rows that neighbours lend each other along one dimension, and the sums that go back.

own rows            . . . . | . . . .        widened: each gets copies of rows beyond its ends
with before=after=1 . . . . .                folded: the copies' values go back and are added
                          . . . . .
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledask.errors import PlacementError
from tiledask.plan.collectives.rows import Strip, halo_strips, halo_widths

__all__ = ["folded", "widened"]

Halo = tuple[int, int, int, tuple[int, ...] | None]
"""(dimension, rows before, rows behind, rows of every rank if they are said)."""


def widened(group: Any, x: np.ndarray, halo: Halo, label: str | None) -> np.ndarray:
    """``x`` with its halos; see `Group.halo_exchange`."""
    dim, before, after, extents = halo
    rows = _rows(group, x.shape[dim], before, after, extents)
    me, first = group.rank, sum(rows[: group.rank])
    strips = halo_strips(rows, before, after)
    out = [(s.destination, [_part(x, dim, s, first)]) for s in strips if s.source == me]
    into = [s for s in strips if s.destination == me]
    with _call(group, "halo_exchange", x, halo, rows, label) as exchange:
        came = exchange.swap(out, [s.source for s in into])
        parts = [(s.start, part) for s, (part,) in zip(into, came, strict=True)]
        parts = sorted([*parts, (first, x)], key=lambda each: each[0])
        return np.concatenate([part for _, part in parts], axis=dim)


def folded(group: Any, y: np.ndarray, halo: Halo, label: str | None) -> np.ndarray:
    """The own rows of ``y`` with others' added; see `Group.halo_reduce`."""
    dim, before, after, extents = halo
    me, mine = group.rank, y.shape[dim]
    if extents is None:
        mine -= (before if me else 0) + (after if me < group.size - 1 else 0)
    else:
        mine = extents[me]
    rows = _rows(group, mine, before, after, extents)
    ahead, behind = halo_widths(rows, me, before, after)
    if y.shape[dim] != ahead + mine + behind:
        raise PlacementError(
            f"rank {me} of the group has {mine} rows and halos of {ahead} and {behind}, so it "
            f"brings {ahead + mine + behind} along dim {dim}; got an array of {y.shape}"
        )
    first = sum(rows[:me])
    strips = halo_strips(rows, before, after)
    out = [(s.source, [_part(y, dim, s, first - ahead)]) for s in strips if s.destination == me]
    into = sorted((s for s in strips if s.source == me), key=lambda each: each.destination)
    with _call(group, "halo_reduce", y, halo, rows, label) as exchange:
        own = _part(y, dim, Strip(me, me, first, first + mine), first - ahead).copy()
        came = exchange.swap(out, [s.destination for s in into])
        for strip, (part,) in zip(into, came, strict=True):
            place = _part(own, dim, strip, first)
            np.add(place, part, out=place)
    return own


def _call(
    group: Any, kind: str, x: np.ndarray, halo: Halo, rows: Sequence[int], label: str | None
) -> Any:
    """The Exchange of such a call."""
    dim, before, after, extents = halo
    shape = (*x.shape[:dim], "any", *x.shape[dim + 1 :])
    agreed = {"dim": dim, "before": before, "after": after, "extents": extents, "shape": shape}
    exchange = group.call(kind, x, label=label, **agreed)
    row = np.prod(x.shape[:dim] + x.shape[dim + 1 :], dtype=np.int64)
    exchange.terms = rows, int(row) * x.itemsize, before, after
    return exchange


def _rows(
    group: Any, mine: int, before: int, after: int, extents: Sequence[int] | None
) -> tuple[int, ...]:
    """Rows of every rank; without ``extents`` as if all had as many, which for neighbours with
    enough rows comes to the same."""
    me, ranks = int(group.rank), int(group.size)
    if extents is not None:
        if len(extents) != ranks or extents[me] != mine:
            raise PlacementError(
                f"extents say how many rows each of the group's {ranks} ranks has, and that "
                f"rank {me} has {mine}; got {tuple(extents)}"
            )
        return tuple(extents)
    wanted = max(after if me else 0, before if me < ranks - 1 else 0)
    if mine < wanted or (mine == 0 and ranks > 1):
        raise PlacementError(
            f"rank {me} of the group has {mine} rows, and its neighbours' halos need "
            f"{max(wanted, 1)} of it; pass extents= (the rows of every rank), and they get the "
            f"others from those behind it"
        )
    return (mine,) * ranks


def _part(x: np.ndarray, dim: int, strip: Strip, first: int) -> np.ndarray:
    """The rows of ``strip`` in an array whose first row is row ``first`` of the whole."""
    return x[(slice(None),) * dim + (slice(strip.start - first, strip.stop - first),)]
