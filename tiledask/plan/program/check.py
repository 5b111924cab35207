"""What is wrong with a program, found before anything runs: with the two places that disagree.

a buffer      is read before it is written, written twice, has no size, or is left over
a message     is sent and not taken, awaited and not sent, or of two sizes
the order     lets ranks wait for each other
"""

from itertools import pairwise
from typing import NamedTuple

from tiledask.errors import ProgramError
from tiledask.plan.program.instructions import Instruction, Instructions, Recv, Send

__all__ = ["check"]

_Message = tuple[int, int, str, int]
"""From, to, buffer, frame."""


class _Place(NamedTuple):
    """Where an instruction is."""

    rank: int
    turn: int
    part: str
    frame: int
    instruction: Instruction

    def __str__(self) -> str:
        where = f"turn {self.turn} of rank {self.rank}, {self.part}.{self.frame}"
        return f"{where}: '{self.instruction!r}'"


def check(program: Instructions) -> None:
    """Refuse ``program`` if it cannot run, or something in it is left over.

    Raises ProgramError for the first fault: a buffer that is read before it is written on its rank,
    written twice for a frame, or never read; a message that nobody takes or sends, or that is of
    another size at its other end; ranks that wait for each other in a circle.

    >>> import tiledask as td
    >>> text = td.program(td.schedule("1f1b", 2, 2)).to_text()
    >>> check(td.Program.from_text(text.replace("send x1 to 1 @to_1", "")))
    Traceback (most recent call last):
        ...
    tiledask.errors.ProgramError: rank 1 takes x1 of frame 0 from rank 0, which never sends it to rank 1: turn 0 of rank 1, 1F.0: 'x1 = recv from 0 @from_0'; send it there, after what makes it
    """  # noqa: E501
    sent: dict[_Message, _Place] = {}
    taken: dict[_Message, _Place] = {}
    needs: dict[_Place, list[_Place]] = {}
    unread: dict[tuple[int, str, int], _Place] = {}
    for rank in range(program.ranks):
        needs |= _check_rank(program, rank, sent, taken, unread)
    for message, place in (taken | sent).items():
        source, target, name, frame = message
        what = f"{name} of frame {frame}"
        if message not in sent:
            raise ProgramError(
                f"rank {target} takes {what} from rank {source}, which never sends it to rank "
                f"{target}: {place}; send it there, after what makes it"
            )
        if message not in taken:
            raise ProgramError(
                f"rank {source} sends {what} to rank {target}, which never takes it from rank "
                f"{source}: {place}; take it there, before what uses it"
            )
        here, there = (program.role(rank).nbytes[name] for rank in (source, target))
        if here != there:
            raise ProgramError(
                f"{what} has {here:g} B on rank {source} and {there:g} B on rank {target}: "
                f"{sent[message]}; {taken[message]}; give both one size"
            )
        needs[taken[message]].append(sent[message])
    if unread:
        (rank, name, frame), place = next(iter(unread.items()))
        raise ProgramError(
            f"{name} of frame {frame} is left over: {place}; nothing on rank {rank} reads it: is "
            f"an instruction missing, or a part?"
        )
    _check_circles(needs)


def _check_rank(
    program: Instructions,
    rank: int,
    sent: dict[_Message, _Place],
    taken: dict[_Message, _Place],
    unread: dict[tuple[int, str, int], _Place],
) -> dict[_Place, list[_Place]]:
    """For every instruction of a rank those that it waits for there: what makes its buffers, and
    the one before it on its stream. Fills in messages, and what nothing reads."""
    role = program.role(rank)
    written: dict[tuple[str, int], _Place] = {}
    needs: dict[_Place, list[_Place]] = {}
    last: dict[str, _Place] = {}
    turns: dict[tuple[int, int], int] = {}
    for turn, (number, frame) in enumerate(program.lines[rank]):
        part = role.parts[number]
        if (first := turns.setdefault((number, frame), turn)) != turn:
            raise ProgramError(
                f"{part.name}.{frame} is repeated on rank {rank}: turns {first} "
                f"and {turn}; do it once"
            )
        for each in part.instructions:
            place = _Place(rank, turn, part.name, frame, each)
            for name in each.reads:
                if (name, frame) not in written:
                    raise ProgramError(
                        f"{name} of frame {frame} is read and was not written before: {place}; on "
                        f"rank {rank}, first do or receive what makes it"
                    )
                unread.pop((rank, name, frame), None)
            for name in each.writes:
                if name not in role.nbytes:
                    raise ProgramError(f"{name} has no size: {place}; give rank {rank} one")
                if before := written.get((name, frame)):
                    raise ProgramError(
                        f"{name} of frame {frame} is written twice: {before}; {place}; write "
                        f"another buffer, or leave one out"
                    )
                unread[rank, name, frame] = place
            if isinstance(each, Send | Recv):
                if not 0 <= each.peer < program.ranks or each.peer == rank:
                    raise ProgramError(
                        f"rank {each.peer} is no other one of the {program.ranks} ranks: {place}"
                    )
                ends = (rank, each.peer) if isinstance(each, Send) else (each.peer, rank)
                both = sent if isinstance(each, Send) else taken
                if before := both.get((*ends, each.buffer, frame)):
                    raise ProgramError(f"a message goes twice: {before}; {place}; leave one out")
                both[(*ends, each.buffer, frame)] = place
            needs[place] = [written[name, frame] for name in each.reads]
            if each.stream in last:
                needs[place].append(last[each.stream])
            last[each.stream] = place
            written |= {(name, frame): place for name in each.writes}
    return needs


def _check_circles(needs: dict[_Place, list[_Place]]) -> None:
    """Refuse ranks that wait for each other."""
    left = {place: len(before) for place, before in needs.items()}
    users: dict[_Place, list[_Place]] = {}
    for place, before in needs.items():
        for one in before:
            users.setdefault(one, []).append(place)
    ready = [place for place, count in left.items() if not count]
    while ready:
        done = ready.pop()
        del left[done]
        for user in users.get(done, ()):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    if not left:
        return
    walk = [next(iter(left))]
    while walk[-1] not in walk[:-1]:
        walk.append(next(place for place in needs[walk[-1]] if place in left))
    circle = pairwise(walk[walk.index(walk[-1]) :])
    waits = [here for here, there in circle if here.rank != there.rank]
    said = [
        f"{at} waits for rank {at.instruction.peer}"
        for at in waits
        if isinstance(at.instruction, Recv)  # it is by messages that ranks wait
    ]
    raise ProgramError(f"deadlock: {'; '.join(said)}")
