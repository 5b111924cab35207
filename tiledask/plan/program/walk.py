"""What is wrong with a program: all ranks are walked through their orders at once.

    rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
    rank 1         ... linear --- all_reduce --- ...     message, or others of a collective

Where no rank can go on, those who wait for each other are a deadlock.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tiledask.errors import ProgramError
from tiledask.plan.program.ops import Op, ProgramData, buffer_of

__all__ = ["Walk"]


class _Place(NamedTuple):
    """Where an op is."""

    rank: int
    step: int
    block: str
    microbatch: int
    op: Op

    def __str__(self) -> str:
        where = f"turn {self.step} of rank {self.rank}, {self.block}.{self.microbatch}"
        return f"{where}: '{self.op!r}'"


def _fault(rule: str, *places: _Place) -> ProgramError:
    return ProgramError(f"{rule}: {'; '.join(map(str, places))}")


class Walk:
    """All ranks under way, what is between them, and their buffers."""

    def __init__(self, program: ProgramData) -> None:
        self.program, ranks = program, range(program.ranks)
        self.sent: dict[tuple[int, int, str, int], _Place] = {}
        """By from, to, buffer and micro-batch, what nobody has taken."""
        self.made: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        """By rank, buffer and micro-batch, what writes it."""
        self.unread: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        self.orders = [self._places(rank) for rank in ranks]
        self.at = [next(order, None) for order in self.orders]
        """Where each rank stands; None: at its end."""

    def go(self) -> None:
        """Go through all orders. Raises ProgramError for the first fault."""
        ready = [*reversed(range(self.program.ranks))]
        while ready:
            rank = ready.pop()
            while (place := self.at[rank]) and (done := self._done(place)):
                for each in done:
                    self._use(each)
                    self.at[each.rank] = next(self.orders[each.rank], None)
                ready += [each.rank for each in done if each is not place]
                if place.op.name == "send":
                    ready.append(self.program.peer(rank, place.op))
        if stuck := [place for place in self.at if place]:
            raise ProgramError(f"deadlock: {'; '.join(map(self._waits, stuck[:4]))}")
        for place in self.sent.values():
            raise _fault("this is sent to a rank that never takes it", place)

    def _places(self, rank: int) -> Iterator[_Place]:
        """The ops in their order; what nothing uses is a fault at its end."""
        for n, (name, microbatch, _) in enumerate(self.program.orders[rank]):
            for op in self.program.role(rank).blocks[name]:
                yield _Place(rank, n, name, microbatch, op)
        for (buffer, _), place in self.unread[rank].items():
            raise _fault(f"{buffer} is left over, nothing on rank {rank} reads it", place)

    def _done(self, place: _Place) -> list[_Place]:
        """What is done with this op: it alone, a collective of all members; nothing yet."""
        rank, op, program = place.rank, place.op, self.program
        if op.kind == "collective":
            members = program.members(rank, op)
            come = not self._missing(members)
            return [at for member in members if come and (at := self.at[member])]
        if op.kind != "message":
            return [place]
        peer, what = program.peer(rank, op), (op.buffer, place.microbatch)
        if op.name == "send":
            self.sent[rank, peer, *what] = place
        elif came := self.sent.pop((peer, rank, *what), None):
            here, there = (program.role(r).sizes[op.buffer] for r in (rank, peer))
            if here != there:
                rule = f"{op.buffer} has {there:g} B where it is sent, {here:g} B here"
                raise _fault(rule, came, place)
        else:
            return []
        return [place]

    def _missing(self, members: tuple[int, ...]) -> list[int]:
        """The members that have not come to a collective of these."""
        there = ((rank, self.at[rank]) for rank in members)
        return [
            rank
            for rank, at in there
            if not at or at.op.kind != "collective" or self.program.members(rank, at.op) != members
        ]

    def _waits(self, place: _Place) -> str:
        """For what a rank waits, that never comes or waits for it."""
        rank, op, never = place.rank, place.op, ""
        if op.kind == "collective":
            other = self._missing(self.program.members(rank, op))[0]
        else:
            other = self.program.peer(rank, op)
            if (op.buffer, place.microbatch) not in self.program.sent(other, rank):
                never = f", which never sends it to rank {rank}"
        return f"{place} waits for rank {other}{never}"

    def _use(self, place: _Place) -> None:
        """What is read is there, and is written once."""
        made, unread = self.made[place.rank], self.unread[place.rank]
        state = self.program.role(place.rank).state
        for name in map(buffer_of, place.op.reads):
            unread.pop((name, place.microbatch), None)
            if name not in state and (name, place.microbatch) not in made:
                raise _fault(f"{name} is read and was not written before; first make it", place)
        for name in map(buffer_of, place.op.writes):
            if name not in state:
                key = name, place.microbatch
                if key in made:
                    raise _fault(f"{name} is written twice; leave one out", made[key], place)
                made[key] = unread[key] = place
