"""Collectives of a program, which was checked before it runs: nothing travels but its arrays.

    Group          call agreed on by all ranks --.
                                                  >-- the same rounds, sums and ports --> Record
    ProgramGroup   sizes and order are known   --'

What can still go wrong at run time is said as in a Group: a rank that raised, a worker that died,
a deadline.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.ranks.collectives import (
    all_reduced,
    cut,
    joined,
    rank_rounds,
    record,
    reduced,
    reduction,
    through,
)
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.transport.transport import Port
from tiledask.plan.collectives.algorithms import KINDS, default
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
    Between GPUs it is a `Group`, which has NCCL; and so it is of a ``group`` that is given, whose
    ranks agree on each call.

    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> def twice(rank):
    ...     everyone = rank.program_group()
    ...     return everyone.all_reduce(np.full(2, rank.index), label="loss", keep=True).tolist()
    >>> run_threads(twice, 3).results
    [[3, 3], [3, 3], [3, 3]]
    """

    def __init__(
        self,
        rank: Any,
        axes: tuple[int, ...],
        members: tuple[int, ...],
        stream: str = "",
        group: Group | None = None,
    ) -> None:
        self.axes, self.members = axes, members
        self.size = len(members)
        self.rank = members.index(rank.index)
        """This rank's number in the group."""
        self._owner, self._transport = rank, rank.transport
        self._stream = f"program {stream}"
        self._port = rank.transport.port(members, self._stream)
        self._algorithms = {kind: default(kind, self.size) for kind in KINDS}
        if group is None and rank.backend == "cupy":
            group = Group(rank, axes, members)
        self._group = self._agreeing = group
        self._among_themselves = group is None and self.size > 1

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
        if not self._among_themselves:
            return self._elsewhere("all_reduce", x, label, keep, op=op, wide=wide)
        label = self._owner.here if label is None else label
        begun = self._port.enter(("all_reduce", label))
        algorithm, counts = self._algorithms["all_reduce"], even(x.size, self.size)
        plan = reduction("all_reduce", algorithm, self.rank, counts, x.dtype, op, wide)
        steps = all_reduced(plan, x, keep)
        result = self._transport.carry(self._port, steps, None, x.nbytes)
        what = "all_reduce", algorithm, self.members, self.axes, name_of(x.dtype), x.nbytes
        record(self._owner, self._port, begun, what, label, plan.terms)
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
        if not self._among_themselves:
            how = {"dim": dim, "op": op, "extents": extents, "wide": wide}
            return self._elsewhere("reduce_scatter", x, label, keep, **how)
        label = self._owner.here if label is None else label
        begun, parts = self._port.enter(("reduce_scatter", label)), cut(x, dim, extents)
        algorithm = self._algorithms["reduce_scatter"]
        counts = tuple(part.size for part in parts.values())
        plan = reduction("reduce_scatter", algorithm, self.rank, counts, x.dtype, op, wide)
        steps = reduced(plan, parts, keep)
        result = self._transport.carry(self._port, steps, None, x.nbytes)[self.rank]
        what = "reduce_scatter", algorithm, self.members, self.axes, name_of(x.dtype), x.nbytes
        record(self._owner, self._port, begun, what, label, plan.terms)
        return result

    def all_gather(
        self, x: Any, dim: int = 0, *, label: str | None = None, keep: bool = False
    ) -> Any:
        """All ranks' ``x``, one after the other along ``dim``; as `Group.all_gather`."""
        if not self._among_themselves:
            return self._elsewhere("all_gather", x, label, keep, dim=dim)
        label = self._owner.here if label is None else label
        begun = self._port.enter(("all_gather", label))
        algorithm, held = self._algorithms["all_gather"], {self.rank: x}
        given = rank_rounds("all_gather", algorithm, self.size, self.rank)
        self._transport.carry(self._port, through(given, held, keep), None, x.nbytes)
        parts = [held[c] for c in range(self.size)]
        result = np.concatenate(parts, axis=dim)
        terms = tuple([part.size for part in parts]), x.itemsize
        what = "all_gather", algorithm, self.members, self.axes, name_of(x.dtype), x.nbytes
        record(self._owner, self._port, begun, what, label, terms)
        return result

    def broadcast(
        self,
        x: Any,
        shape: Sequence[int],
        root: int = 0,
        *,
        label: str | None = None,
        keep: bool = False,
    ) -> Any:
        """``x``, of ``shape``, of number ``root``, on every rank; as `Group.broadcast`."""
        if not self._among_themselves:
            return self._elsewhere("broadcast", x, label, keep, root=root)
        label = self._owner.here if label is None else label
        begun, size = self._port.enter(("broadcast", label)), prod(shape)
        algorithm, counts = self._algorithms["broadcast"], even(size, self.size)
        held = {} if x is None else cut(x.reshape(-1), 0, counts)
        given = rank_rounds("broadcast", algorithm, self.size, self.rank, root)
        self._transport.carry(self._port, through(given, held, keep), None, 8 * size)
        result = joined(held, tuple(shape))
        what = "broadcast", algorithm, self.members, self.axes, name_of(result.dtype), result.nbytes
        record(self._owner, self._port, begun, what, label, (counts, result.itemsize, root))
        return result

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: str = "sum",
        *,
        wide: bool = False,
        label: str | None = None,
        keep: bool = False,
    ) -> Any:
        """The sum of all ranks' ``x`` on number ``root``, else None; as `Group.reduce`."""
        if not self._among_themselves:
            return self._elsewhere("reduce", x, label, keep, root=root, op=op, wide=wide)
        label = self._owner.here if label is None else label
        begun = self._port.enter(("reduce", label))
        algorithm, counts = self._algorithms["reduce"], even(x.size, self.size)
        plan = reduction("reduce", algorithm, self.rank, counts, x.dtype, op, wide, root)
        steps = reduced(plan, cut(x.reshape(-1), 0, counts), keep)
        held = self._transport.carry(self._port, steps, None, x.nbytes)
        what = "reduce", algorithm, self.members, self.axes, name_of(x.dtype), x.nbytes
        record(self._owner, self._port, begun, what, label, plan.terms)
        return joined(held, x.shape) if self.rank == root else None

    def send(self, x: Any, member: int, *, label: str | None = None, keep: bool = False) -> None:
        """Send ``x`` to number ``member``, which calls `recv`. Does not wait for it."""
        if self._group is not None:
            with self._group.label(*_names(label)):
                return self._group.send(x, member)
        label = self._owner.here if label is None else label
        port = self._pair(member)
        begun = port.enter(("send", label))
        port.swap([(port.members.index(self.members[member]), [x])], (), keep)
        what = "send", "", port.members, self.axes, name_of(x.dtype), x.nbytes
        record(self._owner, port, begun, what, label, (x.nbytes, None), synchronises=False)
        return None

    def recv(self, member: int, *, label: str | None = None) -> Any:
        """What number ``member`` sends to this one next; not to be changed if it keeps it."""
        if self._group is not None:
            with self._group.label(*_names(label)):
                return self._group.recv(member)
        label = self._owner.here if label is None else label
        port = self._pair(member)
        begun = port.enter(("recv", label))
        ((x,),) = port.swap((), (port.members.index(self.members[member]),))
        what = "recv", "", port.members, self.axes, name_of(x.dtype), 0
        record(self._owner, port, begun, what, label, (None, x.nbytes), synchronises=False)
        return x

    def agreed(self, kind: str, how: Mapping[str, Any], x: Any, *, label: str | None = None) -> Any:
        """A collective as a `Group` has it, whose ranks agree on the call: halos, all_to_all."""
        if self._agreeing is None:
            self._agreeing = Group(self._owner, self.axes, self.members)
        with self._agreeing.label(*_names(label)):
            return getattr(self._agreeing, kind)(x, **how)

    def _elsewhere(self, kind: str, x: Any, label: str | None, keep: bool, **how: Any) -> Any:
        """The result of a collective that a `Group` has, or of one that a rank alone has."""
        if self._group is None:
            return x if keep else x.copy()
        with self._group.label(*_names(label)):
            return getattr(self._group, kind)(x, **how)

    def _pair(self, member: int) -> Port:
        """The port of this rank and another: a message between two may overtake collectives."""
        pair = tuple(sorted((self.members[member], self._owner.index)))
        port: Port = self._transport.port(pair, self._stream + "pair")
        return port


def _names(label: str | None) -> tuple[str, ...]:
    return () if label is None else (label,)
