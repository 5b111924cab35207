"""What is wrong with a program: all ranks are walked through their orders at once.

    rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
    rank 1         ... linear --- all_reduce --- ...     message, or others of a collective

Where no rank can go on, those who wait for each other are a deadlock. What is wrong with single
ops, or does not meet, is found on the way.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tiledask.errors import ProgramError
from tiledask.plan.collectives.cost import ranks_of
from tiledask.plan.program.ops import Op, ProgramData, action_of, buffer_of

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
        """By from, to, buffer and micro-batch."""
        self.taken: set[tuple[int, int, str, int]] = set()
        self.made: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        """By rank, buffer and micro-batch, what writes it."""
        self.unread: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        self.written: list[set[str]] = [set() for _ in ranks]
        """State."""
        self.orders = [self._places(rank) for rank in ranks]
        self.at = [next(order, None) for order in self.orders]
        """Where each rank stands; None: at its end."""

    def go(self) -> None:
        """Go through all orders. Raises ProgramError for the first fault."""
        ready = [*reversed(range(self.program.ranks))]
        while ready:
            rank = ready.pop()
            while place := self.at[rank]:
                done = [place]
                if place.op.kind in ("collective", "message"):
                    meet = self._together if place.op.kind == "collective" else self._message
                    done = meet(place)
                if not done:
                    break
                for each in done:
                    self._use(each)
                    self.at[each.rank] = next(self.orders[each.rank], None)
                ready += [each.rank for each in done if each is not place]
                if place.op.name == "send":
                    ready.append(self.program.peer(rank, place.op))
        if stuck := [place for place in self.at if place]:
            raise ProgramError(f"deadlock: {'; '.join(map(self._waits, stuck[:4]))}")
        if never := self.sent.keys() - self.taken:
            place = next(place for key, place in self.sent.items() if key in never)
            raise _fault("this is sent to a rank that never takes it", place)

    def _places(self, rank: int) -> Iterator[_Place]:
        """The ops in their order; what nothing uses is a fault at its end."""
        role, seen = self.program.role(rank), dict[tuple[str, int], int]()
        for n, (name, microbatch, _) in enumerate(self.program.orders[rank]):
            if (first := seen.setdefault((name, microbatch), n)) != n:
                turns = f"turns {first} and {n} of rank {rank}"
                raise ProgramError(f"{name}.{microbatch} is repeated: {turns}; do it once")
            yield from (_Place(rank, n, name, microbatch, op) for op in role.blocks[name])
        if idle := sorted(role.state.keys() - role.constants - self.written[rank]):
            raise ProgramError(f"{idle[0]} stays on rank {rank}, and nothing writes it")
        for (buffer, _), place in self.unread[rank].items():
            raise _fault(f"{buffer} is left over, nothing on rank {rank} reads it", place)

    # -- messages and collectives -----------------------------------------------------------------

    def _message(self, place: _Place) -> list[_Place]:
        """A send is done; a recv is where its message has been sent."""
        rank, op, shape = place.rank, place.op, self.program.shape
        axis, to = op["axis"], op["peer"]
        if axis >= len(shape) or to >= shape[axis] or to == self.program.coordinates[rank][axis]:
            raise _fault(f"rank {to} along {axis} is no other one of the mesh {shape}", place)
        sends, peer = op.name == "send", self.program.peer(rank, op)
        ends = (rank, peer) if sends else (peer, rank)
        key = *ends, op.buffer, place.microbatch
        if sends and key in self.sent:
            raise _fault("a message goes twice; leave one out", self.sent[key], place)
        if sends:
            self.sent[key] = place
        if key not in self.sent:
            return []
        if not sends:
            self.taken.add(key)
            here, there = (self.program.role(rank).size(op.buffer) for rank in reversed(ends))
            if here != there:
                rule = f"{op.buffer} has {there:g} B where it is sent, {here:g} B here"
                raise _fault(rule, self.sent[key], place)
        return [place]

    def _missing(self, members: tuple[int, ...]) -> list[int]:
        """The members that have not come to a collective of these."""
        there = ((rank, self.at[rank]) for rank in members)
        return [
            rank
            for rank, at in there
            if not at or at.op.kind != "collective" or self.program.members(rank, at.op) != members
        ]

    def _together(self, place: _Place) -> list[_Place]:
        """The ops of all members of a collective, once they have come to it."""
        members = self.program.members(place.rank, place.op)
        counted = ranks_of(place.op.name, place.op["counts"])
        if place.rank not in members or len(members) != counted:
            raise _fault(f"ranks {members} take part, and {counted} have counts", place)
        if self._missing(members):
            return []
        places = [at for rank in members if (at := self.at[rank])]
        agreed = [
            (action_of(at.block), at.microbatch, at.op.name, at.op.stream, dict(at.op.args))
            for at in places
        ]
        for me, each in enumerate(places):
            if agreed[me] != agreed[0]:
                rule = "ranks of a group make the same collectives in one order, with the same args"
                raise _fault(rule, each, places[0])
            names, counts = (*each.op.reads, *each.op.writes), each.op.elements(me)
            for name, count in zip(names, counts, strict=True):
                size = self.program.role(each.rank).size(name)
                counted = count * place.op["itemsize"]
                if size != counted:
                    raise _fault(f"{name} has {size} B, by its counts {counted} B", each)
        return places

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

    # -- buffers ----------------------------------------------------------------------------------

    def _use(self, place: _Place) -> None:
        """What is read is there, and is written once."""
        rank, role, made = place.rank, self.program.role(place.rank), self.made[place.rank]
        for name in place.op.reads:
            buffer = name if name in role.sizes else buffer_of(name)
            key = buffer, place.microbatch
            self.unread[rank].pop(key, None)
            late = buffer in role.accumulators and buffer not in self.written[rank]
            if late or (buffer not in role.state and key not in made):
                raise _fault(f"{name} is read and was not written before; first make it", place)
        for name in place.op.writes:
            buffer = name if name in role.sizes else buffer_of(name)
            if buffer in role.constants:
                raise _fault(f"{name} is given, and no line changes it", place)
            self.written[rank].add(role.alias.get(buffer, buffer))
            if buffer not in role.state:
                role.size(buffer)
                key = buffer, place.microbatch
                if key in made:
                    raise _fault(f"{name} is written twice; leave one out", made[key], place)
                made[key] = self.unread[rank][key] = place
