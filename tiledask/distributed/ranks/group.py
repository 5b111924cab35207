"""Collectives among the ranks of a group: moves of chunks, carried out and written down.

    moves (plan/collectives)  --by round-->  messages (transport)  --counted-->  Record

The rounds that are carried out are those that the arithmetic adds up; what is counted is what
the transport really sent and received. Ranks agree on each call before it begins; those of a
program, which was checked before it runs, need not: then nothing travels but arrays. What can go
wrong while it runs is told the same way. Arrays on GPUs go through host memory: they are copied to
it, sent, and the result is copied back.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.ranks.exchange import Exchange
from tiledask.distributed.ranks.rounds import cut, in_host_memory, joined
from tiledask.errors import PlacementError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import halo_strips, halo_widths
from tiledask.plan.intervals import Interval

__all__ = ["Group"]

Extents = Sequence[int] | None


class Group:
    """Some ranks of a mesh, one of which is this; ranks inside a group are numbered from 0.

    Every rank of a group makes the same calls in the same order. Results are the same to the bit
    on all ranks and in every run: see rounds.py for the order of summation. What a call
    returns belongs to the caller, and arrays that were passed may be changed as soon as it returns.

    All collectives take these options:

    algorithm
        "ring", "tree" or "direct" (plan/collectives/algorithms.py draws them); None takes the one
        that `tiledask.plan.collectives.algorithms.default` names.
    label
        For the record, behind the rank's labels of now.
    keep
        Whether neither what is passed nor what comes back is ever changed, by anybody: then, in a
        program, ranks that share memory need no copies.

    Ranks that do not call the same raise CollectiveError, which names both calls. Not those of a
    group that is not ``checked``, a program's, which call the same: there what comes would be
    wrong, or the deadline end the run.
    """

    def __init__(
        self, rank: Any, axes: tuple[int, ...], members: tuple[int, ...], checked: bool = True
    ) -> None:
        self.axes, self.members, self.size = axes, members, len(members)
        self.checked = checked
        """Whether ranks agree on each call."""
        self.rank = members.index(rank.index)
        """This rank's number in the group."""
        self.owner = rank
        """Whose group this is."""
        self.bound: dict[Any, Any] = {}
        """What layers have bound to it, by what they are (tensor/run_layer.py)."""
        self.calls = 0
        """Of its collectives so far."""

    def among(self, numbers: Sequence[int]) -> "Group":
        """The group of these of its ranks, this one included; the group itself for all of them.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> def odd_or_even(rank):
        ...     mine = rank.group().among([r for r in range(5) if r % 2 == rank.index % 2])
        ...     return mine.all_reduce(rank.index).item()
        >>> run_threads(odd_or_even, 5).results
        [6, 4, 6, 4, 6]
        """
        members = tuple(self.members[i] for i in numbers)
        return self if members == self.members else Group(self.owner, self.axes, members)

    # -- reductions ---------------------------------------------------------------------------

    def all_reduce(self, x: Any, op: str = "sum", **how: Any) -> Any:
        """The sum of all ranks' ``x`` (equal shapes), on every rank. ``op``: also "max", "min".

        The flattened array is cut in as many chunks as there are ranks, whatever its shape.
        Halves are summed as they are, where 60000 + 60000 is inf.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> run_threads(lambda rank: rank.group().all_reduce(2.0**rank.index).item(), 4).results
        [15.0, 15.0, 15.0, 15.0]
        """
        return self._by_chunks("all_reduce", x, op, None, how)

    def reduce_scatter(
        self, x: Any, dim: int = 0, op: str = "sum", *, extents: Extents = None, **how: Any
    ) -> Any:
        """This rank's part, along ``dim``, of the sum of all ranks' ``x`` (equal shapes).

        ``extents``: of the parts along ``dim``, by rank; default: those of numpy.array_split.
        ``op`` as for `all_reduce`. The adjoint of `all_gather`.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> run_threads(lambda rank: rank.group().reduce_scatter(np.arange(5)).tolist(), 3).results
        [[0, 3], [6, 9], [12]]
        """
        host, back = in_host_memory(x)
        dim, extents = _dim(host, dim), self._extents(host, dim, extents)
        agreed = {"op": op, "dim": dim, "extents": extents}
        exchange = Exchange(self, "reduce_scatter", host, agreed, **how)
        parts = cut(host, dim, extents)
        counts = tuple([part.size for part in parts.values()])
        mine = exchange.through(parts, counts, op=op)[self.rank]
        exchange.done(counts, host.dtype.itemsize)
        return back(mine if self.size > 1 else mine.copy())

    def reduce(self, x: Any, root: int = 0, op: str = "sum", **how: Any) -> Any:
        """The sum of all ranks' ``x`` (equal shapes) on the group's rank ``root``, else None.

        ``op`` as for `all_reduce`. The adjoint of `broadcast`.
        """
        made = self._by_chunks("reduce", x, op, root, how)
        return made if self.rank == root else None

    # -- gathering and scattering -------------------------------------------------------------

    def all_gather(self, x: Any, dim: int = 0, **how: Any) -> Any:
        """All ranks' ``x``, one after the other along ``dim``; there their extents may differ.

        The adjoint of `reduce_scatter`.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> run_threads(lambda rank: rank.group().all_gather(np.ones(rank.index)).size, 4).results
        [6, 6, 6, 6]
        """
        host, back = in_host_memory(x)
        dim = _dim(host, dim)
        agreed = {"dim": dim, "shape": _any(host, dim)}
        exchange = Exchange(self, "all_gather", host, agreed, **how)
        held = exchange.through({self.rank: host})
        parts = [held[c] for c in range(self.size)]
        exchange.done(tuple([part.size for part in parts]), host.dtype.itemsize)
        return back(np.concatenate(parts, axis=dim))

    def all_to_all(
        self,
        x: Any,
        split_dim: int = 0,
        concat_dim: int = 0,
        *,
        extents: Extents = None,
        **how: Any,
    ) -> Any:
        """What every rank has for this one: its part of their ``x`` along ``split_dim``, joined
        along ``concat_dim``.

        ``extents``: of this rank's parts, by destination; default: those of numpy.array_split.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> swap = lambda rank: rank.group().all_to_all(10 * rank.index + np.arange(3)).tolist()
        >>> run_threads(swap, 3).results
        [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
        """
        host, back = in_host_memory(x)
        split_dim, concat_dim = _dim(host, split_dim), _dim(host, concat_dim)
        parts = cut(host, split_dim, self._extents(host, split_dim, extents))
        n, me = self.size, self.rank
        agreed = {"shape": (), "split_dim": split_dim, "concat_dim": concat_dim}
        exchange = Exchange(self, "all_to_all", host, agreed, **how)
        held = exchange.through({n * me + d: part for d, part in parts.items()})
        # chunks that never came by cost this rank nothing
        sizes = (held[c].size if c in held else 0 for c in range(n * n))
        exchange.done(tuple(sizes), host.dtype.itemsize)
        return back(np.concatenate([held[n * s + me] for s in range(n)], axis=concat_dim))

    def broadcast(self, x: Any, root: int = 0, **how: Any) -> Any:
        """``x`` of the group's rank ``root``, on every rank; the others pass one of its shape.

        The adjoint of `reduce`.
        """
        return self._by_chunks("broadcast", x, None, root, how)

    def barrier(self, **how: Any) -> None:
        """Return when all ranks of the group have called this."""
        exchange = Exchange(self, "barrier", None, {}, **how)
        exchange.through({})
        exchange.done((0,) * self.size, 1)

    # -- between neighbours and pairs ---------------------------------------------------------

    def halo_exchange(
        self, x: Any, dim: int, before: int, after: int, extents: Sequence[int], **how: Any
    ) -> Any:
        """``x`` with up to ``before`` rows of the ranks before it, and ``after`` of those behind.

        ``x`` is this rank's part of an array that is cut along ``dim``, of which every rank has
        ``extents`` rows. There is nothing beyond the array's two ends; a rank without rows gets
        none.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> wider = lambda rank: rank.group().halo_exchange(
        ...     2 * rank.index + np.arange(2), 0, before=1, after=1, extents=(2, 2, 2)).tolist()
        >>> run_threads(wider, 3).results
        [[0, 1, 2], [1, 2, 3, 4], [3, 4, 5]]
        """
        host, back = in_host_memory(x)
        dim = _dim(host, dim)
        first, lent = self._halos("halo_exchange", host, (dim, before, after, extents), how)
        parts = {first: host} | {start: part for (start, _), part in lent}
        return back(np.concatenate([parts[start] for start in sorted(parts)], axis=dim))

    def halo_reduce(
        self, y: Any, dim: int, before: int, after: int, extents: Sequence[int], **how: Any
    ) -> Any:
        """The own rows of ``y``, to which other ranks add what they have there in their halos.

        The adjoint of `halo_exchange`, with its arguments. Sums: own first, then by rank.
        """
        host, back = in_host_memory(y)
        dim = _dim(host, dim)
        begin, lent = self._halos("halo_reduce", host, (dim, before, after, extents), how)
        first = sum(extents[: self.rank])
        own = _rows(host, dim, (first, first + extents[self.rank]), begin).copy()
        for at, part in lent:
            place = _rows(own, dim, at, first)
            np.add(place, part, out=place)
        return back(own)

    def _halos(
        self, kind: str, x: np.ndarray, halo: tuple[Any, ...], how: dict[str, Any]
    ) -> tuple[int, list[tuple[Interval, np.ndarray]]]:
        """The first row of ``x``, and (rows, their part) of what comes from other ranks for this
        one's halos, or from theirs; by rank. ``halo``: (dim, before, after, extents)."""
        (dim, before, after, extents), me, goes_back = halo, self.rank, kind == "halo_reduce"
        rows = tuple(extents)
        begin, wanted = sum(rows[:me]), -1
        if len(rows) == self.size:
            ahead, behind = halo_widths(rows, me, before, after) if goes_back else (0, 0)
            begin, wanted = begin - ahead, ahead + rows[me] + behind
        if x.shape[dim] != wanted:
            raise PlacementError(
                f"extents say how many rows each of the group's {self.size} ranks has, got {rows}; "
                f"with before={before} and after={after} an array of {x.shape} along dim {dim} is "
                f"not what rank {me} brings to a {kind}"
            )
        halos = halo_strips(rows, before, after)
        strips = [(s.source, s.destination, s.region[0]) for s in halos]
        if goes_back:
            strips = [(to, source, at) for source, to, at in strips]
        out = [(to, [_rows(x, dim, at, begin)]) for source, to, at in strips if source == me]
        into = sorted((source, at) for source, to, at in strips if to == me)
        agreed = {"dim": dim, "before": before, "after": after, "extents": rows}
        exchange = Exchange(self, kind, x, agreed | {"shape": _any(x, dim)}, **how)
        came = exchange.swap(out, [source for source, _ in into])
        row = prod(x.shape[:dim] + x.shape[dim + 1 :]) * x.itemsize
        exchange.done(rows, row, before, after)
        return begin, [(at, part) for (_, at), (part,) in zip(into, came, strict=True)]

    def send(self, x: Any, to: int, **how: Any) -> None:
        """Send ``x`` to the group's rank ``to``, which calls `recv`. Does not wait for it."""
        host, _ = in_host_memory(x)
        exchange = Exchange(self, "send", host, {}, to, **how)
        exchange.swap([(exchange.members.index(self.members[to]), [host])], ())
        exchange.done(host.nbytes, None)

    def recv(self, source: int, **how: Any) -> Any:
        """What the group's rank ``source`` sends to this one next; not to be changed if it keeps
        it."""
        exchange = Exchange(self, "recv", None, {}, source, **how)
        ((host,),) = exchange.swap((), [exchange.members.index(self.members[source])])
        exchange.dtype = host.dtype
        exchange.done(None, host.nbytes)
        return self.owner.on_device(host)

    def sendrecv(self, x: Any, to: int, source: int) -> Any:
        """Send ``x`` to rank ``to`` and return what rank ``source`` sends: a shift, if all do so.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> def shift(rank):
        ...     ring = rank.group()
        ...     right, left = (rank.index + 1) % ring.size, (rank.index - 1) % ring.size
        ...     return ring.sendrecv(rank.index, to=right, source=left).item()
        >>> run_threads(shift, 4).results
        [3, 0, 1, 2]
        """
        self.send(x, to)
        return self.recv(source)

    # -- what they share ----------------------------------------------------------------------

    def _by_chunks(
        self, kind: str, x: Any, op: str | None, root: int | None, how: dict[str, Any]
    ) -> Any:
        """What goes through the flattened array in as many chunks as there are ranks."""
        host, back = in_host_memory(x)
        exchange = Exchange(self, kind, host, {"op": op, "root": root}, **how)
        counts = even(host.size, self.size)
        brings = kind != "broadcast" or root == self.rank
        held = cut(host.reshape(-1), 0, counts) if brings else {}
        made = joined(exchange.through(held, counts, root, op), host.shape)
        exchange.done(counts, host.dtype.itemsize, root or 0)
        return back(made)

    def _extents(self, x: np.ndarray, dim: int, extents: Extents) -> tuple[int, ...]:
        if extents is None:
            return even(x.shape[dim], self.size)
        if len(extents) != self.size or sum(extents) != x.shape[dim] or min(extents) < 0:
            raise PlacementError(
                f"extents of a group of {self.size} are {self.size} numbers of 0 or more that add "
                f"up to the array's {x.shape[dim]} along dim {dim}; got {tuple(extents)}, which "
                f"add up to {sum(extents)}"
            )
        return tuple(extents)


def _dim(x: np.ndarray, dim: int) -> int:
    if not -x.ndim <= dim < x.ndim:
        raise PlacementError(
            f"dim {dim} is none of an array of shape {x.shape}, which has {x.ndim} dimensions; "
            f"take one of 0..{x.ndim - 1}, or x.reshape(1) if it has none"
        )
    return dim % x.ndim


def _any(x: np.ndarray, dim: int) -> tuple[Any, ...]:
    """The shape of ``x``, but that along ``dim`` every rank may have another extent."""
    return (*x.shape[:dim], "any", *x.shape[dim + 1 :])


def _rows(x: np.ndarray, dim: int, rows: Interval, first: int) -> np.ndarray:
    """These ``rows`` of an array of which ``x`` has those from ``first`` on, along ``dim``."""
    return x[(slice(None),) * dim + (slice(rows[0] - first, rows[1] - first),)]
