"""What is wrong with a program, found before anything runs: with the two places that disagree.

a fetch       is from nowhere, or over what nobody has read
a buffer      is read before it is written, written twice, has no size, or is left over
a message     is sent and not taken, awaited and not sent, or of two sizes
a collective  is left out by a member, made in another order, or of another size
the order     lets ranks wait for each other
"""

from itertools import pairwise

from tiledask.errors import ProgramError
from tiledask.plan.program.graph import LinePlace, Node, followers, graph
from tiledask.plan.program.instructions import Collective, Fetch, Instructions, Recv, buffer_of

__all__ = ["check"]


def check(program: Instructions) -> None:
    """Refuse ``program`` if it cannot run, or something in it is left over.

    Raises ProgramError for the first fault: a buffer that is read before it is written on its rank,
    written twice for a frame, or never read; a message that nobody takes or sends, or that is of
    another size at its other end; a collective that a member leaves out, or makes otherwise; ranks
    that wait for each other in a circle.

    >>> import tiledask as td
    >>> text = td.program(td.schedule("1f1b", 2, 2)).to_text()
    >>> check(td.Program.from_text(text.replace("send x1 to 1 @to_1", "")))
    Traceback (most recent call last):
        ...
    tiledask.errors.ProgramError: rank 1 takes x1 of frame 0 from rank 0, which never sends it to rank 1: turn 0 of rank 1, 1F.0: 'x1 = recv from 0 @from_0'; send it there, after what makes it
    """  # noqa: E501
    nodes = graph(program)
    _check_sources(program, nodes)
    _check_left_over(program, nodes)
    _check_circles(nodes)


def _check_sources(program: Instructions, nodes: list[Node]) -> None:
    """Refuse fetches from nowhere, and what is fetched over what nobody has read."""
    unread: dict[tuple[int, str], LinePlace] = {}
    for node in nodes:
        for place in node.places:
            each, rank = place.instruction, place.rank
            if isinstance(each, Fetch):
                if each.source == rank or each.source not in (None, *range(program.ranks)):
                    raise ProgramError(
                        f"a fetch is from another one of the {program.ranks} ranks, or from none: "
                        f"{place}; what is here is read as it is"
                    )
                if not each.adds and (before := unread.get((rank, each.buffer))) is not None:
                    raise ProgramError(
                        f"{each.buffer} is fetched over what nothing has read: {before}; {place}; "
                        f"use it first, or fetch it once"
                    )
                if "[" in each.buffer:
                    unread[rank, each.buffer] = place
            else:
                for name in each.reads:
                    unread.pop((rank, name), None)
    if unread:
        raise ProgramError(
            f"what is fetched is left over: {next(iter(unread.values()))}; nothing reads it: is an "
            f"instruction missing?"
        )


def _check_left_over(program: Instructions, nodes: list[Node]) -> None:
    unread: dict[tuple[int, str, int], LinePlace] = {}
    for node in nodes:
        for place in node.places:
            stays = program.role(place.rank).stays
            for name in place.instruction.writes:
                if buffer_of(name) not in stays:
                    unread[place.rank, buffer_of(name), place.frame] = place
    for node in nodes:
        for place in node.places:
            for name in place.instruction.reads:
                unread.pop((place.rank, buffer_of(name), place.frame), None)
    if unread:
        (rank, name, frame), place = next(iter(unread.items()))
        raise ProgramError(
            f"{name} of frame {frame} is left over: {place}; nothing on rank {rank} reads it: is "
            f"an instruction missing, or a part?"
        )


def _check_circles(nodes: list[Node]) -> None:
    """Refuse ranks that wait for each other."""
    users, left = followers(nodes)
    ready = [number for number, count in enumerate(left) if not count]
    done = 0
    while ready:
        done += 1
        for user in users[ready.pop()]:
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    if done == len(nodes):
        return
    walk = [next(number for number, count in enumerate(left) if count)]
    while walk[-1] not in walk[:-1]:
        walk.append(next(before for before in nodes[walk[-1]].waits if left[before]))
    circle = pairwise(walk[walk.index(walk[-1]) :])
    said = [
        f"{place} waits for {'rank ' + str(nodes[there].places[0].rank)}"
        for here, there in circle
        for place in [_between(nodes[here], nodes[there])]
        if isinstance(place.instruction, Recv | Collective)  # by these, ranks wait
        and nodes[there].places[0].rank != place.rank
    ]
    raise ProgramError(f"deadlock: {'; '.join(said)}")


def _between(here: Node, there: Node) -> LinePlace:
    """The place in ``here`` that waits for ``there``."""
    ranks = {place.rank for place in there.places}
    return next((place for place in here.places if place.rank not in ranks), here.places[0])
