"""One collective of a Group under way: its messages, and at the end its record."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.records import Record
from tiledask.distributed.ranks.rounds import Held, rank_rounds
from tiledask.distributed.transport.transport import Port
from tiledask.errors import ConfigError
from tiledask.plan.collectives.algorithms import MADE_FROM, default
from tiledask.tile.backend import name_of

__all__ = ["Exchange"]

OPERATIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class Exchange:
    """A group's next collective, or a message to or from an ``other`` of its ranks, which may
    overtake a program's collectives.

    ``agreed``: what is the same on all ranks. The other options are those that a `Group` describes.
    """

    def __init__(
        self,
        group: Any,
        kind: str,
        array: np.ndarray | None,
        agreed: dict[str, Any],
        other: int | None = None,
        *,
        algorithm: str | None = None,
        label: str | None = None,
        keep: bool = False,
    ) -> None:
        self.rank, self.axes, size = group.owner, group.axes, group.size
        self.algorithm = (algorithm or default(kind, size)) if kind in MADE_FROM else ""
        members, stream, number = group.members, "" if group.checked else "program", 0
        if other is None:
            group.calls += 1
            number = group.calls if group.checked else 0
        else:
            if other == group.rank or not 0 <= other < size:
                raise ConfigError(
                    f"rank {group.rank} of a group of {size} cannot {kind} to or from {other!r}; "
                    f"choose another of 0..{size - 1}"
                )
            members = tuple(sorted((members[other], self.rank.index)))
            stream = stream and "program pair"
        self.dtype: np.dtype | None = None if array is None else array.dtype
        self.payload = 0 if array is None else array.nbytes
        """Bytes."""
        alike: tuple[tuple[str, Any], ...] = ()
        if group.checked:
            facts: dict[str, Any] = {"algorithm": self.algorithm or None}
            if array is not None and other is None:
                facts |= {"dtype": name_of(array.dtype), "shape": array.shape}
            alike = tuple([each for each in (facts | agreed).items() if each[1] is not None])
        label = "/".join([*self.rank.labels, label] if label else self.rank.labels)
        self.call = CollectiveCall(self.rank.index, kind, members, number, label, alike)
        self.note = self.call if group.checked else None
        """What goes with each message, where ranks agree on the call."""
        self.keep = keep and not group.checked
        """Whether others may have what is passed itself, and no copy."""
        self.members, self.me = members, members.index(self.rank.index)
        self.port: Port = self.rank.transport.port(members, stream)
        self.before = self.port.moved()
        self.rank.transport.enter(self.call)

    def through(
        self,
        held: Held,
        counts: tuple[int, ...] | None = None,
        root: int | None = None,
        op: str | None = None,
    ) -> Held:
        """The chunks that this rank has after all rounds: what comes is put there or, with an
        ``op``, added to what is there, all parts of a sum from the left, by rank. ``counts``: their
        elements, where all ranks know them."""
        operate: Any = OPERATIONS.get(op or "")
        if op is not None and operate is None:
            raise ConfigError(f"no operation {op!r}; there are {', '.join(OPERATIONS)}")
        group = len(self.members), self.me, root or 0, counts
        for each in rank_rounds(self.call.kind, self.algorithm, *group):
            out = [(to, [held[c] for c in chunks]) for to, chunks in each.sends]
            # of the sums that an all_reduce copies only this call knows
            came = self.swap(out, each.sources, lend=op is not None and not each.adds)
            for chunk, order in each.sums:
                partials = [held[chunk] if at is None else came[at[0]][at[1]] for at in order]
                # what came is this rank's own
                place = None if self.keep else partials[order[0] is None]
                held[chunk] = partials[0]
                with np.errstate(over="ignore", invalid="ignore"):  # a sum that is no half is inf
                    for part in partials[1:]:
                        held[chunk] = place = operate(held[chunk], part, out=place)
            if not each.sums:
                for chunks, parts in zip(each.chunks, came, strict=True):
                    held.update(zip(chunks, parts, strict=True))
        return held

    def swap(
        self, sends: Sequence[tuple[int, Sequence[Any]]], sources: Sequence[int], lend: bool = False
    ) -> list[Sequence[Any]]:
        """A round: send (number, arrays) each; the arrays that come from each of ``sources``.
        ``lend``: nobody will ever change what is sent."""
        for to, parts in sends:
            self.port.put(to, parts, self.note, lend or self.keep)
        return [message.parts for message in self.port.get(sources)] if sources else []

    def done(self, *terms: Any) -> None:
        """The end: it is written down, but among one rank alone. ``terms``: for the record."""
        rank, begin = self.rank, self.rank.transport.since
        rank.transport.leave()
        if len(self.members) == 1:
            return
        moved = [now - then for now, then in zip(self.port.moved(), self.before, strict=True)]
        barrier = None
        if self.call.kind not in ("send", "recv"):
            barrier, rank.barriers = rank.barriers, rank.barriers + 1
        name = "" if self.dtype is None else name_of(self.dtype)
        what = self.call.kind, self.algorithm, self.members, self.axes, name, self.payload
        when = rank.at_step, barrier, self.call.label, begin, rank.transport.since
        rank.records.append(Record._make((rank.index, *what, *moved, *when, terms)))
