"""One collective of a Group under way: its messages, and at the end its record."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.records import Record, Terms
from tiledask.distributed.ranks.rounds import RankRound, rank_rounds
from tiledask.distributed.transport.transport import Port, Steps
from tiledask.tile.backend import name_of

__all__ = ["Exchange"]


class Exchange:
    """A collective among the ranks of a port, in which this rank is number ``me``.

    It is written down when the block ends; among one rank alone it is not.
    """

    def __init__(
        self, group: Any, port: Port, call: CollectiveCall, algorithm: str, array: Any
    ) -> None:
        self.rank, self.port, self.algorithm = group.owner, port, algorithm
        self.axes, self.call = group.axes, call
        self.note = call if group.checked else None
        """What goes with each message, where ranks agree on the call."""
        self.members, self.me = port.members, port.members.index(group.owner.index)
        self.dtype: np.dtype | None = None if array is None else array.dtype
        self.payload = 0 if array is None else array.nbytes
        """Bytes."""
        self.terms: Terms = ()
        """For the record's prediction; known at the latest when the collective is done."""

    def __enter__(self) -> "Exchange":
        if self.note is not None:
            self.rank.transport.check()
        self._before = self.port.enter(self.call)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: Any) -> None:
        if error is not None:
            return
        (*moved, begin), rank = self.port.leave(self._before), self.rank
        if len(self.members) == 1:
            return
        assert self.terms, f"{self.call.kind} has nothing to predict its bytes from"
        barrier = None
        if self.call.kind not in ("send", "recv"):
            barrier, rank.barriers = rank.barriers, rank.barriers + 1
        name = "" if self.dtype is None else name_of(self.dtype)
        what = self.call.kind, self.algorithm, self.members, self.axes, name, self.payload
        when = rank.at_step, barrier, self.call.label, begin, self.port.since
        rank.records.append(Record._make((rank.index, *what, *moved, *when, self.terms)))

    def rounds(self, root: int = 0, counts: tuple[int, ...] | None = None) -> tuple[RankRound, ...]:
        """This rank's part; ``counts``: elements of the chunks, where all ranks know them."""
        return rank_rounds(self.call.kind, self.algorithm, len(self.members), self.me, root, counts)

    def swap(
        self, sends: Sequence[tuple[int, Sequence[Any]]], sources: Sequence[int], lend: bool = False
    ) -> list[Sequence[Any]]:
        """A round: send (number, arrays) each; the arrays that come from each of ``sources``."""
        return self.port.swap(sends, sources, lend, self.note)

    def carry(self, steps: Steps) -> Any:
        """The result of ``steps``."""
        return self.port.transport.carry(self.port, steps, self.note, self.payload)
