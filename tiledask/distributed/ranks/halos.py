"""Rows that neighbours lend each other along one dimension, and the sums that go back.

own rows            . . . . | . . . .        widened: each gets copies of rows beyond its ends
with before=after=1 . . . . .                folded: the copies' values go back and are added
                          . . . . .
"""

from typing import Any

import numpy as np

from tiledask.errors import PlacementError
from tiledask.plan.collectives.rows import halo_strips, halo_widths
from tiledask.plan.intervals import Interval

__all__ = ["folded", "widened"]

Halo = tuple[int, int, int, tuple[int, ...]]
"""(dimension, rows before, rows behind, rows of every rank)."""


def widened(group: Any, x: np.ndarray, halo: Halo, how: Any) -> np.ndarray:
    """``x`` with its halos; see `Group.halo_exchange`."""
    with _call(group, "halo_exchange", x, halo, how) as exchange:
        (dim, before, after, rows), me = halo, group.rank
        strips, first = halo_strips(rows, before, after), sum(rows[:me])
        mine = (s for s in strips if s.source == me)
        into = [s for s in strips if s.destination == me]
        out = [(s.destination, [_part(x, dim, s.region[0], first)]) for s in mine]
        came = exchange.swap(out, [s.source for s in into])
        parts = [(first, x)]
        parts += ((s.region[0][0], part) for s, (part,) in zip(into, came, strict=True))
        return np.concatenate([part for _, part in sorted(parts, key=lambda at: at[0])], axis=dim)


def folded(group: Any, y: np.ndarray, halo: Halo, how: Any) -> np.ndarray:
    """The own rows of ``y`` with others' added; see `Group.halo_reduce`."""
    with _call(group, "halo_reduce", y, halo, how) as exchange:
        (dim, before, after, rows), me = halo, group.rank
        strips, first = halo_strips(rows, before, after), sum(rows[:me])
        ahead, _ = halo_widths(rows, me, before, after)
        into = [s for s in strips if s.source == me]
        into.sort(key=lambda each: each.destination)
        mine, begin = (s for s in strips if s.destination == me), first - ahead
        out = [(s.source, [_part(y, dim, s.region[0], begin)]) for s in mine]
        own = _part(y, dim, (first, first + rows[me]), begin).copy()
        came = exchange.swap(out, [s.destination for s in into])
        for strip, (part,) in zip(into, came, strict=True):
            place = _part(own, dim, strip.region[0], first)
            np.add(place, part, out=place)
    return own


def _call(group: Any, kind: str, x: np.ndarray, halo: Halo, how: Any) -> Any:
    """The Exchange of such a call."""
    (dim, before, after, rows), me = halo, group.rank
    wanted = -1
    if len(rows) == group.size:
        halos = halo_widths(rows, me, before, after) if kind == "halo_reduce" else ()
        wanted = rows[me] + sum(halos)
    if x.shape[dim] != wanted:
        raise PlacementError(
            f"extents say how many rows each of the group's {group.size} ranks has, got {rows}; "
            f"with before={before} and after={after} an array of {x.shape} along dim {dim} is not "
            f"what rank {me} brings to a {kind}"
        )
    shape = (*x.shape[:dim], "any", *x.shape[dim + 1 :])
    agreed = {"dim": dim, "before": before, "after": after, "extents": rows, "shape": shape}
    exchange = group.call(kind, x, how, **agreed)
    row = np.prod(x.shape[:dim] + x.shape[dim + 1 :], dtype=np.int64)
    exchange.terms = rows, int(row) * x.itemsize, before, after
    return exchange


def _part(x: np.ndarray, dim: int, rows: Interval, first: int) -> np.ndarray:
    """These ``rows`` of an array of which ``x`` has those from ``first`` on, along ``dim``."""
    return x[(slice(None),) * dim + (slice(rows[0] - first, rows[1] - first),)]
