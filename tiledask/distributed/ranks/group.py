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
from typing import Any, Unpack

import numpy as np

from tiledask.distributed.ranks.exchange import Exchange, How
from tiledask.distributed.ranks.rounds import cut, in_host_memory, joined
from tiledask.errors import PlacementError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.rows import halo_strips, halo_widths
from tiledask.plan.intervals import Interval

__all__ = ["Group", "How"]


class Group:
    """Some ranks of a mesh, one of which is this; ranks inside a group are numbered from 0.

    Every rank of a group makes the same calls in the same order. Results are the same to the bit
    on all ranks and in every run: see rounds.py for the order of summation. What a call
    returns belongs to the caller, and arrays that were passed may be changed as soon as it returns.

    All collectives take the options of `How`.

    Ranks that do not call the same raise CollectiveError, which names both calls. Not those of a
    ``stream`` of a checked program, which call the same: there what comes would be wrong, or the
    deadline end the run. One thread uses a stream, and its messages are in order.
    """

    def __init__(
        self, rank: Any, axes: tuple[int, ...], members: tuple[int, ...], stream: str | None = None
    ) -> None:
        self.axes, self.members = axes, members
        self.size = len(members)
        self.checked = stream is None
        """Whether ranks agree on each call."""
        self.stream = "" if self.checked else f"program {stream}"
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

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size}, members {self.members})"

    # -- reductions ---------------------------------------------------------------------------

    def all_reduce(self, x: Any, op: str = "sum", **how: Unpack[How]) -> Any:
        """The sum of all ranks' ``x`` (equal shapes), on every rank. ``op``: also "max", "min".

        The flattened array is cut in as many chunks as there are ranks, whatever its shape.
        Halves are summed as they are, where 60000 + 60000 is inf.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> run_threads(lambda rank: rank.group().all_reduce(2.0**rank.index).item(), 4).results
        [15.0, 15.0, 15.0, 15.0]
        """
        host, back = in_host_memory(x)
        with Exchange(self, "all_reduce", host, how, op=op) as exchange:
            counts = even(host.size, self.size)
            exchange.terms = counts, host.dtype.itemsize
            parts = cut(host.reshape(-1), 0, counts)
            host = joined(exchange.through(parts, counts, op=op), host.shape)
        return back(host)

    def reduce_scatter(
        self,
        x: Any,
        dim: int = 0,
        op: str = "sum",
        *,
        extents: Sequence[int] | None = None,
        **how: Unpack[How],
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
        with Exchange(
            self, "reduce_scatter", host, how, op=op, dim=dim, extents=extents
        ) as exchange:
            parts = cut(host, dim, extents)
            counts = tuple(part.size for part in parts.values())
            exchange.terms = counts, host.dtype.itemsize
            held = exchange.through(parts, counts, op=op)
            host = held[self.rank] if self.size > 1 else host.copy()
        return back(host)

    def reduce(self, x: Any, root: int = 0, op: str = "sum", **how: Unpack[How]) -> Any:
        """The sum of all ranks' ``x`` (equal shapes) on the group's rank ``root``, else None.

        ``op`` as for `all_reduce`. The adjoint of `broadcast`.
        """
        host, back = in_host_memory(x)
        with Exchange(self, "reduce", host, how, op=op, root=root) as exchange:
            counts = even(host.size, self.size)
            exchange.terms = counts, host.dtype.itemsize, root
            parts = cut(host.reshape(-1), 0, counts)
            host = joined(exchange.through(parts, counts, root, op), host.shape)
        return back(host) if self.rank == root else None

    # -- gathering and scattering -------------------------------------------------------------

    def all_gather(self, x: Any, dim: int = 0, **how: Unpack[How]) -> Any:
        """All ranks' ``x``, one after the other along ``dim``; there their extents may differ.

        The adjoint of `reduce_scatter`.

        >>> from tiledask.distributed.ranks.threads import run_threads
        >>> run_threads(lambda rank: rank.group().all_gather(np.ones(rank.index)).size, 4).results
        [6, 6, 6, 6]
        """
        host, back = in_host_memory(x)
        dim = _dim(host, dim)
        with Exchange(self, "all_gather", host, how, dim=dim, shape=_any(host, dim)) as exchange:
            held = exchange.through({self.rank: host})
            parts = [held[c] for c in range(self.size)]
            exchange.terms = tuple([part.size for part in parts]), host.dtype.itemsize
            host = np.concatenate(parts, axis=dim)
        return back(host)

    def all_to_all(
        self,
        x: Any,
        split_dim: int = 0,
        concat_dim: int = 0,
        *,
        extents: Sequence[int] | None = None,
        **how: Unpack[How],
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
        agreed: dict[str, Any] = {"shape": (), "split_dim": split_dim, "concat_dim": concat_dim}
        with Exchange(self, "all_to_all", host, how, **agreed) as exchange:
            held = exchange.through({n * me + d: part for d, part in parts.items()})
            # chunks that never came by cost this rank nothing
            sizes = (held[c].size if c in held else 0 for c in range(n * n))
            exchange.terms = tuple(sizes), host.dtype.itemsize
            host = np.concatenate([held[n * s + me] for s in range(n)], axis=concat_dim)
        return back(host)

    def broadcast(self, x: Any, root: int = 0, **how: Unpack[How]) -> Any:
        """``x`` of the group's rank ``root``, on every rank; the others pass one of its shape.

        The adjoint of `reduce`.
        """
        host, back = in_host_memory(x)
        with Exchange(self, "broadcast", host, how, root=root) as exchange:
            counts = even(host.size, self.size)
            held = cut(host.reshape(-1), 0, counts) if self.rank == root else {}
            exchange.terms = counts, host.dtype.itemsize, root
            host = joined(exchange.through(held, root=root), host.shape)
        return back(host)

    def barrier(self, **how: Unpack[How]) -> None:
        """Return when all ranks of the group have called this."""
        with Exchange(self, "barrier", None, how) as exchange:
            exchange.through({})
            exchange.terms = (0,) * self.size, 1

    # -- between neighbours and pairs ---------------------------------------------------------

    def halo_exchange(
        self, x: Any, dim: int, before: int, after: int, extents: Sequence[int], **how: Unpack[How]
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
        dim, rows = _dim(host, dim), tuple(extents)
        lent = self._lent("halo_exchange", host, dim, before, after, rows, how)
        parts = {sum(rows[: self.rank]): host} | {start: part for (start, _), part in lent}
        return back(np.concatenate([parts[start] for start in sorted(parts)], axis=dim))

    def halo_reduce(
        self, y: Any, dim: int, before: int, after: int, extents: Sequence[int], **how: Unpack[How]
    ) -> Any:
        """The own rows of ``y``, to which other ranks add what they have there in their halos.

        The adjoint of `halo_exchange`, with its arguments. Sums: own first, then by rank.
        """
        host, back = in_host_memory(y)
        dim, rows, me = _dim(host, dim), tuple(extents), self.rank
        lent, first = self._lent("halo_reduce", host, dim, before, after, rows, how), sum(rows[:me])
        begin = first - halo_widths(rows, me, before, after)[0]
        own = _rows(host, dim, (first, first + rows[me]), begin).copy()
        for at, part in lent:
            place = _rows(own, dim, at, first)
            np.add(place, part, out=place)
        return back(own)

    def _lent(
        self,
        kind: str,
        x: np.ndarray,
        dim: int,
        before: int,
        after: int,
        rows: tuple[int, ...],
        how: How,
    ) -> list[tuple[Interval, np.ndarray]]:
        """(rows, their part) of what comes from other ranks for this one's halos, or from theirs;
        by rank. ``rows``: of every rank."""
        me, goes_back = self.rank, kind == "halo_reduce"
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
        agreed: dict[str, Any] = {"dim": dim, "before": before, "after": after, "extents": rows}
        with Exchange(self, kind, x, how, **agreed, shape=_any(x, dim)) as exchange:
            came = exchange.swap(out, [source for source, _ in into])
            row = prod(x.shape[:dim] + x.shape[dim + 1 :]) * x.itemsize
            exchange.terms = rows, row, before, after
        return [(at, part) for (_, at), (part,) in zip(into, came, strict=True)]

    def send(self, x: Any, to: int, **how: Unpack[How]) -> None:
        """Send ``x`` to the group's rank ``to``, which calls `recv`. Does not wait for it."""
        host, _ = in_host_memory(x)
        with Exchange(self, "send", host, how, other=to) as exchange:
            there = exchange.members.index(self.members[to])
            exchange.swap([(there, [host])], ())
            exchange.terms = host.nbytes, None

    def recv(self, source: int, **how: Unpack[How]) -> Any:
        """What the group's rank ``source`` sends to this one next; not to be changed if it keeps
        it."""
        with Exchange(self, "recv", None, how, other=source) as exchange:
            ((host,),) = exchange.swap((), (exchange.members.index(self.members[source]),))
            exchange.dtype, exchange.terms = host.dtype, (None, host.nbytes)
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

    def _extents(self, x: np.ndarray, dim: int, extents: Sequence[int] | None) -> tuple[int, ...]:
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
