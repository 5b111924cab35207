"""What is wrong with a program: all ranks are walked through their orders at once.

    rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
    rank 1         ... linear --- all_reduce --- ...     message, or others of a collective

Where no rank can go on, those who wait for each other are a deadlock. What is wrong with single
ops, or does not meet, is found on the way.
"""

from collections import Counter
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


_Key = tuple[int, int, str, int] | tuple[tuple[int, ...], int]
"""A message: from, to, buffer, micro-batch. A collective: its members, the how-manieth of theirs
it is."""


def walk(program: ProgramData) -> None:
    """Raise ProgramError for the first fault."""
    _Walk(program).go()


def _fault(rule: str, *places: _Place) -> ProgramError:
    return ProgramError(f"{rule}: {'; '.join(map(str, places))}")


class _Walk:
    """All ranks under way, what is between them, and their buffers."""

    def __init__(self, program: ProgramData) -> None:
        self.program = program
        self.sent: dict[_Key, _Place] = {}
        self.taken: set[_Key] = set()
        self.called: dict[_Key, list[_Place]] = {}
        """The members that have come to a collective."""
        self.lacking: dict[_Key, list[_Place]] = {}
        """Where ranks stand, by what they lack."""
        ranks = range(program.ranks)
        self.made: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        """By rank, buffer and micro-batch, what writes it."""
        self.unread: list[dict[tuple[str, int], _Place]] = [{} for _ in ranks]
        self.written: list[set[str]] = [set() for _ in ranks]
        """State."""
        self.ready = [*reversed(ranks)]

    def go(self) -> None:
        """Go through all orders, as far as they can be."""
        ranks = [self._lacks(rank) for rank in range(self.program.ranks)]
        while self.ready:
            for key, place in ranks[self.ready.pop()]:
                self.lacking.setdefault(key, []).append(place)
                break
        if self.lacking:
            self._stuck()
        for key, place in self.sent.items():
            if key not in self.taken:
                raise _fault("this is sent to a rank that never takes it", place)

    def _lacks(self, rank: int) -> Iterator[tuple[_Key, _Place]]:
        """Go through a rank's order; what is not there yet, each time it is come to."""
        calls = Counter[tuple[int, ...]]()
        for place in self._places(rank):
            op, key = place.op, self._message(place) if place.op.is_message else ((), 0)
            self._read(place)
            if op.is_collective:
                members = self.program.members(rank, op)
                key = members, calls[members]
                calls[members] += 1
                self._call(place, members, key)
                while len(self.called[key]) < len(members):
                    yield key, place
            elif op.name == "recv":
                while key not in self.sent:
                    yield key, place
                self._take(place, key)
            self._write(place)
            if op.name == "send":
                if key in self.sent:
                    raise _fault("a message goes twice; leave one out", self.sent[key], place)
                self.sent[key] = place
                self.ready += [each.rank for each in self.lacking.pop(key, [])]
        self._check_end(rank)

    def _places(self, rank: int) -> Iterator[_Place]:
        """The ops in their order."""
        seen = dict[tuple[str, int], int]()
        for n, (name, microbatch, _) in enumerate(self.program.orders[rank]):
            if (first := seen.setdefault((name, microbatch), n)) != n:
                raise ProgramError(
                    f"{name}.{microbatch} is repeated on rank {rank}: turns {first} and {n}; do it "
                    f"once"
                )
            block = self.program.role(rank).blocks[name]
            yield from (_Place(rank, n, block, microbatch, op) for op in block.ops)

    # -- messages and collectives -----------------------------------------------------------------

    def _message(self, place: _Place) -> _Key:
        rank, op, shape = place.rank, place.op, self.program.shape
        axis, to = op["axis"], op["peer"]
        if axis >= len(shape) or to >= shape[axis] or to == self.program.coordinates[rank][axis]:
            raise _fault(f"rank {to} along {axis} is no other one of the mesh {shape}", place)
        peer = self.program.peer(rank, op)
        ends = (rank, peer) if op.name == "send" else (peer, rank)
        return *ends, op.buffer, place.microbatch

    def _take(self, place: _Place, key: _Key) -> None:
        """A message has come."""
        self.taken.add(key)
        sent, name = self.sent[key], place.op.buffer
        here, there = (self.program.role(each.rank).size(name) for each in (place, sent))
        if here != there:
            raise _fault(f"{name} has {there:g} B where it is sent, {here:g} B here", sent, place)

    def _call(self, place: _Place, members: tuple[int, ...], key: _Key) -> None:
        """A member has come to a collective; with the last of them it is done."""
        op, role, places = place.op, self.program.role(place.rank), self.called.setdefault(key, [])
        if place.rank not in members or len(members) != op.size:
            raise _fault(f"ranks {members} take part, and {op.size} have counts", place)
        if places and _of_all(places[0]) != _of_all(place):
            rule = "ranks of a group make the same collectives, with the same args, in one order"
            raise _fault(rule, places[0], place)
        elements = op.elements(members.index(place.rank))
        for name, count in zip((*op.reads, *op.writes), elements, strict=True):
            if (size := role.size(name)) != (counted := count * op["itemsize"]):
                raise _fault(f"{name} has {size} B, by its collective's counts {counted} B", place)
        places.append(place)
        if len(places) == len(members):
            self.ready += [each.rank for each in self.lacking.pop(key, [])]

    def _stuck(self) -> None:
        """Raise for ranks that lack what never comes, or wait for each other."""
        lacks = {place.rank: (key, place) for key, of in self.lacking.items() for place in of}
        waits_for: dict[int, int] = {}
        for rank, (key, place) in lacks.items():
            if len(key) == 2:  # a collective
                came = [each.rank for each in self.called[key]]
                other = next(member for member in key[0] if member not in came)
                if other not in lacks:
                    raise _fault(f"rank {other} leaves out a collective of ranks {key[0]}", place)
            else:
                other, _, name, microbatch = key
                if (name, microbatch) not in (of[1:] for of in self.program.sent(other, rank)):
                    raise _fault(
                        f"rank {rank} takes {name} of frame {microbatch} from rank {other}, which "
                        f"never sends it to rank {rank}", place,
                    )  # fmt: skip
            waits_for[rank] = other
        chain = [next(iter(waits_for))]
        while chain[-1] not in chain[:-1]:
            chain.append(waits_for[chain[-1]])
        circle = chain[chain.index(chain[-1]) : -1]
        waiting = "; ".join(f"{lacks[r][1]} waits for rank {waits_for[r]}" for r in circle)
        raise ProgramError(f"deadlock: {waiting}")

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
            if buffer in role.state:
                self.written[rank].add(buffer)
                continue
            role.size(buffer)
            if key in made:
                raise _fault(f"{name} is written twice; leave one out", made[key], place)
            made[key] = self.unread[rank][key] = place
            self.written[rank].add(role.alias.get(buffer, ""))

    def _check_end(self, rank: int) -> None:
        role = self.program.role(rank)
        if idle := sorted(role.state.keys() - role.constants - self.written[rank]):
            raise ProgramError(f"{idle[0]} stays on rank {rank}, and nothing writes it")
        for (name, _), place in self.unread[rank].items():
            raise _fault(f"{name} is left over, nothing on rank {rank} reads it", place)


def _of_all(place: _Place) -> tuple[object, ...]:
    """In what the members of a collective agree."""
    op = place.op
    return place.block.kind, place.block.stage, place.microbatch, op.name, op.stream, dict(op.args)
