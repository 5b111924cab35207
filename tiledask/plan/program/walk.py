"""In which order the ops of a program can run, and what is wrong with it: all ranks walked at once.

    rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
    rank 1         ... linear --- all_reduce --- ...     message, or others of a collective,
                                   once for both         which is done once for all of them

Where no rank can go on, those who wait for each other are a deadlock. What is wrong with single
ops, or does not meet, is found on the way.
"""

from collections.abc import Iterator
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


def walk(program: ProgramData) -> list[list[OpPlace]]:
    """What happens at once, in an order in which nothing comes before what it needs: an op; of a
    pair both kernels; a collective on all members. Raises ProgramError for the first fault."""
    return _Walk(program).go()


class _Walk:
    """All ranks under way, and what is between them."""

    def __init__(self, program: ProgramData) -> None:
        self.program = program
        self.done: list[list[OpPlace]] = []
        self.sent: dict[_Message, OpPlace] = {}
        self.taken: set[_Message] = set()
        self.called: dict[_Call, list[OpPlace]] = {}
        """The members that have come to a collective."""
        self.met: set[_Call] = set()
        """Collectives that all members have come to."""
        self.lacking: dict[_Message | _Call, list[OpPlace]] = {}
        """Where ranks stand, by what they lack."""
        self.ready = list(reversed(range(program.ranks)))

    def go(self) -> list[list[OpPlace]]:
        """Go through all orders, as far as they can be."""
        ranks = [_Rank(self, rank).lacks() for rank in range(self.program.ranks)]
        while self.ready:
            for key, place in ranks[self.ready.pop()]:
                self.lacking.setdefault(key, []).append(place)
                break
        if self.lacking:
            self._stuck()
        if left := [key for key in self.sent if key not in self.taken]:
            source, target, name, microbatch = left[0]
            raise ProgramError(
                f"rank {source} sends {name} of frame {microbatch} to rank {target}, which never "
                f"takes it from rank {source}: {self.sent[left[0]]}; take it there, before what "
                f"uses it"
            )
        return self.done

    def _there(self, key: _Message | _Call) -> None:
        """Those who lacked this can go on."""
        self.ready += [place.rank for place in self.lacking.pop(key, [])]

    # -- messages ---------------------------------------------------------------------------------

    def message(self, place: OpPlace) -> _Message:
        """What an op sends or takes."""
        rank, op, program = place.rank, place.op, self.program
        axis, to, shape = op["axis"], op["peer"], program.shape
        if axis >= len(shape) or to >= shape[axis] or to == program.coordinates[rank][axis]:
            raise ProgramError(
                f"rank {to} along {axis} is no other one of the mesh {shape}: {place}"
            )
        peer = program.peer(rank, op)
        ends = (rank, peer) if op.name == "send" else (peer, rank)
        return *ends, place.op.buffer, place.microbatch

    def send(self, place: OpPlace) -> None:
        """A message is on its way."""
        key = self.message(place)
        if key in self.sent:
            raise ProgramError(f"a message goes twice: {self.sent[key]}; {place}; leave one out")
        self.sent[key] = place
        self._there(key)

    def take(self, place: OpPlace, key: _Message) -> None:
        """A message has come."""
        source, target, name, microbatch = key
        self.taken.add(key)
        here, there = (self.program.role(rank).size(name) for rank in (source, target))
        if here != there:
            raise ProgramError(
                f"{name} of frame {microbatch} has {here:g} B on rank {source} and {there:g} B on "
                f"rank {target}: {self.sent[key]}; {place}; give both one size"
            )

    # -- collectives ------------------------------------------------------------------------------

    def call(self, place: OpPlace, call: _Call) -> None:
        """A member has come to a collective; with the last of them it is done."""
        op, (members, _) = place.op, call
        ranks = len(members) * self.program.stands_along(op["axes"])
        if place.rank not in members or ranks != op.size:
            raise ProgramError(
                f"a collective of {ranks} ranks, {members}, has a count for each and is called by "
                f"one of them; got {op.size} on rank {place.rank}: {place}"
            )
        places, role = self.called.setdefault(call, []), self.program.role(place.rank)
        if places and (what := _differs(places[0], place)):
            raise ProgramError(
                f"ranks of a group call the same collectives in the same order, and these differ "
                f"in {what}: {places[0]}; {place}; let both say the same"
            )
        elements = op.elements(members.index(place.rank))
        for name, count in zip((*op.reads, *op.writes), elements, strict=True):
            if role.size(name) != (size := count * op["itemsize"]):
                raise ProgramError(
                    f"{name} has {role.size(name)} B, and the counts of its collective are {size} "
                    f"B: {place}; let both say the same"
                )
        places.append(place)
        if len(places) == len(members):
            self.done.append(places)
            self.met.add(call)
            self._there(call)

    # -- where no rank goes on --------------------------------------------------------------------

    def _stuck(self) -> None:
        """Raise for ranks that lack what never comes, or wait for each other."""
        lacks = {place.rank: (key, place) for key, of in self.lacking.items() for place in of}
        waits_for: dict[int, int] = {}
        for rank, (key, place) in lacks.items():
            if len(key) == 2:  # a collective
                came = [each.rank for each in self.called[key]]
                other = next(member for member in key[0] if member not in came)
                if other not in lacks:
                    raise ProgramError(
                        f"rank {other} leaves out a collective of ranks {key[0]}: {place}; let it "
                        f"make the same calls"
                    )
            else:
                other, _, name, microbatch = key
                if not self._sends(key):
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

    def _sends(self, key: _Message) -> bool:
        """Whether the order of the rank that a message is from has the send of it."""
        source, target, name, microbatch = key
        program, blocks = self.program, self.program.role(source).blocks
        return any(
            op.name == "send" and op.reads == (name,) and program.peer(source, op) == target
            for step in program.orders[source]
            if step.microbatch == microbatch
            for op in blocks[step.block].ops
        )


