"""Who sends which chunks to whom, round by round: every algorithm of every collective.

all_gather of 4 ranks; rank r starts with chunk r, and in round

         0          1          2
ring     r -> r+1   r -> r+1   r -> r+1    one chunk each, the one that came last
tree     r -> r-1   r -> r-2               1, then 2 chunks: as many as were gathered
direct   r -> all                          the own chunk to everybody

The tree doubles the distance each time and stops where all is gathered, so it needs no power of
two (Bruck et al. 1997, IEEE TPDS 8(11)). A reduction is a gathering backwards: reduce_scatter
runs the rounds of all_gather from the last to the first with every arrow turned round, and adds
where the other one copied. Hence one is the other's adjoint, and both carry the same chunks.

An all_to_all is direct by each name: on any other way chunks are sent more than once.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tiledask.errors import ConfigError

__all__ = ["MADE_FROM", "Move", "Rounds", "algorithms", "default", "rounds"]

ROOTED = ("broadcast", "reduce")


class Move(NamedTuple):
    """One message of one round, from a member of the group to another."""

    source: int
    destination: int
    chunks: tuple[int, ...]
    adds: bool  # whether the destination adds the chunks to what it has; otherwise it keeps them


Rounds = tuple[tuple[Move, ...], ...]
"""By round, its moves. A rank begins a round when all it receives in the one before is there."""


@cache
def rounds(kind: str, algorithm: str, n: int, root: int = 0) -> Rounds:
    """The rounds of a collective among ``n`` ranks; none for a single rank.

    Chunks are numbered by the rank that owns them: what rank r brings to an all_gather and keeps
    of a reduce_scatter is chunk r. ``root`` matters to broadcast and reduce. Of an all_to_all,
    chunk n*s + d goes from rank s to rank d. Raises ConfigError for names that do not exist.

    >>> [len(rounds("all_reduce", name, 8)) for name in ("ring", "tree", "direct")]
    [14, 6, 2]
    """
    given = ("collective", kind, MADE_FROM), ("algorithm", algorithm, algorithms)
    for what, name, known in given:
        if name not in known:
            raise ConfigError(f"no {what} {name!r}; there are {', '.join(known)}")
    if not 0 <= root < n:
        raise ConfigError(f"root {root} is none of the group's ranks 0..{n - 1}; choose one")
    (makers, change), first = MADE_FROM[kind], root if kind in ROOTED else 0
    return tuple(
        tuple(Move((s + first) % n, (d + first) % n, chunks, adds) for s, d, chunks, adds in moves)
        for moves in change(makers[algorithm](n))
    )


def default(kind: str, n: int) -> str:
    """The algorithm that is taken if none is named: "direct" up to 8 ranks, else "tree".

    Where chunks are gathered or summed all three carry the same bytes to every rank; direct needs
    the fewest rounds, but n-1 messages of every rank. A broadcast goes down the tree, in which
    nobody sends everything to all.

    >>> default("all_reduce", 4), default("all_reduce", 64)
    ('direct', 'tree')
    """
    most = n if kind == "all_to_all" else 2 if kind in ROOTED else 8
    return "direct" if n <= most else "tree"


# -- rounds among n ranks, with root 0 -------------------------------------------------------------


def _to_all(n: int, chunks: Callable[[int, int], tuple[int, ...]], senders: int) -> Rounds:
    """One round; everybody begins with another neighbour, so that nobody is sent all at once."""
    pairs = ((r, (r + k) % n) for k in range(1, n) for r in range(senders))
    return (tuple(Move(r, to, chunks(r, to), False) for r, to in pairs),) if n > 1 else ()


def _ring(n: int) -> Rounds:
    return tuple(
        tuple(Move(r, (r + 1) % n, ((r - k) % n,), False) for r in range(n)) for k in range(n - 1)
    )


def _tree(n: int) -> Rounds:
    made, have = list[tuple[Move, ...]](), 1  # rank r has chunks r, r+1, ... r+have-1
    while have < n:
        more = range(min(have, n - have))
        each = ((r, tuple((r + j) % n for j in more)) for r in range(n))
        made.append(tuple(Move(r, (r - have) % n, chunks, False) for r, chunks in each))
        have += len(more)
    return tuple(made)


def _chain(n: int) -> Rounds:
    """A broadcast from rank to rank, chunk after chunk: rank v passes c on in round v + c."""
    return tuple(
        tuple(Move(v, v + 1, (t - v,), False) for v in range(n - 1) if 0 <= t - v < n)
        for t in range(2 * n - 2)
    )


def _binomial(n: int) -> Rounds:
    made, whole = list[tuple[Move, ...]](), tuple(range(n))
    while (have := 2 ** len(made)) < n:  # ranks 0..have-1 have everything
        made.append(tuple(Move(v, v + have, whole, False) for v in range(min(have, n - have))))
    return tuple(made)


def _transposed(made: Rounds) -> Rounds:
    """Backwards, arrows turned round, adding instead of keeping."""
    back = reversed(made)
    return tuple(tuple(Move(to, of, chunks, True) for of, to, chunks, _ in moves) for moves in back)


_Makers = dict[str, Callable[[int], Rounds]]
_GATHER: _Makers = {"ring": _ring, "tree": _tree}
_GATHER["direct"] = lambda n: _to_all(n, lambda r, to: (r,), n)
_SPREAD: _Makers = {"ring": _chain, "tree": _binomial}
_SPREAD["direct"] = lambda n: _to_all(n, lambda r, to: tuple(range(n)), 1)
algorithms = tuple(_GATHER)
"""The names of the algorithms of every collective."""
_EXCHANGE: _Makers = dict.fromkeys(algorithms, lambda n: _to_all(n, lambda r, to: (n * r + to,), n))

MADE_FROM: dict[str, tuple[_Makers, Callable[[Rounds], Rounds]]] = {
    "all_gather": (_GATHER, tuple),
    "reduce_scatter": (_GATHER, _transposed),
    "all_reduce": (_GATHER, lambda made: (*_transposed(made), *made)),
    "broadcast": (_SPREAD, tuple),
    "reduce": (_SPREAD, _transposed),
    "all_to_all": (_EXCHANGE, tuple),
    "barrier": (_GATHER, lambda made: tuple(tuple(m._replace(chunks=()) for m in r) for r in made)),
}
"""Of collectives that are made of moves of chunks (a halo exchange is not: rows.py), what makes
rounds among n ranks with root 0, and what becomes of them."""
