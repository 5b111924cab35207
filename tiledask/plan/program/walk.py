"""In which order the ops of a program can run, and what is wrong with it: all ranks walked at once.

    rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
    rank 1         ... linear --- all_reduce --- ...     message, or others of a collective,
                                   once for both         which is done once for all of them

Where no rank can go on, those who wait for each other are a deadlock. What is wrong with single
ops, or does not meet, is found on the way.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from tiledask.errors import ProgramError
from tiledask.plan.program.ops import Block, Op, ProgramData, buffer_of

__all__ = ["OpPlace", "walk"]


class OpPlace(NamedTuple):
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
_Call = tuple[tuple[int, ...], int]
"""Members of a collective, and the how-manieth of theirs it is."""
_Buffers = dict[tuple[str, int], OpPlace]
"""By buffer and micro-batch, what writes it."""


def walk(program: ProgramData) -> list[list[OpPlace]]:
    """What happens at once, in an order in which nothing comes before what it needs: an op; of a
    pair both kernels; a collective on all members. Raises ProgramError for the first fault."""
    return _Walk(program).go()


def _fault(rule: str, *places: OpPlace) -> ProgramError:
    return ProgramError(f"{rule}: {'; '.join(map(str, places))}")


class _Walk:
    """All ranks under way, what is between them, and their buffers."""

    def __init__(self, program: ProgramData) -> None:
        self.program = program
        self.done: list[list[OpPlace]] = []
        self.sent: dict[_Message, OpPlace] = {}
        self.taken: set[_Message] = set()
        self.called: dict[_Call, list[OpPlace]] = {}
        """The members that have come to a collective."""
        self.lacking: dict[_Message | _Call, list[OpPlace]] = {}
        """Where ranks stand, by what they lack."""
        ranks = range(program.ranks)
        self.made: list[_Buffers] = [{} for _ in ranks]
        self.unread: list[_Buffers] = [{} for _ in ranks]
        self.written: list[set[str]] = [set() for _ in ranks]
        """State."""
        self.ready = [*reversed(ranks)]

    def go(self) -> list[list[OpPlace]]:
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
                raise _fault("this is sent to a rank that never takes it; take it there", place)
        return self.done

    def _lacks(self, rank: int) -> Iterator[tuple[_Message | _Call, OpPlace]]:
        """Go through a rank's order; what is not there yet, each time it is come to."""
        calls = dict[tuple[int, ...], int]()
        for places in self._at_once(rank):
            place = places[0]
            for each in places:
                self._read(each)
            if place.op.is_collective:
                members = self.program.members(rank, place.op)
                calls[members] = calls.get(members, -1) + 1
                call = members, calls[members]
                self._call(place, call)
                while len(self.called[call]) < len(members):
                    yield call, place
            else:
                if place.op.name == "recv":
                    key = self._message(place)
                    while key not in self.sent:
                        yield key, place
                    self._take(place, key)
                self.done.append(places)
            for each in places:
                self._write(each)
            if place.op.name == "send":
                key = self._message(place)
                if key in self.sent:
                    raise _fault("a message goes twice; leave one out", self.sent[key], place)
                self.sent[key] = place
                self.ready += [each.rank for each in self.lacking.pop(key, [])]
        self._check_end(rank)

    def _at_once(self, rank: int) -> Iterator[list[OpPlace]]:
        """The ops in their order: each alone, but of a pair of blocks with one kernel each what
        comes, both kernels, and what goes."""
        blocks, seen = self.program.role(rank).blocks, dict[tuple[str, int], int]()
        opened: list[OpPlace] = []
        for n, step in enumerate(self.program.orders[rank]):
            if (first := seen.setdefault(step[:2], n)) != n:
                raise ProgramError(
                    f"{step.block}.{step.microbatch} is repeated on rank {rank}: turns {first} and "
                    f"{n}; do it once"
                )
            block = blocks[step.block]
            both = opened + [OpPlace(rank, n, block, step.microbatch, op) for op in block.ops]
            joined = opened and all(map(_one_kernel, (opened[0].block, block)))
            opened = both if step.paired else []
            if joined:
                yield from ([each] for each in both if each.op.name == "recv")
                yield [each for each in both if each.op.is_kernel]
                yield from ([each] for each in both if each.op.name == "send")
            elif not step.paired:
                yield from ([each] for each in both)

    # -- messages and collectives -----------------------------------------------------------------

    def _message(self, place: OpPlace) -> _Message:
        """What an op sends or takes."""
        rank, op, program = place.rank, place.op, self.program
        axis, to, shape = op["axis"], op["peer"], program.shape
        if axis >= len(shape) or to >= shape[axis] or to == program.coordinates[rank][axis]:
            raise _fault(f"rank {to} along {axis} is no other one of the mesh {shape}", place)
        peer = program.peer(rank, op)
        ends = (rank, peer) if op.name == "send" else (peer, rank)
        return *ends, op.buffer, place.microbatch

    def _take(self, place: OpPlace, key: _Message) -> None:
        """A message has come."""
        source, target, name, _ = key
        self.taken.add(key)
        here, there = (self.program.role(rank).size(name) for rank in (source, target))
        if here != there:
            raise _fault(
                f"{name} has {here:g} B on rank {source} and {there:g} B on rank {target}; give "
                f"both one size", self.sent[key], place,
            )  # fmt: skip

    def _call(self, place: OpPlace, call: _Call) -> None:
        """A member has come to a collective; with the last of them it is done."""
        op, (members, _) = place.op, call
        stands_for, axes = self.program.stands_for, op["axes"]
        ranks = len(members) * (prod(stands_for[axis] for axis in axes) if stands_for else 1)
        if place.rank not in members or ranks != op.size:
            raise _fault(f"{ranks} ranks {members} take part, and {op.size} have counts", place)
        places, role = self.called.setdefault(call, []), self.program.role(place.rank)
        if places and (what := _differs(places[0], place)):
            raise _fault(
                f"ranks of a group call the same collectives in one order; these differ in {what}",
                places[0], place,
            )  # fmt: skip
        elements = op.elements(members.index(place.rank))
        for name, count in zip((*op.reads, *op.writes), elements, strict=True):
            if (size := role.size(name)) != (counted := count * op["itemsize"]):
                raise _fault(f"{name} has {size} B, by its collective's counts {counted} B", place)
        places.append(place)
        if len(places) == len(members):
            self.done.append(places)
            self.ready += [each.rank for each in self.lacking.pop(call, [])]

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
                sent = self.program.sent(other, rank)
                if all(message[1:] != (name, microbatch) for message in sent):
                    raise ProgramError(
                        f"rank {rank} takes {name} of frame {microbatch} from rank {other}, which "
                        f"never sends it to rank {rank}: {place}; send it there, after what makes "
                        f"it"
                    )
            waits_for[rank] = other
        chain = [next(iter(waits_for))]
        while chain[-1] not in chain[:-1]:
            chain.append(waits_for[chain[-1]])
        circle = chain[chain.index(chain[-1]) : -1]
        waiting = "; ".join(f"{lacks[r][1]} waits for rank {waits_for[r]}" for r in circle)
        raise ProgramError(f"deadlock: {waiting}")

    # -- buffers ----------------------------------------------------------------------------------

    def _read(self, place: OpPlace) -> None:
        rank, role = place.rank, self.program.role(place.rank)
        for name in place.op.reads:
            buffer = name if name in role.sizes else buffer_of(name)
            key = buffer, place.microbatch
            self.unread[rank].pop(key, None)
            late = buffer in role.accumulators and buffer not in self.written[rank]
            if late or (buffer not in role.state and key not in self.made[rank]):
                raise _fault(f"{name} is read and was not written before; first make it", place)

    def _write(self, place: OpPlace) -> None:
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
            rule = "and nothing writes it: what no line changes is given"
            raise ProgramError(f"{idle[0]} stays on rank {rank}, {rule}")
        for (name, _), place in self.unread[rank].items():
            raise _fault(f"{name} is left over, nothing on rank {rank} reads it", place)


def _one_kernel(block: Block) -> bool:
    """Whether a block is what comes, a kernel, and what goes."""
    names = ["do" if op.is_kernel else op.name for op in block.ops]
    at = names.index("do") if "do" in names else 0
    ends = {*names[:at]} <= {"recv"} and {*names[at + 1 :]} <= {"send"}
    return ends and names[at : at + 1] == ["do"]


def _differs(one: OpPlace, other: OpPlace) -> str:
    """In what two members' calls of a collective differ; empty if in nothing."""
    here, there = (
        {"part": (place.block.kind, place.block.stage), "frame": place.microbatch,
         "kind": place.op.name, "stream": place.op.stream, **dict(place.op.args)}
        for place in (one, other)
    )  # fmt: skip
    return ", ".join(name for name in here | there if here.get(name) != there.get(name))
