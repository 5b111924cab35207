"""What waits for what in a program: every rank's line walked once, for the check and the clock.

    rank 0   recv x --- linear --- all_reduce --- ...    a node waits for the one before it on
    rank 1         ... linear --- all_reduce --- ...     its stream, for what it reads, a message
                                   one node of both      for its send; a collective is one node

What is wrong with single instructions, or does not meet, is found on the way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import prod
from typing import NamedTuple

from tiledask.errors import ProgramError
from tiledask.plan.program.instructions import (
    Broadcast,
    Collective,
    Do,
    Fetch,
    Instruction,
    Instructions,
    ProgramPart,
    ProgramRole,
    Recv,
    Reduce,
    Send,
    buffer_of,
)

__all__ = ["LinePlace", "Node", "followers", "graph"]


class LinePlace(NamedTuple):
    """Where an instruction is."""

    rank: int
    turn: int
    part: ProgramPart
    frame: int
    instruction: Instruction

    def __str__(self) -> str:
        where = f"turn {self.turn} of rank {self.rank}, {self.part.name}.{self.frame}"
        return f"{where}: '{self.instruction!r}'"


@dataclass(slots=True)
class Node:
    """What happens at once: an instruction; of a pair both kernels; a collective on all members."""

    places: list[LinePlace]
    waits: list[int] = field(default_factory=list)
    """Numbers of the nodes that come before."""


_Message = tuple[int, int, str, int]
"""From, to, buffer, frame."""


def graph(program: Instructions) -> list[Node]:
    """The nodes of a program. Raises ProgramError for the first thing that is wrong with it, but
    for circles, and buffers that nothing reads."""
    walk = _Walk(program)
    for rank in range(program.ranks):
        walk.rank(rank)
    walk.meet()
    return walk.nodes


def followers(nodes: list[Node]) -> tuple[list[list[int]], list[int]]:
    """(the nodes that wait for each, how many each waits for itself): to go through them in an
    order in which nothing comes before what it waits for."""
    users: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for before in node.waits:
            users[before].append(number)
    return users, [len(node.waits) for node in nodes]


class _Walk:
    def __init__(self, program: Instructions) -> None:
        self.program = program
        self.nodes: list[Node] = []
        self.sent: dict[_Message, int] = {}
        self.taken: dict[_Message, int] = {}
        self.together: dict[tuple[tuple[int, ...], int], int] = {}
        """Members and the how-manieth of theirs -> its node."""
        self.pairs: list[list[int]] = []
        """Messages that a pair of parts waits for, both before it takes the first."""
        self.calls: dict[tuple[tuple[int, ...], int], int] = {}
        """Members and one of them -> how many collectives it has."""

    def rank(self, rank: int) -> None:
        """Go through the line of a rank."""
        role, self.here = self.program.role(rank), rank
        self.written: dict[tuple[str, int], int] = {}
        self.writer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self.last: dict[str, int] = {}
        turns: dict[tuple[int, int], int] = {}
        line = self.program.lines[rank]
        for name, base in role.within.items():
            if role.stays.get(base, -1) < role.nbytes.get(name, 0):
                raise ProgramError(
                    f"{name} of {role.nbytes.get(name, 0)} B lies within {base}, which has "
                    f"{role.stays.get(base, 0)} B that stay on rank {rank}; give it a place of its "
                    f"own"
                )
        block: list[LinePlace] = []
        rows = zip(line.part.tolist(), line.frame.tolist(), line.paired.tolist(), strict=True)
        for turn, (number, frame, paired) in enumerate(rows):
            part = role.parts[number]
            if (first := turns.setdefault((number, frame), turn)) != turn:
                raise ProgramError(
                    f"{part.name}.{frame} is repeated on rank {rank}: turns {first} "
                    f"and {turn}; do it once"
                )
            mine = [LinePlace(rank, turn, part, frame, each) for each in part.instructions]
            if paired or block:
                block += mine
                if paired:
                    continue
                before = len(self.nodes)
                for places in _at_once(block):
                    self.instruction(role, places)
                both = range(before, len(self.nodes))
                takes = [n for n in both if isinstance(self.nodes[n].places[0].instruction, Recv)]
                self.pairs += [takes] if len(takes) > 1 else []
                block = []
            else:
                for place in mine:
                    self.instruction(role, [place])
        if idle := sorted(role.stays.keys() - role.given - self.writer.keys()):
            raise ProgramError(
                f"{idle[0]} stays on rank {rank}, and nothing writes it: is an instruction "
                f"missing? what no line changes is given"
            )

    def instruction(self, role: ProgramRole, places: list[LinePlace]) -> None:
        """Another node, or another member of one."""
        rank, number, waits = self.here, len(self.nodes), list[int]()
        each = places[0].instruction
        if isinstance(each, Collective):
            waits += self.reads(role, places[0])
            number = self.collective(places[0])
            _check_sizes(role, places[0], self.program.members(rank, each).index(rank))
        else:
            self.nodes.append(Node(places))
        node = self.nodes[number]
        if each.stream in self.last:
            waits.append(self.last[each.stream])
        self.last[each.stream] = number
        for place in places:
            waits += [] if isinstance(each, Collective) else self.reads(role, place)
            for name in place.instruction.reads:
                if (buffer := buffer_of(name)) in role.stays:
                    self.readers.setdefault(buffer, []).append(number)
            for name in place.instruction.writes:
                waits += self.writes(role, place, name, number)
        if isinstance(each, Send | Recv):
            self.message(each, places[0], number)
        if isinstance(each, Fetch):
            self.fetch(role, each, places[0])
        node.waits += [before for before in waits if before != number]

    def reads(self, role: ProgramRole, place: LinePlace) -> list[int]:
        """What makes the buffers that are read."""
        return [n for name in place.instruction.reads for n in self.maker(role, place, name)]

    def maker(self, role: ProgramRole, place: LinePlace, name: str) -> list[int]:
        """What makes a buffer; nothing if it was there before."""
        buffer = name if name in role.nbytes else buffer_of(name)
        if buffer in role.stays:
            if buffer in role.scratch and buffer not in self.writer:
                raise ProgramError(
                    f"{name}, which every line makes anew, is read and was not written before: "
                    f"{place}; on rank {self.here}, clear it first"
                )
            return [self.writer[buffer]] if buffer in self.writer else []
        if (buffer, place.frame) not in self.written:
            raise ProgramError(
                f"{name} of frame {place.frame} is read and was not written before: {place}; on "
                f"rank {self.here}, first do or receive what makes it"
            )
        return [self.written[buffer, place.frame]]

    def writes(self, role: ProgramRole, place: LinePlace, name: str, number: int) -> list[int]:
        """What a write waits for: of what stays, all that read or wrote it before."""
        buffer = name if name in role.nbytes else buffer_of(name)
        if buffer in role.given:
            raise ProgramError(f"{name} is given, and no line changes it: {place}")
        if buffer in role.stays:
            return self.overwrites(buffer, number)
        if buffer not in role.nbytes:
            raise ProgramError(f"{name} has no size: {place}; give rank {self.here} one")
        if (first := self.written.get((buffer, place.frame))) is not None:
            raise ProgramError(
                f"{name} of frame {place.frame} is written twice: "
                f"{self.at(first)}; {place}; write another buffer, or leave one out"
            )
        self.written[buffer, place.frame] = number
        base = role.within.get(buffer)
        return [] if base is None else self.overwrites(base, number)

    def overwrites(self, buffer: str, number: int) -> list[int]:
        """All that read or wrote before what stays, and is now written."""
        before = [self.writer[buffer]] if buffer in self.writer else []
        before += self.readers.pop(buffer, [])
        self.writer[buffer] = number
        return before

    def at(self, number: int) -> LinePlace:
        """The place of a node on the rank under way."""
        return next(place for place in self.nodes[number].places if place.rank == self.here)

    # -- between ranks ----------------------------------------------------------------------------

    def message(self, each: Send | Recv, place: LinePlace, number: int) -> None:
        """Keep a message until its other end is there."""
        rank, program = self.here, self.program
        if not 0 <= each.axis < len(program.shape):
            raise ProgramError(f"the mesh {program.shape} has no axis {each.axis}: {place}")
        extent, me = program.shape[each.axis], program.coordinates[rank][each.axis]
        if not 0 <= each.peer < extent or each.peer == me:
            raise ProgramError(f"rank {each.peer} is no other one of the {extent} ranks: {place}")
        peer = program.peer(rank, each)
        ends = (rank, peer) if isinstance(each, Send) else (peer, rank)
        both = self.sent if isinstance(each, Send) else self.taken
        key = (*ends, each.buffer, place.frame)
        if key in both:
            raise ProgramError(
                f"a message goes twice: {self.at(both[key])}; {place}; leave one out"
            )
        both[key] = number

    def fetch(self, role: ProgramRole, each: Fetch, place: LinePlace) -> None:
        """Refuse what cannot be fetched, or has no room where it goes."""
        extents = [stop - start for start, stop in each.region]
        if min(extents, default=1) < 1 or each.nbytes % prod(extents):
            raise ProgramError(
                f"a fetch brings whole elements of a region of {extents}, got {each.nbytes} B: "
                f"{place}"
            )
        room = role.size(buffer_of(each.buffer))
        if not each.adds and each.at + each.nbytes > room:
            raise ProgramError(
                f"{buffer_of(each.buffer)} has {room} B, and what is fetched ends at byte "
                f"{each.at + each.nbytes}: {place}; give it more, or cut narrower panels"
            )

    def collective(self, place: LinePlace) -> int:
        """The number of a collective's node: the members' calls meet in their order."""
        each = place.instruction
        assert isinstance(each, Collective)
        members = self.program.members(self.here, each)
        ranks = len(members) * self.program.stands_along(each.axes)
        if self.here not in members or ranks != each.size:
            raise ProgramError(
                f"a collective of {ranks} ranks, {members}, has a count for each and is "
                f"called by one of them; got {each.size} on rank {self.here}: {place}"
            )
        done = self.calls.get((members, self.here), 0)
        self.calls[members, self.here] = done + 1
        number = self.together.setdefault((members, done), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(Node([]))
        node = self.nodes[number]
        if node.places and (what := _differs(node.places[0], place)):
            raise ProgramError(
                f"ranks of a group call the same collectives in the same order, and these differ "
                f"in {what}: {node.places[0]}; {place}; let both say the same"
            )
        node.places.append(place)
        return number

    def meet(self) -> None:
        """Join messages' ends; raises ProgramError where one is missing, or of another size."""
        for (members, _), number in self.together.items():
            places = self.nodes[number].places
            if len(places) < len(members):
                missing = sorted(set(members) - {place.rank for place in places})
                raise ProgramError(
                    f"rank {missing[0]} leaves out a collective of ranks {members}: {places[0]}; "
                    f"let it make the same calls"
                )
        for key, number in (self.taken | self.sent).items():
            source, target, name, frame = key
            what, place = f"{name} of frame {frame}", self.nodes[number].places[0]
            if key not in self.sent:
                raise ProgramError(
                    f"rank {target} takes {what} from rank {source}, which never sends it to rank "
                    f"{target}: {place}; send it there, after what makes it"
                )
            if key not in self.taken:
                raise ProgramError(
                    f"rank {source} sends {what} to rank {target}, which never takes it from rank "
                    f"{source}: {place}; take it there, before what uses it"
                )
            here, there = (self.program.role(rank).size(name) for rank in (source, target))
            if here != there:
                ends = (self.nodes[of[key]].places[0] for of in (self.sent, self.taken))
                raise ProgramError(
                    f"{what} has {here:g} B on rank {source} and {there:g} B on rank {target}: "
                    f"{'; '.join(map(str, ends))}; give both one size"
                )
            self.nodes[self.taken[key]].waits.append(self.sent[key])
        sends = set(self.sent.values())
        for takes in self.pairs:
            awaited = [n for take in takes for n in self.nodes[take].waits if n in sends]
            for take in takes:
                self.nodes[take].waits += awaited