class _Rank:
    """One rank under way, and its buffers."""

    def __init__(self, ranks: _Walk, rank: int) -> None:
        self.ranks, self.rank, self.role = ranks, rank, ranks.program.role(rank)
        self.made: dict[tuple[str, int], OpPlace] = {}
        """By buffer and micro-batch."""
        self.unread: dict[tuple[str, int], OpPlace] = {}
        self.written: set[str] = set()
        """State."""

    def lacks(self) -> Iterator[tuple[_Message | _Call, OpPlace]]:
        """Go through the order; what is not there yet, each time it is come to."""
        ranks, calls = self.ranks, dict[tuple[int, ...], int]()
        for places in self._at_once():
            place = places[0]
            for each in places:
                self._read(each)
            if place.op.is_collective:
                members = ranks.program.members(self.rank, place.op)
                calls[members] = calls.get(members, -1) + 1
                call = members, calls[members]
                ranks.call(place, call)
                while call not in ranks.met:
                    yield call, place
            else:
                if place.op.name == "recv":
                    key = ranks.message(place)
                    while key not in ranks.sent:
                        yield key, place
                    ranks.take(place, key)
                ranks.done.append(places)
            for each in places:
                self._write(each)
            if place.op.name == "send":
                ranks.send(place)
        self._check_end()

    def _at_once(self) -> Iterator[list[OpPlace]]:
        """The ops in their order: each alone, but of a pair of blocks with one kernel each what
        comes, both kernels, and what goes."""
        seen: dict[tuple[str, int], int] = {}
        opened: list[OpPlace] = []
        for n, step in enumerate(self.ranks.program.orders[self.rank]):
            block = self.role.blocks[step.block]
            if (first := seen.setdefault(step[:2], n)) != n:
                raise ProgramError(
                    f"{step.block}.{step.microbatch} is repeated on rank {self.rank}: turns "
                    f"{first} and {n}; do it once"
                )
            both = [
                *opened,
                *(OpPlace(self.rank, n, block, step.microbatch, op) for op in block.ops),
            ]
            joined = opened and all(map(_one_kernel, (opened[0].block, block)))
            opened = both if step.paired else []
            if joined:
                yield from ([each] for each in both if each.op.name == "recv")
                yield [each for each in both if each.op.is_kernel]
                yield from ([each] for each in both if each.op.name == "send")
            elif not step.paired:
                yield from ([each] for each in both)

    # -- buffers ----------------------------------------------------------------------------------

    def _read(self, place: OpPlace) -> None:
        role = self.role
        for name in place.op.reads:
            buffer = name if name in role.sizes else buffer_of(name)
            key = buffer, place.microbatch
            self.unread.pop(key, None)
            late = buffer in role.accumulators and buffer not in self.written
            if late or (buffer not in role.state and key not in self.made):
                raise ProgramError(
                    f"{name} of frame {place.microbatch} is read and was not written before: "
                    f"{place}; on rank {self.rank}, first do or receive what makes it"
                )

    def _write(self, place: OpPlace) -> None:
        role = self.role
        for name in place.op.writes:
            buffer = name if name in role.sizes else buffer_of(name)
            key = buffer, place.microbatch
            if buffer in role.constants:
                raise ProgramError(f"{name} is given, and no line changes it: {place}")
            if buffer in role.state:
                self.written.add(buffer)
                continue
            role.size(buffer)
            if key in self.made:
                raise ProgramError(
                    f"{name} of frame {place.microbatch} is written twice: {self.made[key]}; "
                    f"{place}; write another buffer, or leave one out"
                )
            self.made[key] = self.unread[key] = place
            self.written.add(role.alias.get(buffer, ""))

    def _check_end(self) -> None:
        role = self.role
        if idle := sorted(role.state.keys() - role.constants - self.written):
            raise ProgramError(
                f"{idle[0]} stays on rank {self.rank}, and nothing writes it: is an instruction "
                f"missing? what no line changes is given"
            )
        for (name, microbatch), place in self.unread.items():
            raise ProgramError(
                f"{name} of frame {microbatch} is left over: {place}; nothing on rank {self.rank} "
                f"reads it: is an instruction missing, or a part?"
            )


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
