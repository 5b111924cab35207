"""Rounds of a collective on one rank: what goes to whom, who sends, and what is added up.

    all_reduce, direct, 3 ranks     rank 1: chunks  x0  x1  x2
    round 0, added    x0 -> 0, x2 -> 2, from 0 and 2 their x1:   s1 = x1 + x1 + x1
    round 1, copied   s1 -> 0, s1 -> 2, from 0 s0, from 2 s2:    s0  s1  s2

The partial sums of a round are combined from the left, by rank. Every chunk is summed on one rank
and then copied, so all ranks have the same bits; with "direct" they are those of x0 + x1 + ...
What a call does in which round is worked out once for its kind, group, sizes and type.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.cluster import host_memory
from tiledask.errors import PlacementError
from tiledask.plan.collectives.algorithms import rounds
from tiledask.plan.collectives.cost import SHAPES_AGREE
from tiledask.plan.intervals import ends_of
from tiledask.tile.backend import array_namespace, to_numpy

__all__ = ["Held", "cut", "in_host_memory", "joined", "rank_rounds"]

LARGE = 1 << 25
"""Bytes of an array whose memory malloc would not keep for the next one."""

Held = dict[int, Any]
"""Number of a chunk -> its array, of those that a rank has."""


class RankRound(NamedTuple):
    """What one rank does in one round."""

    sends: tuple[tuple[int, tuple[int, ...]], ...]
    """(number of a rank, chunks that go to it)."""
    sources: tuple[int, ...]
    """Who sends to it, by number."""
    chunks: tuple[tuple[int, ...], ...]
    """The chunks that come from each."""
    sums: tuple[tuple[int, tuple[tuple[int, int] | None, ...]], ...]
    """Of every chunk to which is added what comes, all parts in their order: (source, part of it),
    both as they come, or None for the rank's own."""
    adds: bool
    """Whether chunks are added in this round, by this rank or others."""


@lru_cache(10_000)
def rank_rounds(
    kind: str, algorithm: str, n: int, me: int, root: int = 0, counts: tuple[int, ...] | None = None
) -> tuple[RankRound, ...]:
    """The part of rank ``me`` in the rounds of a collective.

    ``counts``: elements of the chunks, where all ranks know them; none is sent for nothing.
    """
    made = []
    for moves in rounds(kind, algorithm, n, root):
        adds = any(m.adds for m in moves)
        if counts is not None and kind in SHAPES_AGREE:
            moves = tuple(m for m in moves if any(counts[c] for c in m.chunks))
        into = sorted(m for m in moves if m.destination == me)
        places: dict[int, dict[int, tuple[int, int] | None]] = {}
        for i, move in enumerate(into):
            for j, chunk in enumerate(move.chunks if move.adds else ()):
                places.setdefault(chunk, {me: None})[move.source] = i, j
        out = tuple((m.destination, m.chunks) for m in moves if m.source == me)
        sums = tuple((chunk, tuple(of[r] for r in sorted(of))) for chunk, of in places.items())
        sources, chunks = tuple(m.source for m in into), tuple(m.chunks for m in into)
        made.append(RankRound(out, sources, chunks, sums, adds))
    return tuple(made)


# -- parts of arrays ------------------------------------------------------------------------------


def joined(held: Held, shape: tuple[int, ...]) -> Any:
    """The chunks of a flattened array as one of ``shape``, a copy."""
    parts, size = [held[c] for c in range(len(held))], prod(shape)
    new = np.empty if size * parts[0].itemsize < LARGE else host_memory.empty
    return np.concatenate(parts, out=new((size,), parts[0].dtype)).reshape(shape)


def cut(x: Any, dim: int, extents: Sequence[int]) -> Held:
    """``x`` in parts of ``extents`` along ``dim``."""
    before = (slice(None),) * dim
    return {c: x[(*before, slice(*at))] for c, at in enumerate(pairwise(ends_of(extents)))}


def in_host_memory(x: Any) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """(``x`` in host memory, what takes a result to where ``x`` was)."""
    if type(x) is np.ndarray and not x.dtype.hasobject:
        return x, np.asarray
    if isinstance(x, int | float | complex):
        x = np.asarray(x)
    host = np.asarray(to_numpy(x))
    if host.dtype.hasobject:
        raise PlacementError(
            f"collectives move numbers, got an array of {host.dtype}; convert it, or put the "
            f"values in what the program returns"
        )
    return host, array_namespace(x).asarray
