"""The bytes that every rank sends and receives in a collective, in closed form, ragged or not.

S bytes altogether, b_r of them rank r's chunk, n ranks, ranks counted modulo n:

                 received       sent on a ring   directly    by the tree
all_gather       S - b_r        S - b_(r+1)      (n-1) b_r   b_r + ... of min(2^k, n-2^k) chunks, k = 0, 1, ...
reduce_scatter   the two columns of all_gather changed about
all_reduce       both together
"""  # noqa: E501


def bytes_of(kind, algorithm, chunks, root=0):
    """(sent, received): bytes by rank for ``chunks`` bytes by chunk.

    ``chunks``: one per rank; of an all_to_all one per pair, n*s + d from rank s to rank d.

    >>> bytes_of("all_gather", "ring", [10, 20, 30])
    ((40, 30, 50), (50, 40, 30))
    """
    b = tuple(chunks)
    if kind == "barrier":
        return ((0,) * len(b),) * 2
    if kind == "all_to_all":
        return _all_to_all(b)
    moves = _broadcast if kind in ("broadcast", "reduce") else _all_gather
    one, two = moves(algorithm, b, root)
    if kind == "all_reduce":
        return (tuple(x + y for x, y in zip(one, two, strict=True)),) * 2
    return (two, one) if kind.startswith("reduce") else (one, two)


def _all_gather(algorithm, b, root):
    n, total = len(b), sum(b)
    received = tuple(total - each for each in b)
    if algorithm == "direct":
        return tuple((n - 1) * each for each in b), received
    if algorithm == "ring":
        return tuple(total - b[(r + 1) % n] for r in range(n)), received
    windows = [min(2**k, n - 2**k) for k in range((n - 1).bit_length())]
    return tuple(sum(b[(r + j) % n] for w in windows for j in range(w)) for r in range(n)), received


def _broadcast(algorithm, b, root):
    n, total = len(b), sum(b)

    def children(v):  # of the v-th rank from the root on
        if algorithm == "direct":
            return n - 1 if v == 0 else 0
        if algorithm == "ring":
            return 1 if v < n - 1 else 0
        return sum(v < 2**k < n - v for k in range(n.bit_length()))

    sent = tuple(total * children((r - root) % n) for r in range(n))
    return sent, tuple(0 if r == root else total for r in range(n))


def _all_to_all(b):
    """Direct by each name."""
    n = round(len(b) ** 0.5)
    sent = tuple(sum(b[n * s : n * s + n]) - b[n * s + s] for s in range(n))
    return sent, tuple(sum(b[d::n]) - b[n * d + d] for d in range(n))
