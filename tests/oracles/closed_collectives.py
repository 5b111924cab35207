"""The bytes that every rank sends and receives in a collective, in closed form, ragged or not.

S bytes altogether, b_r of them rank r's chunk, n ranks, ranks counted modulo n:

                 received       sent on a ring   directly    by the tree
all_gather       S - b_r        S - b_(r+1)      (n-1) b_r   b_r + ... of min(2^k, n-2^k) chunks, k = 0, 1, ...
reduce_scatter   the two columns of all_gather changed about
all_reduce       both together
"""  # noqa: E501

from collections.abc import Sequence

Bytes = tuple[tuple[int, ...], tuple[int, ...]]
"""(sent by rank, received by rank)."""


def bytes_of(kind: str, algorithm: str, chunks: Sequence[int], root: int = 0) -> Bytes:
    """(sent, received): bytes by rank for ``chunks`` bytes by chunk.

    ``chunks``: one per rank; of an all_to_all one per pair, n*s + d from rank s to rank d.

    >>> bytes_of("all_gather", "ring", [10, 20, 30])
    ((40, 30, 50), (50, 40, 30))
    """
    sent, received = _TABLE[kind](algorithm, tuple(chunks), root)
    return tuple(sent), tuple(received)


def _all_gather(algorithm: str, b: tuple[int, ...], root: int) -> Bytes:
    n, total = len(b), sum(b)
    received = tuple(total - each for each in b)
    if algorithm == "direct":
        return tuple((n - 1) * each for each in b), received
    if algorithm == "ring":
        return tuple(total - b[(r + 1) % n] for r in range(n)), received
    windows = [min(2**k, n - 2**k) for k in range((n - 1).bit_length())]
    return tuple(sum(b[(r + j) % n] for w in windows for j in range(w)) for r in range(n)), received


def _reduce_scatter(algorithm: str, b: tuple[int, ...], root: int) -> Bytes:
    return _all_gather(algorithm, b, root)[::-1]


def _all_reduce(algorithm: str, b: tuple[int, ...], root: int) -> Bytes:
    one, two = _all_gather(algorithm, b, root)
    both = tuple(x + y for x, y in zip(one, two, strict=True))
    return both, both


def _broadcast(algorithm: str, b: tuple[int, ...], root: int) -> Bytes:
    n, total = len(b), sum(b)

    def children(v: int) -> int:  # of the v-th rank from the root on
        if algorithm == "direct":
            return n - 1 if v == 0 else 0
        if algorithm == "ring":
            return 1 if v < n - 1 else 0
        return sum(v < 2**k < n - v for k in range(n.bit_length()))

    sent = tuple(total * children((r - root) % n) for r in range(n))
    return sent, tuple(0 if r == root else total for r in range(n))


def _reduce(algorithm: str, b: tuple[int, ...], root: int) -> Bytes:
    return _broadcast(algorithm, b, root)[::-1]


def _all_to_all(algorithm: str, b: tuple[int, ...], root: int) -> Bytes:
    """Direct by each name."""
    n = round(len(b) ** 0.5)
    sent = tuple(sum(b[n * s : n * s + n]) - b[n * s + s] for s in range(n))
    return sent, tuple(sum(b[d::n]) - b[n * d + d] for d in range(n))


def _barrier(algorithm: str, b: tuple[int, ...], root: int) -> Bytes:
    nothing = (0,) * len(b)
    return nothing, nothing


_TABLE = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
}
