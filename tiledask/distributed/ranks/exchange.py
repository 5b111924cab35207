"""One collective of a Group under way: its messages, and at the end its record."""

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from tiledask.distributed.ranks.mismatch import CollectiveCall
from tiledask.distributed.ranks.records import Record, Terms
from tiledask.distributed.ranks.rounds import Held, operation, rank_rounds, through
from tiledask.distributed.transport.transport import Port
from tiledask.errors import ConfigError
from tiledask.plan.collectives.algorithms import MADE_FROM, algorithms, default
from tiledask.tile.backend import name_of

__all__ = ["Exchange", "How"]


class How(TypedDict, total=False):
    """How a collective is done, whichever it is."""

    algorithm: str | None
    """"ring", "tree" or "direct" (plan/collectives/algorithms.py draws them); None takes the one
    that `tiledask.plan.collectives.algorithms.default` names."""
    label: str | None
    """For the record, behind the rank's labels of now."""
    keep: bool
    """Whether neither what is passed nor what comes back is ever changed, by anybody: then, in a
    program, ranks that share memory need no copies, and nobody waits until others have read."""


OPTIONS = frozenset(How.__annotations__)


class Exchange:
    """A group's next collective, or a message to or from an ``other`` of its ranks, which may
    overtake a program's collectives. ``agreed``: what is the same on all ranks.

    It is written down when the block ends; among one rank alone it is not.
    """

    def __init__(
        self, group: Any, kind: str, array: Any, how: How, other: int | None = None, **agreed: Any
    ) -> None:
        if not OPTIONS.issuperset(how):
            raise TypeError(f"{kind} takes {', '.join(sorted(OPTIONS))}, got {', '.join(how)}")
        self.rank, self.axes, size = group.owner, group.axes, group.size
        self.algorithm = (how.get("algorithm") or default(kind, size)) if kind in MADE_FROM else ""
        if self.algorithm and self.algorithm not in algorithms:
            raise ConfigError(
                f"no algorithm {self.algorithm!r} for {kind}; there are {', '.join(algorithms)}"
            )
        if not 0 <= agreed.get("root", 0) < size:
            raise ConfigError(
                f"root {agreed['root']} is none of the group's ranks 0..{size - 1}; choose one"
            )
        members, stream, number = group.members, group.stream, 0
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
            stream, agreed = stream and f"{stream}pair", {"shape": None, "dtype": None}
        self.dtype: np.dtype | None = None if array is None else array.dtype
        self.payload = 0 if array is None else array.nbytes
        """Bytes."""
        alike: tuple[tuple[str, Any], ...] = ()
        if group.checked:
            facts: dict[str, Any] = {"algorithm": self.algorithm or None}
            if array is not None:
                facts |= {"dtype": name_of(array.dtype), "shape": array.shape}
            alike = tuple([each for each in (facts | agreed).items() if each[1] is not None])
        label = "/".join(filter(None, (self.rank.here, how.get("label"))))
        self.call = CollectiveCall(self.rank.index, kind, members, number, label, alike)
        self.note = self.call if group.checked else None
        """What goes with each message, where ranks agree on the call."""
        self.keep = how.get("keep", False) and not group.checked
        """Whether others may have what is passed itself, and no copy."""
        self.members, self.me = members, members.index(self.rank.index)
        self.port: Port = self.rank.transport.port(members, stream)
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

    def through(
        self, held: Held, counts: tuple[int, ...] | None = None, root: int = 0, op: str = ""
    ) -> Held:
        """The chunks that this rank has after all rounds: what came, or by an ``op`` is added.
        ``counts``: their elements, where all ranks know them."""
        group = len(self.members), self.me, root, counts
        rounds = rank_rounds(self.call.kind, self.algorithm, *group)
        steps = through(rounds, held, self.keep, operation(op) if op else None)
        carried: Held = self.port.transport.carry(self.port, steps, self.note, self.payload)
        return carried

    def swap(
        self, sends: Sequence[tuple[int, Sequence[Any]]], sources: Sequence[int]
    ) -> list[Sequence[Any]]:
        """A round: send (number, arrays) each; the arrays that come from each of ``sources``."""
        return self.port.swap(sends, sources, self.keep, self.note)
