"""What is wrong with a program: all ranks are walked through their orders at once.

    rank 0   recv x --- linear --- all_reduce --- ...    every rank goes on until it lacks a
    rank 1         ... linear --- all_reduce --- ...     message, or others of a collective

Where no rank can go on, those who wait for each other are a deadlock.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tiledask.errors import ProgramError
from tiledask.plan.program.ops import Op, ProgramData, buffer_of

__all__ = ["walk"]


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


def walk(program: ProgramData) -> None:
    """Go through all orders. Raises ProgramError for the first fault."""
    orders = [_places(program, rank) for rank in range(program.ranks)]
    at = [next(order, None) for order in orders]  # where each rank stands; None: at its end
    # by from, to, buffer and micro-batch, what nobody has taken
    sent: dict[tuple[int, int, str, int], _Place] = {}
    ready = [*reversed(range(program.ranks))]
    while ready:
        rank = ready.pop()
        while place := at[rank]:
            op, done = place.op, [place]
            if op.kind == "collective":
                members = program.members(rank, op)
                come = not _missing(program, at, members)
                done = [each for member in members if come and (each := at[member])]
            elif op.kind == "message":
                peer, what = program.peer(rank, op), (op.buffer, place.microbatch)
                if op.name == "send":
                    sent[rank, peer, *what] = place
                    ready.append(peer)
                elif came := sent.pop((peer, rank, *what), None):
                    here, there = (program.role(r).sizes[op.buffer] for r in (rank, peer))
                    if here != there:
                        rule = f"{op.buffer} has {there:g} B where it is sent, {here:g} B here"
                        raise ProgramError(f"{rule}: {came}; {place}")
                else:
                    done = []
            if not done:
                break
            for each in done:
                at[each.rank] = next(orders[each.rank], None)
            ready += [each.rank for each in done if each is not place]
    waits = []
    for place in [place for place in at if place][:4]:
        rank, op, never = place.rank, place.op, ""
        if op.kind == "collective":
            other = _missing(program, at, program.members(rank, op))[0]
        else:
            other = program.peer(rank, op)
            if (op.buffer, place.microbatch) not in program.sent(other, rank):
                never = f", which never sends it to rank {rank}"
        waits.append(f"{place} waits for rank {other}{never}")
    if waits:
        raise ProgramError(f"deadlock: {'; '.join(waits)}")
    for place in sent.values():
        raise ProgramError(f"this is sent to a rank that never takes it: {place}")


def _places(program: ProgramData, rank: int) -> Iterator[_Place]:
    """The ops in their order. When one is done, what it reads is there, and what it writes is
    written once; what nothing uses is a fault at the end."""
    role = program.role(rank)
    made, unread = dict[tuple[str, int], _Place](), dict[tuple[str, int], _Place]()
    for n, (block, microbatch, _) in enumerate(program.orders[rank]):
        for op in role.blocks[block]:
            yield (place := _Place(rank, n, block, microbatch, op))
            for name in map(buffer_of, op.reads):
                unread.pop((name, microbatch), None)
                if name not in role.state and (name, microbatch) not in made:
                    rule = f"{name} is read and was not written before; first make it"
                    raise ProgramError(f"{rule}: {place}")
            for name in map(buffer_of, op.writes):
                if name in role.state:
                    continue
                if before := made.get((name, microbatch)):
                    rule = f"{name} is written twice; leave one out"
                    raise ProgramError(f"{rule}: {before}; {place}")
                made[name, microbatch] = unread[name, microbatch] = place
    for (name, _), place in unread.items():
        raise ProgramError(f"{name} is left over, nothing on rank {rank} reads it: {place}")


def _missing(program: ProgramData, at: list[_Place | None], members: tuple[int, ...]) -> list[int]:
    """The members that have not come to a collective of these."""
    return [
        rank
        for rank in members
        if not (here := at[rank])
        or here.op.kind != "collective"
        or program.members(rank, here.op) != members
    ]
