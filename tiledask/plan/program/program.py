"""A program: the ops of every rank, what reads them, and its text.

td.program(schedule)  -->  check      what is missing, out of order, or waited for in a circle
made from shapes           traffic    bytes and messages between ranks: counted
                           memory     what each rank holds: weighed
                           timeline   when everything happens: timed
                           (run)      arrays: tiledask.run_program

program gpipe
rank 0: 0F.0 (0F.1 0B.0)               in parentheses: two blocks at once
of rank 0: x1 8 B, kept0 1 B           what its buffers have
  0F                                   the blocks below, each with its ops
    x1 kept0 = do forward

An op is    [WRITES =] [do] NAME [READS] [to PEER | from PEER [along AXIS]] [{ARGS}] [@STREAM]
A schedule's program is read back; those with state and collectives are for reading only.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, chain, product
from math import prod
from typing import Any, Self

import numpy as np

from tiledask.errors import ProgramError
from tiledask.plan.collectives.cost import cost
from tiledask.plan.collectives.rows import halo_cost
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.ops import Op, Order, ProgramRole, action_of, buffer_of
from tiledask.plan.program.text import parsed

__all__ = ["Program", "moved_by"]


@dataclass(frozen=True, repr=False)
class Program:
    """The ops of every rank.

    >>> import tiledask as td
    >>> print(td.program(td.schedule("gpipe", 2, 1, forward_only=True), block_bytes=8))
    program gpipe, forward only
    rank 0: 0F.0
    rank 1: 1F.0
    of rank 0: x1 8 B
      0F
        x1 = do forward
        send x1 to 1 @to_1
    of rank 1: x1 8 B
      1F
        x1 = recv from 0 @from_0
        do forward x1
    >>> program = td.program(td.schedule("gpipe", 2, 1), block_bytes=8).check()
    >>> program.traffic.sent, program.memory.per_place
    ((8, 8), {0: 9, 1: 9})
    >>> program.timeline({"F": 1.0, "B": 2.0}, latency=0.5).makespan
    7.0
    """

    roles: tuple[ProgramRole, ...]
    orders: tuple[Order, ...]
    role_of: tuple[int, ...]
    name: str = ""
    mesh: tuple[int, ...] = ()
    """(): all ranks along one axis."""
    ranks: int = field(init=False, compare=False)
    shape: tuple[int, ...] = field(init=False, compare=False)
    """Of the mesh, of one axis too."""
    coordinates: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    """Where in the mesh each rank is."""
    alike: list[list[int]] = field(init=False, compare=False)
    """The ranks, by what they do: with one role and one order."""

    def __post_init__(self) -> None:
        alike: dict[tuple[int, int], list[int]] = {}
        for rank, order in enumerate(self.orders):
            alike.setdefault((self.role_of[rank], id(order)), []).append(rank)
        shape = self.mesh or (len(self.orders),)
        coordinates = tuple(product(*map(range, shape)))
        vars(self).update(ranks=len(self.orders), shape=shape, coordinates=coordinates)
        vars(self).update(alike=list(alike.values()))

    def role(self, rank: int) -> ProgramRole:
        return self.roles[self.role_of[rank]]

    def peer(self, rank: int, op: Op) -> int:
        """The rank at the other end of a message."""
        axis = op["axis"]
        apart: int = op["peer"] - self.coordinates[rank][axis]
        return rank + apart * prod(self.shape[axis + 1 :])

    def members(
        self, rank: int, axes: tuple[int, ...], among: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` along some axes only, or these ``among`` them."""
        return _groups(self.shape, axes, among)[rank]

    def sent(self, source: int, target: int) -> Iterator[tuple[str, int]]:
        """What a rank sends to another, in its order: the buffer and the micro-batch."""
        blocks = self.role(source).blocks
        for step in self.orders[source]:
            for op in blocks[step.block]:
                if op.name == "send" and self.peer(source, op) == target:
                    yield op.buffer, step.microbatch

    def check(self) -> Self:
        """The program itself, if it can run and nothing in it is left over.

        Raises ProgramError for the first fault: a buffer that is read before it is written on its
        rank, written twice for a micro-batch, or never read; a message that nobody takes or sends,
        or that is of another size at its other end; a collective that a member leaves out, or
        makes otherwise; ranks that wait for each other in a circle.

        >>> import tiledask as td
        >>> text = td.program(td.schedule("1f1b", 2, 2)).to_text()
        >>> td.Program.from_text(text.replace("send x1 to 1 @to_1", "")).check()
        Traceback (most recent call last):
            ...
        tiledask.errors.ProgramError: deadlock: turn 2 of rank 0, 0B.0: 'dx1 = recv from 1 @from_1' waits for rank 1; turn 0 of rank 1, 1F.0: 'x1 = recv from 0 @from_0' waits for rank 0, which never sends it to rank 1
        """  # noqa: E501
        _walk(self)
        return self

    @cached_property
    def traffic(self) -> Traffic:
        """The bytes and messages between ranks: what is sent, and collectives' messages."""
        moved = np.zeros((2, self.ranks, self.ranks), np.int64)
        for ranks in self.alike:
            role, often = self.role(ranks[0]), Counter[Op]()
            for name, times in Counter(step.block for step in self.orders[ranks[0]]).items():
                for op in role.blocks[name]:
                    if op.name == "send":
                        often[op] += times
                    elif op.kind == "collective":
                        args = tuple(arg for arg in op.args if arg[0] != "label")
                        often[Op(op.name, args=args)] += times
            for rank, (op, times) in product(ranks, often.items()):
                if op.name == "send":
                    moved[:, rank, self.peer(rank, op)] += times * role.sizes[op.buffer], times
                else:
                    members = self.members(rank, op["axes"], op["among"])
                    each = moved_by(op)
                    me = members.index(rank)
                    moved[:, rank, members] += times * np.stack([each.bytes[me], each.messages[me]])
        return Traffic(*moved)

    @cached_property
    def memory(self) -> Ledger:
        """What each rank holds at its fullest moment: a row per buffer, for all micro-batches.

            x1 kept0 = do forward    + x1 + kept0    a buffer is there from the op that writes it
            send x1 to 1             - x1            to the end of the last that reads it

        Ops are taken in their order, whatever their stream, so that a send lets its buffer go at
        its turn. State is there at every moment, and what lies within it is no more.
        """
        rows: dict[int, list[tuple[str, str, int, str]]] = {}
        for ranks in self.alike:
            role, order = self.role(ranks[0]), self.orders[ranks[0]]
            ops = [(step, op) for step in order for op in role.blocks[step.block]]
            born: dict[tuple[str, int], int] = {}
            dies: dict[tuple[str, int], int] = {}
            change = [0] * (len(ops) + 1)
            for at, (step, op) in enumerate(ops):
                for name in op.writes:
                    born[buffer_of(name), step.microbatch] = at
                for name in (*op.reads, *op.writes):
                    dies[buffer_of(name), step.microbatch] = at
                if op.args:
                    change[at] += op["work"]
                    change[at + 1] -= op["work"]
            own = role.sizes.keys() - role.alias.keys()
            born = {key: at for key, at in born.items() if key[0] in own}
            for key, at in born.items():
                change[at] += role.sizes[key[0]]
                change[dies[key] + 1] -= role.sizes[key[0]]
            moment, when = int(np.argmax(list(accumulate(change)))), ALWAYS
            found = [(name, ALWAYS, size, "stays") for name, size in role.state.items()]
            if ops:
                step, op = ops[moment]
                when = f"{step.block}.{step.microbatch}"
                alive = Counter(key[0] for key, at in born.items() if at <= moment <= dies[key])
                for name, size in role.sizes.items():
                    if number := alive[name]:
                        found.append((name, when, number * size, f"{number} x {size:g}"))
                found += [("work space", when, op["work"], op.name)] if op["work"] else []
            rows |= dict.fromkeys(ranks, found or [("nothing", when, 0, "")])
        return Ledger.of(Row(rank, *row) for rank in sorted(rows) for row in rows[rank])

    def timeline(self, seconds: Mapping[str, Any], latency: Any = 0.0) -> Timeline:
        """When the actions of a schedule's program happen.

        ``seconds``: by kind, F, B, I or W, as `td.simulate` takes them; so is ``latency``. Raises
        ProgramError for a program that is wrong or has other blocks than actions, and for a kind
        without seconds.
        """
        self.check()
        orders = [
            [Action(*action_of(step.block), step.microbatch) for step in steps]
            for steps in self.orders
        ]
        there = {action.kind for order in orders for action in order}
        if not there or not there <= {*KINDS} & {*seconds}:
            raise ProgramError(
                f"a timeline is of a schedule's program, and takes seconds of its kinds of actions "
                f"({', '.join(KINDS)}); got blocks of {', '.join(sorted(there)) or 'no kind'} and "
                f"seconds of {', '.join(seconds) or 'none'}"
            )
        steps = chain.from_iterable(self.orders)
        pairs = [Action(*action_of(step.block), step.microbatch) for step in steps if step.paired]
        rank_of = {(a.stage, a.microbatch): n for n, order in enumerate(orders) for a in order}
        stages, microbatches = (range(1 + max(numbers)) for numbers in zip(*rank_of, strict=True))
        places = [[rank_of.get((s, i), 0) for s in stages] for i in microbatches]
        schedule = Schedule.of(orders, places, self.name, pairs)
        forward, backward, *halves = map(seconds.get, "FBIW")
        return simulate(schedule, 0.0 if forward is None else forward, backward, latency, *halves)

    # -- text ---------------------------------------------------------------------------------

    def to_text(self) -> str:
        """The whole program. Ranks of one order share a line, and those of one role its blocks."""
        text = [f"program {self.name}".rstrip()]
        if self.mesh:
            text.append(f"mesh {' '.join(map(str, self.mesh))}")
        for ranks in self.alike:
            words = " ".join(map(str, ranks))
            text.append(f"rank {words}: {self.line_text(ranks[0])}".rstrip())
        first = map(self.role_of.index, sorted({*self.role_of}))
        return "\n".join([*text, *map(self.role_text, first)])

    def line_text(self, rank: int) -> str:
        """The order of a rank: blocks, each with its micro-batch.

        >>> import tiledask as td
        >>> td.program(td.schedule("dualpipe", 2, 4)).line_text(0)
        '0F.0 1F.1 0F.2 1B.1 (1F.3 0B.0) 1B.3 0I.2 0W.2'
        """
        words, opened = [], False
        for name, microbatch, paired in self.orders[rank]:
            word = f"{name}.{microbatch}"
            words.append(f"({word}" if paired else f"{word})" if opened else word)
            opened = paired
        return " ".join(words)

    def role_text(self, rank: int) -> str:
        """The role of a rank, with all that have it: its buffers, and blocks with their ops."""
        role, number = self.role(rank), self.role_of[rank]
        ranks = " ".join(str(rank) for rank, of in enumerate(self.role_of) if of == number)
        changed = role.state.keys() - role.accumulators - role.constants
        kinds = {"stays": changed, "scratch": role.accumulators, "given": role.constants}
        heads: dict[str, Mapping[str, int]] = {f"of rank {ranks}:": role.sizes}
        for word, names in kinds.items():
            heads[f"  {word}"] = {n: size for n, size in role.state.items() if n in names}
        text = list[str]()
        for head, sizes in heads.items():
            each = ", ".join(f"{name} {size} B" for name, size in sizes.items())
            text += [f"{head} {each}".rstrip()] if sizes or not text else []
        for name, items in role.items.items():
            shapes = (f"{item} {'x'.join(map(str, shape))}".rstrip() for item, shape in items)
            text.append(f"  in {name}: {', '.join(shapes)}")
        for base in dict.fromkeys(role.alias.values()):
            here = (name for name, of in role.alias.items() if of == base)
            text.append(f"  within {base}: {', '.join(here)}")
        for name, block in role.blocks.items():
            text += [f"  {name}", *(f"    {op!r}" for op in block)]
        return "\n".join(text)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The program of a schedule that ``text`` says. Raises ProgramError for a line that it
        cannot read.

        >>> import tiledask as td
        >>> text = td.program(td.schedule("zb-h1", 3, 4), block_bytes=16).to_text()
        >>> td.Program.from_text(text).to_text() == text
        True
        """
        return cls(*parsed(text))

    __str__ = to_text

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{type(self).__name__}({name}{self.ranks} ranks)"


@lru_cache(1024)
def _groups(
    shape: tuple[int, ...], axes: tuple[int, ...], among: tuple[int, ...] = ()
) -> dict[int, tuple[int, ...]]:
    """By rank, those of its group along some axes of a mesh."""
    order = sorted(range(len(shape)), key=lambda axis: axis in axes)
    numbers = np.arange(prod(shape)).reshape(shape).transpose(order)
    rows = numbers.reshape(-1, prod(shape[axis] for axis in axes))
    groups = map(tuple, (rows[:, among] if among else rows).tolist())
    return {rank: of for of in groups for rank in of}


@lru_cache(10_000)
def moved_by(op: Op) -> Traffic:
    """The Traffic between the members of a collective without buffers and label."""
    if not op.name.startswith("halo"):
        return cost(op.name, "", op["counts"], op["itemsize"])
    row = op["itemsize"] * (sum(op["counts"]) // max(1, sum(op["extents"])))
    return halo_cost(op.name, op["extents"], row, op["before"], op["after"])


# -- what is wrong ---------------------------------------------------------------------------------

_Place = tuple[int, int, Op]
"""Where an op is: of which rank, at which of its steps."""


def _walk(program: Program) -> None:
    """Go through all orders at once. Raises ProgramError for the first fault.

        rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
        rank 1         ... linear --- all_reduce --- ...     message, or others of a collective

    Where no rank can go on, those who wait for each other are a deadlock.
    """
    orders = [_places(program, rank) for rank in range(program.ranks)]
    at = [next(order, None) for order in orders]  # where each rank stands; None: at its end
    # by from, to, buffer and micro-batch, what nobody has taken
    sent: dict[tuple[int, int, str, int], _Place] = {}
    ready = [*reversed(range(program.ranks))]
    while ready:
        rank = ready.pop()
        while place := at[rank]:
            (_, n, op), done = place, [place]
            if op.kind == "collective":
                members = program.members(rank, op["axes"], op["among"])
                come = not _missing(program, at, members)
                done = [each for member in members if come and (each := at[member])]
            elif op.kind == "message":
                peer, what = program.peer(rank, op), (op.buffer, program.orders[rank][n].microbatch)
                if op.name == "send":
                    sent[rank, peer, *what] = place
                    ready.append(peer)
                elif came := sent.pop((peer, rank, *what), None):
                    here, there = (program.role(r).sizes[op.buffer] for r in (rank, peer))
                    if here != there:
                        rule = f"{op.buffer} has {there:g} B where it is sent, {here:g} B here"
                        both = "; ".join(_where(program, *each) for each in (came, place))
                        raise ProgramError(f"{rule}: {both}")
                else:
                    done = []
            if not done:
                break
            for each in done:
                at[each[0]] = next(orders[each[0]], None)
            ready += [each[0] for each in done if each is not place]
    waits = []
    for rank, n, op in [place for place in at if place][:4]:
        never = ""
        if op.kind == "collective":
            members = program.members(rank, op["axes"], op["among"])
            other = _missing(program, at, members)[0]
        else:
            other = program.peer(rank, op)
            if (op.buffer, program.orders[rank][n].microbatch) not in program.sent(other, rank):
                never = f", which never sends it to rank {rank}"
        waits.append(f"{_where(program, rank, n, op)} waits for rank {other}{never}")
    if waits:
        raise ProgramError(f"deadlock: {'; '.join(waits)}")
    for place in sent.values():
        where = _where(program, *place)
        raise ProgramError(f"this is sent to a rank that never takes it: {where}")


def _where(program: Program, rank: int, n: int, op: Op) -> str:
    step = program.orders[rank][n]
    return f"turn {n} of rank {rank}, {step.block}.{step.microbatch}: '{op!r}'"


def _places(program: Program, rank: int) -> Iterator[_Place]:
    """The ops in their order. When one is done, what it reads is there, and what it writes is
    written once; what nothing uses is a fault at the end."""
    role = program.role(rank)
    made, unread = dict[tuple[str, int], _Place](), dict[tuple[str, int], _Place]()
    for n, (block, microbatch, _) in enumerate(program.orders[rank]):
        for op in role.blocks[block]:
            yield rank, n, op
            for name in map(buffer_of, op.reads):
                unread.pop((name, microbatch), None)
                if name not in role.state and (name, microbatch) not in made:
                    rule = f"{name} is read and was not written before; first make it"
                    raise ProgramError(f"{rule}: {_where(program, rank, n, op)}")
            for name in map(buffer_of, op.writes):
                if name in role.state:
                    continue
                here = (rank, n, op)
                if before := made.get((name, microbatch)):
                    rule = f"{name} is written twice; leave one out"
                    both = "; ".join(_where(program, *each) for each in (before, here))
                    raise ProgramError(f"{rule}: {both}")
                made[name, microbatch] = unread[name, microbatch] = here
    for (name, _), here in unread.items():
        left = f"{name} is left over, nothing on rank {rank} reads it"
        raise ProgramError(f"{left}: {_where(program, *here)}")


def _missing(program: Program, at: list[_Place | None], members: tuple[int, ...]) -> list[int]:
    """The members that have not come to a collective of these."""
    return [
        rank
        for rank in members
        if not (here := at[rank])
        or (op := here[2]).kind != "collective"
        or program.members(rank, op["axes"], op["among"]) != members
    ]
