"""One collective of a Group under way: its messages, and at the end its record."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.records import NCCL, Record, Terms, predicted
from tiledask.distributed.ranks.rounds import RankReduction, RankRound, rank_rounds, reduction
from tiledask.distributed.transport.transport import Port, Steps
from tiledask.tile.backend import name_of

__all__ = ["Exchange"]


class Exchange:
    """A collective among the ranks of a port, in which this rank is number ``me``.

    It is written down when the block ends; among one rank alone it is not. ``call``: what all ranks
    agree in, or None where nobody looks.
    """

    def __init__(
        self,
        group: Any,
        port: Port,
        kind: str,
        algorithm: str,
        array: Any,
        label: str,
        call: CollectiveCall | None,
    ) -> None:
        self.rank, self.port, self.kind, self.algorithm = group.owner, port, kind, algorithm
        self.axes, self.label, self.call = group.axes, label, call
        self.members, self.me = port.members, port.members.index(group.owner.index)
        self.dtype: np.dtype | None = None if array is None else array.dtype
        self.payload = 0 if array is None else array.nbytes
        """Bytes."""
        self.devices: Any = group.owner.transport.devices if algorithm == NCCL else None
        """The way from GPU to GPU, if NCCL takes it (a Devices)."""
        self.terms: Terms = ()
        """For the record's prediction; known at the latest when the collective is done."""

    def __enter__(self) -> "Exchange":
        if self.call is not None:
            self.rank.transport.check()
        plain = CollectiveCall(self.rank.index, self.kind, self.members, 0, self.label, ())
        self._before = self.port.enter(self.call or plain)
        if self.devices is not None:
            self.devices.open(self)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        if error is not None:
            return
        (*counted, begin), rank = self.port.leave(self._before), self.rank
        if len(self.members) == 1:
            return
        assert self.terms, f"{self.kind} has nothing to predict its bytes from"
        barrier, moved = None, tuple(counted)
        if self.kind not in ("send", "recv"):
            barrier, rank.barriers = rank.barriers, rank.barriers + 1
        if self.algorithm == NCCL:  # which goes its own way
            moved = predicted(self.kind, NCCL, self.me, self.terms)
        name = "" if self.dtype is None else name_of(self.dtype)
        what = self.kind, self.algorithm, self.members, self.axes, name, self.payload
        when = rank.at_step, barrier, self.label, begin, self.port.since
        rank.records.append(Record._make((rank.index, *what, *moved, *when, self.terms)))

    def rounds(self, root: int = 0) -> tuple[RankRound, ...]:
        return rank_rounds(self.kind, self.algorithm, len(self.members), self.me, root)

    def reduction(
        self, counts: tuple[int, ...], dtype: np.dtype, op: str, root: int = 0
    ) -> RankReduction:
        """This rank's part, for chunks of ``counts`` elements."""
        plan = reduction(self.kind, self.algorithm, self.me, counts, dtype.itemsize, op, root)
        self.terms = plan.terms
        return plan

    def swap(
        self, sends: Sequence[tuple[int, Sequence[Any]]], sources: Sequence[int], lend: bool = False
    ) -> list[Sequence[Any]]:
        """A round: send (number, arrays) each; the arrays that come from each of ``sources``."""
        return self.port.swap(sends, sources, lend, self.call)

    def carry(self, steps: Steps) -> Any:
        """The result of ``steps``."""
        return self.port.transport.carry(self.port, steps, self.call, self.payload)
