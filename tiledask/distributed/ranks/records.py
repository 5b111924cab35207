"""Every collective as a record: what it was, how much it moved and when; and their totals."""

from functools import cache
from typing import Any, NamedTuple

from tiledask.plan import html
from tiledask.plan.collectives.algorithms import MADE_FROM
from tiledask.plan.collectives.cost import cost
from tiledask.plan.collectives.rows import halo_cost
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["Record", "Records", "Total"]

Moved = tuple[int, int, int]
"""What a rank moves: bytes that it sends, bytes that it receives, messages that it sends."""


class Record(NamedTuple):
    """One collective on one rank."""

    rank: int
    kind: str
    """"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
    "halo_exchange", "halo_reduce", "send", "recv" or "barrier"."""
    algorithm: str
    """"ring", "tree" or "direct"; empty where there is no choice."""
    group: tuple[int, ...]
    """Ranks that take part."""
    axes: tuple[int, ...]
    """Axes of the mesh along which they are."""
    dtype: str
    payload: int
    """Bytes of the array that this rank brings; of a broadcast those that it ends with."""
    sent: int
    """Bytes that left this rank, counted where they left."""
    received: int
    """Bytes that reached it, counted where they arrived."""
    messages: int
    """Messages that it sent."""
    step: int | None
    """The training's step, if the program says which."""
    barrier: int | None
    """Running number of the synchronisation in the step, from 0; None for a message between two."""
    label: str
    begin: float
    """Seconds since 1970, by one clock for all ranks."""
    end: float
    terms: tuple[Any, ...]
    """What the arithmetic needs for `predicted`; each kind has its own."""

    @property
    def seconds(self) -> float:
        """Seconds in the collective, waiting included."""
        return self.end - self.begin

    @property
    def counted(self) -> Moved:
        """What it moved, as it was counted."""
        return self.sent, self.received, self.messages

    @property
    def predicted(self) -> Moved:
        """What it moves by arithmetic, from the extents alone."""
        return _predicted(self.kind, self.algorithm, self.group.index(self.rank), self.terms)


@cache
def _predicted(kind: str, algorithm: str, me: int, terms: tuple[Any, ...]) -> Moved:
    """What rank ``me`` of a group moves."""
    if kind in MADE_FROM:
        return cost(kind, algorithm, *terms).of_rank(me)
    if kind in ("halo_exchange", "halo_reduce"):
        return halo_cost(kind, *terms).of_rank(me)
    sent, received = terms
    return sent or 0, received or 0, int(sent is not None)


class Total(NamedTuple):
    """The totals of several records."""

    calls: int = 0
    sent: int = 0
    received: int = 0
    messages: int = 0
    seconds: float = 0.0
    """Seconds in collectives, waiting included."""


class Records(tuple[Record, ...]):
    """The records of all ranks of a run, rank after rank, each rank's in the order of its calls."""

    def where(self, label: str = "", **facts: Any) -> "Records":
        """The records with ``label`` in theirs, and equal to ``facts``: kind=, rank=, step=, ..."""
        found = (r for r in self if label in r.label)
        return Records(r for r in found if all(getattr(r, n) == facts[n] for n in facts))

    def totals(self, *by: str) -> dict[Any, Total]:
        """The Total of each value of ``by``: "kind", "label", "rank", "step", ... in their order.

        With several names the keys are tuples; with none there is one, for all.
        """
        found: dict[Any, Total] = {}
        for r in self:
            names = tuple(getattr(r, name) for name in by)
            key = names[0] if len(by) == 1 else names
            calls, sent, received, messages, seconds = found.get(key, Total())
            moved = sent + r.sent, received + r.received, messages + r.messages
            found[key] = Total(calls + 1, *moved, seconds + r.seconds)
        return found

    @property
    def barriers(self) -> dict[int | None, int]:
        """step -> how often a rank had to wait for others in it: the most of any rank."""
        counts: dict[int | None, int] = {}
        for r in self:
            if r.barrier is not None:
                counts[r.step] = max(counts.get(r.step, 0), r.barrier + 1)
        return counts

    @property
    def mismatches(self) -> "Records":
        """The records whose counted bytes or messages are not those predicted; best none."""
        return Records(r for r in self if r.counted != r.predicted)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{t.calls} {kind}" for kind, t in self.totals("kind").items())
        sent, ranks = sum(r.sent for r in self), len({r.rank for r in self})
        return f"Records({kinds or 'none'}; {sent:,} bytes sent by {ranks} ranks)"

    def _repr_html_(self) -> str:
        head = ("kind", "algorithm", "label", "calls", "sent", "received", "messages", "time")
        rows = []
        for names, t in self.totals("kind", "algorithm", "label").items():
            moved = format_bytes(t.sent), format_bytes(t.received), t.messages
            rows.append((*names, t.calls, *moved, format_seconds(t.seconds)))
        return html.table(head, rows, repr(self))
