"""What is wrong with a program: all ranks are walked through their orders at once.

    rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
    rank 1         ... linear --- all_reduce --- ...     message, or others of a collective

Where no rank can go on, those who wait for each other are a deadlock. What is wrong with single
ops, or does not meet, is found on the way.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tiledask.errors import ProgramError
from tiledask.plan.program.ops import Block, Op, ProgramData, buffer_of

__all__ = ["walk"]


class _Place(NamedTuple):
    """Where an op is."""

    rank: int
    step: int
    block: Block
    microbatch: int
    op: Op

    def __str__(self) -> str:
        where = f"turn {self.step} of rank {self.rank}, {self.block.name}.{self.microbatch}"
        return f"{where}: '{self.op!r}'"


_Message = tuple[int, int, str, int]
"""From, to, buffer, micro-batch."""


def walk(program: ProgramData) -> None:
    """Raise ProgramError for the first fault."""
    _Walk(program).go()


def _fault(rule: str, *places: _Place) -> ProgramError:
    return ProgramError(f"{rule}: {'; '.join(map(str, places))}")


class _Walk:
    """All ranks under way, what is between them, and their buffers."""

    def __init__(self, program: ProgramData) -> None:
        self.program, ranks = program, range(program.ranks)
        self.sent: dict[_Message, _Place] = {}
        self.taken: set[_Message] = set()
        self.made: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        """By rank, buffer and micro-batch, what writes it."""
        self.unread: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        self.written: list[set[str]] = [set() for _ in ranks]
        """State."""
        self.orders = [self._places(rank) for rank in ranks]
        self.at = [next(order, None) for order in self.orders]
        """Where each rank stands; None: at its end."""

    def go(self) -> None:
        """Go through all orders, as far as they can be."""
        ready = [*reversed(range(self.program.ranks))]
        while ready:
            rank = ready.pop()
            while (place := self.at[rank]) and (done := self._done(place)):
                for each in done:
                    self.at[each.rank] = next(self.orders[each.rank], None)
                ready += [each.rank for each in done if each is not place]
                if place.op.name == "send":
                    ready.append(self.program.peer(rank, place.op))
        if stuck := [place for place in self.at if place]:
            raise self._stuck(stuck)
        for key, place in self.sent.items():
            if key not in self.taken:
                raise _fault("this is sent to a rank that never takes it", place)

    def _places(self, rank: int) -> Iterator[_Place]:
        """The ops in their order."""
        role, seen = self.program.role(rank), dict[tuple[str, int], int]()
        for n, (name, microbatch, _) in enumerate(self.program.orders[rank]):
            if (first := seen.setdefault((name, microbatch), n)) != n:
                raise ProgramError(
                    f"{name}.{microbatch} is repeated on rank {rank}: turns {first} and {n}; do it "
                    f"once"
                )
            block = role.blocks[name]
            yield from (_Place(rank, n, block, microbatch, op) for op in block.ops)
        if idle := sorted(role.state.keys() - role.constants - self.written[rank]):
            raise ProgramError(f"{idle[0]} stays on rank {rank}, and nothing writes it")
        for (buffer, _), place in self.unread[rank].items():
            raise _fault(f"{buffer} is left over, nothing on rank {rank} reads it", place)

    def _done(self, place: _Place) -> list[_Place]:
        """What is done at once with an op, if that can be: all members' ops of a collective."""
        op, places = place.op, [place]
        if op.is_collective:
            places = self._together(place)
        elif op.name == "recv":
            if (key := self._message(place)) not in self.sent:
                return []
            self.taken.add(key)
            sizes = [self.program.role(r).size(op.buffer) for r in key[:2]]
            if sizes[0] != sizes[1]:
                rule = f"{op.buffer} has {sizes[0]:g} B where it is sent, {sizes[1]:g} B here"
                raise _fault(rule, self.sent[key], place)
        for each in places:
            self._read(each)
            self._write(each)
        if op.name == "send":
            if (key := self._message(place)) in self.sent:
                raise _fault("a message goes twice; leave one out", self.sent[key], place)
            self.sent[key] = place
        return places

    # -- messages and collectives -----------------------------------------------------------------

    def _message(self, place: _Place) -> _Message:
        rank, op, shape = place.rank, place.op, self.program.shape
        axis, to = op["axis"], op["peer"]
        if axis >= len(shape) or to >= shape[axis] or to == self.program.coordinates[rank][axis]:
            raise _fault(f"rank {to} along {axis} is no other one of the mesh {shape}", place)
        peer = self.program.peer(rank, op)
        ends = (rank, peer) if op.name == "send" else (peer, rank)
        return *ends, op.buffer, place.microbatch

    def _missing(self, members: tuple[int, ...]) -> list[int]:
        """The members that have not come to a collective of these."""
        there = ((rank, self.at[rank]) for rank in members)
        return [
            rank
            for rank, at in there
            if not at or not at.op.is_collective or self.program.members(rank, at.op) != members
        ]

    def _together(self, place: _Place) -> list[_Place]:
        """The ops of all members of a collective, once they have come to it."""
        members = self.program.members(place.rank, place.op)
        if place.rank not in members or len(members) != place.op.size:
            raise _fault(f"ranks {members} take part, and {place.op.size} have counts", place)
        if self._missing(members):
            return []
        places = [at for rank in members if (at := self.at[rank])]
        for me, each in enumerate(places):
            if _of_all(each) != _of_all(place):
                rule = "ranks of a group make the same collectives in one order, with the same args"
                raise _fault(rule, each, place)
            names = *each.op.reads, *each.op.writes
            for name, count in zip(names, each.op.elements(me), strict=True):
                size, counted = (
                    self.program.role(each.rank).size(name),
                    count * place.op["itemsize"],
                )
                if size != counted:
                    raise _fault(f"{name} has {size} B, by its counts {counted} B", each)
        return places

    def _stuck(self, stuck: list[_Place]) -> ProgramError:
        """What ranks lack that never comes, or wait for each other for."""
        words = []
        for place in stuck[:4]:
            rank, op, never = place.rank, place.op, ""
            if op.is_collective:
                other = self._missing(self.program.members(rank, op))[0]
            else:
                other, what = self.program.peer(rank, op), (op.buffer, place.microbatch)
                sent = (of[1:] for of in self.program.sent(other, rank))
                never = "" if what in sent else f", which never sends it to rank {rank}"
            words.append(f"{place} waits for rank {other}{never}")
        return ProgramError(f"deadlock: {'; '.join(words)}")

    # -- buffers ----------------------------------------------------------------------------------

    def _read(self, place: _Place) -> None:
        rank, role = place.rank, self.program.role(place.rank)
        for name in place.op.reads:
            buffer = name if name in role.sizes else buffer_of(name)
            key = buffer, place.microbatch
            self.unread[rank].pop(key, None)
            late = buffer in role.accumulators and buffer not in self.written[rank]
            if late or (buffer not in role.state and key not in self.made[rank]):
                raise _fault(f"{name} is read and was not written before; first make it", place)

    def _write(self, place: _Place) -> None:
        rank, role, made = place.rank, self.program.role(place.rank), self.made[place.rank]
        for name in place.op.writes:
            buffer = name if name in role.sizes else buffer_of(name)
            key = buffer, place.microbatch
            if buffer in role.constants:
                raise _fault(f"{name} is given, and no line changes it", place)
            self.written[rank].add(role.alias.get(buffer, buffer))
            if buffer in role.state:
                continue
            role.size(buffer)
            if key in made:
                raise _fault(f"{name} is written twice; leave one out", made[key], place)
            made[key] = self.unread[rank][key] = place


def _of_all(place: _Place) -> tuple[object, ...]:
    """In what the members of a collective agree."""
    op = place.op
    return place.block.kind, place.block.stage, place.microbatch, op.name, op.stream, dict(op.args)
