"""How long a collective takes, message by message: latency, bandwidth, and work per message.

    sender    |overhead|== bytes / bandwidth ==|          sends its messages one after the other
    receiver           '- latency -|== bytes / bandwidth ==|          and takes them in so

The model of Hockney (1994) with the overhead of LogP (Culler et al. 1993), replayed over the
moves, so that ragged chunks and trees of any size have a time, not only what divides.
"""

from collections.abc import Iterable, Sequence

from tiledask.plan.collectives.algorithms import Move
from tiledask.plan.collectives.cost import loads, ranks_of

__all__ = ["replayed", "seconds"]


def seconds(
    kind: str,
    algorithm: str,
    counts: Sequence[int],
    itemsize: int,
    *,
    latency: float,
    bandwidth: float,
    overhead: float = 0.0,
    root: int = 0,
    sum_itemsize: int | None = None,
) -> tuple[float, ...]:
    """Seconds until each rank is done, if all begin at once.

    ``counts``, ``itemsize``, ``root`` and ``sum_itemsize`` as for `cost`; ``latency`` seconds that
    a message is on its way, ``bandwidth`` bytes a second at which a rank sends, and at the same
    time receives; ``overhead`` seconds that sending a message occupies the sender.

    >>> seconds("all_reduce", "ring", [1000] * 4, 8, latency=1.0, bandwidth=8000.0)
    (12.0, 12.0, 12.0, 12.0)
    """
    moved = loads(kind, algorithm, counts, itemsize, root, sum_itemsize)
    return replayed(moved, ranks_of(kind, counts), latency, bandwidth, overhead)


def replayed(
    moved: Iterable[list[tuple[Move, int]]],
    n: int,
    latency: float,
    bandwidth: float,
    overhead: float = 0.0,
) -> tuple[float, ...]:
    """The same of any rounds of moves and their bytes, among ``n`` ranks."""
    done = [0.0] * n  # with all earlier rounds
    for moves in moved:
        sender, taken_in = list(done), [0.0] * n
        for move, nbytes in moves:
            leaves = sender[move.source] + overhead
            sender[move.source] = leaves + nbytes / bandwidth
            starts = max(leaves + latency, taken_in[move.destination])
            taken_in[move.destination] = starts + nbytes / bandwidth
        done = [max(*ends) for ends in zip(sender, taken_in, strict=True)]
    return tuple(done)
