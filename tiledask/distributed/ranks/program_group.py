"""Collectives of a program, which was checked before it runs: nothing travels but its arrays.

    Group          call agreed on by all ranks --.
                                                  >-- the same rounds, sums and ports --> Record
    ProgramGroup   sizes and order are known   --'

What can still go wrong at run time is said as in a Group: a rank that raised, a worker that died,
a deadline.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledask.distributed.ranks.collectives import (
    Reduction,
    all_reduced,
    copied,
    cut,
    rank_rounds,
    reduced,
    reduction,
)
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.records import Terms
from tiledask.distributed.transport.transport import Port
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import even
from tiledask.tile.backend import name_of

__all__ = ["ProgramGroup"]


class ProgramGroup:
    """Some ranks of a mesh among whom a checked program's messages go; numbered from 0 inside.

    axes, members    as of a `Group`: axes of the mesh, ranks of the run (sorted)
    stream           messages of one stream are in order; one thread uses a ProgramGroup

    Results, bytes, messages and records are those of a `Group`. Nobody asks whether the ranks call
    the same: if they do not, what comes is wrong, or the deadline ends the run.

    ``label`` is for the record; None takes the rank's labels of now. ``keep`` says that neither
    what is passed nor what comes back is ever changed, by anybody: then ranks that share memory
    need no copies, and nobody waits until others have read.
    Between GPUs it is a `Group`, which has NCCL.

    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> def twice(rank):
    ...     everyone = rank.program_group()
    ...     return everyone.all_reduce(np.full(2, rank.index), label="loss", keep=True).tolist()
    >>> run_threads(twice, 3).results
    [[3, 3], [3, 3], [3, 3]]
    """

    def __init__(
        self, rank: Any, axes: tuple[int, ...], members: tuple[int, ...], stream: str = ""
    ) -> None:
        self.axes, self.members = axes, members
        self.size = len(members)
        self.rank = members.index(rank.index)
        """This rank's number in the group."""
        self._owner, self._transport = rank, rank.transport
        self._stream = f"program {stream}"
        self._port = rank.transport.port(members, self._stream)
        self._reductions: dict[tuple[Any, ...], Reduction] = {}
        self._group = Group(rank, axes, members) if rank.backend == "cupy" else None

    def __repr__(self) -> str:
        return f"ProgramGroup(rank {self.rank} of {self.size}, members {self.members})"

    def all_reduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        wide: bool = False,
        label: str | None = None,
        keep: bool = False,
    ) -> Any:
        """The sum of all ranks' ``x``, on every rank; as `Group.all_reduce`."""
        if self._group is not None:
            with self._group.label(*_names(label)):
                return self._group.all_reduce(x, op, wide=wide)
        if self.size == 1:
            return x if keep else x.copy()
        key = "all_reduce", x.size, x.dtype, wide
        if (plan := self._reductions.get(key)) is None:
            plan = self._reduction("all_reduce", even(x.size, self.size), x.dtype, wide)
            self._reductions[key] = plan
        begun = self._begin("all_reduce", label)
        result = all_reduced(self._port.swap, plan, x, op, keep)
        self._end(begun, x, plan.terms, keep)
        return result

    def reduce_scatter(
        self,
        x: Any,
        extents: Sequence[int],
        dim: int = 0,
        op: str = "sum",
        *,
        wide: bool = False,
        label: str | None = None,
        keep: bool = False,
    ) -> Any:
        """This rank's part of the sum of all ranks' ``x``; as `Group.reduce_scatter`."""
        if self._group is not None:
            with self._group.label(*_names(label)):
                return self._group.reduce_scatter(x, dim, op, extents=extents, wide=wide)
        if self.size == 1:
            return x if keep else x.copy()
        key = "reduce_scatter", x.shape, dim, tuple(extents), x.dtype, wide
        parts = cut(x, dim, extents)
        if (plan := self._reductions.get(key)) is None:
            counts = tuple(part.size for part in parts.values())
            plan = self._reduction("reduce_scatter", counts, x.dtype, wide)
            self._reductions[key] = plan
        begun = self._begin("reduce_scatter", label)
        result = reduced(self._port.swap, plan, parts, op, keep)[self.rank]
        self._end(begun, x, plan.terms, keep)
        return result

    def all_gather(
        self, x: Any, dim: int = 0, *, label: str | None = None, keep: bool = False
    ) -> Any:
        """All ranks' ``x``, one after the other along ``dim``; as `Group.all_gather`."""
        if self._group is not None:
            with self._group.label(*_names(label)):
                return self._group.all_gather(x, dim)
        if self.size == 1:
            return x if keep else x.copy()
        begun = self._begin("all_gather", label)
        held, n = {self.rank: x}, self.size
        algorithm = default("all_gather", n)
        copied(self._port.swap, rank_rounds("all_gather", algorithm, n, self.rank), held, keep)
        parts = [held[c] for c in range(n)]
        terms = tuple(part.size for part in parts), x.itemsize
        result = np.concatenate(parts, axis=dim)
        self._end(begun, x, terms, keep)
        return result

    def send(self, x: Any, member: int, *, label: str | None = None, keep: bool = False) -> None:
        """Send ``x`` to number ``member``, which calls `recv`. Does not wait for it."""
        if self._group is not None:
            with self._group.label(*_names(label)):
                return self._group.send(x, member)
        port = self._pair(member)
        begun = self._begin("send", label, port)
        port.put(port.members.index(self.members[member]), [x], None, keep)
        self._end(begun, x, (x.nbytes, None), keep, port)
        return None

    def recv(self, member: int, *, label: str | None = None) -> Any:
        """What number ``member`` sends to this one next; not to be changed if it keeps it."""
        if self._group is not None:
            with self._group.label(*_names(label)):
                return self._group.recv(member)
        port = self._pair(member)
        begun = self._begin("recv", label, port)
        ((x,),) = port.swap((), (port.members.index(self.members[member]),))
        self._end(begun, x, (None, x.nbytes), True, port)
        return x

    # -- what they share ----------------------------------------------------------------------

    def _pair(self, member: int) -> Port:
        """The port of this rank and another: a message between two may overtake collectives."""
        pair = tuple(sorted((self.members[member], self._owner.index)))
        port: Port = self._transport.port(pair, self._stream + "pair")
        return port

    def _reduction(
        self, kind: str, counts: tuple[int, ...], dtype: np.dtype, wide: bool
    ) -> Reduction:
        return reduction(kind, default(kind, self.size), self.rank, counts, dtype, wide)

    def _begin(self, kind: str, label: str | None, port: Port | None = None) -> tuple[Any, ...]:
        """A collective begins: (kind, label, port, its counts before, when, CPU seconds)."""
        port = port or self._port
        label = self._owner.here if label is None else label
        before = port.sent, port.received, port.messages
        return kind, label, before, port.enter((kind, label)), time.thread_time()

    def _end(
        self, begun: tuple[Any, ...], x: Any, terms: Terms, keep: bool, port: Port | None = None
    ) -> None:
        """A collective is done and written down."""
        kind, label, before, begin, cpu = begun
        if not keep:
            self._transport.settle()
        pair, port = port is not None, port or self._port
        moved = port.sent - before[0], port.received - before[1], port.messages - before[2]
        algorithm = "" if pair else default(kind, self.size)
        payload = 0 if kind == "recv" else x.nbytes
        what = kind, algorithm, port.members, self.axes, name_of(x.dtype), payload, *moved
        end, cpu = port.leave(), time.thread_time() - cpu
        self._owner.record(what, not pair, label, begin, end, cpu, terms)


def _names(label: str | None) -> tuple[str, ...]:
    return () if label is None else (label,)
