"""The embedding: a row of the table for each token; zeros for tokens whose rows are elsewhere.

rows of device 0        rows of device 1        sum
token 1 -> t[1]         token 1 -> 0            t[1]
token 7 -> 0            token 7 -> t[7]         t[7]
"""

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.by_name import RankPart, Saved, layer, op, part_grad
from tiledask.tile.layers.operands import by_token, check_integers, local_index, rounded, wide

__all__ = ["embedding", "embedding_grad"]

_COLUMNS = 256
"""Of the gradient, summed at a time."""


def _rows(given: Saved) -> RankPart:
    n = len(given["table"])
    return given.get("rows") or RankPart(0, n, n)


@layer("table:rh -> *h", rows=_rows)
def embedding(tokens: Array, table: Array, rows: RankPart | None = None) -> Array:
    """[..., h] for tokens [...] and those ``rows`` of the table that are here [rows, h]; or all.

    Tokens without a row here give zeros, so the sum over the devices is the whole table's; one
    outside of the whole raises KernelError.

    >>> import numpy as np
    >>> embedding(np.array([2, 3, 4]), np.array([[1.0], [2.0]]), RankPart(3, 5, 6))[0].tolist()
    [[0.0], [1.0], [2.0]]
    """
    check_integers("tokens", tokens)
    xp, (first, _, vocabulary) = array_namespace(tokens, table), rows or (0, 0, len(table))
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if wrong.size:
        raise KernelError(
            f"tokens are 0 .. {vocabulary - 1}, got {int(wrong[0])} ({wrong.size} of "
            f"{tokens.size} are outside)"
        )
    if not len(table):  # more ranks than rows
        return xp.zeros((*tokens.shape, table.shape[1]), table.dtype)
    at, here = local_index(tokens, first, len(table))
    bits = table[at].view(f"i{table.itemsize}")  # CuPy's where has no bfloat16, and would widen it
    return xp.where(here[..., None], bits, 0).view(table.dtype)


@embedding.grad
def embedding_grad(dy: Array, tokens: Array, rows: RankPart) -> Array:
    """dtable [rows, h]: for each row the sum of dy over its tokens, which are added two and two in
    their order: the same bits each time, on a GPU too."""
    xp, count = array_namespace(dy), rows.stop - rows.start
    at, here = local_index(tokens, rows.start, count)
    places = xp.flatnonzero(here)
    at = at.reshape(-1)[places]
    order = xp.argsort(at, kind="stable")
    at, places, pairs = at[order], places[order], []
    while True:
        second = (xp.arange(len(at)) - xp.searchsorted(at, at)) % 2 == 1
        later, left = xp.flatnonzero(second), xp.flatnonzero(~second)
        if not later.size:
            break
        pairs.append((later, left))
        at = at[left]
    terms, width = by_token(dy), dy.shape[-1]
    total = xp.zeros((count, width), dy.dtype)
    for column in range(0, width, _COLUMNS):  # of which there are copies, not of all
        some = slice(column, column + _COLUMNS)
        summed = wide(terms[:, some][places])
        for later, left in pairs:
            summed[later - 1] += summed[later]
            summed = summed[left]
        # CuPy writes no bfloat16 by index
        total.view(f"i{dy.itemsize}")[:, some][at] = rounded(summed, dy).view(f"i{dy.itemsize}")
    return total


@op
def _add_rows(x: Array, table: Array, tokens: RankPart | None = None) -> Array:
    return x + table[tokens.here if tokens else slice(x.shape[1])]


@op
def _add_rows_grad(dy: Array, rows: int, tokens: RankPart | None = None) -> Array:
    total = dy.sum(axis=0)
    start, stop = tokens[:2] if tokens else (0, len(total))
    return total if len(total) == rows else part_grad(total, 0, (start, stop, rows))
