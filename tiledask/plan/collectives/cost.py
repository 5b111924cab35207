"""What a collective moves, counted from its moves: bytes, messages and rounds of every rank.

A message without an element is not sent where every rank knows that there is none: in reductions,
to which all bring arrays of one shape. Of 1 element in an all_reduce of 4 ranks only one chunk
has any, and 6 messages are left of 24.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tiledask.errors import ConfigError
from tiledask.plan.collectives.algorithms import Move, rounds
from tiledask.plan.intervals import even

__all__ = ["SHAPES_AGREE", "Cost", "added_up", "cost", "even", "loads", "ranks_of"]

SHAPES_AGREE = ("all_reduce", "reduce_scatter", "reduce")
"""Kinds to which every rank brings an array of the same shape."""


@dataclass(frozen=True)
class Cost:
    """What every rank of a group moves."""

    sent: tuple[int, ...]
    """Bytes that leave each rank."""
    received: tuple[int, ...]
    """Bytes that reach each rank."""
    messages: tuple[int, ...]
    """Messages that each rank sends."""
    rounds: int
    """Messages one after the other, on the longest way."""

    def __add__(self, other: "Cost") -> "Cost":
        """Of one collective after the other."""
        return Cost(
            _sums(self.sent, other.sent),
            _sums(self.received, other.received),
            _sums(self.messages, other.messages),
            self.rounds + other.rounds,
        )

    @property
    def transposed(self) -> "Cost":
        """Sent and received changed about; messages only where each rank gets as many as it sends.

        >>> gather = cost("all_gather", "ring", [10, 20, 30], 1)
        >>> gather.transposed == cost("reduce_scatter", "ring", [10, 20, 30], 1)
        True
        """
        return Cost(self.received, self.sent, self.messages, self.rounds)


def cost(
    kind: str,
    algorithm: str,
    counts: Sequence[int],
    itemsize: int,
    root: int = 0,
    sum_itemsize: int | None = None,
) -> Cost:
    """The Cost of a collective whose chunks have ``counts`` elements of ``itemsize`` bytes.

    ``counts``: one per rank; of an all_to_all one per pair, n*s + d from rank s to rank d.
    ``sum_itemsize``: bytes of an element of a sum under way, where that is wider than the array's.

    >>> cost("all_reduce", "ring", [2, 1, 1], 8).sent
    (40, 48, 40)
    >>> cost("all_reduce", "direct", even(1, 4), 8).messages
    (3, 1, 1, 1)
    """
    return _cost(kind, algorithm, tuple(counts), itemsize, root, sum_itemsize)


@lru_cache(10_000)  # a training has few different ones, of every rank in every micro-batch
def _cost(
    kind: str,
    algorithm: str,
    counts: tuple[int, ...],
    itemsize: int,
    root: int,
    sum_itemsize: int | None,
) -> Cost:
    moved = loads(kind, algorithm, counts, itemsize, root, sum_itemsize)
    return added_up(moved, ranks_of(kind, counts))


def added_up(moved: Iterable[list[tuple[Move, int]]], n: int) -> Cost:
    """The Cost of rounds of moves and their bytes, among ``n`` ranks."""
    sent, received, messages = [0] * n, [0] * n, [0] * n
    taken = 0
    for moves in moved:
        taken += bool(moves)
        for move, nbytes in moves:
            sent[move.source] += nbytes
            received[move.destination] += nbytes
            messages[move.source] += 1
    return Cost(tuple(sent), tuple(received), tuple(messages), taken)


def loads(
    kind: str,
    algorithm: str,
    counts: Sequence[int],
    itemsize: int,
    root: int = 0,
    sum_itemsize: int | None = None,
) -> Iterator[list[tuple[Move, int]]]:
    """By round, the moves that are made and the bytes of each; arguments as for `cost`."""
    skips = kind in SHAPES_AGREE
    for moves in rounds(kind, algorithm, ranks_of(kind, counts), root):
        made = []
        for move in moves:
            elements = sum(counts[c] for c in move.chunks)
            if elements or not skips:
                size = sum_itemsize if move.adds and sum_itemsize else itemsize
                made.append((move, elements * size))
        yield made


def ranks_of(kind: str, counts: Sequence[int]) -> int:
    """How many ranks have chunks of these ``counts``."""
    n = round(len(counts) ** 0.5) if kind == "all_to_all" else len(counts)
    if kind == "all_to_all" and n * n != len(counts):
        raise ConfigError(
            f"an all_to_all has a chunk for every pair of ranks, n*n of them; got {len(counts)}"
        )
    return n


def _sums(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))
