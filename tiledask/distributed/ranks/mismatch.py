"""What a rank called: the words in which ranks that disagree are told apart."""

from typing import Any, NamedTuple

from tiledask.errors import CollectiveError

__all__ = ["CollectiveCall", "Doing", "mismatch"]


class CollectiveCall(NamedTuple):
    """One collective, as one rank called it.

    >>> a = CollectiveCall(0, "all_reduce", (0, 1), 3, "layer 3/forward", (("dtype", "float64"),))
    >>> print(a)
    all_reduce number 3 of ranks 0, 1 (dtype float64), labelled 'layer 3/forward'
    """

    rank: int
    kind: str
    group: tuple[int, ...]
    """Ranks that take part."""
    number: int
    """Its place among the group's collectives, from 1; 0 for a message between two ranks."""
    label: str
    same: tuple[tuple[str, Any], ...]
    """(name, value) of what all ranks must agree in."""

    def __str__(self) -> str:
        which = f" number {self.number} of" if self.number else " among"
        ranks = ", ".join(map(str, self.group))
        facts = ", ".join(f"{name} {value}" for name, value in self.same)
        label = f"labelled {self.label!r}" if self.label else "without a label"
        return f"{self.kind}{which} ranks {ranks}{f' ({facts})' if facts else ''}, {label}"

    def agrees(self, other: "CollectiveCall") -> bool:
        """Whether this and another rank's call are the same collective."""
        pair = self.kind, other.kind
        kinds = pair[0] == pair[1] if self.number else {*pair} <= {"send", "recv"}
        return kinds and self.number == other.number and self.same == other.same


class Doing(NamedTuple):
    """What a rank does, for those that wait for it."""

    call: CollectiveCall | None = None
    """The collective that it is in."""
    waits_for: int | None = None
    """The rank whose message it waits for there."""
    last: CollectiveCall | None = None
    """The last collective that it finished."""
    since: float = 0.0
    """Seconds since 1970, by the run's clock, when this state began."""
    returned: bool = False
    """Whether its program has."""

    def words(self, rank: int, now: float) -> str:
        """A sentence without its end, such as "rank 1 is in all_gather ..."."""
        before = f"its last collective was {self.last}" if self.last else "it has called none yet"
        if self.returned:
            return f"rank {rank} has returned: {before}"
        if self.call is None:
            return f"rank {rank} has been in no collective for {now - self.since:.1f} s: {before}"
        if self.waits_for is None:
            return f"rank {rank} is in {self.call}"
        return f"rank {rank} waits for rank {self.waits_for} in {self.call}"


def mismatch(mine: CollectiveCall, other: CollectiveCall) -> CollectiveError:
    """The error of two ranks whose calls meet and are not the same collective."""
    ours, theirs = ({"kind": each.kind, **dict(each.same)} for each in (mine, other))
    names = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
    what = f"call {mine.number} met call {other.number}, so one of them left some out"
    if names:
        most = 1 if "kind" in names else None  # of two kinds nothing else is alike
        shown = (f"{n}: {ours.get(n)} and {theirs.get(n)}" for n in names[:most])
        what = f"they differ in {'; '.join(shown)}"
    return CollectiveError(
        f"rank {mine.rank} is in {mine}, and rank {other.rank} in {other}: {what}. All ranks of a "
        f"group make the same calls in the same order; look where these two labels are set, and "
        f"let both ranks call the same"
    )