def _at_once(block: list[LinePlace]) -> Iterator[list[LinePlace]]:
    """Of a pair of parts: what comes, the kernels at once if each part has one, what goes."""
    kinds = [place for place in block if isinstance(place.instruction, Do)]
    if len(kinds) != 2 or any(isinstance(place.instruction, Collective) for place in block):
        yield from ([place] for place in block)
        return
    yield from ([place] for place in block if isinstance(place.instruction, Recv))
    yield kinds
    yield from ([place] for place in block if isinstance(place.instruction, Send))


def _differs(one: LinePlace, other: LinePlace) -> str:
    """In what two members' calls of a collective differ; empty if in nothing."""
    a, b = one.instruction, other.instruction
    assert isinstance(a, Collective)
    assert isinstance(b, Collective)
    here, there = ((p.part.kind, p.part.stage, p.frame) for p in (one, other))
    if here != there:
        return "their part or frame"
    if a.kind != b.kind:
        return "kind"
    names = (f.name for f in fields(a) if f.name not in ("buffer", "result"))
    return ", ".join(name for name in names if getattr(a, name) != getattr(b, name))


def _check_sizes(role: ProgramRole, place: LinePlace, me: int) -> None:
    """Raises ProgramError for buffers of other sizes than a collective's counts say, and for what
    is not brought or kept where its root is."""
    each = place.instruction
    assert isinstance(each, Collective)
    brings = not isinstance(each, Broadcast) or me == each.root
    keeps = not isinstance(each, Reduce) or me == each.root
    said = bool(each.buffer), bool(each.result)
    if said != (brings, keeps) or not 0 <= each.root < each.size:
        raise ProgramError(
            f"a broadcast is from its root and a reduce to it, number {each.root} of the "
            f"{each.size} members; this rank is number {me}, and "
            f"{'brings' if said[0] else 'does not bring'} what is sent and "
            f"{'keeps' if said[1] else 'does not keep'} what comes: {place}"
        )
    for name, elements in zip((each.buffer, each.result), each.elements(me), strict=True):
        if name and role.size(name) != (size := elements * each.itemsize):
            raise ProgramError(
                f"{name} has {role.size(name)} B, and the counts of its collective are {size} B: "
                f"{place}; let both say the same"
            )
